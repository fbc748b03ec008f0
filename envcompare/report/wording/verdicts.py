"""A comparison in sentences and table cells, for the page, the terminal and Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model import (
    CellSummary,
    Comparison,
    Estimate,
    FarLaunch,
    Outcome,
    Reason,
    ReasonKind,
    RunComparison,
)
from envcompare.fingerprint import fact
from envcompare.fingerprint.sentences import SEPARATE, describe
from envcompare.report import Line, Span
from envcompare.report.wording import (
    NOT_MEASURED,
    ONE_RESTART,
    change,
    factor_text,
    listed,
    margin_percent,
    percent,
    rough_time,
    signed_interval,
    signed_percent,
    slower_text,
    unsigned_interval,
    unsigned_percent,
)
from envcompare.run_folder.records import FactDifference
from envcompare.text import LONGEST_REASON, counted, one_line, shortened, visible

SYMBOLS: Final[dict[Outcome, str]] = {
    "slower": "▶",
    "faster": "◀",
    "equivalent": "≈",
    "inconclusive": "?",
    "failed": "✕",
    "not-run": "–",
    "reference": "●",
}
WORDS: Final[dict[Outcome, str]] = {symbol: symbol for symbol in SYMBOLS} | {"not-run": "not run"}
MOVED: Final[tuple[Outcome, ...]] = ("slower", "faster")
EXPLAINED: Final[tuple[Outcome, ...]] = (*MOVED, "inconclusive")
"""Outcomes that have a cause, or may have one, and therefore get a fold."""
REAL_INSIDE: Final = "a real difference, smaller than the margin"

_NOTHING_DIFFERS: Final = (
    "No recorded difference can act here: envcompare may not record the cause."
)
_MOST_CANDIDATES: Final = 3
_MOST_BY_DESIGN: Final = 5  # by name only; the Environments section lists all
_LEAST_TAIL: Final = 0.002  # of the steps; fewer slow ones explain no difference
_LEAST_OUTSIDE_S: Final = 0.05  # less reads as 0.0 s
_HOPELESS: Final = 1000  # restarts; a longer forecast is of no use for planning
_REASONS: Final[dict[ReasonKind, str]] = {
    "no-complete-round": "no round was complete",
    "not-selected": "the screen does not count it as a difference",
    "target-first": "a smaller --target continues",
    "no-interval": "there is no interval",
    "only-before": "only the earlier run has it",
    "mean-open": "the mean of all steps may have changed by more than the margin",
}
_JOINTS: Final[dict[Outcome, str]] = {"equivalent": ", ", "inconclusive": "; "}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One comparison in words, for the headline, table, terminal and Markdown."""

    arm: str
    cell: str  # as labelled
    cell_id: str
    outcome: Outcome
    claim: str  # "slower", "less time", "inconclusive, leaning slower"
    amount: str = ""  # "8.4 %", where the claim says which way
    ends: str = ""  # "8.0 to 8.7 %", likewise
    qualifier: str = ""  # "(phase setup, exit code 1)"
    remark: str = ""  # the forecast, the error line, the reason
    brief: str = ""  # the remark without the work already done
    leaning: str = ""  # "leaning slower"
    number: str = ""  # "+8.4 %"
    interval: str = ""  # "+8.0 to +8.7 %"
    log_ratio: float | None = None
    is_confounded: bool = False
    remarks: tuple[str, ...] = ()  # disagreement of mean or tail; a failed control
    reference_step_s: float | None = None  # multiplied by the ratio, the step of the arm
    is_typical: bool = False  # that step; otherwise the mean

    @property
    def text(self) -> str:
        """Return the whole sentence."""
        if self.amount:
            return f"{self.change} ({self.ends})"
        words = f"{self.claim} {self.qualifier}".rstrip()
        joint = _JOINTS.get(self.outcome, ": ")
        return f"{words}{joint}{self.remark}" if self.remark else words

    @property
    def change(self) -> str:
        """Return "8.4 % slower", "24 times as slow" or "7.1 % less time" of a decided change."""
        if self.outcome == "slower" and self.log_ratio is not None:
            return slower_text(self.log_ratio, as_factor=self.amount.startswith("×"))
        return f"{self.amount} {self.claim}"

    @property
    def figures(self) -> str:
        """Return the size: "8.4 %, 8.0 to 8.7 %", with signs if the direction is open."""
        pair = (self.amount, self.ends) if self.amount else (self.number, self.interval)
        return ", ".join(part for part in pair if part)

    @property
    def symbol(self) -> str:
        """Return the shape that goes with the colour."""
        return SYMBOLS[self.outcome]

    @property
    def word(self) -> str:
        """Return the outcome in one or two words."""
        return WORDS[self.outcome]


