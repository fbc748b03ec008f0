"""Turn a run folder into comparison.json: estimates, verdicts, differences, failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

import msgspec

from envcompare.analysis.model.comparison import (
    ArmSummary,
    CellSummary,
    Comparison,
    FailureRow,
    LadderStep,
    RunComparison,
)
from envcompare.analysis.model.machines import (
    GroupDifference,
    GroupEstimate,
    HostSummary,
    TorchBuild,
)
from envcompare.analysis.model.profiling import CellPhases, CellProfiles
from envcompare.analysis.model.scaling import CellTraining
from envcompare.analysis.profiles.profiled import explain
from envcompare.analysis.timing.cells import CellData, summarise_cell
from envcompare.analysis.timing.decompose import decompose, ladder, step_evidence
from envcompare.analysis.timing.descriptive import (
    cell_phases,
    memory_summaries,
    picked_values,
    result_gaps,
    startup_summaries,
)
from envcompare.analysis.timing.hostgroups import group_estimates, hosts_estimates
from envcompare.analysis.timing.judge import Key, Primary, judge, primaries
from envcompare.analysis.timing.runfiles import RunFiles, read_files
from envcompare.analysis.timing.scaling import batch_sweeps, cell_training, scaling
from envcompare.analysis.timing.surroundings import (
    Differences,
    Surroundings,
    candidates,
    clock_differences,
    differences_by_cell,
    group_differences,
    host_differences,
    of_cells,
)
from envcompare.fingerprint.comparing import each_once, noted_changes
from envcompare.run_folder.history import duration_s, measured_sessions
from envcompare.run_folder.records import (
    ArmRecord,
    CellState,
    Event,
    FingerprintRecord,
    FingerprintValue,
)
from envcompare.run_folder.results import RunFolder, count_comparisons
from envcompare.stats.verdicts import EQUAL_LEVEL
from envcompare.text import masked_toml


def compare_run(folder: RunFolder) -> RunComparison:
    """Analyse a run folder, complete or not; raises RunFolderError if it cannot be read."""
    return compare_files(read_files(folder))


def compare_files(read: RunFiles) -> RunComparison:
    """Analyse the records of a run folder."""
    run, design, judged = read.timed, read.timed.design, _judged(read)
    data, cells, settled = judged.data, judged.cells, judged.settled
    sessions = measured_sessions(read.events) if design.sessions > 1 else {1: 0.0}
    return RunComparison(
        run_id=run.run_id,
        created=run.created,
        tool_version=run.tool_version,
        tool_commit=run.tool_commit,
        title=run.title,
        seed=run.seed,
        command_line=run.command_line,
        imports=read.imports,
        configuration=masked_toml(run.configuration),
        preset=design.preset,
        margin=design.margin,
        target=design.target,
        budget_s=design.budget_s,
        min_restarts=max((one.design.min_restarts for one in data), default=design.min_restarts),
        screen=design.screen,
        threads=design.threads,
        stabilise=design.stabilise,
        until=design.until,
        planned_sessions=design.sessions,
        sessions=len(sessions),
        days=len({datetime.fromtimestamp(t, timezone.utc).date() for t in sessions.values()}),
        is_complete=read.is_complete,
        reference_arm=next(arm.id for arm in run.arms if arm.is_reference),
        references=_references(data, run.arms),
        planned_comparisons=judged.planned,
        comparisons=judged.comparisons,
        cells=cells,
        arms=_arms(read, judged.comparisons, cells),
        differences=judged.shared,
        hosts=_hosts(read),
        host_differences=host_differences(read),
        over_hosts=hosts_estimates(
            judged.comparisons, settled, margin=design.margin, of_hosts=run.groups
        ),
        groups=run.groups,
        group_differences=judged.apart,
        group_estimates=_group_estimates(read, judged),
        cell_differences=of_cells(judged.differing, shared=judged.shared),
        decompositions=tuple(split for cell in data for split in decompose(cell)),
        scaling=scaling(data, cells, judged.profiles),
        ladder=_ladder(judged),
        startup=startup_summaries(read.samples, run, read.standing),
        memory=memory_summaries(read.samples),
        picked=tuple(picked for cell in data for picked in picked_values(cell)),
        result_gaps=tuple(gap for cell in data for gap in result_gaps(cell)),
        profiles=judged.profiles,
        phases=_phases(read, data),
        batch_sweeps=batch_sweeps(data, read.events),
        training=_training(read, data),
        failures=_failures(read.standing),
        identity_changes=noted_changes(read.events),
        torn_lines=max(read.torn, read.lost),
        duration_s=duration_s(read.events) if read.events else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """The cells of a run with their differences, judged together."""

    data: tuple[CellData, ...]
    cells: tuple[CellSummary, ...]
    planned: int  # number of comparisons
    settled: Mapping[Key, Primary]
    around: Surroundings
    profiles: tuple[CellProfiles, ...]
    differing: dict[str, Differences]
    shared: Differences
    apart: tuple[GroupDifference, ...]  # between groups of hosts
    comparisons: tuple[Comparison, ...]


def _judged(read: RunFiles) -> _Judged:
    run, data = read.timed, read.cell_data()
    cells = tuple(summarise_cell(cell) for cell in data)
    planned = count_comparisons(run.arms, len(run.cells))
    settled = primaries(data, run.design, m=planned, steps=step_evidence(data))
    around = Surroundings.of(read)
    profiles, differing = _explained(read, data, around)
    return _Judged(
        data=data,
        cells=cells,
        planned=planned,
        settled=settled,
        around=around,
        profiles=profiles,
        differing=differing,
        shared=each_once(differing),
        apart=group_differences(around),
        comparisons=_comparisons(read, zip(data, cells, strict=True), differing, settled),
    )


def _group_estimates(read: RunFiles, judged: _Judged) -> tuple[GroupEstimate, ...]:
    return group_estimates(
        read,
        judged.data,
        judged.settled,
        comparisons=judged.comparisons,
        cells=judged.cells,
        differences=judged.apart,
    )


def _ladder(judged: _Judged) -> tuple[LadderStep, ...]:
    cells = zip(judged.data, judged.cells, strict=True)
    return ladder(judged.around, cells, judged.settled, comparisons=judged.comparisons)


def _phases(read: RunFiles, data: Iterable[CellData]) -> tuple[CellPhases, ...]:
    known = (cell_phases(cell, read.marked.get(cell.cell.id, ())) for cell in data)
    return tuple(filter(None, known))


def _training(read: RunFiles, data: Iterable[CellData]) -> tuple[CellTraining, ...]:
    known = (cell_training(cell, read.epochs.get(cell.cell.id, ())) for cell in data)
    return tuple(filter(None, known))


def _explained(
    read: RunFiles,
    data: tuple[CellData, ...],
    around: Surroundings,
) -> tuple[tuple[CellProfiles, ...], dict[str, Differences]]:
    """Return the profiles of each cell, and its differences including those in profiles."""
    differing = differences_by_cell(around)
    profiles = explain(read, data, differences=differing)
    for profiled in profiles:
        differing[profiled.cell] = (*differing.get(profiled.cell, ()), *profiled.betrayed)
    means = {
        (cell.cell.id, arm.id): cell.mean_estimate(arm.id, cell.metric[0], level=EQUAL_LEVEL)
        for cell in data
        for arm in cell.run.arms
    }
    ratios = {place: mean.log_ratio for place, mean in means.items() if mean is not None}
    for cell, clocks in clock_differences(around, data, ratios).items():
        differing[cell] = (*differing.get(cell, ()), *clocks)
    return profiles, differing


def _comparisons(
    read: RunFiles,
    cells: Iterable[tuple[CellData, CellSummary]],
    differing: Mapping[str, Differences],
    settled: Mapping[Key, Primary],
) -> tuple[Comparison, ...]:
    """Judge every arm of every cell against the reference, and name likely causes."""
    known = {(one.cell, one.arm) for one in read.fingerprints}
    compared: list[Comparison] = []
    for data, summary in cells:
        cell = data.cell.id
        confounded = {one.arm for one in differing.get(cell, ()) if one.fact_class == "confounder"}
        for arm in data.run.arms:
            if not arm.is_timed or arm.is_reference:
                continue
            is_known = {(cell, arm.id), (cell, data.reference.id)} <= known
            causes = candidates(differing.get(cell, ()), arm.id)
            compared.append(
                msgspec.structs.replace(
                    judge(data, arm, summary, primary=settled.get((cell, arm.id))),
                    is_confounded=arm.id in confounded,
                    candidates=causes or (() if is_known else None),
                )
            )
    return tuple(compared)


def _references(cells: Iterable[CellData], arms: tuple[ArmRecord, ...]) -> dict[str, str]:
    """Return the reference of each cell by its ID if it is not the run's first reference."""
    first = next(arm.id for arm in arms if arm.is_reference)
    every = {one.cell.id: one.reference.id for one in cells}
    return {cell: reference for cell, reference in every.items() if reference != first}


