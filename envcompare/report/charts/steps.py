"""How the steps of each arm are spread: densities above each other, with their quantiles.

Steps of one process are no independent measurements: the chart describes, and decides nothing.
"""

from __future__ import annotations

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
    Palette,
    Style,
    across,
    chart_name,
    down,
    label,
    layered,
    marks,
    padding,
    row_texts,
    run_styles,
    shown,
)
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
    ends, title = (edges[0] / unit_s, edges[-1] / unit_s), f"time of a {piece} ({scale.unit})"
    x, y = partial(across, ends=ends, title=title), partial(down, height=height)
    records = [_row(lane, piece, unit_s, palette) for lane in lanes]
    outlines = [
        {**row, "x": at / unit_s, "y": lane.top + _FLOOR - _PEAK * share}
        for lane, row in zip(lanes, records, strict=True)
        for at, share in _outline(lane.times.counts, edges)
    ]
    density = {"filled": True, "interpolate": "monotone", "fillOpacity": 0.3}
    bar, thin = {"strokeWidth": 7}, {"strokeWidth": 1.2}
    thick = {"strokeWidth": 3, "color": palette.text}
    layers = [
        marks(outlines, "line", density, x=x("x"), y=y("y"), color="colour", detail="lane"),
        marks(records, "rule", thin, x=x("p5"), x2="p95", y=y("bar"), color="colour"),
        marks(records, "rule", thin, x=x("p99"), y=y("far"), y2="far_foot", color="colour"),
        marks(
            records,
            "rule",
            bar,
            x=x("p25"),
            x2="p75",
            y=y("bar"),
            color="colour",
            description="tip",
        ),
        marks(records, "rule", thick, x=x("p50"), y=y("median"), y2="median_foot"),
        row_texts(records, y("name_at"), palette.text, text="name"),
        row_texts(records, y("count_at"), palette.mute, text="count"),
    ]
    lost = [row for row in records if row["beyond"]]
    look = {"align": "right", "baseline": "middle", "color": palette.mute}
    at = {"x": alt.value(_WIDTH), "y": y("beyond_at")}
    if lost:
        layers.append(marks(lost, "text", look, **at, text="beyond"))
    room = padding(str(row[field]) for row in records for field in ("name", "count"))
    return layered(layers, width=_WIDTH, height=height, room=room)


def _row(lane: _Lane, piece: str, unit_s: float, palette: Palette) -> dict[str, object]:
    """Return where the marks and texts of an arm stand."""
    bar, floor = lane.top + _BAR, lane.top + _FLOOR
    shares = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
    return {
        **{f"p{100 * share:.0f}": lane.quantile(share) / unit_s for share in shares},
        "bar": bar,
        "far": bar - 3.5,
        "far_foot": bar + 3.5,
        "median": bar - 6.5,
        "median_foot": bar + 6.5,
        "colour": palette.of(lane.style.place),
        "lane": lane.style.place,
        "tip": _sentence(lane),
        "name": label(lane.times.arm),
        "name_at": floor - 10,
        "count": counted(lane.times.steps, piece, PLURALS[piece]),
        "count_at": floor + 5,
        "beyond": f"+{lane.beyond} beyond the axis" if lane.beyond else "",
        "beyond_at": lane.top + _BEYOND,
    }


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
