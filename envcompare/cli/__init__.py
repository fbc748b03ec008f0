"""The command line, and the subcommands plan, doctor, build, clean and status."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from envcompare import bundled
from envcompare.bundled import __version__
from envcompare.cli import browsing, reading, running, starting
from envcompare.cli.options import (
    CLEANED,
    EXPERIMENT,
    LOOKING,
    PATH,
    PLACES,
    UserPath,
    command_line,
    settings_of,
    taking,
)
from envcompare.console import Display, print_bytes, print_lines
from envcompare.errors import (
    ConfigError,
    EnvcompareError,
    InterruptedRunError,
    RunFolderError,
    as_known,
)
from envcompare.text import age_text, counted, escaped_json, masked, visible

if TYPE_CHECKING:
    from envcompare.analysis.compare import CellStatus, RunStatus
    from envcompare.doctor.checks import HostExamination


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="envcompare")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show progress.")
@click.option(
    "--install-completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    is_eager=True,
    expose_value=False,
    callback=starting.install_completion,
    help="Install completions for a shell, and exit.",
)
@click.pass_context
def app(context: click.Context, *, debug: bool, quiet: bool) -> None:
    """Measure whether the same ML work is slower in another environment, by how much, and why.

    \b
    envcompare run --envs vm,docker,singularity          on this machine
    envcompare run --envs vm,docker --hosts me@gpu01     over SSH
    envcompare doctor                                    what works here, and how to fix the rest
    """
    context.obj = Display(is_quiet=quiet)
    context.meta["debug"] = debug


def main() -> None:
    """Run the command line; print an expected error in three sentences and exit with its code."""
    try:
        os.fstat(1)
    except OSError:
        # The caller closed stdout, for which Python then has no stream.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 — to the end
    _require_files()
    # jsonschema's optional IRI check comes with cyclonedx-bom and takes 2 s to import. No chart
    # specification has an IRI.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # None: not there
    sys.excepthook = _show_traceback
    threading.excepthook = _report_thread
    try:
        # Otherwise click prints errors in its own words, and exits with its own codes.
        app(standalone_mode=False)
    except EnvcompareError as error:
        if "--debug" in sys.argv:
            raise
        Display().error(error)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        Display().error(InterruptedRunError("interrupted", hint="run the same command again"))
        sys.exit(InterruptedRunError.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        command = context.command_path if context else "envcompare"
        Display().error(ConfigError(error.format_message(), hint=f"{command} --help"))
        sys.exit(ConfigError.exit_code)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        shown = _error_to_show(error)
        Display().error(shown)
        sys.exit(shown.exit_code)


def _show_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print what `--debug` shows, without secrets."""
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write(visible(masked(text)))


def _report_thread(what: threading.ExceptHookArgs) -> None:
    """Report that a thread failed; whatever waits for it ends by its own time limit."""
    if what.exc_value is None:
        return
    if "--debug" in sys.argv:
        _show_traceback(what.exc_type, what.exc_value, what.exc_traceback)
    elif isinstance(what.exc_value, Exception):
        Display().error(as_known(what.exc_value))


def _require_files() -> None:
    """Exit if files of the package are missing, such as the rule that masks secrets in errors."""
    try:
        bundled.root()
    except bundled.MissingFilesError as error:
        shown = _error_to_show(error)
        for name, text in shown.problem.parts():
            sys.stderr.write(f"{name}: {text}\n")
        sys.exit(shown.exit_code)


def _error_to_show(error: Exception) -> EnvcompareError:
    """Return the error to show: an unusable file is not a fault of envcompare."""
    if isinstance(error, MemoryError):
        return RunFolderError(
            "this machine ran out of memory",
            details=f"{error}" or "the files need more than this process may use",
            hint="raise its limit (`ulimit -v`), or use a larger machine",
        )
    if isinstance(error, bundled.MissingFilesError):
        return EnvcompareError(
            "the bundled workloads are missing",
            details=str(error),
            hint="install envcompare-bench again",
        )
    if not (isinstance(error, OSError) and error.filename):
        return as_known(error)
    return RunFolderError(
        f"{os.fsdecode(error.filename)} cannot be used",
        details=str(error.strerror),
        hint="check the path and its permissions",
    )


