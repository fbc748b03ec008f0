"""Sentences about a proof: what closes the gap between two lines, and what does not."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Final

from envcompare.analysis.model import Comparison, RunComparison
from envcompare.run_folder.records import Proof, ProofShare, Trial
from envcompare.text import first_few, shortened, visible

_SMALL: Final = 0.25  # a share surely below this is not the cause
_MOST_OF_CHANGE: Final = 120  # characters
_MOST_NAMED: Final = 4
_HEADS: Final = {
    "cause": "The cause, proven by changing it: ",
    "contributes": "A part of the cause, proven by changing it: ",
    "not-proven": "Best candidate, not proven: ",
}


def proof_texts(proof: Proof) -> list[str]:
    """Return what was proven, how to mend it, and what is not the cause."""
    texts = [_result(proof)]
    if proof.mend and proof.outcome in {"cause", "contributes"}:
        cost = f" What it costs: {proof.cost}." if proof.cost else ""
        texts.append(f"To fix it: {proof.mend}.{cost}")
    confirmed = proof.confirmed.what.split("; ") if proof.confirmed else []
    others = [trial for trial in proof.tried if trial.what not in confirmed]
    # of several changes one may hide what another does
    alone = [trial for trial in others if len(trial.keys) == 1]
    small = [trial for trial in alone if trial.share is not None and trial.share.high < _SMALL]
    if small:
        most = max(trial.share.high for trial in small if trial.share is not None)
        texts.append(f"Not the cause: {_named(small)}; it closes at most {_percent(most)}.")
    reasons: dict[str, list[Trial]] = {}
    for one in alone:
        if one.failed and one.share is None:
            reasons.setdefault(one.failed, []).append(one)
    texts += (f"Not measured: {_named(trials)}: {why}." for why, trials in reasons.items())
    return texts


def _result(proof: Proof) -> str:
    confirmed = proof.confirmed
    if confirmed is None:
        highs = [trial.share.high for trial in proof.tried if trial.share is not None]
        if not highs:
            return (
                "No change could be measured."
                if proof.tried
                else "envcompare can test none of the differences by itself. If the lines differ "
                "in one word alone, it is the cause; else change one word and compare again."
            )
        return (
            f"Nothing that was measured closes more than {_percent(max(highs))} of the difference."
        )
    what = _HEADS[proof.outcome] + shortened(confirmed.what, most=_MOST_OF_CHANGE)
    if confirmed.share is None:
        why = confirmed.failed or "too few rounds"
        return f"{what}. What it closes is not known: {why}. {_again(proof)}"
    text = f"{what}. In fresh rounds it closes {share_text(confirmed.share)} of the difference"
    if proof.placebo is not None:
        text += f"; a change without effect closes {share_text(proof.placebo)}"
    return f"{text}. {_again(proof)}" if proof.outcome == "not-proven" else f"{text}."


def _again(proof: Proof) -> str:
    """Return the command that proves the same difference with another budget."""
    which = shlex.quote("/".join(filter(None, (proof.arm, proof.cell))))
    return f"`envcompare why RUN --comparison {visible(which)} --budget SECONDS` looks again."


def _named(trials: list[Trial]) -> str:
    return first_few(
        [shortened(trial.what, most=_MOST_OF_CHANGE) for trial in trials], most=_MOST_NAMED
    )


def share_text(share: ProofShare) -> str:
    """Return a share with its interval."""
    low = f"{round(100 * share.low)}".replace("-", "−")
    return f"{_percent(share.value)} ({low} to {_percent(share.high)})"


def _percent(share: float) -> str:
    return f"{round(100 * share)} %".replace("-", "−")


def next_step(run: RunComparison, decided: Iterable[Comparison]) -> str:
    """Return the command that looks for the cause by changing the slow arm, if it can."""
    can_be = [comparison for comparison in decided if is_changeable(run, comparison)]
    if not can_be:
        return ""
    first = can_be[0]
    is_alone = sum(comparison.workload == first.workload for comparison in can_be) == 1
    name = f"{first.arm}/{first.workload if is_alone else first.cell}"
    command = f"envcompare why RUN --comparison {shlex.quote(name)}"
    return f"To prove a cause by changing it: {visible(command)}."


def is_changeable(run: RunComparison, decided: Comparison) -> bool:
    """Return whether the slow arm of a decided difference is a container that can be changed."""
    slow = decided.arm if decided.outcome == "slower" else run.reference_in(decided.cell)
    is_able = any(
        arm.arm == slow and arm.takes_options and arm.stack == "image" for arm in run.arms
    )
    return is_able and decided.host == "local" and not decided.arm_parameters
