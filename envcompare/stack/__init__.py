"""The types for making an arm's software: requests, results, engines, and their failures.

Software is locked wheels, a venv, an image or a SIF, made once and kept by its key. The PyTorch for
a host is the newest whose wheels fit its driver, its GPUs and its Python.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from envcompare import bundled
from envcompare.config import Compression, SoftwareKind, Variant
from envcompare.console import Saying
from envcompare.errors import Problem, StackError, UnusableError
from envcompare.gpu import Capability, HostGpu, HostGpus
from envcompare.text import masked
from envcompare.transport import LOCAL, OnProgress, Transport

_OLDEST_DRIVER: Final = {12: 525, 13: 580}
"""What each major version of CUDA runs on at least: NVIDIA, CUDA Compatibility, table 1
(docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html)."""
_TURING: Final = (7, 5)
_LAST_BEFORE_TURING: Final = 580
"""The last branch of the driver for Maxwell, Pascal and Volta: NVIDIA, Unix graphics feature
deprecation schedule."""
_TURING_ON: Final = ((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))
_SINCE_310: Final = ("3.10", "3.11", "3.12", "3.13")
FALLBACK: Final = "3.11"
"""The Python of the wheels if the host has none that they support."""
LOCK_LABEL: Final = "envcompare.lock"
"""The label of every image that envcompare builds."""
DISK_FULL: Final = r"no space left on device|disk quota exceeded"  # the wording of all tools
USER_NAMESPACES: Final = (
    "sudo sysctl -w user.max_user_namespaces=15000 (and, where they exist, "
    "kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0)"
)
"""Allows ordinary users to create namespaces."""
ROOM_HINT = (
    "free some space, set XDG_CACHE_HOME there to another disk, or remove the cache "
    "with envcompare clean"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One release of PyTorch, as in its plain wheels on PyPI.

    The architectures come from the wheel (the flags compiled into `libtorch_python.so`), the
    Pythons are those with wheels on PyPI.
    """

    name: Variant
    torch: str  # as pinned in its requirements
    cuda: Capability
    architectures: tuple[Capability, ...]
    pythons: tuple[str, ...]

    @property
    def requirements(self) -> Path:
        """Return the file with what every arm imports."""
        return bundled.workloads() / "requirements" / f"{self.name}.in"

    @property
    def oldest_driver(self) -> int:
        """Return the oldest branch of the driver that runs this CUDA."""
        return _OLDEST_DRIVER[self.cuda[0]]

    def has_code_for(self, capability: Capability) -> bool:
        """Say whether the wheels have code for a GPU.

        Machine code of a lower minor version runs on a GPU of the same major version (NVIDIA, CUDA
        C++ Programming Guide, Binary Compatibility). Compiling PTX is left out: it needs a driver
        as new as the wheel's CUDA.
        """
        return any(
            major == capability[0] and minor <= capability[1] for major, minor in self.architectures
        )


