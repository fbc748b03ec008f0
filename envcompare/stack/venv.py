"""The software of the arms without an image: a venv, or the login's own.

The venv of the `vm` arm has the locked wheels under an interpreter of the host. The stack `host` is
a login's interpreter, and an empty root with the host's files it needs. That root, here called
skeleton, only has mount points and links.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

import msgspec

from envcompare.errors import UnusableError
from envcompare.stack import (
    FALLBACK,
    LOCK_LABEL,
    PYTHONS,
    Mount,
    Prepared,
    Progress,
    failure,
    storage,
)
from envcompare.stack.storage import (
    LOCK,
    SUMS,
    ImageStore,
    Wheelhouse,
    check_whole,
    host_cache,
    mount_options,
    put,
    steps,
)
from envcompare.text import Command, counted
from envcompare.transport import (
    CONTENT_S,
    FOLDER_S,
    OnProgress,
    Transport,
    file_sha256,
    make_folder,
    not_understood,
    read_json,
    run,
    shell,
)

# Runs on any Python: the interpreter found may be much older than the wanted version.
_DESCRIBE = """
import hashlib, json, os, sys
found = "%d.%d" % sys.version_info[:2]
if found != sys.argv[1]:
    sys.exit("%s is Python %s" % (sys.executable, found))
from importlib.machinery import PathFinder
import zlib
if not PathFinder.find_spec("venv"):  # to import it takes as long as all the rest
    sys.exit("%s has no module venv" % sys.executable)
path = os.path.realpath(sys.executable)
digest = hashlib.sha256(open(path, "rb").read()).hexdigest()
print(json.dumps({"path": sys.executable, "real_path": path, "sha256": digest,
                  "version": sys.version.split()[0], "build": sys.version}))
"""
_LOOK = r"""
code=$1 minor=$2
shift 2
for python in "$@"; do
  path=$(command -v "$python") || continue
  "$path" -I -c "$code" "$minor" && exit 0
done
exit 3
"""
_TELL = """
import sys
from importlib.machinery import PathFinder
print("%d.%d" % sys.version_info[:2], sys.version.split()[0], bool(PathFinder.find_spec("venv")))
"""
# Stops at the first Python that has wheels: starting interpreters takes most of the time here.
_FIRST = r"""
known=$1 tell=$2
shift 2
for python in "$@"; do
  answer=$("$python" -I -c "$tell" 2>/dev/null)
  case " $known " in
    *" ${answer%% *} "*) echo "$answer $(readlink -f -- "$(command -v "$python")")" && exit ;;
  esac
done
exit 0
"""
_IS_DONE = '[ "$(cat "$1/.complete" 2>/dev/null)" = "$2" ] && "$1/bin/python" -I -c pass'
# The mark is written last: a venv cannot be made elsewhere and moved, since its paths are absolute.
_MAKE = r"""
python=$1 wheels=$2 venv=$3 mark=$4 install=$5
umask 022
exec 9>"$venv.lock"
! command -v flock >/dev/null || flock 9
[ "$(cat "$venv/.complete" 2>/dev/null)" != "$mark" ] || exit 0
set -e
sh -c "$install" sh "$wheels" "$venv" "$python"
printf %s "$mark" >"$venv/.complete"
"""
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
_DESCRIBE_PYTHON = r"""
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


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """A Python of the host, as it describes itself."""

    path: str
    real_path: str
    sha256: str  # of the file there
    version: str
    build: str

    @property
    def digest(self) -> str:
        """Return the identification of the build."""
        return hashlib.sha256(f"{self.real_path}\n{self.sha256}\n{self.build}".encode()).hexdigest()


class FirstPython(NamedTuple):
    """The first Python of a host with wheels; if none, only its version is set."""

    version: str = FALLBACK  # such as "3.10"
    release: str = ""
    has_venv: bool = False
    real_path: str = ""

    @property
    def is_the_systems(self) -> bool:
        """Tell whether `find_interpreter` would find it first, and it can make a venv."""
        return self.has_venv and self.real_path == f"/usr/bin/python{self.version}"


def first_python(transport: Transport, *, chosen: str | None) -> FirstPython:
    """Return the chosen interpreter of a host, else its first one with wheels."""
    names = [f"python{version}" for version in reversed(PYTHONS)]
    candidates = [chosen] if chosen else ["/usr/bin/python3", "python3", *names]
    answer = shell(transport, _FIRST, " ".join(PYTHONS), _TELL, *candidates, timeout_s=FOLDER_S)
    words = answer.stdout.rstrip("\n").split(" ", 3)
    if len(words) < 4 or words[0] not in PYTHONS:
        return FirstPython()
    version, release, has_venv, path = words
    return FirstPython(version, release, has_venv == "True", path)


def find_interpreter(transport: Transport, *, python: str, chosen: str | None) -> Interpreter:
    """Return the chosen interpreter, else the system's of that version, else the one on PATH.

    Raises UnusableError with the interpreters found if none fits.
    """
    candidates = [chosen] if chosen else [f"/usr/bin/python{python}", f"python{python}"]
    result = shell(transport, _LOOK, _DESCRIBE, python, *candidates, timeout_s=FOLDER_S)
    if not result.stdout.startswith("{"):
        answer = f" ({result.tail(1)})" if result.tail(1) else ""
        raise UnusableError(
            f"no Python {python} for vm on {transport.name}",
            details=f"looked for {' and '.join(candidates)}{answer}",
            hint=f"install python{python} there, or name one with --vm-python",
        )
    try:
        return read_json(result.stdout.partition("\n")[0], Interpreter)
    except msgspec.DecodeError as error:
        hint = f"run {candidates[-1]} there, or name another one with --vm-python"
        what = f"the version of {candidates[-1]}"
        raise not_understood(transport, what, result.stdout, hint=hint) from error


