"""The profiles of each cell, compared: tables, quantities, kernels, ledger and roofline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from envcompare.analysis.model.profiling import CellProfiles, GpuPart, GpuParts, KernelDiff, Ledger
from envcompare.analysis.profiles.armprofiles import (
    Records,
    arm_profiles,
    choose,
    choose_pair,
    has_kernels,
    is_of_program,
    kernel_names,
    over_ranks,
    profile_of,
    source_of,
    usable,
)
from envcompare.analysis.profiles.kerneldiff import kernel_diff
from envcompare.analysis.profiles.ledger import (
    Modes,
    partial_records,
    record_cautions,
    timing_ledger,
    trace_ledger,
    work_cautions,
)
from envcompare.analysis.profiles.quantities import quantity_rows, roofline
from envcompare.analysis.timing import CellData
from envcompare.analysis.timing.judge import PLAIN_LEVEL
from envcompare.analysis.timing.runfiles import RunFiles
from envcompare.analysis.timing.surroundings import arm_quantities
from envcompare.gpu import gpu_capabilities, gpu_models
from envcompare.gpu.kernels import GPU, Side, build_differences
from envcompare.run_folder.profiles import HELPERS_WINDOW, ProfileRecord, Quantity, helper_of
from envcompare.run_folder.records import Block, FactDifference, FingerprintValue
from envcompare.run_folder.results import arms_within
from envcompare.stats.intervals import student_factor
from envcompare.stats.metrics import wall_ns
from envcompare.stats.typical import STRETCHES, stretched
from envcompare.stats.verdicts import EQUAL_LEVEL

_LEAST_RATE = 1 / 1000  # of a CPU
_NET = "The verdict excludes waiting for a CPU that others held."
_UNKNOWN_ORIGIN = (
    "From imported profiles, perhaps not of the timed program: no verdict rests on them."
)


def explain(
    read: RunFiles,
    data: Iterable[CellData],
    *,
    differences: Mapping[str, tuple[FactDifference, ...]],
) -> tuple[CellProfiles, ...]:
    """Return the profiles of each cell that has any."""
    strays = tuple(dict.fromkeys(_stray(read)))
    cells = (
        _ProfiledCell(read=read, data=cell, differences=differences.get(cell.cell.id, ()))
        for cell in data
    )
    explained = (profiles for cell in cells if (profiles := _cell_profiles(cell)) is not None)
    return tuple(replace(one, cautions=(*one.cautions, *strays)) for one in explained)


def _stray(read: RunFiles) -> Iterable[str]:
    """Yield which records belong to an environment, cell or host that is not in the run."""
    arms = {arm.id for arm in read.run.arms}
    hosts = {cell.id: cell.host for cell in read.run.cells}
    for record in read.profiles:
        if record.arm in arms and hosts.get(record.cell) == record.host:
            continue
        if record.arm in arms and record.cell in hosts:
            yield (
                f"{record.name} of {record.arm}: in run.json its cell is not on the host "
                f"{record.host}."
            )
        else:
            lack = f"environment {record.arm}" if record.arm not in arms else f"cell {record.cell}"
            yield f"{record.name} is left out: run.json has no {lack}."


@dataclass(frozen=True, kw_only=True)  # no slots, for the cached properties
class _ProfiledCell:
    """The data of one cell that explain its times."""

    read: RunFiles
    data: CellData
    differences: tuple[FactDifference, ...]  # of the fingerprints

    @property
    def id(self) -> str:
        """Return the cell ID."""
        return self.data.cell.id

    @cached_property
    def reference(self) -> str:
        """Return the reference arm."""
        return self.data.reference.id

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """Return the arms that are compared with the reference."""
        arms = arms_within(self.read.run.arms, self.data.cell.within)
        return tuple(arm.id for arm in arms if not (arm.is_reference or arm.is_control))

    @cached_property
    def timed(self) -> frozenset[str]:
        """Return the timed arms, whose verdicts imported profiles must not affect."""
        return frozenset(arm.id for arm in self.read.run.arms if arm.is_timed)

    @cached_property
    def records(self) -> Records:
        """Return the profiles of all arms, with the ranks of one program merged."""
        return over_ranks(tuple(self.read.cell_profiles.get(self.id, ())))

    def of(self, arm: str) -> Records:
        """Return the profiles of an arm."""
        return tuple(record for record in self.records if record.arm == arm)

    def facts(self, arm: str) -> Mapping[str, FingerprintValue]:
        """Return the fingerprint facts of an arm."""
        return self.read.facts.get(self.id, {}).get(arm, {})

    def blocks(self, arm: str) -> list[Block]:
        """Return the measured blocks of an arm; a plain command has none."""
        return [block for block in self.data.arm_blocks(arm) if isinstance(block, Block)]


def _energy(cell: _ProfiledCell) -> dict[str, tuple[Quantity, ...]]:
    """Return the GPU energy and clock quantities of each arm that used a GPU."""
    arms = (arm.id for arm in cell.read.run.arms if not arm.is_control)
    blocks = {arm: cell.blocks(arm) for arm in arms}
    return {
        arm: arm_quantities(
            timed,
            cell.read.readings.get(cell.id, []),
            energy_blocks=[b for b in cell.read.energy_blocks.get(cell.id, []) if b.arm == arm],
            batch=cell.data.batch,
            uuid=str(cell.facts(arm).get("gpu.uuid") or ""),
            model=str(cell.facts(arm).get("gpu.name") or ""),
        )
        for arm, timed in blocks.items()
        if any(block.gpu_ns for block in timed)
    }


def _cell_profiles(cell: _ProfiledCell) -> CellProfiles | None:
    """Return the profiles of a cell; None if it has neither quantities nor a ledger."""
    profiled = {arm: records for arm in (cell.reference, *cell.arms) if (records := cell.of(arm))}
    partial = partial_records(profiled)
    rows = quantity_rows(profiled, _energy(cell), reference=cell.reference, partial=partial)
    made = {arm: _ledger(cell, arm) for arm in cell.arms}
    ledgers = tuple(one for one in made.values() if isinstance(one, Ledger))
    if not rows and not ledgers:
        return None
    diffs = tuple(_kernel_diffs(cell))
    host = cell.data.cell.host
    roofs = [roof for roof in cell.read.roofs if roof.host == host]
    drawn = roofline(profiled, roofs, host=host, steps_ns=_steps_ns(cell))
    codes = cell.read.codes.get(cell.id, {})
    identified = [arm for arm in profiled if _fingerprint_gpu(cell, arm)]
    cautions = (
        *work_cautions(profiled, codes, rows, diffs, reference=cell.reference),
        *record_cautions(
            profiled, reference=cell.reference, identified_arms=identified, partial=partial
        ),
        *(f"No ledger of {arm}: {why}." for arm, why in made.items() if isinstance(why, str)),
    )
    return CellProfiles(
        cell=cell.id,
        host=host,
        reference=cell.reference,
        devices=tuple(
            dict.fromkeys(
                device.name
                for record in usable(cell.records)
                for device in profile_of(record).devices
                if device.name
            )
        ),
        arms=tuple(arm_profiles(arm, profiled.get(arm, ()), found) for arm, found in rows.items()),
        kernel_diffs=diffs,
        ledgers=ledgers,
        gpu_parts=tuple(parts for arm in cell.arms if (parts := _gpu_parts(cell, arm))),
        roofline=None if isinstance(drawn, str) else drawn,
        roofline_reason=drawn if isinstance(drawn, str) else "",
        betrayed=tuple(_build_differences(cell)),
        cautions=tuple(dict.fromkeys(cautions)),
    )


def _kernel_diffs(cell: _ProfiledCell) -> Iterable[KernelDiff]:
    for arm in cell.arms:
        both = cell.of(cell.reference), cell.of(arm)
        pair = choose_pair(
            *both, lambda one: has_kernels(one) and is_of_program(one)
        ) or choose_pair(*both, has_kernels)
        if pair is not None:
            yield kernel_diff(
                profile_of(pair[0]),
                profile_of(pair[1]),
                names=(cell.reference, arm),
                source=_sources(*pair),
            )


def _sources(before: ProfileRecord, after: ProfileRecord) -> str:
    return " against ".join(dict.fromkeys((source_of(before), source_of(after))))


def _ledger(cell: _ProfiledCell, arm: str) -> Ledger | str | None:
    """Return a ledger from traces, else from blocks; the reason only for unusable traces."""
    pair = choose_pair(cell.of(cell.reference), cell.of(arm), is_of_program)
    if pair is None:
        modes = [_mode(cell.of(one)) for one in (cell.reference, arm)]
        timed = timing_ledger(
            cell.data.arm_blocks(cell.reference),
            cell.data.arm_blocks(arm),
            arm=arm,
            modes=(modes[0], modes[1]) if modes[0] and modes[1] else None,
        )
        if isinstance(timed, str):
            return None
        timed = replace(timed, helpers=_helpers(cell, arm))
        is_net = cell.data.metric[0] == "net"
        is_left_out = is_net and any(part.part == "wait" for part in timed.parts)
        return replace(timed, notes=(*timed.notes, _NET)) if is_left_out else timed
    made = trace_ledger(profile_of(pair[0]), profile_of(pair[1]), arm=arm, source=_sources(*pair))
    if isinstance(made, str):
        return made
    if arm in cell.timed and any(map(_is_imported, pair)):
        return replace(made, notes=(*made.notes, _UNKNOWN_ORIGIN))
    # the change of a mean step as in the headline, if one was timed
    data, step = cell.data, _steps_ns(cell).get(cell.reference)
    mean = data.mean_estimate(arm, data.metric[0], level=EQUAL_LEVEL)
    if mean is None or step is None or not made.is_per_step:
        return made
    change = round(step * math.expm1(mean.log_ratio))
    return replace(made, timing_change_ns=change, unseen_ns=change - made.change_ns)


def _gpu_parts(cell: _ProfiledCell, arm: str) -> GpuParts | None:
    """Return the time of kernels and the rest of a timed step; None without traces of the run.

    With kernel times b of traced steps and means s of timed ones the rest is s − b; an end x of
    the interval of the step's ratio makes the rest (s x − b_arm) ÷ (s − b) times as long, with s
    and b of the reference. The error of b, below 1 % on an H200, is left out there.
    """
    blocks = cell.blocks(arm)
    if not any(block.gpu_ns for block in blocks):
        return None
    both = cell.of(cell.reference), cell.of(arm)
    pair = choose_pair(*both, _has_busy_steps) or choose_pair(*both, _has_busy_time)
    step_ns = _steps_ns(cell).get(cell.reference)
    step = cell.data.mean_estimate(arm, cell.data.metric[0], level=PLAIN_LEVEL)
    if pair is None or step_ns is None or step is None:
        return None
    before, after = map(profile_of, pair)
    busy = [(one.busy_ns or 0.0) / (one.steps or 1) for one in (before, after)]
    log_ratio = math.log(busy[1] / busy[0])
    half = _busy_half_width(before.step_busy_ns, after.step_busy_ns)
    return GpuParts(
        arm=arm,
        steps=(before.steps or 1, after.steps or 1),
        kernels=GpuPart(
            reference_ns=busy[0],
            arm_ns=busy[1],
            log_ratio=log_ratio,
            low=None if half is None else log_ratio - half,
            high=None if half is None else log_ratio + half,
        ),
        host=_host_part(step_ns, busy, (step.log_ratio, step.low, step.high)),
    )


def _has_busy_steps(record: ProfileRecord) -> bool:
    return _has_busy_time(record) and len(profile_of(record).step_busy_ns) >= STRETCHES


def _has_busy_time(record: ProfileRecord) -> bool:
    is_own = is_of_program(record) and not _is_imported(record)
    return is_own and bool(profile_of(record).busy_ns and profile_of(record).steps)


def _busy_half_width(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Return the half-width of the log ratio of mean busy times; None with too few steps.

    Student's t interval, from a jackknife over stretches of each arm's steps.
    """
    if min(len(before), len(after)) < STRETCHES:
        return None
    means = [
        stretched(np.asarray([one]), lambda steps: float(np.log(steps.mean())))
        for one in (before, after)
    ]
    return student_factor(means[0].df, PLAIN_LEVEL) * math.hypot(
        *(contrast.error for contrast in means)
    )


