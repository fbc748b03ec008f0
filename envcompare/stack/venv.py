"""The venv of the `vm` arm: the locked wheels under an interpreter of the host."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from envcompare.errors import UnusableError
from envcompare.stack import Prepared, Progress, failure, storage
from envcompare.stack.storage import host_cache, put
from envcompare.stack.tiers import FALLBACK, PYTHONS
from envcompare.stack.wheelhouse import LOCK, SUMS, Wheelhouse, check_whole, steps
from envcompare.text import counted
from envcompare.transport import (
    CONTENT_S,
    FOLDER_S,
    OnProgress,
    Transport,
    file_sha256,
    make_folder,
    not_understood,
    read_json,
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
    """Return the files the host lacks, with their hashes."""
    names = [LOCK, SUMS, *(name for name, _ in wheelhouse.sums)]
    script = 'cd -- "$1" 2>/dev/null && shift && sha256sum -- "$@" 2>/dev/null; exit 0'
    lines = shell(transport, script, folder, *names, timeout_s=CONTENT_S).stdout.splitlines()
    there = {tuple(line.split("  ", 1)) for line in lines}
    here = {name: file_sha256(wheelhouse.folder / name) for name in (LOCK, SUMS)}
    here.update(wheelhouse.sums)
    return {name: digest for name, digest in here.items() if (digest, name) not in there}
