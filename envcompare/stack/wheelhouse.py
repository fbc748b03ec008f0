"""The workloads' packages: resolved once with pip, locked by hash, kept as wheels, and listed."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ParamSpec, TypeVar

from envcompare.config import Variant
from envcompare.errors import ConfigError, StackError
from envcompare.stack import LOCK_LABEL, Choice, Progress, failure, is_full
from envcompare.stack.storage import LOCK, SUMS, Wheelhouse, local_cache, steps
from envcompare.text import Command, CommandResult, shortened
from envcompare.transport import CONTENT_S, LOCAL, Transport, file_sha256, make_folder, run, shell

_P = ParamSpec("_P")
_R = TypeVar("_R")

_KEY = re.compile(r"[0-9a-f]{64}")
_SUM = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._+!-]*\.whl)")
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of builds without CUDA."""

_PIN = re.compile(r"^(torch|torchvision)==([^\s;#+]+)", re.MULTILINE)
_FOLDER = re.compile("[0-9a-f]{32,64}")  # names of folders in the cache
# pip takes wheels for another Python, but evaluates environment markers for its own
# (pypa/pip issue 6117). torch needs setuptools from Python 3.12 on: a lock made on 3.11 lacked it.
_PIP = """
import platform, runpy, sys
python = sys.argv.pop(1)
if "%d.%d" % sys.version_info[:2] != python:
    platform.python_version = lambda: python + ".0"
    platform.python_version_tuple = lambda: tuple(python.split(".")) + ("0",)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
# From other indexes the same requirements may give other wheels.
_SOURCES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")


def one_at_a_time(make: Callable[_P, _R]) -> Callable[_P, _R]:
    """Serialise the threads of this process; a later one finds what was made."""
    lock = threading.Lock()

    @functools.wraps(make)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with lock:
            return make(*args, **kwargs)

    return wrapped


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    requirements: Path
    python: str
    variant: Variant
    local: Transport
    progress: Progress

    @property
    def name(self) -> str:
        """Return a hash of the packages, interpreter, variant, machine and package indexes."""
        sources = [f"{name}={os.environ.get(name, '')}" for name in _SOURCES]
        text = self.requirements.read_text(encoding="utf-8")
        parts = [text, self.python, self.variant, platform.machine(), *sources]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@one_at_a_time
def fill(
    requirements: Path,
    *,
    python: str,
    variant: Variant = "auto",
    local: Transport,
    progress: Progress,
) -> Wheelhouse:
    """Return the wheelhouse of these requirements for Python `python` ("3.11").

    The variant `auto` is whatever pip prefers. The first call runs pip, with the user's own
    configuration; later ones only read. Raises StackError if pip is missing or cannot find the
    packages.
    """
    request = _Request(
        requirements=requirements, python=python, variant=variant, local=local, progress=progress
    )
    try:
        return _fill(request, local_cache())
    except OSError as error:
        if not is_full(str(error)):
            raise
        raise failure(local, "keeping the wheels", str(error), hint="") from error


def _fill(request: _Request, cache: Path) -> Wheelhouse:
    local, progress = request.local, request.progress
    note = cache / "resolved" / request.name
    if (key := _noted(note)) and (known := _known(cache, key, progress)):
        return known
    kind = "" if request.variant == "auto" else f", variant {request.variant}"
    progress.begin(f"resolving {request.requirements.name} for Python {request.python}{kind}")
    make_folder(local, str(cache))
    wheelhouse = _download(request, cache)
    make_folder(local, str(note.parent))
    _write_whole(note, wheelhouse.key)
    size = wheelhouse.size_bytes / 1e6
    progress.say(f"{len(wheelhouse.sums)} wheels, {size:.0f} MB, lock {wheelhouse.key[:12]}")
    return wheelhouse


def is_filled(wheels: Choice, *, python: str) -> bool:
    """Tell whether the wheels were already resolved and exist, so that `fill` only reads."""
    silent = Progress(lambda _text: None)
    request = _Request(
        requirements=wheels.tier.requirements,
        python=python,
        variant=wheels.variant,
        local=LOCAL,
        progress=silent,
    )
    cache = local_cache()
    key = _noted(cache / "resolved" / request.name)
    return bool(key) and _known(cache, key, silent) is not None


def lock_text(wheels: tuple[tuple[str, str], ...]) -> str:
    """Return a requirements file that pins name, version and hash of each wheel."""
    lines = []
    for file, digest in sorted(wheels):
        name, version = file.split("-")[:2]
        normal = re.sub(r"[-_.]+", "-", name).lower()
        lines.append(f"{normal}=={version} --hash=sha256:{digest}\n")
    return "".join(sorted(lines))


def _noted(note: Path) -> str:
    """Return the key resolved earlier; empty if there is no valid note."""
    try:
        text = note.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
    return text if _KEY.fullmatch(text) else ""


def _known(cache: Path, key: str, progress: Progress) -> Wheelhouse | None:
    """Return the wheelhouse resolved earlier; None if it does not match its key."""
    folder = cache / key / "wheelhouse"
    known = _read(folder, key)
    if known is None and folder.exists():
        progress.say(f"{folder} is not what was locked, so it is filled again")
    return known


def _read(folder: Path, key: str) -> Wheelhouse | None:
    """Read a wheelhouse; None if part of it is missing, or does not match its key."""
    try:
        lock = (folder / LOCK).read_bytes()
        lines = (folder / SUMS).read_text(encoding="ascii").splitlines()
        matches = [_SUM.fullmatch(line) for line in lines]
        sums = tuple((match[2], match[1]) for match in matches if match)
        locked = lock_text(sums).encode()
    except (OSError, ValueError):
        return None
    is_whole = len(sums) == len(lines) and all((folder / name).is_file() for name, _ in sums)
    if not is_whole or locked != lock or hashlib.sha256(lock).hexdigest() != key:
        return None
    _lay_steps(folder)
    return Wheelhouse(key=key, folder=folder, sums=sums)


def _lay_steps(folder: Path) -> None:
    """Write the steps next to the wheels, since an image is built from this folder alone."""
    for name, text in steps().items():
        target = folder / name
        if not target.is_file() or target.read_bytes() != text.encode():
            _write_whole(target, text)


def _write_whole(path: Path, text: str) -> None:
    # The file is renamed into its place, so that no reader sees a part of it.
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _download(request: _Request, cache: Path) -> Wheelhouse:
    """Fill a temporary folder and then rename it, so that no wheelhouse is ever incomplete."""
    part = Path(tempfile.mkdtemp(prefix=".wheelhouse-", dir=cache))
    try:
        _ask_pip(request, part)
        sums = tuple(sorted((path.name, file_sha256(path)) for path in part.glob("*.whl")))
        (part / LOCK).write_text(lock_text(sums), encoding="utf-8")
        (part / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums))
        _lay_steps(part)
        key = hashlib.sha256((part / LOCK).read_bytes()).hexdigest()
        target = cache / key / "wheelhouse"
        make_folder(request.local, str(target.parent))
        try:
            part.rename(target)
        except OSError:
            # A folder with content is not replaced: another process was first.
            if _read(target, key) is None:
                shutil.rmtree(target, ignore_errors=True)
                part.rename(target)
        return Wheelhouse(key=key, folder=target, sums=sums)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _ask_pip(request: _Request, target: Path) -> None:
    result = _pip_download(request, target)
    is_missing = not result.succeeded and _is_missing_build(result.stderr)
    if is_missing and request.variant == "cpu":
        request.progress.say(f"no CPU build of torch where pip looks, asking {_CPU_INDEX}")
        # fail early if the index cannot be reached
        more = ("--extra-index-url", _CPU_INDEX, "--retries=1", "--timeout=15")
        result = _pip_download(request, target, *more)
    elif is_missing and request.variant in {"cu130", "cu128", "cu126"}:
        # PyTorch's own index has builds for one CUDA each, with its name in the local version
        result = _pip_download(request, target, local_version=request.variant)
    if result.succeeded:
        return
    if request.variant != "auto" and _is_missing_build(result.stderr):
        raise StackError(
            f"there is no {request.variant} build of torch for Python {request.python} here",
            details=failure(request.local, "", result.stderr, hint="").details,
            hint="name a package index that has it (pip config set global.extra-index-url URL), "
            "or choose another --variant",
        )
    raise failure(
        request.local,
        "resolving the workloads' packages",
        result.stderr,
        hint=f"check that the index of pip (pip config list) has wheels for {request.python}, or "
        "choose another Python with --python",
    )


def _pip_download(
    request: _Request, target: Path, *more: str, local_version: str = ""
) -> CommandResult:
    text = request.requirements.read_text(encoding="utf-8")
    pins = constraints(text, request.variant, local_version=local_version)
    argv = (
        *(_interpreter_with_pip(request.local, request.python), "-c", _PIP, request.python),
        *("download", "--quiet"),
        *("--disable-pip-version-check", "--no-input"),
        # pip takes wheels for another Python only if it need not build any.
        *("--only-binary=:all:", "--python-version", request.python),
        *("--dest", str(target), "--requirement", str(request.requirements)),
        *pins.split(),
        *more,
    )
    # download to the disk whose free space was checked; /tmp is small on many hosts
    with tempfile.TemporaryDirectory(prefix="pip-", dir=target) as folder:
        command = Command(argv=argv, env=(("TMPDIR", folder),))
        return run(request.local, command, timeout_s=CONTENT_S)


def _interpreter_with_pip(local: Transport, python: str) -> str:
    """Return the interpreter that runs pip, preferably the Python of the wheels."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    has_pip = find_spec("pip") is not None
    if has_pip and running == python:
        return sys.executable
    others = [sys.executable] if has_pip else []
    for candidate in [f"python{python}", *others, "python3"]:
        probe = Command(argv=(candidate, "-m", "pip", "--version"))
        if run(local, probe).succeeded:
            return candidate
    raise StackError(
        "the workloads' packages cannot be resolved here",
        details=f"neither {sys.executable} nor python{python} has pip",
        hint=f"{sys.executable} -m ensurepip, or install python3-pip",
    )


