"""Throughput by batch: what fits, the knee, and samples a second at each size."""

from __future__ import annotations

from typing import Final

from envcompare.analysis.model.comparison import Comparison, RunComparison
from envcompare.analysis.model.throughput import ArmSizes, BatchSweep, SizeRate
from envcompare.report.format.blocks import Heading, Line, Section, Table
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    ends_text,
    signed_interval,
    signed_percent,
    three_digits,
)
from envcompare.report.sections.fields import Field, grid_of, table_of
from envcompare.report.wording.verdicts import SYMBOLS, WORDS
from envcompare.text import assigned, counted, one_line

_INTRO: Final = (
    "Samples a second of the typical step at each batch, with the 95 % interval over restarts; "
    "waits for a CPU that other processes held are left out where they are known. The knee is the "
    "smallest batch that has at least 95 % of the best throughput; it is decided where intervals "
    "that hold for all pairs of batches together (95 %, for each environment by itself) show that "
    "it has, and that no smaller one has. Environments are compared at equal batch."
)
_SEARCHED: Final = (
    "Each size was tried in a process of its own. The largest batch that fits is found by "
    "bisection, to within a few percent; sizes that do not fit in every environment were not "
    "measured."
)


def batches_section(run: RunComparison) -> Section | None:
    """Return the tables of each sweep over batches, None where there is none."""
    if not run.batch_sweeps:
        return None
    blocks = [
        block
        for sweep in run.batch_sweeps
        for block in (Heading(text=sweep_name(run, sweep)), *batch_tables(run, sweep))
    ]
    intro = [Line(text=_INTRO)]
    if any(sweep.is_searched for sweep in run.batch_sweeps):
        intro.append(Line(text=_SEARCHED))
    return Section(anchor="batches", title="Batch sizes", blocks=(*intro, *blocks))


def sweep_name(run: RunComparison, sweep: BatchSweep) -> str:
    """Return what the sweep is of: workload, parameters, and host where there are several."""
    has_hosts = len({cell.host for cell in run.cells}) > 1
    where = [f"in {sweep.within}"] * bool(sweep.within) + [f"on {sweep.host}"] * has_hosts
    return " ".join((sweep.workload, *assigned(sweep.parameters), *where))


def batch_tables(run: RunComparison, sweep: BatchSweep) -> tuple[Table, Table]:
    """Return a row for each environment, and a row for each size."""
    return _environments(run, sweep), _sizes(run, sweep)


def _environments(run: RunComparison, sweep: BatchSweep) -> Table:
    largest: list[Field[ArmSizes]] = [("largest batch that fits", "text", _largest)]
    return table_of(
        f"Largest batch and knee of {sweep_name(run, sweep)}",
        sweep.arms,
        ("environment", "name", lambda arm: arm.arm),
        *largest * sweep.is_searched,
        ("knee", "text", _knee),
        ("best batch", "number", lambda arm: "–" if arm.best is None else str(arm.best)),
    )


def _largest(arm: ArmSizes) -> Line:
    if arm.largest is None:
        told = f"({one_line(arm.reason)})"
        return Line(text="not known", below=(told,) * bool(arm.reason))
    if arm.limited_by == "cap":
        return Line(text=f"{arm.largest} or more", below=("(no larger one was tried)",))
    beyond = f"({arm.beyond} does not fit: {_limit(arm)})"
    return Line(text=str(arm.largest or "none"), below=(beyond,))


def _limit(arm: ArmSizes) -> str:
    if arm.limited_by == "workload":
        return one_line(arm.reason)
    if arm.device == "cpu":
        return f"{arm.memory_mib} MiB of private memory, beyond Python and PyTorch"
    return f"{arm.memory_mib} MiB on the GPU" if arm.memory_mib else "the memory of the GPU"


def _knee(arm: ArmSizes) -> Line:
    """Return the knee; where it is not decided, the sizes between which it lies."""
    if arm.knee_low is None:
        return Line(text=NOT_MEASURED)
    measured = [rate.batch for rate in arm.rates]
    if arm.knee is None:
        ends = f"{arm.knee_low} to {arm.knee_high or measured[-1]}"
        told = f"({ends}, by {counted(arm.knee_restarts, 'restart')})"
        return Line(text="not decided", below=(told,))
    is_end = arm.knee == measured[-1]
    return Line(text=str(arm.knee), below=("(the largest that was measured)",) * is_end)


def _sizes(run: RunComparison, sweep: BatchSweep) -> Table:
    rates = {(rate.cell, arm.arm): rate for arm in sweep.arms for rate in arm.rates}
    compared = {(one.cell, one.arm): one for one in run.comparisons}
    arms = [arm.arm for arm in sweep.arms]
    reference = run.reference_in(sweep.cells[0])
    return grid_of(
        f"Throughput by batch of {sweep_name(run, sweep)}",
        (
            ("batch", "number"),
            *((f"{arm}, samples/s", "number") for arm in arms),
            *((f"{arm}, time against {reference}", "number") for arm in arms if arm != reference),
        ),
        (
            (
                str(size),
                *(_rate(rates.get((cell, arm)), _why_not(run, cell, arm)) for arm in arms),
                *(_ratio(compared.get((cell, arm))) for arm in arms if arm != reference),
            )
            for size, cell in zip(sweep.sizes, sweep.cells, strict=True)
        ),
    )


def _why_not(run: RunComparison, cell: str, arm: str) -> str:
    """Return why a size was not measured, told once: in the column of the reference."""
    is_told = arm == run.reference_in(cell)
    failed = (one for one in run.cells if one.id == cell and one.state != "ok")
    return next((one.reason for one in failed if is_told), "")


def _rate(rate: SizeRate | None, why_not: str) -> Line:
    if rate is None:
        told = (f"({one_line(why_not)})",) if why_not else ()
        return Line(text=NOT_MEASURED, below=told, style="said")
    ends = ends_text(rate.low, rate.high, three_digits)
    return Line(text=three_digits(rate.samples_per_s), below=(f"({ends})",))


def _ratio(comparison: Comparison | None) -> Line:
    """Return the change of time against the reference at the same batch."""
    if comparison is None or comparison.deciding is None:
        return Line(text="–")
    estimate = comparison.deciding
    return Line(
        text=signed_percent(estimate.log_ratio),
        below=(
            signed_interval(estimate.low, estimate.high),
            f"{SYMBOLS[comparison.outcome]} {WORDS[comparison.outcome]}",
        ),
    )
