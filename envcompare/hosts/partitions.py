"""What a cluster has, as its login node lists it: partitions or queues, their nodes and limits."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass

from envcompare.command import Command
from envcompare.config.scheduling import (
    Allocation,
    AllocationTable,
    Gres,
    offered_gres,
    resources_of,
)
from envcompare.errors import ConfigError, UnusableError
from envcompare.text import closest, counted
from envcompare.transport import run
from envcompare.transport.local import LOCAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of a cluster: the longest time, and what each of its nodes has."""

    name: str
    is_default: bool
    limit: str  # as Slurm writes it
    nodes: tuple[tuple[Gres, ...], ...]

    @property
    def limit_s(self) -> float:
        """Return the longest time of a job."""
        return _limit_s(self.limit)

    @property
    def offer(self) -> str:
        """Say what it has: "2 nodes, up to gpu:a100:4 each"."""
        most = max(self.nodes, key=lambda node: sum(gres.count for gres in node))
        each = f", up to {','.join(map(str, most))} each" if most else ", without GRES"
        return counted(len(self.nodes), "node") + each

    def has_room(self, allocation: Allocation) -> bool:
        """Tell whether so many of its nodes have what is asked for."""
        wanted = allocation.gres
        fitting = [node for node in self.nodes if wanted is None or wanted.is_met_by(node)]
        return len(fitting) >= allocation.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue of Grid Engine: the longest time, and the slots of each of its nodes."""

    name: str
    limit: str  # as Grid Engine writes it, of the node with the longest
    slots: tuple[int, ...]
    environments: tuple[str, ...]  # the parallel ones
    free: tuple[str, ...]  # consumable resources that nodes have now, as "gpu=2"

    @property
    def limit_s(self) -> float:
        """Return the longest time of a job."""
        return _limit_s(self.limit)

    @property
    def offer(self) -> str:
        """Say what it has: "2 nodes of up to 8 slots, free now gpu=2; parallel environments a"."""
        nodes = f"{counted(len(self.slots), 'node')} of up to {counted(max(self.slots), 'slot')}"
        free = f", free now {', '.join(self.free)}" if self.free else ""
        parallel = ", ".join(self.environments) or "none"
        return f"{nodes}{free}; parallel environments {parallel}"

    def problem(self, allocation: Allocation, table: AllocationTable) -> str:
        """Say why a job cannot run in it; empty where it can."""
        slots = table.slots or 1
        if table.pe is not None and table.pe not in self.environments:
            return f"{self.name} does not have the parallel environment {table.pe}: {self.offer}"
        if slots > max(self.slots):
            return f"{self.name} does not have a node with {slots} slots: {self.offer}"
        if allocation.time_s > self.limit_s:
            return f"a job in {self.name} may last {self.limit}, and time={table.time} is longer"
        return ""


def _limit_s(text: str) -> float:
    """Return a time as the schedulers write it: [DAYS-][HH:]MM:SS, or a word where none is set."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in (*parts, days or "0")):
        return math.inf
    hours, minutes, seconds = (0, 0, *map(int, parts))[-3:]
    return float(int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds)