@click.command()
@taking(EXPERIMENT)
@click.option("--yes", is_flag=True, help="Accept more than 200 cells.")
def plan(*, yes: bool, **values: Any) -> None:
    """Print the resolved experiment with its cells, arms and first orders; run nothing."""
    from envcompare.cli.planning import plan_lines, planned, usable_defaults

    flags, file = settings_of(values)
    flags, left_out = usable_defaults(flags, file)
    experiment, plan, _ = planned(flags, file, accept_many=yes)
    if left_out:
        print_lines([left_out])
    print_lines(plan_lines(experiment, plan))


@click.command()
@taking(LOOKING)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json lists every differing fact, with its class and both values.",
)
def doctor(*, form: str, **values: Any) -> None:
    """Check whether each host and environment is usable, and show how to fix what is not.

    If the stacks of a host are already built, run a step in each arm and show how they differ.
    Exit 3 if something required is missing, or if stacks differ that should be the same.
    """
    from envcompare.cli.planning import resolved
    from envcompare.doctor import examine
    from envcompare.doctor.checks import (
        Examination,
        comparison_lines,
        diagnosis_lines,
        overall_exit_code,
    )
    from envcompare.run_folder.results import json_bytes

    settings, file = settings_of(values)
    experiment, hosts = resolved(settings, file)
    last: dict[str, HostExamination] = {}
    allowed = experiment.allow_mismatch
    for examined in examine(experiment, hosts, command_line(), file=file):
        if form == "text":
            is_second = examined.host in last
            print_lines(
                comparison_lines(examined, allow_mismatch=allowed)
                if is_second
                else diagnosis_lines(examined)
            )
        last[examined.host] = examined
    examinations = tuple(last.values())
    code = overall_exit_code(examinations)
    if form == "json":
        examination = Examination(hosts=examinations, allow_mismatch=allowed, exit_code=code)
        print_bytes(escaped_json(json_bytes(examination)))
    sys.exit(code)


