"""Drift inside the generations of a cell: of each arm's own times, and of its ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envcompare.analysis.model.comparison import Drift
from envcompare.stats.drift import LEVEL, Trend, trend
from envcompare.stats.metrics import MetricName, Readings
from envcompare.stats.pairs import Round

Generations = Sequence[Sequence[float]]


def find_drifts(
    readings: Readings, arms: Sequence[str], *, reference: str, metric: MetricName
) -> tuple[Drift, ...]:
    """Test the times of each arm, and its log ratio to the reference, for a trend over rounds.

    Each kind has 1 % of false alarms a cell, shared among its tests (Bonferroni).
    """
    known = readings.logarithms(metric)
    times = {arm: trend(_generations(known.get(arm, {}))) for arm in arms}
    ratios = {
        arm: trend(
            [
                rounds
                for found in readings.pairs(arm, reference, metric).values()
                for rounds in found.values()
            ]
        )
        for arm in arms
        if arm != reference
    }
    return (*_drifts(times, is_ratio=False), *_drifts(ratios, is_ratio=True))


def _generations(values: Mapping[Round, float]) -> Generations:
    found: dict[tuple[int, int], dict[int, float]] = {}
    for (restart, generation, number), value in values.items():
        found.setdefault((restart, generation), {})[number] = value
    return [[value for _, value in sorted(rounds.items())] for rounds in found.values()]


def _drifts(trends: dict[str, Trend | None], *, is_ratio: bool) -> tuple[Drift, ...]:
    tested = {arm: found for arm, found in trends.items() if found is not None}
    return tuple(
        Drift(
            arm=arm,
            is_ratio=is_ratio,
            slope=found.slope,
            over_generation=found.over_generation,
            p_value=found.p_value,
            generations=found.generations,
            is_detected=found.p_value * len(tested) < LEVEL,
        )
        for arm, found in tested.items()
    )
