"""What the intervals of a run are made of, and how sure they are."""

from __future__ import annotations

from envcompare.analysis.model.comparison import Estimate, RunComparison
from envcompare.report.format.numbers import margin_percent
from envcompare.text import counted


def replication_sentence(run: RunComparison) -> str:
    """Say what the intervals are made of: generations in restarts, never single steps."""
    primaries = [one.primary for one in run.compared if one.primary is not None]
    if not primaries:
        return "There is no interval: no comparison was measured."
    if not any(map(_has_interval, primaries)):
        return "There is no interval: too little was measured for one."
    processes = [one.rounds for one in primaries if one.unit == "process"]
    if len(processes) == len(primaries):
        return f"Intervals come from {_range(processes, 'round')} of whole processes a cell."
    primaries = [one for one in primaries if one.unit != "process"]
    generations = _range([one.generations for one in primaries], "generation")
    restarts = _range([one.restarts for one in primaries], "restart")
    beside = f"; of commands, from {_range(processes, 'round')} of processes" if processes else ""
    coarse = sum(one.unit == "restart" for one in primaries)
    where = f" in {coarse} of {len(primaries)} comparisons" * (coarse < len(primaries))
    units = f"; the units are means of restarts{where}" * bool(coarse)
    return (
        f"Intervals come from {generations} a cell (fresh starts of the workers, in {restarts}), "
        f"not from the steps inside them{units}{beside}."
    )


def level_sentence(run: RunComparison) -> str:
    """Say how sure the intervals are, and what they were widened for."""
    primaries = [one.primary for one in run.compared if one.primary is not None]
    if not any(one.is_widened and _has_interval(one) for one in primaries):
        return ""
    if run.screen:
        return _screen_sentence(run)
    text = "The intervals hold at 95 %, widened for looking at them while measuring"
    if run.planned_comparisons > 1:
        levels = {margin_percent(one.level) for one in primaries if one.is_widened}
        at = f" (each at {levels.pop()} by itself)" if len(levels) == 1 else ""
        text += f" and for all {run.planned_comparisons} planned comparisons together{at}"
    return f"{text}."


def _screen_sentence(run: RunComparison) -> str:
    """Say what screening promises: less than the default, of more comparisons."""
    return (
        f"This run screened {counted(run.planned_comparisons, 'comparison')} (--screen, Benjamini "
        "and Hochberg): of those called slower or faster about 5 % are false at most, and about "
        "5 % of their intervals miss the truth. The other intervals hold at 95 % each, widened for "
        "looking at them while measuring and not for their number."
    )


def _has_interval(one: Estimate) -> bool:
    return one.low is not None and one.high is not None


def _range(counts: list[int], noun: str) -> str:
    low, high = min(counts), max(counts)
    return counted(high, noun) if low == high else f"{low} to {counted(high, noun)}"
