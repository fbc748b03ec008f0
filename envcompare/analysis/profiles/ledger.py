"""The difference ledger: parts of a step in two arms whose changes sum exactly to its change.

All values are whole nanoseconds, rounded one after the other so that they still add up.

Without a GPU the parts divide wall time: means over all measured blocks, as in the headline.

Warnings about the profiles of a cell are here too.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Final, NamedTuple

from msgspec.structs import replace

from envcompare.analysis.model.profiling import (
    PART_LABELS,
    Basis,
    KernelDiff,
    Ledger,
    LedgerPart,
    Part,
)
from envcompare.analysis.profiles.armprofiles import (
    LEFT_OUT,
    RANK,
    Records,
    are_other_ranks,
    choose,
    has_kernels,
    is_kernel_trace,
    is_trace,
    profile_of,
    ranks_of_passes,
    source_of,
    usable,
)
from envcompare.analysis.profiles.quantities import Rows, clashes
from envcompare.gpu import gpu_models, has_gpu_work, lacks_model
from envcompare.gpu.kernels import classify, family_of_any_tool, is_nameless
from envcompare.run_folder.profiles import Profile, ProfileRecord, graphs_of, hidden_graphs
from envcompare.run_folder.records import Block, Measured, ProcessRun
from envcompare.stats.metrics import wall_ns
from envcompare.text import counted

_EXPOSED_NAME: Final = "collective_exposed_ns"  # of all collectives
_SPAN: Final = "first start to last end on the GPU"
_SUM: Final = "sum of GPU activities"
_NO_OVERLAP: Final = "No activities overlapped: each part is the sum of its kernels or copies."
_SCALED: Final = (
    "Activities overlapped: busy time is divided in proportion to the sum of each part."
)
_EXPOSED: Final = (
    "Activities overlapped: communication counts only while nothing else ran; the other parts "
    "share the rest in proportion to their sums."
)
_NO_TIME_LINE: Final = "There is no timeline: activities are summed, and idle time is unknown."
_ONE_THREAD: Final = "CPU time is that of the process; the rest is unexplained."
_SPLIT: Final = "Its split between program and kernel was counted {}."
_MANY_THREADS: Final = (
    "CPU time and waiting exceed wall time (several threads?): all time neither waiting nor "
    "stopped counts as CPU time."
)
_PROGRAM: Final = (
    "CPU time is that of the program and its children; the rest is waiting, including for a CPU."
)
_PARALLEL: Final = "They ran in parallel, so CPU time is scaled to wall time."
_CLOCKS_APART: Final = 1.02  # tolerated CPU time ÷ remaining time, for the resolution of the clocks
_MODES_NS: Final = 1e9  # least CPU time for which kernel ticks can separate user and system
_TICK_NS: Final = 1e7  # at 100 Hz, the lowest rate of Linux (kernel/Kconfig.hz)
_TOO_SHORT: Final = "Program and kernel time are not separated: less than 1 s was counted."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Division:
    """A step of one arm, divided into parts that add up to the whole, in ns."""

    parts: Mapping[Part, float]
    rules: tuple[str, ...]  # sentences


class Modes(NamedTuple):
    """CPU time outside and inside the kernel, in ns."""

    user_ns: float
    sys_ns: float
    counted: str = "in the pass for host events"

    @property
    def whole_ns(self) -> float:
        """Return all CPU time."""
        return self.user_ns + self.sys_ns

    @property
    def error(self) -> float:
        """Return the standard error of the kernel's share, with each tick as a random sample."""
        share = self.sys_ns / self.whole_ns
        return math.sqrt(share * (1 - share) * _TICK_NS / self.whole_ns)


