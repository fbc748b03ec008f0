"""Compare two runs: the change of each arm ÷ reference, with its verdict.

Two runs are at two times, so times are never compared, only ratios within each run. The runs share
no randomness, and each reported interval is already widened for its run's comparisons and interim
looks. The interval of the change inherits both: its error is at most the larger of the two, and
over all changes at most that of one run. The intervals of a screen do not qualify: they are only
corrected for the comparisons selected in that run, and changes select others.

Changes are of the typical step. A change is equivalent only if the change of the mean is too. That
is the change of the typical step plus the change of the mean's excess over it, with half-widths
added in quadrature (see `stats.verdicts`).

For ratios of two runs to be comparable some properties must be equal. The reference represents the
machine and its software: if it changed, ratios to it changed their meaning. Pure names (a process
ID, a host name, a path) may differ, and so may the hash seed, which `--stabilise` draws again for
each restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, Final

import msgspec

from envcompare.analysis.compare import compare_files
from envcompare.analysis.model import (
    Comparison,
    Estimate,
    Outcome,
    Reason,
    RunComparison,
    When,
)
from envcompare.analysis.timing.judge import claimed, failed_control_end, leaning, least_restarts
from envcompare.analysis.timing.runfiles import RunFiles, read_files
from envcompare.analysis.two_runs import (
    Change,
    LeftOut,
    Mismatch,
    RunChange,
    RunSide,
    fact_text,
    mismatch_text,
    phase_of,
    shortened_value,
    whole_facts,
)
from envcompare.errors import ConfigError
from envcompare.fingerprint import INSTALLED_PARTS, LOADED, fact, holds_for
from envcompare.fingerprint.comparing import compare_fingerprints, measured_alike
from envcompare.run_folder.records import (
    ArmRecord,
    FactDifference,
    FingerprintRecord,
    FingerprintValue,
    RunRecord,
)
from envcompare.run_folder.results import RunFolder, configuration_of
from envcompare.stats.verdicts import Ends, difference, verdict
from envcompare.text import assigned, first_few, masked

Work = dict[str, FingerprintValue]
_DESIGN: Final = ("threads", "stabilise", "pin")
_WORK: Final = ("code", "device", "batch")
# A run may not have recorded these facts: if one run lacks a value, no difference is known.
_OPTIONAL: Final = (
    "hypervisor",
    "cpu.family",
    INSTALLED_PARTS,
    "mount.packages",
    "engine.requests",
)
_MOST: Final = 0.5  # of the rounds of a cell
_FEW: Final = 0.1
_MOST_NAMED = 20


@dataclass(frozen=True, kw_only=True)  # no slots: commands are parsed once, not for each cell
class ReadRun:
    """A run in memory: its results, and its inputs."""

    record: RunRecord
    comparison: RunComparison
    fingerprints: dict[tuple[str, str], FingerprintRecord]  # by cell and arm
    work: dict[str, Work] = field(default_factory=dict)  # by cell, as the reference recorded it

    @cached_property
    def commands(self) -> dict[str, str]:
        """Return the plain commands of the run by workload name.

        Raises RunFolderError if run.json does not have them in their original form.
        """
        tables = configuration_of(self.record).get("workloads", {})
        workloads: dict[str, Any] = tables if isinstance(tables, dict) else {}
        return {
            name: str(one["command"])
            for name, one in workloads.items()
            if isinstance(one, dict) and "command" in one
        }


def mismatches(before: ReadRun, after: ReadRun, cells: Iterable[str]) -> tuple[Mismatch, ...]:
    """Return the mismatches; one shared by several cells appears once."""
    seen: dict[tuple[str, str], Mismatch] = {
        (one.key, one.text): one for one in of_design(before, after)
    }
    for cell in cells:
        every = (
            of_work(before, after, (cell, cell)),
            _of_reference(before, after, cell),
            _of_held_rounds(before, after, cell),
        )
        for mismatch in chain.from_iterable(every):
            known = seen.get((mismatch.key, mismatch.text))
            places = (*known.cells, cell) if known else (cell,)
            seen[mismatch.key, mismatch.text] = msgspec.structs.replace(mismatch, cells=places)
    return tuple(seen.values())


def _changed_facts(
    before: ReadRun, after: ReadRun, place: tuple[str, str]
) -> tuple[FactDifference, ...]:
    """Return the facts of an arm in a cell that differ between the runs, software first.

    Empty if either run has no fingerprint.
    """
    mine, theirs = before.fingerprints.get(place), after.fingerprints.get(place)
    if mine is None or theirs is None:
        return ()
    is_stabilised = before.record.design.stabilise and after.record.design.stabilise
    kept = [
        one
        for one in compare_fingerprints(mine, theirs)
        if one.fact_class != "identity"
        and not (is_stabilised and one.key == "env.PYTHONHASHSEED")
        and _is_proven(mine, theirs, one)
        and not (
            any(holds_for(rule, one.key) for rule in _OPTIONAL)
            and None in (one.reference, one.value)
        )
    ]
    alike = measured_alike(mine, theirs, kept)
    keys = {one.key for one in alike}
    # a part of a fact that is left out is reported by itself
    whole = (
        one if one.part_of in keys else msgspec.structs.replace(one, part_of="") for one in alike
    )
    return (*whole, *_engines(mine, theirs))


def _is_proven(
    before: FingerprintRecord, after: FingerprintRecord, difference: FactDifference
) -> bool:
    """Say whether a difference is certain: a plain command's list may have gaps by chance."""
    is_watched = "programs" in before.facts and "programs" in after.facts
    is_list = difference.key in {*LOADED, "programs"}
    return difference.fact_class == "confounder" or not (is_watched and is_list)


