"""The stack `host`: a login's interpreter, and an empty root with the host's files it needs.

The root, here called skeleton, only has mount points and links.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from envcompare.command import Command
from envcompare.errors import UnusableError
from envcompare.stack import LOCK_LABEL, Mount, failure
from envcompare.stack.engine import ImageStore, mount_options
from envcompare.stack.storage import host_cache
from envcompare.transport import (
    CONTENT_S,
    FOLDER_S,
    Transport,
    make_folder,
    not_understood,
    read_json,
    run,
    shell,
)

LOADING = ("LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_PATH")
"""Variables of a login that lead the loader, or a search for CUDA, to other libraries."""

_CARRIED = ("PYTHONPATH", "PYTHONHOME", *LOADING)
# A login shell, which sets up a user's PATH, conda or modules; fish and csh cannot read the rest.
_ASK = """
case "${SHELL##*/}" in
    sh|bash|dash|ksh|zsh) login=$SHELL ;;
    *) login=sh ;;
esac
exec "$login" -lc 'exec "$0" -c "$@"' "$@"
"""
# The requested packages are imported first, so that their libraries are in the process's map.
_DESCRIBE = r"""
import hashlib, json, os, pwd, site, subprocess, sys

wanted, sys.argv[1:] = sys.argv[1].split(), sys.argv[2:]
# Only the certificates: the folders next to them hold private keys.
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
carried = {name: os.environ[name] for name in wanted if os.environ.get(name)}
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
    ("/", "/dev", "/etc", "/home", "/proc", "/root", "/run", "/sys", "/tmp", "/var", "/var/tmp")  # noqa: S108 — inside
)
REPOSITORY = "envcompare-skeleton"
_FOLDERS = ("dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "sys", "usr", "var")
_OPEN_FOLDERS = ("tmp", "var/tmp")
_FILES = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": b"127.0.0.1 localhost\n",
    "etc/resolv.conf": b"",
}
# An engine returns its ID, so a second call makes nothing.
_IMPORT = r"""
"$1" image inspect --format '{{.Id}}' "$2" 2>/dev/null || "$1" import --change "LABEL $3" - "$2"
"""
_UNPACK = r"""
[ -d "$1" ] && exit 0
umask 022
mkdir -p "$1.partial" && tar -xof - -C "$1.partial" && mv "$1.partial" "$1"
"""
# The folders of the host's programs, and the targets of those that are links.
_PROGRAMS = r"""
for path in /usr /bin /sbin /lib*; do
    if [ -L "$path" ]; then printf '%s %s\n' "$path" "$(readlink "$path")"
    elif [ -d "$path" ]; then printf '%s\n' "$path"; fi
done
"""
_GIVE_BACK_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The parts of a host that a container sees: its links, and binds of folders and files."""

    links: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Return the binds, all of them read-only."""
        return tuple(Mount(path=path) for path in (*self.folders, *self.files))


class HostPython(msgspec.Struct, frozen=True, kw_only=True):
    """The host's interpreter, as it describes itself."""

    path: str
    version: str
    real_path: str = ""
    sha256: str = ""  # of the file there
    imported: dict[str, str] = {}
    system: tuple[tuple[str, str, str], ...] = ()  # path, kind and where a link points
    own: tuple[str, ...] = ()  # folders of Python and of what it loaded
    homes: tuple[str, ...] = ()  # of users
    variables: dict[str, str] = {}  # of the login, by which Python finds its packages


def find_python(
    transport: Transport, *, python: str | None, imports: tuple[str, ...]
) -> HostPython:
    """Return the description of a login's interpreter on the host.

    Raises UnusableError if it is missing or cannot import what is needed.
    """
    program = python or "python3"
    result = shell(
        transport, _ASK, program, _DESCRIBE, " ".join(_CARRIED), *imports, timeout_s=FOLDER_S
    )
    lines = result.stdout.strip().splitlines()
    if not result.succeeded or not lines:
        what = f"imports {' and '.join(imports)}" if imports else "runs there"
        raise UnusableError(
            f"the host's own {program} on {transport.name} cannot be used",
            details=result.tail(1) or "it printed nothing",
            hint=f"name an interpreter that {what} with --host-python",
        )
    try:
        return read_json(lines[-1], HostPython)
    except msgspec.DecodeError as error:
        hint = "name another interpreter with --host-python"
        what = f"the version of {program}"
        raise not_understood(transport, what, result.stdout, hint=hint) from error


