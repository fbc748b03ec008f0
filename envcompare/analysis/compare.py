"""Turn a run folder into comparison.json: estimates, verdicts, differences, failures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from envcompare.analysis.cells import CellData, summarise_cell
from envcompare.analysis.decompose import decompose
from envcompare.analysis.explaining import Sources, explain
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
from envcompare.analysis.surroundings import differences_by_cell, each_once
from envcompare.errors import RunFolderError
from envcompare.eventlog import elapsed_s, standing
from envcompare.profilefiles import read_profiles, read_roofs
from envcompare.profiles import ProfileRecord, Roofs
from envcompare.records import (
    ArmRecord,
    CellState,
    Event,
    FingerprintRecord,
    Measured,
    RunRecord,
    Sample,
)
from envcompare.results import RunFolder, count_comparisons

_GUARDS = ("waited", "caution")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A run folder, read."""

    run: RunRecord
    samples: tuple[Sample, ...]
    events: tuple[Event, ...]
    fingerprints: tuple[FingerprintRecord, ...]
    profiles: tuple[ProfileRecord, ...]
    roofs: tuple[Roofs, ...]
    torn: int
    imports: tuple[str, ...] = ()

    def cell_data(self) -> tuple[CellData, ...]:
        blocks: dict[str, list[Measured]] = {}
        for sample in self.samples:
            if isinstance(sample, Measured):
                blocks.setdefault(sample.cell, []).append(sample)
        events = self.standing
        return tuple(
            CellData(
                run=self.timed,
                cell=cell,
                blocks=tuple(blocks.get(cell.id, ())),
                events=tuple(e for e in events if e.cell == cell.id),
                host_events=tuple(e for e in events if e.host == cell.host and not e.cell),
                guard_events=tuple(
                    e for e in self.events if e.cell == cell.id and e.what in _GUARDS
                ),
                elapsed_s=elapsed_s(tuple(e for e in self.events if e.cell == cell.id)),
                batch=self._batch(cell.id),
            )
            for cell in self.run.cells
        )

    @property
    def sources(self) -> Sources:
        """Return what explains the times of the cells."""
        return Sources(
            run=self.run,
            samples=self.samples,
            events=self.standing,
            fingerprints=self.fingerprints,
            records=self.profiles,
            roofs=self.roofs,
        )

    @property
    def timed(self) -> RunRecord:
        """Return the run without the arms that were only imported beside timed ones."""
        timed = tuple(arm for arm in self.run.arms if arm.is_timed)
        return msgspec.structs.replace(self.run, arms=timed) if timed else self.run

    @property
    def standing(self) -> tuple[Event, ...]:
        """Return the events that no resumption has overtaken."""
        return standing(self.events)

    def _batch(self, cell: str) -> int | None:
        for event in self.events:
            batch = event.values.get("batch")
            if event.cell == cell and isinstance(batch, int):
                return batch
        return None


def compare_run(folder: RunFolder) -> RunComparison:
    """Analyse a run folder, complete or not.

    Raises RunFolderError when it cannot be read.
    """
    samples, events = folder.read_samples(), folder.read_events()
    if not samples.samples and any(
        e.what == "cell-ended" and e.state == "ok" for e in events.events
    ):
        raise RunFolderError(
            f"{folder.path}/samples.jsonl is missing or empty",
            details="the events say that cells were measured",
            hint="restore the file from a copy, or run again",
        )
    read = _Read(
        run=folder.read_run(),
        samples=samples.samples,
        # an import may come days after the run: it is no part of its course
        events=tuple(event for event in events.events if event.what != "imported"),
        fingerprints=folder.read_fingerprints(),
        profiles=read_profiles(folder),
        roofs=read_roofs(folder),
        torn=samples.torn + events.torn,
        imports=tuple(dict.fromkeys(_commands(events.events))),
    )
    return _compare(read)


def _commands(events: Iterable[Event]) -> Iterable[str]:
    """Yield the command of each import; older folders do not hold it."""
    for event in events:
        command = event.values.get("command")
        if event.what == "imported" and isinstance(command, str) and command:
            yield command


def _compare(read: _Read) -> RunComparison:
    run, design = read.timed, read.run.design
    data = read.cell_data()
    cells = tuple(summarise_cell(one) for one in data)
    m = count_comparisons(run.arms, len(run.cells))
    settled = primaries(data, design, m=m)
    by_cell = differences_by_cell(run, read.samples, read.fingerprints)
    profiles = explain(read.sources, data, differences=by_cell, settled=settled)
    for one in profiles:
        by_cell[one.cell] = (*by_cell.get(one.cell, ()), *one.betrayed)
    confounded = {
        (cell, found.arm)
        for cell, differences in by_cell.items()
        for found in differences
        if found.fact_class == "confounder"
    }
    comparisons = tuple(
        msgspec.structs.replace(
            judge(one, arm, cell, primary=settled.get((one.cell.id, arm.id))),
            is_confounded=(one.cell.id, arm.id) in confounded,
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
        is_complete=_is_complete(read),
        reference_arm=next(arm.id for arm in run.arms if arm.is_reference),
        planned_comparisons=m,
        comparisons=comparisons,
        cells=cells,
        arms=_arms(read, comparisons, cells),
        differences=each_once(by_cell),
        decompositions=tuple(found for one in data for found in decompose(one)),
        startup=startup_summaries(read.samples, run, read.standing),
        memory=memory_summaries(read.samples),
        picked=tuple(found for one in data for found in picked_values(one)),
        profiles=profiles,
        failures=_failures(read.standing),
        torn_lines=read.torn,
        duration_s=read.events[-1].t - read.events[0].t if read.events else None,
    )


def _is_complete(read: _Read) -> bool:
    """Say whether the run ended after it was last begun; what was only imported has no end."""
    if not any(arm.is_timed for arm in read.run.arms):
        return True
    ended = [e for e in read.events if e.what == "run-ended"]
    started = [e for e in read.events if e.what in {"run-started", "run-resumed"}]
    return bool(ended) and (not started or ended[-1].t >= started[-1].t)


def _arms(
    read: _Read, comparisons: tuple[Comparison, ...], cells: tuple[CellSummary, ...]
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
    read: _Read, host: str, arm: ArmRecord, comparisons: tuple[Comparison, ...]
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