def constraints(requirements: str, variant: Variant, *, local_version: str = "") -> str:
    """Return the additional requirements that make pip choose this variant.

    The builds of PyTorch differ in their local version: 2.13.0+cpu has no CUDA. `==2.13.0` accepts
    either, `===2.13.0` only the plain one. Empty if the requirements do not pin torch.
    """
    pins = dict(_PIN.findall(requirements))
    named = "cpu" if variant == "cpu" else local_version
    if named and "torch" in pins:
        return f"torch=={pins['torch']}+{named}\n"
    if variant != "auto":
        return "".join(f"{name}==={version}\n" for name, version in sorted(pins.items()))
    return ""


def check_machine(transport: Transport) -> None:
    """Raise StackError if the host's architecture differs from that of the resolved wheels."""
    there, here = shell(transport, "uname -m").stdout.strip(), platform.machine()
    if there and there != here:
        raise StackError(
            f"there are no wheels for {transport.name}",
            details=f"it is {there}, and the wheels resolved on this machine are for {here}",
            hint=f"run envcompare from a machine that is {there}, or use the stack host",
        )


def _is_missing_build(stderr: str) -> bool:
    """Tell whether pip failed because it found no such build of PyTorch.

    pip prints one message if no file fits a pin, and the other if none fits two pins.
    """
    lines = [line for line in stderr.splitlines() if "torch==" in line]
    return bool(lines) and any(
        words in stderr for words in ("No matching distribution found", "ResolutionImpossible")
    )


