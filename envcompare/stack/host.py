"""The stack `host`: a plain login's interpreter, and the files of the host that it lives on."""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec

from envcompare.errors import UnusableError
from envcompare.stack.skeleton import Layout
from envcompare.transport import Transport
from envcompare.transport.operations import FOLDER_S, not_understood, read_json, shell

_DEFAULT_PYTHON = "python3"
# A login shell, since that is where a user's PATH, conda or modules come from; fish and csh do not
# read what follows.
_ASK = """
case "${SHELL##*/}" in
    sh|bash|dash|ksh|zsh) login=$SHELL ;;
    *) login=sh ;;
esac
exec "$login" -lc 'exec "$0" -c "$@"' "$@"
"""
# What is asked for is imported first: the libraries it loads are found in the map of the process.
_DESCRIBE = r"""
import hashlib, json, os, pwd, site, subprocess, sys

# Beside the certificates lie private keys.
SYSTEM = "/usr /bin /sbin /etc/ssl/certs /etc/ssl/openssl.cnf /etc/pki/tls/certs" \
    " /etc/pki/ca-trust /etc/ca-certificates /etc/localtime /etc/alternatives" \
    " /etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d /etc/os-release"
versions = {name: getattr(__import__(name), "__version__", "") for name in sys.argv[1:]}
mapped = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if "/" in line}
own = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *sys.path,
       *site.getsitepackages(), os.path.dirname(sys.executable),
       *(os.path.dirname(path) for path in mapped if ".so" in path)]
if site.ENABLE_USER_SITE:
    own.append(site.getusersitepackages())
# The GPU driver's libraries are loaded late, by their names.
cache = subprocess.getoutput("PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null")
driver = [line.rpartition(" => ")[2] for line in cache.splitlines()
          if line.split(".so")[0].strip() in ("libcuda", "libnvidia-ml")]
own += [os.path.dirname(found) for path in driver for found in (path, os.path.realpath(path))]
own.append("/run/opengl-driver/lib")  # of NixOS, whose loader has no cache
hop = sys.executable
while os.path.islink(hop):
    hop = os.path.normpath(os.path.join(os.path.dirname(hop), os.readlink(hop)))
    own.append(os.path.dirname(hop))
own += [os.path.realpath(path) for path in own if path]
homes = {os.path.expanduser("~")}
try:
    homes.add(pwd.getpwuid(os.getuid()).pw_dir)
except KeyError:
    pass
libs = sorted("/" + name for name in os.listdir("/") if name.startswith("lib"))

def entry(path):
    if os.path.islink(path):
        return [path, "link", os.readlink(path)]
    return [path, "folder" if os.path.isdir(path) else "file", ""]

real_path = os.path.realpath(sys.executable)
carried = {name: os.environ[name] for name in ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
           if os.environ.get(name)}
if site.ENABLE_USER_SITE:
    carried["PYTHONUSERBASE"] = site.getuserbase()
print(json.dumps({
    "path": sys.executable,
    "real_path": real_path,
    "sha256": hashlib.sha256(open(real_path, "rb").read()).hexdigest(),
    "version": sys.version.split()[0],
    "imported": versions,
    "system": [entry(path) for path in SYSTEM.split() + libs if os.path.lexists(path)],
    "own": sorted(path for path in set(own) if path.startswith("/") and os.path.isdir(path)),
    "homes": sorted(homes | {os.path.realpath(home) for home in homes}),
    "variables": carried,
}))
"""
# The skeleton has these itself, writable, filled by the engine, or without anyone's files.
_NEVER_BOUND = frozenset(
    ("/", "/dev", "/etc", "/home", "/proc", "/root", "/run", "/sys", "/tmp", "/var", "/var/tmp")  # noqa: S108
)


class HostPython(msgspec.Struct, frozen=True, kw_only=True):
    """What the interpreter of the host says of itself."""

    path: str
    version: str
    real_path: str = ""
    sha256: str = ""  # of the file there
    imported: dict[str, str] = {}
    system: tuple[tuple[str, str, str], ...] = ()  # path, kind and where a link points
    own: tuple[str, ...] = ()  # folders that Python and what it loaded lie in
    homes: tuple[str, ...] = ()  # of the user
    variables: dict[str, str] = {}  # of the login, by which Python finds its packages


def find_python(
    transport: Transport, *, python: str | None, imports: tuple[str, ...]
) -> HostPython:
    """Return what a login's interpreter on the host says of itself.

    Raises UnusableError when it is missing or cannot import what is needed.
    """
    asked = python or _DEFAULT_PYTHON
    result = shell(transport, _ASK, asked, _DESCRIBE, *imports, timeout_s=FOLDER_S)
    lines = result.stdout.strip().splitlines()
    if not result.succeeded or not lines:
        what = f"imports {' and '.join(imports)}" if imports else "runs there"
        raise UnusableError(
            f"the host's own {asked} on {transport.name} cannot be used",
            details=result.tail(1) or "it printed nothing",
            hint=f"name an interpreter that {what} with --host-python",
        )
    try:
        return read_json(lines[-1], HostPython)
    except msgspec.DecodeError as error:
        hint = "name another interpreter with --host-python"
        what = f"the version of {asked}"
        raise not_understood(transport, what, result.stdout, hint=hint) from error


def layout(python: HostPython) -> Layout:
    """Return what a container has to show of the host; nothing is named twice."""
    links = tuple((path, target) for path, kind, target in python.system if kind == "link")
    folders = [path for path, kind, _ in python.system if kind == "folder"]
    covered = {*folders, *(path for path, _ in links)}
    for path in sorted(python.own):
        parents = {str(parent) for parent in PurePosixPath(path).parents}
        if not _is_kept_out(path, python.homes) and not covered & {path, *parents}:
            folders.append(path)
            covered.add(path)
    files = tuple(path for path, kind, _ in python.system if kind == "file")
    return Layout(links=links, folders=tuple(folders), files=files)


def left_out(python: HostPython) -> tuple[str, ...]:
    """Return the folders of Python that no container shows: whole homes, and what it has itself."""
    return tuple(path for path in sorted(python.own) if _is_kept_out(path, python.homes))


def _is_kept_out(path: str, homes: tuple[str, ...]) -> bool:
    """Tell whether a folder is the container's own, a whole home, or one that holds homes."""
    folder = PurePosixPath(path)
    holds_home = any(PurePosixPath(home).is_relative_to(folder) for home in homes)
    return path in _NEVER_BOUND or str(folder.parent) == "/home" or holds_home


def software_of(python: HostPython) -> tuple[tuple[str, str], ...]:
    """Return what must be the same when a run is resumed: the interpreter, and what it imports."""
    return (
        ("python.path", python.real_path),
        ("python.version", python.version),
        ("python.sha256", python.sha256),
        *((f"{name}.version", version) for name, version in python.imported.items()),
    )
