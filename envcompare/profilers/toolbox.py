"""The profilers by name, and which of them can be used on a host.

This is the only place that decides which environments may read GPU counters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from envcompare.config import CounterAccess
from envcompare.environments import Check, ask, unusable
from envcompare.environments.registry import environment as environment_by_name
from envcompare.errors import Problem
from envcompare.profilers import Pass, Profiler, ProfilerRun, Tool, WorkerProfiler, ncu, nsys
from envcompare.profilers.host import HostCounters
from envcompare.profilers.torch import Torch
from envcompare.run_folder.profiles import Lacking, PassName
from envcompare.run_folder.records import ProfileChoice
from envcompare.text import Command
from envcompare.transport import Transport

PROFILERS: Final[Mapping[str, Profiler]] = {nsys.NAME: nsys.Nsys(), ncu.NAME: ncu.Ncu()}
"""Programs around the worker, in pass order."""

WORKER_PROFILERS: Final[Mapping[str, WorkerProfiler]] = {"host": HostCounters(), "torch": Torch()}
"""Profilers inside the worker, in pass order."""

_ON_CPU: Final = Lacking(
    why="no-gpu",
    problem=Problem(brief="the workload ran on the CPU: no GPU work to profile"),
)
_NOT_REQUESTED: Final = Lacking(
    why="not-requested",
    problem=Problem(brief="hardware counters were not requested", hint="use --profile auto"),
)
_SYS_ADMIN, _PERFMON = 21, 38  # linux/capability.h
_TAKES_PERFMON = 565  # first driver branch that accepts CAP_PERFMON: NVIDIA, ERR_NVGPUCTRPERM
# Only the map of the initial user namespace covers all IDs (user_namespaces(7)); a capability in
# any other namespace is none on the host.
_ASK = r"""
sed -n 's/^RmProfilingAdminOnly: */restricted=/p' /proc/driver/nvidia/params 2>/dev/null
sed -n 's/.*Kernel Module.* \([0-9][0-9]*\)\.[0-9][0-9.]* .*/driver=\1/p' \
  /proc/driver/nvidia/version 2>/dev/null
sed -n 's/^CapEff:[[:space:]]*/capabilities=/p' /proc/self/status
[ "$(tr -s ' ' </proc/self/uid_map)" != ' 0 0 4294967295' ] || echo namespace=initial
echo "uid=$(id -u)"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The restrictions of a host's driver, and the rights of this login."""

    is_restricted: bool
    is_admin: bool  # CAP_SYS_ADMIN on the host, not in a user namespace
    may_count: bool = False  # CAP_PERFMON on the host, and a driver that accepts it
    takes_perfmon: bool = False
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """Whether counters can be read in an environment, and which capabilities that needs."""

    check: Check
    capabilities: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Toolbox:
    """The profilers of a host and their rights there, looked up on first use."""

    transport: Transport
    choice: ProfileChoice
    profilers: Mapping[str, Profiler] = field(default_factory=lambda: PROFILERS)
    _tools: dict[tuple[str, str], Tool | Check] = field(default_factory=dict)
    _rights: Rights | Check | None = None

    @property
    def passes(self) -> dict[PassName, tuple[str, Pass]]:
        """Return every pass with the name of its profiler, in running order."""
        return {
            kind.name: (name, kind)
            for name, profiler in self.profilers.items()
            for kind in profiler.passes
        }

    def prepare(
        self, kind: PassName, *, environment: str, compute_capability: str, folder: str
    ) -> ProfilerRun | Lacking:
        """Return how to start a pass that writes to `folder`, or why it is impossible.

        The compute capability is empty for a workload without a GPU.
        """
        name, requested = self.passes[kind]
        if requested.needs_gpu and not compute_capability:
            return _ON_CPU
        if requested.is_counting and self.choice == "trace":
            return _NOT_REQUESTED
        profiler, key = self.profilers[name], (name, compute_capability)
        if key not in self._tools:
            self._tools[key] = profiler.discover(self.transport, compute_capability)
        tool = self._tools[key]
        run = tool if isinstance(tool, Check) else profiler.wrap(tool, requested, folder=folder)
        if isinstance(run, ProfilerRun) and requested.is_counting:
            run = self._with_rights(run, environment)
        if isinstance(run, Check):
            return Lacking(why="not-usable", problem=Problem(brief=run.reason, hint=run.hint))
        return run

    def _with_rights(self, run: ProfilerRun, environment: str) -> ProfilerRun | Check:
        """Return the run with the capabilities to read counters, or a failed check."""
        self._rights = self._rights or find_rights(self.transport)
        if isinstance(self._rights, Check):
            return self._rights
        allowed = permission(environment_by_name(environment).traits.counters, self._rights)
        if not allowed.check.is_usable:
            return allowed.check
        return replace(run, capabilities=allowed.capabilities)


def find_rights(transport: Transport) -> Rights | Check:
    """Return the driver's restrictions and the login's rights, or a failed check."""
    hint = "check /proc/driver/nvidia/params there"
    result = ask(transport, Command(argv=("sh", "-c", _ASK)), what="the host", hint=hint)
    return result if isinstance(result, Check) else read_rights(result.stdout)


def read_rights(text: str) -> Rights:
    """Parse `name=value` lines; a driver that reports nothing is unrestricted."""
    facts = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    effective_mask, uid = facts.get("capabilities", ""), facts.get("uid", "")
    effective = int(effective_mask, 16) if re.fullmatch(r"[0-9a-fA-F]+", effective_mask) else 0
    is_initial, branch = facts.get("namespace") == "initial", facts.get("driver", "")
    takes_perfmon = branch.isdecimal() and int(branch) >= _TAKES_PERFMON
    return Rights(
        is_restricted=facts.get("restricted") == "1",
        is_admin=bool(effective >> _SYS_ADMIN & 1) and is_initial,
        may_count=bool(effective >> _PERFMON & 1) and is_initial and takes_perfmon,
        takes_perfmon=takes_perfmon,
        uid=int(uid) if uid.isdecimal() else -1,
    )


def permission(access: CounterAccess, rights: Rights) -> Permission:
    """Return whether an environment with this access can read counters; pure."""
    if not rights.is_restricted:
        return Permission(check=Check(version="open to every user"))
    # Its daemon is root and may grant the capability, which only root inside can use.
    if access == "granted":
        summary = "restricted; the containers of counter passes get SYS_ADMIN, and root inside"
        return Permission(check=Check(version=summary), capabilities=("SYS_ADMIN",))
    if access == "root":
        if rights.is_admin and rights.uid == 0:
            summary = "restricted; counter passes get CAP_SYS_ADMIN"
            return Permission(check=Check(version=summary), capabilities=("SYS_ADMIN",))
        return _denied(ncu.OPEN_FOR_ALL, more="; no process in a user namespace is one")
    if rights.is_admin or rights.may_count:
        return Permission(check=Check(version="restricted, and this login may"))
    who = "as root or with CAP_PERFMON" if rights.takes_perfmon else "as root"
    return _denied(f"log in {who}, or: {ncu.OPEN_FOR_ALL}")


def _denied(hint: str, *, more: str = "") -> Permission:
    brief = f"the driver allows only administrators to read the GPU's counters{more}"
    return Permission(check=unusable(brief, hint))
