"""Analyse one cell: blocks by arm, state, step times, drift, and how it was stopped."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from envcompare.analysis.model import (
    STEP_PROBABILITIES,
    ArmThreads,
    CellSummary,
    Drift,
    Estimate,
    StepTimes,
    StoppedBy,
)
from envcompare.run_folder import EXPECTED_SPREAD, STOPS, waited_s
from envcompare.run_folder.records import (
    ArmRecord,
    Block,
    CellRecord,
    CellState,
    Design,
    Event,
    Failure,
    Measured,
    ProcessRun,
    RunRecord,
    Scalar,
)
from envcompare.run_folder.results import count_comparisons
from envcompare.stats import DRIFT_LEVEL, Round, Trend, paired, trend
from envcompare.stats.intervals import CONTROL_LEVEL, Evidence, Interval, error_of_each, gather
from envcompare.stats.metrics import (
    OUTSIDE_SHARE,
    MetricName,
    Readings,
    primary_metric,
    spinning_ns,
    wall_ns,
    widening_for_looks,
)
from envcompare.stats.typical import TYPICAL_SHARE, RoundEvidence, Spread, prior_of
from envcompare.stats.verdicts import EQUAL_LEVEL, Headline

BINS: Final = 48
_TAIL: Final = 0.005  # of an arm's steps that may be beyond either end of the edges

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideWork:
    """The activity of an arm's threads and children during the turns of other arms."""

    arm: str
    cpu_s: float
    children: int  # the largest number at one time
    is_unstopped: bool  # it could not be stopped as planned
    hidden: float = 0.0  # share of a step that answers which came during stops may hide


