"""The CPU set of this process, set by the process itself and so the same way in every arm."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from typing import Iterator, List, Optional, Set

from harness.failures import ProcessError

OWN_PYTHON = "ENVCOMPARE_PYTHON"
"""The variable with the command that starts Python in a user's own image, wrapper included."""
OWN_CPU = -1
_HINT = "give --pin CPUs that are allowed there in every environment, or leave it out"


def pin(cpus: Optional[List[int]]) -> None:
    """Run on these CPUs only; None does nothing.

    In a user's own image the process also keeps to the CPUs on which it was started, since the
    image may restrict them. In other arms that restriction comes from the caller of envcompare and
    is ignored.
    """
    if cpus is None:
        return
    started_on = os.sched_getaffinity(0)
    _set(cpus, started_on)
    image = os.environ.get(OWN_PYTHON)
    common = started_on & set(cpus)
    if image and not common:
        raise ProcessError(
            f"cannot run on CPUs {cpus}: the image's {image} runs on {sorted(started_on)}",
            hint="give --pin CPUs that it may use, or leave --pin out",
        )
    if image:
        _set(sorted(common), started_on)


@contextmanager
def held(cpu: Optional[int]) -> Iterator[bool]:
    """Hold this thread on a CPU, or on the one it is on (`OWN_CPU`); give whether that was done.

    With None, or with a CPU on which it may not run, it is held nowhere. A thread that starts in
    between is let go with this one; a process that does stays on the CPU (sched_setaffinity(2)).
    """
    allowed = os.sched_getaffinity(0)
    chosen = current_cpu() if cpu == OWN_CPU else cpu
    is_held = chosen in allowed and _moved_to(chosen)
    try:
        yield is_held
    finally:
        if is_held:
            os.sched_setaffinity(0, allowed)
            _let_go(allowed, chosen)


def _let_go(allowed: Set[int], cpu: Optional[int]) -> None:
    """Allow all CPUs again to threads that are bound to this one."""
    for thread in map(int, os.listdir("/proc/self/task")):
        with suppress(OSError):  # it has ended
            if os.sched_getaffinity(thread) == {cpu}:
                os.sched_setaffinity(thread, allowed)


def _moved_to(cpu: int) -> bool:
    """Hold this thread on a CPU; return whether the kernel lets it."""
    try:
        os.sched_setaffinity(0, (cpu,))
    except OSError:
        return False
    return True


def current_cpu() -> Optional[int]:
    """Return the CPU that this thread is on: field 39 of its line (proc_pid_stat(5)).

    None where the kernel does not tell.
    """
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[36])
    except (OSError, ValueError, IndexError):
        return None


def _set(cpus: List[int], allowed: Set[int]) -> None:
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, TypeError, ValueError, OverflowError) as error:
        raise ProcessError(
            f"cannot run on CPUs {cpus}: {getattr(error, 'strerror', None) or error}; "
            f"allowed: {sorted(allowed)}",
            hint=_HINT,
        ) from error
    # The kernel drops a CPU it cannot give as long as one is left (sched_setaffinity(2)).
    if os.sched_getaffinity(0) != set(cpus):
        raise ProcessError(
            f"cannot run on all of CPUs {cpus}; allowed: {sorted(allowed)}", hint=_HINT
        )