def verdict(comparison: Comparison, *, label: str, margin: float) -> Verdict:
    """Return the words of one comparison; `margin` is a fraction fixed before the run."""
    primary, amount, ends = comparison.deciding, "", ""
    sized = primary if primary and primary.has_size else None
    if comparison.outcome in MOVED:
        ends = unsigned_interval(primary.low, primary.high) if primary else "no interval"
        say = factor_text if ends.startswith("×") else unsigned_percent
        amount = say(primary.log_ratio) if primary else "by an amount not measured"
    return Verdict(
        arm=comparison.arm,
        cell=label,
        cell_id=comparison.cell,
        outcome=comparison.outcome,
        claim=_claim(comparison, margin),
        amount=amount,
        ends=ends,
        qualifier=_qualifier(comparison),
        remark=visible(_remark(comparison)),
        brief=visible(_remark(comparison, is_brief=True)),
        leaning="" if comparison.leaning == "none" else f"leaning {comparison.leaning}",
        number=signed_percent(sized.log_ratio) if sized else "",
        interval=signed_interval(sized.low, sized.high) if sized else "",
        log_ratio=sized.log_ratio if sized else None,
        reference_step_s=comparison.reference_step_s,
        is_typical=comparison.mean is not None and not comparison.is_by_mean,
        is_confounded=comparison.is_confounded and primary is not None,
        remarks=tuple(visible(text) for text in _remarks(comparison, margin)),
    )


def estimate_text(estimate: Estimate) -> str:
    """Return a ratio with its interval, signed: "+9.1 % (+7.0 to +11.2 %)"."""
    return f"{signed_percent(estimate.log_ratio)} ({signed_interval(estimate.low, estimate.high)})"


def estimate_line(
    log_ratio: float, low: float | None, high: float | None, *below: str, is_strong: bool = False
) -> Line:
    """Return a change as a table cell, with its interval and other lines below."""
    number, lines = signed_percent(log_ratio), (signed_interval(low, high), *below)
    return Line(strong=number, below=lines) if is_strong else Line(text=number, below=lines)


def estimate_cell(estimate: Estimate | None, *below: str, is_strong: bool = False) -> Line | str:
    """Return an estimate as a table cell, or why it has no size."""
    if estimate is None:
        return NOT_MEASURED
    if not estimate.has_size:
        return ONE_RESTART
    return estimate_line(
        estimate.log_ratio, estimate.low, estimate.high, *below, is_strong=is_strong
    )


def outcome_text(outcome: Outcome) -> str:
    """Return an outcome with its symbol: "▶ slower"."""
    return f"{SYMBOLS[outcome]} {WORDS[outcome]}"


def outcome_badge(outcome: Outcome) -> Span:
    """Return an outcome with its symbol, in its colour."""
    return Span(text=outcome_text(outcome), style=f"badge {outcome}")


def find_estimate(comparison: Comparison, metric: str) -> Estimate | None:
    """Return the primary or secondary estimate on a metric; None without a size."""
    estimates = (
        estimate for estimate in (comparison.primary, *comparison.secondary) if estimate is not None
    )
    return next(
        (estimate for estimate in estimates if estimate.metric == metric and estimate.has_size),
        None,
    )


def excludes_zero(low: float | None, high: float | None) -> bool:
    """Say whether an interval lies on one side of 0."""
    return low is not None and high is not None and not low <= 0 <= high


def clock_sentence(comparison: Comparison) -> str:
    """State what the clock shows in addition to net time, and the time spent waiting for a CPU."""
    wall, stretch = find_estimate(comparison, "wall"), find_estimate(comparison, "stretch")
    if comparison.primary is None or comparison.primary.metric != "net" or wall is None:
        return ""
    line = f"Wall time: {estimate_text(wall)}"
    if stretch is not None:
        line += f"; waiting for a CPU (stretch): {estimate_text(stretch)}"
    return f"{line}; means of all steps, not widened."


