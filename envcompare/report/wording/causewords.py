"""Likely causes of a decided difference: other facts, the kernel, and helper programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from envcompare.analysis.model.comparison import Comparison, RunComparison
from envcompare.analysis.timing.surroundings import likelihood
from envcompare.fingerprint.facts import fact, is_without_effect
from envcompare.report.numbers import listed, time_text
from envcompare.report.wording.labels import cell_labels
from envcompare.report.wording.verdicts import MOVED, candidate_sentence
from envcompare.run_folder.records import FactDifference, FingerprintValue
from envcompare.text import visible

_MOST_NAMED: Final = 2  # cells
_FELT: Final = 0.1  # of the step's extra time; a helper program below it is not named as a cause
_MOST: Final = 0.5  # of the step's extra time
_SURE: Final = 3  # standard errors


def candidates_text(run: RunComparison, comparisons: Iterable[Comparison]) -> str:
    """Name likely causes of an arm's decided comparisons; empty if none is decided.

    Each difference is named once, with the strongest evidence of any decided cell. Confounders are
    named only if `confounder_sentence` names them.
    """
    decided = [one for one in comparisons if one.outcome in MOVED]
    if not decided:
        return ""
    asked = _asked(run, decided[0].arm)
    causes: dict[tuple[str, str, str], FactDifference] = {}
    for each in sorted(_candidates(run, decided), key=likelihood):
        causes.setdefault((each.host, each.arm, each.key), each)
    unknown = [one for one in decided if one.candidates is None]
    if unknown and not causes:
        in_some = len(unknown) < len(decided)
        cause = candidate_sentence(None, arm=decided[0].arm, in_some_cells=in_some)
    elif asked and not causes:
        cause = "Nothing else that envcompare recorded can act here."
    else:
        cause = candidate_sentence(
            tuple(causes.values()),
            arm=decided[0].arm,
            on_purpose=_on_purpose(run, decided),
            besides="With it" if asked else "Besides the environment",
        )
    said = f"The arms differ in {asked}, which this run compares." if asked else ""
    seen = _in_kernel(run, decided), _helper_programs(run, decided)
    return " ".join(filter(None, (said, cause, *seen)))


def _asked(run: RunComparison, arm: str) -> str:
    """Return what an arm and the reference compare if it is not environments; otherwise empty.

    That is values of a parameter, or images or stacks of one environment.
    """
    arms = {one.arm: one for one in run.arms}
    before, after = arms.get(run.reference_of(arm)), arms.get(arm)
    if before is None or after is None:
        return ""
    values = {name: before.parameters.get(name, "not set") for name in after.parameters}
    pairs = [f"{name} ({values[name]} → {value})" for name, value in after.parameters.items()]
    if before.environment == after.environment:
        if before.stack != after.stack:
            pairs.append(f"the stack ({before.stack} → {after.stack})")
        if before.reference != after.reference:
            images = (each.reference or "envcompare's own" for each in (before, after))
            pairs.append(f"the image ({' → '.join(images)})")
    return visible(", ".join(pairs))


def _candidates(run: RunComparison, decided: Iterable[Comparison]) -> Iterator[FactDifference]:
    """Yield the candidates of comparisons, with the evidence from their cell."""
    for comparison in decided:
        facts = _facts(run, comparison.cell)
        places = ((comparison.host, comparison.arm, key) for key in comparison.candidates or ())
        yield from (facts[at] for at in places if at in facts)


def _on_purpose(run: RunComparison, decided: Iterable[Comparison]) -> tuple[FactDifference, ...]:
    """Return the intended differences of an arm's environment.

    Differences with a remedy come first, and those that no step feels come last.
    """
    found = (
        each
        for one in decided
        for (host, arm, _), each in _facts(run, one.cell).items()
        if (host, arm) == (one.host, one.arm) and each.fact_class == "varied"
        if not each.part_of
    )
    by_key = {one.key: one for one in found}

    def place(one: FactDifference) -> tuple[bool, bool, str]:
        purpose = fact(one.key).purpose
        return is_without_effect(one.key), not (purpose and purpose.remedy), one.key

    return tuple(sorted(by_key.values(), key=place))


def _facts(run: RunComparison, cell: str) -> dict[tuple[str, str, str], FactDifference]:
    """Return the differences that a cell reports, by host, arm and key."""
    of_cell = (*run.differences, *run.cell_differences.get(cell, ()))
    return {(one.host, one.arm, one.key): one for one in of_cell}


def _in_kernel(run: RunComparison, decided: Iterable[Comparison]) -> str:
    """State the extra time that a slower arm's steps spend in the kernel, if it is most of it.

    Empty if it is less than half, or within the error of the kernel's ticks.
    """
    slower = {(one.cell, one.arm) for one in decided if one.outcome == "slower"}
    longer = [
        (part.change_ns, profiles, ledger)
        for profiles in run.profiles
        for ledger in profiles.ledgers
        for part in ledger.parts
        if part.part == "system" and (profiles.cell, ledger.arm) in slower
        if ledger.kernel_error_ns is not None and ledger.change_ns > 0
        if part.change_ns >= max(_MOST * ledger.change_ns, _SURE * ledger.kernel_error_ns)
    ]
    if not longer:
        return ""
    longer.sort(key=lambda each: -each[0] / max(1, each[2].reference_ns))
    _, profiles, ledger = longer[0]
    labels = cell_labels(run)
    named = [(time_text(ns), labels.get(at.cell, at.cell)) for ns, at, _ in longer]
    takes = listed([f"{time} longer in {cell}" for time, cell in named])
    if len(longer) > _MOST_NAMED:
        takes = f"longer in {len(longer)} cells, most in {named[0][1]} ({named[0][0]})"
    text = f"Inside the kernel a {ledger.piece} in {ledger.arm} takes {takes}."
    if acts := _acts_in_kernel(_facts(run, profiles.cell), (profiles.host, ledger.arm)):
        ladder = "" if run.ladder else "; `--envs ladder` measures each part of a container"
        text += f" What can take effect there: {listed(acts)}{ladder}."
    return visible(text)


def _acts_in_kernel(
    facts: Mapping[tuple[str, str, str], FactDifference], place: tuple[str, str]
) -> list[str]:
    """Return the known mechanisms that an arm has in the kernel and the reference lacks."""
    acts = []
    seccomp = facts.get((*place, "seccomp.mode"))
    if seccomp is not None and seccomp.reference == 0 and seccomp.value in (1, 2):
        acts.append("a system call filter (seccomp)")
    files = facts.get((*place, "limits.nofile"))
    if files is not None and _is_more(files.reference, files.value):
        acts.append(f"a higher limit of open files ({files.reference} → {files.value})")
    packages = facts.get((*place, "mount.packages"))
    if packages is not None and None not in (packages.reference, packages.value):
        before, after = (str(v).split(" ")[0] for v in (packages.reference, packages.value))
        if before != after:
            acts.append(f"another file system for the packages ({after})")
    return acts


def _is_more(before: FingerprintValue, after: FingerprintValue) -> bool:
    """Tell whether one of two limits is known to be higher than the other."""
    if not isinstance(before, int):
        return False
    return after == "unlimited" or (isinstance(after, int) and after > before)


def _helper_programs(run: RunComparison, decided: Iterable[Comparison]) -> str:
    """Name the helper programs of an environment that was slower; empty without any.

    A program is left out if it used less than a tenth of the step's extra time.
    """
    compared = {(one.cell, one.arm) for one in decided}
    labels = cell_labels(run)
    longest: dict[tuple[str, str], tuple[int, str]] = {}
    for profiles in run.profiles:
        for ledger in profiles.ledgers:
            for name, ns in ledger.helpers.items():
                is_felt = ns >= _FELT * ledger.change_ns > 0
                if is_felt and (profiles.cell, ledger.arm) in compared:
                    where = labels.get(profiles.cell, profiles.cell)
                    key = (name, ledger.arm)
                    longest[key] = max(longest.get(key, (0, "")), (ns, where))
    return visible(
        " ".join(
            f"Outside the workload, {name} used {time_text(ns)} of CPU time a step for {arm} in "
            f"{where}."
            for (name, arm), (ns, where) in longest.items()
        )
    )
