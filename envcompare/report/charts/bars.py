"""Stacked bars: the start-up of each arm by phase, and the time of a step by the ledger's parts.

A letter in each part leads to the key, so that no part is known by its colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from string import ascii_uppercase
from typing import Any, Final

from envcompare.analysis.model.comparison import (
    RunComparison,
    StartupPart,
    StartupSummary,
)
from envcompare.analysis.model.profiling import CellProfiles, Ledger
from envcompare.analysis.model.profiling import Part as PartName
from envcompare.report.charts.drawing import Chart
from envcompare.report.charts.layers import (
    Declared,
    Key,
    Palette,
    across,
    chart_name,
    down,
    label,
    layered,
    marks,
    padding,
    row_texts,
    shown,
    text_width,
    with_key,
)
from envcompare.report.format.numbers import NS, TimeScale, duration
from envcompare.report.wording.labels import cell_labels, compared_arms
from envcompare.report.wording.profilewords import PART_NAMES

_WIDTH: Final = 480
_LANE: Final = 32.0
_THICK: Final = 22.0
_AXIS: Final = 44.0  # px that the axis below needs
_PALE: Final = 0.3
_ROOM: Final = 1.15  # of the longest bar, so that its total stands beside it
_LONGEST_NAME: Final = 34
_TOLD: Final = 4  # parts that the description names
_PART_COLOURS: Final[dict[PartName, tuple[int, bool]]] = {  # place in the palette, and whether pale
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
# places in the palette, the same as beside the rows of the table
_PHASE_COLOURS: Final = dict(zip(PHASES, (1, 0, 2, 3, 4, 6, 5), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One kind of part, at the same place in every bar; a pale one has an edge of its colour."""

    name: str
    place: int  # of its colour in the palette
    is_pale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """One part of one bar."""

    size: float
    text: str
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """One row, with a segment for each of the parts."""

    name: str
    segments: tuple[_Segment, ...]
    total: str

    @property
    def size(self) -> float:
        """Return how long the bar is."""
        return sum(one.size for one in self.segments)


def _stacked(
    palette: Palette, *, bars: Sequence[_Bar], parts: Sequence[_Part], title: str
) -> Declared:
    """Declare the bars below each other on one axis that starts at 0; one must be above it."""
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
    x, y = across("x", (0.0, end), title=title), partial(down, height=height)
    middle, inked = {"baseline": "middle"}, [row for row in boxes if row["text"]]
    beside = {"align": "left", "dx": 6, "color": palette.mute, **middle}
    area = {"x": x, "x2": "x2", "y": y("y"), "y2": "y2"}
    look = {"fill": "colour", "fillOpacity": "opacity", "stroke": "edge", "description": "tip"}
    inside = {"x": "middle_x", "y": y("middle"), "text": "text", "color": "ink"}
    layers = (
        marks(boxes, "rect", {"strokeWidth": 1}, **area, **look),
        marks(inked, "text", {"fontWeight": "bold", **middle}, **inside),
        marks(ends, "text", beside, x=x, y=y("y"), text="total"),
        row_texts(ends, y("y"), palette.text, text="name"),
    )
    drawing = layered(layers, width=_WIDTH, height=height)
    keyed = with_key(drawing, _keys(parts, palette), width=_WIDTH, below=_AXIS)
    return {**keyed, "padding": padding(bar.name for bar in bars)}


def _rows(
    bar: _Bar, parts: Sequence[_Part], *, top: float, scale: float, palette: Palette
) -> list[dict[str, Any]]:
    """Return the boxes of one bar, each with as much text as it has room for."""
    ends = list(accumulate((one.size for one in bar.segments), initial=0.0))
    boxes = []
    for number, (part, segment) in enumerate(zip(parts, bar.segments, strict=True)):
        if not segment.size:
            continue
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
                "text": _fitting(_letter(number), segment.text, room=segment.size * scale),
                "tip": segment.tip,
            }
        )
    return boxes


def _fitting(letter: str, text: str, *, room: float) -> str:
    both = f"{letter} {text}"
    return next((one for one in (both, letter) if text_width(one) + 4 <= room), "")


def _letter(number: int) -> str:
    return ascii_uppercase[number % len(ascii_uppercase)]


def _keys(parts: Sequence[_Part], palette: Palette) -> list[Key]:
    return [
        Key(
            text=f"{_letter(number)} {part.name}",
            colour=palette.of(part.place),
            opacity=_PALE if part.is_pale else 1.0,
        )
        for number, part in enumerate(parts)
    ]


def time_chart(run: RunComparison, profiles: CellProfiles, ledger: Ledger) -> Chart | None:
    """Return both times as stacked bars, None where there is no time to divide."""
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
    return Chart(
        name=chart_name("time", profiles.cell, ledger.arm),
        title=f"Time {_per(ledger)} by part, {arms}, {where}",
        description=_ledger_description(ledger, profiles.reference, scale),
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


def _ledger_description(ledger: Ledger, reference: str, scale: TimeScale) -> str:
    """Say the wholes and the parts that changed most; the table holds every part."""
    moved = sorted(ledger.parts, key=lambda part: -abs(part.change_ns))[:_TOLD]
    told = [
        f"{PART_NAMES[part.part]} {scale.signed(part.change_ns)} {scale.unit}"
        for part in moved
        if part.change_ns
    ]
    changes = f" Most changed: {', '.join(told)}." if told else ""
    return (
        f"{shown(reference)} {scale.number(ledger.reference_ns)} {scale.unit}, "
        f"{shown(ledger.arm)} {scale.number(ledger.arm_ns)} {scale.unit} {_per(ledger)}.{changes}"
    )


def _per(ledger: Ledger) -> str:
    return f"of a {ledger.piece}" if ledger.is_per_step else "of the whole profile"


def startup_groups(run: RunComparison) -> dict[tuple[str, bool], list[StartupSummary]]:
    """Return the start-ups of each cell, those with a cold page cache apart, in their order."""
    groups: dict[tuple[str, bool], list[StartupSummary]] = {}
    for startup in run.startup:
        groups.setdefault((startup.cell, startup.page_cache == "cold"), []).append(startup)
    return groups


def startup_charts(run: RunComparison) -> tuple[Chart, ...]:
    """Return a chart for each cell and page cache whose start-up was measured."""
    charts = (_startup_chart(run, group) for group in startup_groups(run).values())
    return tuple(chart for chart in charts if chart is not None)


def _startup_chart(run: RunComparison, summaries: list[StartupSummary]) -> Chart | None:
    """Return the chart of one cell and page cache, None where no phase took time."""
    tables: dict[str, Parts] = {
        one.arm: {part.phase: part for part in one.parts} for one in summaries
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
    """Say the whole of each arm and its longest phase."""
    told = []
    for arm, table in arms.items():
        parts = [part for name, part in table.items() if name in PHASES]
        longest = max(parts, key=lambda part: part.median_s, default=None)
        most = ""
        if longest:
            most = f" (longest: {PHASES[longest.phase]}, {duration(longest.median_s)})"
        told.append(f"{shown(arm)} {duration(total_s(table))}{most}")
    return f"Medians of phases, added up: {'; '.join(told)}."


def total_s(table: Parts) -> float:
    """Return how long the phases of a start-up take together."""
    return sum(part.median_s for phase, part in table.items() if phase in PHASES)
