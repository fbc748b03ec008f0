"""Environment or software? The 2 × 2 of each cell in words and as rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model.comparison import Decomposition, Estimate, RunComparison
from envcompare.report.charts.marks import Axis, Mark, mark
from envcompare.report.format.numbers import NOT_MEASURED, signed_interval, signed_percent
from envcompare.report.wording.labels import cell_labels
from envcompare.report.wording.verdicts import estimate_text, excludes_zero
from envcompare.text import visible

HREF: Final = "#split"
LINK: Final = "Environment or software?"
HEADS: Final = ("whole", "environment", "software", "environment", "software", "interaction")
_PATHS: Final = ("", *("environment first",) * 2, *("software first",) * 2, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRow:
    """One difference and its parts; a part is its number, its interval, and which arms made it."""

    cell: str
    arm: str
    parts: tuple[tuple[str, str, str], ...]  # in the order of HEADS


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPart:
    """One part of a difference as a row: what it is, of which arms, how large, and its mark."""

    path: str  # empty for the whole
    name: str
    number: str
    interval: str
    arms: str
    mark: Mark | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitView:
    """The 2 × 2 of one comparison."""

    sentence: str
    parts: tuple[SplitPart, ...]


def split_view(one: Decomposition, *, label: str, on: Axis) -> SplitView:
    """Return the parts of one difference, each drawn on the axis of the page."""
    rows = zip(_PATHS, HEADS, _parts(one), _estimates(one), strict=True)
    return SplitView(
        sentence=visible(split_sentence(one, label=label)),
        parts=tuple(
            SplitPart(
                path=path,
                name=name,
                number=number,
                interval=interval,
                arms=arms,
                mark=mark(estimate, "reference", on=on),
            )
            for path, name, (number, interval, arms), (estimate, _) in rows
        ),
    )


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
    """Say which part is known to be there; nothing where a part has no interval."""
    parts = {"environment": one.environment, "software": one.stack}
    if any(part.low is None or part.high is None for part in parts.values()):
        return ""
    clear = [name for name, part in parts.items() if excludes_zero(part.low, part.high)]
    match clear:
        case [name]:
            return f" (of the two parts only the {name}'s excludes 0)"
        case [_, _]:
            return " (both parts exclude 0)"
        case _:
            return " (neither part excludes 0)"


def _parts(one: Decomposition) -> tuple[tuple[str, str, str], ...]:
    return tuple(_part(estimate, visible(arms)) for estimate, arms in _estimates(one))


def _estimates(one: Decomposition) -> tuple[tuple[Estimate | None, str], ...]:
    return (
        (one.total, f"{one.arm} ÷ {one.base}"),
        (one.environment, f"{one.host_arm} ÷ {one.base}"),
        (one.stack, f"{one.arm} ÷ {one.host_arm}"),
        (one.environment_by_image, f"{one.arm} ÷ {one.base_image}"),
        (one.stack_by_base, f"{one.base_image} ÷ {one.base}"),
        (one.interaction, "difference of the paths"),
    )


def _part(found: Estimate | None, arms: str) -> tuple[str, str, str]:
    if found is None:
        return NOT_MEASURED, "", ""
    return signed_percent(found.log_ratio), signed_interval(found.low, found.high), arms
