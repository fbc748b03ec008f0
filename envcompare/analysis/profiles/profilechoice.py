"""Which profile of an arm serves for what: the trace that times it, the counters, the operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from envcompare.run_folder.profiles import PassName, Profile, ProfileRecord, Tool

_KINDS: Final[tuple[PassName, ...]] = (
    "nsys", "torch", "ncu-memory", "ncu-flops", "imported", "flops", "host",
)  # fmt: skip
# what disturbs the time of kernels least comes first
_TOOLS: Final[tuple[Tool, ...]] = ("nsys", "kineto", "torch", "nvprof", "ncu", "perf")
Records = Sequence[ProfileRecord]


def profile_of(record: ProfileRecord) -> Profile:
    """Return the profile of a record that has one; its steps, if it counts none, of the record."""
    assert record.profile is not None
    return replace(record.profile, steps=record.profile.steps or record.steps)


def source_of(record: ProfileRecord) -> str:
    """Return pass and tool, such as "nsys 2024.5" or "imported, nvprof 9.2"."""
    profile = profile_of(record)
    tool = f"{profile.tool} {profile.version}".strip()
    if record.kind in {"imported", "ncu-memory", "ncu-flops"}:
        return f"{record.kind}, {tool}"
    return tool


def usable(records: Iterable[ProfileRecord]) -> tuple[ProfileRecord, ...]:
    """Return the records that hold a profile, those that disturb time least first."""
    found = [one for one in records if one.state == "ok" and one.profile is not None]
    return tuple(sorted(found, key=_rank))


def is_trace(record: ProfileRecord) -> bool:
    """Tell whether kernels or copies of a profile have times that can be relied on."""
    profile = record.profile
    if profile is None or not profile.has_time:
        return False
    timed = bool(profile.kernels) and all(one.total_ns is not None for one in profile.kernels)
    return timed or (not profile.kernels and bool(profile.copies))


def is_of_program(record: ProfileRecord) -> bool:
    """Tell whether its times are of the program as it ran: ncu runs each kernel by itself."""
    return is_trace(record) and profile_of(record).tool != "ncu"


def has_kernels(record: ProfileRecord) -> bool:
    """Tell whether a profile names kernels."""
    return record.profile is not None and bool(record.profile.kernels)


def choose(records: Records, fits: Callable[[ProfileRecord], bool]) -> ProfileRecord | None:
    """Return the best profile of one arm that fits, None where there is none."""
    return next((one for one in usable(records) if fits(one)), None)


def choose_pair(
    before: Records, after: Records, fits: Callable[[ProfileRecord], bool]
) -> tuple[ProfileRecord, ProfileRecord] | None:
    """Return a profile of each arm, of one pass and tool where both have such, else the best."""
    own = [one for one in usable(before) if fits(one)]
    other = [one for one in usable(after) if fits(one)]
    for one in own:
        for match in other:
            if _rank(one) == _rank(match):
                return one, match
    return (own[0], other[0]) if own and other else None


def _rank(record: ProfileRecord) -> tuple[int, int]:
    assert record.profile is not None
    return _KINDS.index(record.kind), _TOOLS.index(record.profile.tool)
