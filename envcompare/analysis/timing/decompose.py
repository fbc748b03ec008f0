"""The 2 × 2: how much of a difference is the environment's, and how much the software's; pure.

Four arms are the corners: a container and the plain process, each with its image's software and
with the host's own. A path from the plain process on the host's files to the container with its
image changes one thing at a time, so the log ratios of its two steps sum to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from envcompare.analysis.model.comparison import Decomposition, Estimate
from envcompare.analysis.timing.cells import CellData
from envcompare.run_folder.records import ArmRecord
from envcompare.stats.intervals import Interval, interval
from envcompare.stats.pairs import Round
from envcompare.stats.typical import contrast

LEVEL = 0.95


class Corners(NamedTuple):
    """The arms of one 2 × 2: all parts are measured from `base`, the plain process on the host."""

    base: str
    host_arm: str  # in the container, with the host's own files,
    arm: str  # and with its image
    base_image: str = ""  # the plain process with the software of the image, where it ran


def all_corners(arms: Iterable[ArmRecord]) -> tuple[Corners, ...]:
    """Return each 2 × 2 that the arms allow; the plain environment is that of the reference.

    An arm with an image of the user's own is a corner of its own.
    """
    taking_part = tuple(arm for arm in arms if not arm.is_control)
    plain = next((arm.environment for arm in taking_part if arm.is_reference), "")
    on_host = {arm.environment: arm.id for arm in taking_part if arm.stack == "host"}
    built = {
        arm.environment: arm.id for arm in taking_part if arm.stack == "image" and not arm.reference
    }
    return tuple(
        Corners(
            base=on_host[plain],
            host_arm=on_host[arm.environment],
            arm=arm.id,
            base_image="" if arm.reference else built.get(plain, ""),
        )
        for arm in taking_part
        if arm.stack == "image" and arm.environment != plain
        if arm.environment in on_host and plain in on_host
    )


def decompose(data: CellData) -> tuple[Decomposition, ...]:
    """Split every difference of a cell for which all corners were measured."""
    parts = (_decomposition(data, corners) for corners in all_corners(data.run.arms))
    return tuple(one for one in parts if one is not None)


def _decomposition(data: CellData, corners: Corners) -> Decomposition | None:
    arms = tuple(filter(None, corners))
    failures = [data.failure(arm) for arm in arms]
    if any(failure is not None and failure.phase == "checksum" for failure in failures):
        return None  # arms that do not do the same work have no ratio
    rounds = _complete(data, arms)
    place = {arm: number for number, arm in enumerate(arms)}

    def part(**signs: int) -> Estimate | None:
        weights = [0] * len(arms)
        for corner, sign in signs.items():
            weights[place[getattr(corners, corner)]] = sign
        return _estimate(data, rounds, arms, weights)

    total = part(arm=1, base=-1)
    environment = part(host_arm=1, base=-1)
    stack = part(arm=1, host_arm=-1)
    if total is None or environment is None or stack is None:
        return None
    has_both = bool(corners.base_image)
    return Decomposition(
        cell=data.cell.id,
        host=data.cell.host,
        workload=data.cell.workload,
        parameters=data.cell.parameters,
        **corners._asdict(),
        total=total,
        environment=environment,
        stack=stack,
        environment_by_image=part(arm=1, base_image=-1) if has_both else None,
        stack_by_base=part(base_image=1, base=-1) if has_both else None,
        interaction=part(arm=1, host_arm=-1, base_image=-1, base=1) if has_both else None,
    )


Rounds = dict[Round, tuple[float, ...]]
"""Logarithms of the typical steps of all corners, by round."""


def _complete(data: CellData, arms: tuple[str, ...]) -> Rounds:
    """Return the rounds in which every corner has a value: only then do all parts sum."""
    known = data.readings.logarithms(data.metric[0])
    complete = data.readings.complete_rounds(arms, data.metric[0])
    return {number: tuple(known[arm][number] for arm in arms) for number in complete}


def _estimate(
    data: CellData, rounds: Rounds, arms: Sequence[str], weights: Sequence[int]
) -> Estimate | None:
    """Return a sum of corners whose signs sum to 0, with its interval."""
    if not rounds:
        return None
    ratio = _interval(data, rounds, arms, weights)
    return Estimate(
        metric=data.metric[0],
        log_ratio=ratio.mean,
        low=ratio.low,
        high=ratio.high,
        level=ratio.level,
        unit="process" if data.is_program else ratio.unit,
        restarts=ratio.restarts,
        generations=ratio.generations,
        rounds=len(rounds),
        is_widened=False,
    )


def _interval(
    data: CellData, rounds: Rounds, arms: Sequence[str], weights: Sequence[int]
) -> Interval:
    logarithms = np.asarray(list(rounds.values()), dtype=float).T
    values = np.asarray(weights, dtype=float) @ logarithms
    groups: dict[int, list[float]] = {}
    for number, value in zip(rounds, values.tolist(), strict=True):
        groups.setdefault(number[0], []).append(value)
    if data.is_program:
        bounds = interval(values.tolist(), level=LEVEL)
        assert bounds is not None
        return bounds
    size = sum(abs(weight) for weight in weights) / 2  # two differences vary twice as much
    widest = max((data.spread(arm) for arm in arms), key=lambda spread: spread.variance)
    spread = replace(widest, variance=widest.variance * size)
    return contrast(logarithms, weights).interval(
        level=LEVEL,
        spread=spread,
        groups=tuple(map(tuple, groups.values())),
        generations=len({number[:2] for number in rounds}),
    )
