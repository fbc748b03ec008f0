"""The timing of a block: wall and CPU time of each step, and what disturbed the block."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from typing import Any, Callable, List, Tuple

from harness.facts.cgroups import group_of, throttled_ns, throttled_periods
from harness.failures import ContractError, PhaseError

TASKS = "/proc/self/task"
Stamps = Tuple[List[int], List[int], Any]


class BlockClock:
    """Measures blocks of steps in the thread that made it."""

    def __init__(self, *, cuda: bool, processes: int = 1) -> None:
        self._cuda = cuda
        # With several processes, each also waits for the CPUs of the others: not visible here.
        self._knows_waits = processes == 1
        self._cpu_group = group_of("cpu")
        # Three fields: time on a CPU, time waiting for one, slices (kernel: sched-stats.rst).
        self._schedstat = f"{TASKS}/{threading.get_native_id()}/schedstat"

    def measure(self, step: Callable[[], Any], k: int, *, done: int) -> dict[str, Any]:
        """Run k steps after `done` earlier ones; return the fields of a `run` reply.

        Times are in ns, by the monotonic clock and by the CPU clock of the whole process. On a GPU
        the device is idle at both ends; the last step's wall time includes the wait for it.
        Raises PhaseError with the number of the step that failed.
        """
        before = self.read()
        if self._cuda:
            (wall, cpu, loss), gpu_ns = self._time_on_gpu(step, k, done)
        else:
            (wall, cpu, loss), gpu_ns = _time_steps(step, k, done), None
        fields = self.fields(before, wall, cpu)
        return {**fields, "gpu_ns": gpu_ns, "loss": as_number(loss, done + k)}

    def read(self) -> dict[str, int | None]:
        """Return all counters, before a block."""
        # The reading order is mirrored after the block, so reading adds nothing to its counts.
        return {**self._counters(), **used(), "wait_ns": self._wait_ns()}

    def fields(
        self, before: dict[str, int | None], wall: list[int], cpu: list[int]
    ) -> dict[str, Any]:
        """Return the fields of a block: k + 1 stamps of both clocks, and the counters before it."""
        after = {"wait_ns": self._wait_ns(), **used(), **self._counters()}
        return {
            "t0_ns": wall[0],
            "wall_ns": [end - start for start, end in zip(wall, wall[1:])],
            "cpu_ns": [end - start for start, end in zip(cpu, cpu[1:])],
            **{name: _difference(after[name], before[name]) for name in after},
            "threads": _thread_count(),
            "python": [thread.native_id for thread in threading.enumerate()],
        }

    def _time_on_gpu(
        self, step: Callable[[], Any], k: int, done: int
    ) -> tuple[Stamps, list[int] | None]:
        cuda = sys.modules["torch"].cuda
        events = [cuda.Event(enable_timing=True) for _ in range(k + 1)]
        ends = iter(events[1:])

        def marked_step() -> Any:  # noqa: ANN401  a loss is what the workload makes it
            loss = step()
            next(ends).record()
            return loss

        cuda.synchronize()
        events[0].record()
        wall, cpu, loss = _time_steps(marked_step, k, done)
        cuda.synchronize()
        wall[-1], cpu[-1] = time.monotonic_ns(), time.process_time_ns()
        gpu_ns = [round(a.elapsed_time(b) * 1e6) for a, b in zip(events, events[1:])]
        return (wall, cpu, loss), gpu_ns

    def _counters(self) -> dict[str, int | None]:
        return {
            "all_wait_ns": _all_wait_ns() if self._knows_waits else None,
            "throttled_ns": throttled_ns(self._cpu_group),
            "throttled_periods": throttled_periods(self._cpu_group),
        }

    def _wait_ns(self) -> int | None:
        return _wait_ns(self._schedstat) if self._knows_waits else None


def used() -> dict[str, int | None]:
    """Return the kernel's counters of this process (getrusage(2))."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "user_ns": round(usage.ru_utime * 1e9),
        "sys_ns": round(usage.ru_stime * 1e9),
        "minor_faults": usage.ru_minflt,
        "major_faults": usage.ru_majflt,
        "voluntary_switches": usage.ru_nvcsw,
        "involuntary_switches": usage.ru_nivcsw,
    }


def _wait_ns(schedstat: str) -> int | None:
    try:
        with open(schedstat, "rb", buffering=0) as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _all_wait_ns() -> int | None:
    """Return the total wait of all live threads; None if one of them cannot be read."""
    try:
        waits = [_wait_ns(f"{TASKS}/{task}/schedstat") for task in os.listdir(TASKS)]
    except OSError:
        return None
    known = [wait for wait in waits if wait is not None]
    return sum(known) if len(known) == len(waits) else None


def _thread_count() -> int | None:
    """Return how many threads this process has now; None if /proc cannot be read."""
    try:
        return len(os.listdir(TASKS))
    except OSError:
        return None


def as_number(loss: Any, step: int) -> float:  # noqa: ANN401  a loss is what the workload makes it
    """Return the loss of a step as a number; on a GPU this waits for the device."""
    try:
        return float(loss)
    except (TypeError, ValueError) as error:
        raise PhaseError("step", step) from _no_number(loss, error)
    except RuntimeError as error:  # of a GPU that failed, or of PyTorch for a tensor of several
        is_several = "converted to Scalar" in str(error)
        raise PhaseError("step", step) from (_no_number(loss, error) if is_several else error)


def _no_number(loss: Any, error: Exception) -> ContractError:  # noqa: ANN401  as above
    kind = "None" if loss is None else f"a value of type {type(loss).__name__} ({error})"
    return ContractError(
        f"`step` must return a number, and returned {kind}",
        hint="return the loss as a number or as a tensor of one, or 0.0 where there is none",
    )


def _time_steps(step: Callable[[], Any], k: int, done: int) -> Stamps:
    """Return k + 1 stamps of both clocks, and the last loss."""
    wall, cpu = [0] * (k + 1), [0] * (k + 1)
    loss: Any = None
    index = 0
    try:
        cpu[0], wall[0] = time.process_time_ns(), time.monotonic_ns()
        for index in range(1, k + 1):
            loss = step()
            wall[index], cpu[index] = time.monotonic_ns(), time.process_time_ns()
    except (Exception, SystemExit) as error:
        raise PhaseError("step", done + index) from error
    return wall, cpu, loss


def _difference(after: int | None, before: int | None) -> int | None:
    """Return the increase; None if unknown, or if a thread ended and its share was lost."""
    if after is None or before is None or after < before:
        return None
    return after - before
