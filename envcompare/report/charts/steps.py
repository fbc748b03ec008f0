"""How the steps of each arm are spread: densities above each other, with their quantiles.

Steps of one process are no independent measurements: the chart describes, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

import altair as alt

from envcompare.analysis.model.comparison import (
    STEP_PROBABILITIES,
    CellSummary,
    RunComparison,
    StepTimes,
)
from envcompare.report.charts.drawing import Chart
from envcompare.report.charts.layers import (
    Declared,
    across,
    chart_name,
    down,
    label,
    layered,
    own_colour,
    padding,
    row_texts,
    rows,
    shown,
)
from envcompare.report.charts.palette import Palette, Style, run_styles
from envcompare.report.format.numbers import NS, TimeScale, time_text
from envcompare.report.wording.labels import PLURALS, cell_labels, piece_of
from envcompare.text import counted

KEY: Final = (
    "Height: how often, evened out over three neighbouring bins (1 : 2 : 1), each environment to "
    "its own highest; bar: the middle half; thick mark: the median; thin line: 5 to 95 %; small "
    "tick: the 99 % quantile."
)
_WIDTH: Final = 480
_LANE: Final = 56.0  # px of one arm, from the top: density, bar
_FLOOR: Final = 38.0
_PEAK: Final = 33.0
_BAR: Final = 45.0
_BEYOND: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """One arm in its place."""

    top: float
    times: StepTimes
    style: Style

    def quantile(self, probability: float) -> float:
        """Return a quantile in seconds."""
        return self.times.quantiles_s[STEP_PROBABILITIES.index(probability)]

    @property
    def beyond(self) -> int:
        """Return how many steps lie off the axis."""
        return self.times.steps - sum(self.times.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The axis of time, and how high all lanes are together."""

    x: Callable[[str], alt.X]
    height: float
    unit_s: float


def step_chart(run: RunComparison, cell: CellSummary, arms: tuple[str, ...]) -> Chart | None:
    """Return the spread of step times of these arms, None where none was counted on the edges."""
    if len(cell.step_edges_s) < 2:
        return None
    lanes = _lanes(run, cell, arms)
    if not lanes:
        return None
    piece = piece_of(cell)
    where = shown(cell_labels(run).get(cell.id, cell.id))
    return Chart(
        name=chart_name("steps", cell.id, *arms),
        title=f"Times of single {PLURALS[piece]}, {where}",
        description=f"{_description(lanes, piece)} {KEY}",
        declare=partial(_declared, lanes, cell.step_edges_s, piece),
    )


def _lanes(run: RunComparison, cell: CellSummary, arms: tuple[str, ...]) -> tuple[_Lane, ...]:
    styles, bins = run_styles(run), len(cell.step_edges_s) - 1
    by_arm = {one.arm: one for one in cell.step_times}
    drawable = [by_arm[arm] for arm in arms if arm in by_arm and _is_drawable(by_arm[arm], bins)]
    return tuple(
        _Lane(top=_LANE * place, times=times, style=styles[times.arm])
        for place, times in enumerate(drawable)
    )


def _is_drawable(times: StepTimes, bins: int) -> bool:
    return len(times.counts) == bins and len(times.quantiles_s) == len(STEP_PROBABILITIES)


def _declared(
    lanes: tuple[_Lane, ...], edges: tuple[float, ...], piece: str, palette: Palette
) -> Declared:
    scale, height = TimeScale.of(edges[-1] * NS), _LANE * len(lanes)
    unit_s = scale.size_ns / NS
    place = _Place(
        x=partial(
            across,
            ends=(edges[0] / unit_s, edges[-1] / unit_s),
            title=f"time of a {piece} ({scale.unit})",
        ),
        height=height,
        unit_s=unit_s,
    )
    drawings = [_densities(lanes, edges, place, palette), *_quantiles(lanes, place, palette)]
    layers = (*drawings, *_texts(lanes, piece, height, palette))
    room = padding(text for lane in lanes for text in (_name(lane), _count(lane, piece)))
    return layered(layers, width=_WIDTH, height=height, room=room)


def _densities(
    lanes: tuple[_Lane, ...], edges: tuple[float, ...], place: _Place, palette: Palette
) -> alt.Chart:
    records = [
        {
            "x": x / place.unit_s,
            "y": lane.top + _FLOOR - _PEAK * share,
            "colour": palette.of(lane.style.place),
            "lane": lane.style.place,
        }
        for lane in lanes
        for x, share in _outline(lane.times.counts, edges)
    ]
    made: alt.Chart = rows(records).mark_line(
        filled=True, interpolate="monotone", fillOpacity=0.3, aria=False
    )
    y = down("y", place.height)
    return made.encode(x=place.x("x"), y=y, color=own_colour(), detail=alt.Detail("lane:N"))