@dataclass(frozen=True, kw_only=True)  # no slots, for the cached properties
class CellData:
    """The data of one cell in a run folder; all methods are pure."""

    run: RunRecord
    cell: CellRecord
    blocks: tuple[Measured, ...]  # or processes of a plain command
    events: tuple[Event, ...]  # of this cell
    host_events: tuple[Event, ...]  # of the whole host
    guard_events: tuple[Event, ...] = ()  # such as cautions, including those before a resumption
    elapsed_s: float = 0.0
    batch: int | None = None  # samples per step
    run_in_s: float = 0.0  # of untimed steps of the reference at the start of a turn
    long_spinning: frozenset[str] = frozenset()  # arms that loaded Intel's OpenMP runtime

    @cached_property
    def reference(self) -> ArmRecord:
        """Return the arm that all others are compared with."""
        return next(arm for arm in self.run.arms if arm.is_reference)

    @cached_property
    def is_program(self) -> bool:
        """Tell whether it was planned to time whole processes of a plain command."""
        return self.cell.is_program or any(isinstance(b, ProcessRun) for b in self.blocks)

    def against(self, arm: str) -> CellData:
        """Return the cell with another arm as the reference, without the control of that arm."""
        arms = tuple(
            msgspec.structs.replace(each, is_reference=each.id == arm)
            for each in self.run.arms
            if not each.is_control
        )
        return replace(self, run=msgspec.structs.replace(self.run, arms=arms))

    @cached_property
    def design(self) -> Design:
        """Return the cell's design, with the restarts that a GPU needs."""
        return self.readings.design(self.run.design)

    @property
    def is_strict(self) -> bool:
        """Tell whether intervals rest only on restart means."""
        return self.run.design.preset == "strict"

    @cached_property
    def metric(self) -> tuple[MetricName, str]:
        """Return the primary metric, and a reason if it is not `net`."""
        return primary_metric(self.blocks, threads=self.run.design.threads)

    @property
    def stopped_by(self) -> StoppedBy:
        """Return what ended the measuring."""
        if any(e.what == "interrupted" for e in self.events):
            return "interrupted"
        stops = [e.text for e in self.events if e.what == "stopped"]
        ends: tuple[StoppedBy, ...] = (
            "target", "equivalent", "decided", "planned", "budget", "failure",
        )  # fmt: skip
        return next((reason for reason in ends if stops and stops[-1] == reason), "unknown")

    @cached_property
    def readings(self) -> Readings:
        """Return the readings of the blocks for the metrics."""
        return Readings(self.blocks, threads=self.run.design.threads)

    @property
    def alpha(self) -> float:
        """Return the error of one planned comparison; a screen sets its own later."""
        planned = count_comparisons(self.run.arms, len(self.run.cells))
        return error_of_each(planned, is_screening=self.run.design.screen)

    def widening(self, alpha: float) -> float:
        """Return the factor that widens an interval of error `alpha` for interim looks."""
        return widening_for_looks(
            alpha,
            self.design,
            restarts=self.readings.restarts,
            is_out_of_budget=self.stopped_by == "budget",
        )

    def estimate(self, arm: str, metric: MetricName) -> tuple[float, ...]:
        """Return the paired log ratios of a command's processes."""
        return self.readings.estimate(arm, self.reference.id, metric)

    def evidence(self, arm: str, metric: MetricName) -> Evidence | RoundEvidence | None:
        """Return the evidence on an arm's ratio to the reference; None without rounds."""
        if self.is_program:
            return gather(self.estimate(arm, metric))
        return self.readings.evidence(
            arm,
            self.reference.id,
            metric,
            prior=self.expected,
            is_strict=self.is_strict,
            widening=self.widening(TYPICAL_SHARE * self.alpha),
        )

    def spread(self, arm: str) -> Spread:
        """Return the extra variation of restarts beyond their rounds for a comparison."""
        return self.readings.spread(arm, self.reference.id, self.metric[0], self.expected)

    @cached_property
    def expected(self) -> Spread:
        """Return the expected variation of restarts, as used by the interim looks."""
        noted = (e.values.get(EXPECTED_SPREAD) for e in self.events if e.what == "calibrated")
        values = [one for one in noted if isinstance(one, float) and 0 < one <= 1]
        return prior_of(values[0]) if values else Spread()

    def arm_blocks(self, arm: str) -> tuple[Measured, ...]:
        """Return the measured blocks or processes of an arm, without warm-up."""
        return tuple(self._by_arm.get(arm, ()))

    @cached_property
    def measured(self) -> tuple[Measured, ...]:
        """Return the blocks or processes of all arms, without warm-up and dropped ones."""
        return tuple(b for b in self.blocks if not b.warmup and b.status == "ok")

    @cached_property
    def _by_arm(self) -> dict[str, list[Measured]]:
        blocks: dict[str, list[Measured]] = {}
        for block in self.measured:
            blocks.setdefault(block.arm, []).append(block)
        return blocks

    def failure(self, arm: str) -> Failure | None:
        """Return why an arm has no result here: its own failure, or that of the whole host."""
        failures = [
            e.failure
            for events, whole in ((self.host_events, "host-failed"), (self.events, "cell-failed"))
            for e in events
            if e.what == whole or (e.what == "arm-failed" and e.arm == arm)
        ]
        return next((failure for failure in reversed(failures) if failure is not None), None)

    def work(self, arm: str) -> Mapping[str, Scalar]:
        """Return batch, device, code and data of an arm, from its first worker.

        A command only has its code.
        """
        noted = (e.values for e in self.events if e.what == "note" and e.arm == arm)
        return next((values for values in noted if "code" in values), {})

    def did_other_work(self, arm: str) -> bool:
        """Tell whether an arm's results show that its steps did different work."""
        failures = (e.failure for e in self.events if e.what == "arm-failed" and e.arm == arm)
        return any(failure is not None and failure.phase == "checksum" for failure in failures)

    @cached_property
    def stops(self) -> bool:
        """Tell whether arms are stopped between their turns."""
        return any(e.values.get(STOPS) for e in self.events if e.what == "calibrated") or any(
            isinstance(block, Block) and block.is_stopped for block in self.measured
        )

    def outside_work(self, arm: str) -> OutsideWork | None:
        """Return an arm's work outside its turns; None if it cannot matter."""
        blocks = [block for block in self.arm_blocks(arm) if isinstance(block, Block)]
        known = [
            (block, block.outside_cpu_ns) for block in blocks if block.outside_cpu_ns is not None
        ]
        counted_ns = sum(max(0, ns - self._spinning_ns(one)) for one, ns in known)
        inside_ns = sum(max(sum(one.cpu_ns), sum(one.wall_ns)) for one, _ in known)
        running = [
            block for block in blocks if not block.is_stopped and (block.children or self.stops)
        ]
        is_running = len(running) > max(1, OUTSIDE_SHARE * len(blocks))
        if (
            is_running
            or counted_ns > OUTSIDE_SHARE * inside_ns
            or sum(bool(one.outside_runs) for one, _ in known) > len(known) / 2
        ):
            cpu_s = sum(ns for _, ns in known) / 1e9
            return OutsideWork(
                arm=arm,
                cpu_s=cpu_s,
                children=max((block.children or 0 for block in running), default=0),
                is_unstopped=self.stops and is_running,
            )
        return self._hiding(arm, [block for block in blocks if block.is_stopped])

    def _hiding(self, arm: str, stopped: list[Block]) -> OutsideWork | None:
        """Return the children of an arm that may hide more than the margin in its turns.

        What a child waits for may come during a stop: one answer a child in each turn.
        """
        if not stopped:
            return None
        children = max(block.children or 0 for block in stopped)
        hidden = children / statistics.median(block.run_in + block.k for block in stopped)
        if hidden <= self.run.design.margin:
            return None
        return OutsideWork(arm=arm, cpu_s=0.0, children=children, is_unstopped=False, hidden=hidden)

    def _spinning_ns(self, block: Block) -> int:
        """Return the longest time that an arm's thread pools may spin after a block.

        A single thread has no pool; otherwise all threads but the stepping one may spin.
        """
        asked = self.run.design.threads
        if asked == 1:
            return 0
        running = block.running or asked or 1
        return spinning_ns(running, is_long=block.arm in self.long_spinning)

    def estimate_of(
        self, ratio: Interval, arm: str, metric: MetricName, *, is_widened: bool
    ) -> Estimate:
        """Convert an arm's interval to the record in comparison.json."""
        groups = self.readings.groups(arm, self.reference.id, metric)
        rounds = sum(map(len, groups))
        return self.to_estimate(ratio, metric, rounds=rounds, is_widened=is_widened)

    def plain_estimate(self, arm: str, metric: MetricName, *, level: float) -> Estimate | None:
        """Return the estimate of an arm at `level`, not widened; None without rounds."""
        evidence = self.evidence(arm, metric)
        if evidence is None:
            return None
        return self.estimate_of(evidence.interval(level=level), arm, metric, is_widened=False)

    def mean_estimate(
        self,
        arm: str,
        metric: MetricName,
        *,
        level: float,
        factor: float = 1.0,
        is_widened: bool = False,
    ) -> Estimate | None:
        """Return the estimate of the mean over all steps; None without rounds of both arms.

        On the verdict's metric it includes the arm's own waiting if that is counted. For `stretch`
        it is the mean of wall minus that of net.
        """
        reference = self.reference.id
        mean = (
            self.readings.felt(arm, reference, metric)
            if metric == self.metric[0]
            else self.readings.mean(arm, reference, metric)
        )
        if mean is None:
            return None
        ratio = mean.interval(
            level=level,
            factor=factor,
            # a restart adds nothing to the time that neighbours take
            spread=Spread(variance=0.0) if metric == "stretch" else self.spread(arm),
            groups=self.readings.groups(arm, reference, "wall" if metric == "stretch" else metric),
            generations=self.readings.generations(arm, reference, "wall"),
        )
        return self.estimate_of(ratio, arm, metric, is_widened=is_widened)

    def headline(self, arm: str, typical: Interval) -> Headline:
        """Return the typical step and the mean as reported, at the level left for the mean."""
        alpha = (1 - typical.level) / TYPICAL_SHARE
        evidence = self.evidence(arm, self.metric[0])
        equal, factor = typical, 1.0
        if isinstance(evidence, RoundEvidence):
            factor = self.widening(1 - EQUAL_LEVEL)
            equal = evidence.interval(level=EQUAL_LEVEL, factor=factor)
        return self.readings.headline(
            arm,
            self.reference.id,
            self.metric[0],
            typical=typical,
            equal=equal,
            spread=self.spread(arm),
            alpha=alpha,
            widening=self.widening((1 - TYPICAL_SHARE) * alpha),
            widening_of_equal=factor,
        )

    def to_estimate(
        self, ratio: Interval, metric: MetricName, *, rounds: int, is_widened: bool
    ) -> Estimate:
        """Convert an interval to the record in comparison.json."""
        return Estimate(
            metric=metric,
            log_ratio=ratio.mean,
            low=ratio.low,
            high=ratio.high,
            level=ratio.level,
            unit="process" if self.is_program else ratio.unit,
            restarts=ratio.restarts,
            generations=ratio.generations,
            rounds=rounds,
            is_widened=is_widened,
        )