def check_sbom_tool() -> None:
    """Raise StackError if cyclonedx-py is not installed, before anything is built."""
    if find_spec("cyclonedx_py") is None:
        raise StackError(
            "no bill of materials can be written here",
            details=f"{sys.executable} has no cyclonedx-bom",
            hint="pip install '.[sbom]' in a clone of envcompare",
        )


def check_sbom(target: Path) -> None:
    """Raise ConfigError if the file cannot be written, before anything is built."""
    try:
        is_new = not target.exists()
        # Opening to append shows whether the file can be written, and keeps what is in it.
        with target.open("ab"):
            pass
        if is_new:
            target.unlink()
    except OSError as error:
        raise ConfigError(
            f"--sbom {str(target)!r} cannot be written",
            details=error.strerror or str(error),
            hint="name a file in a folder that is there and can be written to",
        ) from error


def write_sbom(locks: Iterable[str], target: Path, *, local: Transport) -> None:
    """Write name, version and hash of each locked wheel as CycloneDX JSON.

    The same lock gives the same bytes. Raises StackError unless there is exactly one lock, and it
    is readable.
    """
    keys = sorted(set(locks))
    if len(keys) != 1:
        details, hint = (
            ("the hosts have wheels of different variants", "name one with --variant")
            if keys
            else (
                "no arm that could be made has them",
                "make an arm of the stack image, as in --envs vm",
            )
        )
        raise StackError(
            f"{target} is not written: it can list the wheels of one lock only",
            details=details,
            hint=hint,
        )
    if not _FOLDER.fullmatch(keys[0]):
        raise StackError(
            f"{target} is not written: the image's label does not name a lock",
            details=f"{LOCK_LABEL} is {shortened(keys[0], most=200)!r}",
            hint="leave out the image you named, or remove the label",
        )
    lock = local_cache() / keys[0] / "wheelhouse" / LOCK
    words = ("requirements", "--of", "JSON", "--output-reproducible", "-o", str(target), str(lock))
    command = Command(argv=(sys.executable, "-m", "cyclonedx_py", *words))
    result = run(local, command, timeout_s=CONTENT_S)
    if not result.succeeded:
        raise failure(
            local,
            f"writing {target}",
            result.stderr,
            hint="check that the folder can be written to",
        )
