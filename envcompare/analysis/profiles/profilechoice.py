"""Which profile of an arm serves for what, and whether it is of the program that was timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, get_args

from msgspec.structs import replace

from envcompare.analysis.model.profiling import KernelDiff
from envcompare.gpu.kernelnames import family
from envcompare.gpu.peaks import gpu_models, has_gpu_work
from envcompare.run_folder.profiles import (
    RUN_KERNELS_ALONE,
    PassName,
    Profile,
    ProfileRecord,
    Tool,
)
from envcompare.text import counted

_KINDS: Final[tuple[PassName, ...]] = get_args(PassName)
_TOOLS: Final[tuple[Tool, ...]] = get_args(Tool)
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
    kept = [one for one in records if one.state == "ok" and one.profile is not None]
    return tuple(sorted(kept, key=_rank))


def is_trace(record: ProfileRecord) -> bool:
    """Tell whether kernels or copies of a profile have times that can be relied on."""
    profile = record.profile
    if profile is None or not profile.has_time:
        return False
    timed = bool(profile.kernels) and all(one.total_ns is not None for one in profile.kernels)
    return timed or (not profile.kernels and bool(profile.copies))


def is_of_program(record: ProfileRecord) -> bool:
    """Tell whether its times are of the program as it ran: ncu runs each kernel by itself."""
    return is_trace(record) and profile_of(record).tool not in RUN_KERNELS_ALONE


def has_kernels(record: ProfileRecord) -> bool:
    """Tell whether a profile names kernels."""
    return record.profile is not None and bool(record.profile.kernels)


def is_kernel_trace(record: ProfileRecord) -> bool:
    """Tell whether a profile names kernels, with times that can be relied on."""
    return is_trace(record) and has_kernels(record)


def choose(records: Records, fits: Callable[[ProfileRecord], bool]) -> ProfileRecord | None:
    """Return the best profile of one arm that fits, None where there is none."""
    return next((one for one in usable(records) if fits(one)), None)


def choose_pair(
    before: Records, after: Records, fits: Callable[[ProfileRecord], bool]
) -> tuple[ProfileRecord, ProfileRecord] | None:
    """Return a profile of each arm, of one pass and tool where both have such, else the best."""
    firsts = [one for one in usable(before) if fits(one)]
    seconds = [one for one in usable(after) if fits(one)]
    for first in firsts:
        for match in seconds:
            if _rank(first) == _rank(match):
                return first, match
    return (firsts[0], seconds[0]) if firsts and seconds else None


def _rank(record: ProfileRecord) -> tuple[int, int]:
    assert record.profile is not None
    return _KINDS.index(record.kind), _TOOLS.index(record.profile.tool)


_MOST_NAMED: Final = 2
_ALMOST_ALL: Final = 0.999
_SHOWN: Final = 80  # characters of a kernel's name


def program_cautions(by_arm: Mapping[str, Records], codes: Mapping[str, str]) -> Iterable[str]:
    """Say where another program was profiled than timed; `codes` are the hashes of what was timed.

    A record that does not know its program is left alone: imported files never do.
    """
    for arm, records in by_arm.items():
        hashes = {one.code_hash for one in usable(records) if one.code_hash}
        if codes.get(arm) and hashes - {codes[arm]}:
            yield (
                f"The program profiled in {arm} is not the one that was timed: its code has "
                "another hash, so that its profile does not explain its time."
            )
    known = {one.code_hash for records in by_arm.values() for one in usable(records)} - {""}
    if len(known) > 1:
        yield "The arms profiled different programs: their code has different hashes."


def factor_cautions(diffs: Iterable[KernelDiff], *, reference: str) -> Iterable[str]:
    """Say where whole profiles seem to hold another number of steps of one program."""
    for diff in diffs:
        if diff.launch_factor is not None:
            yield (
                f"{diff.arm} launched every kernel {diff.launch_factor:.4g} times as often as "
                f"{reference}: whole profiles of another number of steps do not compare. Import "
                "each with --steps N to compare a step."
            )


def gpu_cautions(by_arm: Mapping[str, Records], *, reference: str) -> Iterable[str]:
    """Say where an arm used another number of GPUs than the reference."""
    counts = {arm: _gpus(records) for arm, records in by_arm.items()}
    expected = counts.get(reference)
    for arm, count in counts.items():
        if expected and count and count != expected:
            yield (
                f"{arm} used {counted(count, 'GPU')} and {reference} {expected}: sums are over "
                "all of them, and times of one GPU are compared with those of the same GPU alone."
            )


def unnamed_gpu_cautions(by_arm: Mapping[str, Records], *, among: int) -> Iterable[str]:
    """Say of which of the profiled arms the GPU model is not known, since another is a cause."""
    profiles = {arm: [profile_of(one) for one in usable(own)] for arm, own in by_arm.items()}
    unnamed = [
        arm for arm, own in profiles.items() if any(map(has_gpu_work, own)) and not gpu_models(own)
    ]
    if unnamed and among > 1:
        yield (
            f"The GPU model of {' and '.join(unnamed)} is not known; a different GPU model "
            "could explain any difference."
        )


def _gpus(records: Records) -> int:
    """Return the most GPUs that a profile of an arm saw at work; 0 where none is told."""
    profiles = (profile_of(one) for one in usable(records))
    return max((len(one.devices) for one in profiles if one.kernels or one.copies), default=0)


def step_cautions(records: Records) -> Iterable[str]:
    """Say where a profile counts other steps than it is said to hold: its own are used."""
    for record in usable(records):
        told = record.profile.steps if record.profile else None
        if told and record.steps and told != record.steps:
            yield (
                f"{record.name} of {record.arm} is declared to hold {record.steps} steps and "
                f"itself counts {told}: its own count is used."
            )


def launch_cautions(records: Records) -> Iterable[str]:
    """Say where the passes of one arm did not see the launches that its trace saw."""
    trace = choose(records, is_kernel_trace)
    for other in usable(records) if trace is not None else ():
        if trace is None or other is trace or not has_kernels(other):
            continue
        yield from _against(trace, other, is_partial=_covered(trace, other) < _ALMOST_ALL)


def partial_records(by_arm: Mapping[str, Records]) -> frozenset[tuple[str, str]]:
    """Return arm and name of each record that holds fewer launches than its steps have."""
    partial = set()
    for arm, records in by_arm.items():
        trace = choose(records, is_kernel_trace)
        for other in usable(records):
            if trace is not None and has_kernels(other) and _covered(trace, other) < _ALMOST_ALL:
                partial.add((arm, other.name))
    return frozenset(partial)


def _covered(trace: ProfileRecord, other: ProfileRecord) -> float:
    """Return launches of a profile ÷ those that its steps have in the trace; 1 if not known."""
    whole, part = profile_of(trace), profile_of(other)
    if not whole.steps or not part.steps or not _launches(whole):
        return 1.0
    return (_launches(part) / part.steps) / (_launches(whole) / whole.steps)


def _against(trace: ProfileRecord, other: ProfileRecord, *, is_partial: bool) -> Iterable[str]:
    traced, seen = _families(profile_of(trace)), _families(profile_of(other))
    arm, names = other.arm, (source_of(trace), source_of(other))
    ratio = _covered(trace, other)
    if is_partial:
        yield (
            f"In {arm}, {names[1]} holds {100 * ratio:.3g} % of the launches of its steps; its "
            "sums are of those alone and not of a step."
        )
    elif ratio > 1 / _ALMOST_ALL:
        yield (
            f"In {arm}, {names[1]} holds {ratio:.3g} times the launches a step has in {names[0]}: "
            "another program, or other steps."
        )
    strange = [seen[key] for key in seen.keys() - traced.keys()]
    is_whole = not is_partial and profile_of(other).steps is not None
    lacking = [traced[key] for key in traced.keys() - seen.keys()] if is_whole else []
    for kernels, which in ((strange, names[1]), (lacking, names[0])):
        if kernels:
            yield f"In {arm}, only {which} has {_listed(kernels)}: the passes ran other kernels."


def _families(profile: Profile) -> dict[str, str]:
    return {family(one.name): one.name for one in profile.kernels}


def _launches(profile: Profile) -> int:
    return sum(one.calls for one in profile.kernels)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"“{name[:_SHOWN]}”" for name in sorted(names)[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more} more kernels" if more > 0 else shown
