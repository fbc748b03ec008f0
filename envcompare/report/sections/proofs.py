"""What changes close of a difference, as a table with bars, for the page and the terminal."""

from __future__ import annotations

import math
from typing import Final

from envcompare.analysis.model import RunComparison
from envcompare.report import Field, Line, Section, Segment, Table, table_of
from envcompare.report.wording import cell_labels
from envcompare.report.wording.proofwords import share_text
from envcompare.run_folder.records import ProofShare, Trial
from envcompare.text import masked, shortened, visible

_INTRO: Final = (
    "In {cell}: each row is {slow} with changes towards the faster arm, measured together with "
    "both. A change that closes 100 % makes it as fast; 95 % intervals."
)
_CONFIRMED: Final = " The first two rows come from fresh rounds."
_MOST_ROWS: Final = 14
_MOST_OF_CHANGE: Final = 100  # characters
_PLACEBO: Final = "a variable that no program reads (placebo)"
_COLOUR: Final = "data"  # that of a part of a start-up


def proof_table(run: RunComparison, *, is_drawn: bool) -> Table | None:
    """Return a row for each change that was measured, with a bar if drawn; None without a proof."""
    proof = run.proof
    if proof is None or not (proof.tried or proof.confirmed):
        return None
    ordered = sorted(proof.tried, key=lambda one: -one.share.value if one.share else math.inf)
    placebo = Trial(keys=(), what=_PLACEBO, line="", share=proof.placebo)
    first = () if proof.confirmed is None else (proof.confirmed, placebo)
    bars: tuple[Field[Trial], ...] = (
        ("Share", "interval", lambda trial: Line(segments=_bar(trial.share))),
    )
    return table_of(
        "Share of the difference that each change closes",
        (*first, *ordered)[:_MOST_ROWS],
        (
            "Change",
            "name",
            lambda trial: visible(masked(shortened(trial.what, most=_MOST_OF_CHANGE))),
        ),
        ("Closes", "text", _closed),
        *(bars if is_drawn else ()),
    )


def proof_section(run: RunComparison) -> Section | None:
    """Return the table with how to read it; None without a proof."""
    table = proof_table(run, is_drawn=True)
    if table is None or run.proof is None:
        return None
    cell = cell_labels(run).get(run.proof.cell, run.proof.cell) or "the only cell"
    intro = _INTRO.format(cell=visible(cell), slow=visible(run.proof.slow))
    intro += _CONFIRMED * (run.proof.confirmed is not None)
    return Section(
        anchor="proof", title="What closes the difference", blocks=(Line(text=intro), table)
    )


def _closed(trial: Trial) -> str:
    if trial.share is None:
        return visible(trial.failed) or ("too few rounds" if trial.line else "not measured")
    return share_text(trial.share)


def _bar(share: ProofShare | None) -> tuple[Segment, ...]:
    closed = 0.0 if share is None else 100 * min(1.0, max(0.0, share.value))
    return (Segment(phase=_COLOUR, x="0.00", width=f"{closed:.2f}"),) if closed else ()