def _noise_floor(data: CellData) -> Estimate | None:
    """Return the 99 % interval of the reference against itself: this cell's noise.

    It is of the mean, as in the headline. If the typical step excludes 0, it is the one of the two
    that excludes 0 and reaches farther.
    """
    control = next((arm.id for arm in data.run.arms if arm.is_control), None)
    if control is None:
        return None
    typical = data.plain_estimate(control, data.metric[0], level=CONTROL_LEVEL)
    if data.is_program:
        return typical
    mean = data.mean_estimate(control, data.metric[0], level=CONTROL_LEVEL)
    failed = [
        estimate
        for estimate in (mean, typical)
        if estimate is not None and estimate.low is not None and estimate.high is not None
        if not estimate.low <= 0 <= estimate.high
    ]
    return max(failed, key=lambda one: one.far_end, default=mean or typical)


def summarise_cell(data: CellData) -> CellSummary:
    """Return the summary of a cell."""
    metric, metric_reason = data.metric
    generation, generation_reason = _generation(data)
    state, reason = _state(data)
    measured = data.measured
    blocks = tuple(b for b in measured if isinstance(b, Block))
    compared = [arm.id for arm in data.run.arms if not arm.is_reference]
    step_times = {arm.id: _times_s(data.arm_blocks(arm.id)) for arm in data.run.arms}
    edges = _shared_edges(step_times.values())
    times = (
        _step_times(arm, one, edges=edges, batch=data.batch) for arm, one in step_times.items()
    )
    return CellSummary(
        id=data.cell.id,
        host=data.cell.host,
        workload=data.cell.workload,
        parameters=data.cell.parameters,
        within=data.cell.within,
        is_program=data.is_program,
        state=state,
        reason=reason,
        metric="net" if metric == "net" else "wall",
        metric_reason=metric_reason,
        generation=generation,
        generation_reason=generation_reason,
        steps_per_block=max((b.k for b in blocks), default=None),
        restarts=len({b.restart for b in measured}),
        generations=len({(b.restart, b.generation) for b in measured}),
        rounds=len({(b.restart, b.generation, b.round) for b in measured}),
        dropped_rounds=sum(
            # a fault of a warm-up (round -1) leaves out nothing
            e.what == "round-dropped" and not e.text.startswith("round -1:")
            for e in data.events
        ),
        held_rounds=_held_rounds(blocks),
        stops=data.stops,
        run_in_s=data.run_in_s,
        steps=sum(b.k for b in blocks),
        processes=len(measured) - len(blocks),
        measured_s=sum(wall_ns(b) for b in measured) / 1e9,
        elapsed_s=data.elapsed_s,
        stopped_by=data.stopped_by,
        noise_floor=_noise_floor(data),
        step_times=tuple(filter(None, times)),
        step_edges_s=edges,
        drifts=_find_drifts(data),
        dropped_blocks=sum(b.status == "dropped" and not b.warmup for b in data.blocks),
        restart_spread=math.sqrt(max(data.spread(arm).variance for arm in compared))
        if blocks and compared
        else None,
        waited_s=waited_s(data.guard_events),
        threads=tuple(filter(None, (_arm_threads(data, arm.id) for arm in data.run.arms))),
        cautions=tuple(
            dict.fromkeys(
                (*(e.text for e in data.guard_events if e.what == "caution"), *_unseen(data))
            )
        ),
    )


