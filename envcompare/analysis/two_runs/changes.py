"""Compare two runs: how each arm ÷ reference changed from one to the other.

Two runs are two moments, so that times are never compared, only ratios that were measured in one
moment each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from envcompare.analysis.compare import compare_files
from envcompare.analysis.model.change import LeftOut, RunChange, RunSide
from envcompare.analysis.model.comparison import Comparison, RunComparison
from envcompare.analysis.runfiles import read_files
from envcompare.analysis.two_runs.changejudge import Key, judge_change
from envcompare.analysis.two_runs.mismatches import ReadRun, Work, mismatch_text, mismatches
from envcompare.errors import ConfigError
from envcompare.run_folder.records import Event
from envcompare.run_folder.results import RunFolder

_MOST_NAMED = 20


def read_run(folder: RunFolder) -> ReadRun:
    """Analyse a run folder in memory, without the screen it may have had; nothing is written.

    Raises RunFolderError when it cannot be read.
    """
    files = read_files(folder)
    comparison = compare_files(replace(files, run=files.unscreened()))
    return ReadRun(
        record=files.run,
        comparison=comparison,
        fingerprints={(one.cell, one.arm): one for one in files.fingerprints},
        # of what was resumed too: no code may change while a run stands still
        work=_work(files.events, comparison.reference_arm),
    )


def _work(events: Iterable[Event], reference: str) -> dict[str, Work]:
    """Return what the reference noted of the work it does, by cell."""
    return {
        event.cell: dict(event.values)
        for event in events
        if event.what == "note" and event.arm == reference and "code" in event.values
    }


def compare_runs(before: ReadRun, after: ReadRun, *, allow_mismatch: bool = False) -> RunChange:
    """Return how every comparison that both runs hold changed.

    Raises ConfigError where they hold none, or where reference, code or design differ and that
    is not allowed.
    """
    _check_two(before, after)
    first, second = _compared(before.comparison), _compared(after.comparison)
    common = [key for key in second if key in first]
    if not common:
        raise _nothing_common(before, after)
    cells = tuple(dict.fromkeys(cell for cell, _ in common))
    found = mismatches(before, after, cells)
    if found and not allow_mismatch:
        raise _refused(before, after, [mismatch_text(one, cells) for one in found])
    return RunChange(
        before=_side(before),
        after=_side(after),
        reference_arm=after.comparison.reference_arm,
        margin=after.comparison.margin,
        changes=tuple(judge_change(before, after, (first[key], second[key])) for key in common),
        left_out=(
            *(LeftOut(cell=c, arm=a, only_in="before") for c, a in first if (c, a) not in second),
            *(LeftOut(cell=c, arm=a, only_in="after") for c, a in second if (c, a) not in first),
        ),
        mismatches=found,
        cautions=tuple(_cautions(before, after, cells)),
    )


def _check_two(before: ReadRun, after: ReadRun) -> None:
    first, second = before.comparison, after.comparison
    if first.run_id == second.run_id:
        raise ConfigError(
            f"both are the same run, {first.run_id}",
            details="a run has not changed against itself",
            hint="name two runs, or one for the verdicts of that run",
        )
    if first.reference_arm != second.reference_arm:
        raise ConfigError(
            "the two runs have different references",
            details=f"{first.reference_arm} in {first.run_id}, {second.reference_arm} in "
            f"{second.run_id}: their ratios are of different things",
            hint=f"run again with --reference {first.reference_arm}",
        )


def _compared(run: RunComparison) -> dict[Key, Comparison]:
    return {(one.cell, one.arm): one for one in run.compared}


def _nothing_common(before: ReadRun, after: ReadRun) -> ConfigError:
    has = [
        f"{run.comparison.run_id} has {_named(_compared(run.comparison))}"
        for run in (before, after)
    ]
    return ConfigError(
        "the two runs hold no comparison in common",
        details="; ".join(has),
        hint="compare runs of the same hosts, workloads, parameters and environments",
    )


def _named(keys: Iterable[Key]) -> str:
    names = [f"{arm} in {cell}" for cell, arm in keys]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more if names else "nothing that was timed"


def _refused(before: ReadRun, after: ReadRun, texts: list[str]) -> ConfigError:
    more = f"; and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    reference, first, second = (
        after.comparison.reference_arm, before.comparison.run_id, after.comparison.run_id
    )  # fmt: skip
    return ConfigError(
        f"{first} and {second} cannot be compared: the reference {reference} or what it ran is "
        "not the same",
        details="; ".join(texts[:_MOST_NAMED]) + more,
        hint="measure both on one machine with one software, or add --allow-mismatch: it is then "
        "said with every result",
    )


def _side(read: ReadRun) -> RunSide:
    run = read.comparison
    return RunSide(
        run_id=run.run_id,
        created=run.created,
        title=run.title,
        tool_version=run.tool_version,
        preset=run.preset,
        margin=run.margin,
        planned_comparisons=run.planned_comparisons,
        screen=read.record.design.screen,
        is_complete=run.is_complete,
    )


def _cautions(before: ReadRun, after: ReadRun, cells: tuple[str, ...]) -> Iterable[str]:
    """Say what is not known to be the same, or was done another way."""
    if before.comparison.created > after.comparison.created:
        yield "the run before was begun later than the run after: are they in their order?"
    yield from _unknown(before, after, cells)
    for cell in cells:
        kinds = [_generation(run.comparison, cell) for run in (before, after)]
        if all(kinds) and kinds[0] != kinds[1]:
            yield f"{cell}: {kinds[0]} before, {kinds[1]} after"
    if before.record.design.screen or after.record.design.screen:
        yield "no screen is used here: each interval pays for all comparisons of its run"


def _unknown(before: ReadRun, after: ReadRun, cells: tuple[str, ...]) -> Iterable[str]:
    """Say of which cells it is not known that they did the same work on the same data."""
    commands = _programs(before) | _programs(after)
    unknown = [
        cell
        for cell in cells
        if cell not in commands
        and not all("data" in run.work.get(cell, {}) for run in (before, after))
    ]
    if unknown:
        yield f"whether the data are the same is not known in {', '.join(unknown)}"
    if programs := [cell for cell in cells if cell in commands]:
        yield (
            f"that the command of {', '.join(programs)} is the same program in both runs is not "
            "known; that it is called the same is"
        )


def _programs(run: ReadRun) -> frozenset[str]:
    names = run.commands.keys()
    return frozenset(cell.id for cell in run.record.cells if cell.workload in names)


def _generation(run: RunComparison, cell: str) -> str:
    found = next((one.generation for one in run.cells if one.id == cell), "")
    return found.partition(":")[0]
