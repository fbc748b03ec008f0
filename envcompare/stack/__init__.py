"""The software an arm needs: locked wheels, a venv, an image, a SIF; made once and kept by key."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from envcompare.config.arms import SoftwareKind
from envcompare.config.settings import Compression, Variant
from envcompare.console import Saying
from envcompare.errors import UnusableError
from envcompare.stack.diagnosis import Engine
from envcompare.stack.tiers import CPU, Choice
from envcompare.transport import Told, Transport
from envcompare.transport.local import LOCAL


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
    def moving(self, what: str, total_bytes: int) -> Iterator[Told]:
        """Give a function to call with the bytes sent so far; only a display shows them."""
        if isinstance(self.say, Saying):
            with self.say.moving(what, total_bytes) as told:
                yield told
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