def _arm_threads(data: CellData, arm: str) -> ArmThreads | None:
    """Return the threads in an arm's blocks; None without a count."""
    blocks = [block for block in data.arm_blocks(arm) if isinstance(block, Block)]
    running = [block.running for block in blocks if block.running is not None]
    if not running:
        return None
    stopped = [block.throttled_ns for block in blocks if block.throttled_ns is not None]
    periods = [block.throttled_periods for block in blocks if block.throttled_periods is not None]
    return ArmThreads(
        arm=arm,
        running=statistics.median_low(running),
        throttled_s=sum(stopped) / 1e9 if stopped else None,
        throttled_periods=sum(periods) if periods else None,
        measured_s=sum(map(wall_ns, blocks)) / 1e9,
    )


def _unseen(data: CellData) -> tuple[str, ...]:
    """Name the arms whose activity outside their turns is unreadable; empty for old runs."""
    arms = [
        arm.id
        for arm in data.run.arms
        if (blocks := [block for block in data.arm_blocks(arm.id) if isinstance(block, Block)])
        and all(block.outside_cpu_ns is None and block.children is not None for block in blocks)
    ]
    if not arms:
        return ()
    what = f"what threads and children of {', '.join(arms)} do outside their turns cannot be read"
    stopped, free = "whether they stay stopped is not known", "work done ahead is not seen"
    unknown = stopped if data.stops else free
    return (f"{what} there (schedstat): {unknown}; `--command` measures it",)


def _held_rounds(blocks: Iterable[Block]) -> int:
    """Count the rounds whose blocks all ran on one CPU."""
    cpus: dict[tuple[int, int, int], set[int | None]] = {}
    for block in blocks:
        number = (block.restart, block.generation, block.round)
        cpus.setdefault(number, set()).add(block.cpu if block.is_held else None)
    return sum(len(found) == 1 and None not in found for found in cpus.values())


