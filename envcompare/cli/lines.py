"""`why` and `capture`: command lines as they are typed, and their settings."""

from __future__ import annotations

import os
import re
import shlex
import string
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import click

from envcompare.cli.options import (
    MEASURE,
    command_name,
    named_flags,
    patterns,
    presets,
    taking,
)
from envcompare.cli.running import CONTAINERS, carry_out
from envcompare.config.settings import Settings, WorkloadTable
from envcompare.config.workloads import SHELL
from envcompare.console import Display
from envcompare.errors import ConfigError, InterruptedRunError
from envcompare.run_folder.records import CAPTURED as CAPTURED_LINE

if TYPE_CHECKING:
    from envcompare.analysis.model import Comparison, RunComparison
    from envcompare.run_folder.results import RunFolder

SUFFIX = ".capture"
_NAMES_CAPTURE = re.compile(rf"\S+{re.escape(SUFFIX)}")
_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_STEP = re.compile(f"{_NAME}:{_NAME}")
_NAMED_LINE = re.compile(r"([a-z][a-z0-9-]*)=(.*)", re.DOTALL)
_SCRIPT = re.compile(r"[^\s'\"=:]+\.(?:py|sh)\b")
_LINE_MARGIN = 5.0  # percent
_SEARCHED = 4096  # characters of a line, for the name of a script
_OTHER_WORK, _UNDECIDED = 6, 7  # exit codes of `why`
_DECIDED = ("slower", "faster", "equivalent")
_PROVEN = ("cause", "contributes")
LINES = (
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
CAPTURED = (*LINES[:2], *named_flags("budget", "seed", "quiet_gate", "title", "out", "wait"))


@click.command()
@click.argument("lines", nargs=-1, metavar="'LINE' 'LINE'…")
@taking(LINES)
@click.pass_obj
def why(display: Display, /, *, lines: tuple[str, ...], **values: Any) -> None:  # noqa: ANN401
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
    if len(lines) == 1 and os.path.isfile(os.path.join(lines[0], "run.json")):  # noqa: PTH113, PTH118 — False for a long line
        sys.exit(_explained(Path(lines[0]), values, display))
    if values.pop("comparison"):
        raise ConfigError(
            "--comparison needs the folder of a run, with its run.json",
            hint="envcompare why RUN --comparison docker/cnn",
        )
    is_proof = values["prove"]
    settings = line_settings(lines, values)
    exit_code, comparison, folder = carry_out(settings, display, is_shown=not is_proof)
    if is_proof:
        comparison = _proven(folder, display, budget_s=comparison.settings.budget_s)
    if comparison.course.failures and all(
        one.phase == "checksum" for one in comparison.course.failures
    ):
        exit_code = _OTHER_WORK
    undecided = any(one.outcome not in _DECIDED for one in comparison.compared)
    sys.exit(exit_code or (_UNDECIDED if undecided else 0))


_OF_TRIALS: Final = ("quiet_gate", "wait")  # what trials of a run that has ended may change


def _explained(run: Path, values: dict[str, Any], display: Display) -> int:
    """Look for the cause of a difference in a run that has ended; return the exit code."""
    from envcompare.analysis.compare import compare_run
    from envcompare.cli.proving import chosen_comparison
    from envcompare.run_folder import locked
    from envcompare.run_folder.results import RunFolder

    given = {name for name, value in values.items() if value not in (None, (), False)}
    if others := given - {"comparison", "prove", "budget", *_OF_TRIALS}:
        flags = ", ".join(sorted(_flag(name, values[name]) for name in others))
        raise ConfigError(
            f"{flags} applies to command lines, but {run} is a run folder",
            hint="with a run, only --comparison, --budget, --wait and --no-quiet-gate can be given",
        )
    folder = RunFolder.open(run)
    with locked(folder.path, by="run"):
        whole = compare_run(folder)
        comparison = _proven(
            folder,
            display,
            budget_s=values["budget"] or whole.settings.budget_s,
            chosen=chosen_comparison(whole, values["comparison"] or ""),
            again={name: values[name] for name in _OF_TRIALS if values[name] is not None},
        )
    outcome = "none" if comparison.proof is None else comparison.proof.outcome
    return 0 if outcome in _PROVEN else _UNDECIDED


def _flag(name: str, value: object) -> str:
    """Return a flag as it is typed."""
    names = {"measures": "measure", "preset": str(value)}
    return "--" + names.get(name, name).replace("_", "-")


def _proven(
    folder: RunFolder,
    display: Display,
    *,
    budget_s: float,
    chosen: Comparison | None = None,
    again: Mapping[str, Any] = MappingProxyType({}),
) -> RunComparison:
    """Look for the cause of a difference, show the report with it, and return the results."""
    from envcompare.cli.conclusion import conclude, show_summary
    from envcompare.cli.proving import prove
    from envcompare.run_folder.results import PROOF

    display.say("looking for the cause")
    try:
        proof = prove(folder, display, budget_s=budget_s, chosen=chosen, again=again)
        if proof is not None:
            folder.write_json(PROOF, proof)
    except InterruptedRunError as error:
        raise InterruptedRunError(
            "the search for the cause was interrupted",
            details="the verdict is kept, and not proven",
            hint=f"envcompare why {shlex.quote(str(folder.path))}",
        ) from error
    finally:
        comparison, report = conclude(folder)
        show_summary(comparison, report)
    return comparison


@click.command()
@click.argument("line", metavar="'LINE'")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar=f"FILE{SUFFIX}",
    help="File to write; it must not exist.",
)
@taking(CAPTURED)
@click.pass_obj
def capture(display: Display, /, *, line: str, output: Path, **values: Any) -> None:  # noqa: ANN401
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
    if output.suffix != SUFFIX:
        why = f"does not end with {SUFFIX}"
    elif output.exists():
        why = "exists already"
    elif not os.access(output.parent, os.W_OK | os.X_OK):
        why = "cannot be written: its folder is missing, or not yours to write"
    if why:
        raise ConfigError(f"--output {output} {why}", hint=f"name a new file, such as slow{SUFFIX}")
    try:
        settings = line_settings(twice(line), values)
        exit_code, comparison, folder = carry_out(settings, display)
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
    if step and not _STEP.fullmatch(step):
        raise ConfigError(
            f"--step {step} is not understood",
            hint="the form is MODULE:FUNCTION, as in __main__:predict or model:Net.forward",
        )
    lockstep = bool(values.get("lockstep") or step)
    arms, rounds = _arms(lines, lockstep=lockstep)
    given = {name: value for name, value in values.items() if value not in (None, ())}
    usual: dict[str, Any] = {} if "preset" in given else {"margin": _LINE_MARGIN}
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
    return Settings(
        **{**usual, **given},
        envs=tuple(arms.values()),
        workloads={_script(lines): table},
        profile="none",
        threads="as-run",
        stabilise=False,
    )


