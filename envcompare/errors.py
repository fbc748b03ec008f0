"""The one family of errors: what happened, why, what to try, and the exit code.

A run is stopped in steps: the first Ctrl-C ends it after the block, the second kills and sweeps. A
third exits immediately, in case the host no longer answers. Losing the terminal counts as the
first.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import ClassVar, Final, Literal, Protocol

import msgspec

Phase = Literal[
    "connect", "environment", "stack", "launch", "import", "data", "setup", "step", "process",
    "protocol", "checksum", "plan", "results", "fault",
]  # fmt: skip
"""The phase of a failure; `results` is the run folder, `fault` is a bug in envcompare."""

_OF_THE_WORKLOAD: Final = frozenset(
    {"import", "data", "setup", "step", "process", "protocol", "checksum"}
)
DISTRUST: Final = (
    "do not trust what this arm reports; check what its Python runs at startup, such as "
    "sitecustomize.py and .pth files"
)
"""The hint on an answer of an arm that cannot be true."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is wrong, why, and what to try; for an error, a failure, a check or a caution."""

    brief: str
    details: str = ""
    hint: str = ""
    passes: bool = False  # the problem resolves itself soon, such as the restart of an engine

    @property
    def reason(self) -> str:
        """What is wrong and why, in one line."""
        return f"{self.brief}: {self.details}" if self.details else self.brief

    def parts(self, word: str = "error") -> tuple[tuple[str, str], ...]:
        """Return the parts that are not empty, each with its label."""
        parts = ((word, self.brief), ("  why", self.details), ("  try", self.hint))
        return tuple((name, text) for name, text in parts if text)

    def lines(self, word: str = "error") -> tuple[str, ...]:
        """Return `error:`, `why:` and `try:` lines; a missing part has no line."""
        return tuple(f"{name}: {text}" for name, text in self.parts(word))


class EnvcompareError(Exception):
    """An error in three sentences; `cli` prints it and exits with `exit_code`."""

    # EX_SOFTWARE of sysexits(3), for a bug; 1 is the exit code of a gate that was hit.
    exit_code: ClassVar[int] = 70

    def __init__(self, brief: str, *, details: str = "", hint: str = "") -> None:
        super().__init__(brief)
        self.brief = brief
        self.details = details
        self.hint = hint

    @property
    def problem(self) -> Problem:
        """The three sentences as a record."""
        return Problem(brief=self.brief, details=self.details, hint=self.hint)

    def lines(self) -> tuple[str, ...]:
        """Return `error:`, `why:` and `try:` lines; a missing part has no line."""
        return self.problem.lines()


class ConfigError(EnvcompareError):
    """Wrong usage or configuration, found before anything is started."""

    exit_code = 2


class UnusableError(EnvcompareError):
    """A host or an environment cannot be used."""

    exit_code = 3


class TransportError(UnusableError):
    """A host cannot be reached, or the connection to it was lost."""


class CopyError(TransportError):
    """A file could not be copied to or from a host; the host may be fine."""


class CommandTimeoutError(UnusableError):
    """A command did not end within its limit and was killed; the host may be fine."""


class OutputLimitError(UnusableError):
    """A command printed too much and was killed; the host may be fine."""


class StillRunningError(UnusableError):
    """Processes on a host still run, or cannot be confirmed to have ended."""


class HostHeldError(UnusableError):
    """Another client holds a host; it may be free later."""


class StackError(UnusableError):
    """The software an arm needs cannot be made, found or shipped."""


class WorkloadError(EnvcompareError):
    """The workload failed inside an arm; `phase` names where, `log` is the path of its log.

    `is_exhausted` tells that a script has ended well, with no steps left.
    """

    exit_code = 4
    is_exhausted = False

    def __init__(  # noqa: PLR0913 — the run folder stores each part
        self,
        brief: str,
        *,
        details: str = "",
        hint: str = "",
        phase: Phase = "process",
        log: str = "",
        worker_exit_code: int | None = None,
    ) -> None:
        super().__init__(brief, details=details, hint=hint)
        self.phase = phase
        self.log = log
        self.worker_exit_code = worker_exit_code


class RunFolderError(EnvcompareError):
    """A run folder cannot be read or written."""

    exit_code = 5


class ProfileError(EnvcompareError):
    """A profiler's file cannot be read or trusted; the details name the line, row or table."""

    exit_code = 5