def _difference(
    before: _Division, after: _Division, *, arm: str, basis: Basis, whole: str
) -> Ledger:
    """Return the ledger of two divisions; its parts sum exactly to the whole."""
    before_ns, after_ns = _rounded(before), _rounded(after)
    change = sum(after_ns.values()) - sum(before_ns.values())
    return Ledger(
        arm=arm,
        basis=basis,
        whole=whole,
        rule=" ".join(dict.fromkeys((*before.rules, *after.rules))),
        reference_ns=sum(before_ns.values()),
        arm_ns=sum(after_ns.values()),
        change_ns=change,
        parts=tuple(
            _part(part, before_ns.get(part, 0), after_ns.get(part, 0), change)
            for part in PART_LABELS
            if before_ns.get(part) or after_ns.get(part)
        ),
    )


def _part(part: Part, before: int, after: int, change: int) -> LedgerPart:
    return LedgerPart(
        part=part,
        label=PART_LABELS[part],
        reference_ns=before,
        arm_ns=after,
        change_ns=after - before,
        share=(after - before) / change if change else None,
    )


def _rounded(division: _Division) -> dict[Part, int]:
    """Round to whole ns such that each running sum is the rounded running sum."""
    rounded: dict[Part, int] = {}
    running, given = 0.0, 0
    for part, value in division.parts.items():
        running += value
        rounded[part] = round(running) - given
        given += rounded[part]
    return rounded


def trace_ledger(before: Profile, after: Profile, *, arm: str, source: str) -> Ledger | str:
    """Return the parts of a GPU step and their changes, or the reason why not."""
    if bool(before.steps) != bool(after.steps):
        return "the number of steps is known for only one profile, so steps cannot be compared"
    for profile in (before, after):
        if why := _why_not(profile):
            return why
    has_span = all(p.span_ns is not None and p.busy_ns is not None for p in (before, after))
    made = _difference(
        _gpu_division(before, has_span=has_span),
        _gpu_division(after, has_span=has_span),
        arm=arm,
        basis="gpu-trace",
        whole=_SPAN if has_span else _SUM,
    )
    return replace(made, source=source, is_per_step=bool(before.steps))


def _why_not(profile: Profile) -> str:
    """Return why a profile cannot be divided; empty if it can."""
    if not profile.has_time:
        return "its counters changed the times"
    if not profile.kernels and not profile.copies:
        return "it has no GPU activity"
    if any(kernel.total_ns is None for kernel in profile.kernels):
        return "it has kernels without a time"
    span, busy = profile.span_ns, profile.busy_ns
    if span is not None and busy is not None and not 0 <= busy <= span:
        return f"its busy time of {busy:.0f} ns is not within its span of {span:.0f} ns"
    return ""


def _gpu_division(profile: Profile, *, has_span: bool) -> _Division:
    sums = _sums(profile)
    steps = profile.steps or 1
    span, busy = profile.span_ns, profile.busy_ns
    if not has_span or span is None or busy is None:
        return _Division(parts=_scaled(sums, 1 / steps), rules=(_NO_TIME_LINE,))
    exposed = (row.value for row in profile.quantities if row.name == _EXPOSED_NAME)
    parts, rule = _exclusive(sums, busy, next(exposed, None))
    listed = sum(parts.values())
    parts["idle"] = max(0.0, span - busy)
    parts["rest"] = max(0.0, span - parts["idle"] - listed)
    return _Division(parts=_scaled(parts, 1 / steps), rules=(rule,))


def _sums(profile: Profile) -> dict[Part, float]:
    """Return the summed time of each class in ns; kernels and copies may overlap."""
    sums: dict[Part, float] = dict.fromkeys(PART_LABELS, 0.0)
    for kernel in profile.kernels:
        named = classify(kernel.name)
        sums["other-kernels" if named == "other" else named] += kernel.total_ns or 0.0
    for copy in profile.copies:
        sums["memset" if copy.kind == "memset" else "memcpy"] += copy.total_ns
    return sums


def _exclusive(
    sums: dict[Part, float], busy: float, exposed: float | None
) -> tuple[dict[Part, float], str]:
    """Return parts that sum to at most the busy time, and the rule used."""
    total = sum(sums.values())
    if total <= busy:
        return dict(sums), _NO_OVERLAP
    talking, others = sums["communication"], total - sums["communication"]
    if exposed is None or not talking or not others:
        return _scaled(sums, busy / total), _SCALED
    alone = min(exposed, talking, busy)
    scaled = _scaled(sums, min(1.0, (busy - alone) / others))
    return {**scaled, "communication": alone}, _EXPOSED


