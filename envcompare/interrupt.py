"""Stop a run in two steps: the first Ctrl-C ends after the block, the second kills and sweeps."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Protocol


class Killable(Protocol):
    """Something that runs and can be killed."""

    def kill(self) -> None:
        """Kill it; safe to repeat."""
        ...


class Interruption:
    """Whether the user asked to stop, and what must be killed when the user asks twice."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._killed = threading.Event()
        self._running: weakref.WeakSet[Killable] = weakref.WeakSet()
        self._lock = threading.Lock()

    @property
    def is_requested(self) -> bool:
        """Tell whether the run is to end after the block now running."""
        return self._asked.is_set()

    @property
    def is_forced(self) -> bool:
        """Tell whether everything was told to die at once."""
        return self._killed.is_set()

    def request(self) -> None:
        """Ask to stop; asking a second time kills what runs."""
        if self._asked.is_set():
            self._killed.set()
            self.kill_all()
        self._asked.set()

    def add(self, process: Killable) -> None:
        """Have `process` killed on a second request; at once where that was made already."""
        with self._lock:
            self._running.add(process)
        if self._killed.is_set():
            process.kill()

    def kill_all(self) -> None:
        """Kill everything registered, in threads of their own so that none waits for another."""
        with self._lock:
            running = tuple(self._running)
        for process in running:
            threading.Thread(target=_kill, args=(process,), daemon=True).start()


def _kill(process: Killable) -> None:
    with suppress(Exception):
        process.kill()


@contextmanager
def handling_signals(interruption: Interruption, say: Callable[[str], None]) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into requests while the context is open."""

    def handle(number: int, _frame: FrameType | None) -> None:
        interruption.request()
        if interruption.is_forced:
            say("killing what runs, then cleaning up")
        else:
            name = signal.Signals(number).name
            say(f"{name}: ending after this block; again to kill at once")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
