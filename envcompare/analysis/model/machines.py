"""What hosts are, what they say together and how groups of them compare, as types.

They are a part of comparison.json.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from envcompare.run_folder.records import FactClass, FingerprintValue, Scalar

GroupOutcome = Literal["slower", "faster", "equivalent", "inconclusive", "not-run"]
HostFact = Literal["torch.version", "torch.cuda", "lock.sha256"]
"""Software that hosts of one run may get by their drivers, GPUs and Pythons."""


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A build of PyTorch: its release, and the CUDA it is built for, empty for the CPU alone."""

    version: str
    cuda: str = ""


class HostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the work ran on, on one host; empty is not known."""

    host: str
    devices: dict[str, str] = {}  # by cell, as its worker said: cpu or cuda
    processor: str = ""
    cpu_family: str = ""  # with model and stepping, where the processor numbers them
    microcode: str = ""
    kernel: str = ""
    gpus: tuple[str, ...] = ()  # models that the arms saw
    driver: str = ""
    torch: tuple[TorchBuild, ...] = ()  # that the arms imported
    unused_gpus: str = ""  # are there, and were not to be used
    unused_driver: str = ""
    wheels: str = ""  # why its arms got this PyTorch


class HostDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Software of an arm that differs between hosts: a confounder of what is said over hosts."""

    arm: str
    key: HostFact
    values: dict[str, FingerprintValue]  # by host
    fact_class: Literal["confounder"] = "confounder"


class HostsEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What several hosts, all of one group, say together of an arm; the host is a random effect."""

    workload: str
    parameters: dict[str, Scalar] = {}
    arm: str
    group: str = ""  # of hosts; empty: all of the run
    hosts: int  # that have measured it
    log_ratio: float  # the mean of hosts like these
    low: float
    high: float
    tau: float  # standard deviation of the log ratio between hosts, their own errors taken off
    level: float  # widened for the number of these statements
    outcome: Literal["slower", "faster", "equivalent", "inconclusive"]
    odd_hosts: tuple[str, ...] = ()  # far from the others, the farthest first


class GroupDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A property in which two groups of hosts differ, as one of the arms saw it."""

    group: str
    reference_group: str
    arm: str
    key: str
    fact_class: FactClass  # host: of the machine, which is what is compared
    values: dict[str, FingerprintValue]  # by host; of a list what not all hosts have
    is_apart: bool  # no host of the one group is as a host of the other


class GroupEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A group of hosts against another, in one workload and arm.

    Of times it is the log ratio of the typical step there ÷ here. Where `against` names an arm it
    is that of arm ÷ `against` there, less the same here: how far the effect of an environment
    differs.
    """

    group: str
    reference_group: str
    workload: str
    parameters: dict[str, Scalar] = {}
    within: str = ""  # as of its cells
    arm: str
    against: str = ""  # empty: times are compared
    outcome: GroupOutcome
    metric: str = ""
    # By host, in the order of its group: seconds of the typical step, or the log ratio to `against`
    values: dict[str, float] = {}
    reference_values: dict[str, float] = {}
    left_out: tuple[str, ...] = ()  # hosts of both whose error nothing tells, as with one restart
    log_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    # Widened for the number of statements of its kind; of what environments cost on two machines
    # it is that of the run's intervals.
    level: float | None = None
    unit: Literal["host", "restart"] = "host"  # what scatters; restarts where a group is one host
    # Hosts whose reference differed from itself: no claim on costs below that was kept.
    failed_controls: tuple[str, ...] = ()
    is_confounded: bool = False  # software of the arm differs between the groups as well
    why_not: str = ""  # it was not compared
