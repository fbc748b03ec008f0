"""The metrics of a block or a process: how they are read, and which one a verdict uses.

Lower is better for all. All are nanoseconds except `stretch`, a ratio. A block has two values of
each: its typical step, and the sum over all its steps.

Net time is read in the same way in all blocks of a comparison. Two ways differ by the time that a
hypervisor takes, so an arm that gives up the CPU more often would seem slower.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from envcompare.run_folder.records import (
    CONTROL_SUFFIX,
    Block,
    Design,
    Measured,
    ProcessRun,
)
from envcompare.stats import (
    FarLaunch,
    Logarithms,
    Round,
    far_launches,
    flat,
    grouped,
    paired,
)
from envcompare.stats.intervals import (
    ALPHA,
    Interval,
    error_of_each,
    look_factor,
    printed_interval,
    student_factor,
)
from envcompare.stats.typical import (
    DECIDED_FACTOR,
    TYPICAL_SHARE,
    Contrast,
    Floats,
    Groups,
    RoundEvidence,
    Spread,
    error_share,
    own_spread,
    quantile,
    ratio_of_sums,
    spread,
)
from envcompare.stats.verdicts import (
    EQUAL_LEVEL,
    Headline,
    OwnWaiting,
    deciding_interval,
    excess_of_mean,
    felt_ratio,
    own_waiting,
)

MetricName = Literal["net", "wall", "stretch", "cpu", "gpu", "user", "sys", "real"]

Read = Callable[[Measured], float | None]
Sums = Mapping[str, Mapping[Round, float]]
"""arm → round → nanoseconds per step, over all steps of a block."""
_ByArm = dict[str, dict[Round, float]]
# The lower quartile of a block's steps is typical, whatever a few of them encountered.
_LOWER = 0.25
# If CPU time exceeds wall time by more, other threads of the worker computed.
_MORE_THREADS = 1.02


def wall_ns(block: Measured) -> float:
    """Return the wall time of the block's steps, or of the process, in nanoseconds."""
    if isinstance(block, ProcessRun):
        return float(block.wall_ns)
    return float(sum(block.wall_ns))


def goes_by_clock(block: Measured) -> bool:
    """Tell whether a block's steps took time without CPU time, since they gave up the CPU.

    It is also true if that is unknown, and if other threads computed.
    """
    if isinstance(block, ProcessRun):
        return True
    is_all = 0 < sum(block.cpu_ns) <= _MORE_THREADS * wall_ns(block)
    return block.voluntary_switches != 0 or not is_all


def waited_ns(block: Measured) -> float | None:
    """Return how long the stepping thread waited for a CPU that others held, in nanoseconds.

    None if not measured. Stops by a quota are subtracted: the scheduler counts them as waits too,
    and the group may have been stopped on other CPUs.
    """
    if isinstance(block, ProcessRun) or block.wait_ns is None:
        return None
    return float(block.wait_ns - min(block.wait_ns, block.throttled_ns or 0))


def net_steps_ns(block: Measured, *, by_clock: bool) -> Sequence[float] | None:
    """Return each step's time without waits for a CPU that others held, in nanoseconds.

    By the clock it is wall time minus the wait in the run queue, so sleep counts. Otherwise it is
    CPU time, without time that a hypervisor took (paravirtual accounting of steal time; kernel:
    sched-stats.rst), plus stops by a quota, which the environment causes. None if the wait was not
    measured or leaves nothing.
    """
    outside = waited_ns(block)
    if isinstance(block, ProcessRun) or block.wait_ns is None or outside is None:
        return None
    if not by_clock:
        throttled = (block.wait_ns - outside) / len(block.cpu_ns)
        return [cpu + throttled for cpu in block.cpu_ns]
    wall = wall_ns(block)
    share = 1 - outside / wall if wall else 0.0
    return [step * share for step in block.wall_ns] if share > 0 else None


