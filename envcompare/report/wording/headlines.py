"""One headline for each environment, built from the verdicts in the table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from envcompare.analysis.model import (
    HostsEstimate,
    Outcome,
    RunComparison,
)
from envcompare.fingerprint.comparing import is_overwritten
from envcompare.report.wording import (
    cell_labels,
    compared_arms,
    hosts_work,
    listed,
    margin_percent,
    of_cells,
    signed_interval,
    signed_percent,
    slower_text,
    unsigned_interval,
    unsigned_percent,
)
from envcompare.report.wording.causewords import candidates_text
from envcompare.report.wording.linewords import line_causes
from envcompare.report.wording.methodwords import caution_of, host_names, scope_text
from envcompare.report.wording.profilewords import (
    alone_text,
    hidden_sentences,
    is_timed,
    kernel_sentence,
)
from envcompare.report.wording.verdicts import (
    MOVED,
    SYMBOLS,
    WORDS,
    Verdict,
    confounder_sentence,
    reasons_text,
    verdict,
)
from envcompare.run_folder.records import FactDifference
from envcompare.text import LONGEST_REASON, counted, one_line, sentence, visible

_STILL: Final[tuple[Outcome, ...]] = ("inconclusive", "equivalent", "failed", "not-run")
_MOST_NAMED: Final = 2
_FLEET: Final = 5  # hosts; with fewer, the interval over hosts adds little to those of cells
_LEAST_SPREAD = 0.0005  # less is shown as 0.0 %
_MOST_STATEMENTS: Final = 2
_NOT_TIMED: Final = "Nothing was timed by envcompare, so no verdict is given."


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The headline of one environment: lead, other cells, and confounders."""

    arm: str
    outcome: Outcome
    badge: str  # "slower in 1 of 2"
    lead: str
    rest: str = ""
    caution: str = ""  # the confounders
    candidates: str = ""  # what else differs and may explain a decided difference
    causes: tuple[str, ...] = ()  # instead, if the arms are command lines
    verdicts: tuple[Verdict, ...] = ()
    scope: str = ""  # "on this host, in this run", of the first arm that was measured

    @property
    def text(self) -> str:
        """Return the lead with its scope."""
        if not self.scope:
            return self.lead
        scope, lead = self.scope, self.lead
        if lead.startswith("Over "):  # an interval over hosts applies to similar hosts
            scope, lead = scope.partition(", ")[2], f"over {lead[5:]}"
        return f"{scope[:1].upper()}{scope[1:]}, {lead}"

    @property
    def symbol(self) -> str:
        """Return the shape that goes with the colour."""
        return SYMBOLS[self.outcome]


def headlines(run: RunComparison) -> tuple[Headline, ...]:
    """Return one headline for each arm except the reference and its control.

    The arm that moved most is first, and arms without a measurement are last.
    """
    labels = cell_labels(run)
    by_arm: dict[str, list[Verdict]] = {arm: [] for arm in compared_arms(run)}
    for comparison in run.compared:
        if comparison.arm in by_arm:
            by_arm[comparison.arm].append(
                verdict(comparison, label=labels[comparison.cell], margin=run.settings.margin)
            )
    judged = [_headline(run, arm, tuple(verdicts)) for arm, verdicts in by_arm.items()]
    ordered = sorted(judged, key=_weight)
    for place, headline in enumerate(ordered):
        if any(one.log_ratio is not None for one in headline.verdicts):
            # stated once for all
            ordered[place] = replace(headline, scope=scope_text(run))
            break
    return tuple(ordered)


def _weight(headline: Headline) -> tuple[int, float]:
    moved = [abs(verdict.log_ratio or 0.0) for verdict in headline.verdicts if verdict.amount]
    if moved:
        return 0, -max(moved)
    return (2, 0.0) if headline.outcome in {"failed", "not-run"} else (1, 0.0)


def compared_differences(run: RunComparison) -> tuple[FactDifference, ...]:
    """Return the differences of the compared arms, without those of the control."""
    arms = frozenset(compared_arms(run))
    return tuple(difference for difference in run.differences if difference.arm in arms)


