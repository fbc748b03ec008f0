"""Read the partitions of a cluster, with their nodes and limits, on its login node."""

from __future__ import annotations

import math
from dataclasses import dataclass

from envcompare.command import Command
from envcompare.config.scheduling import Allocation, AllocationTable, Gres, offered_gres
from envcompare.errors import ConfigError, UnusableError
from envcompare.text import closest, counted
from envcompare.transport import run
from envcompare.transport.local import LOCAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of a cluster: its time limit, and what each of its nodes has."""

    name: str
    is_default: bool
    limit: str  # as Slurm prints it: [DAYS-][HH:]MM:SS, or a word if there is no limit
    nodes: tuple[tuple[Gres, ...], ...]

    @property
    def limit_s(self) -> float:
        """Return the longest time of a job."""
        days, _, clock = self.limit.rpartition("-")
        parts = clock.split(":")
        if not all(part.isdecimal() for part in (*parts, days or "0")):
            return math.inf
        hours, minutes, seconds = (0, 0, *map(int, parts))[-3:]
        return float(int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds)

    @property
    def offer(self) -> str:
        """Describe the nodes: "2 nodes, up to gpu:a100:4 each"."""
        most = max(self.nodes, key=lambda node: sum(gres.count for gres in node))
        each = f", up to {','.join(map(str, most))} each" if most else ", without GRES"
        return counted(len(self.nodes), "node") + each

    def has_room(self, allocation: Allocation) -> bool:
        """Return whether enough nodes have the requested resources."""
        wanted = allocation.gres
        fitting = [node for node in self.nodes if wanted is None or wanted.is_met_by(node)]
        return len(fitting) >= allocation.nodes


def partitions() -> tuple[Partition, ...]:
    """Return the partitions of the cluster that this machine is a login node of.

    Raises UnusableError if there is none.
    """
    argv = ("sinfo", "--noheader", "--Node", "--format=%P|%l|%G")
    listing = run(LOCAL, Command(argv=argv))
    lines = [line.split("|", 2) for line in listing.stdout.splitlines() if line.count("|") > 1]
    if not (listing.succeeded and lines):
        raise UnusableError(
            "Slurm does not answer on this machine",
            details=listing.tail(1) or "it lists no partition",
            hint="run envcompare on a login node of the cluster",
        )
    limits = {name: limit for name, limit, _ in lines}
    return tuple(
        Partition(
            name=name.rstrip("*"),
            is_default=name.endswith("*"),
            limit=limit,
            nodes=tuple(offered_gres(gres) for each, _, gres in lines if each == name),
        )
        for name, limit in limits.items()
    )


def check_partition(allocation: Allocation, table: AllocationTable) -> None:
    """Refuse what the partition does not have; raises as `allocation.check_available`."""
    partition = _chosen(table.partition)
    if allocation.time_s > partition.limit_s:
        raise ConfigError(
            f"--allocation time={table.time} is longer than the partition allows",
            details=f"a job in {partition.name} may last {partition.limit}",
            hint="request less time, or another partition (`sinfo -o '%R %l'`)",
        )
    if not partition.has_room(allocation):
        raise ConfigError(
            f"--allocation: the partition {partition.name} does not have {allocation.wish}",
            details=f"it has {partition.offer}",
            hint="request fewer nodes or GPUs, or another partition (`sinfo -o '%R %D %G'`)",
        )


def _chosen(name: str | None) -> Partition:
    known = partitions()
    for partition in known:
        if partition.name == name or (name is None and partition.is_default):
            return partition
    names = tuple(partition.name for partition in known)
    if name is None:
        raise ConfigError("--allocation names no partition", hint=f"known: {', '.join(names)}")
    raise ConfigError(f"--allocation: unknown partition `{name}`", hint=closest(name, names))