def confounder_sentence(
    differences: tuple[FactDifference, ...],
    *,
    outcomes: frozenset[Outcome],
    is_split: bool = False,
) -> str:
    """State what differs besides the environment; empty if nothing does."""
    every = (difference for difference in differences if difference.fact_class == "confounder")
    confounders = [difference for difference in every if not difference.part_of]
    named = list(dict.fromkeys(map(_in_short, confounders)))
    if not named:
        return ""
    is_one = len(named) == 1 and not fact(confounders[0].key).is_plural
    verb = "differs" if is_one else "differ"
    consequence = "See Environment or software?" if is_split else _consequence(outcomes)
    return visible(f"Besides the environment, {listed(named)} {verb}. {consequence}")


def _in_short(difference: FactDifference) -> str:
    """Return a difference in words, never cutting GPUs or evidence from kernel names."""
    text = describe(difference)
    return text if fact(difference.key).is_whole else shortened(text, most=80)


def reported_differences(
    run: RunComparison, cell: str, *, host: str, arm: str
) -> dict[str, FactDifference]:
    """Return the differences that a cell reports of an arm, by key."""
    place = (host, arm)
    of_cell = (
        difference
        for difference in run.cell_differences.get(cell, ())
        if (difference.host, difference.arm) == place
    )
    both = (*run.differences_by_arm.get(place, ()), *of_cell)
    return {difference.key: difference for difference in both}


def candidate_differences(
    run: RunComparison, comparisons: Iterable[Comparison]
) -> Iterator[FactDifference]:
    """Yield the candidates of comparisons, with the evidence from their cell."""
    for comparison in comparisons:
        if not comparison.candidates:
            continue
        host, arm = comparison.host, comparison.arm
        facts = reported_differences(run, comparison.cell, host=host, arm=arm)
        yield from (facts[key] for key in comparison.candidates if key in facts)


def candidate_sentence(
    candidates: tuple[FactDifference, ...] | None,
    *,
    arm: str,
    on_purpose: tuple[FactDifference, ...] = (),
    in_some_cells: bool = False,
    besides: str = "Besides the environment",
) -> str:
    """State likely causes of a decided difference other than confounders, the likeliest first.

    None means that facts were not compared, in some cells or in all. The result is empty only if
    there are just confounders, which `confounder_sentence` names. Without a candidate, the sentence
    names the intended differences in `on_purpose`.
    """
    if candidates is None:
        return visible(
            f"What else differs is not known: there is no fingerprint for {arm}"
            f"{' in some cells' if in_some_cells else ''}."
        )
    if not candidates and not on_purpose:
        return _NOTHING_DIFFERS
    if not candidates:
        names = dict.fromkeys(fact(difference.key).name for difference in on_purpose)
        what = listed(list(names), most=_MOST_BY_DESIGN)
        return visible(f"{arm} differs by design in {what}; see Environments.")
    rest = [candidate for candidate in candidates if candidate.fact_class != "confounder"]
    likely = [difference for difference in rest if difference.is_felt is not False]
    texts = (
        _likely(likely, "In addition" if len(rest) < len(candidates) else besides),
        *dict.fromkeys(
            difference.evidence for difference in likely[:_MOST_CANDIDATES] if difference.evidence
        ),
        next((f"{SEPARATE}{difference.remedy}." for difference in likely if difference.remedy), ""),
        _unlikely([difference for difference in rest if difference.is_felt is False]),
    )
    return visible(" ".join(text for text in texts if text))


def _likely(differences: list[FactDifference], start: str) -> str:
    if not differences:
        return ""
    where = "; all are listed under Environments" * (len(differences) > _MOST_CANDIDATES)
    verb = _differ(differences)
    return f"{start}, {_described(differences)} {verb} and may be a cause{where}."


def _unlikely(differences: list[FactDifference]) -> str:
    """Name what also differs, with the evidence; that does not prove that it has no effect."""
    if not differences:
        return ""
    evidence = dict.fromkeys(
        difference.evidence for difference in differences[:_MOST_CANDIDATES] if difference.evidence
    )
    named = _described(differences)
    verb = _differ(differences)
    return " ".join((f"{named[:1].upper()}{named[1:]} {verb} too.", *evidence))


