"""The types for making an arm's software: requests, results, engines, and their failures.

Software is locked wheels, a venv, an image or a SIF, made once and kept by its key.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from envcompare.config.arms import Compression, SoftwareKind, Variant
from envcompare.console import Saying
from envcompare.errors import Problem, StackError, UnusableError
from envcompare.masking import masked
from envcompare.stack.tiers import CPU, Choice
from envcompare.transport import OnProgress, Transport
from envcompare.transport.local import LOCAL

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
