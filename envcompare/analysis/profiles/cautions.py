"""Warnings about the profiles of a cell, as sentences."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from envcompare.analysis.model.profiling import KernelDiff
from envcompare.analysis.profiles.armprofiles import (
    LEFT_OUT,
    RANK,
    Records,
    choose,
    has_kernels,
    is_kernel_trace,
    is_trace,
    profile_of,
    source_of,
    usable,
)
from envcompare.analysis.profiles.quantities import Rows, clashes
from envcompare.gpu import gpu_models, has_gpu_work, lacks_model
from envcompare.gpu.kernelnames import family_of_any_tool, is_nameless
from envcompare.run_folder.profiles import Profile, ProfileRecord, graphs_of, hidden_graphs
from envcompare.text import counted

_MOST_NAMED: Final = 2
_ALMOST_ALL: Final = 0.999
_NODES: Final = "Trace the nodes of graphs with `nsys profile --cuda-graph-trace=node`."
_SHOWN: Final = 80  # characters of a kernel's name
ByArm = Mapping[str, Records]


def work_cautions(
    by_arm: ByArm,
    codes: Mapping[str, str],
    rows: Mapping[str, Rows],
    diffs: Iterable[KernelDiff],
    *,
    reference: str,
) -> Iterable[str]:
    """Yield signs that different work was profiled; `codes` are the hashes of the timed code."""
    yield from _of_programs(by_arm, codes)
    yield from _of_model_flops(rows, reference)
    yield from _of_factors(diffs, reference)


def record_cautions(
    by_arm: ByArm,
    *,
    reference: str,
    identified_arms: Container[str],
    partial: Container[tuple[str, str]],
) -> Iterable[str]:
    """Yield contradictions between the records of the arms.

    `identified_arms` are arms whose fingerprint names the GPU; `partial` are arms and records that
    lack launches.
    """
    yield from _of_gpus(by_arm, reference)
    yield from _of_unnamed_gpus(by_arm, identified_arms)
    yield from chain.from_iterable(_of_ranks(*one) for one in by_arm.items())
    yield from chain.from_iterable(_of_hidden(*one) for one in by_arm.items())
    yield from chain.from_iterable(_of_several(one, partial) for one in by_arm.values())
    yield from chain.from_iterable(map(_of_steps, by_arm.values()))
    yield from chain.from_iterable(map(_of_launches, by_arm.values()))


def _of_programs(by_arm: ByArm, codes: Mapping[str, str]) -> Iterable[str]:
    """Warn if the profiled program is not the timed one; `codes` are the hashes of the timed code.

    Records without a code hash, such as imported files, are skipped.
    """
    for arm, records in by_arm.items():
        hashes = {one.code_hash for one in usable(records) if one.code_hash}
        if codes.get(arm) and hashes - {codes[arm]}:
            yield (
                f"The code profiled in {arm} is not the timed code: the profile does not explain "
                "the time."
            )
    known = {one.code_hash for records in by_arm.values() for one in usable(records)} - {""}
    if len(known) > 1:
        yield "The arms profiled different code."


def _of_model_flops(rows: Mapping[str, Rows], reference: str) -> Iterable[str]:
    """Warn if different model FLOPs show that the programs differ."""
    for arm, arm_rows in rows.items():
        for row in arm_rows:
            if row.name == "flops_model" and row.agreement == "differs" and row.ratio is not None:
                yield (
                    f"The model in {arm} has {row.ratio:.4g} times the FLOPs of {reference}: the "
                    "programs differ, so nothing else here can be compared."
                )


def _of_factors(diffs: Iterable[KernelDiff], reference: str) -> Iterable[str]:
    """Warn if whole profiles seem to cover a different number of steps."""
    for diff in diffs:
        if diff.launch_factor is not None:
            yield (
                f"{diff.arm} launched every kernel {diff.launch_factor:.4g} times as often as "
                f"{reference}: the profiles seem to cover different numbers of steps. Import "
                "each with --steps N to compare a step."
            )


def _of_gpus(by_arm: ByArm, reference: str) -> Iterable[str]:
    """Warn if an arm used a different number of GPUs than the reference."""
    counts = {arm: _gpus(records) for arm, records in by_arm.items()}
    expected = counts.get(reference)
    for arm, count in counts.items():
        if expected and count and count != expected:
            yield (
                f"{arm} used {counted(count, 'GPU')} and {reference} {expected}: sums cover all of "
                "them, and times are compared GPU by GPU."
            )


def _of_unnamed_gpus(by_arm: ByArm, identified_arms: Container[str]) -> Iterable[str]:
    """Warn about profiled arms with an unknown GPU model."""
    unnamed = [
        arm
        for arm, records in by_arm.items()
        if arm not in identified_arms
        and any(has_gpu_work(profile_of(one)) for one in usable(records))
        and all(map(lacks_model, gpu_models([profile_of(one) for one in usable(records)])))
    ]
    if unnamed and len(by_arm) > 1:
        yield (
            f"The GPU model of {' and '.join(unnamed)} is unknown and could explain any difference."
        )


def _of_ranks(arm: str, records: Records) -> Iterable[str]:
    """Report the ranks in the sums of an arm, and the omitted traces."""
    for note in (note for one in usable(records) for note in profile_of(one).notes):
        if note.kind == "distributed" and LEFT_OUT in note.values:
            ranks, size = (note.values.get(name, "?") for name in (RANK, "world_size"))
            if " " in str(ranks):
                yield (
                    f"Sums for {arm} cover ranks {ranks} of {size}; busy times, rates and shares "
                    "are given for each rank."
                )
            if left := note.values[LEFT_OUT]:
                many = " " in str(left)
                subject, verb = (f"Ranks {left}", "are") if many else (f"Rank {left}", "is")
                these = "them" if many else "it"
                yield (
                    f"{subject} of {arm} {verb} left out: another environment has no trace of "
                    f"{these}."
                )


def _of_hidden(arm: str, records: Records) -> Iterable[str]:
    """Warn if CUDA graphs hide kernels, with the way to trace their nodes."""
    for record in usable(records):
        note = hidden_graphs(profile_of(record))
        if note:
            busy = (
                "; GPU busy time counts each graph from start to end"
                if note.kind == "whole-graphs"
                else ""
            )
            yield (
                f"The kernels of {graphs_of(note)} are hidden in {arm}: kernel sets, times and "
                f"shares cannot be compared{busy}. {_NODES}"
            )


def _gpus(records: Records) -> int:
    """Return the largest number of busy GPUs in a profile of an arm; 0 if unknown."""
    profiles = (profile_of(one) for one in usable(records))
    return max((len(one.devices) for one in profiles if one.kernels or one.copies), default=0)


def _of_several(records: Records, partial: Container[tuple[str, str]]) -> Iterable[str]:
    """Report which of several profiles of one tool is shown."""
    groups: dict[tuple[str, str], list[ProfileRecord]] = {}
    for record in usable(records):
        groups.setdefault((record.kind, profile_of(record).tool), []).append(record)
    trace = choose(records, is_trace)
    for (_, tool), same in groups.items():
        if len(same) > 1:
            clashing = len(clashes(same, partial))
            tables = f"kernels and ledger come from {same[0].name}; "
            which = (
                f"they contradict each other in {counted(clashing, 'quantity', 'quantities')}, "
                "shown without a value"
                if clashing
                else f"quantities in several of them come from {same[0].name}"
            )
            yield (
                f"{same[0].arm} has {len(same)} profiles of {tool}: "
                f"{tables * (same[0] is trace)}{which}."
            )


def _of_steps(records: Records) -> Iterable[str]:
    """Warn if the steps counted in a profile differ from the declared steps."""
    for record in usable(records):
        counted_steps = record.profile.steps if record.profile else None
        if counted_steps and record.steps and counted_steps != record.steps:
            yield (
                f"{record.name} of {record.arm} was declared with {record.steps} steps but has "
                f"{counted_steps}, which is used."
            )


def _of_launches(records: Records) -> Iterable[str]:
    """Warn if other passes of an arm have different launches than its trace."""
    trace = choose(records, is_kernel_trace)
    for other in usable(records) if trace is not None else ():
        if trace is not None and other is not trace and has_kernels(other):
            yield from _against(trace, other)


def partial_records(by_arm: ByArm) -> frozenset[tuple[str, str]]:
    """Return arm and name of each record with fewer launches than its steps have."""
    partial = set()
    for arm, records in by_arm.items():
        trace = choose(records, is_kernel_trace)
        for other in usable(records):
            if (
                trace is not None
                and has_kernels(other)
                and _launch_coverage(trace, other) < _ALMOST_ALL
            ):
                partial.add((arm, other.name))
    return frozenset(partial)


def _launch_coverage(trace: ProfileRecord, other: ProfileRecord) -> float:
    """Return launches per step ÷ launches per step in the trace; 1 if unknown."""
    whole, part = profile_of(trace), profile_of(other)
    if not whole.steps or not part.steps or not _launches(whole):
        return 1.0
    return (_launches(part) / part.steps) / (_launches(whole) / whole.steps)


def _against(trace: ProfileRecord, other: ProfileRecord) -> Iterable[str]:
    traced, seen = _families(profile_of(trace)), _families(profile_of(other))
    arm, names = other.arm, (source_of(trace), source_of(other))
    ratio = _launch_coverage(trace, other)
    is_partial = ratio < _ALMOST_ALL
    if is_partial:
        yield (
            f"In {arm}, {names[1]} covers {100 * ratio:.3g} % of the launches of its steps; its "
            "sums are not for a whole step."
        )
    elif ratio > 1 / _ALMOST_ALL:
        yield (
            f"In {arm}, {names[1]} has {ratio:.3g} times the launches per step of {names[0]}: a "
            "different program, step or rank."
        )
    strange = [seen[key] for key in seen.keys() - traced.keys()]
    is_whole = not is_partial and profile_of(other).steps is not None
    lacking = [traced[key] for key in traced.keys() - seen.keys()] if is_whole else []
    for kernels, which in ((strange, names[1]), (lacking, names[0])):
        if kernels:
            listed = _listed(kernels)
            yield f"In {arm}, only {which} has {listed}: the passes ran different kernels."


def _families(profile: Profile) -> dict[str, str]:
    named = (one.name for one in profile.kernels if not is_nameless(one.name))
    return {family_of_any_tool(name): name for name in named}


def _launches(profile: Profile) -> int:
    return sum(one.calls for one in profile.kernels)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"“{name[:_SHOWN]}”" for name in sorted(names)[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more} more kernels" if more > 0 else shown
