"""Types for hosts, for estimates over hosts, and for comparisons of host groups.

They are a part of comparison.json.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from envcompare.run_folder.records import FactClass, FingerprintValue, Scalar

GroupOutcome = Literal["slower", "faster", "equivalent", "inconclusive", "not-run"]
HostFact = Literal["torch.version", "torch.cuda", "lock.sha256"]
"""Software that may differ between hosts because of their drivers, GPUs and Pythons."""


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A build of PyTorch: its release and CUDA version, empty for a CPU build."""

    version: str
    cuda: str = ""


class HostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware and software of one host; empty fields are unknown."""

    host: str
    devices: dict[str, str] = {}  # by cell, as its worker reported: cpu or cuda
    processor: str = ""
    cpu_family: str = ""  # with model and stepping, if the processor has numbers for them
    microcode: str = ""
    kernel: str = ""
    gpus: tuple[str, ...] = ()  # models that the arms found
    driver: str = ""
    torch: tuple[TorchBuild, ...] = ()  # imported by the arms
    unused_gpus: str = ""  # present but excluded from the run
    unused_driver: str = ""
    wheels: str = ""  # reason for this PyTorch


class HostDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Software of an arm that differs between hosts, a confounder for estimates over hosts."""

    arm: str
    key: HostFact
    values: dict[str, FingerprintValue]  # by host
    fact_class: Literal["confounder"] = "confounder"


class HostsEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The estimate over several hosts of one group for an arm; the host is a random effect."""

    workload: str
    parameters: dict[str, Scalar] = {}
    arm: str
    group: str = ""  # of hosts; empty: the whole run
    hosts: int  # number of hosts with a measurement
    log_ratio: float  # the mean over similar hosts
    low: float
    high: float
    tau: float  # standard deviation of the log ratio between hosts, without their own errors
    level: float  # corrected for the number of these statements
    outcome: Literal["slower", "faster", "equivalent", "inconclusive"]
    odd_hosts: tuple[str, ...] = ()  # far from the others, the farthest first


class GroupDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A property in which two groups of hosts differ, as one arm found it."""

    group: str
    reference_group: str
    arm: str
    key: str
    fact_class: FactClass  # host: a property of the machine, which is what is compared
    values: dict[str, FingerprintValue]  # by host; for lists, the entries that not all hosts have
    is_apart: bool  # no host of one group equals a host of the other


class GroupEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A group of hosts against another, in one workload and arm.

    For times it is the log ratio of the typical step there ÷ here. If `against` names an arm, it is
    the ratio arm ÷ `against` there ÷ the same ratio here: how much the effect of an environment
    differs.
    """

    group: str
    reference_group: str
    workload: str
    parameters: dict[str, Scalar] = {}
    within: str = ""  # as in its cells
    arm: str
    against: str = ""  # empty: times are compared
    outcome: GroupOutcome
    metric: str = ""
    # By host, in group order: seconds of the typical step, or the log ratio to `against`
    values: dict[str, float] = {}
    reference_values: dict[str, float] = {}
    left_out: tuple[str, ...] = ()  # hosts without a known error, as with one restart
    log_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    # Corrected for the number of statements of its kind. For costs on two machines it is the level
    # of the run's intervals.
    level: float | None = None
    unit: Literal["host", "restart"] = "host"  # the sampling unit; restarts if a group has one host
    # Hosts whose reference differed from itself, so that claims on costs below it were withdrawn.
    failed_controls: tuple[str, ...] = ()
    is_confounded: bool = False  # the arm's software also differs between the groups
    why_not: str = ""  # reason if it was not compared