def net_ns(block: Measured, *, by_clock: bool) -> float | None:
    """Return the net time of all steps of a block, in nanoseconds; None if unknown."""
    steps = net_steps_ns(block, by_clock=by_clock)
    return None if steps is None else math.fsum(steps)


def _net_ns(block: Measured) -> float | None:
    return net_ns(block, by_clock=goes_by_clock(block))


def _stretch(block: Measured) -> float | None:
    """Return wall ÷ net: 1 where nothing else held the CPU."""
    net = _net_ns(block)
    return wall_ns(block) / net if net else None


def _cpu_ns(block: Measured) -> float | None:
    used = (block.user_ns, block.sys_ns) if isinstance(block, ProcessRun) else block.cpu_ns
    return float(sum(filter(None, used))) or None


def _gpu_ns(block: Measured) -> float | None:
    return float(sum(block.gpu_ns)) if isinstance(block, Block) and block.gpu_ns else None


def _of_process(field: str) -> Read:
    def read(block: Measured) -> float | None:
        value = getattr(block, field) if isinstance(block, ProcessRun) else None
        return None if value is None else float(value)

    return read


METRICS: dict[MetricName, Read] = {
    "net": _net_ns,  # wall time without waits for a CPU that other processes held
    "wall": wall_ns,  # time on the clock
    "stretch": _stretch,  # the factor by which waiting for a CPU stretched the time
    "cpu": _cpu_ns,
    "gpu": _gpu_ns,
    "user": _of_process("user_ns"),  # user-mode CPU time of the whole process
    "sys": _of_process("sys_ns"),  # kernel-mode CPU time of the whole process
    "real": _of_process("real_ns"),  # engine call to exit, including environment and timer
}
"""How to read each metric from one block or process; None if it was not measured."""


def typical_ns(block: Measured, metric: MetricName, *, by_clock: bool = True) -> float | None:
    """Return the typical step of a block: the lower quartile of its steps, in nanoseconds.

    On a GPU it is the mean: a step ends when it is queued, and the last one waits for the device.
    `stretch` is wall ÷ net of the whole block; a process is one step.
    """
    if isinstance(block, ProcessRun) or metric not in ("net", "wall", "cpu"):
        return METRICS[metric](block)
    if metric != "net" and block.gpu_ns:
        whole = METRICS[metric](block)
        return None if whole is None else whole / block.k
    if metric == "net":
        steps = net_steps_ns(block, by_clock=by_clock)
    else:
        steps = block.wall_ns if metric == "wall" else block.cpu_ns
    return None if not steps else quantile(sorted(steps), _LOWER)


def _keep(
    sample: Measured,
    number: Round,
    typical: float | None,
    whole: float | None,
    places: tuple[_ByArm, _ByArm],
) -> None:
    """Store the logarithm of the typical step, and the mean, since a slower arm has fewer steps."""
    if typical and typical > 0 and whole:
        step = whole / sample.k if isinstance(sample, Block) else whole
        for place, value in zip(places, (math.log(typical), step), strict=True):
            place.setdefault(sample.arm, {})[number] = value


OUTSIDE_SHARE: Final = 0.02
"""The limit of an arm's work outside its turns: share of time, or of blocks with a child."""
# A pool's thread spins this long for more work; on busy x86 hosts OpenMP's took 7 ms per block.
_SPINNING_NS: Final = 20_000_000
# libiomp5 spins for 200 ms (KMP_BLOCKTIME); the rest is a margin.
_INTEL_SPINNING_NS: Final = 220_000_000


def spinning_ns(threads: int, *, is_long: bool = False) -> int:
    """Return the longest time that an arm's pools spin after a block, in ns over its threads.

    The stepping thread is in no pool. `is_long` is for Intel's OpenMP runtime.
    """
    return (_INTEL_SPINNING_NS if is_long else _SPINNING_NS) * max(0, threads - 1)


_Kind = Literal["process", "gpu", "blind", "plain", "helped"]
"""The kinds of samples for the choice of the metric."""


