"""The profilers by name, and which of them can look into a worker of a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from envcompare.environments import Check
from envcompare.environments.registry import environment as named
from envcompare.errors import Problem
from envcompare.profilers import Profiler, WorkerProfiler, ncu, nsys
from envcompare.profilers.host import HostCounters
from envcompare.profilers.permissions import Rights, find_rights, permission
from envcompare.profilers.tool import Pass, ProfilerRun, Tool
from envcompare.profilers.torch import Torch
from envcompare.run_folder.profiles import Lacking, PassName
from envcompare.run_folder.records import ProfileChoice
from envcompare.transport import Transport

PROFILERS: Final[Mapping[str, Profiler]] = {nsys.NAME: nsys.Nsys(), ncu.NAME: ncu.Ncu()}
"""Programs around the worker, in the order of their passes."""

WORKER_PROFILERS: Final[Mapping[str, WorkerProfiler]] = {"host": HostCounters(), "torch": Torch()}
"""What the worker itself can do, in the order of its passes."""

_ON_CPU: Final = Lacking(
    why="no-gpu", problem=Problem(brief="the workload ran on the CPU: no GPU to look into")
)
_NOT_REQUESTED: Final = Lacking(
    why="not-requested",
    problem=Problem(brief="hardware counters were not asked for", hint="give --profile auto"),
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
    ) -> ProfilerRun | Lacking:
        """Return how a pass is started that writes to `folder`, or why it cannot be.

        The compute capability is empty where the workload uses no GPU.
        """
        name, asked = self.passes[kind]
        if asked.needs_gpu and not compute_capability:
            return _ON_CPU
        if asked.is_counting and self.choice == "trace":
            return _NOT_REQUESTED
        tool = self._tool(name, compute_capability)
        run = (
            tool
            if isinstance(tool, Check)
            else self.profilers[name].wrap(tool, asked, folder=folder)
        )
        if isinstance(run, ProfilerRun) and asked.is_counting:
            run = self._permitted(run, environment)
        if isinstance(run, Check):
            return Lacking(why="not-usable", problem=Problem(brief=run.reason, hint=run.hint))
        return run

    def _tool(self, name: str, compute_capability: str) -> Tool | Check:
        key = name, compute_capability
        if key not in self._tools:
            self._tools[key] = self.profilers[name].discover(self.transport, compute_capability)
        return self._tools[key]

    def _permitted(self, run: ProfilerRun, environment: str) -> ProfilerRun | Check:
        """Return a run with the capabilities that it needs to read counters in an environment."""
        self._rights = self._rights or find_rights(self.transport)
        if isinstance(self._rights, Check):
            return self._rights
        allowed = permission(named(environment).traits.counters, self._rights)
        if not allowed.check.is_usable:
            return allowed.check
        return replace(run, capabilities=allowed.capabilities)
