"""The comparisons of one run together, screened for differences.

Sources: Benjamini and Hochberg 1995 (false discovery rate); Benjamini and Yekutieli 2005 (intervals
for the selected).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from envcompare.stats.intervals import (
    ALPHA,
    LOOK_FACTOR,
    SEQUENCE_SHARE,
    Evidence,
    Interval,
)
from envcompare.stats.typical import RoundEvidence

AnyEvidence = Evidence | RoundEvidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """A comparison after screening; only a selected one may be called slower or faster."""

    interval: Interval
    is_selected: bool


def p_value(evidence: AnyEvidence) -> float:
    """Return the smallest error at which the printed interval would still exclude 0, at most 1."""
    if isinstance(evidence, RoundEvidence):
        return evidence.p_value
    if evidence.mean == 0:
        return 1.0
    if evidence.error == 0:
        return 0.0
    tail = 2 * float(
        special.stdtr(evidence.df, -abs(evidence.mean) / (LOOK_FACTOR * evidence.error))
    )
    return min(1.0, tail / (1 - SEQUENCE_SHARE))


def screen(evidence: Sequence[AnyEvidence], *, planned: int) -> tuple[Screened, ...]:
    """Select by Benjamini and Hochberg at 5 % and give each comparison its interval.

    R selected of m planned have theirs at error 5 % · R ÷ m, so that the false coverage rate is
    5 %; it excludes 0 exactly where the comparison is selected. The rest have theirs at 5 %,
    widened for looking and not for their number. Planned comparisons that were not measured count
    as not selected.
    """
    if not evidence:
        return ()
    padded = [*(p_value(one) for one in evidence), *[1.0] * (planned - len(evidence))]
    # a second to import, and seldom asked for
    from scipy.stats import false_discovery_control  # noqa: PLC0415

    adjusted = false_discovery_control(padded, method="bh")[: len(evidence)]
    selected = [float(one) <= ALPHA for one in adjusted]
    share = sum(selected) / max(planned, len(evidence))
    return tuple(
        Screened(interval=one.printed(alpha=ALPHA * share if is_in else ALPHA), is_selected=is_in)
        for one, is_in in zip(evidence, selected, strict=True)
    )