def _scaled(parts: Mapping[Part, float], factor: float) -> dict[Part, float]:
    return {part: value * factor for part, value in parts.items()}


def timing_ledger(
    before: Sequence[Measured],
    after: Sequence[Measured],
    *,
    arm: str,
    modes: tuple[Modes, Modes] | None = None,
) -> Ledger | str:
    """Return the parts of a step's wall time and their changes, or the reason why not.

    CPU time is divided into user and system as counted in the blocks, else in proportion to
    `modes` of both arms.
    """
    if not before or not after:
        return "no block was measured in one of the arms"
    if any(isinstance(block, Block) and block.gpu_ns for block in (*before, *after)):
        return "the work runs on a GPU, so its parts need a trace"
    if any(isinstance(block, ProcessRun) and block.user_ns is None for block in (*before, *after)):
        return "the CPU time of a container is not measured: its client is another process"
    counted = _counted(before), _counted(after)
    if counted[0] and counted[1] and _can_tell((counted[0], counted[1])):
        modes = counted[0], counted[1]
    has_enough = modes is not None and _can_tell(modes)
    split = modes if modes and has_enough else (None, None)
    divisions = [_on_clock(each, split[place]) for place, each in enumerate((before, after))]
    is_program = isinstance(before[0], ProcessRun)
    made = _difference(
        *divisions,
        arm=arm,
        basis="timing",
        whole="a process on the clock" if is_program else "a step on the clock",
    )
    count = f"{len(before)} and {len(after)} {'processes' if is_program else 'blocks'}"
    return replace(
        made,
        piece="process" if is_program else "step",
        source=f"timing pass, means of {count}",
        timing_change_ns=made.change_ns,
        kernel_error_ns=_kernel_error_ns(divisions, modes) if modes and has_enough else None,
        notes=(*_notes(before, after), *((_TOO_SHORT,) if modes and not has_enough else ())),
    )


def _can_tell(modes: tuple[Modes, Modes]) -> bool:
    return min(mode.whole_ns for mode in modes) >= _MODES_NS


def _counted(measured: Sequence[Measured]) -> Modes | None:
    """Return the modes counted in the blocks or processes; None if one lacks them."""
    user = [block.user_ns for block in measured if block.user_ns is not None]
    system = [block.sys_ns for block in measured if block.sys_ns is not None]
    if not len(user) == len(system) == len(measured):
        return None
    return Modes(sum(user), sum(system), "in the same blocks")


def _kernel_error_ns(divisions: Sequence[_Division], modes: tuple[Modes, Modes]) -> int:
    """Return the standard error of the change of `system` in ns."""
    used = [each.parts.get("user", 0.0) + each.parts.get("system", 0.0) for each in divisions]
    return round(math.hypot(*(ns * mode.error for ns, mode in zip(used, modes, strict=True))))


def _on_clock(measured: Sequence[Measured], modes: Modes | None) -> _Division:
    runs = [block for block in measured if isinstance(block, ProcessRun)]
    blocks = [block for block in measured if isinstance(block, Block)]
    return _of_programs(runs) if runs else _of_blocks(blocks, modes)


def _of_programs(runs: Sequence[ProcessRun]) -> _Division:
    wall = fmean(run.wall_ns for run in runs)
    user, system = fmean(run.user_ns or 0 for run in runs), fmean(run.sys_ns or 0 for run in runs)
    rules: tuple[str, ...] = (_PROGRAM,)
    scale = 1.0
    if user + system > wall:
        rules, scale = (_PROGRAM, _PARALLEL), wall / (user + system)
    parts: dict[Part, float] = {"user": user * scale, "system": system * scale}
    return _Division(parts={**parts, "rest": max(0.0, wall - sum(parts.values()))}, rules=rules)


