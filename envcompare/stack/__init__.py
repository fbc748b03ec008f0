"""What making software for an arm takes: what is asked for and comes, engines, and how they fail.

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
DISK_FULL: Final = r"no space left on device|disk quota exceeded"  # as every tool says it
USER_NAMESPACES: Final = (
    "sudo sysctl -w user.max_user_namespaces=15000 (and, where they exist, "
    "kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0)"
)
"""What lets ordinary users make namespaces."""
ROOM_HINT = (
    "free some space, set XDG_CACHE_HOME there to another disk, or remove the cache "
    "with envcompare clean"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """What an engine prints, and the problem it stands for; `{match}` takes the first group."""

    pattern: str
    brief: str
    hint: str = ""
    passes: bool = False  # what failed may be tried again in a moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What is special to an engine: its client program, its socket, and how it complains."""

    program: str
    socket: str  # where its daemon listens unless its context says otherwise
    symptoms: tuple[Symptom, ...]
    silent_hint: str  # what to try where the daemon does not answer
    room_hint: str  # what to try where its disk is full


def recognise(symptoms: tuple[Symptom, ...], text: str) -> Problem | None:
    """Return the problem of the first symptom in the text; None where no symptom is known."""
    for symptom in symptoms:
        match = re.search(symptom.pattern, text, re.IGNORECASE)
        if match:
            groups = [group for group in match.groups() if group]
            named = (groups or [match[0]])[0].strip()
            brief = symptom.brief.replace("{match}", named)
            return Problem(brief=brief, hint=symptom.hint, passes=symptom.passes)
    return None


def is_full(said: str) -> bool:
    """Tell whether a tool says that a disk is full, or the user's share of it."""
    return re.search(DISK_FULL, said, re.IGNORECASE) is not None


def last_line(text: str, *, without: tuple[str, ...] = ()) -> str:
    """Return the last line that says something, masked; lines starting with `without` do not."""
    lines = [line.strip() for line in masked(text).splitlines()]
    said = [line for line in lines if line and not line.startswith(without)]
    return said[-1] if said else "it gave no message"


def failure(
    transport: Transport, what: str, text: str, *, hint: str, room_hint: str = ROOM_HINT
) -> StackError:
    """Return the error for a step that failed; a full disk is said as such."""
    lines = [line.strip() for line in masked(text).splitlines() if line.strip()]
    if full := [line for line in lines if is_full(line)]:
        return StackError(
            f"{what} failed on {transport.name}: its disk is full", details=full[-1], hint=room_hint
        )
    said = [line for line in lines if line.startswith(("ERROR", "FATAL", "error"))] or lines
    return StackError(
        f"{what} failed on {transport.name}",
        details=said[-1] if said else "it gave no message",
        hint=hint,
    )


class NotMadeError(UnusableError):
    """What an arm needs is not there, and nothing may be made for it now."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Who hears of what is made and sent, and whether anything may be made or sent at all."""

    say: Callable[[str], None]
    may_make: bool = True
    is_before_run: bool = False  # when the choice of wheels is said though they are there

    def begin(self, text: str) -> None:
        """Say what is about to be made or sent; raises NotMadeError where nothing may be."""
        if not self.may_make:
            brief = "what is needed is not made yet"
            raise NotMadeError(brief, details=f"it would begin with {text}")
        self.say(text)

    @contextlib.contextmanager
    def moving(self, what: str, total_bytes: int) -> Iterator[OnProgress]:
        """Give a function to call with the bytes sent so far; only a display shows them."""
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
    """What the user may choose about the software."""

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
    """The software of one arm that is wanted on a host; made there, or here for it."""

    transport: Transport
    progress: Progress
    builder: Engine  # which makes the workload image on this machine
    options: Options = Options()
    wheels: Choice = CPU  # that the host gets
    is_host_stack: bool = False  # the host's own files, in place of software made for the arm
    reference: str = ""  # an image or SIF that the user named
    beside: tuple[SoftwareKind, ...] = ()  # what all arms of the host are made as, this one too
    run_id: str = ""  # of the run that what is started to prove the software belongs to
    local: Transport = LOCAL  # for every command on this machine
    is_for_others: bool = False  # of several hosts, which may need what is made on this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What `wrap` and the worker need, and the proof of which software it is."""

    interpreter: str  # its path, which no wrapper stands around
    started_as: str = ""  # how a user of the image starts Python; empty where it is made here
    reference: str = ""
    engine: str = ""
    fixed_by: str = ""  # the hash that all of it hangs on; empty where files may be replaced
    identity: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()  # compared between arms, beside what the worker finds
    software: tuple[tuple[str, str], ...] = ()  # what must be the same when a run is resumed
    parts: tuple[str, ...] = ()  # of what is installed: `name==version digest`, or a file's name
    changed: tuple[str, ...] = ()  # `part name digest` of files that not all arms have alike
    meant: str = ""  # the tree of what is installed, as the label of the image says
    variables: tuple[tuple[str, str], ...] = ()  # by which Python and its packages are found
    mounts: tuple[Mount, ...] = ()  # of the host's own files, where the stack is `host`
    layers: tuple[tuple[str, str], ...] = ()  # of a rung of the ladder: name, and its file there

    @property
    def python(self) -> str:
        """Return what starts a workload: in an image of the user's its own `python3`."""
        return self.started_as or self.interpreter
