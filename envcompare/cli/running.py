"""`run`, `why` and `capture`: the subcommands that measure."""

from __future__ import annotations

import os
import re
import shlex
import string
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from envcompare.cli.options import (
    EXPERIMENT,
    MEASURE,
    UserPath,
    command_line,
    command_name,
    named_flags,
    patterns,
    presets,
    settings_of,
    taking,
)
from envcompare.config.settings import Settings, WorkloadTable
from envcompare.config.workloads import SHELL
from envcompare.console import Display, print_event, print_lines
from envcompare.errors import ConfigError, HostHeldError, InterruptedRunError, RunFolderError
from envcompare.run_folder.records import CAPTURED as CAPTURED_LINE
from envcompare.text import counted, is_masked, masked, shortened

if TYPE_CHECKING:
    from envcompare.analysis.model import Comparison, RunComparison
    from envcompare.config.experiment import Experiment
    from envcompare.config.plan import Plan
    from envcompare.run_folder.records import Proof
    from envcompare.run_folder.results import RunFolder
    from envcompare.runner import Job
    from envcompare.transport.hosts import HostSpec

_AGAIN = ("allow_mismatch", "wait")  # may differ when a run is resumed
_CONTAINERS = re.compile(r"\b(?:docker|podman)\b")
_Planned = tuple["Experiment", "Plan", "tuple[HostSpec, ...]"]
_SUFFIX = ".capture"
_NAMES_CAPTURE = re.compile(rf"\S+{re.escape(_SUFFIX)}")  # a missing file too
_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"  # of a Python object, with its modules
_NAMED_LINE = re.compile(r"([a-z][a-z0-9-]*)=(.*)", re.DOTALL)
_OTHER_WORK, _UNDECIDED = 6, 7  # exit codes of `why`
_LINES = (
    click.option(
        "--prepare",
        metavar="'LINE'",
        help="Shell line before each process, not timed, as in 'rm -rf out'.",
    ),
    click.option("--conclude", metavar="'LINE'", help="Shell line after each process, not timed."),
    MEASURE,
    click.option(
        "--lockstep",
        is_flag=True,
        help="Compare steps of a PyTorch training script instead of whole processes.",
    ),
    click.option(
        "--step",
        metavar="MODULE:FUNCTION",
        help="Compare the time from one call of a Python function to the next, as in "
        "__main__:predict; implies --lockstep.",
    ),
    click.option(
        "--prove",
        is_flag=True,
        help="Change the slow line towards the fast one and measure again, to find the cause; "
        "takes up to --budget once more.",
    ),
    click.option(
        "--comparison",
        metavar="ARM[/WORKLOAD]",
        help="With a run's folder in place of the lines: which difference to explain; the first "
        "decided one if not given.",
    ),
    *presets(),
    *named_flags("margin", "target", "budget", "seed", "quiet_gate", "title", "out", "wait"),
)
_CAPTURED = (*_LINES[:2], *named_flags("budget", "seed", "quiet_gate", "title", "out", "wait"))


@click.command()
@taking(EXPERIMENT)
@click.option("--yes", is_flag=True, help="Run a plan of more than 200 cells.")
@click.option(
    "--resume",
    type=UserPath(file_okay=False, path_type=Path),
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
    **values: Any,
) -> None:
    """Measure the workloads in every arm and write a run folder with its report."""
    from envcompare.cli.planning import file_lines, resumed
    from envcompare.run_folder import locked, next_session
    from envcompare.run_folder.results import RunFolder
    from envcompare.runner import Job

    if resume is not None:
        if any(value not in (None, ()) for name, value in values.items() if name not in _AGAIN):
            raise ConfigError(
                "with --resume, only --allow-mismatch, --wait, --retry-failed and --events can be "
                "given",
                details="the others are those of the run that is continued",
                hint="leave them out, or start a new run",
            )
        folder, new = RunFolder.open(resume), None
    else:
        folder, new = _begin(values, display, accept_many=yes)
    # Read before the plan: an ID that no run can have is refused, whatever else run.json says.
    run_id = folder.run_id
    with locked(folder.path, by="run") as doubt:
        experiment, plan, hosts = new or resumed(
            folder, Settings(**{name: values[name] for name in _AGAIN})
        )
        session = next_session(folder.read_events().events) if experiment.sessions > 1 else None
        if session is not None and session > experiment.sessions:
            said = _all_measured(folder, experiment.sessions)
            return display.say(said) if events else print_lines([said])
        if new is None:
            _check_places(experiment, hosts, display)
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
        exit_code, _ = _measured(job)
        if session is not None:
            _tell_sessions(job, experiment.sessions)
    sys.exit(exit_code)


