"""Turn a run folder into comparison.json: estimates, verdicts, differences, failures.

The progress of a run comes from its folder alone too, running or not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from envcompare.analysis.model import (
    ArmSummary,
    BetweenHosts,
    CellSummary,
    Comparison,
    FailureRow,
    HostSummary,
    LadderStep,
    RunComparison,
    RunCourse,
    RunSettings,
    RunViews,
    TorchBuild,
)
from envcompare.analysis.model.profiling import CellProfiles
from envcompare.analysis.profiles import explain
from envcompare.analysis.timing import CellData, summarise_cell
from envcompare.analysis.timing.breakdown import (
    decompose,
    group_estimates,
    hosts_estimates,
    ladder,
    step_evidence,
)
from envcompare.analysis.timing.descriptive import (
    cell_phases,
    memory_summaries,
    picked_values,
    result_gaps,
    startup_summaries,
)
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
from envcompare.run_folder import Owner, duration_s, elapsed_s, measured_sessions, owner_of
from envcompare.run_folder.records import (
    SCHEMA,
    ArmRecord,
    CellState,
    Event,
    FingerprintRecord,
    FingerprintValue,
)
from envcompare.run_folder.results import RunFolder, count_comparisons
from envcompare.stats.verdicts import EQUAL_LEVEL
from envcompare.text import masked, masked_toml


def compare_run(folder: RunFolder) -> RunComparison:
    """Analyse a run folder, complete or not; raises RunFolderError if it cannot be read."""
    compared = compare_files(read_files(folder))
    return msgspec.structs.replace(compared, proof=folder.read_proof())


def compare_files(read: RunFiles) -> RunComparison:
    """Analyse the records of a run folder."""
    run, data = read.timed, read.cell_data()
    cells = tuple(summarise_cell(cell) for cell in data)
    planned = count_comparisons(run.arms, len(run.cells))
    settled = primaries(data, run.design, m=planned, steps=step_evidence(data))
    around = Surroundings.of(read)
    profiles, differing = _explained(read, data, around)
    shared, apart = each_once(differing), group_differences(around)
    compared = _comparisons(read, zip(data, cells, strict=True), differing, settled)
    rungs = ladder(around, zip(data, cells, strict=True), settled, comparisons=compared)
    reference = next(arm.id for arm in run.arms if arm.is_reference)
    return RunComparison(
        run_id=run.run_id,
        created=run.created,
        tool_version=run.tool_version,
        tool_commit=run.tool_commit,
        title=run.title,
        imports=read.imports,
        settings=_settings(read, data, planned=planned),
        course=_course(read),
        reference_arm=reference,
        references={
            cell.cell.id: cell.reference.id for cell in data if cell.reference.id != reference
        },
        comparisons=compared,
        cells=cells,
        arms=_arms(read, compared, cells),
        differences=shared,
        cell_differences=of_cells(differing, shared=shared),
        hosts=_hosts(read),
        between_hosts=BetweenHosts(
            differences=host_differences(read),
            estimates=hosts_estimates(
                compared, settled, cells=cells, margin=run.design.margin, of_hosts=run.groups
            ),
            groups=run.groups,
            group_differences=apart,
            group_estimates=group_estimates(
                read, data, settled, comparisons=compared, cells=cells, differences=apart
            ),
        ),
        profiles=profiles,
        views=_views(read, data, cells, profiles=profiles, rungs=rungs),
    )


def _settings(read: RunFiles, data: tuple[CellData, ...], *, planned: int) -> RunSettings:
    run, design = read.timed, read.timed.design
    restarts = (cell.design.min_restarts for cell in data)
    return RunSettings(
        preset=design.preset,
        seed=run.seed,
        margin=design.margin,
        target=design.target,
        budget_s=design.budget_s,
        min_restarts=max(restarts, default=design.min_restarts),
        threads=design.threads,
        stabilise=design.stabilise,
        planned_sessions=design.sessions,
        planned_comparisons=planned,
        screen=design.screen,
        until=design.until,
        command_line=run.command_line,
        configuration=masked_toml(run.configuration),
    )


def _course(read: RunFiles) -> RunCourse:
    sessions = measured_sessions(read.events) if read.timed.design.sessions > 1 else {1: 0.0}
    return RunCourse(
        is_complete=read.is_complete,
        sessions=len(sessions),
        days=len({datetime.fromtimestamp(t, timezone.utc).date() for t in sessions.values()}),
        duration_s=duration_s(read.events) if read.events else None,
        failures=_failures(read.standing),
        identity_changes=noted_changes(read.events),
        torn_lines=max(read.torn, read.lost),
    )


def _views(
    read: RunFiles,
    data: tuple[CellData, ...],
    cells: tuple[CellSummary, ...],
    *,
    profiles: tuple[CellProfiles, ...],
    rungs: tuple[LadderStep, ...],
) -> RunViews:
    phases = (cell_phases(cell, read.marked.get(cell.cell.id, ())) for cell in data)
    training = (cell_training(cell, read.epochs.get(cell.cell.id, ())) for cell in data)
    return RunViews(
        decompositions=tuple(split for cell in data for split in decompose(cell)),
        scaling=scaling(data, cells, profiles),
        ladder=rungs,
        startup=startup_summaries(read.samples, read.timed, read.standing),
        memory=memory_summaries(read.samples),
        picked=tuple(picked for cell in data for picked in picked_values(cell)),
        result_gaps=tuple(gap for cell in data for gap in result_gaps(cell)),
        phases=tuple(filter(None, phases)),
        batch_sweeps=batch_sweeps(data, read.events),
        training=tuple(filter(None, training)),
    )


def _explained(
    read: RunFiles, data: tuple[CellData, ...], around: Surroundings
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
    known = {(fingerprint.cell, fingerprint.arm) for fingerprint in read.fingerprints}
    compared: list[Comparison] = []
    for data, summary in cells:
        cell = data.cell.id
        confounded = {
            difference.arm
            for difference in differing.get(cell, ())
            if difference.fact_class == "confounder"
        }
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


def _hosts(read: RunFiles) -> tuple[HostSummary, ...]:
    """Return the hardware and software of each host, in the order of the plan."""
    timed = {arm.id: not arm.is_reference for arm in read.run.arms if arm.is_timed}
    # the reference first: another kernel, as gVisor's, describes no machine
    records = sorted(read.fingerprints, key=lambda fingerprint: timed.get(fingerprint.arm, True))
    hosts = dict.fromkeys(cell.host for cell in read.run.cells) if timed else {}
    return tuple(
        _host(
            host,
            [record for record in records if record.host == host and record.arm in timed],
            [event for event in read.events if event.host == host],
        )
        for host in hosts
    )


def _host(host: str, records: list[FingerprintRecord], events: list[Event]) -> HostSummary:
    noted = [event.values for event in events if event.what == "host-ready"]
    unused = noted[-1] if noted else {}
    wheels = [event.text for event in events if event.what == "wheels"]
    return HostSummary(
        host=host,
        devices={
            event.cell: device
            for event in events
            if event.what == "note" and isinstance(device := event.values.get("device"), str)
        },
        processor=next(_texts(records, "cpu.model"), ""),
        cpu_family=next(_texts(records, "cpu.family"), ""),
        microcode=next(_texts(records, "cpu.microcode"), ""),
        kernel=next(_texts(records, "kernel.release"), ""),
        gpus=tuple(dict.fromkeys(_texts(records, "gpu.name"))),
        driver=next(_texts(records, "gpu.driver"), ""),
        torch=tuple(
            dict.fromkeys(
                TorchBuild(version=version, cuda=_text(record.facts.get("torch.cuda")))
                for record in records
                if (version := _text(record.facts.get("torch.version")))
            )
        ),
        unused_gpus=_text(unused.get("gpu.unused")),
        unused_driver=_text(unused.get("gpu.driver")),
        wheels=wheels[-1] if wheels else "",
    )


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
                    reference=masked(arm.reference),
                    state=state,
                    reason=reason,
                    takes_options=arm.takes_options,
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


_STANDING_STILL = ("turn", "stopped", "interrupted", "cell-ended")  # others are served next
RunState = Literal["going-on", "interrupted", "ended"]
CellProgress = Literal[
    "not-begun", "going-on", "interrupted", "ok", "failed", "timeout", "skipped", "unreachable"
]


class ArmProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of an arm in a cell: its log ratio so far; null while unknown."""

    arm: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None


class CellStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a cell: its state, its measurements, and its remaining budget."""

    cell: str
    host: str
    state: CellProgress
    reason: str = ""
    restarts: Annotated[int, Meta(description="or processes of a plain command")] = 0
    is_program: Annotated[bool, Meta(description="a plain command")] = False
    budget_left_s: Annotated[
        float | None, Meta(description="at most, for the timing; null once the cell has ended")
    ] = None
    arms: tuple[ArmProgress, ...] = ()


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a run: whether a process is writing to its folder, and each cell."""

    run_id: str
    state: RunState
    owner: Annotated[Owner | None, Meta(description="the process that measures")] = None
    budget_s: float
    cells: tuple[CellStatus, ...]
    failures: Annotated[
        tuple[str, ...], Meta(description="of hosts and environments, one sentence each")
    ] = ()
    schema: Literal[2] = SCHEMA


def status_of(folder: RunFolder) -> RunStatus:
    """Return the progress of a run; raises RunFolderError if its folder cannot be read."""
    owner = owner_of(folder.path)
    if owner is not None and owner.command != "run":
        owner = None
    read = read_files(folder)
    comparison = compare_files(read)
    state: RunState = "going-on" if owner else "ended" if read.is_complete else "interrupted"
    now = time.time() if owner else None
    return RunStatus(
        run_id=comparison.run_id,
        state=state,
        owner=owner,
        budget_s=comparison.settings.budget_s,
        cells=tuple(_cell(read, comparison, cell, now=now) for cell in comparison.cells),
        failures=tuple(
            f"{' '.join(filter(None, (event.host, event.arm)))}: {event.failure.brief}"
            for event in read.standing
            # each cell reports its own failures
            if event.failure is not None and not event.cell
        ),
    )


