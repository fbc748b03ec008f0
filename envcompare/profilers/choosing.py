"""Which profiler stands around a worker in a pass of a host's GPU, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from envcompare.command import Command
from envcompare.environments import Check
from envcompare.environments.asking import ask
from envcompare.gpu.chips import chip_of
from envcompare.profilers.finding import Tool, ToolName, find_tools
from envcompare.profilers.metricchoice import Passes, choose, offered_metrics
from envcompare.profilers.permissions import Permission, Rights, find_rights, permission
from envcompare.profilers.wrapping import Profiler, counters, trace
from envcompare.run_folder.records import ProfileChoice
from envcompare.transport import Transport

Pass = Literal["nsys", "ncu-memory", "ncu-flops"]

_ON_CPU = Check(is_usable=False, reason="the workload ran on the CPU: no GPU to look into")
_NOT_ASKED = Check(
    is_usable=False, reason="hardware counters were not asked for", hint="give --profile auto"
)


@dataclass(slots=True, kw_only=True)
class Toolbox:
    """The profilers of a host and what they may do there, each found when it is first needed."""

    transport: Transport
    choice: ProfileChoice
    _tools: dict[ToolName, Tool | Check] = field(default_factory=dict)
    _rights: Rights | Check | None = None
    _passes: dict[str, Passes | Check] = field(default_factory=dict)

    def profiler(
        self, kind: Pass, *, environment: str, compute_capability: str, folder: str
    ) -> Profiler | Check:
        """Return the profiler of a pass, which writes to `folder`; a check says why there is none.

        The compute capability is empty where the workload uses no GPU.
        """
        if not compute_capability:
            return _ON_CPU
        if kind == "nsys":
            found = self._tool("nsys")
            return found if isinstance(found, Check) else trace(found, folder=folder)
        if self.choice == "trace":
            return _NOT_ASKED
        return self._counters(kind, environment, compute_capability, folder)

    def _counters(
        self, kind: Pass, environment: str, compute_capability: str, folder: str
    ) -> Profiler | Check:
        tool = self._tool("ncu")
        if isinstance(tool, Check):
            return tool
        passes = self._metrics(tool, compute_capability)
        if isinstance(passes, Check):
            return passes
        metrics = passes.memory if kind == "ncu-memory" else passes.flops
        if not metrics:
            return Check(is_usable=False, reason=passes.reason)
        allowed = self._allowed(environment)
        if isinstance(allowed, Check):
            return allowed
        return counters(tool, metrics, folder=folder, capabilities=allowed.capabilities)

    def _tool(self, name: ToolName) -> Tool | Check:
        self._tools = self._tools or find_tools(self.transport)
        return self._tools[name]

    def _allowed(self, environment: str) -> Permission | Check:
        self._rights = self._rights or find_rights(self.transport)
        if isinstance(self._rights, Check):
            return self._rights
        found = permission(environment, self._rights)
        return found if found.check.is_usable else found.check

    def _metrics(self, tool: Tool, compute_capability: str) -> Passes | Check:
        """Ask the tool what it offers for the GPU: a metric that it lacks would be an error."""
        if compute_capability not in self._passes:
            chip = chip_of(compute_capability)
            argv = (tool.program, "--query-metrics", *(("--chips", chip) if chip else ()))
            hint = f"run {tool.program} --query-metrics there by hand"
            said = ask(self.transport, Command(argv=argv), what=tool.program, hint=hint)
            if isinstance(said, Check):
                return said
            offered = offered_metrics(said.stdout if said.succeeded else "")
            self._passes[compute_capability] = choose(
                compute_capability, ncu_version=tool.version, offered=offered
            )
        return self._passes[compute_capability]