def _generation(data: CellData) -> tuple[Literal["", "fork", "rebuild"], str]:
    """Return how the reference started generations, and why; empty for a program."""
    ready = [e for e in data.events if e.what == "arm-ready" and e.arm == data.reference.id]
    values = ready[-1].values if ready and not data.is_program else {}
    why = str(values.get("why") or "")
    match values.get("generation"):
        case "fork":
            return "fork", why
        case "rebuild":
            return "rebuild", why
        case _:
            return "", ""


def _state(data: CellData) -> tuple[CellState, str]:
    if not any(arm.is_timed for arm in data.run.arms):
        return "ok", "imported profiles; nothing was timed"
    ends = [e for e in data.events if e.what == "cell-ended" and e.state is not None]
    if ends:
        return ends[-1].state or "failed", ends[-1].text
    lost = [e for e in data.host_events if e.what == "host-failed"]
    if lost:
        return "unreachable", lost[-1].text
    if data.blocks or any(e.what == "cell-started" for e in data.events):
        return "skipped", "the run ended in the middle of this cell"
    return "skipped", "the run ended before this cell"


def _times_s(blocks: Iterable[Measured]) -> Times:
    """Return the times of all steps, or whole processes, of the blocks, in seconds."""
    parts: list[tuple[int, ...]] = [
        # on a GPU the wall time only covers the launch; events around a step cover the work
        (block.wall_ns,) if isinstance(block, ProcessRun) else block.gpu_ns or block.wall_ns
        for block in blocks
    ]
    return np.fromiter((ns for part in parts for ns in part), dtype=np.float64) / 1e9


def _shared_edges(times: Iterable[Times]) -> tuple[float, ...]:
    """Return BINS + 1 edges in seconds that cover all arms' times except their far tails.

    They are evenly spaced. Empty without times, or if all times are equal.
    """
    ends = [np.quantile(one, (_TAIL, 1 - _TAIL)) for one in times if one.size]
    if not ends:
        return ()
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    if not high > low:
        return ()
    return tuple(float(edge) for edge in np.linspace(low, high, BINS + 1))


def _step_times(
    arm: str, times: Times, *, edges: tuple[float, ...], batch: int | None
) -> StepTimes | None:
    """Return the summary of an arm's times; None without a step."""
    if not times.size:
        return None
    low, median, high = (float(value) for value in np.quantile(times, (0.05, 0.5, 0.95)))
    quantiles = np.quantile(times, STEP_PROBABILITIES)
    counts = np.histogram(times, bins=np.asarray(edges))[0] if edges else ()
    return StepTimes(
        arm=arm,
        steps=int(times.size),
        median_s=median,
        p05_s=low,
        p95_s=high,
        quantiles_s=tuple(float(value) for value in quantiles),
        longest_s=float(times.max()),
        counts=tuple(int(count) for count in counts),
        samples_per_s=batch / median if batch and median else None,
    )


def _find_drifts(data: CellData) -> tuple[Drift, ...]:
    """Test each arm's times, and its log ratio to the reference, for a trend over rounds.

    Each kind has a false-alarm rate of 1 % per cell, shared among its tests (Bonferroni).
    """
    known = data.readings.logarithms(data.metric[0])
    arms, reference = [arm.id for arm in data.run.arms], data.reference.id
    times = {arm: trend(_generations(known.get(arm, {}))) for arm in arms}
    pairs = {arm: paired(known, arm=arm, reference=reference) for arm in arms if arm != reference}
    ratios = {
        arm: trend([rounds for found in restarts.values() for rounds in found.values()])
        for arm, restarts in pairs.items()
    }
    return (*_drifts(times, is_ratio=False), *_drifts(ratios, is_ratio=True))


def _generations(values: Mapping[Round, float]) -> Sequence[Sequence[float]]:
    grouped: dict[tuple[int, int], dict[int, float]] = {}
    for (restart, generation, number), value in values.items():
        grouped.setdefault((restart, generation), {})[number] = value
    return [[value for _, value in sorted(rounds.items())] for rounds in grouped.values()]


def _drifts(trends: dict[str, Trend | None], *, is_ratio: bool) -> tuple[Drift, ...]:
    tested = {arm: found for arm, found in trends.items() if found is not None}
    return tuple(
        Drift(
            arm=arm,
            is_ratio=is_ratio,
            slope=found.slope,
            over_generation=found.over_generation,
            p_value=found.p_value,
            generations=found.generations,
            is_detected=found.p_value * len(tested) < DRIFT_LEVEL,
        )
        for arm, found in tested.items()
    )