def _host_part(
    step_ns: float, busy: Sequence[float], log_ratios: tuple[float, float | None, float | None]
) -> GpuPart | None:
    """Return the host's part of a step; None if the ratio leaves no time for it."""
    rest = step_ns - busy[0]
    ends = [None if one is None else step_ns * math.exp(one) - busy[1] for one in log_ratios]
    if rest <= 0 or any(one is not None and one <= 0 for one in ends):
        return None
    arm_ns, *_ = ends
    log_ratio, low, high = (None if one is None else math.log(one / rest) for one in ends)
    if arm_ns is None or log_ratio is None:
        return None
    return GpuPart(reference_ns=rest, arm_ns=arm_ns, log_ratio=log_ratio, low=low, high=high)


def _steps_ns(cell: _ProfiledCell) -> dict[str, float]:
    """Return the mean wall time of a step of each arm, in ns."""
    blocks = {arm.id: cell.blocks(arm.id) for arm in cell.read.run.arms}
    return {
        arm: sum(map(wall_ns, found)) / sum(block.k for block in found)
        for arm, found in blocks.items()
        if found
    }


def _mode(records: Records) -> Modes | None:
    """Return user and system time of an arm in the host pass; None if one is lacking."""
    values = _counted(records)
    user, system = values.get("user_ns"), values.get("sys_ns")
    return Modes(user, system) if user is not None and system is not None else None