TIERS: Final = (
    Tier(
        name="cu130",
        torch="2.13.0",
        cuda=(13, 0),
        architectures=_TURING_ON,
        pythons=(*_SINCE_310, "3.14"),
    ),
    Tier(
        name="cu128",
        torch="2.10.0",
        cuda=(12, 8),
        architectures=((7, 0), *_TURING_ON),
        pythons=(*_SINCE_310, "3.14"),
    ),
    Tier(
        name="cu126",
        torch="2.7.1",
        cuda=(12, 6),
        architectures=((5, 0), (6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (9, 0)),
        pythons=_SINCE_310,
    ),
)
"""From the newest PyTorch to the oldest; `script/wheel-facts` compares them with the index."""
PYTHONS: Final = TIERS[0].pythons


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The wheels for a host, and the sentence with the reason."""

    tier: Tier
    is_cpu: bool
    sentence: str

    @property
    def variant(self) -> Variant:
        """Return the name of the variant: that of the tier, or "cpu"."""
        return "cpu" if self.is_cpu else self.tier.name


CPU: Final = Choice(tier=TIERS[0], is_cpu=True, sentence=f"torch {TIERS[0].torch} for the CPU")
"""The wheels of software made without a session on a host."""


def choose(wish: Variant, gpus: HostGpus | None, *, python: str, host: str) -> Choice:
    """Return the wheels for a host; `gpus` is None if no GPU is used.

    They fit the GPUs that CUDA shows to a workload. Raises StackError if no wheels fit, before any
    download.
    """
    by_name = {tier.name: tier for tier in TIERS}
    if wish == "cpu" or (wish == "auto" and (gpus is None or not gpus.is_expected)):
        tier = TIERS[0]
        if python not in tier.pythons:
            raise StackError(
                f"there are no wheels of torch {tier.torch} for Python {python} ({host})",
                details=f"PyPI has them for Python {', '.join(tier.pythons)}",
                hint=f"name one of these with --python, such as --python {tier.pythons[-2]}",
            )
        why = "no GPU is to be used" if gpus is None else "no NVIDIA GPU was found"
        return replace(CPU, sentence=f"{why}: {CPU.sentence}")
    tiers = (by_name[wish],) if wish in by_name else TIERS
    known = msgspec.structs.replace(gpus, gpus=gpus.visible_gpus) if gpus else HostGpus()
    fitting = [tier for tier in tiers if not _lacks(tier, known, python)]
    if not fitting:
        raise _unfit(tiers, known, python=python, host=host)
    tier = fitting[0]
    return Choice(tier=tier, is_cpu=False, sentence=_sentence(tier, known))


def _sentence(tier: Tier, gpus: HostGpus) -> str:
    cuda = f"torch {tier.torch} with CUDA {_dotted(tier.cuda)}"
    known = []
    if gpus.driver:
        known.append(f"driver {gpus.driver} supports CUDA {newest_major(gpus.driver)}")
    known += [
        f"{gpu.name} has compute capability {_dotted(gpu.capability)}"
        for gpu in dict.fromkeys(gpus.gpus)
        if gpu.capability
    ]
    return f"{', '.join(known)}: {cuda}" if known else cuda


def newest_major(driver: str) -> int:
    """Return the newest major version of CUDA that a driver such as "570.86.10" brings."""
    branch = int(driver.partition(".")[0])
    return max((cuda for cuda, oldest in _OLDEST_DRIVER.items() if branch >= oldest), default=11)


def _lacks(tier: Tier, gpus: HostGpus, python: str) -> tuple[str, ...]:
    """Return why wheels do not fit; PyTorch itself checks unknown properties."""
    lacks = []
    if _is_driver_too_old(tier, gpus):
        lacks.append(
            f"CUDA {tier.cuda[0]} needs driver {tier.oldest_driver} or newer, not {gpus.driver}"
        )
    lacks += [
        f"they hold no code for {gpu.name} (compute capability {_dotted(gpu.capability)})"
        for gpu in _without_code(tier, gpus)
        if gpu.capability
    ]
    if python not in tier.pythons:
        lacks.append(f"PyPI has none for Python {python}")
    return tuple(lacks)


def _is_driver_too_old(tier: Tier, gpus: HostGpus) -> bool:
    return gpus.driver is not None and int(gpus.driver.partition(".")[0]) < tier.oldest_driver


def _without_code(tier: Tier, gpus: HostGpus) -> tuple[HostGpu, ...]:
    return tuple(
        gpu
        for gpu in dict.fromkeys(gpus.gpus)
        if gpu.capability and not tier.has_code_for(gpu.capability)
    )


def _unfit(tiers: tuple[Tier, ...], gpus: HostGpus, *, python: str, host: str) -> StackError:
    lacks = {tier: _lacks(tier, gpus, python) for tier in tiers}
    reasons = (f"torch {tier.torch} (CUDA {_dotted(tier.cuda)}): {'; '.join(why)}"
            for tier, why in lacks.items())  # fmt: skip
    others = [tier.name for tier in TIERS if tier not in tiers and not _lacks(tier, gpus, python)]
    served = [tier for tier in tiers if not _without_code(tier, gpus)]
    if others:
        hint = f"leave out --variant, or use --variant {others[0]}"
    elif served:
        hint = _mend(served, gpus, python)
    else:
        hint = _serve_another(tiers, gpus)
    return StackError(f"no wheels of PyTorch fit {host}", details=". ".join(reasons), hint=hint)


def _mend(served: list[Tier], gpus: HostGpus, python: str) -> str:
    """Name the driver or Python, or both, that these tiers need."""
    pythons = [tier for tier in served if python not in tier.pythons]
    is_python = len(pythons) == len(served)
    is_before_turing = any(gpu.capability and gpu.capability < _TURING for gpu in gpus.gpus)
    other = f"name another Python, such as --python {pythons[0].pythons[-1]}" if is_python else ""
    if is_python and not all(_is_driver_too_old(tier, gpus) for tier in served):
        return other
    oldest = min(tier.oldest_driver for tier in served)
    which = f"{oldest} to {_LAST_BEFORE_TURING}" if is_before_turing else f"{oldest} or newer"
    also = f" and {other}" if is_python else ""
    return f"install driver {which} there{also}, or measure on the CPU with --device cpu"


def _serve_another(tiers: tuple[Tier, ...], gpus: HostGpus) -> str:
    """Return what to do if no tier has code for all the GPUs."""
    alone = (msgspec.structs.replace(gpus, gpus=(gpu,)) for gpu in gpus.gpus)
    if any(not _without_code(tier, gpu) for gpu in alone for tier in tiers):
        return (
            "set CUDA_VISIBLE_DEVICES there to the UUID of the GPU to measure (nvidia-smi -L), "
            "or measure on the CPU with --device cpu"
        )
    if any(not _without_code(tier, gpus) for tier in TIERS):
        return "leave out --variant, or measure on the CPU with --device cpu"
    return "measure on the CPU with --device cpu, or use another GPU"


def _dotted(version: Capability) -> str:
    return f"{version[0]}.{version[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """A pattern in an engine's output, and the problem it means; `{match}` is the first group."""

    pattern: str
    brief: str
    hint: str = ""
    passes: bool = False  # a retry may succeed in a moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A container engine: its client program, its socket, and its error messages."""

    program: str
    socket: str  # the daemon's socket, unless the client's context names another
    symptoms: tuple[Symptom, ...]
    silent_hint: str  # for a daemon that does not answer
    room_hint: str  # for a full disk
    reuses_layers: bool = False  # `load` takes layers that an archive lacks from its other images


# The same problems in the words of several engines; each gives its own pattern.
missing_source = partial(
    Symptom,
    brief="{match} does not exist on the host",
    hint="create it there, or correct the path",
)
missing_image = partial(
    Symptom,
    brief="the image {match} is not on the host",
    hint="run envcompare build, or bring the image there",
)
missing_folder = partial(
    Symptom,
    brief="the working directory {match} is not in the container",
    hint="mount it, or choose another",
)
missing_program = partial(
    Symptom, brief="{match} is not in the image", hint="name an image that contains it"
)
CACHE_FULL: Final = Symptom(pattern=DISK_FULL, brief="no space is left on the disk", hint=ROOM_HINT)


def recognise(symptoms: tuple[Symptom, ...], text: str) -> Problem | None:
    """Return the problem of the first symptom that matches the text; None if none does."""
    for symptom in symptoms:
        match = re.search(symptom.pattern, text, re.IGNORECASE)
        if match:
            groups = [group for group in match.groups() if group]
            named = (groups or [match[0]])[0].strip()
            brief = symptom.brief.replace("{match}", named)
            return Problem(brief=brief, hint=symptom.hint, passes=symptom.passes)
    return None


def is_full(output: str) -> bool:
    """Tell whether a tool's output reports a full disk or an exceeded quota."""
    return re.search(DISK_FULL, output, re.IGNORECASE) is not None


def last_line(text: str, *, without: tuple[str, ...] = ()) -> str:
    """Return the last line that is not empty, masked; skips lines that start with `without`."""
    lines = [line.strip() for line in masked(text).splitlines()]
    messages = [line for line in lines if line and not line.startswith(without)]
    return messages[-1] if messages else "it gave no message"


def failure(
    transport: Transport, what: str, text: str, *, hint: str, room_hint: str = ROOM_HINT
) -> StackError:
    """Return the error for a failed step; a full disk has its own message."""
    lines = [line.strip() for line in masked(text).splitlines() if line.strip()]
    if full := [line for line in lines if is_full(line)]:
        return StackError(
            f"{what} failed on {transport.name}: its disk is full", details=full[-1], hint=room_hint
        )
    errors = [line for line in lines if line.startswith(("ERROR", "FATAL", "error"))] or lines
    return StackError(
        f"{what} failed on {transport.name}",
        details=errors[-1] if errors else "it gave no message",
        hint=hint,
    )


class NotMadeError(UnusableError):
    """The software of an arm is missing, and this command may not make any."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Reports what is made and sent, and decides whether anything may be."""

    say: Callable[[str], None]
    may_make: bool = True
    is_before_run: bool = False  # then the choice of wheels is reported even if they exist

    def begin(self, text: str) -> None:
        """Report what is about to be made or sent; raises NotMadeError if that is not allowed."""
        if not self.may_make:
            brief = "the software is not made yet"
            raise NotMadeError(brief, details=f"the first step is {text}")
        self.say(text)

    @contextlib.contextmanager
    def moving(self, what: str, total_bytes: int) -> Iterator[OnProgress]:
        """Yield a function to call with the number of bytes sent so far."""
        if isinstance(self.say, Saying):
            with self.say.moving(what, total_bytes) as on_progress:
                yield on_progress
        else:
            yield lambda _done_bytes: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A path of the host, shown at the same absolute path inside."""

    path: str
    is_read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The user's choices about the software."""

    python: str = "3.11"
    base_image: str | None = None
    variant: Variant = "auto"
    sif_compression: Compression = "zstd"
    vm_python: str | None = None
    host_python: str | None = None
    host_imports: tuple[str, ...] = ("torch",)
    lockstep: bool = False  # each line runs several times at once, and takes its turns

    @property
    def base(self) -> str:
        """Return the image to build on: the chosen one, else that of the chosen Python."""
        return self.base_image or f"python:{self.python}-slim-bookworm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for the software of one arm on a host."""

    transport: Transport
    progress: Progress
    builder: Engine  # builds the workload image on this machine
    options: Options = Options()
    wheels: Choice = CPU  # sent to the host
    is_host_stack: bool = False  # the host's own files, instead of software made for the arm
    reference: str = ""  # an image or SIF that the user named
    kinds: tuple[SoftwareKind, ...] = ()  # the kinds of software of all arms on the host
    run_id: str = ""  # the run that owns the processes of the proof
    local: Transport = LOCAL  # for every command on this machine
    is_for_others: bool = False  # one of several hosts, which may need what is made on this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Software that is ready: what `wrap` and the worker need, and the proof of its content."""

    interpreter: str  # the path of the real interpreter, not of a wrapper
    started_as: str = ""  # how a user of the image starts Python; empty for software made here
    reference: str = ""
    engine: str = ""
    fixed_by: str = ""  # the hash that determines it; empty if files may be replaced
    identity: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()  # compared between arms, with those of the worker
    software: tuple[tuple[str, str], ...] = ()  # must be the same when a run is resumed
    parts: tuple[str, ...] = ()  # of the installation: `name==version digest`, or a file's name
    changed: tuple[str, ...] = ()  # `part name digest` of files that differ between arms
    meant: str = ""  # the tree of the installation according to the image's label
    variables: tuple[tuple[str, str], ...] = ()  # by which Python finds its packages
    mounts: tuple[Mount, ...] = ()  # of the host's own files, if the stack is `host`
    layers: tuple[tuple[str, str], ...] = ()  # of a rung of the ladder: name, and its file there

    @property
    def python(self) -> str:
        """Return the program that starts a workload: in a user's image its own `python3`."""
        return self.started_as or self.interpreter
