"""The command line, and the subcommands that reach hosts: run, plan, doctor, build, clean, status.

It is the only place that prints results or exits.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from envcompare import bundled
from envcompare.bundled import __version__
from envcompare.cli import browsing, lines, reading, starting
from envcompare.cli.options import (
    CLEANED,
    EXPERIMENT,
    LOOKING,
    PLACES,
    command_line,
    settings_of,
    taking,
)
from envcompare.cli.running import Planned, check_places, create, measured
from envcompare.console import Display, print_bytes, print_event, print_lines
from envcompare.errors import (
    ConfigError,
    EnvcompareError,
    InterruptedRunError,
    RunFolderError,
    as_known,
    unexpected,
)
from envcompare.text import age_text, counted, escaped_json, is_masked, masked, visible

if TYPE_CHECKING:
    from envcompare.analysis.compare import ArmProgress, CellStatus, RunStatus
    from envcompare.config.plan import Plan
    from envcompare.doctor.checks import HostExamination
    from envcompare.run_folder.results import RunFolder
    from envcompare.runner import Job

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_AGAIN = ("allow_mismatch", "wait")  # may differ when a run is resumed


@click.group(context_settings=_CONTEXT)
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
    _have_stdout()
    _have_files()
    _leave_out_slow_imports()
    sys.excepthook = _show_traceback
    threading.excepthook = _report_thread
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


def _have_stdout() -> None:
    """Discard results if the caller closed stdout, for which Python has no stream."""
    try:
        os.fstat(1)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 — to the end


def _leave_out_slow_imports() -> None:
    """Save each command that draws the 2 s of importing jsonschema's optional IRI check.

    No chart specification has an IRI. The package comes with cyclonedx-bom.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # None: not there


def _have_files() -> None:
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
        return unexpected(error)
    return RunFolderError(
        f"{os.fsdecode(error.filename)} cannot be used",
        details=str(error.strerror),
        hint="check the path and its permissions",
    )


def _usage_error(error: click.ClickException) -> None:
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else ""
    Display().error(ConfigError(error.format_message(), hint=f"{command or 'envcompare'} --help"))
    sys.exit(ConfigError.exit_code)


@click.command()
@taking(EXPERIMENT)
@click.option("--yes", is_flag=True, help="Run a plan of more than 200 cells.")
@click.option(
    "--resume",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="RUN",
    help="Continue an interrupted run, with its options. Exit 2 if software, kernel, driver or "
    "data changed.",
)
@click.option(
    "--events",
    type=click.Choice(["json"]),
    help="Print each event as a line of JSON to stdout, and everything else to stderr.",
)
@click.option(
    "--retry-failed",
    is_flag=True,
    help="Try failed or lost hosts once more at the end. With --resume, also repeat cells with a "
    "failed arm.",
)
@click.pass_obj
def run(
    display: Display,
    /,
    *,
    yes: bool,
    resume: Path | None,
    events: str | None,
    retry_failed: bool,
    **values: Any,  # noqa: ANN401
) -> None:
    """Measure the workloads in every arm and write a run folder with its report."""
    from envcompare.cli.planning import file_lines, resumed
    from envcompare.config.settings import Settings
    from envcompare.run_folder import locked, next_session
    from envcompare.run_folder.results import RunFolder
    from envcompare.runner import Job

    again = Settings(**{name: values[name] for name in _AGAIN})
    if resume is not None:
        _refuse_with_resume(values)
        folder, new = RunFolder.open(resume), None
    else:
        folder, new = _begin(values, display, accept_many=yes)
    run_id = folder.run_id
    with locked(folder.path, by="run") as doubt:
        experiment, plan, hosts = new or resumed(folder, again)
        session = next_session(folder.read_events().events) if experiment.sessions > 1 else None
        if session is not None and session > experiment.sessions:
            print_lines([_all_measured(folder, experiment.sessions)])
            return
        if new is None:
            check_places(experiment, hosts, display)
        if doubt:
            display.say(doubt)
        folder.listener = print_event if events else None
        job = Job(
            folder=folder,
            plan=plan if session is None else plan.in_session(session),
            experiment=experiment,
            hosts=hosts,
            display=display,
            retries_failed=retry_failed,
            session=session,
        )
        part = f"session {session} of {experiment.sessions}, " if session else ""
        display.say(f"run {run_id}: {part}{_size(job.plan)}")
        for line in file_lines(job.plan):
            display.say(f"  {line}")
        exit_code, _ = measured(job)
        if session is not None:
            _tell_sessions(job, experiment.sessions)
    sys.exit(exit_code)