def layout(python: HostPython) -> Layout:
    """Return the parts of the host that a container must show, each once."""
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
    """Return the folders of Python that no container shows: whole homes, and its own folders."""
    return tuple(path for path in sorted(python.own) if _is_kept_out(path, python.homes))


def _is_kept_out(path: str, homes: tuple[str, ...]) -> bool:
    """Tell whether a folder is the container's own, a whole home, or one that holds homes."""
    folder = PurePosixPath(path)
    holds_home = any(PurePosixPath(home).is_relative_to(folder) for home in homes)
    return path in _NEVER_BOUND or str(folder.parent) == "/home" or holds_home


def software_of(python: HostPython) -> tuple[tuple[str, str], ...]:
    """Return what must not change before a resumption: the interpreter and its imports."""
    return (
        ("python.path", python.real_path),
        ("python.version", python.version),
        ("python.sha256", python.sha256),
        *((f"{name}.version", version) for name, version in python.imported.items()),
    )


def archive(layout: Layout) -> bytes:
    """Return the root as a tar archive; the same layout gives the same bytes."""
    files = {**_FILES, **{path.lstrip("/"): b"" for path in layout.files}}
    links = {path.lstrip("/"): target for path, target in layout.links}
    named = (*_FOLDERS, *_OPEN_FOLDERS, *(path.lstrip("/") for path in layout.folders))
    paths = {*named, *_parents((*named, *files, *links))}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(paths):
            member = _member(path, tarfile.DIRTYPE)
            member.mode = 0o1777 if path in _OPEN_FOLDERS else 0o755
            tar.addfile(member)
        for path, content in sorted(files.items()):
            member = _member(path, tarfile.REGTYPE)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for path, target in sorted(links.items()):
            member = _member(path, tarfile.SYMTYPE)
            member.linkname = target
            tar.addfile(member)
    return packed.getvalue()


def make_image(store: ImageStore, layout: Layout) -> str:
    """Return the ID of the skeleton in the host's engine, imported if missing."""
    packed = archive(layout)
    words = (store.engine.program, f"{REPOSITORY}:{_key(packed)}", f"{LOCK_LABEL}=skeleton")
    command = Command(argv=("sh", "-c", _IMPORT, "sh", *words))
    result = run(store.transport, command, stdin=packed, timeout_s=CONTENT_S)
    if not result.succeeded:
        hint, what = "envcompare doctor says more", "importing the skeleton"
        raise failure(store.transport, what, result.stderr, hint=hint)
    return result.stdout.strip()


def make_root(transport: Transport, layout: Layout) -> str:
    """Return the skeleton as a folder of the host's cache, unpacked if missing."""
    packed = archive(layout)
    base = host_cache(transport)
    make_folder(transport, base)
    folder = f"{base}/skeleton-{_key(packed)}"
    command = Command(argv=("sh", "-c", _UNPACK, "sh", folder))
    result = run(transport, command, stdin=packed, timeout_s=CONTENT_S)
    if not result.succeeded:
        raise failure(transport, "unpacking the skeleton", result.stderr, hint="check the disk")
    return folder


def give_back(store: ImageStore, folder: str, *, owner: str) -> None:
    """Make `owner` the owner of everything in a folder, as root in a container.

    Runs the host's own `chown` with no other capability; it sees only the host's programs and the
    folder. Ignores failures: the later removal of the folder reports them.
    """
    lines = shell(store.transport, _PROGRAMS).stdout.splitlines()
    paths = tuple((path, target) for path, _, target in (line.partition(" ") for line in lines))
    layout = Layout(
        links=tuple((path, target) for path, target in paths if target),
        folders=tuple(path for path, target in paths if not target),
    )
    root = make_image(store, layout)
    words = (
        *("run", "--rm", "--pull", "never", "--network", "none", "--log-driver", "none"),
        *("--user", "0:0", "--cap-drop", "ALL"),
        *("--cap-add", "CHOWN", "--cap-add", "DAC_READ_SEARCH"),
        *("--security-opt", "no-new-privileges", "--read-only"),
        *mount_options(layout.mounts, folder),
        *("--entrypoint", "", root, "/bin/chown", "-hR", "--", owner, folder),
    )
    store.run(*words, timeout_s=_GIVE_BACK_S)


def _key(packed: bytes) -> str:
    return hashlib.sha256(packed).hexdigest()[:16]


def _parents(paths: tuple[str, ...]) -> set[str]:
    parents = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    return parents - {"."}


def _member(path: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.type = kind
    return member