def _described(differences: list[FactDifference]) -> str:
    words = dict.fromkeys(_in_short(difference) for difference in differences)
    return listed(list(words), most=_MOST_CANDIDATES)


def _differ(differences: list[FactDifference]) -> str:
    is_one = len(differences) == 1 and not fact(differences[0].key).is_plural
    return "differs" if is_one else "differ"


FIRST_CONTROLS: Final = 2
"""The controls on the first screen; the method section has the rest."""


def control_sentence(cell: CellSummary, *, label: str, run: RunComparison) -> str:
    """State how far the reference differs from itself, and which claims that rules out."""
    floor, name = cell.noise_floor, run.reference_in(cell.id)
    if floor is None:
        why = one_line(cell.reason) or f"{counted(cell.generations, 'generation')} ran"
        return visible(f"A/A control: not measured in {label} ({why}).")
    if not floor.has_size:
        return visible(f"A/A control in {label}: one restart does not show the noise.")
    gave = f"{name} against itself gave {signed_percent(floor.log_ratio)}"
    if floor.low is None or floor.high is None:
        unknown = "no interval, so the smallest detectable difference is unknown"
        return visible(f"A/A control in {label}: {gave}, {unknown}.")
    ends = signed_interval(floor.low, floor.high)
    gave += f" ({ends}, {margin_percent(floor.level)} interval)"
    far = unsigned_percent(max((floor.low, floor.high), key=lambda end: abs(change(end))))
    if is_control_failed(cell, run):
        return visible(
            f"Control failed in {label}: {gave}; no claim smaller than {far} is made there."
        )
    own = {
        comparison.outcome
        for comparison in run.comparisons
        if comparison.cell == cell.id and not comparison.is_control
    }
    is_decided = "inconclusive" not in own and own & {*MOVED, "equivalent"}
    if is_decided and not excludes_zero(floor.low, floor.high):
        return visible(f"A/A control in {label}: {gave}: 0 lies inside.")
    return visible(
        f"A/A control in {label}: {gave}. Differences under about {far} may go unnoticed."
    )


def is_control_failed(cell: CellSummary, run: RunComparison) -> bool:
    """Say whether the reference measured twice differed from itself in this cell."""
    return any(
        comparison.control_failed for comparison in run.comparisons if comparison.cell == cell.id
    )


def margin_sentence(run: RunComparison, *, name: str = "The margin") -> str:
    """Name the margin and when it was fixed."""
    margin = margin_text(run.settings.margin)
    return f"{name} is {margin}, fixed before the run (preset {visible(run.settings.preset)})."


def margin_text(margin: float) -> str:
    """Return "±2 %", with its exact ends if rounding would hide them."""
    band = math.log1p(margin)
    reads_alike = unsigned_percent(-band) == unsigned_percent(band)
    ends = "" if reads_alike else f" ({signed_interval(-band, band)})"
    return f"±{margin_percent(margin)}{ends}"


def _claim(comparison: Comparison, margin: float) -> str:
    match comparison.outcome:
        case "faster":
            return "less time"
        case "equivalent":
            return f"equivalent within ±{margin_percent(margin)}"
        case "inconclusive" if comparison.leaning != "none":
            return f"inconclusive, leaning {comparison.leaning}"
        case _:
            return WORDS[comparison.outcome]


def _qualifier(comparison: Comparison) -> str:
    failure = comparison.failure
    if comparison.outcome != "failed" or failure is None:
        return ""
    code = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
    return f"(phase {failure.phase}{code})"


def _remark(comparison: Comparison, *, is_brief: bool = False) -> str:
    match comparison.outcome:
        case "equivalent":
            both = filter(None, (comparison.primary, comparison.deciding))
            return REAL_INSIDE * all(
                excludes_zero(estimate.low, estimate.high) for estimate in both
            )
        case "inconclusive":
            return _forecast(comparison, is_brief=is_brief)
        case "failed":
            failed = comparison.failure.brief if comparison.failure else ""
            brief = one_line(failed, most=LONGEST_REASON)
            return brief or _reason(comparison) or "no error line was recorded"
        case "not-run":
            return _reason(comparison) or "no reason was recorded"
        case _:
            return ""