def _hosts(read: RunFiles) -> tuple[HostSummary, ...]:
    """Return the hardware and software of each host, in the order of the plan."""
    timed = {arm.id for arm in read.run.arms if arm.is_timed}
    hosts = dict.fromkeys(cell.host for cell in read.run.cells) if timed else {}
    return tuple(
        _host(
            host,
            [one for one in read.fingerprints if one.host == host and one.arm in timed],
            [one for one in read.events if one.host == host],
        )
        for host in hosts
    )


def _host(host: str, records: list[FingerprintRecord], events: list[Event]) -> HostSummary:
    noted = [one.values for one in events if one.what == "host-ready"]
    unused = noted[-1] if noted else {}
    wheels = [one.text for one in events if one.what == "wheels"]
    return HostSummary(
        host=host,
        devices={
            one.cell: device
            for one in events
            if one.what == "note" and isinstance(device := one.values.get("device"), str)
        },
        processor=next(_texts(records, "cpu.model"), ""),
        cpu_family=next(_texts(records, "cpu.family"), ""),
        microcode=next(_texts(records, "cpu.microcode"), ""),
        kernel=next(_texts(records, "kernel.release"), ""),
        gpus=tuple(dict.fromkeys(_texts(records, "gpu.name"))),
        driver=next(_texts(records, "gpu.driver"), ""),
        torch=tuple(dict.fromkeys(_builds(records))),
        unused_gpus=_text(unused.get("gpu.unused")),
        unused_driver=_text(unused.get("gpu.driver")),
        wheels=wheels[-1] if wheels else "",
    )