def _cell(
    read: RunFiles, comparison: RunComparison, cell: CellSummary, *, now: float | None
) -> CellStatus:
    """Return the progress of a cell; `now` is None if nothing is measuring."""
    events = tuple(event for event in read.events if event.cell == cell.id)
    state, reason = _state(events, is_going_on=now is not None)
    spent_s = elapsed_s(events)
    if now is not None and events and events[-1].what not in _STANDING_STILL:
        spent_s += max(0.0, now - events[-1].t)
    left_s = max(0.0, comparison.settings.budget_s - spent_s)
    return CellStatus(
        cell=cell.id,
        host=cell.host,
        state=state,
        reason=reason,
        restarts=cell.processes or cell.restarts,
        is_program=cell.is_program,
        # beyond its own budget, a cell uses what others have left
        budget_left_s=left_s or None if state in {"not-begun", "going-on", "interrupted"} else None,
        arms=tuple(
            ArmProgress(
                arm=one.arm,
                estimate=one.deciding.log_ratio if one.deciding else None,
                low=one.deciding.low if one.deciding else None,
                high=one.deciding.high if one.deciding else None,
            )
            for one in comparison.comparisons
            if one.cell == cell.id and one.outcome != "reference"
        ),
    )


def _state(events: tuple[Event, ...], *, is_going_on: bool) -> tuple[CellProgress, str]:
    """Return a cell's state and reason, by the last event that starts or ends it."""
    turning = ("cell-started", "cell-ended", "interrupted")
    last = next((event for event in reversed(events) if event.what in turning), None)
    if last is None:
        return "not-begun", ""
    if last.what == "cell-ended":
        return last.state or "ok", last.text
    if last.what == "cell-started" and is_going_on:
        return "going-on", ""
    return "interrupted", last.text