def primary_metric(blocks: Iterable[Measured], *, threads: int | None) -> tuple[MetricName, str]:
    """Return the metric of the verdict, and the reason if it is not `net`.

    `net` is defined if one thread computes on a CPU and its run-queue wait is known. `threads` is
    None if each arm has its own number.
    """
    return _metric_of({_kind(block) for block in blocks}, threads=threads)


def _kind(sample: Measured) -> _Kind:
    if isinstance(sample, ProcessRun):
        return "process"
    if sample.gpu_ns:
        return "gpu"
    if sample.wait_ns is None:
        return "blind"
    return "helped" if sample.is_stopped or sample.children else "plain"


def _metric_of(kinds: set[_Kind], *, threads: int | None) -> tuple[MetricName, str]:
    if "process" in kinds:
        return "wall", "a whole program: how long its threads and children wait is not known"
    if threads is None:
        return "wall", "each arm runs as many threads as it chooses (--threads as-run)"
    if threads > 1:
        return "wall", "more than one thread computes: the waits of all exceed the wall time"
    if "gpu" in kinds:
        return "wall", "the work runs on a GPU"
    if "blind" in kinds:
        return "wall", (
            "the run-queue wait is not known: the kernel does not tell it (schedstat), or several "
            "processes compute"
        )
    is_helped = "helped" in kinds
    why = "processes or threads that the step waits for work on while it waits"
    return ("wall", why) if is_helped else ("net", "")