def _begin(
    values: dict[str, Any], display: Display, *, accept_many: bool
) -> tuple[RunFolder, _Planned | None]:
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
    return _create((experiment, plan, hosts), display), (experiment, plan, hosts)


def _all_measured(folder: RunFolder, sessions: int) -> str:
    return f"all {sessions} sessions of {folder.path} are measured; name another folder with --out"


def _tell_sessions(job: Job, planned: int) -> None:
    from envcompare.run_folder import next_session

    session = next_session(job.folder.read_events().events)
    if session > planned:
        job.display.say(_all_measured(job.folder, planned))
        return
    # cron has a short PATH (crontab(5)), which may lack the folder of envcompare.
    program = Path(sys.argv[0]).absolute()
    # `python -m` gives the path of a module, which is no program.
    is_program = program.is_file() and os.access(program, os.X_OK)
    start = [str(program)] if is_program else [sys.executable, "-m", "envcompare"]
    words = [*start, *job.folder.read_run().command_line[1:]]
    command, folder = shlex.join(words), Path.cwd()
    # cron takes % for a new line (crontab(5)).
    in_cron = f"cd {shlex.quote(str(folder))} && {command}".replace("%", r"\%")
    timer = ["systemd-run", "--user", "--on-calendar=daily", f"--working-directory={folder}"]
    job.display.say("")
    job.display.say(
        f"session {session} of {planned} measured nothing; repeat the same command"
        if session == job.session
        else f"next: session {session} of {planned}, with the same command, best on another day"
    )
    # With a masked secret, the command would not run.
    if not is_masked(command):
        job.display.say(f"  with cron:    0 3 * * * {in_cron}")
        job.display.say(f"  with systemd: {shlex.join([*timer, *words])}")


def _size(planned: Plan) -> str:
    count, design = len(planned.cells), planned.design
    return (
        f"{counted(count, 'cell')} with {design.budget_s:.0f} s each, {planned.duration(count)}; "
        f"arms {', '.join(arm.id for arm in planned.arms)}; margin ±{100 * design.margin:.4g} %"
    )


def _create(new: _Planned, display: Display) -> RunFolder:
    """Return the folder of a new run, once its hosts and base image are known to be available."""
    from envcompare.run_folder.results import RunFolder
    from envcompare.runner import walk

    experiment, plan, hosts = new
    _check_places(experiment, hosts, display)
    record = walk.run_record(plan, experiment, command_line=command_line())
    return RunFolder.create(experiment.out, record)


def _check_places(experiment: Experiment, hosts: tuple[HostSpec, ...], display: Display) -> None:
    """Refuse an unavailable allocation, host or base image before anything is built."""
    from envcompare.hosts.allocation import check_available
    from envcompare.hosts.opening import require_base, require_free

    check_available(experiment.allocation)
    if experiment.allocation is None and not experiment.wait_s:
        require_free(hosts, experiment)
    require_base(hosts, experiment, display.say)


