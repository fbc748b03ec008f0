"""Carry out a run: make its folder, measure, write the report, and print the summary."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from envcompare.cli.options import command_line
from envcompare.console import Display
from envcompare.errors import InterruptedRunError
from envcompare.text import masked, shortened

if TYPE_CHECKING:
    from envcompare.analysis.model import RunComparison
    from envcompare.config.experiment import Experiment
    from envcompare.config.plan import Plan
    from envcompare.config.settings import Settings
    from envcompare.run_folder.results import RunFolder
    from envcompare.runner import Job
    from envcompare.transport.hosts import HostSpec

CONTAINERS = re.compile(r"\b(?:docker|podman)\b")
_MOST_OF_LINE = 1000  # characters
_CLIENT = (
    "its container is not read, only the client: write the line as one `docker run` or `podman run`"
)
Planned = tuple["Experiment", "Plan", "tuple[HostSpec, ...]"]


def create(new: Planned, display: Display) -> RunFolder:
    """Return the folder of a new run, once its hosts and base image are known to be available."""
    from envcompare.run_folder.results import RunFolder
    from envcompare.runner import walk

    experiment, plan, hosts = new
    check_places(experiment, hosts, display)
    record = walk.run_record(plan, experiment, command_line=command_line())
    return RunFolder.create(experiment.out, record)


def check_places(experiment: Experiment, hosts: tuple[HostSpec, ...], display: Display) -> None:
    """Refuse an unavailable allocation, host or base image before anything is built."""
    from envcompare.hosts.allocation import check_available
    from envcompare.hosts.opening import require_base, require_free

    check_available(experiment.allocation)
    if experiment.allocation is None and not experiment.wait_s:
        require_free(hosts, experiment)
    require_base(hosts, experiment, display.say)


def carry_out(
    settings: Settings, display: Display, *, is_shown: bool = True
) -> tuple[int, RunComparison, RunFolder]:
    """Carry out a run with these settings; return the exit code, the results and the folder.

    Raises as `measured`, and ConfigError for settings that contradict each other.
    """
    from envcompare.cli.planning import planned
    from envcompare.config.settings import Settings
    from envcompare.run_folder import locked
    from envcompare.runner import Job

    new = planned(settings, Settings(), accept_many=True)
    folder, (experiment, plan, hosts) = create(new, display), new
    with locked(folder.path, by="run"):
        job = Job(folder=folder, plan=plan, experiment=experiment, hosts=hosts, display=display)
        for arm in experiment.arms:
            if arm.traits.reference != "line":
                continue
            display.say(f"{arm.id}: {shortened(masked(arm.reference), most=_MOST_OF_LINE)}")
            if not arm.traits.programs and CONTAINERS.search(arm.reference):
                display.say(f"  {_CLIENT}")
        return (*measured(job, is_shown=is_shown), folder)


def measured(job: Job, *, is_shown: bool = True) -> tuple[int, RunComparison]:
    """Carry out a run, write its report and print its summary; return the exit code and results.

    Raises InterruptedRunError if the user stopped it.
    """
    from envcompare.errors import handling_signals
    from envcompare.runner import walk

    with handling_signals(job.interruption, job.display.say):
        exit_code = walk.run(job)
    from envcompare.cli.conclusion import conclude, show_summary  # not during measuring

    comparison, report = conclude(job.folder)
    if is_shown:
        show_summary(comparison, report, job.display if job.folder.listener else None)
    if job.interruption.is_requested:
        raise InterruptedRunError(
            "the run was interrupted",
            details="what was measured is saved",
            hint=f"envcompare run --resume {shlex.quote(str(job.folder.path))}",
        )
    return exit_code, comparison
