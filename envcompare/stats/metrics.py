"""The metrics of a block or a process: how each is read, and which one a verdict rests on.

The lower one is the better throughout; all are nanoseconds but `stretch`, a ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from envcompare.run_folder.records import CONTROL_SUFFIX, Block, Design, Measured, ProcessRun
from envcompare.stats.intervals import Interval, printed_interval
from envcompare.stats.pairs import Logarithms, Pairs, Units, logarithms, paired, units

MetricName = Literal["net", "wall", "stretch", "cpu", "gpu", "user", "sys", "real"]
Estimated = tuple[Pairs, Units]


Read = Callable[[Measured], float | None]


def wall_ns(block: Measured) -> float:
    """Return the wall time of the block's steps, or of the process, in nanoseconds."""
    return float(block.wall_ns if isinstance(block, ProcessRun) else sum(block.wall_ns))


def net_ns(block: Measured) -> float | None:
    """Return wall − (run-queue wait − throttled time), in nanoseconds.

    Throttling by a quota is the environment's own doing and stays in. None where the wait was not
    measured or leaves nothing.
    """
    if isinstance(block, ProcessRun) or block.wait_ns is None:
        return None
    outside = max(0, block.wait_ns - min(block.wait_ns, block.throttled_ns or 0))
    net = wall_ns(block) - outside
    return net if net > 0 else None


def _stretch(block: Measured) -> float | None:
    """Return wall ÷ net: 1 where no other process held the CPU."""
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


def primary_metric(blocks: Iterable[Measured], *, threads: int) -> tuple[MetricName, str]:
    """Choose the metric of the verdict and say why where it is not `net`.

    `net` is defined where one thread computes on a CPU and the kernel tells the run-queue wait.
    """
    everything = tuple(blocks)
    seen = tuple(block for block in everything if isinstance(block, Block))
    if len(seen) < len(everything):
        return "wall", "a whole program: how long its threads and children wait is not known"
    if threads > 1:
        return "wall", "more than one thread computes: the waits of all exceed the wall time"
    if any(block.gpu_ns for block in seen):
        return "wall", "the work runs on a GPU"
    if any(block.wait_ns is None for block in seen):
        return "wall", "the kernel does not tell the run-queue wait (schedstat)"
    return "net", ""


class Readings:
    """What the metrics read from the blocks of one cell, and the estimates made of it.

    Each block is read once for each metric, and each estimate made once: a cell with many arms is
    asked for the same ones again and again.
    """

    def __init__(self, blocks: Iterable[Measured]) -> None:
        self._blocks = tuple(b for b in blocks if not b.warmup and b.status == "ok")
        self._processes = tuple(b for b in self._blocks if isinstance(b, ProcessRun))
        self._logarithms: dict[MetricName, Logarithms] = {}
        self._estimates: dict[tuple[str, str, MetricName], Estimated] = {}

    def logarithms(self, metric: MetricName) -> Logarithms:
        """Return the logarithms of a metric by arm and round."""
        if metric not in self._logarithms:
            self._logarithms[metric] = logarithms(self._blocks, read=METRICS[metric])
        return self._logarithms[metric]

    def pairs(self, arm: str, reference: str, metric: MetricName) -> Pairs:
        """Return the paired log ratios of an arm."""
        return paired(self.logarithms(metric), arm=arm, reference=reference)

    def estimate(self, arm: str, reference: str, metric: MetricName) -> Estimated:
        """Return the paired log ratios of an arm and its balanced units, as `estimate` does."""
        key = (arm, reference, metric)
        if key not in self._estimates:
            self._estimates[key] = self._estimated(arm, reference, metric)
        return self._estimates[key]

    def _estimated(self, arm: str, reference: str, metric: MetricName) -> Estimated:
        if _has_zeros(self._processes, {arm, reference}, METRICS[metric]):
            return {}, ()
        pairs = self.pairs(arm, reference, metric)
        if metric == "stretch":
            wall, net = (self.estimate(arm, reference, name) for name in ("wall", "net"))
            if _rounds(wall[0]) == _rounds(net[0]):
                return pairs, _subtracted(wall[1], net[1])
        return pairs, units(pairs)


def estimate(
    blocks: Iterable[Measured], *, arm: str, reference: str, metric: MetricName
) -> Estimated:
    """Return the paired log ratios of an arm and its balanced units.

    Units of `stretch` are those of wall − net: log(wall) = log(net) + log(stretch) then holds for
    what is reported as it does for each block, though a median or a trimmed mean is not additive.
    """
    taken = {arm, reference, reference + CONTROL_SUFFIX}
    readings = Readings(block for block in blocks if block.arm in taken)
    return readings.estimate(arm, reference, metric)


def _has_zeros(runs: tuple[ProcessRun, ...], arms: set[str], read: Read) -> bool:
    """Tell whether a complete round of processes has no ratio, since a time was below one tick.

    The rounds that happened to meet a tick would then be a biased choice.
    """
    of_arms = [run for run in runs if run.arm in arms]
    complete = set.intersection(*({r.number for r in of_arms if r.arm == arm} for arm in arms))
    return any(run.number in complete and not read(run) for run in of_arms)


def _rounds(pairs: Pairs) -> list[list[int]]:
    return [[len(rounds) for rounds in generations.values()] for generations in pairs.values()]


def _subtracted(minuends: Units, subtrahends: Units) -> Units:
    return tuple(
        tuple(a - b for a, b in zip(one, other, strict=True))
        for one, other in zip(minuends, subtrahends, strict=True)
    )


def look(
    blocks: tuple[Measured, ...], arms: tuple[str, ...], *, reference: str, design: Design, m: int
) -> dict[str, Interval | None]:
    """Return the printed interval of each arm on the primary metric; m planned comparisons."""
    metric, _ = primary_metric(blocks, threads=design.threads)
    readings = Readings(blocks)
    return {
        arm: printed_interval(
            readings.estimate(arm, reference, metric)[1],
            comparisons=m,
            is_strict=design.preset == "strict",
            is_screening=design.screen,
        )
        for arm in arms
    }