def _counted(records: Records) -> dict[str, float | None]:
    """Return the values of the host pass of an arm, by quantity name."""
    host = choose(records, lambda record: record.kind == "host")
    quantities = profile_of(host).quantities if host else ()
    return {quantity.name: quantity.value for quantity in quantities if quantity.status == "ok"}


def _helpers(cell: _ProfiledCell, arm: str) -> dict[str, int]:
    """Return the extra CPU time per step in ns of each helper process, compared to the reference.

    Rates are compared, so that a longer step alone does not count. Differences below those of the
    control arm, or below a thousandth of a CPU, are ignored.
    """
    ours, theirs = _helper_rates(cell, arm), _helper_rates(cell, cell.reference)
    again = [_helper_rates(cell, record.id) for record in cell.read.run.arms if record.is_control]
    step_ns = _steps_ns(cell).get(arm, 0.0)
    more = {}
    for name in ours.keys() & theirs.keys():
        noise = max((abs(each.get(name, 0.0) - theirs[name]) for each in again if each), default=0)
        rate = ours[name] - theirs[name]
        if rate > max(noise, _LEAST_RATE):
            more[name] = round(rate * step_ns)
    return dict(sorted(more.items(), key=lambda each: -each[1]))


def _helper_rates(cell: _ProfiledCell, arm: str) -> dict[str, float]:
    """Return the CPU seconds per second of each helper process."""
    records = cell.of(arm)
    host = choose(records, lambda record: record.kind == "host")
    counted = _counted(records)
    steps_ns = ((host.steps if host else None) or 1) * _steps_ns(cell).get(arm, 0.0)
    window_ns = counted.get(HELPERS_WINDOW) or steps_ns
    values = ((helper_of(name), value) for name, value in counted.items())
    return {name: ns / window_ns for name, ns in values if name and ns is not None and window_ns}