def _forecast(comparison: Comparison, *, is_brief: bool) -> str:
    primary = comparison.primary
    word = "round" if primary is not None and primary.unit == "process" else "restart"
    count = primary.restarts if primary else 0
    ran = "" if is_brief else f" (ran {count})"
    if (comparison.forecast_restarts or 0) >= _HOPELESS:
        return f"thousands more {word}s would be needed{ran}"
    if comparison.forecast_restarts:
        more = counted(comparison.forecast_restarts, f"more {word}")
        time = f" ({rough_time(comparison.forecast_s)})" if comparison.forecast_s else ""
        return f"about {more}{time} would decide{ran}"
    if comparison.forecast_s:
        return f"about {rough_time(comparison.forecast_s)} more would decide{ran}"
    return _reason(comparison) or f"how much more would decide is not known{ran}"


def _parting_sentence(comparison: Comparison, *, margin: float) -> str:
    """State where mean and typical step differ, and why: waiting, launches or slow steps."""
    if comparison.is_control:
        return _launches(comparison)
    texts = (
        _parting(comparison),
        _waiting(comparison, margin),
        _launches(comparison),
        _trend(comparison, margin),
        _tail(comparison),
    )
    return "; ".join(filter(None, texts))


def _parting(comparison: Comparison) -> str:
    """Return the estimate outside the verdict if it disagrees."""
    mean, primary, excess = comparison.mean, comparison.primary, comparison.excess
    if mean is None or primary is None:
        return ""
    if comparison.is_by_mean:
        parts = excess is not None and excludes_zero(excess.low, excess.high)
        is_alone = comparison.outcome in MOVED and not excludes_zero(primary.low, primary.high)
        return f"mean of all steps; typical step: {estimate_text(primary)}" * (parts or is_alone)
    if comparison.outcome not in MOVED:
        return ""
    if excludes_zero(mean.low, mean.high):
        parts = (mean.log_ratio > 0) != (primary.log_ratio > 0)
        return f"typical step, but the mean of all steps: {estimate_text(mean)}" * parts
    return f"typical step; the mean of all steps is undecided: {estimate_text(mean)}"


def _waiting(comparison: Comparison, margin: float) -> str:
    """State how much of the mean is the arm's own waiting, or how much cannot be excluded."""
    waiting = comparison.own_waiting
    if waiting is None:
        return ""
    if waiting.is_counted:
        amount = f"{percent(waiting.share)} % {'more' if waiting.share > 0 else 'less'}"
        return f"the mean includes {amount} waiting for a CPU than the reference has"
    return unseen_waiting(comparison, margin)


def unseen_waiting(comparison: Comparison, margin: float) -> str:
    """Say how much waiting an equivalent arm may have; empty where it is within the margin."""
    waiting = comparison.own_waiting
    if waiting is None or waiting.is_counted or waiting.high <= margin:
        return ""
    may = f"up to {percent(waiting.high)} % more waiting for a CPU cannot be excluded"
    return may * (comparison.outcome == "equivalent")


def _trend(comparison: Comparison, margin: float) -> str:
    """State that the ratio drifts by more than the margin within a turn.

    Cache contents of other arms and delayed background work have this effect.
    """
    trend = comparison.turn_trend
    if trend is None or not trend.is_detected:
        return ""
    first, last = trend.first_log_ratio, trend.last_log_ratio
    if abs(last - first) <= math.log1p(margin):
        return ""
    way = f"from {signed_percent(first)} in the first step of a turn to {signed_percent(last)}"
    return f"the change goes {way} in the last; longer turns may show another"


def _launches(comparison: Comparison) -> str:
    """Name the launches of the arm or its reference that were far from that arm's others."""
    by_arm: dict[str, list[FarLaunch]] = {}
    for one in comparison.far_launches:
        by_arm.setdefault(one.arm, []).append(one)
    texts = []
    for arm, far in by_arm.items():
        changes = dict.fromkeys(signed_percent(launch.log_ratio) for launch in far)
        texts.append(f"{len(far)} of {far[0].launches} launches of {arm}: {listed(list(changes))}")
    return "; ".join(texts)


