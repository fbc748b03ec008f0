"""Charts of times: the parts of a start-up and of a step, and the distribution of step times.

Each part of a stacked bar has a letter that leads to the key, so that colour is not the only hint.
Steps of one process are not independent: their distribution describes, but decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from string import ascii_uppercase
from typing import Any, Final

import altair as alt

from envcompare.analysis.model import (
    STEP_PROBABILITIES,
    CellSummary,
    RunComparison,
    StartupPart,
    StartupSummary,
    StepTimes,
)
from envcompare.analysis.model.profiling import CellProfiles, Ledger
from envcompare.analysis.model.profiling import Part as PartName
from envcompare.report.charts import (
    Chart,
    Declared,
    Key,
    Palette,
    Style,
    chart_name,
    down,
    label,
    layered,
    marks,
    padding,
    row_texts,
    run_styles,
    shown,
    text_width,
    with_key,
)
from envcompare.report.wording import (
    NS,
    PLURALS,
    TimeScale,
    cell_labels,
    compared_arms,
    duration,
    piece_of,
    time_text,
)
from envcompare.report.wording.profilewords import PART_NAMES
from envcompare.text import counted

_WIDTH: Final = 480
_LANE: Final = 32.0
_THICK: Final = 22.0
_AXIS: Final = 44.0  # px for the axis below
_PALE: Final = 0.3
_ROOM: Final = 1.15  # of the longest bar, with room for its total
_LONGEST_NAME: Final = 34
_MOST_PARTS: Final = 4  # parts named in the description
_PART_COLOURS: Final[dict[PartName, tuple[int, bool]]] = {  # index in the palette, and whether pale
    "gemm": (0, False),
    "attention": (0, True),
    "element-wise": (2, False),
    "reduction": (2, True),
    "normalisation": (4, False),
    "rnn": (1, False),
    "other-kernels": (4, True),
    "communication": (5, False),
    "memcpy": (3, False),
    "memset": (3, True),
    "idle": (6, False),
    "cpu": (0, False),
    "user": (0, False),
    "system": (1, False),
    "wait": (3, False),
    "throttled": (5, False),
    "stolen": (6, True),
    "rest": (6, True),
}
Parts = dict[str, StartupPart]
PHASES: Final[dict[str, str]] = {
    "engine": "engine",
    "import": "imports",
    "data": "data",
    "build": "model",
    "first_step": "first step",
    "train": "training",
    "exit": "exit",
}
# indices in the palette, the same as in the rows of the table
_PHASE_COLOURS: Final = dict(zip(PHASES, (1, 0, 2, 3, 4, 6, 5), strict=True))
KEY: Final = (
    "Height: how often, smoothed; bar: the middle half; thick mark: the median; thin line: 5 to "
    "95 %; small tick: the 99 % quantile."
)
_STEP_LANE: Final = 56.0  # px of one arm, from the top: density, bar
_FLOOR: Final = 38.0
_PEAK: Final = 33.0
_BAR: Final = 45.0
_BEYOND: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One kind of part, in the same position in every bar; a pale one has a coloured edge."""

    name: str
    place: int  # index of its colour in the palette
    is_pale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    size: float
    text: str
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """One row, with a segment for each part."""

    name: str
    segments: tuple[_Segment, ...]
    total: str

    @property
    def size(self) -> float:
        """Return the length of the bar."""
        return sum(segment.size for segment in self.segments)


def _across(field: str, ends: tuple[float, float], *, title: str) -> alt.X:
    scale = alt.Scale(domain=list(ends), nice=False, zero=False)
    return alt.X(f"{field}:Q", scale=scale, title=title, axis=alt.Axis(tickCount=6))


