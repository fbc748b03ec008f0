"""Whose turn it is on a kernel: several hosts may be prepared on it, or a single one measured."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from envcompare.interrupt import Interruption

_TICK_S = 0.2  # in which Ctrl-C is noticed


@dataclass(slots=True, kw_only=True)
class KernelTurns:
    """Keeps everything that would disturb a measurement off its kernel.

    A kernel is known by the ID of its boot, or by another name that no other kernel has.
    """

    here: str  # the kernel of this machine, which sends and builds for all hosts
    interruption: Interruption
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _prepared_on: Counter[str] = field(default_factory=Counter)
    _measured_on: set[str] = field(default_factory=set)

    @contextmanager
    def preparing(self, kernel: str) -> Iterator[None]:
        """Wait until nothing is measured on a kernel, and keep it so.

        Raises InterruptedRunError when the user stops meanwhile.
        """
        with self._changed:
            while kernel in self._measured_on:
                self._wait()
            self._prepared_on[kernel] += 1
        try:
            yield
        finally:
            with self._changed:
                self._prepared_on[kernel] -= 1
                self._changed.notify_all()

    @contextmanager
    def measuring(self, kernel: str) -> Iterator[None]:
        """Wait until a kernel has nothing else to do for this run, and keep it so.

        This machine steers what is measured elsewhere, and is measured while nothing is. Who waits
        must prepare nothing: it would wait for itself. Raises as `preparing`.
        """
        with self._changed:
            while self._is_disturbed(kernel):
                self._wait()
            self._measured_on.add(kernel)
        try:
            yield
        finally:
            with self._changed:
                self._measured_on.remove(kernel)
                self._changed.notify_all()

    def _is_disturbed(self, kernel: str) -> bool:
        alone = {kernel, self.here} if kernel != self.here else self._measured_on
        return bool(self._prepared_on[kernel] or self._measured_on & alone)

    def _wait(self) -> None:
        self._changed.wait(_TICK_S)
        self.interruption.check()