def _refuse_with_resume(values: dict[str, Any]) -> None:
    """Raise ConfigError for options that a resumed run already has."""
    if any(value not in (None, ()) for name, value in values.items() if name not in _AGAIN):
        raise ConfigError(
            "--resume takes all options except --allow-mismatch, --wait and --retry-failed "
            "from the run it continues",
            hint="leave the other options out, or start a new run",
        )


def _begin(
    values: dict[str, Any], display: Display, *, accept_many: bool
) -> tuple[RunFolder, Planned | None]:
    """Return the folder and plan of a new run, or the folder of --sessions to continue."""
    from envcompare.cli.planning import planned, session_run, usable_defaults

    flags, file = settings_of(values)
    flags, left_out = usable_defaults(flags, file)
    if left_out:
        display.say(left_out)
    experiment, plan, hosts = planned(flags, file, accept_many=accept_many)
    if experiment.sessions > 1:
        is_seeded = flags.seed is not None or file.seed is not None
        if (begun := session_run(experiment, is_seeded=is_seeded)) is not None:
            return begun, None
    return create((experiment, plan, hosts), display), (experiment, plan, hosts)


def _all_measured(folder: RunFolder, sessions: int) -> str:
    return f"all {sessions} sessions of {folder.path} are measured; name another folder with --out"


def _tell_sessions(job: Job, planned: int) -> None:
    """Print how to measure the next session, or that this was the last."""
    from envcompare.run_folder import next_session

    session = next_session(job.folder.read_events().events)
    if session > planned:
        job.display.say(_all_measured(job.folder, planned))
        return
    words = list(job.folder.read_run().command_line)
    program = Path(sys.argv[0]).absolute()
    words[0] = str(program) if program.is_file() else words[0]
    command, folder = shlex.join(words), Path.cwd()
    in_cron = f"cd {shlex.quote(str(folder))} && {command}".replace("%", r"\%")
    timer = ["systemd-run", "--user", "--on-calendar=daily", f"--working-directory={folder}"]
    lines = [
        "",
        f"session {session} of {planned} measured nothing; repeat the same command"
        if session == job.session
        else f"next: session {session} of {planned}, with the same command, best on another day",
    ]
    if not is_masked(command):  # it would not run
        lines += [
            f"  with cron:    0 3 * * * {in_cron}",
            f"  with systemd: {shlex.join([*timer, *words])}",
        ]
    for line in lines:
        job.display.say(line)


