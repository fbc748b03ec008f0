"""The profiles of each cell, compared: tables, quantities, kernels, ledger and roofline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msgspec.structs import replace

from envcompare.analysis.model.profiling import ArmProfiles, CellProfiles, KernelDiff, Ledger
from envcompare.analysis.profiles.activities import activity_table, operator_table, pass_state
from envcompare.analysis.profiles.kernelbuilds import GPU, Side, build_differences, builds
from envcompare.analysis.profiles.kerneldiff import kernel_diff
from envcompare.analysis.profiles.ledger import Modes, timing_ledger, trace_ledger
from envcompare.analysis.profiles.profilechoice import (
    choose,
    choose_pair,
    factor_cautions,
    gpu_cautions,
    has_kernels,
    is_of_program,
    is_trace,
    launch_cautions,
    partial_records,
    profile_of,
    program_cautions,
    source_of,
    step_cautions,
    unnamed_gpu_cautions,
    usable,
)
from envcompare.analysis.profiles.quantities import (
    Rows,
    model_flops_cautions,
    quantity_rows,
    several_cautions,
)
from envcompare.analysis.profiles.rooflines import roofline
from envcompare.analysis.timing.cells import CellData, by_cell
from envcompare.analysis.timing.descriptive import arm_quantities
from envcompare.analysis.timing.judge import Key, Primary
from envcompare.gpu.peaks import gpu_capabilities, gpu_models
from envcompare.run_folder.profiles import ProfileRecord, Quantity, Roofs
from envcompare.run_folder.records import (
    Block,
    CellRecord,
    Event,
    FactDifference,
    FingerprintRecord,
    FingerprintValue,
    GpuReading,
    Measured,
    RunRecord,
    Sample,
)
from envcompare.stats.metrics import wall_ns

Facts = Mapping[str, FingerprintValue]


@dataclass(frozen=True, kw_only=True)  # no slots: what each cell asks for is gathered once
class Sources:
    """A run folder, as far as it explains times."""

    run: RunRecord
    samples: tuple[Sample, ...]
    events: tuple[Event, ...]
    fingerprints: tuple[FingerprintRecord, ...]
    records: tuple[ProfileRecord, ...]
    roofs: tuple[Roofs, ...]

    @cached_property
    def readings(self) -> dict[str, list[GpuReading]]:
        """Return the readings of GPUs by cell."""
        return by_cell(one for one in self.samples if isinstance(one, GpuReading))

    @cached_property
    def profiles(self) -> dict[str, list[ProfileRecord]]:
        """Return the records of profiles by cell."""
        return by_cell(self.records)

    @cached_property
    def facts(self) -> dict[str, dict[str, Facts]]:
        """Return the facts of each arm by cell."""
        prints = by_cell(self.fingerprints)
        return {cell: {one.arm: one.facts for one in found} for cell, found in prints.items()}

    @cached_property
    def codes(self) -> dict[str, dict[str, str]]:
        """Return the hash of the program that was timed in each arm, as its worker said it."""
        codes: dict[str, dict[str, str]] = {}
        for event in self.events:
            if isinstance(code := event.values.get("code"), str):
                codes.setdefault(event.cell, {})[event.arm] = code
        return codes


def explain(
    sources: Sources,
    data: Iterable[CellData],
    *,
    differences: Mapping[str, tuple[FactDifference, ...]],
    settled: Mapping[Key, Primary],
) -> tuple[CellProfiles, ...]:
    """Return what explains the times of each cell; a cell with nothing of that kind is left out."""
    strays = tuple(dict.fromkeys(_stray(sources)))
    explained = []
    for cell in data:
        profiles = _cell_profiles(_cell(sources, cell, differences.get(cell.cell.id, ()), settled))
        if profiles is not None:
            explained.append(replace(profiles, cautions=(*profiles.cautions, *strays)))
    return tuple(explained)


def _stray(sources: Sources) -> Iterable[str]:
    """Say which records are of an environment, a cell or a host that the run does not know."""
    arms = {arm.id for arm in sources.run.arms}
    hosts = {cell.id: cell.host for cell in sources.run.cells}
    for record in sources.records:
        if record.arm in arms and hosts.get(record.cell) == record.host:
            continue
        if record.arm in arms and record.cell in hosts:
            yield (
                f"{record.name} of {record.arm}: by run.json its cell is not on the host "
                f"{record.host}."
            )
        else:
            lack = f"environment {record.arm}" if record.arm not in arms else f"cell {record.cell}"
            yield f"{record.name} is left out: run.json has no {lack}."


def _cell(
    sources: Sources,
    data: CellData,
    differences: tuple[FactDifference, ...],
    settled: Mapping[Key, Primary],
) -> _ProfiledCell:
    cell, arms = data.cell, sources.run.arms
    facts = sources.facts.get(cell.id, {})
    return _ProfiledCell(
        cell=cell,
        reference=next(arm.id for arm in arms if arm.is_reference),
        arms=tuple(arm.id for arm in arms if not (arm.is_reference or arm.is_control)),
        records=tuple(sources.profiles.get(cell.id, ())),
        roofs=tuple(one for one in sources.roofs if one.host == cell.host),
        blocks={arm.id: data.arm_blocks(arm.id) for arm in arms},
        codes=sources.codes.get(cell.id, {}),
        facts=facts,
        differences=differences,
        energy=_energy(sources, data, facts),
        log_ratios={
            arm: one.interval.mean for (name, arm), one in settled.items() if name == cell.id
        },
        is_net=data.metric[0] == "net",
        timed=frozenset(arm.id for arm in arms if arm.is_timed),
    )


def _energy(
    sources: Sources, data: CellData, facts: Mapping[str, Facts]
) -> dict[str, tuple[Quantity, ...]]:
    """Return what each arm took of its GPU; nothing where no arm ran on one."""
    readings = sources.readings.get(data.cell.id, [])
    blocks = {
        arm.id: [one for one in data.arm_blocks(arm.id) if isinstance(one, Block)]
        for arm in sources.run.arms
        if not arm.is_control
    }
    return {
        arm: arm_quantities(
            timed,
            readings,
            batch=data.batch,
            uuid=str(facts.get(arm, {}).get("gpu.uuid") or ""),
        )
        for arm, timed in blocks.items()
        if any(block.gpu_ns for block in timed)
    }


Records = tuple[ProfileRecord, ...]
_NET = "The verdict leaves out the wait for a CPU that others held."
_UNKNOWN_ORIGIN = (
    "Imported profiles say so, of which it is not known that they are of the program that was "
    "timed: the verdict does not rest on them."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProfiledCell:
    """All that a run folder holds of one cell to explain its times."""

    cell: CellRecord
    reference: str
    arms: tuple[str, ...]  # those that are compared with the reference
    records: Records = ()
    roofs: tuple[Roofs, ...] = ()
    blocks: Mapping[str, Sequence[Measured]] = field(default_factory=dict)  # measured, by arm
    codes: Mapping[str, str] = field(default_factory=dict)  # hash of the timed program, by arm
    facts: Mapping[str, Mapping[str, FingerprintValue]] = field(default_factory=dict)
    differences: tuple[FactDifference, ...] = ()  # of the fingerprints
    energy: Mapping[str, tuple[Quantity, ...]] = field(default_factory=dict)  # of the timing pass
    log_ratios: Mapping[str, float] = field(default_factory=dict)  # that the verdicts rest on
    is_net: bool = False  # the verdicts leave out the wait for a CPU that others held
    timed: frozenset[str] = frozenset()  # arms whose verdicts no imported profile may touch

    def of(self, arm: str) -> Records:
        """Return the profiles of an arm."""
        return tuple(one for one in self.records if one.arm == arm)


def _cell_profiles(cell: _ProfiledCell) -> CellProfiles | None:
    """Return what the profiles of a cell say; None where nothing was profiled or can be divided."""
    profiled = {arm: records for arm in (cell.reference, *cell.arms) if (records := cell.of(arm))}
    partial = partial_records(profiled)
    rows = quantity_rows(profiled, cell.energy, reference=cell.reference, partial=partial)
    ledgers, reasons = _ledgers(cell)
    diffs = tuple(_kernel_diffs(cell))
    drawn = roofline(profiled, cell.roofs, host=cell.cell.host, steps_ns=_steps_ns(cell))
    if not rows and not ledgers:
        return None
    return CellProfiles(
        cell=cell.cell.id,
        host=cell.cell.host,
        reference=cell.reference,
        devices=_devices(cell),
        arms=tuple(_arm(arm, profiled.get(arm, ()), found) for arm, found in rows.items()),
        kernel_diffs=diffs,
        ledgers=ledgers,
        roofline=None if isinstance(drawn, str) else drawn,
        roofline_reason=drawn if isinstance(drawn, str) else "",
        betrayed=tuple(_build_differences(cell)),
        cautions=tuple(
            dict.fromkeys(
                (
                    *program_cautions(profiled, cell.codes),
                    *model_flops_cautions(rows, reference=cell.reference),
                    *factor_cautions(diffs, reference=cell.reference),
                    *gpu_cautions(profiled, reference=cell.reference),
                    *unnamed_gpu_cautions(
                        {arm: found for arm, found in profiled.items() if not _told_gpu(cell, arm)},
                        among=len(profiled),
                    ),
                    *(
                        text
                        for records in profiled.values()
                        for text in several_cautions(records, partial)
                    ),
                    *(text for records in profiled.values() for text in step_cautions(records)),
                    *(text for records in profiled.values() for text in launch_cautions(records)),
                    *reasons,
                )
            )
        ),
    )


def _arm(arm: str, records: Records, rows: Rows) -> ArmProfiles:
    trace = choose(records, is_trace) or choose(
        records, lambda record: bool(profile_of(record).api_calls)
    )
    operators = choose(records, lambda record: bool(profile_of(record).operators))
    profiles = [profile_of(one) for one in usable(records)]
    return ArmProfiles(
        arm=arm,
        passes=tuple(pass_state(one) for one in records),
        gpus=tuple(sorted(gpu_models(profiles))),
        builds=builds(kernel.name for one in profiles for kernel in one.kernels),
        quantities=rows,
        activities=activity_table(trace) if trace else None,
        operators=operator_table(operators) if operators else None,
    )


def _devices(cell: _ProfiledCell) -> tuple[str, ...]:
    devices = (one for record in usable(cell.records) for one in profile_of(record).devices)
    return tuple(dict.fromkeys(one.name for one in devices if one.name))


def _kernel_diffs(cell: _ProfiledCell) -> Iterable[KernelDiff]:
    for arm in cell.arms:
        both = cell.of(cell.reference), cell.of(arm)
        pair = choose_pair(*both, _has_timed_kernels) or choose_pair(*both, has_kernels)
        if pair is not None:
            yield kernel_diff(
                profile_of(pair[0]),
                profile_of(pair[1]),
                names=(cell.reference, arm),
                source=_sources(*pair),
            )


def _has_timed_kernels(record: ProfileRecord) -> bool:
    return has_kernels(record) and is_of_program(record)


def _sources(before: ProfileRecord, after: ProfileRecord) -> str:
    return " against ".join(dict.fromkeys((source_of(before), source_of(after))))


def _ledgers(cell: _ProfiledCell) -> tuple[tuple[Ledger, ...], tuple[str, ...]]:
    """Return the ledgers of the arms, and why a profiled arm has none."""
    ledgers, reasons = [], []
    for arm in cell.arms:
        made = _ledger(cell, arm)
        if isinstance(made, Ledger):
            ledgers.append(made)
        elif made:
            reasons.append(f"No ledger of {arm}: {made}.")
    return tuple(ledgers), tuple(reasons)


def _ledger(cell: _ProfiledCell, arm: str) -> Ledger | str:
    """Return a ledger from traces, else from the blocks; a reason only where a trace was there."""
    pair = choose_pair(cell.of(cell.reference), cell.of(arm), is_of_program)
    if pair is None:
        timed = timing_ledger(
            cell.blocks.get(cell.reference, ()),
            cell.blocks.get(arm, ()),
            arm=arm,
            modes=_modes(cell, arm),
        )
        if isinstance(timed, str):
            return ""
        is_left_out = cell.is_net and any(one.part == "wait" for one in timed.parts)
        return replace(timed, notes=(*timed.notes, _NET)) if is_left_out else timed
    made = trace_ledger(profile_of(pair[0]), profile_of(pair[1]), arm=arm, source=_sources(*pair))
    if not isinstance(made, str) and arm in cell.timed and any(map(_is_imported, pair)):
        return replace(made, notes=(*made.notes, _UNKNOWN_ORIGIN))
    change = _timed_change(cell, arm)
    if isinstance(made, str) or change is None or not made.is_per_step:
        return made
    return replace(made, timing_change_ns=change, unseen_ns=change - made.change_ns)


def _timed_change(cell: _ProfiledCell, arm: str) -> int | None:
    """Return the change of a step that the verdict rests on, in ns; None where none was timed."""
    step = _steps_ns(cell).get(cell.reference)
    if arm not in cell.log_ratios or step is None:
        return None
    return round(step * math.expm1(cell.log_ratios[arm]))


def _steps_ns(cell: _ProfiledCell) -> dict[str, float]:
    """Return the mean step of each arm on the clock."""
    blocks = {
        arm: [one for one in found if isinstance(one, Block)] for arm, found in cell.blocks.items()
    }
    return {
        arm: sum(map(wall_ns, found)) / sum(one.k for one in found)
        for arm, found in blocks.items()
        if found
    }


def _modes(cell: _ProfiledCell, arm: str) -> tuple[Modes, Modes] | None:
    """Return CPU time outside and inside the kernel as the host pass of both arms counted it."""
    before, after = _mode(cell.of(cell.reference)), _mode(cell.of(arm))
    return (before, after) if before and after else None


def _mode(records: Records) -> Modes | None:
    host = choose(records, lambda record: record.kind == "host")
    quantities = profile_of(host).quantities if host else ()
    values = {one.name: one.value for one in quantities if one.status == "ok"}
    user, system = values.get("user_ns"), values.get("sys_ns")
    return Modes(user, system) if user is not None and system is not None else None


def _build_differences(cell: _ProfiledCell) -> Iterable[FactDifference]:
    """Yield what names show; of an arm that was timed, imported names accuse nothing for sure."""
    recorded = tuple(one for one in cell.records if not _is_imported(one))
    for arm in cell.arms:
        differences = _differences_of(cell, arm, cell.records)
        if arm not in cell.timed:
            yield from differences
            continue
        sure = _differences_of(cell, arm, recorded)
        yield from sure
        known = {one.key for one in sure}
        yield from (_unsure(one) for one in differences if one.key not in known)


def _differences_of(cell: _ProfiledCell, arm: str, records: Records) -> tuple[FactDifference, ...]:
    told = {
        one.key for one in cell.differences if one.arm == arm and one.fact_class == "confounder"
    }
    sides = [_side(cell, name, records) for name in (cell.reference, arm)]
    return build_differences(*sides, host=cell.cell.host, arm_id=arm, told=told)


def _unsure(difference: FactDifference) -> FactDifference:
    texts = (
        f"{text} {_UNKNOWN_ORIGIN}" if text else ""
        for text in (difference.sentence, difference.evidence)
    )
    sentence, evidence = texts
    return replace(
        difference, fact_class="possible-influence", sentence=sentence, evidence=evidence
    )


def _is_imported(record: ProfileRecord) -> bool:
    return record.kind == "imported"


def _side(cell: _ProfiledCell, arm: str, records: Records) -> Side:
    profiles = [profile_of(one) for one in usable(one for one in records if one.arm == arm)]
    return Side(
        names=frozenset(kernel.name for one in profiles for kernel in one.kernels),
        facts=cell.facts.get(arm, {}),
        gpus=gpu_models(profiles) or _told_gpu(cell, arm),
        capabilities=gpu_capabilities(profiles),
        operators=frozenset(operator.name for one in profiles for operator in one.operators),
    )


def _told_gpu(cell: _ProfiledCell, arm: str) -> frozenset[str]:
    """Return the GPU that the fingerprint of an arm names."""
    name = cell.facts.get(arm, {}).get(GPU)
    return frozenset({str(name)} if name else ())