class Readings:
    """The metrics of the blocks or processes of one cell, and estimates from them.

    Each sample is reduced when added, since thousands of short steps per block would fill the
    memory.
    """

    def __init__(
        self,
        samples: Iterable[Measured] = (),
        *,
        metrics: Iterable[MetricName] = tuple(METRICS),
        threads: int | None = 1,
    ) -> None:
        self._threads = threads
        self._metrics = tuple(metrics)
        self._typical: dict[MetricName, dict[str, dict[Round, float]]] = {}
        self._sums: dict[MetricName, dict[str, dict[Round, float]]] = {}
        self._waits: dict[str, dict[Round, float]] = {}
        # net by CPU time, while every block allows it
        self._by_cpu: tuple[_ByArm, _ByArm] | None = ({}, {})
        self._kinds: set[_Kind] = set()
        self._restarts: set[int] = set()
        self._steps: Counter[str] = Counter()
        self._processes: list[ProcessRun] = []
        self._groups: dict[tuple[str, str, MetricName], Groups] = {}
        for sample in samples:
            self.add(sample)

    def add(self, sample: Measured) -> None:
        """Add a sample, except warm-up and dropped ones."""
        if sample.warmup or sample.status != "ok":
            return
        self._groups.clear()
        number = (sample.restart, sample.generation, sample.round)
        self._kinds.add(_kind(sample))
        self._restarts.add(sample.restart)
        if isinstance(sample, ProcessRun):
            self._processes.append(sample)
        else:
            self._steps[sample.arm] += sample.k
        for metric in self._metrics:
            whole = net_ns(sample, by_clock=True) if metric == "net" else METRICS[metric](sample)
            places = self._typical.setdefault(metric, {}), self._sums.setdefault(metric, {})
            _keep(sample, number, typical_ns(sample, metric), whole, places)
        self._add_net(sample, number)

    def _add_net(self, sample: Measured, number: Round) -> None:
        """Store the wait, and the CPU time while that is valid for all blocks."""
        waited = waited_ns(sample)
        if waited is not None and isinstance(sample, Block):
            self._waits.setdefault(sample.arm, {})[number] = waited / sample.k
        if self._by_cpu is None or "net" not in self._metrics:
            return
        if goes_by_clock(sample):
            self._by_cpu = None
            return
        typical = typical_ns(sample, "net", by_clock=False)
        _keep(sample, number, typical, net_ns(sample, by_clock=False), self._by_cpu)

    @property
    def goes_by_clock(self) -> bool:
        """Tell whether net time is wall time minus the wait, not CPU time, in all blocks."""
        return self._by_cpu is None

    @property
    def restarts(self) -> int:
        """Return the number of restarts, or of passes of processes."""
        return len(self._restarts)

    def design(self, planned: Design) -> Design:
        """Return the design of the cell: of work that used a GPU, with the restarts it needs."""
        return planned.on_gpu() if "gpu" in self._kinds else planned

    def steps(self, arm: str) -> int:
        """Return how many steps of an arm were read, 0 of a program."""
        return self._steps[arm]

    @property
    def is_program(self) -> bool:
        """Tell whether the samples are processes of a plain command."""
        return bool(self._processes)

    @property
    def primary(self) -> tuple[MetricName, str]:
        """Return the metric of the verdict, as in `primary_metric`."""
        return _metric_of(self._kinds, threads=self._threads)

    def logarithms(self, metric: MetricName) -> Logarithms:
        """Return the logarithms of the typical step by arm and round."""
        if metric == "net" and self._by_cpu is not None:
            return self._by_cpu[0]
        return self._typical.get(metric, {})

    def _times(self, metric: MetricName) -> Sums:
        if metric == "net" and self._by_cpu is not None:
            return self._by_cpu[1]
        return self._sums.get(metric, {})

    def far_launches(self, arm: str) -> tuple[FarLaunch, ...]:
        """Return the launches of an arm that took much more, or less, time than its others."""
        metric, _ = self.primary
        return () if self.is_program else far_launches(self.logarithms(metric), arm)

    def by_restart(self, arm: str, metric: MetricName) -> dict[int, list[float]]:
        """Return the logarithms of an arm by restart."""
        restarts: dict[int, list[float]] = {}
        for (restart, _, _), value in self.logarithms(metric).get(arm, {}).items():
            restarts.setdefault(restart, []).append(value)
        return restarts

    def _complete(self, *values: Mapping[Round, float] | None) -> list[Round]:
        """Return the rounds that all of these have, in order."""
        known = [value for value in values if value]
        if len(known) < len(values):
            return []
        return sorted(set.intersection(*(set(one) for one in known)))

    def groups(self, arm: str, reference: str, metric: MetricName) -> Groups:
        """Return the log ratios of an arm's typical step in its complete rounds, by restart."""
        key = (arm, reference, metric)
        if key not in self._groups:
            values = self.logarithms(metric)
            self._groups[key] = grouped(values, arm=arm, reference=reference)
        return self._groups[key]

    def generations(self, arm: str, reference: str, metric: MetricName) -> int:
        """Return the number of generations with a complete round of an arm and the reference."""
        values = self.logarithms(metric)
        complete = self._complete(values.get(arm), values.get(reference))
        return len({number[:2] for number in complete})

    def spread(
        self, arm: str, reference: str, metric: MetricName, prior: Spread | None = None
    ) -> Spread:
        """Return the variation of restarts: pooled over all arms, or that of this one if wider."""
        arms = (one for one in self.logarithms(metric) if one != reference)
        pooled = spread((self.groups(one, reference, metric) for one in arms), prior)
        return own_spread(self.groups(arm, reference, metric), pooled, prior)

    def evidence(  # noqa: PLR0913 — each is an independent choice
        self,
        arm: str,
        reference: str,
        metric: MetricName,
        *,
        prior: Spread | None = None,
        is_strict: bool = False,
        widening: float = 1.0,
    ) -> RoundEvidence | None:
        """Return the evidence of an arm's rounds; None without a complete one."""
        groups = self.groups(arm, reference, metric)
        if not groups:
            return None
        return RoundEvidence(
            groups=groups,
            spread=self.spread(arm, reference, metric, prior),
            generations=self.generations(arm, reference, metric),
            is_strict=is_strict,
            widening=widening,
        )

    def mean(self, arm: str, reference: str, metric: MetricName) -> Contrast | None:
        """Return the log ratio of the sums over all complete rounds, None without one.

        For `stretch` it is wall minus net, so that the parts add up.
        """
        names: tuple[MetricName, ...] = ("wall", "net") if metric == "stretch" else (metric,)
        times = self._rows(
            *(self._times(name).get(one) for name in names for one in (arm, reference))
        )
        return None if times is None else ratio_of_sums(times)

    def _rows(self, *values: Mapping[Round, float] | None) -> list[Floats] | None:
        """Return the values of the rounds that all of these have; None without one."""
        complete = self._complete(*values)
        if not complete:
            return None
        return [
            np.asarray([value[key] for key in complete]) for value in values if value is not None
        ]

    def own_waiting(self, arm: str, reference: str) -> OwnWaiting | None:
        """Return an arm's wait for a CPU beyond the reference's; None if unknown.

        It is counted if it exceeds the control's waiting, whose true value is 0.
        """
        metric, _ = self.primary
        if metric != "net" or self.is_program:
            return None
        control = reference + CONTROL_SUFFIX
        rows, of_control = (self._felt_rows(one, reference) for one in (arm, control))
        if rows is None:
            return None
        waiting = own_waiting(rows, of_control)
        return replace(waiting, is_counted=waiting.is_counted and arm != control)

    def felt(self, arm: str, reference: str, metric: MetricName) -> Contrast | None:
        """Return the log ratio of the time a user feels, over all steps, including own waiting.

        None without a complete round.
        """
        waiting = self.own_waiting(arm, reference) if metric == "net" else None
        if waiting is None or not waiting.is_counted:
            return self.mean(arm, reference, metric)
        rows = self._felt_rows(arm, reference)
        return None if rows is None else felt_ratio(rows)

    def _felt_rows(self, arm: str, reference: str) -> list[Floats] | None:
        times, waits = self._times("net"), self._waits
        known = (times.get(arm), times.get(reference), waits.get(arm), waits.get(reference))
        return self._rows(*known)

    def excess(self, arm: str, reference: str, metric: MetricName) -> Contrast | None:
        """Return the felt mean minus the typical step, as a log ratio; None without a round."""
        waiting = self.own_waiting(arm, reference) if metric == "net" else None
        is_felt = waiting is not None and waiting.is_counted
        values, times = self.logarithms(metric), self._times(metric)
        waits = (self._waits.get(arm), self._waits.get(reference)) if is_felt else ()
        rows = self._rows(
            values.get(arm), values.get(reference), times.get(arm), times.get(reference), *waits
        )
        return None if rows is None else excess_of_mean(rows)

    def step_s(
        self, reference: str, *, compared: str, metric: MetricName, is_mean: bool
    ) -> float | None:
        """Return the seconds of the reference's step in the rounds that it shares with `compared`.

        It is the mean of all steps, or else the median over rounds of the typical step.
        """
        known = self._times(metric) if is_mean else self.logarithms(metric)
        rows = self._rows(known.get(reference), known.get(compared))
        if rows is None:
            return None
        return float(rows[0].mean() if is_mean else np.exp(np.median(rows[0]))) / 1e9

    def headline(  # noqa: PLR0913 — each is an independent choice
        self,
        arm: str,
        reference: str,
        metric: MetricName,
        *,
        typical: Interval,
        equal: Interval,
        spread: Spread,
        alpha: float,
        widening: float,
        widening_of_equal: float,
    ) -> Headline:
        """Return the reported typical step and the mean, which has the rest of the error.

        `equal` is the typical step at the level for equivalence, widened by `widening_of_equal`.
        """
        mean, excess = self.felt(arm, reference, metric), self.excess(arm, reference, metric)
        if mean is None or excess is None:
            return Headline(typical=typical, mean=None, implied=None, excess=None)
        direct = mean.interval(
            level=1 - (1 - TYPICAL_SHARE) * alpha,
            factor=widening,
            spread=spread,
            groups=self.groups(arm, reference, metric),
            generations=typical.generations,
        )
        half, half_equal = (
            student_factor(excess.df, level) * excess.error for level in (1 - ALPHA, EQUAL_LEVEL)
        )
        is_decided = widening > 1 and abs(direct.mean) > DECIDED_FACTOR * direct.half_width
        return Headline(
            typical=typical,
            mean=replace(direct, is_decided=is_decided),
            implied=replace(
                direct,
                half_width=math.hypot(equal.half_width, widening_of_equal * half_equal),
                level=EQUAL_LEVEL,
            ),
            excess=replace(
                direct, mean=excess.mean, half_width=half, level=1 - ALPHA, is_decided=False
            ),
        )

    def complete_rounds(self, arms: Iterable[str], metric: MetricName) -> tuple[Round, ...]:
        """Return the rounds in which all of these arms have a value."""
        values = self.logarithms(metric)
        return tuple(self._complete(*(values.get(arm) for arm in arms)))

    def estimate(self, arm: str, reference: str, metric: MetricName) -> tuple[float, ...]:
        """Return the paired log ratios of an arm's processes.

        Empty if a time in a complete round was below one tick of the clock, of the control too:
        rounds with a tick by chance would be a biased choice.
        """
        pairs = ({arm, reference}, {reference + CONTROL_SUFFIX, reference})
        if any(_has_zeros(self._processes, pair, METRICS[metric]) for pair in pairs):
            return ()
        return flat(paired(self.logarithms(metric), arm=arm, reference=reference))


