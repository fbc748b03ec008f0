"""The 2 × 2: how much of a difference is the environment's, and how much the software's; pure.

Four arms are the corners: a container and the plain process, each with its image's software and
with the host's own. A path from the plain process on the host's files to the container with its
image changes one thing at a time, so the log ratios of its two steps sum to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from envcompare.analysis.model.comparison import Decomposition, Estimate
from envcompare.analysis.timing.cells import CellData
from envcompare.run_folder.records import CONTROL_SUFFIX, ArmRecord, Measured
from envcompare.stats.intervals import interval
from envcompare.stats.metrics import METRICS, estimate

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
    blocks = _complete(data, arms)
    times = {arm: _log_times(data, blocks, arm, base=corners.base) for arm in arms[1:]}
    whole, isolated = times[corners.arm], times[corners.host_arm]
    total = _estimate(data, blocks, whole)
    environment = _estimate(data, blocks, isolated)
    stack = _estimate(data, blocks, whole - isolated)
    if total is None or environment is None or stack is None:
        return None
    other = times[corners.base_image] if corners.base_image else None
    return Decomposition(
        cell=data.cell.id,
        host=data.cell.host,
        workload=data.cell.workload,
        parameters=data.cell.parameters,
        **corners._asdict(),
        total=total,
        environment=environment,
        stack=stack,
        environment_by_image=None if other is None else _estimate(data, blocks, whole - other),
        stack_by_base=None if other is None else _estimate(data, blocks, other),
        interaction=None if other is None else _estimate(data, blocks, whole - isolated - other),
    )


def _complete(data: CellData, arms: tuple[str, ...]) -> tuple[Measured, ...]:
    """Return the blocks of the rounds in which every corner has a value.

    Only then do all parts rest on the same rounds, and sum. The control of the base goes with it,
    as in every other estimate.
    """
    read = METRICS[data.metric[0]]
    blocks = [b for arm in arms for b in data.arm_blocks(arm) if (read(b) or 0) > 0]
    seen: dict[tuple[int, int, int], set[str]] = {}
    for block in blocks:
        seen.setdefault(_round(block), set()).add(block.arm)
    twins = (b for arm in arms for b in data.arm_blocks(arm + CONTROL_SUFFIX))
    return tuple(
        block for block in (*blocks, *twins) if len(seen.get(_round(block), ())) == len(arms)
    )


def _round(block: Measured) -> tuple[int, int, int]:
    return block.restart, block.generation, block.round


def _log_times(data: CellData, blocks: tuple[Measured, ...], arm: str, *, base: str) -> np.ndarray:
    """Return ln(time in the arm ÷ time in the base), one value a generation, by restart."""
    _, groups = estimate(blocks, arm=arm, reference=base, metric=data.metric[0])
    return np.asarray(groups, dtype=float)


def _estimate(data: CellData, blocks: tuple[Measured, ...], values: np.ndarray) -> Estimate | None:
    ratio = interval(
        tuple(tuple(restart) for restart in values.tolist()),
        level=LEVEL,
        always_restarts=data.is_strict,
    )
    if ratio is None:
        return None
    return Estimate(
        metric=data.metric[0],
        log_ratio=ratio.mean,
        low=ratio.low,
        high=ratio.high,
        level=ratio.level,
        unit=ratio.unit,
        restarts=ratio.restarts,
        generations=ratio.generations,
        rounds=len({_round(block) for block in blocks}),
        is_widened=False,
    )