def _engines(before: FingerprintRecord, after: FingerprintRecord) -> Iterator[FactDifference]:
    """Yield the arm's isolating engines with another version; the kernel is a separate fact."""
    for key in sorted(before.identity.keys() | after.identity.keys()):
        values = _version(before, key), _version(after, key)
        if key.endswith(".version") and values[0] != values[1]:
            yield FactDifference(
                host=after.host,
                arm=after.arm,
                key=key,
                reference=values[0],
                value=values[1],
                fact_class="host",
            )


def _version(record: FingerprintRecord, key: str) -> FingerprintValue:
    version = record.identity.get(key)
    return None if version == record.facts.get("kernel.release") else version


def of_design(
    before: ReadRun, after: ReadRun, *, keys: tuple[str, ...] = _DESIGN
) -> Iterator[Mismatch]:
    """Yield the measurement settings that differ between two runs."""
    for key in keys:
        values = getattr(before.record.design, key), getattr(after.record.design, key)
        if values[0] != values[1]:
            option = f"--{key.replace('_', '-')}"
            none = "as-run" if key == "threads" else "none"
            both = " → ".join(_setting(each, none=none) for each in values)
            yield _mismatch(key, values, f"{option} {both}")


def of_work(before: ReadRun, after: ReadRun, cells: tuple[str, str]) -> Iterator[Mismatch]:
    """Yield the work that differs between two cells, the first of them of the earlier run."""
    mine, theirs = before.work.get(cells[0], {}), after.work.get(cells[1], {})
    for key in _WORK:
        values = mine.get(key), theirs.get(key)
        # an unknown code hash is reported once for all cells
        if (key == "code") if None in values else values[0] != values[1]:
            yield _work_mismatch(key, values)
    if "data" in mine and "data" in theirs and mine["data"] != theirs["data"]:
        yield _work_mismatch("data", (mine["data"], theirs["data"]))
    workload = next(cell.workload for cell in after.record.cells if cell.id == cells[1])
    commands = before.commands.get(workload), after.commands.get(workload)
    if commands[0] != commands[1]:
        yield _mismatch("command", commands, f"the command {commands[0]} → {commands[1]}")


def _of_reference(before: ReadRun, after: ReadRun, cell: str) -> Iterator[Mismatch]:
    at = cell, after.comparison.reference_in(cell)
    mine, theirs = before.fingerprints.get(at), after.fingerprints.get(at)
    if mine is None or theirs is None:
        first, second = (
            "not known" if fingerprint is None else "known" for fingerprint in (mine, theirs)
        )
        yield _mismatch("fingerprint", (first, second), f"the fingerprint {first} → {second}")
        return
    for changed in whole_facts(_changed_facts(before, after, at)):
        values = (changed.reference, changed.value)
        yield _mismatch(changed.key, values, fact_text(changed))


def _of_held_rounds(before: ReadRun, after: ReadRun, cell: str) -> Iterator[Mismatch]:
    """Yield the effect of `--same-cpu`: the held rounds, since only some cells hold them."""
    first, second = _held_share(before, cell), _held_share(after, cell)
    if first is None or second is None:
        return
    if min(first, second) <= _FEW and max(first, second) >= _MOST:
        ends = f"{100 * first:.0f} % → {100 * second:.0f} %"
        text = f"rounds with all arms on the same CPU (--same-cpu): {ends}"
        yield _mismatch("same_cpu", (first, second), text)