def make(
    transport: Transport, wheelhouse: Wheelhouse, *, interpreter: Interpreter, progress: Progress
) -> Prepared:
    """Return the venv of these wheels on the host, made if missing or incomplete."""
    folder = f"{host_cache(transport)}/{wheelhouse.key}"
    install = steps()["install.sh"]
    made_by = hashlib.sha256(f"{interpreter.digest}\n{install}".encode()).hexdigest()
    venv = f"{folder}/venv-{made_by[:12]}"
    mark = f"{wheelhouse.key} {made_by}"
    if not shell(transport, _IS_DONE, venv, mark).succeeded:
        need = storage.Need(step="venv", transport=transport, path=folder)
        storage.require((need,), wheelhouse.amount, purpose="the venv of vm")
        check_whole(wheelhouse)
        wheels = ship(transport, wheelhouse, progress=progress)
        progress.begin(f"making the venv of vm on {transport.name} with {interpreter.path}")
        result = shell(
            transport, _MAKE, interpreter.path, wheels, venv, mark, install, timeout_s=CONTENT_S
        )
        if not result.succeeded:
            raise failure(
                transport,
                "making the venv of vm",
                result.stderr,
                hint=f"run it again, or name another Python {interpreter.version} with --vm-python",
            )
    return Prepared(
        interpreter=f"{venv}/bin/python",
        identity=(
            ("stack", "venv"),
            ("lock", wheelhouse.key),
            ("python", interpreter.version),
            ("python.path", interpreter.real_path),
        ),
        facts=(("lock.sha256", wheelhouse.key),),
        software=(
            ("lock.sha256", wheelhouse.key),
            ("python.path", interpreter.real_path),
            ("python.version", interpreter.version),
            ("python.build", interpreter.digest),
        ),
    )


def ship(transport: Transport, wheelhouse: Wheelhouse, *, progress: Progress) -> str:
    """Send the wheels that a host lacks to its cache; return the folder there."""
    folder = f"{host_cache(transport)}/{wheelhouse.key}/wheelhouse"
    missing = _missing(transport, wheelhouse, folder)
    if missing:
        make_folder(transport, folder)
        sizes = {name: (wheelhouse.folder / name).stat().st_size for name in missing}
        total = sum(sizes.values())
        what = f"{counted(len(missing), 'file')}, {total / 1e6:.0f} MB"
        progress.begin(f"sending {what}, to {transport.name}")
        with progress.moving("wheels", total) as on_progress:
            before = 0
            for name, digest in missing.items():
                source, target = wheelhouse.folder / name, f"{folder}/{name}"
                put(
                    transport,
                    source,
                    target,
                    sha256=digest,
                    on_progress=_after(before, on_progress),
                )
                before += sizes[name]
    return folder


def _after(before_bytes: int, on_progress: OnProgress) -> OnProgress:
    """Return a callback that adds the bytes of earlier files."""
    return lambda done_bytes: on_progress(before_bytes + done_bytes)


def _missing(transport: Transport, wheelhouse: Wheelhouse, folder: str) -> dict[str, str]:
    names = [LOCK, SUMS, *(name for name, _ in wheelhouse.sums)]
    # A missing file or folder is no failure here, but what is looked for: hence `exit 0`.
    script = 'cd -- "$1" 2>/dev/null && shift && sha256sum -- "$@" 2>/dev/null; exit 0'
    lines = shell(transport, script, folder, *names, timeout_s=CONTENT_S).stdout.splitlines()
    there = {tuple(line.split("  ", 1)) for line in lines}
    here = {name: file_sha256(wheelhouse.folder / name) for name in (LOCK, SUMS)}
    here.update(wheelhouse.sums)
    return {name: digest for name, digest in here.items() if (digest, name) not in there}


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
        transport, _ASK, program, _DESCRIBE_PYTHON, " ".join(_CARRIED), *imports, timeout_s=FOLDER_S
    )
    # A login shell may print something first: the answer is the last line.
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
    parents = (PurePosixPath(path).parents for path in (*named, *files, *links))
    paths = {*named, *(str(parent) for each in parents for parent in each)} - {"."}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        # The hash of the archive names the root: members are in one order, and have no times.
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
    # The `chown` of an image may be any program, which would be root on the host's disk.
    root = make_image(store, layout)
    words = (
        *("run", "--rm", "--pull", "never", "--network", "none", "--log-driver", "none"),
        *("--user", "0:0", "--cap-drop", "ALL"),
        # Some folders forbid even their owner to look into them.
        *("--cap-add", "CHOWN", "--cap-add", "DAC_READ_SEARCH"),
        *("--security-opt", "no-new-privileges", "--read-only"),
        *mount_options(layout.mounts, folder),
        *("--entrypoint", "", root, "/bin/chown", "-hR", "--", owner, folder),
    )
    store.run(*words, timeout_s=_GIVE_BACK_S)


def _key(packed: bytes) -> str:
    return hashlib.sha256(packed).hexdigest()[:16]


def _member(path: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.type = kind
    return member
