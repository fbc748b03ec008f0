"""What a profiler says of itself, and what there is to try then."""

from __future__ import annotations

from envcompare.errors import Problem
from envcompare.profilers.ncu import OPEN_FOR_ALL, Ncu

CLOSED = (
    "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
    "Counters on the target device 0."
)


def explained(log: str) -> Problem:
    """Return what ncu complains of in a log."""
    problem = Ncu().explain(log)
    assert problem is not None
    return problem


def test_a_complaint_is_said_once_and_without_the_progress() -> None:
    """Ncu writes the same of each kernel."""
    log = f"==PROF== Profiling\n==ERROR== {CLOSED}\n==ERROR== {CLOSED}\n==WARNING== No kernels.\n"
    assert explained(log).details == f"{CLOSED}; No kernels."
    assert Ncu().explain("the program's own words") is None


def test_the_remedy_fits_the_complaint() -> None:
    """A right that is missing, counters that another tool holds, or else the log."""
    assert explained(CLOSED).hint.startswith(OPEN_FOR_ALL)
    busy = "Profiling failed because a driver resource was unavailable"
    assert "dcgmi profile --pause" in explained(busy).hint
    assert "the log of the arm" in explained("==ERROR== another").hint
