"""What the guards of a run found: drift inside generations, waiting, dropped blocks, cautions."""

from __future__ import annotations

from envcompare.analysis.model import CellSummary, Drift, RunComparison
from envcompare.report.labels import cell_labels, one_line, visible
from envcompare.report.numbers import MINUS, change, counted, duration, listed, percent


def guard_cautions(run: RunComparison) -> tuple[str, ...]:
    """Say what a reader must know before relying on a number of this run."""
    labels = cell_labels(run)
    found = [
        f"⚠ {_in_cell(run, labels[cell.id])}{_ratio_drift(drift, run.reference_arm)}"
        for cell in run.cells
        for drift in _detected(cell, is_ratio=True)
    ]
    noted = dict.fromkeys(
        f"⚠ {_in_cell(run, labels[cell.id])}{one_line(text)}"
        for cell in run.cells
        for text in cell.cautions
    )
    return tuple(visible(text) for text in (*found, *noted))


def guard_sentences(run: RunComparison) -> tuple[str, ...]:
    """Say for the method section what was watched, and what came of it."""
    labels = cell_labels(run)
    found: list[str] = []
    for cell in run.cells:
        where = _in_cell(run, labels[cell.id])
        found += [f"{where}{text}" for text in (_drift_sentence(cell), _waiting(cell)) if text]
    return tuple(dict.fromkeys(visible(text) for text in found))


def _in_cell(run: RunComparison, label: str) -> str:
    return f"{label}: " if len(run.cells) > 1 else ""


def _detected(cell: CellSummary, *, is_ratio: bool) -> list[Drift]:
    return [one for one in cell.drifts if one.is_detected and one.is_ratio is is_ratio]


def _ratio_drift(drift: Drift, reference: str) -> str:
    way = "slower" if drift.slope > 0 else "faster"
    return (
        f"against {reference}, {drift.arm} gets {percent(change(drift.slope))} % {way} a round "
        f"inside a generation ({_signed(drift.over_generation)} from its first round to its last, "
        f"p = {drift.p_value:.2g}): its warm-up is longer than one block, or it wears out. The "
        "number is a mean over such generations; a longer step or more work in a block would tell."
    )


def _drift_sentence(cell: CellSummary) -> str:
    """Say what the trend tests found; a drift that all arms share cancels in the ratio."""
    if not cell.drifts:
        return ""
    own = _detected(cell, is_ratio=False)
    parts = []
    for way, some in (("slower", [d for d in own if d.slope > 0]),
                      ("faster", [d for d in own if d.slope < 0])):  # fmt: skip
        if some:
            most = max(abs(change(one.slope)) for one in some)
            names = listed(sorted(one.arm for one in some), most=4)
            parts.append(
                f"blocks of {names} get {way} inside a generation, by up to {percent(most)} % "
                "a round"
            )
    if _detected(cell, is_ratio=True):
        parts.append("a ratio drifts as well, see “Before you rely on it”")
    elif own:
        parts.append("no ratio does: what all share cancels")
    text = "; ".join(parts) or "no drift inside a generation was found"
    return f"{text} (trend tests over {_generations(cell)}, 1 % false alarms)."


def _generations(cell: CellSummary) -> str:
    return counted(max(one.generations for one in cell.drifts), "generation")


def _waiting(cell: CellSummary) -> str:
    parts = []
    if cell.waited_s > 0:
        parts.append(f"waited {duration(cell.waited_s)} for a quiet machine")
    if cell.dropped_blocks:
        parts.append(
            f"dropped {counted(cell.dropped_blocks, 'block')} in which a clock jumped or the "
            "machine stood still"
        )
    return f"{' and '.join(parts)}." if parts else ""


def _signed(log_ratio: float) -> str:
    sign = "+" if log_ratio > 0 else MINUS
    return f"{sign}{percent(change(log_ratio))} %"
