"""How many charts a page draws: beyond them tables alone stand there, so that it stays small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from envcompare.report.charts.drawing import Chart, drawn

MOST_CHARTS: Final = 60
MOST_CHARACTERS: Final = 400_000  # of all charts; some need ten times as many as others


@dataclass(slots=True)
class Allowance:
    """Counts the charts of one page in the order they are asked for."""

    left: int = MOST_CHARTS
    characters_left: int = MOST_CHARACTERS
    refused: int = 0

    def draw(self, chart: Chart | None) -> Markup:
        """Return a chart as SVG, empty where there is none or the page has enough of them."""
        if chart is None:
            return Markup("")
        if not self.left or self.characters_left <= 0:
            self.refused += 1
            return Markup("")
        found = drawn(chart)
        self.left -= 1
        self.characters_left -= len(found)
        return found