def _arms(lines: tuple[str, ...], *, lockstep: bool) -> tuple[dict[str, str], list[int]]:
    """Return how each line is run, by its name, and of captures how many rounds they hold."""
    from envcompare.environments.line import engine_call, name_of  # --help does without engines
    from envcompare.run_folder.captures import read_capture

    arms: dict[str, str] = {}
    rounds: list[int] = []
    for letter, text in zip(string.ascii_lowercase, lines, strict=False):
        named = _NAMED_LINE.fullmatch(text)
        name, line = (named[1], named[2]) if named else (letter, text)
        if any("\ud800" <= character <= "\udfff" or character == "\0" for character in line):
            raise ConfigError(
                f"the line {text!a} is not valid UTF-8", hint="write it into a script"
            )
        if name in arms or not line.strip():
            raise ConfigError(
                f"the line {text!r} is empty" if not line.strip() else f"two lines are {name!r}",
                hint="give each line its own name, as in 'fast=python train.py'",
            )
        if _NAMES_CAPTURE.fullmatch(line) and not engine_call(line):
            path = Path(line).absolute()
            captured = read_capture(path)
            rounds.append(min(len(captured.processes), len(captured.control)))
            arms[name] = f"{name}={CAPTURED_LINE}:{path}"
            continue
        call = engine_call(line)
        if lockstep and call is None and CONTAINERS.search(line):
            raise ConfigError(
                f"the steps of a script in the container of {text!r} cannot be seen",
                hint="write the line as one `docker run` or `podman run`, or leave --lockstep and "
                "--step out",
            )
        arms[name] = f"{name}={name_of(call.client) if call else 'line'}:{line}"
    return arms, rounds


def _require_runs(given: dict[str, Any], *, measures: dict[str, str], lockstep: bool) -> None:
    """Raise ConfigError for what a capture does not hold."""
    if given.get("prove"):
        raise ConfigError(
            "--prove changes lines and runs them again, which a capture does not allow",
            hint="leave --prove out",
        )
    if measures:
        raise ConfigError(
            "a capture holds no output, which --measure would search",
            hint="leave --measure out",
        )
    if lockstep:
        raise ConfigError(
            "a capture holds whole processes, no steps",
            hint="leave --lockstep and --step out",
        )


def twice(text: str) -> tuple[str, str]:
    """Return a line, without its name, as two lines to compare."""
    named = _NAMED_LINE.fullmatch(text)
    line = named[2] if named else text
    if _NAMES_CAPTURE.fullmatch(line):
        raise ConfigError(f"{line} is a capture already", hint="give the line itself")
    return f"a={line}", f"b={line}"


def _script(lines: Iterable[str]) -> str:
    """Return the name of the first script in the lines, else `line`."""
    scripts = (word for line in lines for word in _SCRIPT.findall(line[:_SEARCHED]))
    return command_name((next(scripts, "line"),))


COMMANDS = (why, capture)