@click.command()
@taking(PLACES)
@click.option(
    "--sbom",
    type=UserPath(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a bill of materials of the wheels (CycloneDX JSON).",
)
@click.pass_obj
def build(display: Display, /, *, sbom: Path | None, **values: Any) -> None:
    """Build image, SIF and venv from one set of locked wheels on every host that needs them."""
    from envcompare.cli.planning import resolved
    from envcompare.hosts.opening import require_base
    from envcompare.runner import upkeep

    experiment, hosts = resolved(*settings_of(values))
    require_base(hosts, experiment, display.say)
    outcome = upkeep.build_everywhere(experiment, hosts, display, sbom=sbom)
    print_lines(outcome.lines)
    sys.exit(outcome.exit_code)


@click.command()
@taking(CLEANED)
@click.option(
    "--break-lock",
    is_flag=True,
    help="Stop the process by which a hung or lost client holds a host.",
)
@click.option(
    "--run",
    "run_folder",
    type=UserPath(file_okay=False, path_type=Path),
    metavar="RUN",
    help="Remove only what this run left on its hosts.",
)
@click.pass_obj
def clean(
    display: Display,
    /,
    *,
    run_folder: Path | None,
    break_lock: bool,
    **values: Any,
) -> None:
    """Remove what envcompare keeps on every host: venvs, wheels, SIFs, data and images.

    Also remove what killed runs left behind. A host that a run is using is left alone; others are
    locked meanwhile, so that no run begins there.
    """
    from envcompare.cli.planning import places_of, resolved
    from envcompare.config.settings import Settings
    from envcompare.hosts.allocation import forget, jobs_of
    from envcompare.run_folder import locked
    from envcompare.run_folder.results import RunFolder
    from envcompare.runner import upkeep

    if run_folder is not None:
        again = Settings(wait=values.pop("wait") or 0.0)
        if break_lock or any(value not in (None, ()) for value in values.values()):
            raise ConfigError(
                "clean --run takes hosts and environments from the run",
                hint="leave the other options out",
            )
        folder = RunFolder.open(run_folder)
        experiment, hosts, run_id = places_of(folder, again)
        if jobs := jobs_of(folder.read_events().events):
            # The lock is not given while a client lives, which keeps its job.
            with locked(folder.path, by="run"):
                forget(run_id, jobs)
        outcome = upkeep.clean_everywhere(experiment, hosts, display, run_id=run_id)
    else:
        experiment, hosts = resolved(*settings_of(values))
        free = upkeep.unlock_everywhere if break_lock else upkeep.clean_everywhere
        outcome = free(experiment, hosts, display)
    print_lines(outcome.lines)
    sys.exit(outcome.exit_code)


@click.command()
@click.argument("run_folder", type=PATH, metavar="[RUN]", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json is only for a RUN, with the intervals as log ratios.",
)
@taking(PLACES)
@click.pass_obj
def status(display: Display, /, *, run_folder: Path | None, form: str, **values: Any) -> None:
    """Show how far a run is, or without RUN which run holds each host; change nothing.

    The exit code is 0 whatever the state of the run or host.
    """
    from envcompare.analysis.compare import status_of
    from envcompare.run_folder.results import RunFolder, json_bytes

    if run_folder is None:
        from envcompare.cli.planning import resolved
        from envcompare.runner import upkeep

        if form == "json":
            raise ConfigError("--format json is for a RUN", hint="name a run folder")
        outcome = upkeep.tell_holders(*resolved(*settings_of(values)), display)
        print_lines(outcome.lines)
        sys.exit(outcome.exit_code)
    if any(value not in (None, ()) for value in values.values()):
        raise ConfigError(
            "status of a RUN takes no other options",
            hint="leave out the RUN to ask the hosts, or all other options",
        )
    state = status_of(RunFolder.open(run_folder))
    if form == "json":
        print_bytes(escaped_json(json_bytes(state)))
    else:
        print_lines(_lines(state))


def _lines(run: RunStatus) -> Iterator[str]:
    from envcompare.report.wording import signed_interval, signed_percent

    headline = "interrupted; it can be resumed"
    if run.state == "ended":
        lacking = any(cell.state in {"failed", "timeout", "unreachable"} for cell in run.cells)
        headline = "ended; `run --resume` measures failed cells again" if lacking else "ended"
    if run.owner is not None:
        headline = f"going on for {run.owner.age}: {run.owner.place}"
    yield f"run {run.run_id}: {headline}"
    for cell in run.cells:
        yield f"  {cell.cell}: {_progress(cell)}"
        for arm in cell.arms:
            ratio = "no estimate yet"
            if arm.estimate is not None:
                interval = signed_interval(arm.low, arm.high)
                ratio = f"{signed_percent(arm.estimate)} ({interval})"
            yield f"    {arm.arm}: {ratio}"
    yield from (f"  failed: {text}" for text in run.failures)


def _progress(cell: CellStatus) -> str:
    states = {"not-begun": "not begun", "going-on": "being measured"}
    parts = [states.get(cell.state, cell.state)]
    parts += [cell.reason] if cell.reason else []
    if cell.restarts and cell.is_program:
        parts.append(counted(cell.restarts, "process", "processes"))
    elif cell.restarts:
        parts.append(counted(cell.restarts, "restart"))
    if cell.budget_left_s is not None:
        parts.append(f"at most {age_text(cell.budget_left_s)} of measuring left")
    return ", ".join(parts)


for _command in (
    running.run,
    starting.init,
    running.why,
    running.capture,
    plan,
    doctor,
    build,
    clean,
    status,
    *(*browsing.COMMANDS, *reading.COMMANDS),
):
    app.add_command(_command)
