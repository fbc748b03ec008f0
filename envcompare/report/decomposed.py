"""Environment or software? The 2 × 2 of each cell in words and as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model import Decomposition, Estimate, RunComparison
from envcompare.report.labels import cell_labels
from envcompare.report.numbers import NOT_MEASURED, signed_interval, signed_percent
from envcompare.report.verdicts import estimate_text
from envcompare.texts import visible

HREF: Final = "#split"
LINK: Final = "Environment or software?"
HEADS: Final = ("whole", "environment", "software", "environment", "software", "interaction")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRow:
    """One difference and its parts; a part is its number, its interval, and which arms made it."""

    cell: str
    arm: str
    parts: tuple[tuple[str, str, str], ...]  # in the order of HEADS


def split_rows(run: RunComparison) -> tuple[SplitRow, ...]:
    """Return a row for each 2 × 2."""
    labels = cell_labels(run)
    return tuple(
        SplitRow(cell=visible(labels[one.cell]), arm=visible(one.arm), parts=_parts(one))
        for one in run.decompositions
    )


def split_sentences(run: RunComparison) -> tuple[str, ...]:
    """Say of each difference how much is environment and how much software, the largest first."""
    labels = cell_labels(run)
    ordered = sorted(run.decompositions, key=lambda one: -abs(one.total.log_ratio))
    return tuple(visible(split_sentence(one, label=labels[one.cell])) for one in ordered)


def split_sentence(one: Decomposition, *, label: str) -> str:
    """Say how much of a difference is environment and how much software."""
    return (
        f"{one.arm} against {one.base} in {label}, {signed_percent(one.total.log_ratio)}: "
        f"environment {estimate_text(one.environment)}, software {estimate_text(one.stack)}"
        f"{_conclusion(one)}; not widened."
    )


def split_arms(run: RunComparison) -> frozenset[str]:
    """Return the arms that are corners of a 2 × 2 in every cell they were measured in."""
    cells = {one.cell for one in run.comparisons if one.primary is not None}
    corners: dict[str, set[str]] = {}
    for one in run.decompositions:
        for arm in (one.arm, one.host_arm, one.base, one.base_image):
            corners.setdefault(arm, set()).add(one.cell)
    return frozenset(arm for arm, found in corners.items() if found == cells)


def _conclusion(one: Decomposition) -> str:
    parts = {"environment": one.environment, "software": one.stack}
    clear = [name for name, part in parts.items() if _excludes_zero(part)]
    match clear:
        case [name]:
            return f" (of the two parts only the {name}'s excludes 0)"
        case [_, _]:
            return " (both parts exclude 0)"
        case _:
            return " (neither part excludes 0)"


def _excludes_zero(part: Estimate) -> bool:
    return part.low is not None and part.high is not None and not part.low <= 0 <= part.high


def _parts(one: Decomposition) -> tuple[tuple[str, str, str], ...]:
    found: Iterable[tuple[Estimate | None, str]] = (
        (one.total, f"{one.arm} ÷ {one.base}"),
        (one.environment, f"{one.host_arm} ÷ {one.base}"),
        (one.stack, f"{one.arm} ÷ {one.host_arm}"),
        (one.environment_by_image, f"{one.arm} ÷ {one.base_image}"),
        (one.stack_by_base, f"{one.base_image} ÷ {one.base}"),
        (one.interaction, "difference of the paths"),
    )
    return tuple(_part(estimate, visible(arms)) for estimate, arms in found)


def _part(found: Estimate | None, arms: str) -> tuple[str, str, str]:
    if found is None:
        return NOT_MEASURED, "", ""
    return signed_percent(found.log_ratio), signed_interval(found.low, found.high), arms
