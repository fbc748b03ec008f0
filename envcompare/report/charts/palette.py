"""Colours of charts: CSS variables that follow the page's theme, or plain ones for papers.

Each colour is one whole text that Vega passes on; it must never be asked to mix two of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model.comparison import RunComparison
from envcompare.report.wording.labels import compared_arms

LIGHT: Final[dict[str, str]] = {  # as the light theme of report.css has them
    "bg": "#fff",
    "fg": "#1a1f27",
    "mute": "#55606e",
    "line": "#d5dae1",
    "band": "#dfe4ea",
    "zero": "#3a434f",
    "slow": "#9a3b12",
    "fast": "#0b57b0",
    "bad": "#a3102c",
    "even": "#3f4a57",
    "open": "#6b4e00",
    "p1": "#b3471c",
    "p2": "#0b62c4",
    "p3": "#1a7f4b",
    "p4": "#7a4fb5",
    "p5": "#7d6200",
    "p6": "#5b6b7b",
    "p7": "#a3216b",
}
_SERIES: Final = ("p2", "p1", "p3", "p4", "p5", "p7", "p6")
_SHAPES: Final = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_DASHES: Final = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (1, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Colours by what they are for, each a text of CSS."""

    back: str  # what lies behind the chart
    text: str
    mute: str  # text beside the data
    line: str  # of the grid
    band: str  # inside the margin
    zero: str
    slow: str
    fast: str
    bad: str  # what failed
    even: str
    open: str  # what is not decided
    series: tuple[str, ...]
    background: str | None  # drawn behind the chart; None leaves it transparent

    def of(self, place: int) -> str:
        """Return the colour of the series at a place, from 0."""
        return self.series[place % len(self.series)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one arm looks in every chart: colour, and beside it shape and dash."""

    place: int
    shape: str
    dash: tuple[int, ...]


def styles(arms: Iterable[str]) -> dict[str, Style]:
    """Give each arm a style by its place."""
    return {
        arm: Style(
            place=place,
            shape=_SHAPES[place % len(_SHAPES)],
            dash=_DASHES[place % len(_DASHES)],
        )
        for place, arm in enumerate(dict.fromkeys(arms))
    }


def run_styles(run: RunComparison) -> dict[str, Style]:
    """Return the styles of the arms of a run: the reference first, its controls last."""
    measured = [one.arm for cell in run.cells for one in cell.step_times]
    others = [one.arm for one in run.arms] + [one.arm for one in run.comparisons]
    others += [one.arm for one in run.startup]
    return styles((run.reference_arm, *compared_arms(run), *others, *measured))


def _palette(colours: dict[str, str], *, background: str | None) -> Palette:
    return Palette(
        back=colours["bg"],
        text=colours["fg"],
        mute=colours["mute"],
        line=colours["line"],
        band=colours["band"],
        zero=colours["zero"],
        slow=colours["slow"],
        fast=colours["fast"],
        bad=colours["bad"],
        even=colours["even"],
        open=colours["open"],
        series=tuple(colours[name] for name in _SERIES),
        background=background,
    )


PAGE: Final = _palette(
    {name: f"var(--{name}, {value})" for name, value in LIGHT.items()}, background=None
)
PAPER: Final = _palette(LIGHT, background="#fff")
