"""The metrics of a block or a process: how each is read, and which one a verdict rests on.

The lower one is the better throughout; all are nanoseconds but `stretch`, a ratio. A block has two
values of each: its typical step, and the sum of its steps with everything in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from envcompare.run_folder.records import Block, Design, Measured, ProcessRun
from envcompare.stats.intervals import Interval, error_of_each, look_factor, printed_interval
from envcompare.stats.pairs import (
    Logarithms,
    OddRestart,
    Round,
    flat,
    grouped,
    odd_restarts,
    paired,
)
from envcompare.stats.typical import (
    TYPICAL_SHARE,
    Contrast,
    Groups,
    RoundEvidence,
    Spread,
    error_share,
    own_spread,
    quantile,
    ratio_of_sums,
    spread,
)

MetricName = Literal["net", "wall", "stretch", "cpu", "gpu", "user", "sys", "real"]

Read = Callable[[Measured], float | None]
Sums = Mapping[str, Mapping[Round, float]]
"""arm → round → nanoseconds a step, over all steps of a block."""
LOWER = 0.25  # of the steps of a block: what most steps take, whatever a few of them met
_MORE_THREADS = 1.02  # CPU time above the time on the clock: of other threads of the worker


def wall_ns(block: Measured) -> float:
    """Return the wall time of the block's steps, or of the process, in nanoseconds."""
    return float(block.wall_ns if isinstance(block, ProcessRun) else sum(block.wall_ns))


def net_steps_ns(block: Measured) -> Sequence[float] | None:
    """Return what each step took without the wait for a CPU that others held, in nanoseconds.

    Where the thread never gave up the CPU of itself that is its CPU time, which leaves out what a
    hypervisor took as well (paravirtual accounting of steal time; kernel: sched-stats.rst), and the
    time it was stopped by a quota, the environment's own doing. Else it is the wall time less the
    wait in the run queue: a step that sleeps takes its time. None where the wait was not measured
    or leaves nothing.
    """
    if isinstance(block, ProcessRun) or block.wait_ns is None:
        return None
    # the scheduler counts a stop as a wait too; the group may have been stopped on other CPUs
    throttled = min(block.wait_ns, block.throttled_ns or 0)
    wall = wall_ns(block)
    if block.voluntary_switches == 0 and 0 < sum(block.cpu_ns) <= _MORE_THREADS * wall:
        return [cpu + throttled / len(block.cpu_ns) for cpu in block.cpu_ns]
    outside = block.wait_ns - throttled
    share = 1 - outside / wall if wall else 0.0
    return [step * share for step in block.wall_ns] if share > 0 else None


def net_ns(block: Measured) -> float | None:
    """Return the net time of all steps of a block, in nanoseconds; None where it is not known."""
    steps = net_steps_ns(block)
    return None if steps is None else math.fsum(steps)


def _stretch(block: Measured) -> float | None:
    """Return wall ÷ net: 1 where nothing else held the CPU."""
    net = net_ns(block)
    return None if net is None else wall_ns(block) / net


def _cpu_ns(block: Measured) -> float | None:
    """Return the CPU time over the block's steps, or of the whole process, in nanoseconds."""
    used = (block.user_ns, block.sys_ns) if isinstance(block, ProcessRun) else block.cpu_ns
    return float(sum(used)) or None


def _gpu_ns(block: Measured) -> float | None:
    """Return the time between CUDA events over the block's steps in nanoseconds."""
    return float(sum(block.gpu_ns)) if isinstance(block, Block) and block.gpu_ns else None


def _of_process(field: str) -> Read:
    def read(block: Measured) -> float | None:
        return float(getattr(block, field)) if isinstance(block, ProcessRun) else None

    return read


METRICS: dict[MetricName, Read] = {
    "net": net_ns,  # wall time without the wait for a CPU that other processes held
    "wall": wall_ns,  # time on the clock
    "stretch": _stretch,  # how much waiting for a CPU stretched the time
    "cpu": _cpu_ns,
    "gpu": _gpu_ns,
    "user": _of_process("user_ns"),  # CPU time of the whole process outside the kernel
    "sys": _of_process("sys_ns"),  # and inside it
    "real": _of_process("real_ns"),  # engine call to exit, environment and timer included
}
"""How each metric is read from a block or process; None where that did not measure it."""


