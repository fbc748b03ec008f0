"""Stop a run in steps: the first Ctrl-C ends it after the block, the second kills and sweeps.

A third exits immediately, in case the host no longer answers. Losing the terminal counts as the
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
from typing import Protocol

from envcompare.errors import InterruptedRunError


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
        self._lock = threading.RLock()  # a signal may arrive while it is held

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
            self.kill_all()
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

    def kill_all(self) -> None:
        """Kill all registered processes, each in its own thread."""
        self._kill_each(self._running)

    def _kill_each(self, processes: weakref.WeakSet[_Killable]) -> None:
        with self._lock:
            running = tuple(processes)
        for process in running:
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
            return  # shell and kernel each send one when a terminal closes
        if interruption.is_forced:
            say("leaving at once; what still runs ends with its connection")
            os._exit(InterruptedRunError.exit_code)
        if interruption.request():
            say("killing what runs, then cleaning up; again to leave at once")
        else:
            name = signal.Signals(number).name
            say(f"{name}: ending after {after}; again to kill at once")

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as set by nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
