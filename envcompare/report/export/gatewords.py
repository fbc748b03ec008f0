"""What gates found, in sentences; terminal, Markdown and JSON all take them from here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from envcompare.analysis.model.change import RunSide
from envcompare.analysis.model.comparison import RunComparison
from envcompare.analysis.model.gate import GateFinding, GateResult
from envcompare.report.export.summary import TerminalLine
from envcompare.report.format.markdown import flat
from envcompare.report.format.numbers import (
    listed,
    signed_interval,
    signed_percent,
    unsigned_percent,
)
from envcompare.text import counted, one_line

_LACKS: Final = {
    "failed": "failed", "not-run": "was not run", "inconclusive": "has no interval",
}  # fmt: skip
_NOT_DESCRIBED: Final = "what was around it, or around the reference, was not recorded"
_NOT_DESCRIBED_TWICE: Final = "what was around it was not recorded in both runs"
_CLAIMS: Final = {"slower": "is {} slower than", "faster": "takes {} less time than"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """How comparisons are called: of one run, or of the change between two."""

    labels: dict[str, str]
    reference: str
    is_change: bool = False
    gates: frozenset[str] = frozenset()

    def name(self, one: GateFinding) -> str:
        """Return "docker in cnn", or "docker ÷ vm in cnn"."""
        arm = f"{one.arm} ÷ {self.reference}" if self.is_change else one.arm
        return f"{arm} in {self.labels.get(one.cell, one.cell)}"

    def moved(self, one: GateFinding, state: str) -> str:
        """Return "docker is 8.4 % slower than vm in cnn", or than before."""
        claim = _CLAIMS[state].format(unsigned_percent(one.log_ratio or 0.0))
        if self.is_change:
            return f"{self.name(one)} {claim} before"
        return f"{one.arm} {claim} {self.reference} in {self.labels.get(one.cell, one.cell)}"


def worded_gates(results: Iterable[GateResult], naming: Naming) -> tuple[GateResult, ...]:
    """Return the results with the sentence of each gate and of each finding."""
    return tuple(
        msgspec.structs.replace(
            result,
            sentence=flat(_result_sentence(result)),
            findings=tuple(
                msgspec.structs.replace(one, sentence=flat(_sentence(result.gate, one, naming)))
                for one in result.findings
            ),
        )
        for result in results
    )


def gate_lines(results: Iterable[GateResult]) -> tuple[TerminalLine, ...]:
    """Return what the terminal says of gates: what was hit, what is not known, what passed."""
    lines: list[TerminalLine] = []
    for result in results:
        for one in result.findings:
            match one.finding:
                case "hit":
                    line = TerminalLine(role="headline", outcome="failed", columns=(one.sentence,))
                case "unjudged":
                    line = TerminalLine(role="warning", columns=(one.sentence,))
                case _:
                    line = TerminalLine(role="note", columns=(one.sentence,))
            lines.append(line)
        lines.append(TerminalLine(role="note", columns=(result.sentence,)))
    return tuple(lines)


def untimed_lines(run: RunComparison) -> tuple[TerminalLine, ...]:
    """Name the arms of which profiles were imported and nothing was timed: no gate judges them."""
    arms = dict.fromkeys(one.arm for one in run.arms if not one.is_timed)
    if not arms:
        return ()
    text = f"no gate judges {listed(list(arms), most=9)}: imported profiles hold no timing"
    return (TerminalLine(role="warning", columns=(flat(text),)),)


def incomplete_lines(*runs: RunComparison | RunSide) -> tuple[TerminalLine, ...]:
    """Say of runs that are not complete that no gate passes them, whatever it found."""
    return tuple(
        TerminalLine(
            role="warning",
            columns=(
                flat(
                    f"no gate passes {run.run_id}: it is not complete; `envcompare run --resume` "
                    "goes on with what was interrupted, and lost samples need a copy of the file"
                ),
            ),
        )
        for run in runs
        if not run.is_complete
    )


def _result_sentence(result: GateResult) -> str:
    hits = sum(one.finding == "hit" for one in result.findings)
    unjudged = sum(one.finding == "unjudged" for one in result.findings)
    every = counted(result.comparisons, "comparison")
    if hits:
        return f"gate {result.gate}: hit by {hits} of {every}"
    if unjudged:
        return f"gate {result.gate}: not hit, but {unjudged} of {every} could not be judged"
    doubtful = sum(one.finding == "open" for one in result.findings)
    doubt = f", {doubtful} of them not beyond doubt" if doubtful else ""
    return f"gate {result.gate}: passed by {every}{doubt}"


def _sentence(gate: str, one: GateFinding, naming: Naming) -> str:
    state = gate.partition(":")[0]
    match one.finding:
        case "hit":
            return f"gate {gate} hit: {_hit(state, one, naming)}"
        case "unjudged":
            is_measured = state == "confounded" and one.outcome not in {"failed", "not-run"}
            unseen = _NOT_DESCRIBED_TWICE if naming.is_change else _NOT_DESCRIBED
            why = unseen if is_measured else f"{_LACKS[one.outcome]} ({_reason(one)})"
            return f"gate {gate} could not judge {naming.name(one)}: {why}"
        case _:
            return f"gate {gate} passed, not beyond doubt: {_open(gate, one, naming)}"


def _hit(state: str, one: GateFinding, naming: Naming) -> str:
    name = naming.name(one)
    match state:
        case "inconclusive":
            reason = one_line(one.reason)
            why = f"; {reason}" if reason else ""
            return f"{name} is inconclusive ({_interval(one)}){why}"
        case "confounded":
            whose = "its software changed as well" if naming.is_change else (
                "not only its environment differs"
            )  # fmt: skip
            return f"{name} is confounded, since {whose}"
        case "failed":
            is_whole = one.outcome in {"failed", "not-run"}
            what = _LACKS[one.outcome] if is_whole else "failed before the end of its cell"
            return f"{name} {what} ({_reason(one)})"
        case _:
            near = one.low if state == "slower" else one.high
            least = "" if near is None else f"; at least {unsigned_percent(near)}"
            return f"{naming.moved(one, state)}{least}"


def _open(gate: str, one: GateFinding, naming: Naming) -> str:
    """Say how far beyond the bound a comparison may lie all the same."""
    state, _, amount = gate.partition(":")
    if one.outcome != "inconclusive":
        figures = f"{naming.name(one)} has {_interval(one)}"
        return f"{figures}: that all of it is beyond {amount} is not shown"
    hint = "" if "inconclusive" in naming.gates else (
        "; add --fail-on inconclusive to fail on it"
    )  # fmt: skip
    return f"{naming.name(one)} is inconclusive and {_reach(state, one)}{hint}"


def _reach(state: str, one: GateFinding) -> str:
    far = (one.high if state == "slower" else one.low) or 0.0
    is_beyond = far > 0 if state == "slower" else far < 0
    if not is_beyond:
        return f"its interval ends at {signed_percent(far)}"
    size = unsigned_percent(far)
    return f"could be up to {size} slower" if state == "slower" else (
        f"could take up to {size} less time"
    )  # fmt: skip


def _reason(one: GateFinding) -> str:
    return one_line(one.reason) or "no reason was recorded"


def _interval(one: GateFinding) -> str:
    if one.log_ratio is None:
        return "no interval"
    return f"{signed_percent(one.log_ratio)}, {signed_interval(one.low, one.high)}"
