"""The profilers by name, and which of them can look into a worker of a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from envcompare.environments import Check
from envcompare.profilers import Profiler, WorkerProfiler, ncu, nsys
from envcompare.profilers.host import HostCounters
from envcompare.profilers.permissions import Permission, Rights, find_rights, permission
from envcompare.profilers.tool import Pass, ProfilerRun, Tool
from envcompare.profilers.torch import Torch
from envcompare.run_folder.profiles import PassName
from envcompare.run_folder.records import ProfileChoice
from envcompare.transport import Transport

PROFILERS: Final[Mapping[str, Profiler]] = {nsys.NAME: nsys.Nsys(), ncu.NAME: ncu.Ncu()}
"""Programs around the worker, in the order of their passes."""

WORKER_PROFILERS: Final[Mapping[str, WorkerProfiler]] = {"host": HostCounters(), "torch": Torch()}
"""What the worker itself can do, in the order of its passes."""

_ON_CPU = Check(is_usable=False, reason="the workload ran on the CPU: no GPU to look into")
_NOT_ASKED = Check(
    is_usable=False, reason="hardware counters were not asked for", hint="give --profile auto"
)


@dataclass(slots=True, kw_only=True)
class Toolbox:
    """The profilers of a host and what they may do there, each found when it is first needed."""

    transport: Transport
    choice: ProfileChoice
    profilers: Mapping[str, Profiler] = field(default_factory=lambda: PROFILERS)
    _tools: dict[tuple[str, str], Tool | Check] = field(default_factory=dict)
    _rights: Rights | Check | None = None

    @property
    def passes(self) -> dict[PassName, tuple[str, Pass]]:
        """Return every pass with the name of its profiler, in the order in which they are run."""
        return {
            kind.name: (name, kind)
            for name, profiler in self.profilers.items()
            for kind in profiler.passes
        }

    def prepare(
        self, kind: PassName, *, environment: str, compute_capability: str, folder: str
    ) -> ProfilerRun | Check:
        """Return how a pass is started that writes to `folder`; a check says why it cannot be.

        The compute capability is empty where the workload uses no GPU.
        """
        name, asked = self.passes[kind]
        if asked.needs_gpu and not compute_capability:
            return _ON_CPU
        if asked.is_counting and self.choice == "trace":
            return _NOT_ASKED
        tool = self._tool(name, compute_capability)
        if isinstance(tool, Check):
            return tool
        prepared = self.profilers[name].wrap(tool, asked, folder=folder)
        if isinstance(prepared, Check) or not asked.is_counting:
            return prepared
        allowed = self._allowed(environment)
        if isinstance(allowed, Check):
            return allowed
        return replace(prepared, capabilities=allowed.capabilities)

    def _tool(self, name: str, compute_capability: str) -> Tool | Check:
        key = name, compute_capability
        if key not in self._tools:
            self._tools[key] = self.profilers[name].discover(self.transport, compute_capability)
        return self._tools[key]

    def _allowed(self, environment: str) -> Permission | Check:
        self._rights = self._rights or find_rights(self.transport)
        if isinstance(self._rights, Check):
            return self._rights
        allowed = permission(environment, self._rights)
        return allowed if allowed.check.is_usable else allowed.check