def _carry_out(
    settings: Settings, display: Display, *, is_shown: bool = True
) -> tuple[int, RunComparison, RunFolder]:
    """Carry out a run with these settings; return the exit code, the results and the folder.

    Raises as `_measured`, and ConfigError for settings that contradict each other.
    """
    from envcompare.cli.planning import planned
    from envcompare.run_folder import locked
    from envcompare.runner import Job

    new = planned(settings, Settings(), accept_many=True)
    folder, (experiment, plan, hosts) = _create(new, display), new
    with locked(folder.path, by="run"):
        job = Job(folder=folder, plan=plan, experiment=experiment, hosts=hosts, display=display)
        display.say(f"run {folder.path}: {_size(plan)}")
        for arm in experiment.arms:
            if arm.traits.reference != "line":
                continue
            display.say(f"{arm.id}: {shortened(masked(arm.reference), most=1000)}")
            if not arm.traits.programs and _CONTAINERS.search(arm.reference):
                form = "`docker run` or `podman run`"
                display.say(f"  its container is not read: write the line as one {form}")
        return (*_measured(job, is_shown=is_shown), folder)


def _measured(job: Job, *, is_shown: bool = True) -> tuple[int, RunComparison]:
    """Carry out a run, write its report and print its summary; return the exit code and results.

    Raises InterruptedRunError if the user stopped it.
    """
    from envcompare.errors import handling_signals
    from envcompare.runner import walk

    with _drawing(job.folder), _with_room(job.folder):
        with handling_signals(job.interruption, job.display.say):
            exit_code = walk.run(job)
        # The import must not run at the same time as what is measured.
        from envcompare.cli.conclusion import conclude, show_summary

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