def _tail(comparison: Comparison) -> str:
    """State that there are more, or fewer, very slow steps than in the reference."""
    tail = comparison.tail
    if tail is None or not excludes_zero(tail.difference_low, tail.difference_high):
        return ""
    more = tail.share - tail.reference_share
    if abs(more) < _LEAST_TAIL or (tail.slow_ratio is None and more > 0):
        return ""
    if more > 0:
        ratio = tail.slow_ratio or 0.0
        times = f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.2g} times"
        times += " as long as usual"
        return f"one step in {_one_in(tail.share)} takes {times} ({_against(tail.reference_share)})"
    here = f"one in {_one_in(tail.share)}" if tail.share else "none"
    return f"fewer slow steps: {here}, and {_against(tail.reference_share)}"


def _one_in(share: float) -> str:
    return f"{1 / share:.2g}" if share > 0.095 else f"{1 / share:.0f}"


def _against(share: float) -> str:
    return f"one in {_one_in(share)} in the reference" if share else "none in the reference"


def _remarks(comparison: Comparison, margin: float) -> tuple[str, ...]:
    """Return differences from the typical step, control failure, and other reasons."""
    is_forecast = bool(comparison.forecast_restarts or comparison.forecast_s)
    is_given = comparison.outcome in {*MOVED, "equivalent"} or (
        comparison.outcome == "inconclusive" and is_forecast
    )
    reason = _reason(comparison)
    parts = _parting_sentence(comparison, margin=margin)
    failed = "control failed" * comparison.control_failed
    return tuple(filter(None, (parts, failed, reason * is_given)))


def _consequence(outcomes: frozenset[Outcome]) -> str:
    if outcomes & set(MOVED):
        return "The difference is real, but its cause cannot be determined."
    if outcomes == {"not-run"}:
        return "The profiles cannot tell these causes apart."
    if "equivalent" in outcomes:
        return "The equal speed is that of environment and software together."
    return "If there were a difference, its cause could not be determined."


def reasons_text(reasons: Iterable[Reason]) -> str:
    """Return why something is unknown, failed or was not compared; empty without a reason."""
    return "; ".join(map(_reason_text, reasons))


def _reason(comparison: Comparison) -> str:
    text = _reason_text(comparison.reason) if comparison.reason else ""
    return one_line(text, most=LONGEST_REASON)


def _reason_text(reason: Reason) -> str:
    text = _reason_words(reason)
    return f"{reason.when}: {text or 'no reason was recorded'}" if reason.when else text


def _reason_words(reason: Reason) -> str:
    match reason.kind:
        case "reference-failed":
            return f"the reference {reason.arm} failed: {reason.brief}"
        case "too-few":
            return _too_few(reason)
        case "control-failed":
            end = unsigned_percent(reason.control_end or 0.0)
            return (
                f"control failed: the reference differs from itself by up to {end}; no smaller "
                "difference is claimed"
            )
        case "outside-turns":
            return _outside(reason)
        case "other-metric":
            before, after = reason.metrics or ("", "")
            return f"not compared: judged on {before} before and on {after} after"
        case _:
            return _REASONS.get(reason.kind, reason.brief)


def _outside(reason: Reason) -> str:
    cpu_s = reason.cpu_s or 0.0
    children = counted(reason.children or 0, "child process", "child processes")
    if reason.is_unstopped:
        who = f"{children} of {reason.arm}" if reason.children else reason.arm
        how = "measure it with `--command`"
        return f"{who} could not be stopped during the turns of other arms: {how}"
    if reason.hidden:
        most = f"up to {100 * reason.hidden:.0f} % of a step"
        waits = f"{children} of {reason.arm} may get an answer while stopped"
        return f"{waits}, which could hide {most}: measure it with `--command`"
    if cpu_s < _LEAST_OUTSIDE_S:
        who = children if reason.children else "threads"
        goes_on = "kept working in the turns of other arms: measure it with `--command`"
        return f"{who} of {reason.arm} {goes_on}"
    where = f" ({children})" if reason.children else ""
    return f"{reason.arm} worked {cpu_s:.1f} s outside its turns{where}: use `--command`"


def _too_few(reason: Reason) -> str:
    aim = f" ({reason.planned} were planned)" if reason.planned else ""
    text = (
        f"{reason.counted} of at least {reason.needed} {reason.unit}s that a verdict needs{aim} "
        "fitted into the budget"
    )
    if reason.missing is None:
        return text
    return f"{text}; at least {reason.missing} more before there is an interval"
