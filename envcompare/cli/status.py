"""The subcommand that says how far a run is, from its folder alone: status."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from envcompare.console import print_bytes, print_lines
from envcompare.text import age_text, counted, escaped_json

if TYPE_CHECKING:
    from envcompare.analysis.progress import ArmProgress, CellStatus, RunStatus

_STATES: Final = {"not-begun": "not begun", "going-on": "being measured"}


@click.command()
@click.argument("run_folder", type=click.Path(path_type=Path, readable=False), metavar="RUN")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json has the intervals as log ratios.",
)
def status(*, run_folder: Path, form: str) -> None:
    """Say how far a run is, from another terminal or machine; read its folder, change nothing.

    The exit code is 0 whether the run is going on, was interrupted or has ended.
    """
    from envcompare.analysis.progress import status_of
    from envcompare.run_folder.results import RunFolder, json_bytes

    state = status_of(RunFolder.open(run_folder))
    if form == "json":
        print_bytes(escaped_json(json_bytes(state)))
    else:
        print_lines(_lines(state))


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
    """Say the state of a cell, what it has, and what it may still take."""
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
    from envcompare.report.numbers import signed_interval, signed_percent

    if arm.estimate is None:
        return "no estimate yet"
    return f"{signed_percent(arm.estimate)} ({signed_interval(arm.low, arm.high)})"


COMMANDS = (status,)