@contextmanager
def _drawing(folder: RunFolder) -> Iterator[None]:
    """Say where the samples are if Ctrl-C comes after the measuring, while it is concluded."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise InterruptedRunError(
            "interrupted while the report was drawn",
            details=f"the samples are kept in {folder.path}",
            hint=f"envcompare report {shlex.quote(str(folder.path))}",
        ) from error


@contextmanager
def _with_room(folder: RunFolder) -> Iterator[None]:
    """Say of a full disk that the run can be resumed, and not only its report drawn."""
    from envcompare.run_folder import is_disk_full, resume_hint

    try:
        yield
    except RunFolderError as error:
        if not is_disk_full(error):
            raise
        hint = resume_hint(folder.path)
        raise RunFolderError(error.brief, details=error.details, hint=hint) from error


@click.command()
@click.argument("lines", nargs=-1, metavar="'LINE' 'LINE'…")
@taking(_LINES)
@click.pass_obj
def why(display: Display, /, *, lines: tuple[str, ...], **values: Any) -> None:
    """Compare command lines exactly as you type them; the first is the reference.

    \b
    envcompare why 'python train.py' 'docker run --rm -v $PWD:/w -w /w app:2 python train.py'

    \b
    envcompare why results/RUN --comparison docker/cnn     for a difference that `run` has found

    For PyTorch training, add --lockstep: it compares steps, and the script need not end.

    Each line runs several times, in random order, by `sh -c` in the current folder. envcompare adds
    two labels and `--cidfile` to `docker run` and `podman run`; `--lockstep` also adds a probe: two
    mounts, and PYTHONPATH. 'fast=python train.py' names a line. By default, differences below 5 %
    count as equal, and the budget is 600 s. Exit 3: a line cannot be run. 4: a line failed. 6: the
    lines do different work. 7: a line is undecided, or no cause of a run's difference is proven.
    """
    # For a line that is too long for a path, isfile is False, and Path.is_file raises OSError.
    if len(lines) == 1 and os.path.isfile(os.path.join(lines[0], "run.json")):  # noqa: PTH113, PTH118 — False for a long line
        sys.exit(_explained(Path(lines[0]), values, display))
    if values.pop("comparison"):
        raise ConfigError(
            "--comparison needs the folder of a run, with its run.json",
            hint="envcompare why RUN --comparison docker/cnn",
        )
    is_proof = values["prove"]
    settings = line_settings(lines, values)
    exit_code, comparison, folder = _carry_out(settings, display, is_shown=not is_proof)
    if is_proof:
        comparison, _ = _proven(folder, display, budget_s=comparison.settings.budget_s)
    if comparison.course.failures and all(
        failure.phase == "checksum" for failure in comparison.course.failures
    ):
        exit_code = _OTHER_WORK
    undecided = any(
        one.outcome not in {"slower", "faster", "equivalent"} for one in comparison.compared
    )
    sys.exit(exit_code or (_UNDECIDED if undecided else 0))


_TRIAL_WAIT_S: Final = 600.0
_OF_TRIALS: Final = ("quiet_gate", "wait")  # what trials of a run that has ended may change


def _explained(run: Path, values: dict[str, Any], display: Display) -> int:
    from envcompare.analysis.compare import compare_run
    from envcompare.cli.proving import chosen_comparison
    from envcompare.config.experiment import check_ranges
    from envcompare.run_folder import locked
    from envcompare.run_folder.results import RunFolder

    given = {name for name, value in values.items() if value not in (None, (), False)}
    if others := given - {"comparison", "prove", "budget", *_OF_TRIALS}:
        words = {"measures": "measure", "preset": str(values["preset"])}
        flags = ", ".join(sorted(f"--{words.get(one, one)}".replace("_", "-") for one in others))
        raise ConfigError(
            f"{flags} applies to command lines, but {run} is a run folder",
            hint="with a run, only --comparison, --budget, --wait and --no-quiet-gate can be given",
        )
    check_ranges(Settings(**{name: values[name] for name in ("budget", *_OF_TRIALS)}))
    folder = RunFolder.open(run)
    with locked(folder.path, by="run"):
        whole = compare_run(folder)
        _, proof = _proven(
            folder,
            display,
            budget_s=values["budget"] or whole.settings.budget_s,
            chosen=chosen_comparison(whole, values["comparison"] or ""),
            again={name: values[name] for name in _OF_TRIALS if values[name] is not None},
        )
    return 0 if proof and proof.outcome in {"cause", "contributes"} else _UNDECIDED


def _proven(
    folder: RunFolder,
    display: Display,
    *,
    budget_s: float,
    chosen: Comparison | None = None,
    again: Mapping[str, Any] | None = None,
) -> tuple[RunComparison, Proof | None]:
    """Look for the cause of a difference, show the report with it; return the results and proof.

    Without a proof, one from before is kept, as where HostHeldError is raised because another
    client holds the host.
    """
    from envcompare.cli.conclusion import conclude, show_summary
    from envcompare.cli.proving import prove
    from envcompare.run_folder.results import PROOF

    has_just_run = again is None
    has_begun = False

    def carry_out(settings: Settings) -> tuple[RunComparison, RunFolder]:
        nonlocal has_just_run, has_begun
        given = replace(settings, **(again or {}))
        if has_just_run:
            # Between the runs of one search another client may take the host.
            given = replace(given, wait=max(given.wait or 0.0, _TRIAL_WAIT_S))
        has_just_run = True
        trial = _carry_out(given, display, is_shown=False)[1:]
        has_begun = True
        return trial

    display.say("looking for the cause")
    try:
        proof = prove(folder, carry_out, display.say, budget_s=budget_s, chosen=chosen)
        if proof is not None:
            folder.write_json(PROOF, proof)
    except InterruptedRunError as error:
        raise InterruptedRunError(
            "the search for the cause was interrupted",
            details="the verdict is kept, and not proven",
            hint=f"envcompare why {shlex.quote(str(folder.path))}",
        ) from error
    except HostHeldError as error:
        what = "the search for the cause was ended" if has_begun else "the cause was not looked for"
        raise HostHeldError(
            f"{what}: {error.brief}",
            details=error.details,
            hint=f"envcompare why {shlex.quote(str(folder.path))} --wait",
        ) from error
    finally:
        with _drawing(folder):
            comparison, report = conclude(folder)
            show_summary(comparison, report)
    if proof is None:
        display.say(_why_no_proof(comparison))
    return comparison, proof


def _why_no_proof(comparison: RunComparison) -> str:
    """Return why no cause was looked for, and what to try."""
    outcomes = {one.outcome for one in comparison.compared}
    if outcomes & {"slower", "faster"}:
        return "no proof: no time was left to measure a change; give a longer --budget"
    if "inconclusive" in outcomes:
        return "no proof: the difference is not decided; try a longer --budget"
    if "equivalent" in outcomes:
        return "no proof: the lines count as equal; try a smaller --margin"
    return "no proof: nothing could be compared"


@click.command()
@click.argument("line", metavar="'LINE'")
@click.option(
    "--output",
    "-o",
    type=UserPath(dir_okay=False, path_type=Path),
    required=True,
    metavar=f"FILE{_SUFFIX}",
    help="File to write; it must not exist.",
)
@taking(_CAPTURED)
@click.pass_obj
def capture(display: Display, /, *, line: str, output: Path, **values: Any) -> None:
    """Measure one command line here, and keep it in a file to compare with elsewhere.

    \b
    envcompare capture 'python train.py' -o slow.capture       where it is slow
    envcompare why 'python train.py' slow.capture              where it is fast

    The line runs against itself, as by `why`, which shows how much its time varies on this machine.
    The file holds times and facts, and no file of yours. Exit codes are those of `why`, without 7;
    5: too few rounds.
    """
    from envcompare.run_folder.captures import capture_of, write_capture

    why = ""
    if output.suffix != _SUFFIX:
        why = f"does not end with {_SUFFIX}"
    elif os.path.lexists(output):
        why = "exists already"
    elif not os.access(output.parent, os.W_OK | os.X_OK):
        why = "cannot be written: its folder is missing, or not yours to write"
    if why:
        raise ConfigError(
            f"--output {output} {why}", hint=f"name a new file, such as slow{_SUFFIX}"
        )
    try:
        settings = line_settings(twice(line), values)
        exit_code, comparison, folder = _carry_out(settings, display)
    except InterruptedRunError as error:
        hint = "run envcompare capture again"
        raise InterruptedRunError(error.brief, details=error.details, hint=hint) from error
    if comparison.course.failures:
        sys.exit(exit_code)
    write_capture(output, capture_of(folder))
    display.say(f"{output}: compare it with envcompare why 'LINE' {shlex.quote(str(output))}")


def line_settings(lines: tuple[str, ...], values: dict[str, Any]) -> Settings:
    """Return the settings that compare command lines, run in the current folder.

    A line may begin with its name, as in `fast=python train.py`. Raises ConfigError for a repeated
    name, and for another number of lines than 2 to 26.
    """
    if len(lines) == 1 and " " not in lines[0]:
        raise ConfigError(
            f"{lines[0]} is not the folder of a run",
            hint="envcompare ls shows runs; two lines: envcompare why 'LINE' 'LINE'",
        )
    if not 2 <= len(lines) <= len(string.ascii_lowercase):
        raise ConfigError(
            f"why compares 2 to {len(string.ascii_lowercase)} command lines, not {len(lines)}",
            hint="quote each of them: envcompare why 'python train.py' 'docker run …'",
        )
    step = values.get("step")
    if step and not re.fullmatch(f"{_NAME}:{_NAME}", step):
        raise ConfigError(
            f"--step {step} is not understood",
            hint="the form is MODULE:FUNCTION, as in __main__:predict or model:Net.forward",
        )
    lockstep = bool(values.get("lockstep") or step)
    arms, rounds = _arms(lines, lockstep=lockstep)
    given = {name: value for name, value in values.items() if value not in (None, ())}
    usual: dict[str, Any] = {} if "preset" in given else {"margin": 5.0}
    own = {name: given.pop(name, None) for name in ("prepare", "conclude", "step")}
    given.pop("lockstep", None)
    measures = patterns(given.pop("measures", ()))
    if rounds:
        _require_runs(given, measures=measures, lockstep=lockstep)
    given.pop("prove", None)
    if lockstep:
        usual |= {"same_cpu": False, "marks": False, "startup": False}
        if own["prepare"] or own["conclude"] or measures:
            raise ConfigError(
                "steps cannot be combined with --prepare, --conclude or --measure",
                hint="leave --lockstep and --step out to time whole processes",
            )
    most = min(rounds, default=None)
    table = WorkloadTable(
        command=SHELL, lockstep=lockstep, most_rounds=most, measures=measures, **own
    )
    # a line may hold a whole program, and the name of its script comes early
    scripts = (
        one for line in lines for one in re.findall(r"[^\s'\"=:]+\.(?:py|sh)\b", line[:4096])
    )
    return Settings(
        **{**usual, **given},
        envs=tuple(arms.values()),
        workloads={command_name((next(scripts, "line"),)): table},
        profile="none",
        threads="as-run",
        stabilise=False,
    )


def _arms(lines: tuple[str, ...], *, lockstep: bool) -> tuple[dict[str, str], list[int]]:
    """Return how each line is run, by its name, and of captures how many rounds they hold."""
    # --help does without the engines.
    from envcompare.environments.line import engine_call, name_of
    from envcompare.run_folder.captures import read_capture

    arms: dict[str, str] = {}
    rounds: list[int] = []
    for letter, text in zip(string.ascii_lowercase, lines, strict=False):
        own, line = _parted(text)
        name = own or letter
        # Arguments that are not UTF-8 contain lone surrogates (PEP 383).
        if any("\ud800" <= character <= "\udfff" or character == "\0" for character in line):
            raise ConfigError(
                f"the line {text!a} is not valid UTF-8", hint="write it into a script"
            )
        if name in arms or not line.strip():
            raise ConfigError(
                f"the line {text!r} is empty" if not line.strip() else f"two lines are {name!r}",
                hint="give each line its own name, as in 'fast=python train.py'",
            )
        if _is_capture(line) and not engine_call(line):
            path = Path(line).absolute()
            captured = read_capture(path)
            rounds.append(min(len(captured.processes), len(captured.control)))
            arms[name] = f"{name}={CAPTURED_LINE}:{path}"
            continue
        call = engine_call(line)
        if lockstep and call is None and _CONTAINERS.search(line):
            raise ConfigError(
                f"the steps of a script in the container of {text!r} cannot be seen",
                hint="write the line as one `docker run` or `podman run`, or leave --lockstep and "
                "--step out",
            )
        arms[name] = f"{name}={name_of(call.client) if call else 'line'}:{line}"
    return arms, rounds


def _require_runs(given: dict[str, Any], *, measures: dict[str, str], lockstep: bool) -> None:
    for is_given, brief, flags in (
        (given.get("prove"), "the line of a capture cannot be run again", "--prove"),
        (measures, "a capture holds no output, which --measure would search", "--measure"),
        (lockstep, "a capture holds whole processes, no steps", "--lockstep and --step"),
    ):
        if is_given:
            raise ConfigError(brief, hint=f"leave {flags} out")


def _parted(text: str) -> tuple[str, str]:
    """Return the name of a line, empty if it has none, and the line."""
    named = None if _is_capture(text, may_be_missing=False) else _NAMED_LINE.fullmatch(text)
    return (named[1], named[2]) if named else ("", text)


def _is_capture(line: str, *, may_be_missing: bool = True) -> bool:
    if may_be_missing and _NAMES_CAPTURE.fullmatch(line):
        return True
    # For a line that is too long for a path, isfile is False, and Path.is_file raises OSError.
    return line.endswith(_SUFFIX) and os.path.isfile(line)  # noqa: PTH113 — False for a long line


def twice(text: str) -> tuple[str, str]:
    """Return a line, without its name, as two lines to compare."""
    _, line = _parted(text)
    if _is_capture(line):
        raise ConfigError(f"{line} is a capture already", hint="give the line itself")
    return f"a={line}", f"b={line}"
