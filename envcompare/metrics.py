"""The metrics of a block: name, unit, better direction, definition, and how each is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from envcompare.records import Block

MetricName = Literal["net", "wall", "stretch", "cpu", "gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A quantity of one block; `read` gives None where the block did not measure it."""

    name: MetricName
    unit: str
    better: Literal["lower"]
    definition: str
    read: Callable[[Block], float | None]


def wall_ns(block: Block) -> float:
    """Return the wall time of the block's steps in nanoseconds."""
    return float(sum(block.wall_ns))


def net_ns(block: Block) -> float | None:
    """Return wall − (run-queue wait − throttled time), in nanoseconds.

    Throttling by a quota is the environment's own doing and stays in (MEASUREMENT: metrics of a
    block). None where the wait was not measured or leaves nothing.
    """
    if block.wait_ns is None:
        return None
    outside = max(0, block.wait_ns - min(block.wait_ns, block.throttled_ns or 0))
    net = wall_ns(block) - outside
    return net if net > 0 else None


def stretch(block: Block) -> float | None:
    """Return wall ÷ net: 1 where no other process held the CPU."""
    net = net_ns(block)
    return None if net is None else wall_ns(block) / net


def cpu_ns(block: Block) -> float | None:
    """Return the CPU time of the process over the block's steps in nanoseconds."""
    total = float(sum(block.cpu_ns))
    return total if total > 0 else None


def gpu_ns(block: Block) -> float | None:
    """Return the time between CUDA events over the block's steps in nanoseconds."""
    return float(sum(block.gpu_ns)) if block.gpu_ns else None


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
    )
}
