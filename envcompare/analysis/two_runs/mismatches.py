"""Find properties that must be equal in two runs for their ratios to be comparable.

The reference represents the machine and its software: if it changed, ratios to it changed their
meaning. Pure names (a process ID, a host name, a path) may differ, and so may the hash seed, which
`--stabilise` draws again for each restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Final

from msgspec.structs import replace

from envcompare.analysis.model.changes import Mismatch
from envcompare.analysis.model.comparison import RunComparison
from envcompare.fingerprint.comparing import compare_fingerprints, measured_alike
from envcompare.fingerprint.evidence import ArmsContext
from envcompare.fingerprint.facts import INSTALLED_PARTS, LOADED, fact, holds_for
from envcompare.fingerprint.sentences import describe
from envcompare.run_folder.records import (
    FactDifference,
    FingerprintRecord,
    FingerprintValue,
    RunRecord,
)
from envcompare.run_folder.results import configuration_of

Work = dict[str, FingerprintValue]
_DESIGN: Final = ("threads", "stabilise", "pin")
_WORK: Final = ("code", "device", "batch")
_SHOWN_OF_DIGEST: Final = 12
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
            seen[mismatch.key, mismatch.text] = replace(mismatch, cells=places)
    return tuple(seen.values())


def changed_facts(
    before: ReadRun, after: ReadRun, place: tuple[str, str]
) -> tuple[FactDifference, ...]:
    """Return the facts of an arm in a cell that differ between the runs, software first.

    Empty if either run has no fingerprint.
    """
    mine, theirs = before.fingerprints.get(place), after.fingerprints.get(place)
    if mine is None or theirs is None:
        return ()
    is_stabilised = before.record.design.stabilise and after.record.design.stabilise
    return _changed(mine, theirs, is_stabilised=is_stabilised)


def _changed(
    before: FingerprintRecord, after: FingerprintRecord, *, is_stabilised: bool
) -> tuple[FactDifference, ...]:
    differences = compare_fingerprints(before, after, ArmsContext())
    drawn = {"env.PYTHONHASHSEED"} if is_stabilised else set()
    kept = [
        one
        for one in differences
        if one.fact_class != "identity"
        and one.key not in drawn
        and _is_proven(before, after, one)
        and not (
            any(holds_for(rule, one.key) for rule in _OPTIONAL)
            and None in (one.reference, one.value)
        )
    ]
    return (*measured_alike(before, after, kept), *_engines(before, after))


def _is_proven(
    before: FingerprintRecord, after: FingerprintRecord, difference: FactDifference
) -> bool:
    """Say whether a difference is certain: a plain command's list may have gaps by chance."""
    is_watched = "programs" in before.facts and "programs" in after.facts
    is_list = difference.key in {*LOADED, "programs"}
    return difference.fact_class == "confounder" or not (is_watched and is_list)


def mismatch_text(mismatch: Mismatch, cells: tuple[str, ...]) -> str:
    """Return the difference, with the cells unless it concerns the whole run."""
    where = (
        "every cell" if mismatch.cells == cells and len(cells) > 1 else ", ".join(mismatch.cells)
    )
    return f"{mismatch.text} ({where})" if mismatch.cells else mismatch.text


def whole_facts(differences: Iterable[FactDifference]) -> tuple[FactDifference, ...]:
    """Return the facts that are not part of another difference."""
    return tuple(one for one in differences if not one.part_of)


def fact_text(difference: FactDifference) -> str:
    """Return a difference with both values, shortening digests."""
    text = describe(difference)
    if (
        "→" in text
        or isinstance(difference.reference, tuple)
        or isinstance(difference.value, tuple)
    ):
        return text
    return f"{text} {_short(difference.reference)} → {_short(difference.value)}"


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
            yield _mismatch(key, values, _changed_text(key, values))
    if "data" in mine and "data" in theirs and mine["data"] != theirs["data"]:
        values = mine["data"], theirs["data"]
        yield _mismatch("data", values, _changed_text("data", values))
    workload = next(one.workload for one in after.record.cells if one.id == cells[1])
    commands = before.commands.get(workload), after.commands.get(workload)
    if commands[0] != commands[1]:
        yield _mismatch("command", commands, f"the command {commands[0]} → {commands[1]}")


def _of_reference(before: ReadRun, after: ReadRun, cell: str) -> Iterator[Mismatch]:
    at = cell, after.comparison.reference_in(cell)
    mine, theirs = before.fingerprints.get(at), after.fingerprints.get(at)
    if mine is None or theirs is None:
        first, second = ("not known" if one is None else "known" for one in (mine, theirs))
        yield _mismatch("fingerprint", (first, second), f"the fingerprint {first} → {second}")
        return
    for difference in whole_facts(changed_facts(before, after, at)):
        yield _mismatch(
            difference.key, (difference.reference, difference.value), fact_text(difference)
        )


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


def _changed_text(key: str, values: tuple[FingerprintValue, FingerprintValue]) -> str:
    return f"{fact(key).name} {_short(values[0])} → {_short(values[1])}"


def _setting(value: object, *, none: str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return none if value is None else str(value)


def _short(value: FingerprintValue) -> str:
    if value is None:
        return "not known"
    text = str(value)
    return f"{text[:_SHOWN_OF_DIGEST]}…" if len(text) > 2 * _SHOWN_OF_DIGEST else text
