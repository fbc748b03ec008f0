"""Sentences about two command lines: how they differ, and the candidates for the cause."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Final

from envcompare.analysis.model import ArmSummary, Comparison, RunComparison
from envcompare.fingerprint import CONTAINER_START, READ, SCRIPT_START, fact, holds_for
from envcompare.fingerprint.evidence import likelihood_in_lines
from envcompare.fingerprint.sentences import describe
from envcompare.report.wording import duration
from envcompare.report.wording.proofwords import proof_texts
from envcompare.report.wording.verdicts import MOVED, candidate_differences, reported_differences
from envcompare.run_folder.records import CAPTURED, FactDifference, FingerprintValue
from envcompare.text import counted, shortened, visible

_MOST_CANDIDATES: Final = 5
_MOST_OF_CANDIDATE: Final = 120  # characters
_MOST_CHANGED: Final = 200  # characters
_MUCH: Final = 0.25  # of a time, or of a difference
_FELT_MS: Final = 500
# Facts of which only a larger value (1) or only a smaller one (-1) can slow a line down.
_SLOWING: Final = {
    "python.uncompiled": 1,
    "container.ports": 1,
    "container.volumes": 1,
    "limits.nofile": 1,
    "seccomp.mode": 1,
    "seccomp.filters": 1,
    "process.nice": 1,
    "cgroup.cpu_quota": -1,
    "cgroup.cpu_weight": -1,
    "cgroup.memory_limit_bytes": -1,
    "cpu.affinity": -1,
    "home.is_writable": -1,
    "shm.bytes": -1,
}
_NOT_READ: Final = (
    "Not all of their processes were read: they ended too soon, or your login may not read them; "
    "run envcompare as root to read Docker's containers."
)
_NO_CAUSE: Final = (
    "Nothing else was seen that could explain it; the report lists what differs under Environments."
)
_NOTHING: Final = "Nothing else was seen to differ in what envcompare reads."


def line_causes(run: RunComparison, comparisons: Iterable[Comparison]) -> tuple[str, ...]:
    """Return the proof of a cause, and of lines how they differ and the candidates, by likelihood.

    Empty where there is no proof and the arms are not lines; without candidates unless the
    difference of lines is decided.
    """
    compared = list(comparisons)
    decided = [comparison for comparison in compared if comparison.outcome in MOVED]
    arms = {summary.arm: summary for summary in run.arms}
    arm = next((arms[comparison.arm] for comparison in compared if comparison.arm in arms), None)
    if arm is None or arm.stack != "line":
        proof = run.proof
        is_of = proof and any(
            (comparison.arm, comparison.cell) == (proof.arm, proof.cell) for comparison in decided
        )
        return tuple(map(visible, proof_texts(proof))) if proof and is_of else ()
    before = arms[run.reference_of(arm.arm)]
    texts = _script_starts(before, arm)
    if not decided:
        return tuple(texts)
    words = _changed_words(before.reference, arm.reference)
    if CAPTURED not in {arm.environment, before.environment}:
        texts.insert(0, f"The lines differ: {words}." if words else "The lines are equal.")
    texts += _start_sentence(decided[0], before, arm)
    if run.proof is not None and run.proof.arm == arm.arm:
        texts += proof_texts(run.proof)
        if run.proof.outcome in {"cause", "contributes"}:
            return tuple(map(visible, texts))
    shown, are_read = line_candidates(run, decided[0])
    if not are_read:
        texts.append(_NOT_READ)
    elif not shown:
        cell, host = decided[0].cell, decided[0].host
        others = reported_differences(run, cell, host=host, arm=arm.arm)
        texts.append(_NO_CAUSE if others else _NOTHING)
    if shown:
        can_try = run.proof is None and CAPTURED not in {arm.environment, before.environment}
        tries = "; --prove tries what can be changed" if can_try else ""
        texts.append(f"Candidates for the cause, not proven, the likeliest first{tries}:")
    texts += (
        f"{place}. {shortened(describe(one), most=_MOST_OF_CANDIDATE)}. {one.evidence}"
        + (f" Try: {one.remedy}." if one.remedy else "")
        for place, one in enumerate(shown[:_MOST_CANDIDATES], start=1)
    )
    if len(shown) > _MOST_CANDIDATES:
        more = len(shown) - _MOST_CANDIDATES
        texts.append(f"The report lists {counted(more, 'more candidate')} under Environments.")
    return tuple(map(visible, texts))


def line_candidates(
    run: RunComparison, comparison: Comparison
) -> tuple[list[FactDifference], bool]:
    """Return what may be the cause, the likeliest first, and whether both lines were read.

    Of a line that was not read, only what its engine says counts.
    """
    names = (run.reference_of(comparison.arm), comparison.arm)
    are_read = all(arm.facts.get(READ) is not None for arm in run.arms if arm.arm in names)
    found = sorted(candidate_differences(run, (comparison,)), key=likelihood_in_lines)
    shown = [
        difference
        for difference in found
        if difference.is_felt is not False
        and _can_explain(difference, comparison)
        and (None not in (difference.reference, difference.value) or fact(difference.key).is_absent)
        and (are_read or holds_for("container", difference.key))
    ]
    return shown, are_read


def _can_explain(difference: FactDifference, comparison: Comparison) -> bool:
    """Return whether a difference can make the slower line slower, rather than the other one."""
    direction = _SLOWING.get(difference.key)
    if direction is None or comparison.deciding is None:
        return True
    before, after = map(_amount, (difference.reference, difference.value))
    if before == after:
        return True
    return (after > before) == (comparison.deciding.log_ratio * direction > 0)


def _amount(value: FingerprintValue) -> float:
    """Return a number, or the count of listed CPUs; infinity if there is no limit."""
    if isinstance(value, tuple):
        return len(value)
    return value if isinstance(value, int | float) else math.inf


def _script_starts(before: ArmSummary, after: ArmSummary) -> list[str]:
    """Return how long scripts took before their steps were measured, if they differ much."""
    first, second = (summary.facts.get(SCRIPT_START) for summary in (before, after))
    if not (isinstance(first, int) and isinstance(second, int)):
        return []
    if abs(second - first) < max(_MUCH * max(first, second), _FELT_MS):
        return []
    times = f"{duration(first / 1000)} in {before.arm} and {duration(second / 1000)} in {after.arm}"
    return [f"Imports, data and the first steps took {times} (one start each, at the same time)."]


def _start_sentence(comparison: Comparison, before: ArmSummary, after: ArmSummary) -> list[str]:
    """Return how much of the difference is the start of the container, if that is much."""
    starts_ms = [summary.facts.get(CONTAINER_START) for summary in (before, after)]
    if starts_ms == [None, None] or comparison.deciding is None:
        return []
    first_ms, second_ms = (start_ms if isinstance(start_ms, int) else 0 for start_ms in starts_ms)
    whole_s = (comparison.reference_step_s or 0.0) * math.expm1(comparison.deciding.log_ratio)
    start_s = (second_ms - first_ms) / 1000
    if not whole_s or start_s / whole_s < _MUCH:
        return []
    sizes = tuple(duration(abs(seconds)) for seconds in (start_s, whole_s))
    if start_s > whole_s > 0:
        return [
            "The start of the container takes {} of one process; the difference is {}. The start "
            "may be the whole cause, and does not grow with the work.".format(*sizes)
        ]
    return ["The start of the container accounts for {} of {} (one process each).".format(*sizes)]


def _changed_words(before: str, after: str) -> str:
    """Return the changed words of two lines; empty if there are none."""
    words = before.split(), after.split()
    changes = SequenceMatcher(None, *words, autojunk=False).get_opcodes()
    texts = []
    for kind, begin, end, first, last in changes:
        old, new = " ".join(words[0][begin:end]), " ".join(words[1][first:last])
        if kind == "replace":
            texts.append(f"{old} → {new}")
        elif kind != "equal":
            texts.append(f"{new} is added" if new else f"{old} is removed")
    return shortened(", ".join(texts), most=_MOST_CHANGED)