def _stacked(
    palette: Palette, *, bars: Sequence[_Bar], parts: Sequence[_Part], title: str
) -> Declared:
    """Declare the bars below each other on one axis from 0; at least one must be positive."""
    height, end = _LANE * len(bars), _ROOM * max(bar.size for bar in bars)
    boxes = [
        row
        for place, bar in enumerate(bars)
        for row in _rows(bar, parts, top=_LANE * place, scale=_WIDTH / end, palette=palette)
    ]
    ends = [
        {"x": bar.size, "y": _LANE * (place + 0.5), "name": bar.name, "total": bar.total}
        for place, bar in enumerate(bars)
    ]
    x, y = _across("x", (0.0, end), title=title), partial(down, height=height)
    middle, inked = {"baseline": "middle"}, [row for row in boxes if row["text"]]
    at_end = {"align": "left", "dx": 6, "color": palette.mute, **middle}
    area = {"x": x, "x2": "x2", "y": y("y"), "y2": "y2"}
    look = {"fill": "colour", "fillOpacity": "opacity", "stroke": "edge", "description": "tip"}
    inside = {"x": "middle_x", "y": y("middle"), "text": "text", "color": "ink"}
    layers = (
        marks(boxes, "rect", {"strokeWidth": 1}, **area, **look),
        marks(inked, "text", {"fontWeight": "bold", **middle}, **inside),
        marks(ends, "text", at_end, x=x, y=y("y"), text="total"),
        row_texts(ends, y("y"), palette.text, text="name"),
    )
    drawing = layered(layers, width=_WIDTH, height=height)
    keys = [
        Key(
            text=f"{_letter(number)} {part.name}",
            colour=palette.of(part.place),
            opacity=_PALE if part.is_pale else 1.0,
        )
        for number, part in enumerate(parts)
    ]
    keyed = with_key(drawing, keys, width=_WIDTH, below=_AXIS)
    return {**keyed, "padding": padding(bar.name for bar in bars)}


def _rows(
    bar: _Bar, parts: Sequence[_Part], *, top: float, scale: float, palette: Palette
) -> list[dict[str, Any]]:
    """Return the boxes of one bar, each with as much text as fits."""
    ends = list(accumulate((one.size for one in bar.segments), initial=0.0))
    boxes = []
    for number, (part, segment) in enumerate(zip(parts, bar.segments, strict=True)):
        if not segment.size:
            continue
        texts = (f"{_letter(number)} {segment.text}", _letter(number))
        room = segment.size * scale - 4
        boxes.append(
            {
                "x": ends[number],
                "x2": ends[number + 1],
                "middle_x": (ends[number] + ends[number + 1]) / 2,
                "y": top + (_LANE - _THICK) / 2,
                "y2": top + (_LANE + _THICK) / 2,
                "middle": top + _LANE / 2,
                "colour": palette.of(part.place),
                "opacity": _PALE if part.is_pale else 1.0,
                "edge": palette.of(part.place) if part.is_pale else palette.back,
                "ink": palette.text if part.is_pale else palette.back,
                "text": next((text for text in texts if text_width(text) <= room), ""),
                "tip": segment.tip,
            }
        )
    return boxes


def _letter(number: int) -> str:
    return ascii_uppercase[number % len(ascii_uppercase)]


def time_chart(run: RunComparison, profiles: CellProfiles, ledger: Ledger) -> Chart | None:
    """Return both times as stacked bars, None if there is no time to divide."""
    has_parts = any(max(part.reference_ns, part.arm_ns) > 0 for part in ledger.parts)
    if max(ledger.reference_ns, ledger.arm_ns) <= 0 or not has_parts:
        return None
    where = shown(cell_labels(run).get(profiles.cell, profiles.cell))
    arms = f"{shown(ledger.arm)} and {shown(profiles.reference)}"
    scale = TimeScale.of(max(ledger.reference_ns, ledger.arm_ns))
    parts = tuple(
        _Part(
            name=label(PART_NAMES[part.part], most=_LONGEST_NAME),
            place=_PART_COLOURS[part.part][0],
            is_pale=_PART_COLOURS[part.part][1],
        )
        for part in ledger.parts
    )
    bars = (
        _ledger_bar(ledger, profiles.reference, scale, is_arm=False),
        _ledger_bar(ledger, ledger.arm, scale, is_arm=True),
    )
    moved = sorted(ledger.parts, key=lambda part: -abs(part.change_ns))[:_MOST_PARTS]
    most_changed = [
        f"{PART_NAMES[part.part]} {scale.signed(part.change_ns)} {scale.unit}"
        for part in moved
        if part.change_ns
    ]
    changes = f" Most changed: {', '.join(most_changed)}." if most_changed else ""
    return Chart(
        name=chart_name("time", profiles.cell, ledger.arm),
        title=f"Time {_per(ledger)} by part, {arms}, {where}",
        description=(
            f"{shown(profiles.reference)} {scale.number(ledger.reference_ns)} {scale.unit}, "
            f"{shown(ledger.arm)} {scale.number(ledger.arm_ns)} {scale.unit} "
            f"{_per(ledger)}.{changes}"
        ),
        declare=partial(
            _stacked, bars=bars, parts=parts, title=f"time {_per(ledger)} ({scale.unit})"
        ),
    )


