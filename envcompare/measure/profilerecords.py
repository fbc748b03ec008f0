"""What is told of a profile pass: its kinds in their order, and why one of them is missing."""

from __future__ import annotations

from envcompare.errors import EnvcompareError, WorkloadError
from envcompare.profilers.choosing import Pass
from envcompare.profilers.collecting import complaint, remedy
from envcompare.profilers.inside import Inside
from envcompare.profiles import ProfileRecord

INSIDE: tuple[Inside, ...] = ("host", "flops", "torch")
AROUND: tuple[Pass, ...] = ("nsys", "ncu-memory", "ncu-flops")


def summary(records: tuple[ProfileRecord, ...]) -> str:
    """Return what there is of a cell, and once each reason for what is missing."""
    kinds = (*INSIDE, *AROUND)
    there = [k for k in kinds if any(r.kind == k and r.state == "ok" for r in records)]
    lacks: dict[str, list[str]] = {}
    for record in records:
        if record.state == "missing" and record.kind not in lacks.setdefault(record.reason, []):
            lacks[record.reason].append(record.kind)
    parts = (f"without {', '.join(names)} ({reason})" for reason, names in lacks.items())
    return "; ".join((f"profiled by {', '.join(there) or 'nothing'}", *parts))


def reason_and_hint(error: EnvcompareError) -> tuple[str, str]:
    """Return why a profile failed, and what to try.

    The details of a worker's end are its log, of which only what its profiler complained of counts.
    """
    if not isinstance(error, WorkloadError):
        return f"{error.brief}: {error.details}" if error.details else error.brief, error.hint
    said = complaint(error.details)
    return (f"{error.brief}: {said}", remedy(said)) if said else (error.brief, error.hint)
