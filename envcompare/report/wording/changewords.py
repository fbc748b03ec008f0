"""The sentences of gates and of two or more runs, for the terminal, Markdown and JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from envcompare.analysis.model import RunComparison
from envcompare.analysis.two_runs import (
    Change,
    CombinedEffect,
    CombinedPart,
    CombinedRuns,
    GateFinding,
    GateResult,
    RunChange,
    RunSide,
    WhyOpen,
    fact_text,
    mismatch_text,
    whole_facts,
)
from envcompare.report import Column, Heading, Items, Line, PlainBlock, Row, Table
from envcompare.report.wording import (
    NOT_MEASURED,
    listed,
    margin_percent,
    rough_time,
    signed_interval,
    signed_percent,
    slower_text,
    unsigned_interval,
    unsigned_percent,
)
from envcompare.report.wording.methodwords import INCOMPLETE, difference_sentences
from envcompare.report.wording.verdicts import (
    REAL_INSIDE,
    SYMBOLS,
    WORDS,
    excludes_zero,
    margin_text,
    outcome_text,
    reasons_text,
)
from envcompare.text import assigned, counted, flat, one_line, shortened

_LACKS: Final = {
    "failed": "failed", "not-run": "was not run", "inconclusive": "has no interval",
}  # fmt: skip
_NOT_DESCRIBED: Final = "what was around it, or around the reference, was not recorded"
_NOT_DESCRIBED_TWICE: Final = "what was around it was not recorded in both runs"
_MOST_SAID: Final = 8  # changes with a sentence each, whatever their outcome
_ALWAYS_SAID: Final = frozenset({"slower", "faster", "failed", "not-run"})
_HEADS: Final = ("environment", "workload", "was", "is", "change", "verdict")
_LEAST_SPREAD: Final = 0.0005  # less is shown as 0.0 %
_COMBINED_HEADS: Final = ("environment", "workload", "run", "host", "change", "verdict of the run")
_WHY: Final[dict[WhyOpen, str]] = {
    "mean": "the mean of all steps may still differ by more than the margin",
    "outside-turns": "an arm worked outside its turns in one of the runs",
    "control-failed": "in one of the runs the reference differed from itself by as much",
    "other-metric": "the runs were judged on different times (net and wall)",
    "one-run": "fewer than two runs have an interval",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Naming:
    """How comparisons are named: within one run, or as a change between two."""

    labels: dict[str, str]
    reference: str
    references: Mapping[str, str]  # by cell, for cells with another reference
    is_change: bool
    gates: frozenset[str]

    def name(self, finding: GateFinding) -> str:
        """Return "docker in cnn", or "docker ÷ vm in cnn"."""
        reference = self.references.get(finding.cell, self.reference)
        arm = f"{finding.arm} ÷ {reference}" if self.is_change else finding.arm
        return f"{arm} in {self.labels.get(finding.cell, finding.cell)}"

    def moved(self, finding: GateFinding, state: str) -> str:
        """Return "docker is 8.4 % slower than vm in cnn", or than before."""
        size = finding.log_ratio or 0.0
        than = "before" if self.is_change else self.references.get(finding.cell, self.reference)
        claim = f"takes {unsigned_percent(size)} less time than {than}"
        if state == "slower":
            claim = f"is {slower_text(size, than)}"
        if self.is_change:
            return f"{self.name(finding)} {claim}"
        return f"{finding.arm} {claim} in {self.labels.get(finding.cell, finding.cell)}"


def worded_gates(
    results: Iterable[GateResult],
    labels: dict[str, str],
    reference: str,
    *,
    references: Mapping[str, str] = {},
    is_change: bool = False,
) -> tuple[GateResult, ...]:
    """Return the results with the sentence of each gate and of each finding."""
    results = tuple(results)
    naming = _Naming(
        labels=labels,
        reference=reference,
        references=references,
        is_change=is_change,
        gates=frozenset(result.gate for result in results),
    )
    return tuple(
        msgspec.structs.replace(
            result,
            sentence=flat(_result_sentence(result)),
            findings=tuple(
                msgspec.structs.replace(
                    finding, sentence=flat(_finding_sentence(result, finding, naming))
                )
                for finding in result.findings
            ),
        )
        for result in results
    )


def gate_blocks(
    results: Iterable[GateResult], *runs: RunComparison | RunSide
) -> tuple[PlainBlock, ...]:
    """Return the failed, open and passed gates, and the runs that no gate can judge."""
    arms = (arm for run in runs if isinstance(run, RunComparison) for arm in run.arms)
    names = dict.fromkeys(arm.arm for arm in arms if not arm.is_timed)
    blocks: list[PlainBlock] = []
    if names:
        unjudged = f"no gate judges {listed(list(names), most=9)}"
        blocks.append(Line(text=f"{unjudged}: imported profiles hold no timing", style="warning"))
    for result in results:
        for finding in result.findings:
            match finding.finding:
                case "hit":
                    blocks.append(Line(strong=finding.sentence, style="failed"))
                case "unjudged":
                    blocks.append(Line(text=finding.sentence, style="warning"))
                case "open":
                    blocks.append(Items(items=(finding.sentence,), style="note"))
        blocks.append(Items(items=(result.sentence,), style="note"))
    texts = (
        f"{run.run_id} is incomplete, so no gate can pass; `envcompare run --resume` "
        "continues an interrupted run; lost samples need a copy of the file"
        for run in runs
        if not (run.course if isinstance(run, RunComparison) else run).is_complete
    )
    return (*blocks, *(Line(text=text, style="warning") for text in texts))


def _result_sentence(result: GateResult) -> str:
    hits = sum(finding.finding == "hit" for finding in result.findings)
    unjudged = sum(finding.finding == "unjudged" for finding in result.findings)
    every = counted(result.comparisons, "comparison")
    if hits:
        return f"gate {result.gate}: hit by {hits} of {every}"
    if unjudged:
        return f"gate {result.gate}: not hit, but {unjudged} of {every} could not be judged"
    doubtful = sum(finding.finding == "open" for finding in result.findings)
    doubt = f", {doubtful} of them not beyond doubt" if doubtful else ""
    return f"gate {result.gate}: not hit, {every} judged{doubt}"


def _finding_sentence(result: GateResult, finding: GateFinding, naming: _Naming) -> str:
    gate, state = result.gate, result.state
    bound = f"{result.percent or 0:.12g} %"
    match finding.finding:
        case "hit":
            return f"gate {gate} hit: {_hit(result, finding, naming, bound=bound)}"
        case "unjudged":
            is_measured = state == "confounded" and finding.outcome not in {"failed", "not-run"}
            unseen = _NOT_DESCRIBED_TWICE if naming.is_change else _NOT_DESCRIBED
            why = unseen if is_measured else f"{_LACKS[finding.outcome]} ({_reason(finding)})"
            return f"gate {gate} could not judge {naming.name(finding)}: {why}"
        case _:
            return f"gate {gate} passed, not beyond doubt: {_open(result, finding, naming)}"


def _hit(result: GateResult, finding: GateFinding, naming: _Naming, *, bound: str) -> str:
    name, state = naming.name(finding), result.state
    match state:
        case "inconclusive":
            reason = one_line(reasons_text(finding.reasons))
            why = f"; {reason}" if reason else ""
            return f"{name} is inconclusive ({_interval(finding)}){why}"
        case "confounded":
            whose = (
                "its software changed as well"
                if naming.is_change
                else "not only its environment differs"
            )
            return f"{name} is confounded, since {whose}"
        case "failed":
            is_whole = finding.outcome in {"failed", "not-run"}
            what = _LACKS[finding.outcome] if is_whole else "failed before the end of its cell"
            return f"{name} {what} ({_reason(finding)})"
        case "unproven":
            ends = "no interval" if finding.high is None else _interval(finding)
            is_beyond = (finding.low or 0.0) > math.log1p((result.percent or 0.0) / 100)
            shown = "is more" if is_beyond else "is not shown to be less"
            return f"{name} {shown} than {bound} slower ({ends}){_more(finding, naming)}"
        case _:
            near = finding.low if state == "slower" else finding.high
            least = "" if near is None else f"; at least {unsigned_percent(near)}"
            return f"{naming.moved(finding, state)}{least}"


def _open(gate: GateResult, finding: GateFinding, naming: _Naming) -> str:
    """State how far beyond the bound the true value of a comparison may still be."""
    if finding.outcome != "inconclusive":
        figures = f"{naming.name(finding)} has {_interval(finding)}"
        beyond = f"that all of it is beyond {gate.percent or 0:.12g}% is not shown"
        return f"{figures}: {beyond}{_more(finding, naming)}"
    hint = "" if "inconclusive" in naming.gates else "; add --fail-on inconclusive to fail on it"
    reach = _reach(gate.state, finding)
    return f"{naming.name(finding)} is inconclusive and {reach}{_more(finding, naming)}{hint}"


def _more(finding: GateFinding, naming: _Naming) -> str:
    """Estimate how much more measuring would decide, if that is possible."""
    if finding.forecast_s is None:
        return ""
    where = " in the second run" if naming.is_change else ""
    return f"; about {rough_time(finding.forecast_s)} more measuring{where} would decide"


def _reach(state: str, finding: GateFinding) -> str:
    far = (finding.high if state == "slower" else finding.low) or 0.0
    is_beyond = far > 0 if state == "slower" else far < 0
    if not is_beyond:
        return f"its interval ends at {signed_percent(far)}"
    if state == "slower":
        return f"could be up to {slower_text(far)}"
    return f"could take up to {unsigned_percent(far)} less time"


def _reason(finding: GateFinding) -> str:
    return one_line(reasons_text(finding.reasons)) or "no reason was recorded"


def _interval(finding: GateFinding) -> str:
    if finding.log_ratio is None:
        return "no interval"
    return f"{signed_percent(finding.log_ratio)}, {signed_interval(finding.low, finding.high)}"


def worded(run: RunChange, labels: dict[str, str]) -> RunChange:
    """Return the comparison of two runs with sentences; `labels` belong to the later run."""
    return msgspec.structs.replace(
        run,
        changes=tuple(
            msgspec.structs.replace(change, sentence=flat(_sentence(run, change, labels)))
            for change in run.changes
        ),
        gates=worded_gates(
            run.gates, labels, run.reference_arm, references=run.references, is_change=True
        ),
    )


def change_blocks(run: RunChange, labels: dict[str, str]) -> tuple[PlainBlock, ...]:
    """Return the blocks for terminal and Markdown of two runs that have their sentences."""
    is_short = len(run.changes) <= _MOST_SAID
    said = (change for change in run.changes if is_short or change.outcome in _ALWAYS_SAID)
    return (
        Heading(text=f"change from {_run_name(run.before)} to {_run_name(run.after)}"),
        *(Line(text=text, style="warning") for text in _warnings(run)),
        *(block for change in said for block in _said(change)),
        Table(
            label="Changes",
            columns=tuple(Column(head=head) for head in _HEADS),
            rows=tuple(_row(change, labels) for change in run.changes),
        ),
        Items(items=tuple(_notes(run)), style="note"),
    )


def _run_name(side: RunSide) -> str:
    # both runs usually have the same title
    return f"{side.title} ({side.run_id})" if side.title else f"run {side.run_id}"


def _said(change: Change) -> Iterator[PlainBlock]:
    yield Line(strong=f"{SYMBOLS[change.outcome]} {change.sentence}", style=change.outcome)
    if details := (*change.remarks, *_changed_too(change)):
        yield Items(items=details)


def _changed_too(change: Change) -> Iterable[str]:
    """State what else changed in the arm, as a possible cause."""
    confounders = [
        fact for fact in whole_facts(change.differences) if fact.fact_class == "confounder"
    ]
    engines = [fact for fact in change.differences if fact.key.endswith(".version")]
    texts = dict.fromkeys(shortened(fact_text(fact), most=80) for fact in (*confounders, *engines))
    if texts:
        yield f"Between the runs, of {change.arm} itself changed: {listed(list(texts))}."
    if not change.is_described:
        yield f"What else of {change.arm} changed was not recorded in both runs."


def _sentence(run: RunChange, change: Change, labels: dict[str, str]) -> str:
    reference = run.references.get(change.cell, run.reference_arm)
    name = f"{change.arm} ÷ {reference} in {labels.get(change.cell, change.cell)}"
    reason = one_line(reasons_text(change.reasons))
    if change.outcome in {"failed", "not-run"}:
        why = reason or "no reason was recorded"
        return f"{name}: {WORDS[change.outcome]}: {why}"
    was, now = _moments(change)
    tail = f"; {reason}" if reason else ""
    return f"{name}: {_claim(run, change)}: was {was}, is {now}{tail}"


def _claim(run: RunChange, change: Change) -> str:
    interval = signed_interval(change.low, change.high)
    match change.outcome:
        case "slower" | "faster":
            size = change.log_ratio or 0.0
            words = f"{unsigned_percent(size)} less time than before"
            if change.outcome == "slower":
                words = slower_text(size, "before")
            return f"{words} ({unsigned_interval(change.low, change.high)})"
        case "equivalent":
            real = f", {REAL_INSIDE}" * excludes_zero(change.low, change.high)
            return f"equivalent within ±{margin_percent(run.margin)} ({interval}){real}"
        case _:
            leaning = "" if change.leaning == "none" else f", leaning {change.leaning}"
            return f"inconclusive{leaning} ({interval})"


def _moments(change: Change) -> tuple[str, str]:
    """Return the ratio before and after."""
    was, now = (
        signed_percent(side.log_ratio) if side else NOT_MEASURED
        for side in (change.before, change.after)
    )
    return was, now


def _row(change: Change, labels: dict[str, str]) -> Row:
    moved = NOT_MEASURED if change.log_ratio is None else (
        f"{signed_percent(change.log_ratio)} ({signed_interval(change.low, change.high)})"
    )  # fmt: skip
    word = outcome_text(change.outcome)
    if change.is_confounded and change.log_ratio is not None:
        word += " ⚠ confounded"
    cells = (change.arm, labels.get(change.cell, change.cell), *_moments(change), moved, word)
    return Row(cells=cells, style=change.outcome)


def _warnings(run: RunChange) -> Iterable[str]:
    if run.mismatches:
        cells = tuple(dict.fromkeys(change.cell for change in run.changes))
        texts = [mismatch_text(mismatch, cells) for mismatch in run.mismatches]
        yield (
            "Compared despite a mismatch (--allow-mismatch), which may explain a change: "
            f"{'; '.join(texts)}."
        )
    for word, side in (("before", run.before), ("after", run.after)):
        if not side.is_complete:
            yield f"The run {word} ({side.run_id}) is not complete: {INCOMPLETE}."
    for word in ("before", "after"):
        names = [f"{item.arm} in {item.cell}" for item in run.left_out if item.only_in == word]
        if names:
            yield f"Only in the run {word}, and not compared: {listed(names, most=20)}."


def _notes(run: RunChange) -> Iterable[str]:
    counts = Counter(change.outcome for change in run.changes)
    if len(run.changes) > _MOST_SAID:
        words = [f"{count} {WORDS[outcome]}" for outcome, count in counts.items()]
        yield f"{counted(len(run.changes), 'change')}: {listed(words, most=9)}."
    other = (
        f"; that of the run before was ±{margin_percent(run.before.margin)}"
        if run.before.margin != run.after.margin
        else ""
    )
    reference = "the reference" if run.references else run.reference_arm
    yield (
        f"The margin is {margin_text(run.margin)}, that of the run after{other}. Ratios to "
        f"{reference} are compared, never times."
    )
    yield (
        "The interval of a change rests on those of both runs, widened for their comparisons "
        f"({run.before.planned_comparisons} before, {run.after.planned_comparisons} after)."
    )
    differences = [difference_sentences(side.host_differences) for side in (run.before, run.after)]
    for when, texts in zip(("before", "after"), differences, strict=True):
        if when == "before" or differences[0] != differences[1]:
            whose = "In both runs" if differences[0] == differences[1] else f"In the run {when}"
            yield from (f"⚠ {whose}: {text}" for text in texts)
    versions = run.before.tool_version, run.after.tool_version
    if versions[0] != versions[1]:
        yield f"envcompare was {versions[0]} before and is {versions[1]} after."
    yield from (f"⚠ {caution}" for caution in run.cautions)


def worded_runs(combined: CombinedRuns) -> CombinedRuns:
    """Return the combined runs with a sentence for each effect."""
    effects = (
        msgspec.structs.replace(effect, sentence=flat(_combined_sentence(combined, effect)))
        for effect in combined.effects
    )
    return msgspec.structs.replace(combined, effects=tuple(effects))


def combined_blocks(combined: CombinedRuns) -> tuple[PlainBlock, ...]:
    """Return the blocks for terminal and Markdown of combined runs that have their sentences."""
    return (
        Heading(text=f"{len(combined.runs)} runs combined"),
        *(Line(text=text, style="warning") for text in _combined_warnings(combined)),
        *(
            Line(strong=f"{SYMBOLS[effect.outcome]} {effect.sentence}", style=effect.outcome)
            for effect in combined.effects
        ),
        Table(
            label="Runs",
            columns=tuple(Column(head=head) for head in _COMBINED_HEADS),
            rows=tuple(
                _combined_row(effect, part) for effect in combined.effects for part in effect.parts
            ),
        ),
        Items(items=tuple(_combined_notes(combined)), style="note"),
    )


def _work(effect: CombinedEffect) -> str:
    within = f"in {effect.within}" if effect.within else ""
    return " ".join(filter(None, (effect.workload, within, *assigned(effect.parameters))))


def _combined_sentence(combined: CombinedRuns, effect: CombinedEffect) -> str:
    where = f"in {_work(effect)}"
    if effect.log_ratio is None or effect.low is None or effect.high is None:
        return f"{effect.arm} {where} was not combined: {_WHY[effect.why_open]}."
    over = f"over {counted(effect.runs, 'run')} on {counted(effect.hosts, 'machine')}"
    ends = effect.low, effect.high
    figures = f"({signed_percent(effect.log_ratio)}, {signed_interval(*ends)}) {over}"
    sizes = f"({unsigned_interval(*ends)}) {over}"
    match effect.outcome:
        case "slower":
            claim = f"is {slower_text(effect.log_ratio, effect.reference)} {where} {sizes}"
        case "faster":
            size = unsigned_percent(effect.log_ratio)
            claim = f"takes {size} less time than {effect.reference} {where} {sizes}"
        case "equivalent":
            within = f"within ±{margin_percent(combined.margin)}"
            claim = f"is equivalent to {effect.reference} {within} {where} {figures}"
        case _:
            why = f": {_WHY[effect.why_open]}" if effect.why_open else ""
            unit, count = (
                ("run", effect.runs) if effect.unit != "host" else ("machine", effect.hosts)
            )
            if not why and count == 2:
                why = f", as two {unit}s say little about others"
            claim = f"against {effect.reference} is inconclusive {where} {figures}{why}"
    return f"{effect.arm} {claim}; {_scatter(effect)}."


def _scatter(effect: CombinedEffect) -> str:
    """State how far runs differ beyond their own intervals."""
    spread = effect.between_runs or 0.0
    if spread < _LEAST_SPREAD:
        return "the runs differ by no more than their own intervals explain"
    size = unsigned_percent(spread)
    return f"beyond their own intervals, the runs scatter by ±{size} (standard deviation)"


def _combined_row(effect: CombinedEffect, part: CombinedPart) -> Row:
    ratio = NOT_MEASURED
    if part.log_ratio is not None:
        ratio = f"{signed_percent(part.log_ratio)} ({signed_interval(part.low, part.high)})"
    return Row(
        cells=(
            effect.arm,
            _work(effect),
            part.run_id,
            part.host,
            ratio,
            outcome_text(part.outcome),
        ),
        style=part.outcome,
    )


def _combined_warnings(combined: CombinedRuns) -> Iterator[str]:
    if combined.mismatches:
        texts = [
            f"{mismatch.first} → {mismatch.other}: {mismatch.mismatch.text}"
            for mismatch in combined.mismatches
        ]
        yield (
            "Combined despite a mismatch (--allow-mismatch), which may explain why runs differ: "
            f"{'; '.join(texts)}."
        )
    for run in combined.runs:
        if not run.is_complete:
            yield f"The run {run.run_id} is not complete: {INCOMPLETE}."
    if combined.left_out:
        yield f"In one run alone, and not combined: {listed(list(combined.left_out), most=6)}."


def _combined_notes(combined: CombinedRuns) -> Iterator[str]:
    runs = [
        f"{run.run_id} ({run.title}{', ' * bool(run.title)}begun {run.created.partition('T')[0]})"
        for run in combined.runs
    ]
    yield f"Runs: {listed(runs, most=20)}."
    yield from _machines(combined)
    margins = {run.margin for run in combined.runs}
    largest = ", the largest of the runs" if len(margins) > 1 else ""
    yield f"The margin is {margin_text(combined.margin)}{largest}."
    units = {effect.unit for effect in combined.effects if effect.log_ratio is not None}
    if "host" in units:
        yield "Each machine is pooled over its own runs. The interval is for machines like these."
    if "run" in units:
        yield "Where all runs are of one machine, the interval is for other days on it alone."
    levels = {
        margin_percent(effect.level) for effect in combined.effects if effect.level is not None
    }
    if len(levels) == 1 and len(combined.effects) > 1:
        yield (
            f"The intervals hold at 95 % for all {len(combined.effects)} statements together "
            f"(each at {levels.pop()})."
        )
    elif levels:
        yield "The interval holds at 95 %."
    versions = {run.tool_version for run in combined.runs}
    if len(versions) > 1:
        yield f"The runs are of envcompare {listed(sorted(versions), most=9)}."


def _machines(combined: CombinedRuns) -> Iterator[str]:
    """Name each machine by its hosts; two names may mean one machine."""
    names: dict[str, dict[str, None]] = {}
    for effect in combined.effects:
        for part in effect.parts:
            names.setdefault(part.machine, {})[part.host] = None
    texts = [
        f"{listed(list(hosts), most=9)} ({combined.machines.get(machine) or 'not known'})"
        for machine, hosts in names.items()
    ]
    yield f"{counted(len(texts), 'machine')}, by processor: {listed(texts, most=20)}."