def typical_ns(block: Measured, metric: MetricName) -> float | None:
    """Return the typical step of a block: the lower quartile of its steps, in nanoseconds.

    On a GPU it is the mean: a step ends when it is queued, and the last one waits for the device.
    `stretch` is wall ÷ net of the whole block; a process is one step.
    """
    if isinstance(block, ProcessRun) or metric not in ("net", "wall", "cpu"):
        return METRICS[metric](block)
    if metric != "net" and block.gpu_ns:
        whole = METRICS[metric](block)
        return None if whole is None else whole / block.k
    steps = {"net": net_steps_ns(block), "wall": block.wall_ns, "cpu": block.cpu_ns}[metric]
    return None if not steps else quantile(sorted(steps), LOWER)


_Kind = Literal["process", "gpu", "blind", "plain"]
"""What a sample is to the choice of the metric."""


def primary_metric(blocks: Iterable[Measured], *, threads: int | None) -> tuple[MetricName, str]:
    """Choose the metric of the verdict and say why where it is not `net`.

    `net` is defined where one thread computes on a CPU and its run-queue wait is known. `threads`
    is None where each arm has as many as it has.
    """
    return _metric_of({_kind(block) for block in blocks}, threads=threads)


def _kind(sample: Measured) -> _Kind:
    if isinstance(sample, ProcessRun):
        return "process"
    if sample.gpu_ns:
        return "gpu"
    return "blind" if sample.wait_ns is None else "plain"


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
    return "net", ""


