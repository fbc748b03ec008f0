"""The subcommands; the only place that prints results or exits, and joins run, compare, report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envcompare import __version__
from envcompare.console import Display, print_data, print_lines
from envcompare.errors import ConfigError, EnvcompareError, InterruptedRunError, unexpected
from envcompare.options import EXPERIMENT, IMPORT, LOOKING, PLACES, settings_of, taking

if TYPE_CHECKING:
    from envcompare.analysis.model import RunComparison
    from envcompare.experiment import Experiment
    from envcompare.plan import Plan
    from envcompare.results import RunFolder
    from envcompare.transport.hosts import HostSpec

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="envcompare")
@click.option("--debug", is_flag=True, help="Show a traceback with an error.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@click.pass_context
def app(context: click.Context, *, debug: bool, quiet: bool) -> None:
    """Say whether the same ML work is slower in another environment, by how much, and why.

    \b
    envcompare run --envs vm,docker,singularity          on this machine
    envcompare run --envs vm,docker --hosts me@gpu01     over SSH
    envcompare doctor                                    what is usable here, and the remedy
    """
    context.obj = Display(is_quiet=quiet)
    context.meta["debug"] = debug


@app.command()
@taking(EXPERIMENT)
@click.option("--yes", is_flag=True, help="Run a plan of more than 200 cells.")
@click.option(
    "--resume",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="RUN",
    help="Go on with an interrupted run; every other option is taken from it.",
)
@click.pass_obj
def run(display: Display, /, *, yes: bool, resume: Path | None, **values: Any) -> None:  # noqa: ANN401
    """Measure the workloads in every arm and write a run folder with its report."""
    from envcompare import runner
    from envcompare.job import Job
    from envcompare.planning import resumed
    from envcompare.results import RunFolder

    if resume is not None:
        if any(value not in (None, ()) for value in values.values()):
            raise ConfigError(
                "--resume takes everything from the run it continues",
                hint="leave the other options out, or start a new run",
            )
        folder = RunFolder.open(resume)
        experiment, plan, hosts = resumed(folder)
    else:
        experiment, plan, hosts = _planned(values, accept_many=yes)
        record = runner.run_record(plan, experiment, command_line=tuple(sys.argv))
        folder = RunFolder.create(experiment.out, record)
    display.say(f"run {folder.path.name}: {_size(plan)}")
    job = Job(folder=folder, plan=plan, experiment=experiment, hosts=hosts, display=display)
    with _signals(job.interruption, display):
        exit_code = runner.run(job)
    comparison, report = _conclude(folder)
    _show_summary(comparison, report)
    if job.interruption.is_requested:
        raise InterruptedRunError(
            "the run was interrupted",
            details="what was measured is saved",
            hint=f"envcompare run --resume {shlex.quote(str(folder.path))}",
        )
    sys.exit(exit_code)


@app.command()
@taking(EXPERIMENT)
@click.option("--yes", is_flag=True, help="Accept more than 200 cells.")
def plan(*, yes: bool, **values: Any) -> None:  # noqa: ANN401
    """Print the resolved experiment, its cells, arms and first orders; run nothing."""
    from envcompare.planning import plan_lines

    experiment, planned, _ = _planned(values, accept_many=yes)
    print_lines(plan_lines(experiment, planned))


@app.command()
@taking(LOOKING)
def doctor(**values: Any) -> None:  # noqa: ANN401
    """Say for each host and environment whether it is usable, and the line that mends it.

    Where the stacks of a host are made already, run a step in each arm and say how they differ.
    """
    from envcompare.diagnosing import examine

    experiment, hosts = _places(values)
    codes = set()
    for found in examine(experiment, hosts):
        print_lines(found.lines)
        codes.add(found.exit_code)
    sys.exit(min(codes - {0}, default=0))


@app.command()
@taking(PLACES)
@click.option(
    "--sbom",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a bill of materials of the wheels (CycloneDX JSON).",
)
@click.pass_obj
def build(display: Display, /, *, sbom: Path | None, **values: Any) -> None:  # noqa: ANN401
    """Make image, SIF and venv from one set of locked wheels, on every host that needs them."""
    from envcompare import preparing

    experiment, hosts = _places(values)
    outcome = preparing.build_everywhere(experiment, hosts, display, sbom=sbom)
    print_lines(outcome.lines)
    sys.exit(outcome.exit_code)


@app.command()
@click.argument("run_folder", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--open", "is_opened", is_flag=True, help="Open the page in the browser.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md", "json"]),
    default="html",
    show_default=True,
    help="html is written beside the run; md and json go to stdout.",
)
def report(run_folder: Path, *, is_opened: bool, form: str) -> None:
    """Draw the report of a run folder again; needs no torch, no Docker and no SSH."""
    from envcompare.results import RunFolder

    comparison, path = _conclude(RunFolder.open(run_folder))
    if form == "md":
        from envcompare.report.summary import markdown

        print_lines([markdown(comparison)])
    elif form == "json":
        text = (run_folder / "comparison.json").read_text(encoding="utf-8")
        print_data(f"{text}\n")
    else:
        _show_summary(comparison, path)
    if is_opened:
        click.launch(str(path))


@app.command(name="import")
@taking(IMPORT)
@click.pass_obj
def import_(display: Display, /, **values: Any) -> None:  # noqa: ANN401
    """Put profiler files of any origin into a run folder and compare them; nothing is timed.

    \b
    envcompare import nsys --env vm vm.sqlite            makes a run folder and prints its name
    envcompare import nsys --env docker docker.sqlite --into results/RUN
    envcompare import ncu --env docker dram.csv flops.csv --into results/RUN --steps 20
    envcompare import nvprof --env vm old.log            kineto takes trace.json and .json.gz

    One call adds the files of one environment; the environment that is named first is the
    reference. Files of ncu or nvprof in one call are passes over the same launches; each file of
    nsys or kineto, as of a rank, is a profile of its own. The files must cover the same work in
    each environment; where they do not cover as many steps, say with --steps how many each covers.
    """
    from envcompare.importing import import_files
    from envcompare.importing.place import Request

    done = import_files(Request(**values, command_line=tuple(sys.argv)))
    for line in done.lines:
        display.say(line)
    comparison, report = _conclude(done.folder)
    _show_summary(comparison, report)
    if done.is_alone:
        into = shlex.quote(str(done.folder.path))
        print_lines([f"next: envcompare import {values['tool']} --env NAME --into {into} FILE…"])


@app.command(name="list")
def list_() -> None:
    """List the bundled workloads with their parameters, and the environments."""
    from envcompare import files
    from envcompare.environments.registry import ENVIRONMENTS

    lines = ["workloads:"]
    for info in files.catalogue().values():
        lines.append(f"  {info.name}: {info.summary}")
        parameters = ", ".join(f"{name}={value}" for name, value in info.parameters.items())
        lines.append(f"      --set {info.name}.…: {parameters}")
    lines.append("  --command 'PROGRAM ARG …': any program of your own, timed as a whole process")
    lines += ["environments:", *(f"  {name}" for name in ENVIRONMENTS)]
    print_lines(lines)


@app.command()
@taking(PLACES)
@click.pass_obj
def clean(display: Display, /, **values: Any) -> None:  # noqa: ANN401
    """Remove the cache of envcompare from every host: venvs, wheels, SIFs, data."""
    from envcompare import preparing

    experiment, hosts = _places(values)
    outcome = preparing.clean_everywhere(experiment, hosts, display)
    print_lines(outcome.lines)
    sys.exit(outcome.exit_code)


def _planned(
    values: dict[str, Any], *, accept_many: bool
) -> tuple[Experiment, Plan, tuple[HostSpec, ...]]:
    from envcompare.planning import planned

    return planned(*settings_of(values), accept_many=accept_many)


def _places(values: dict[str, Any]) -> tuple[Experiment, tuple[HostSpec, ...]]:
    from envcompare.planning import resolved

    return resolved(*settings_of(values))


def _signals(interruption: Any, display: Display) -> Any:  # noqa: ANN401
    from envcompare.interrupt import handling_signals

    return handling_signals(interruption, display.say)


def _conclude(folder: RunFolder) -> tuple[RunComparison, Path]:
    """Analyse a run folder, and write comparison.json and report.html into it."""
    from envcompare.analysis.compare import compare_run
    from envcompare.disk import redrawable
    from envcompare.report.page import render

    comparison = compare_run(folder)
    with redrawable(folder.path):
        folder.write_json("comparison.json", comparison)
        names = tuple(name for name in folder.file_names() if name != "report.html")
        folder.write_bytes("report.html", render(comparison, files=names).encode())
    return comparison, folder.path / "report.html"


def _show_summary(comparison: RunComparison, path: Path) -> None:
    from envcompare.report.summary import terminal_lines
    from envcompare.terminal import show

    show(terminal_lines(comparison))
    print_lines(["", f"report: {path}"])


def _size(planned: Plan) -> str:
    design = planned.design
    arms = ", ".join(arm.id for arm in planned.arms)
    return (
        f"{len(planned.cells)} cells of at most {design.budget_s:.0f} s; arms {arms}; "
        f"margin ±{design.margin:.1%}"
    )


def main() -> None:
    """Run the command line; every expected error ends as three sentences and its exit code."""
    try:
        app(standalone_mode=False)
    except EnvcompareError as error:
        if "--debug" in sys.argv:
            raise
        Display().error(error)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        sys.exit(InterruptedRunError.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        _usage_error(error)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        Display().error(unexpected(error))
        sys.exit(1)


def _usage_error(error: click.ClickException) -> None:
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else ""
    Display().error(ConfigError(error.format_message(), hint=f"{command or 'envcompare'} --help"))
    sys.exit(ConfigError.exit_code)