def _headline(run: RunComparison, arm: str, judged: tuple[Verdict, ...]) -> Headline:
    if not judged:
        return _without_comparison(run, arm)
    if any(
        estimate.arm == arm and estimate.hosts >= _FLEET for estimate in run.between_hosts.estimates
    ):
        return _over_hosts(run, arm, judged)
    headline = _over_cells(run, arm, judged)
    rest = " ".join(filter(None, (headline.rest, _over_hosts_text(run, arm))))
    return replace(headline, rest=rest)


def _over_hosts(run: RunComparison, arm: str, judged: tuple[Verdict, ...]) -> Headline:
    """Lead with the estimate over many hosts, since single hosts differ for other reasons."""
    together = [estimate for estimate in run.between_hosts.estimates if estimate.arm == arm]
    moved = [estimate for estimate in together if estimate.outcome in MOVED]
    outcomes: list[Outcome] = [estimate.outcome for estimate in together]
    if moved:
        outcome: Outcome = max(moved, key=lambda estimate: abs(estimate.log_ratio)).outcome
    else:
        outcome = max(outcomes, key=lambda each: (outcomes.count(each), -_STILL.index(each)))
    count = outcomes.count(outcome)
    among = f" in {count} of {len(together)} workloads" if count < len(together) else ""
    cells = _over_cells(run, arm, judged)
    return replace(
        cells,
        outcome=outcome,
        badge=f"{WORDS[outcome]} over hosts{among}",
        lead=_over_hosts_text(run, arm),
        rest=" ".join(filter(None, (f"By cell, {cells.lead}", cells.rest))),
    )


def _over_hosts_text(run: RunComparison, arm: str) -> str:
    """State the result over all hosts for an arm, by workload; empty for one host."""
    estimates = [estimate for estimate in run.between_hosts.estimates if estimate.arm == arm]
    # show only the first of many, to keep the headlines on the first screen
    shown = estimates if len(estimates) <= _MOST_STATEMENTS else estimates[:1]
    sentences = [_statement(estimate, run) for estimate in shown]
    if len(estimates) > len(shown):
        sentences.append(f"{len(estimates) - len(shown)} more statements are in the overview.")
    return visible(" ".join(sentences))


def _statement(estimate: HostsEstimate, run: RunComparison) -> str:
    """Return "Over 20 hosts, cnn in docker is 4.1 % slower (3.0 to 5.2 %); …"."""
    match estimate.outcome:
        case "equivalent":
            claim = f"equivalent within ±{margin_percent(run.settings.margin)}"
        case "inconclusive":
            claim = "inconclusive"
        case "slower":
            claim = slower_text(estimate.log_ratio)
        case "faster":
            claim = f"faster: {unsigned_percent(estimate.log_ratio)} less time"
    is_moved = estimate.outcome in {"slower", "faster"}
    ends = (estimate.low, estimate.high)
    mean = f"{signed_percent(estimate.log_ratio)}, {signed_interval(*ends)}"
    figures = unsigned_interval(*ends) if is_moved else mean
    is_of_two = estimate.outcome == "inconclusive" and estimate.hosts == 2
    few = ", as two hosts say little about others" if is_of_two else ""
    odd = f"; far from the others: {names}" if (names := odd_names(estimate)) else ""
    spread = ""
    if estimate.tau >= _LEAST_SPREAD:
        spread = f"; hosts differ by ±{unsigned_percent(estimate.tau)}"
    subject = f"{hosts_work(estimate)} in {estimate.arm}"
    of_group = f" of {estimate.group}" if estimate.group else ""
    return (
        f"Over {estimate.hosts} hosts{of_group}, {subject} is {claim} ({figures}){few}"
        f"{spread}{odd}."
    )


def odd_names(estimate: HostsEstimate) -> str:
    """Name the hosts far from the others."""
    return visible(host_names(list(estimate.odd_hosts)))