def _held_share(run: ReadRun, cell: str) -> float | None:
    """Return the share of a cell's rounds in which all arms ran on one CPU."""
    rounds = [(c.held_rounds, c.rounds) for c in run.comparison.cells if c.id == cell and c.rounds]
    return rounds[0][0] / rounds[0][1] if rounds else None


def _mismatch(key: str, values: tuple[FingerprintValue, FingerprintValue], text: str) -> Mismatch:
    return Mismatch(key=key, before=values[0], after=values[1], text=text)


def _work_mismatch(key: str, values: tuple[FingerprintValue, FingerprintValue]) -> Mismatch:
    return _mismatch(
        key, values, f"{fact(key).name} {shortened_value(values[0])} → {shortened_value(values[1])}"
    )


def _setting(value: object, *, none: str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return none if value is None else str(value)


_Moments = tuple[tuple[When, ReadRun, Comparison], tuple[When, ReadRun, Comparison]]


def read_run(folder: RunFolder) -> ReadRun:
    """Analyse a run folder in memory, ignoring a screen; writes nothing.

    Raises RunFolderError if it cannot be read.
    """
    return read_of(read_files(folder))


def read_of(files: RunFiles) -> ReadRun:
    """Analyse the files of a run in the same way."""
    comparison = compare_files(replace(files, run=files.unscreened()))
    return ReadRun(
        record=files.run,
        comparison=comparison,
        fingerprints={
            (fingerprint.cell, fingerprint.arm): fingerprint for fingerprint in files.fingerprints
        },
        # includes resumed parts, since code must not change while a run is paused
        work={
            event.cell: dict(event.values)
            for event in files.events
            if event.what == "note" and "code" in event.values
            if event.arm == comparison.reference_in(event.cell)
        },
    )


def compare_runs(before: ReadRun, after: ReadRun, *, allow_mismatch: bool = False) -> RunChange:
    """Return the change of every comparison that both runs have.

    Raises ConfigError if there is none, or if reference, code or design differ and `allow_mismatch`
    is false.
    """
    _check_two(before, after)
    first, second = (
        {(comparison.cell, comparison.arm): comparison for comparison in run.comparison.compared}
        for run in (before, after)
    )
    common = [key for key in second if key in first]
    if not common:
        raise nothing_common(
            "the two runs have no comparison in common",
            {
                run.comparison.run_id: [f"{arm} in {cell}" for cell, arm in compared]
                for run, compared in ((before, first), (after, second))
            },
            hint="compare runs of the same hosts, workloads, parameters and environments",
        )
    cells = tuple(dict.fromkeys(cell for cell, _ in common))
    unlike = mismatches(before, after, cells)
    if unlike and not allow_mismatch:
        raise refused(
            f"{before.comparison.run_id} and {after.comparison.run_id} cannot be compared: the "
            f"reference {after.comparison.reference_arm} or what it ran is not the same",
            [mismatch_text(mismatch, cells) for mismatch in unlike],
            hint="measure both on one machine with the same software, or add --allow-mismatch: "
            "every result then says so",
        )
    return RunChange(
        before=run_side(before),
        after=run_side(after),
        reference_arm=after.comparison.reference_arm,
        references=after.comparison.references,
        margin=after.comparison.settings.margin,
        changes=tuple(
            _judge_change((("before", before, first[key]), ("after", after, second[key])))
            for key in common
        ),
        left_out=(
            *(LeftOut(cell=c, arm=a, only_in="before") for c, a in first if (c, a) not in second),
            *(LeftOut(cell=c, arm=a, only_in="after") for c, a in second if (c, a) not in first),
        ),
        mismatches=unlike,
        cautions=tuple(_cautions(before, after, cells)),
    )


def nothing_common(brief: str, compared: Mapping[str, list[str]], *, hint: str) -> ConfigError:
    """Return the error with the comparisons that each run has, by its ID."""
    texts = (
        f"{run} has {first_few(names, most=_MOST_NAMED) or 'nothing that was timed'}"
        for run, names in compared.items()
    )
    return ConfigError(brief, details="; ".join(texts), hint=hint)


def refused(brief: str, texts: list[str], *, hint: str) -> ConfigError:
    """Return the error with the first differences."""
    more = f"; and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ConfigError(brief, details="; ".join(texts[:_MOST_NAMED]) + more, hint=hint)


def _check_two(before: ReadRun, after: ReadRun) -> None:
    first, second = before.comparison, after.comparison
    if first.run_id == second.run_id:
        raise ConfigError(
            f"both are the same run, {first.run_id}",
            details="a run cannot be compared with itself",
            hint="name two runs, or one for the verdicts of that run",
        )
    common = {cell.id for cell in first.cells} & {cell.id for cell in second.cells}
    pairs = {(first.reference_in(cell), second.reference_in(cell)) for cell in common}
    for ours, theirs in pairs or {(first.reference_arm, second.reference_arm)}:
        if ours != theirs:
            raise ConfigError(
                "the two runs have different references",
                details=f"{ours} in {first.run_id}, {theirs} in {second.run_id}: their ratios "
                "compare different things",
                hint=f"run again with --reference {ours}",
            )


def run_side(read: ReadRun) -> RunSide:
    """Return the description of a run, without its ratios."""
    run = read.comparison
    return RunSide(
        run_id=run.run_id,
        created=run.created,
        title=run.title,
        tool_version=run.tool_version,
        preset=run.settings.preset,
        margin=run.settings.margin,
        planned_comparisons=run.settings.planned_comparisons,
        screen=read.record.design.screen,
        is_complete=run.course.is_complete,
        host_differences=run.between_hosts.differences,
    )


def _cautions(before: ReadRun, after: ReadRun, cells: tuple[str, ...]) -> Iterable[str]:
    """State what is not known to be equal, or was done differently."""
    if before.comparison.created > after.comparison.created:
        yield "the first run was started later than the second: are they in the right order?"
    yield from _unknown(before, after, cells)
    kinds, later = (
        {cell.id: cell.generation for cell in run.comparison.cells} for run in (before, after)
    )
    for cell in cells:
        if kinds[cell] and later[cell] and kinds[cell] != later[cell]:
            yield f"{cell}: generations by {kinds[cell]} before, by {later[cell]} after"
    if before.record.design.screen or after.record.design.screen:
        yield "no screen is used here: each interval pays for all comparisons of its run"


def _unknown(before: ReadRun, after: ReadRun, cells: tuple[str, ...]) -> Iterable[str]:
    """State which cells are not known to have done the same work on the same data."""
    commands = {
        cell.id
        for run in (before, after)
        for cell in run.record.cells
        if cell.workload in run.commands
    }
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


def _judge_change(moments: _Moments) -> Change:
    """Judge the change of one comparison, with other changes of its arm."""
    (_, before, first), (_, after, second) = moments
    base = Change(
        cell=second.cell,
        host=second.host,
        workload=second.workload,
        parameters=second.parameters,
        arm=second.arm,
        outcome="not-run",
        before=first.primary,
        after=second.primary,
        elapsed_s=next((c.elapsed_s for c in after.comparison.cells if c.id == second.cell), None),
        is_described=all((second.cell, second.arm) in run.fingerprints for run in (before, after)),
        differences=_changed_facts(before, after, (second.cell, second.arm)),
        failure=second.failure,
        remarks=tuple(_remarks(moments)),
    )
    if first.primary is None or second.primary is None:
        lacking = [moment for moment in moments if moment[2].primary is None]
        is_failed = any(one.outcome == "failed" for _, _, one in lacking)
        phases = (phase_of(run.comparison, one) for _, run, one in lacking)
        return msgspec.structs.replace(
            base,
            outcome="failed" if is_failed else "not-run",
            reasons=tuple(
                _of_run(word, one.reason or Reason(kind="unknown")) for word, _, one in lacking
            ),
            phase=next((phase for phase in phases if phase is not None), None),
        )
    metrics = first.primary.metric, second.primary.metric
    if metrics[0] != metrics[1]:
        reason = Reason(kind="other-metric", metrics=metrics)
        return msgspec.structs.replace(base, reasons=(reason,))
    return _measured(base, first.primary, second.primary, moments)


def _measured(base: Change, first: Estimate, second: Estimate, moments: _Moments) -> Change:
    margin = moments[1][1].comparison.settings.margin
    mean = second.log_ratio - first.log_ratio
    ends, has_size = _ends(first, second), first.has_size and second.has_size
    low, high = (ends.low, ends.high) if ends else (None, None)
    outcome: Outcome = verdict(low, high, margin=margin)
    lacking = ((word, _lacking(run.comparison, one)) for word, run, one in moments)
    reasons = tuple(_of_run(word, reason) for word, reason in lacking if reason is not None)
    ends_of_controls = ((word, failed_floor(run.comparison, one)) for word, run, one in moments)
    floors = {word: end for word, end in ends_of_controls if end is not None}
    claim = claimed(outcome, mean, margin=margin)
    if not reasons and floors and outcome != "inconclusive" and claim <= sum(floors.values()):
        reasons = tuple(
            Reason(kind="control-failed", when=word, control_end=end)
            for word, end in floors.items()
        )
    of_mean = _ends_of_mean(ends, moments[0][2], moments[1][2]) if ends else None
    if outcome == "equivalent":
        if of_mean is None or verdict(of_mean.low, of_mean.high, margin=margin) != outcome:
            reasons += (Reason(kind="mean-open"),)
        outside = ((word, one) for word, _, one in moments if one.works_outside)
        reasons += tuple(_outside(word, one) for word, one in outside)
    return msgspec.structs.replace(
        base,
        outcome="inconclusive" if reasons else outcome,
        leaning=leaning(mean) if has_size else "none",
        metric=second.metric,
        log_ratio=mean if has_size else None,
        low=low,
        high=high,
        mean_low=of_mean.low if of_mean else None,
        mean_high=of_mean.high if of_mean else None,
        level=min(first.level, second.level),
        reasons=reasons,
        control_failed=bool(floors),
    )


def _ends(before: Estimate, after: Estimate) -> Ends | None:
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return None
    return difference(
        Ends(mean=before.log_ratio, low=before.low, high=before.high),
        Ends(mean=after.log_ratio, low=after.low, high=after.high),
    )


def _ends_of_mean(typical: Ends, before: Comparison, after: Comparison) -> Ends | None:
    """Return the change of the mean, if it is known; that of a program is the typical one."""
    if before.mean is None and after.mean is None:
        return typical
    excess = _ends(before.excess, after.excess) if before.excess and after.excess else None
    if excess is None:
        return None
    mean = typical.mean + excess.mean
    below = math.hypot(typical.mean - typical.low, excess.mean - excess.low)
    above = math.hypot(typical.high - typical.mean, excess.high - excess.mean)
    return Ends(mean=mean, low=mean - below, high=mean + above)


def _outside(when: When, comparison: Comparison) -> Reason:
    known = comparison.reason
    if known is None or known.kind != "outside-turns":
        known = Reason(kind="outside-turns", arm=comparison.arm)
    return _of_run(when, known)


def _of_run(when: When, reason: Reason) -> Reason:
    return msgspec.structs.replace(reason, when=when)


def _lacking(run: RunComparison, comparison: Comparison) -> Reason | None:
    """Return why a run's interval supports no claim; None if it does."""
    primary = comparison.primary
    assert primary is not None
    if comparison.reason is not None and comparison.reason.kind == "too-few":
        return comparison.reason
    if primary.restarts < _least(run, comparison) or primary.low is None or primary.high is None:
        return comparison.reason or Reason(kind="no-interval")
    return None


def _least(run: RunComparison, comparison: Comparison) -> int:
    is_program = comparison.primary is not None and comparison.primary.unit == "process"
    return least_restarts(
        preset=run.settings.preset, planned=run.settings.min_restarts, is_program=is_program
    )


def failed_floor(run: RunComparison, comparison: Comparison) -> float | None:
    """Return the far end of a cell's control if it failed."""
    floors = (cell.noise_floor for cell in run.cells if cell.id == comparison.cell)
    return failed_control_end(next(floors, None), least=_least(run, comparison))


def _remarks(moments: _Moments) -> Iterable[str]:
    """State if one name means two environments or images, and if something failed half-way."""
    asked = [
        next(arm_text(arm) for arm in run.record.arms if arm.id == one.arm)
        for _, run, one in moments
    ]
    if asked[0] != asked[1]:
        yield f"{moments[1][2].arm} is {asked[0]} before and {asked[1]} after"
    for word, _, moment in moments:
        if moment.failure is not None and moment.primary is not None:
            yield f"{word}: {moment.arm} failed before the end of its cell: {moment.failure.brief}"


def arm_text(arm: ArmRecord) -> str:
    """Return the environment of an arm, with its software and its own parameters."""
    software = f":{masked(arm.reference)}" if arm.reference else f"@{arm.stack}"
    return ", ".join((f"{arm.environment}{software}", *assigned(arm.parameters)))