def partitions() -> tuple[Partition, ...]:
    """Return the partitions of the cluster that this machine is a login node of.

    Raises UnusableError where there is none.
    """
    argv = ("sinfo", "--noheader", "--Node", "--format=%P|%l|%G")
    listing = run(LOCAL, Command(argv=argv))
    lines = [line.split("|", 2) for line in listing.stdout.splitlines() if line.count("|") > 1]
    if not (listing.succeeded and lines):
        raise UnusableError(
            "Slurm does not answer on this machine",
            details=listing.tail(1) or "it lists no partition",
            hint="run envcompare on a login node of the cluster, where `sinfo` lists partitions",
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


def queues() -> tuple[Queue, ...]:
    """Return the queues of Grid Engine that this machine may submit to.

    Raises UnusableError where there is none.
    """
    listing = run(LOCAL, Command(argv=("qstat", "-f", "-F", "-xml")))
    try:
        listed = ET.fromstring(listing.stdout) if listing.succeeded else None  # noqa: S314 — qstat's
    except ET.ParseError:
        listed = None
    instances: dict[str, list[ET.Element]] = {}
    for each in () if listed is None else listed.iter("Queue-List"):
        instances.setdefault(each.findtext("name", "").partition("@")[0], []).append(each)
    if not instances:
        raise UnusableError(
            "Grid Engine does not answer on this machine",
            details=listing.tail(1) or "it lists no queue",
            hint="run envcompare on a submit host of the cluster, where `qstat -f` lists queues",
        )
    return tuple(_queue(name, nodes) for name, nodes in instances.items())


def _queue(name: str, nodes: list[ET.Element]) -> Queue:
    said = [(e.get("name", ""), e.get("type", ""), e.text or "") for n in nodes for e in n]
    limits = (node.findtext("*[@name='h_rt']", "infinity") for node in nodes)
    of_queue = _shown("-sq", name)
    return Queue(
        name=name,
        limit=max(limits, key=_limit_s),
        slots=tuple(int(node.findtext("slots_total", "0")) for node in nodes),
        environments=tuple(pe for pe in of_queue.get("pe_list", "").split() if pe != "NONE"),
        free=tuple(dict.fromkeys(f"{key}={text}" for key, kind, text in said if kind == "hc")),
    )


def _shown(option: str, name: str) -> dict[str, str]:
    """Return what `qconf` shows of a queue or parallel environment, by the names of its lines."""
    lines = run(LOCAL, Command(argv=("qconf", option, name))).stdout.replace("\\\n", " ")
    pairs = (line.partition(" ") for line in lines.splitlines())
    return {key: re.sub(r",?\[[^]]*\]|,", " ", text).strip() for key, _, text in pairs}


def check_queue(allocation: Allocation, table: AllocationTable) -> None:
    """Refuse what no queue has that is meant; raises as `allocation.check_available`."""
    known = queues()
    names = tuple(queue.name for queue in known)
    if table.queue is not None and table.queue not in names:
        brief = f"--allocation: unknown queue `{table.queue}`"
        raise ConfigError(brief, hint=closest(table.queue, names))
    meant = [queue for queue in known if table.queue in {None, queue.name}]
    problems = [queue.problem(allocation, table) for queue in meant]
    if all(problems):
        raise ConfigError(
            "--allocation: no queue has what is asked for",
            details="; ".join(problems),
            hint="ask for less, or for another queue; `envcompare doctor` lists them",
        )
    _check_resources(table)
    _check_rule(table)


def _check_resources(table: AllocationTable) -> None:
    listing = run(LOCAL, Command(argv=("qconf", "-sc"))).stdout
    lines = (line.split() for line in listing.splitlines() if not line.startswith("#"))
    known = {name for line in lines for name in line[:2]}
    for name in resources_of(table.resources or ""):
        if name not in known:
            hint = closest(name, tuple(sorted(known)))
            raise ConfigError(f"--allocation: unknown resource `{name}`", hint=hint)


def _check_rule(table: AllocationTable) -> None:
    """Refuse a parallel environment that may place the slots of a job on several nodes."""
    if table.pe is None:
        return
    rule = _shown("-sp", table.pe).get("allocation_rule", "")
    if rule not in {"$pe_slots", str(table.slots or 1)} and (table.slots or 1) > 1:
        raise ConfigError(
            f"--allocation pe={table.pe} may give slots on several nodes",
            details=f"its allocation rule is {rule}, and a single node is measured",
            hint="name a parallel environment whose rule is $pe_slots; `qconf -spl` lists them",
        )


def check_partition(allocation: Allocation, table: AllocationTable) -> None:
    """Refuse what the partition does not have; raises as `allocation.check_available`."""
    partition = _chosen(table.partition)
    if allocation.time_s > partition.limit_s:
        raise ConfigError(
            f"--allocation time={table.time} is longer than the partition allows",
            details=f"a job in {partition.name} may last {partition.limit}",
            hint="ask for less time, or for another partition; `sinfo -o '%R %l'` lists limits",
        )
    if not partition.has_room(allocation):
        raise ConfigError(
            f"--allocation: the partition {partition.name} does not have {allocation.wish}",
            details=f"it has {partition.offer}",
            hint="ask for fewer nodes or GPUs, or for another partition; `sinfo -o '%R %D %G'` "
            "lists them",
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
