"""The metrics of a block or a process: how each is read, and which one a verdict rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from envcompare.records import Block, Design, Measured, ProcessRun
from envcompare.stats.intervals import Interval, printed_interval
from envcompare.stats.pairs import Pairs, Units, pair, units

MetricName = Literal["net", "wall", "stretch", "cpu", "gpu", "user", "sys", "real"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A quantity of one block or process; `read` gives None where that did not measure it."""

    name: MetricName
    unit: str
    better: Literal["lower"]
    definition: str
    read: Callable[[Measured], float | None]


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


def stretch(block: Measured) -> float | None:
    """Return wall ÷ net: 1 where no other process held the CPU."""
    net = net_ns(block)
    return None if net is None else wall_ns(block) / net


def cpu_ns(block: Measured) -> float | None:
    """Return the CPU time over the block's steps, or of the whole process, in nanoseconds."""
    used = (block.user_ns, block.sys_ns) if isinstance(block, ProcessRun) else block.cpu_ns
    return float(sum(used)) or None


def gpu_ns(block: Measured) -> float | None:
    """Return the time between CUDA events over the block's steps in nanoseconds."""
    return float(sum(block.gpu_ns)) if isinstance(block, Block) and block.gpu_ns else None


def _of_process(name: Literal["user", "sys", "real"], definition: str) -> Metric:
    def read(block: Measured) -> float | None:
        return float(getattr(block, f"{name}_ns")) if isinstance(block, ProcessRun) else None

    return Metric(name=name, unit="ns", better="lower", definition=definition, read=read)


METRICS: dict[MetricName, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="net",
            unit="ns",
            better="lower",
            definition="wall time without the wait for a CPU that other processes held",
            read=net_ns,
        ),
        Metric(
            name="wall", unit="ns", better="lower", definition="time on the clock", read=wall_ns
        ),
        Metric(
            name="stretch",
            unit="1",
            better="lower",
            definition="wall ÷ net: how much waiting for a CPU stretched the time",
            read=stretch,
        ),
        Metric(name="cpu", unit="ns", better="lower", definition="CPU time used", read=cpu_ns),
        Metric(
            name="gpu",
            unit="ns",
            better="lower",
            definition="time between CUDA events around each step",
            read=gpu_ns,
        ),
        _of_process("user", "CPU time of the whole process outside the kernel"),
        _of_process("sys", "CPU time of the whole process inside the kernel"),
        _of_process("real", "engine call to exit, the start of environment and timer included"),
    )
}


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


def estimate(
    blocks: Iterable[Measured], *, arm: str, reference: str, metric: MetricName
) -> tuple[Pairs, tuple[tuple[float, ...], ...]]:
    """Return the paired log ratios of an arm and its balanced units.

    Units of `stretch` are those of wall − net: log(wall) = log(net) + log(stretch) then holds for
    what is reported as it does for each block, though a median or a trimmed mean is not additive.
    """
    seen = tuple(blocks)

    def paired(name: MetricName) -> Pairs:
        return pair(seen, arm=arm, reference=reference, read=METRICS[name].read)

    if _has_zeros(seen, {arm, reference}, METRICS[metric]):
        return {}, ()
    pairs = paired(metric)
    if metric == "stretch" and _rounds(wall := paired("wall")) == _rounds(net := paired("net")):
        return pairs, _subtracted(units(wall), units(net))
    return pairs, units(pairs)


def _has_zeros(blocks: tuple[Measured, ...], arms: set[str], metric: Metric) -> bool:
    """Tell whether a complete round of processes has no ratio, since a time was below one tick.

    The rounds that happened to meet a tick would then be a biased choice.
    """
    runs = [
        run
        for run in blocks
        if isinstance(run, ProcessRun) and run.arm in arms and run.status == "ok" and not run.warmup
    ]
    complete = set.intersection(*({r.number for r in runs if r.arm == arm} for arm in arms))
    return any(run.number in complete and not metric.read(run) for run in runs)


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
    return {
        arm: printed_interval(
            estimate(blocks, arm=arm, reference=reference, metric=metric)[1],
            comparisons=m,
            is_strict=design.preset == "strict",
            is_screening=design.screen,
        )
        for arm in arms
    }
