"""What a profiler says of itself, and what there is to try then."""

from __future__ import annotations

from envcompare.profilers.collecting import complaint, remedy
from envcompare.profilers.permissions import OPEN_FOR_ALL

CLOSED = (
    "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
    "Counters on the target device 0."
)


def test_a_complaint_is_said_once_and_without_the_progress() -> None:
    """Ncu writes the same of each kernel."""
    log = f"==PROF== Profiling\n==ERROR== {CLOSED}\n==ERROR== {CLOSED}\n==WARNING== No kernels.\n"
    assert complaint(log) == f"{CLOSED}; No kernels."
    assert complaint("the program's own words") == ""


def test_the_remedy_fits_the_complaint() -> None:
    """A right that is missing, counters that another tool holds, or else the log."""
    assert remedy(CLOSED).startswith(OPEN_FOR_ALL)
    assert "dcgmi profile --pause" in remedy(
        "Profiling failed because a driver resource was unavailable"
    )
    assert "the log of the arm" in remedy("another")
