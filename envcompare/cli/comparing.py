"""The subcommand compare: gates on the verdicts of a run, or how two runs differ."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envcompare.cli.outputs import PATH
from envcompare.console import print_bytes
from envcompare.errors import ConfigError

if TYPE_CHECKING:
    from envcompare.analysis.model.comparison import RunComparison
    from envcompare.analysis.two_runs.gates import Gate
    from envcompare.report.export.summary import TerminalLine


@click.command()
@click.argument("runs", nargs=-1, type=PATH, metavar="RUN [RUN]")
@click.option(
    "--fail-on",
    "texts",
    multiple=True,
    metavar="GATE",
    help="Exit 1 if this applies: slower:2%, faster:2%, inconclusive, confounded, failed; separate "
    "several with commas, or repeat the option.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "md", "json"]),
    default="text",
    show_default=True,
    help="md is meant for a pull-request comment.",
)
@click.option(
    "--allow-mismatch",
    is_flag=True,
    help="Compare two runs even if their reference, code or settings differ; the output says so.",
)
def compare(
    runs: tuple[Path, ...], *, texts: tuple[str, ...], form: str, allow_mismatch: bool
) -> None:
    """Check a run against gates, or show how the ratios of two runs differ; write nothing.

    \b
    envcompare compare results/RUN --fail-on slower:2%    exit 1 where an arm is slower by more
    envcompare compare results/BEFORE results/AFTER       did docker ÷ vm change in between?

    slower:2% applies if the whole interval lies beyond 2 %, slower alone if that is the verdict.
    With two runs, gates judge the change of each ratio to the reference, never a time, because
    conditions change from run to run. Exit 3 or 4 if a gate could not judge everything, for
    example what only BEFORE contains, or if a run is incomplete.
    """
    from envcompare.analysis.two_runs.gates import parse_gates

    gates = parse_gates(texts)
    if not 1 <= len(runs) <= 2:
        raise ConfigError(
            f"compare takes one run or two, not {len(runs)}",
            hint="envcompare compare RUN, or envcompare compare BEFORE AFTER",
        )
    if len(runs) == 2:
        sys.exit(_compare_two(runs[0], runs[1], gates, form=form, allow_mismatch=allow_mismatch))
    if allow_mismatch:
        raise ConfigError(
            "--allow-mismatch is for two runs",
            details="a single run has nothing to mismatch with",
            hint="name a second run, or omit the option",
        )
    sys.exit(_judge_one(runs[0], gates, form=form))


def _judge_one(path: Path, gates: tuple[Gate, ...], *, form: str) -> int:
    """Print the verdicts of a run and what the gates say of them; return the exit code."""
    from envcompare.analysis.compare import compare_run
    from envcompare.analysis.model.comparison import GatedRun
    from envcompare.analysis.two_runs.gates import claims_of_run, gates_exit_code, judge_gates
    from envcompare.report.export.changewords import (
        Naming,
        gate_lines,
        incomplete_lines,
        untimed_lines,
        worded_gates,
    )
    from envcompare.report.export.summary import markdown, terminal_lines
    from envcompare.report.wording.labels import cell_labels
    from envcompare.run_folder.results import RunFolder

    run = compare_run(RunFolder.open(path))
    claims = claims_of_run(run)
    if gates and not claims:
        raise _nothing_to_judge(run)
    results = judge_gates(gates, claims)
    code = gates_exit_code(results, claims, is_complete=run.is_complete)
    naming = Naming(
        labels=cell_labels(run),
        reference=run.reference_arm,
        gates=frozenset(one.text for one in gates),
    )
    results = worded_gates(results, naming)
    lines = (*untimed_lines(run), *gate_lines(results), *incomplete_lines(run)) if gates else ()
    if form == "json":
        _print_json(GatedRun(comparison=run, gates=results, exit_code=code))
    elif form == "md":
        _print_markdown(lines, before=markdown(run))
    else:
        _show((*terminal_lines(run), *lines))
    return code


def _compare_two(
    before: Path, after: Path, gates: tuple[Gate, ...], *, form: str, allow_mismatch: bool
) -> int:
    """Print how two runs differ and what the gates say of it; return the exit code."""
    import msgspec

    from envcompare.analysis.two_runs.changes import compare_runs, read_run
    from envcompare.analysis.two_runs.gates import claims_of_change, gates_exit_code, judge_gates
    from envcompare.report.export.changewords import change_lines, worded
    from envcompare.report.wording.labels import cell_labels
    from envcompare.run_folder.results import RunFolder

    first, second = (read_run(RunFolder.open(path)) for path in (before, after))
    change = compare_runs(first, second, allow_mismatch=allow_mismatch)
    claims = claims_of_change(change)
    results = judge_gates(gates, claims)
    is_complete = change.before.is_complete and change.after.is_complete
    code = gates_exit_code(results, claims, is_complete=is_complete)
    labels = cell_labels(second.comparison)
    said = worded(msgspec.structs.replace(change, gates=results, exit_code=code), labels)
    if form == "json":
        _print_json(said)
    elif form == "md":
        _print_markdown(change_lines(said, labels))
    else:
        _show(change_lines(said, labels))
    return code


def _nothing_to_judge(run: RunComparison) -> ConfigError:
    return ConfigError(
        f"--fail-on has nothing to judge in {run.run_id}",
        details="no environment was timed against a reference in it",
        hint="name a run of `envcompare run` with two environments or more",
    )


def _show(lines: Iterable[TerminalLine]) -> None:
    from envcompare.cli.terminal import show

    show(lines)


def _print_markdown(lines: Iterable[TerminalLine], *, before: str = "") -> None:
    from envcompare.report.export.changewords import markdown_of
    from envcompare.text import visible

    shown = tuple(lines)
    parts = [part.rstrip("\n") for part in (before, markdown_of(shown) if shown else "") if part]
    print_bytes(visible("\n\n".join(parts) + "\n").encode())


def _print_json(content: object) -> None:
    from envcompare.run_folder.results import json_bytes

    print_bytes(json_bytes(content))


COMMANDS = (compare,)
