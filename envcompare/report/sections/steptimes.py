"""How the times of single steps are spread in two arms: quantiles beside the drawn densities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model.comparison import STEP_PROBABILITIES, CellSummary, StepTimes
from envcompare.report.format.units import NS, TimeScale
from envcompare.text import visible

_SHOWN: Final[dict[str, float]] = {
    "p5": 0.05,
    "p25": 0.25,
    "median": 0.5,
    "p75": 0.75,
    "p95": 0.95,
    "p99": 0.99,
}
_LONGEST: Final = "longest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The quantiles of the times of two arms: a row for each, with how many times they are.

    Quantiles that neither arm has are left out, as an older analysis kept three alone.
    """

    unit: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...], int], ...]  # arm, values, count


def spread_of(cell: CellSummary, arms: tuple[str, ...]) -> Spread | None:
    """Return the spread of these arms, None where no time of either was measured."""
    found = {one.arm: one for one in cell.step_times if one.arm in arms}
    if not found:
        return None
    known = {arm: _known(found[arm]) if arm in found else {} for arm in arms}
    heads = [head for head in (*_SHOWN, _LONGEST) if any(head in of for of in known.values())]
    medians = (one.median_s for one in found.values())
    scale = TimeScale.of(NS * max(cell.step_edges_s[-1:] or medians))  # as the axis of the chart
    return Spread(
        unit=scale.unit,
        heads=tuple(heads),
        rows=tuple(
            (
                visible(arm),
                tuple(scale.digits(known[arm].get(head)) for head in heads),
                found[arm].steps if arm in found else 0,
            )
            for arm in arms
        ),
    )


def _known(times: StepTimes) -> dict[str, float]:
    """Return what is known of the times of an arm, in seconds."""
    at: dict[float, float] = {0.05: times.p05_s, 0.5: times.median_s, 0.95: times.p95_s}
    at.update(zip(STEP_PROBABILITIES, times.quantiles_s, strict=False))
    known = {head: at[probability] for head, probability in _SHOWN.items() if probability in at}
    return known | ({} if times.longest_s is None else {_LONGEST: times.longest_s})