def _of_blocks(blocks: Sequence[Block], modes: Modes | None) -> _Division:
    steps = sum(block.k for block in blocks)
    wall = sum(wall_ns(block) for block in blocks) / steps
    quota = min(wall, sum(block.throttled_ns or 0 for block in blocks) / steps)
    # as for the metric net: the scheduler also counts a stop by the quota as a wait
    waited = sum(max(0, (b.wait_ns or 0) - (b.throttled_ns or 0)) for b in blocks) / steps
    waited = min(waited, wall - quota)
    left = wall - quota - waited
    cpu = sum(sum(block.cpu_ns) for block in blocks) / steps
    rules = (_ONE_THREAD if cpu <= left * _CLOCKS_APART else _MANY_THREADS,)
    parts: dict[Part, float] = {"cpu": min(cpu, left)}
    if modes is not None:
        user = parts.pop("cpu") * modes.user_ns / modes.whole_ns
        parts = {"user": user, "system": min(cpu, left) - user}
    rest = max(0.0, left - cpu)
    # without voluntary switches the worker did not sleep: the rest was stolen
    is_busy = all(block.voluntary_switches == 0 for block in blocks)
    parts |= {"wait": waited, "throttled": quota, "stolen" if is_busy else "rest": rest}
    return _Division(parts=parts, rules=(*rules, _SPLIT.format(modes.counted)) if modes else rules)


def _notes(before: Sequence[Measured], after: Sequence[Measured]) -> Iterable[str]:
    """Yield the page faults of both arms, and what the kernel did not report."""
    sides = [[block for block in each if isinstance(block, Block)] for each in (before, after)]
    if not all(sides):
        return
    for name, words in (("minor_faults", "Minor faults"), ("major_faults", "Major faults")):
        rates = [_rate(blocks, name) for blocks in sides]
        if None not in rates and any(rates):
            yield f"{words} per step: {rates[0]:.4g} in the reference, {rates[1]:.4g} here."
    for name, words in (("wait_ns", "the wait for a CPU"), ("throttled_ns", "a CPU quota")):
        if any(getattr(block, name) is None for blocks in sides for block in blocks):
            yield f"The kernel did not report {words}; it is included in the rest."


def _rate(blocks: Sequence[Block], name: str) -> float | None:
    counts = [getattr(block, name) for block in blocks]
    return None if None in counts else sum(counts) / sum(block.k for block in blocks)


_MOST_NAMED: Final = 2
_ALMOST_ALL: Final = 0.999
_NODES: Final = "Trace the nodes of graphs with `nsys profile --cuda-graph-trace=node`."
_SHOWN: Final = 80  # characters of a kernel's name
_ByArm = Mapping[str, Records]


def work_cautions(
    by_arm: _ByArm,
    codes: Mapping[str, str],
    rows: Mapping[str, Rows],
    diffs: Iterable[KernelDiff],
    *,
    reference: str,
) -> Iterable[str]:
    """Yield signs that different work was profiled; `codes` are the hashes of the timed code."""
    yield from _cautions_of_programs(by_arm, codes)
    for arm, arm_rows in rows.items():
        for row in arm_rows:
            if row.name == "flops_model" and row.agreement == "differs" and row.ratio is not None:
                yield (
                    f"The model in {arm} has {row.ratio:.4g} times the FLOPs of {reference}: the "
                    "programs differ, so nothing else here can be compared."
                )
    for diff in diffs:
        if diff.launch_factor is not None:
            yield (
                f"{diff.arm} launched every kernel {diff.launch_factor:.4g} times as often as "
                f"{reference}: the profiles seem to cover different numbers of steps. Import "
                "each with --steps N to compare a step."
            )