def _has_zeros(runs: Sequence[ProcessRun], arms: set[str], read: Read) -> bool:
    of_arms = [run for run in runs if run.arm in arms]
    if not of_arms:
        return False
    complete = set.intersection(*({r.number for r in of_arms if r.arm == arm} for arm in arms))
    return any(run.number in complete and not read(run) for run in of_arms)


def widening_for_looks(
    alpha: float, design: Design, *, restarts: int, is_out_of_budget: bool
) -> float:
    """Return the factor that widens an interval of error `alpha` for a cell's looks."""
    share = error_share(
        is_out_of_budget=is_out_of_budget,
        restarts=restarts,
        planned=design.min_restarts,
        is_fixed=design.restarts is not None or design.sessions > 1,
    )
    return look_factor(alpha, share)


def look(  # noqa: PLR0913 — all are inputs of a look
    readings: Readings,
    arms: tuple[str, ...],
    *,
    reference: str,
    design: Design,
    m: int,
    prior: Spread | None = None,
    is_out_of_budget: bool = False,
) -> dict[str, Interval | None]:
    """Return the reported interval of each arm on the primary metric, for m comparisons."""
    metric, _ = readings.primary
    is_strict = design.preset == "strict"
    if readings.is_program:
        return {
            arm: printed_interval(
                readings.estimate(arm, reference, metric),
                comparisons=m,
                is_screening=design.screen,
            )
            for arm in arms
        }
    alpha = error_of_each(m, is_screening=design.screen)
    of_typical, of_mean, of_equal = (
        widening_for_looks(
            error, design, restarts=readings.restarts, is_out_of_budget=is_out_of_budget
        )
        for error in (TYPICAL_SHARE * alpha, (1 - TYPICAL_SHARE) * alpha, 1 - EQUAL_LEVEL)
    )
    intervals: dict[str, Interval | None] = dict.fromkeys(arms)
    for arm in arms:
        evidence = readings.evidence(
            arm, reference, metric, prior=prior, is_strict=is_strict, widening=of_typical
        )
        if evidence is None:
            continue
        headline = readings.headline(
            arm,
            reference,
            metric,
            typical=evidence.printed(alpha=alpha),
            equal=evidence.interval(level=EQUAL_LEVEL, factor=of_equal),
            spread=evidence.spread,
            alpha=alpha,
            widening=of_mean,
            widening_of_equal=of_equal,
        )
        intervals[arm] = deciding_interval(
            headline, margin=design.margin, is_mean_firm=not design.screen
        )
    return intervals