def _over_cells(run: RunComparison, arm: str, judged: tuple[Verdict, ...]) -> Headline:
    outcome = _leading(judged)
    leading = tuple(one for one in judged if one.outcome == outcome)
    if len(leading) == len(judged):
        lead, rest = _agreeing(run, arm, judged), ""
    else:
        moved = (outcome, *(other for other in MOVED if other != outcome))
        said = moved if outcome in MOVED else (outcome,)
        lead, rest = _differing(run, arm, judged, said=said), _others(run, judged, said=said)
    count = f" in {len(leading)} of {len(judged)}" if len(judged) > 1 else ""
    compared = [comparison for comparison in run.compared if comparison.arm == arm]
    causes = line_causes(run, compared)
    # envcompare replaced these settings, and therefore did not measure them
    overwritten = (
        difference.evidence
        for difference in run.differences
        if difference.arm == arm and is_overwritten(difference)
    )
    return Headline(
        arm=visible(arm),
        outcome=outcome,
        badge=f"{WORDS[outcome]}{count}",
        lead=visible(lead),
        rest=visible(rest),
        caution=" ".join(
            filter(
                None,
                (
                    _outside(run, arm, lead),
                    _caution(run, arm, judged),
                    caution_of(run, arm, {comparison.host for comparison in compared}),
                    visible(" ".join(dict.fromkeys(overwritten))),
                ),
            )
        ),
        candidates="" if causes else candidates_text(run, compared),
        causes=causes,
        verdicts=judged,
    )


def _leading(judged: tuple[Verdict, ...]) -> Outcome:
    """Return the leading outcome: the one that moved most, else the most frequent."""
    moved = [judgment for judgment in judged if judgment.outcome in MOVED]
    if moved:
        return max(moved, key=lambda judgment: abs(judgment.log_ratio or 0.0)).outcome
    measured = [
        judgment for judgment in judged if judgment.outcome in {"inconclusive", "equivalent"}
    ]
    outcomes = [judgment.outcome for judgment in measured or judged]
    return max(_STILL, key=lambda outcome: (outcomes.count(outcome), -_STILL.index(outcome)))


def _agreeing(run: RunComparison, arm: str, judged: tuple[Verdict, ...]) -> str:
    """Return the lead for cells of one outcome: a cell with its interval, or a mean."""
    first, where = judged[0], _everywhere(judged)
    name = run.reference_in(first.cell_id)
    alone = len(judged) == 1
    by = f"{first.amount} " if alone and first.amount else ""
    slower = f"slower than {name}"
    if by and first.log_ratio is not None:
        slower = slower_text(first.log_ratio, name, as_factor=first.amount.startswith("×"))
    match first.outcome:
        case "slower":
            return f"{arm} is {slower} {where}{_figures(judged)}."
        case "faster":
            return f"{arm} takes {by}less time than {name} {where}{_figures(judged)}."
        case "equivalent":
            within = f"within ±{margin_percent(run.settings.margin)}"
            real = f"; {first.remark}" if alone and first.remark else ""
            return f"{arm} is equivalent to {name} {within} {where}{_figures(judged)}{real}."
        case "inconclusive" if alone:
            claim = f"{first.claim} {where}{_figures(judged)}"
            return f"{arm} against {name} is {claim}; {first.remark}."
        case "inconclusive":
            cells = (
                where if len(judged) > _MOST_NAMED else f"in both {_cells(judged, 'inconclusive')}"
            )
            return f"{arm} against {name} is inconclusive {cells}."
        case _:
            verb = "" if first.outcome == "failed" else "was "
            claim = f"{first.claim} {where} {first.qualifier}".rstrip()
            failed_too = {row.cell for row in run.course.failures if row.arm == name}
            both = f"{name} and " * ({judgment.cell_id for judgment in judged} <= failed_too)
            return f"{both}{arm} {verb}{claim}: {sentence(first.remark)}"


