"""The Profiler seam: what looks into a few steps of a worker, around its process or inside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from envcompare.environments import Check
from envcompare.errors import Problem, ProfileError
from envcompare.profilers.quarantine import Exported, Quarantine
from envcompare.profilers.tool import Pass, ProfilerRun, Tool
from envcompare.run_folder.profiles import Profile
from envcompare.transport import Transport

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a profiler inside the worker has answered after a few steps."""

    kind: Pass
    values: dict[str, Any]  # as the profiler gave them
    steps: int
    reason: str = ""  # what the values lack, and why
    trace: Path | None = None  # that the worker wrote, where it used a GPU


class Profiler(Protocol):
    """A program of the host that is started around a worker, which marks the steps for it."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Name its passes, in the order in which they are run."""
        ...

    def discover(self, transport: Transport, compute_capability: str = "") -> Tool | Check:
        """Return the tool of a host, with its metrics for a GPU if one is named, or why not."""
        ...

    def wrap(self, tool: Tool, kind: Pass, *, folder: str) -> ProfilerRun | Check:
        """Return how the tool is started for a pass and writes to `folder`, or why not; pure."""
        ...

    def export(self, quarantine: Quarantine, run: ProfilerRun, *, said: str) -> Exported:
        """Take what the tool left in its folder, and export it; `said` is what it wrote beside.

        Raises ProfileError where nothing can be read, WorkloadError where an arm put something
        else in its place, TransportError when the host is lost and CommandTimeoutError when the
        export takes too long.
        """
        ...

    def read(self, run: ProfilerRun, export: Path) -> Profile:
        """Read an export that was brought here; raises ProfileError where it cannot be trusted."""
        ...

    def explain(self, said: str) -> Problem | None:
        """Return what the tool complained of in a log, and what to try; None where it did not."""
        ...


class WorkerProfiler(Protocol):
    """A profiler inside the worker, which answers with what it found."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Name its passes, in the order in which they are run."""
        ...

    def read(self, answer: Answer) -> Profile | None:
        """Return the profile in an answer; None where nothing was found.

        Raises ProfileError where answer or trace cannot be trusted.
        """
        ...


def converted(values: dict[str, Any], kind: type[_T], *, what: str) -> _T:
    """Return what a worker gave as a type; raises ProfileError where it is something else."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ProfileError(
            f"{what} cannot be read from the worker's answer",
            details=str(error),
            hint="give the workloads of this version of envcompare to the host",
        ) from error