def _ledger_bar(ledger: Ledger, name: str, scale: TimeScale, *, is_arm: bool) -> _Bar:
    segments = []
    for part in ledger.parts:
        time = part.arm_ns if is_arm else part.reference_ns
        text = scale.number(time)  # as in the table
        tip = f"{PART_NAMES[part.part]}, {shown(name)}: {text} {scale.unit}"
        segments.append(_Segment(size=max(0, time) / scale.size_ns, text=text, tip=tip))
    whole = scale.number(ledger.arm_ns if is_arm else ledger.reference_ns)
    return _Bar(name=label(name), segments=tuple(segments), total=whole)


def _per(ledger: Ledger) -> str:
    return f"of a {ledger.piece}" if ledger.is_per_step else "of the whole profile"


def startup_groups(run: RunComparison) -> dict[tuple[str, bool], list[StartupSummary]]:
    """Return the start-ups of each cell in order, those with a cold page cache apart."""
    groups: dict[tuple[str, bool], list[StartupSummary]] = {}
    for startup in run.views.startup:
        groups.setdefault((startup.cell, startup.page_cache == "cold"), []).append(startup)
    return groups


def startup_charts(run: RunComparison) -> tuple[Chart, ...]:
    """Return a chart for each cell and page cache with a measured start-up."""
    charts = (_startup_chart(run, group) for group in startup_groups(run).values())
    return tuple(chart for chart in charts if chart is not None)


def _startup_chart(run: RunComparison, summaries: list[StartupSummary]) -> Chart | None:
    tables: dict[str, Parts] = {
        summary.arm: {part.phase: part for part in summary.parts} for summary in summaries
    }
    order = dict.fromkeys((*run.all_references, *compared_arms(run), *tables))
    arms = {arm: tables[arm] for arm in order if arm in tables}
    phases = [name for name in PHASES if any(name in table for table in arms.values())]
    longest = max((total_s(table) for table in arms.values()), default=0.0)
    if longest <= 0:
        return None
    scale = TimeScale.of(NS * longest)
    bars = tuple(_startup_bar(arm, table, phases, scale) for arm, table in arms.items())
    parts = tuple(_Part(name=PHASES[name], place=_PHASE_COLOURS[name]) for name in phases)
    first = summaries[0]
    where = shown(cell_labels(run).get(first.cell, first.cell))
    cold = ", cold page cache" if first.page_cache == "cold" else ""
    return Chart(
        name=chart_name("startup", first.cell, first.page_cache),
        title=f"Start-up by phase, {where}{cold}",
        description=_startup_description(arms),
        declare=partial(
            _stacked, bars=bars, parts=parts, title=f"start-up, median of launches ({scale.unit})"
        ),
    )


def _startup_bar(arm: str, table: Parts, phases: list[str], scale: TimeScale) -> _Bar:
    segments = []
    for name in phases:
        seconds = max(0.0, table[name].median_s) if name in table else 0.0
        tip = f"{PHASES[name]}, {shown(arm)}: {duration(seconds)}"
        size = NS * seconds / scale.size_ns
        segments.append(_Segment(size=size, text=scale.digits(seconds), tip=tip))
    return _Bar(name=label(arm), segments=tuple(segments), total=duration(total_s(table)))


def _startup_description(arms: dict[str, Parts]) -> str:
    totals = []
    for arm, table in arms.items():
        parts = [part for name, part in table.items() if name in PHASES]
        longest = max(parts, key=lambda part: part.median_s, default=None)
        most = ""
        if longest:
            most = f" (longest: {PHASES[longest.phase]}, {duration(longest.median_s)})"
        totals.append(f"{shown(arm)} {duration(total_s(table))}{most}")
    return f"Medians of phases, added up: {'; '.join(totals)}."