class NothingTracedError(ProfileError):
    """A profiler recorded no GPU work, though the workload runs on a GPU."""


class InterruptedRunError(EnvcompareError):
    """The user stopped the run; what was measured is saved."""

    exit_code = 130


def exit_code_of(phase: Phase) -> int:
    """Return 4 for a failed workload, 3 for an unusable host or environment.

    5 is for an unusable run folder, and 70 for a bug in envcompare.
    """
    if phase in _OF_THE_WORKLOAD:
        return WorkloadError.exit_code
    if phase == "results":
        return RunFolderError.exit_code
    return EnvcompareError.exit_code if phase == "fault" else UnusableError.exit_code


def phase_of(error: Exception, usual: Phase) -> Phase:
    """Return the phase that the error itself implies, else the usual phase."""
    if isinstance(error, TransportError):
        return "connect"
    if isinstance(error, RunFolderError):
        return "results"
    return usual if isinstance(error, EnvcompareError) else "fault"


def as_known(error: Exception) -> EnvcompareError:
    """Return an EnvcompareError unchanged, and any other error as a bug in envcompare."""
    if isinstance(error, EnvcompareError):
        return error
    return EnvcompareError(
        f"unexpected {type(error).__name__}: {error}",
        details="this is a fault of envcompare",
        hint="run again with `envcompare --debug …` and report what it prints",
    )


def plain(error: Exception, *, has_file: bool = False) -> str:
    """Return what an error says; of one of the system, its words without the number.

    With `has_file` the file follows, for a sentence that does not name it.
    """
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.strerror}: {error.filename}" if has_file and error.filename else error.strerror


class _Killable(Protocol):
    """A running process that can be killed."""

    def kill(self) -> None:
        """Kill it; safe to repeat."""
        ...


class Interruption:
    """The user's request to stop, and the processes to kill on a second request."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._killed = threading.Event()
        self._running: weakref.WeakSet[_Killable] = weakref.WeakSet()
        self._questions: weakref.WeakSet[_Killable] = weakref.WeakSet()  # these may stay open
        # Reentrant, since the handler of a signal may run while its own thread holds it.
        self._lock = threading.RLock()

    @property
    def is_requested(self) -> bool:
        """Tell whether the run should end after the current block."""
        return self._asked.is_set()

    @property
    def is_forced(self) -> bool:
        """Tell whether the user asked a second time, so that everything is killed."""
        return self._killed.is_set()

    def check(self) -> None:
        """Raise InterruptedRunError if the user asked to stop."""
        if self.is_requested:
            raise InterruptedRunError("interrupted")

    def request(self) -> bool:
        """Request a stop; a second request kills all processes and returns True."""
        if self._asked.is_set():
            self._killed.set()
            self._kill_each(self._running)
        else:
            self._asked.set()
            self._kill_each(self._questions)
        return self._killed.is_set()

    def add(self, process: _Killable, *, at_once: bool = False) -> None:
        """Kill `process` on a second request, or on the first if `at_once`.

        If that request was already made, kills it now.
        """
        with self._lock:
            self._running.add(process)
            if at_once:
                self._questions.add(process)
        if (self._asked if at_once else self._killed).is_set():
            process.kill()

    def _kill_each(self, processes: weakref.WeakSet[_Killable]) -> None:
        """Kill processes, each in its own thread."""
        with self._lock:
            running = tuple(processes)
        for process in running:
            # A kill over SSH may take seconds, which must not delay the others.
            threading.Thread(target=_kill, args=(process,), daemon=True).start()


def _kill(process: _Killable) -> None:
    with suppress(Exception):
        process.kill()


@contextmanager
def handling_signals(
    interruption: Interruption, say: Callable[[str], None], *, after: str = "this block"
) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into requests while the context is open.

    `after` names the work that still finishes.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and interruption.is_requested:
            # The shell and the kernel each send one when a terminal closes.
            return
        if interruption.is_forced:
            say("leaving at once; what still runs ends with its connection")
            # A normal exit would wait for threads, which a silent host may block.
            os._exit(InterruptedRunError.exit_code)
        if interruption.request():
            say("killing what runs, then cleaning up; again to leave at once")
        else:
            name = signal.Signals(number).name
            say(f"{name}: ending after {after}; again to kill at once")

    numbers = [signal.SIGINT, signal.SIGTERM]
    # A program started by nohup ignores SIGHUP, and must continue after its terminal has closed.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