@click.command()
@taking(EXPERIMENT)
@click.option("--yes", is_flag=True, help="Accept more than 200 cells.")
def plan(*, yes: bool, **values: Any) -> None:  # noqa: ANN401
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
def doctor(*, form: str, **values: Any) -> None:  # noqa: ANN401
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

    experiment, hosts = resolved(*settings_of(values))
    last: dict[str, HostExamination] = {}
    allowed = experiment.allow_mismatch
    for examined in examine(experiment, hosts, command_line()):
        is_second = examined.host in last
        last[examined.host] = examined
        if form == "text" and is_second:
            print_lines(comparison_lines(examined, allow_mismatch=allowed))
        elif form == "text":
            print_lines(diagnosis_lines(examined))
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
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a bill of materials of the wheels (CycloneDX JSON).",
)
@click.pass_obj
def build(display: Display, /, *, sbom: Path | None, **values: Any) -> None:  # noqa: ANN401
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
    type=click.Path(file_okay=False, path_type=Path),
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
    **values: Any,  # noqa: ANN401
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
            with locked(folder.path, by="run"):  # a live client keeps its job
                forget(run_id, jobs)
        outcome = upkeep.clean_everywhere(experiment, hosts, display, run_id=run_id)
    else:
        experiment, hosts = resolved(*settings_of(values))
        free = upkeep.unlock_everywhere if break_lock else upkeep.clean_everywhere
        outcome = free(experiment, hosts, display)
    print_lines(outcome.lines)
    sys.exit(outcome.exit_code)


def _size(planned: Plan) -> str:
    design = planned.design
    arms = ", ".join(arm.id for arm in planned.arms)
    return (
        f"{counted(len(planned.cells), 'cell')} with {design.budget_s:.0f} s each, "
        f"{planned.duration(len(planned.cells))}; arms {arms}; "
        f"margin ±{100 * design.margin:.4g} %"
    )


_STATES: Final = {"not-begun": "not begun", "going-on": "being measured"}


@click.command()
@click.argument("run_folder", type=reading.PATH, metavar="[RUN]", required=False)
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
def status(display: Display, /, *, run_folder: Path | None, form: str, **values: Any) -> None:  # noqa: ANN401
    """Show how far a run is, or without RUN which run holds each host; change nothing.

    The exit code is 0 whatever the state of the run or host.
    """
    from envcompare.analysis.compare import status_of
    from envcompare.run_folder.results import RunFolder, json_bytes

    if run_folder is None:
        _tell_holders(display, form, values)
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


def _tell_holders(display: Display, form: str, values: dict[str, Any]) -> NoReturn:
    """Ask the hosts which client holds them, and exit."""
    from envcompare.cli.planning import resolved
    from envcompare.runner.upkeep import tell_holders

    if form == "json":
        raise ConfigError("--format json is for a RUN", hint="name a run folder")
    outcome = tell_holders(*resolved(*settings_of(values)), display)
    print_lines(outcome.lines)
    sys.exit(outcome.exit_code)


def _lines(run: RunStatus) -> Iterator[str]:
    yield f"run {run.run_id}: {_headline(run)}"
    for cell in run.cells:
        yield f"  {cell.cell}: {_progress(cell)}"
        yield from (f"    {arm.arm}: {_interval(arm)}" for arm in cell.arms)
    yield from (f"  failed: {text}" for text in run.failures)


def _headline(run: RunStatus) -> str:
    if run.owner is not None:
        return f"going on for {run.owner.age}: {run.owner.place}"
    return "ended" if run.state == "ended" else "interrupted; it can be resumed"


def _progress(cell: CellStatus) -> str:
    """Return the state of a cell, its results, and its remaining budget."""
    parts = [_STATES.get(cell.state, cell.state)]
    parts += [cell.reason] if cell.reason else []
    if cell.restarts and cell.is_program:
        parts.append(counted(cell.restarts, "process", "processes"))
    elif cell.restarts:
        parts.append(counted(cell.restarts, "restart"))
    if cell.budget_left_s is not None:
        parts.append(f"at most {age_text(cell.budget_left_s)} of measuring left")
    return ", ".join(parts)


def _interval(arm: ArmProgress) -> str:
    from envcompare.report.wording import signed_interval, signed_percent

    if arm.estimate is None:
        return "no estimate yet"
    return f"{signed_percent(arm.estimate)} ({signed_interval(arm.low, arm.high)})"


for _command in (
    *(run, starting.init, *lines.COMMANDS, plan, doctor, build, clean, status),
    *(*browsing.COMMANDS, *reading.COMMANDS),
):
    app.add_command(_command)