def _outline(counts: tuple[int, ...], edges: tuple[float, ...]) -> list[tuple[float, float]]:
    """Return middles of bins in seconds and heights up to 1, each evened out with its neighbours.

    Neighbours weigh half as much, so that single steps do not stand as needles.
    """
    padded = (0, *counts, 0)
    smooth = [
        before + 2 * count + after
        for before, count, after in zip(padded, counts, padded[2:], strict=False)
    ]
    most = max(*smooth, 1)
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    heights = [value / most for value in smooth]
    # from the floor and back to it, so that the line encloses its area
    return [(edges[0], 0.0), *zip(middles, heights, strict=True), (edges[-1], 0.0)]


def _quantiles(lanes: tuple[_Lane, ...], place: _Place, palette: Palette) -> list[alt.Chart]:
    """Return the line of 5 to 95 %, the bar of the middle half, the median and the far tick."""
    coloured = own_colour()
    y, to = down("y", place.height), place.x
    spans = rows(_span(lane, place, palette, ends=(0.05, 0.95)) for lane in lanes)
    halves = rows(_span(lane, place, palette, ends=(0.25, 0.75)) for lane in lanes)
    far = rows(_upright(lane, place, palette, at=0.99, reach=3.5) for lane in lanes)
    middle = rows(_upright(lane, place, palette, at=0.5, reach=6.5) for lane in lanes)
    return [
        spans.mark_rule(strokeWidth=1.2, aria=False).encode(
            x=to("x"), x2=alt.X2("x2:Q"), y=y, color=coloured
        ),
        far.mark_rule(strokeWidth=1.2, aria=False).encode(
            x=to("x"), y=y, y2=alt.Y2("y2:Q"), color=coloured
        ),
        halves.mark_rule(strokeWidth=7).encode(
            x=to("x"), x2=alt.X2("x2:Q"), y=y, color=coloured, description=alt.Description("tip:N")
        ),
        middle.mark_rule(strokeWidth=3, color=palette.text, aria=False).encode(
            x=to("x"), y=y, y2=alt.Y2("y2:Q")
        ),
    ]


def _span(
    lane: _Lane, place: _Place, palette: Palette, *, ends: tuple[float, float]
) -> dict[str, float | str]:
    low, high = (lane.quantile(end) / place.unit_s for end in ends)
    colour = palette.of(lane.style.place)
    return {"x": low, "x2": high, "y": lane.top + _BAR, "colour": colour, "tip": _sentence(lane)}


def _upright(
    lane: _Lane, place: _Place, palette: Palette, *, at: float, reach: float
) -> dict[str, float | str]:
    x, y = lane.quantile(at) / place.unit_s, lane.top + _BAR
    return {"x": x, "y": y - reach, "y2": y + reach, "colour": palette.of(lane.style.place)}


def _texts(
    lanes: tuple[_Lane, ...], piece: str, height: float, palette: Palette
) -> list[alt.Chart]:
    arms = [{"y": lane.top + _FLOOR - 10, "text": _name(lane)} for lane in lanes]
    counts = [{"y": lane.top + _FLOOR + 5, "text": _count(lane, piece)} for lane in lanes]
    beyond = [
        {"y": lane.top + _BEYOND, "text": f"+{lane.beyond} beyond the axis"}
        for lane in lanes
        if lane.beyond
    ]
    layers = [
        row_texts(arms, height, colour=palette.text),
        row_texts(counts, height, colour=palette.mute),
    ]
    if beyond:
        layers.append(row_texts(beyond, height, colour=palette.mute, x=_WIDTH))
    return layers


def _name(lane: _Lane) -> str:
    return label(lane.times.arm)


def _count(lane: _Lane, piece: str) -> str:
    return counted(lane.times.steps, piece, PLURALS[piece])


def _description(lanes: tuple[_Lane, ...], piece: str) -> str:
    beyond = sum(lane.beyond for lane in lanes)
    lie = "lies" if beyond == 1 else "lie"
    off = f" {counted(beyond, piece, PLURALS[piece])} {lie} beyond the axis." if beyond else ""
    return "; ".join(_sentence(lane) for lane in lanes) + f".{off}"


def _sentence(lane: _Lane) -> str:
    low, first, middle, last, high, far = (
        time_text(NS * lane.quantile(one)) for one in (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
    )
    return (
        f"{shown(lane.times.arm)}: median {middle}, middle half {first} to {last}, "
        f"5 to 95 % {low} to {high}, 99 % below {far}"
    )
