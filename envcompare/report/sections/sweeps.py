"""The section of sweeps: for each a chart of ratios, and the table of its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from envcompare.analysis.model.comparison import RunComparison
from envcompare.report.charts.allowance import Allowance
from envcompare.report.charts.sweeps import (
    estimate_of,
    missing_text,
    sweep_axis,
    sweep_chart,
    sweep_title,
)
from envcompare.report.charts.swept import Sweep, SweepPoint, sweeps
from envcompare.report.format.numbers import NOT_MEASURED, signed_interval, signed_percent
from envcompare.report.format.units import number_text
from envcompare.report.wording.verdicts import SYMBOLS, WORDS
from envcompare.text import counted

MOST_SWEEPS: Final = 12  # of a page; of more, those that moved most


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCell:
    """One arm at one value: its change and interval, or why there is none."""

    number: str
    interval: str = ""
    said: str  # the outcome, or the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """One sweep: its chart, and a row for each value of its parameter."""

    title: str
    chart: Markup
    parameter: str
    arms: tuple[str, ...]
    rows: tuple[tuple[str, tuple[SweepCell, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepsView:
    """The sweeps of a page, and what became of the others."""

    shown: tuple[SweepView, ...]
    rest: str


def sweeps_view(run: RunComparison, charts: Allowance) -> SweepsView | None:
    """Return the section, None where no parameter was swept."""
    found = sweeps(run)
    if not found:
        return None
    on, chosen = sweep_axis(run, found), _chosen(found)
    views = (_view(one, charts.draw(sweep_chart(run, one, on=on))) for one in chosen)
    return SweepsView(shown=tuple(views), rest=_rest(len(found) - len(chosen)))


def _chosen(found: tuple[Sweep, ...]) -> list[Sweep]:
    """Return those that moved most, in the order of the run."""
    ranked = sorted(range(len(found)), key=lambda place: (-_reach(found[place]), place))
    return [found[place] for place in sorted(ranked[:MOST_SWEEPS])]


def _reach(sweep: Sweep) -> float:
    made = (estimate_of(point) for point in sweep.points)
    return max((abs(one.log_ratio) for one in made if one is not None), default=0.0)


def _rest(count: int) -> str:
    if not count:
        return ""
    return (
        f"{counted(count, 'more sweep')} moved less. All comparisons holds the numbers, and "
        "--figures draws every sweep."
    )


def _view(sweep: Sweep, chart: Markup) -> SweepView:
    points = {(one.value, one.arm): one for one in sweep.points}
    return SweepView(
        title=sweep_title(sweep),
        chart=chart,
        parameter=sweep.parameter,
        arms=sweep.arms,
        rows=tuple(
            (number_text(value), tuple(_cell(points[value, arm]) for arm in sweep.arms))
            for value in sweep.values
        ),
    )


def _cell(point: SweepPoint) -> SweepCell:
    made, one = estimate_of(point), point.comparison
    if made is None or one is None:
        return SweepCell(number=NOT_MEASURED, said=missing_text(point))
    word = f"{SYMBOLS[one.outcome]} {WORDS[one.outcome]}"
    return SweepCell(
        number=signed_percent(made.log_ratio),
        interval=signed_interval(made.low, made.high),
        said=word,
    )