def _figures(judged: tuple[Verdict, ...]) -> str:
    """Return the figures of a lead: the interval of one cell, or mean and range of several."""
    first = judged[0]
    if len(judged) == 1:
        figures = first.ends or first.figures
        return f" ({figures})" if figures else ""
    mean = mean_log_ratio(judged)
    if mean is None:
        return ""
    ordered = sorted(
        judged, key=lambda judgment: judgment.log_ratio or 0.0, reverse=first.outcome == "faster"
    )
    least, most = (
        (judgment.amount or judgment.number, judgment.cell)
        for judgment in (ordered[0], ordered[-1])
    )
    if least[0] == most[0]:
        return f": {least[0]} in each"
    average = unsigned_percent(mean) if first.amount else signed_percent(mean)
    return f": {average} on average, {least[0]} in {least[1]} to {most[0]} in {most[1]}"


def mean_log_ratio(judged: tuple[Verdict, ...]) -> float | None:
    """Return the mean of the cells' log ratios; it has no interval."""
    ratios = [one.log_ratio for one in judged if one.log_ratio is not None]
    return sum(ratios) / len(ratios) if ratios else None


def _everywhere(judged: tuple[Verdict, ...]) -> str:
    if len(judged) > 2:
        return f"in all {len(judged)} cells"
    both = "both " if len(judged) == 2 else ""
    return f"in {both}{listed([one.cell for one in judged])}"


def _differing(
    run: RunComparison, arm: str, judged: tuple[Verdict, ...], *, said: tuple[Outcome, ...]
) -> str:
    """Return the lead for cells with several outcomes: each outcome's cells, largest first.

    No mean is given, since it would depend on the choice of cells.
    """
    name = run.reference_of(arm)
    phrases = {
        "slower": f"is slower than {name} in",
        "faster": f"takes less time than {name} in",
        "equivalent": f"is equivalent to {name} within ±{margin_percent(run.settings.margin)} in",
        "inconclusive": f"against {name} is inconclusive in",
        "failed": "failed in",
        "not-run": "was not run in",
    }
    parts = [
        f"{phrases[outcome]} {_cells(judged, outcome)}"
        for outcome in said
        if any(one.outcome == outcome for one in judged)
    ]
    return f"{arm} {'; it '.join(parts)}."


def _others(run: RunComparison, judged: tuple[Verdict, ...], *, said: tuple[Outcome, ...]) -> str:
    """Name the cells missing from the lead."""
    words = {outcome: WORDS[outcome] for outcome in _STILL}
    words["equivalent"] = f"equivalent within ±{margin_percent(run.settings.margin)}"
    parts = [
        f"{words[outcome]} in {_cells(judged, outcome)}"
        for outcome in _STILL
        if outcome not in said and any(one.outcome == outcome for one in judged)
    ]
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _cells(judged: tuple[Verdict, ...], outcome: Outcome) -> str:
    """Name the cells of an outcome with their figures; if many, their number and the largest."""
    chosen = [judgment for judgment in judged if judgment.outcome == outcome]
    chosen.sort(key=lambda judgment: -abs(judgment.log_ratio or 0.0))
    if len(chosen) <= _MOST_NAMED:
        return listed([f"{judgment.cell}{_in_brackets(judgment)}" for judgment in chosen])
    count = f"{len(chosen)} of {len(judged)} cells"
    if outcome in MOVED:
        return f"{count}, most in {chosen[0].cell}{_in_brackets(chosen[0])}"
    return count


def _in_brackets(judgment: Verdict) -> str:
    match judgment.outcome:
        case "failed":
            return f" {judgment.qualifier}".rstrip()
        case "equivalent":
            text = ", ".join(part for part in (judgment.figures, judgment.remark) if part)
        case "not-run":
            return ""
        case "inconclusive":
            text = ", ".join(part for part in (judgment.leaning, judgment.figures) if part)
        case _:
            text = judgment.figures
    return f" ({text})" if text else ""