class Readings:
    """What the metrics read from the blocks or processes of one cell, and the estimates of it.

    Each is read once as it is added, and its steps are not kept: thousands of short ones a block
    would fill the memory.
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
        self._kinds: set[_Kind] = set()
        self._restarts: set[int] = set()
        self._processes: list[ProcessRun] = []
        self._groups: dict[tuple[str, str, MetricName], Groups] = {}
        self._odd: tuple[OddRestart, ...] | None = None
        for sample in samples:
            self.add(sample)

    def add(self, sample: Measured) -> None:
        """Read one more; what warms up and what was dropped is left out."""
        if sample.warmup or sample.status != "ok":
            return
        self._groups.clear()
        self._odd = None
        number = (sample.restart, sample.generation, sample.round)
        self._kinds.add(_kind(sample))
        self._restarts.add(sample.restart)
        if isinstance(sample, ProcessRun):
            self._processes.append(sample)
        for metric in self._metrics:
            typical, whole = typical_ns(sample, metric), METRICS[metric](sample)
            if typical and typical > 0 and whole:
                by_arm = self._typical.setdefault(metric, {})
                by_arm.setdefault(sample.arm, {})[number] = math.log(typical)
                # of a slower arm a block has fewer steps
                step = whole / sample.k if isinstance(sample, Block) else whole
                self._sums.setdefault(metric, {}).setdefault(sample.arm, {})[number] = step

    @property
    def restarts(self) -> int:
        """Return how many restarts, or passes of processes, were read and are taken in."""
        return len(self._restarts) - len(self.odd)

    @property
    def is_program(self) -> bool:
        """Tell whether processes of a plain command were read."""
        return bool(self._processes)

    @property
    def primary(self) -> tuple[MetricName, str]:
        """Return the metric of the verdict, as `primary_metric` does."""
        return _metric_of(self._kinds, threads=self._threads)

    def logarithms(self, metric: MetricName) -> Logarithms:
        """Return the logarithms of the typical step by arm and round."""
        return self._typical.get(metric, {})

    @property
    def odd(self) -> tuple[OddRestart, ...]:
        """Return the restarts that no estimate takes in, since a worker was far off in them."""
        if self._odd is None:
            metric, _ = self.primary
            self._odd = () if self.is_program else odd_restarts(self.logarithms(metric))
        return self._odd

    def by_restart(self, arm: str, metric: MetricName) -> dict[int, list[float]]:
        """Return the logarithms of an arm by restart, odd restarts left out."""
        odd = {one.restart for one in self.odd}
        restarts: dict[int, list[float]] = {}
        for (restart, _, _), value in self.logarithms(metric).get(arm, {}).items():
            if restart not in odd:
                restarts.setdefault(restart, []).append(value)
        return restarts

    def _complete(self, *values: Mapping[Round, float] | None) -> list[Round]:
        """Return the rounds that all of these have, odd restarts left out, in their order."""
        known = [one for one in values if one]
        if len(known) < len(values):
            return []
        odd = {one.restart for one in self.odd}
        both = set.intersection(*(set(one) for one in known))
        return sorted(number for number in both if number[0] not in odd)

    def groups(self, arm: str, reference: str, metric: MetricName) -> Groups:
        """Return the log ratios of an arm's typical step in its complete rounds, by restart."""
        key = (arm, reference, metric)
        if key not in self._groups:
            odd = {one.restart for one in self.odd}
            values = self.logarithms(metric)
            self._groups[key] = grouped(values, arm=arm, reference=reference, left_out=odd)
        return self._groups[key]

    def generations(self, arm: str, reference: str, metric: MetricName) -> int:
        """Return in how many generations an arm and the reference have a complete round."""
        values = self.logarithms(metric)
        complete = self._complete(values.get(arm), values.get(reference))
        return len({number[:2] for number in complete})

    def spread(
        self, arm: str, reference: str, metric: MetricName, prior: Spread | None = None
    ) -> Spread:
        """Return how far restarts scatter: pooled over all arms, or of this one where wider."""
        arms = (one for one in self.logarithms(metric) if one != reference)
        pooled = spread((self.groups(one, reference, metric) for one in arms), prior)
        return own_spread(self.groups(arm, reference, metric), pooled, prior)

    def evidence(  # noqa: PLR0913 — each is a choice of its own
        self,
        arm: str,
        reference: str,
        metric: MetricName,
        *,
        prior: Spread | None = None,
        is_strict: bool = False,
        widening: float = 1.0,
    ) -> RoundEvidence | None:
        """Return what the rounds of an arm say; None without a complete one."""
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

        That of `stretch` is the one of wall less the one of net, so that both add up to it.
        """
        names: tuple[MetricName, ...] = ("wall", "net") if metric == "stretch" else (metric,)
        known = [self._sums.get(name, {}).get(one) for name in names for one in (arm, reference)]
        complete = self._complete(*known)
        if not complete:
            return None
        return ratio_of_sums(
            [np.asarray([one[key] for key in complete]) for one in known if one is not None]
        )

    def complete_rounds(self, arms: Iterable[str], metric: MetricName) -> tuple[Round, ...]:
        """Return the rounds in which all of these arms have a value."""
        values = self.logarithms(metric)
        return tuple(self._complete(*(values.get(arm) for arm in arms)))

    def estimate(self, arm: str, reference: str, metric: MetricName) -> tuple[float, ...]:
        """Return the paired log ratios of the processes of an arm.

        Nothing where a time was below one tick of the clock in a complete round: the rounds that
        happened to meet a tick would be a biased choice.
        """
        if _has_zeros(self._processes, {arm, reference}, METRICS[metric]):
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
    """Return the factor by which an interval of the error `alpha` pays for the looks of a cell."""
    share = error_share(
        is_out_of_budget=is_out_of_budget,
        restarts=restarts,
        planned=design.min_restarts,
        is_fixed=design.restarts is not None,
    )
    return look_factor(alpha, share)


def look(  # noqa: PLR0913 — a look is at all of this
    readings: Readings,
    arms: tuple[str, ...],
    *,
    reference: str,
    design: Design,
    m: int,
    prior: Spread | None = None,
    is_out_of_budget: bool = False,
) -> dict[str, Interval | None]:
    """Return the printed interval of each arm on the primary metric; m planned comparisons."""
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
    widening = widening_for_looks(
        TYPICAL_SHARE * alpha, design, restarts=readings.restarts, is_out_of_budget=is_out_of_budget
    )
    evidence = {
        arm: readings.evidence(
            arm, reference, metric, prior=prior, is_strict=is_strict, widening=widening
        )
        for arm in arms
    }
    return {arm: None if one is None else one.printed(alpha=alpha) for arm, one in evidence.items()}