def _builds(records: Iterable[FingerprintRecord]) -> Iterator[TorchBuild]:
    for record in records:
        if version := _text(record.facts.get("torch.version")):
            yield TorchBuild(version=version, cuda=_text(record.facts.get("torch.cuda")))


def _texts(records: Iterable[FingerprintRecord], key: str) -> Iterator[str]:
    return filter(None, (_text(record.facts.get(key)) for record in records))


def _text(value: FingerprintValue) -> str:
    return "" if value is None else str(value)


def _arms(
    read: RunFiles, comparisons: tuple[Comparison, ...], cells: tuple[CellSummary, ...]
) -> tuple[ArmSummary, ...]:
    prints = {(f.host, f.arm): f for f in reversed(read.fingerprints)}
    hosts = tuple(dict.fromkeys(cell.host for cell in cells))
    summaries: list[ArmSummary] = []
    for host in hosts:
        for arm in read.run.arms:
            record = prints.get((host, arm.id))
            state, reason = _arm_state(read, host, arm, comparisons)
            summaries.append(
                ArmSummary(
                    host=host,
                    arm=arm.id,
                    environment=arm.environment,
                    stack=arm.stack,
                    reference=arm.reference,
                    state=state,
                    reason=reason,
                    is_timed=arm.is_timed,
                    parameters=arm.parameters,
                    identity=record.identity if record else {},
                    facts=record.facts if record else {},
                )
            )
    return tuple(summaries)


def _arm_state(
    read: RunFiles, host: str, arm: ArmRecord, comparisons: tuple[Comparison, ...]
) -> tuple[CellState, str]:
    if not arm.is_timed:
        return "ok", ""
    events = read.standing
    lost = [e for e in events if e.what == "host-failed" and e.host == host]
    if lost:
        return "unreachable", lost[-1].text
    failed = [e for e in events if e.what == "arm-failed" and e.host == host and e.arm == arm.id]
    of_arm = [c for c in comparisons if c.host == host and c.arm == arm.id]
    if failed and not any(c.primary for c in of_arm):
        is_planned = all(e.failure and e.failure.phase == "plan" for e in failed)
        return "skipped" if is_planned else "failed", failed[-1].text
    if any(e.what == "arm-ready" and e.host == host and e.arm == arm.id for e in events):
        return "ok", ""
    return "skipped", "not started"


def _failures(events: tuple[Event, ...]) -> tuple[FailureRow, ...]:
    return tuple(
        FailureRow(
            t=event.t,
            host=event.host,
            cell=event.cell,
            arm=event.arm,
            **msgspec.structs.asdict(event.failure),
        )
        for event in events
        # comparisons already show what the plan skipped
        if event.failure is not None and event.failure.phase != "plan"
    )
