"""Turn a run folder into comparison.json: estimates, verdicts, differences, failures."""

from __future__ import annotations

import msgspec

from envcompare.analysis.cells import summarise_cell
from envcompare.analysis.decompose import decompose
from envcompare.analysis.explaining import explain
from envcompare.analysis.judge import judge
from envcompare.analysis.model import (
    ArmSummary,
    CellSummary,
    Comparison,
    FailureRow,
    RunComparison,
)
from envcompare.analysis.passes import memory_summaries, startup_summaries
from envcompare.analysis.picked import picked_values
from envcompare.analysis.primaries import primaries
from envcompare.analysis.runfiles import RunFiles, read_files
from envcompare.analysis.surroundings import candidates, differences_by_cell, each_once
from envcompare.eventlog import elapsed_s
from envcompare.identity import noted_changes
from envcompare.records import ArmRecord, CellState, Event
from envcompare.results import RunFolder, count_comparisons


def compare_run(folder: RunFolder) -> RunComparison:
    """Analyse a run folder, complete or not; raises RunFolderError when it cannot be read."""
    return compare_files(read_files(folder))


def compare_files(read: RunFiles) -> RunComparison:
    """Analyse what was read of a run folder."""
    run, design = read.timed, read.run.design
    data = read.cell_data()
    cells = tuple(summarise_cell(one) for one in data)
    m = count_comparisons(run.arms, len(run.cells))
    settled = primaries(data, design, m=m)
    differing = differences_by_cell(run, read.samples, read.fingerprints)
    profiles = explain(read.sources, data, differences=differing, settled=settled)
    for one in profiles:
        differing[one.cell] = (*differing.get(one.cell, ()), *one.betrayed)
    confounded = {
        (cell, found.arm)
        for cell, differences in differing.items()
        for found in differences
        if found.fact_class == "confounder"
    }
    known = {(one.cell, one.arm) for one in read.fingerprints}
    reference = next(arm.id for arm in run.arms if arm.is_reference)
    comparisons = tuple(
        msgspec.structs.replace(
            judge(one, arm, cell, primary=settled.get((one.cell.id, arm.id))),
            is_confounded=(one.cell.id, arm.id) in confounded,
            candidates=candidates(differing.get(one.cell.id, ()), arm.id)
            or (() if {(one.cell.id, arm.id), (one.cell.id, reference)} <= known else None),
        )
        for one, cell in zip(data, cells, strict=True)
        for arm in run.arms
        if arm.is_timed and not arm.is_reference
    )
    return RunComparison(
        run_id=run.run_id,
        created=run.created,
        tool_version=run.tool_version,
        title=run.title,
        seed=run.seed,
        command_line=run.command_line,
        imports=read.imports,
        configuration=run.configuration,
        preset=design.preset,
        margin=design.margin,
        target=design.target,
        budget_s=design.budget_s,
        min_restarts=design.min_restarts,
        screen=design.screen,
        threads=design.threads,
        stabilise=design.stabilise,
        is_complete=read.is_complete,
        reference_arm=reference,
        planned_comparisons=m,
        comparisons=comparisons,
        cells=cells,
        arms=_arms(read, comparisons, cells),
        differences=each_once(differing),
        decompositions=tuple(found for one in data for found in decompose(one)),
        startup=startup_summaries(read.samples, run, read.standing),
        memory=memory_summaries(read.samples),
        picked=tuple(found for one in data for found in picked_values(one)),
        profiles=profiles,
        failures=_failures(read.standing),
        identity_changes=noted_changes(read.events),
        torn_lines=max(read.torn, read.lost),
        duration_s=elapsed_s(read.events, beginning="run-resumed") if read.events else None,
    )


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
    own = [c for c in comparisons if c.host == host and c.arm == arm.id]
    if failed and not any(c.primary for c in own):
        return "failed", failed[-1].text
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
            phase=event.failure.phase,
            brief=event.failure.brief,
            details=event.failure.details,
            hint=event.failure.hint,
            exit_code=event.failure.exit_code,
            log=event.failure.log,
        )
        for event in events
        if event.failure is not None
    )
