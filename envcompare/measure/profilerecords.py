"""What is told of a profile pass: its kinds in their order, and why one of them is missing."""

from __future__ import annotations

from envcompare.errors import EnvcompareError, WorkloadError
from envcompare.profilers.choosing import Pass
from envcompare.profilers.collecting import complaint, remedy
from envcompare.profilers.inside import Inside
from envcompare.run_folder.profiles import PassName, ProfileRecord

INSIDE: tuple[Inside, ...] = ("host", "flops", "torch")
AROUND: tuple[Pass, ...] = ("nsys", "ncu-memory", "ncu-flops")


def summary(records: tuple[ProfileRecord, ...]) -> str:
    """Return what there is of a cell, and once each reason for what is missing of which arms."""
    kinds = (*INSIDE, *AROUND)
    there: list[PassName] = [
        k for k in kinds if any(r.kind == k and r.state == "ok" for r in records)
    ]
    reasons = dict.fromkeys(one.reason for one in records if one.state == "missing")
    parts = (_without(reason, records, there) for reason in reasons)
    return "; ".join((f"profiled by {', '.join(there) or 'nothing'}", *parts))


def _without(reason: str, records: tuple[ProfileRecord, ...], there: list[PassName]) -> str:
    lacking = [one for one in records if one.state == "missing" and one.reason == reason]
    names = [kind for kind in (*INSIDE, *AROUND) if any(one.kind == kind for one in lacking)]
    arms = dict.fromkeys(one.arm for one in lacking)
    where = f" of {', '.join(arms)}" if set(names) & set(there) else ""
    return f"without {', '.join(names)}{where} ({reason})"


def reason_and_hint(error: EnvcompareError) -> tuple[str, str]:
    """Return why a profile failed, and what to try.

    The details of a worker's end are its log, of which only what its profiler complained of counts.
    """
    if not isinstance(error, WorkloadError):
        return f"{error.brief}: {error.details}" if error.details else error.brief, error.hint
    said = complaint(error.details)
    return (f"{error.brief}: {said}", remedy(said)) if said else (error.brief, error.hint)