def record_cautions(
    by_arm: _ByArm,
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
    yield from chain.from_iterable(_of_ranks(*profile) for profile in by_arm.items())
    yield from chain.from_iterable(
        _of_other_ranks({reference: by_arm.get(reference, ()), arm: records})
        for arm, records in by_arm.items()
        if arm != reference
    )
    yield from chain.from_iterable(_of_hidden(*profile) for profile in by_arm.items())
    yield from chain.from_iterable(_of_several(profile, partial) for profile in by_arm.values())
    yield from chain.from_iterable(map(_of_steps, by_arm.values()))
    for records in by_arm.values():
        trace = choose(records, is_kernel_trace)
        for other in usable(records):
            if trace is not None and other is not trace and has_kernels(other):
                yield from _against(trace, other)


def _cautions_of_programs(by_arm: _ByArm, codes: Mapping[str, str]) -> Iterable[str]:
    """Warn if the profiled program is not the timed one; `codes` are the hashes of the timed code.

    Records without a code hash, such as imported files, are skipped.
    """
    for arm, records in by_arm.items():
        hashes = {profile.code_hash for profile in usable(records) if profile.code_hash}
        if codes.get(arm) and hashes - {codes[arm]}:
            yield (
                f"The code profiled in {arm} is not the timed code: the profile does not explain "
                "the time."
            )
    known = {profile.code_hash for records in by_arm.values() for profile in usable(records)} - {""}
    if len(known) > 1:
        yield "The arms profiled different code."


def _of_gpus(by_arm: _ByArm, reference: str) -> Iterable[str]:
    """Warn if an arm used a different number of GPUs than the reference."""
    counts = {
        # the largest number of busy GPUs in a profile; 0 if unknown
        arm: max(
            (
                len(profile.devices)
                for profile in map(profile_of, usable(records))
                if profile.kernels or profile.copies
            ),
            default=0,
        )
        for arm, records in by_arm.items()
    }
    expected = counts.get(reference)
    for arm, count in counts.items():
        if expected and count and count != expected:
            yield (
                f"{arm} used {counted(count, 'GPU')} and {reference} {expected}: sums cover all of "
                "them, and times are compared GPU by GPU."
            )


def _of_unnamed_gpus(by_arm: _ByArm, identified_arms: Container[str]) -> Iterable[str]:
    """Warn about profiled arms with an unknown GPU model."""
    unnamed = [
        arm
        for arm, records in by_arm.items()
        if arm not in identified_arms
        and any(has_gpu_work(profile_of(profile)) for profile in usable(records))
        and all(map(lacks_model, gpu_models([profile_of(profile) for profile in usable(records)])))
    ]
    if unnamed and len(by_arm) > 1:
        yield (
            f"The GPU model of {' and '.join(unnamed)} is unknown and could explain any difference."
        )


def _of_ranks(arm: str, records: Records) -> Iterable[str]:
    """Report the ranks in the sums of an arm, and the omitted traces."""
    for note in (note for profile in usable(records) for note in profile_of(profile).notes):
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


def _of_other_ranks(both: _ByArm) -> Iterable[str]:
    """Warn if the reference and another arm have traces of other ranks, or of other numbers."""
    theirs, ours = map(ranks_of_passes, both.values())
    for key in filter(ours.get, theirs):
        if all(theirs[key] + ours[key]) and theirs[key] != ours[key]:
            first, second = (
                f"{arm} are of {'ranks' if ' ' in ranks else 'rank'} {ranks} of {size}"
                for arm, (ranks, size) in zip(both, (theirs[key], ours[key]), strict=True)
            )
            is_apart = are_other_ranks(theirs[key], ours[key])
            yield f"The traces of {first}, and those of {second}: " + (
                "other ranks do other work, so there is no ratio."
                if is_apart
                else "the number of ranks could explain any difference."
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


def partial_records(by_arm: _ByArm) -> frozenset[tuple[str, str]]:
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
    """Warn if another pass of an arm has other launches than its trace."""
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
    named = (kernel.name for kernel in profile.kernels if not is_nameless(kernel.name))
    return {family_of_any_tool(name): name for name in named}


def _launches(profile: Profile) -> int:
    return sum(kernel.calls for kernel in profile.kernels)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"“{name[:_SHOWN]}”" for name in sorted(names)[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more} more kernels" if more > 0 else shown