def total_s(table: Parts) -> float:
    """Return the sum of the phases of a start-up, in seconds."""
    return sum(part.median_s for phase, part in table.items() if phase in PHASES)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    top: float
    times: StepTimes
    style: Style

    def quantile(self, probability: float) -> float:
        """Return a quantile in seconds."""
        return self.times.quantiles_s[STEP_PROBABILITIES.index(probability)]

    @property
    def beyond(self) -> int:
        """Return the number of steps beyond the axis."""
        return self.times.steps - sum(self.times.counts)


def step_chart(run: RunComparison, cell: CellSummary, arms: tuple[str, ...]) -> Chart | None:
    """Return the step times of these arms as a chart, None if none has a histogram."""
    if len(cell.step_edges_s) < 2:
        return None
    arm_styles, bins = run_styles(run), len(cell.step_edges_s) - 1
    by_arm = {times.arm: times for times in cell.step_times}
    drawable = [
        times
        for times in (by_arm[arm] for arm in arms if arm in by_arm)
        if len(times.counts) == bins and len(times.quantiles_s) == len(STEP_PROBABILITIES)
    ]
    lanes = tuple(
        _Lane(top=_STEP_LANE * place, times=times, style=arm_styles[times.arm])
        for place, times in enumerate(drawable)
    )
    if not lanes:
        return None
    piece = piece_of(cell)
    beyond = sum(lane.beyond for lane in lanes)
    lie = "lies" if beyond == 1 else "lie"
    off = f" {counted(beyond, piece, PLURALS[piece])} {lie} beyond the axis." if beyond else ""
    sentences = "; ".join(_sentence(lane) for lane in lanes)
    where = shown(cell_labels(run).get(cell.id, cell.id))
    return Chart(
        name=chart_name("steps", cell.id, *arms),
        title=f"Times of single {PLURALS[piece]}, {where}",
        description=f"{sentences}.{off} {KEY}",
        declare=partial(_declared, lanes, cell.step_edges_s, piece),
    )


def _declared(
    lanes: tuple[_Lane, ...], edges: tuple[float, ...], piece: str, palette: Palette
) -> Declared:
    scale, height = TimeScale.of(edges[-1] * NS), _STEP_LANE * len(lanes)
    unit_s = scale.size_ns / NS
    ends, title = (edges[0] / unit_s, edges[-1] / unit_s), f"time of a {piece} ({scale.unit})"
    x, y = partial(_across, ends=ends, title=title), partial(down, height=height)
    records = [_row(lane, piece, unit_s, palette) for lane in lanes]
    outlines = [
        {**row, "x": at / unit_s, "y": lane.top + _FLOOR - _PEAK * share}
        for lane, row in zip(lanes, records, strict=True)
        for at, share in _outline(lane.times.counts, edges)
    ]
    density = {"filled": True, "interpolate": "monotone", "fillOpacity": 0.3}
    bar, thin = {"strokeWidth": 7}, {"strokeWidth": 1.2}
    thick = {"strokeWidth": 3, "color": palette.text}
    said = {"color": "colour", "description": "tip"}
    layers = [
        marks(outlines, "line", density, x=x("x"), y=y("y"), color="colour", detail="lane"),
        marks(records, "rule", thin, x=x("p5"), x2="p95", y=y("bar"), color="colour"),
        marks(records, "rule", thin, x=x("p99"), y=y("far"), y2="far_foot", color="colour"),
        marks(records, "rule", bar, x=x("p25"), x2="p75", y=y("bar"), **said),
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
    """Return middles of bins in seconds and smoothed heights up to 1.

    Neighbours have half the weight, so single steps do not appear as needles.
    """
    padded = (0, *counts, 0)
    smooth = [
        before + 2 * count + after
        for before, count, after in zip(padded, counts, padded[2:], strict=False)
    ]
    most = max(*smooth, 1)
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    heights = [value / most for value in smooth]
    # from the baseline and back, so that the line encloses its area
    return [(edges[0], 0.0), *zip(middles, heights, strict=True), (edges[-1], 0.0)]


def _sentence(lane: _Lane) -> str:
    low, first, middle, last, high, far = (
        time_text(NS * lane.quantile(one)) for one in (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
    )
    return (
        f"{shown(lane.times.arm)}: median {middle}, middle half {first} to {last}, "
        f"5 to 95 % {low} to {high}, 99 % below {far}"
    )