def _outside(run: RunComparison, arm: str, lead: str) -> str:
    """State that work outside its turns makes an arm look faster; empty if the lead says it."""
    texts = {
        comparison.cell: reasons_text([comparison.reason])
        for comparison in run.compared
        if comparison.arm == arm
        and comparison.reason is not None
        and comparison.reason.kind == "outside-turns"
    }
    text = next(iter(texts.values()), "")
    if not text or text in lead:
        return ""
    where = "" if len(texts) == 1 else f" ({counted(len(texts), 'cell')})"
    return visible(f"Steps may look shorter than they are{where}: {text}.")


def _caution(run: RunComparison, arm: str, judged: tuple[Verdict, ...]) -> str:
    confounded = [one for one in judged if one.is_confounded]
    if not confounded:
        return ""
    differences = tuple(difference for difference in run.differences if difference.arm == arm)
    outcomes = frozenset(one.outcome for one in confounded)
    is_split = arm in split_arms(run)
    return confounder_sentence(differences, outcomes=outcomes, is_split=is_split) or (
        f"More than the environment differs in {counted(len(confounded), 'comparison')}."
    )


def _without_comparison(run: RunComparison, arm: str) -> Headline:
    if any(summary.arm == arm and not summary.is_timed for summary in run.arms):
        return _untimed(run, arm)
    reason = next((summary.reason for summary in run.arms if summary.arm == arm), "")
    why = one_line(reason or "no comparison was reached", most=LONGEST_REASON)
    return Headline(
        arm=visible(arm),
        outcome="not-run",
        badge="not run",
        lead=visible(f"{arm} was not run: {why}."),
    )


def _untimed(run: RunComparison, arm: str) -> Headline:
    """Summarise the profiles of an arm that was only imported and has no verdict."""
    kernel_texts = (
        (
            profile.cell,
            kernel_sentence(diff, reference=profile.reference) + alone_text(profile, arm),
        )
        for profile in run.profiles
        for diff in profile.kernel_diffs
        if diff.arm == arm
    )
    sentences = of_cells(run, kernel_texts, among=len(run.profiles))
    reference = run.reference_of(arm)
    idle = [one for one in (arm, reference) if one in _arms_without_gpu_work(run)]
    if idle:
        one_holds = "profile {} holds" if len(idle) == 1 else "profiles {} hold"
        held = one_holds.format(f"of {listed(idle)}")
        sentences = (f"The {held} no GPU data: no kernel, copy or memset.", *sentences)
    elif not sentences:
        none = f"{arm} and {reference} have no profiles whose kernels can be compared."
        sentences = hidden_sentences(run, arm) or (none,)
    # a run without any timing says so once
    others = [summary.arm for summary in run.arms if summary.arm not in run.all_references]
    not_timed = _NOT_TIMED if is_timed(run) or arm == others[0] else ""
    differences = tuple(difference for difference in run.differences if difference.arm == arm)
    return Headline(
        arm=visible(arm),
        outcome="not-run",
        badge="not timed",
        lead=sentences[0],
        rest=" ".join((*sentences[1:], not_timed)).rstrip(),
        caution=confounder_sentence(differences, outcomes=frozenset({"not-run"})),
    )


def _arms_without_gpu_work(run: RunComparison) -> frozenset[str]:
    """Return the arms whose profiles record GPU work but contain none in any cell."""
    seen: dict[str, set[bool]] = {}
    for cell in run.profiles:
        for arm in cell.arms:
            states = {found.has_gpu_work for found in arm.passes if found.state == "ok"} - {None}
            seen.setdefault(arm.arm, set()).update(bool(work) for work in states)
    return frozenset(arm for arm, works in seen.items() if works == {False})


def split_arms(run: RunComparison) -> frozenset[str]:
    """Return the arms that belong to a 2 × 2 in every cell with a measurement."""
    cells = {comparison.cell for comparison in run.comparisons if comparison.primary is not None}
    corners: dict[str, set[str]] = {}
    for split in run.views.decompositions:
        for arm in (split.arm, split.host_arm, split.base, split.base_image):
            corners.setdefault(arm, set()).add(split.cell)
    return frozenset(arm for arm, judged in corners.items() if judged == cells)