def _build_differences(cell: _ProfiledCell) -> Iterable[FactDifference]:
    """Yield the differences in names; imported names give only hints for a timed arm."""
    recorded = tuple(record for record in cell.records if not _is_imported(record))
    for arm in cell.arms:
        differences = _differences_of(cell, arm, cell.records)
        if arm not in cell.timed:
            yield from differences
            continue
        sure = _differences_of(cell, arm, recorded)
        yield from sure
        known = {difference.key for difference in sure}
        for one in differences:
            if one.key not in known:
                yield replace(
                    one,
                    fact_class="possible-influence",
                    sentence=f"{one.sentence} {_UNKNOWN_ORIGIN}" if one.sentence else "",
                    evidence=f"{one.evidence} {_UNKNOWN_ORIGIN}" if one.evidence else "",
                )


def _differences_of(cell: _ProfiledCell, arm: str, records: Records) -> tuple[FactDifference, ...]:
    known = {
        difference.key
        for difference in cell.differences
        if difference.arm == arm and difference.fact_class == "confounder"
    }
    sides = [_side(cell, name, records) for name in (cell.reference, arm)]
    return build_differences(*sides, host=cell.data.cell.host, arm_id=arm, known_differences=known)


def _is_imported(record: ProfileRecord) -> bool:
    return record.kind == "imported"


def _side(cell: _ProfiledCell, arm: str, records: Records) -> Side:
    profiles = [
        profile_of(one) for one in usable(record for record in records if record.arm == arm)
    ]
    return Side(
        names=kernel_names(profiles),
        facts=cell.facts(arm),
        gpus=gpu_models(profiles) or _fingerprint_gpu(cell, arm),
        capabilities=gpu_capabilities(profiles),
        operators=frozenset(
            operator.name for profile in profiles for operator in profile.operators
        ),
    )


def _fingerprint_gpu(cell: _ProfiledCell, arm: str) -> frozenset[str]:
    name = cell.facts(arm).get(GPU)
    return frozenset({str(name)} if name else ())
