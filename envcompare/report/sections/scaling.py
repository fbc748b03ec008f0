"""How throughput grows: with ranks, their collectives and network, and with the batch that fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from envcompare.analysis.model.comparison import ArmSummary, Comparison, RunComparison
from envcompare.analysis.model.sweeps import ArmSizes, BatchSweep, Scaling, SizeRate
from envcompare.report.format.blocks import (
    Field,
    Heading,
    Items,
    Line,
    Section,
    Table,
    Words,
    grid_of,
    table_of,
)
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    duration,
    ends_text,
    number_text,
    signed_interval,
    signed_percent,
    size,
    three_digits,
)
from envcompare.report.wording.verdicts import SYMBOLS, WORDS
from envcompare.run_folder.records import CONTROL_SUFFIX
from envcompare.text import assigned, counted, one_line, visible

_INTRO: Final = (
    "A rank is a process with a batch of its own, so that the work of a step grows with the ranks. "
    "The speed-up is that of the samples in a second against one rank of the same environment: "
    "the geometric mean over the restarts that measured both, with its 95 % interval (Student t), "
    "not widened; the efficiency is the speed-up divided by the ranks."
)
_COLLECTIVES: Final = (
    "Collectives are the exchanges between ranks, as torch.profiler sees them in the first rank "
    "after the timing, waiting for the others included; they are exposed while nothing computes "
    "there."
)
_NO_BASE: Final = "Without ranks=1 of the same work there is no speed-up: add it to --set."
_BATCHES: Final = (
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


def scaling_section(run: RunComparison) -> Section | None:
    """Return what several ranks bring, None where no workload set `ranks`."""
    if not run.scaling:
        return None
    notes = (
        *(_COLLECTIVES,) * _has_collectives(run),
        *(_NO_BASE,) * all(one.speed_up is None for one in run.scaling),
        *_networks(run),
    )
    blocks = (Line(text=_INTRO), scaling_table(run), Items(items=notes, style="small"))
    return Section(anchor="scaling", title="Several ranks", link="Ranks", blocks=blocks)


def scaling_table(run: RunComparison) -> Table:
    """Return a row for each environment and number of ranks."""
    hosts = {one.host for one in run.scaling}
    exchanges: tuple[Field[Scaling], ...] = (
        (
            "Collectives, of a step",
            "number",
            lambda scaling: _part(scaling.collective_share, scaling.collective_s),
        ),
        (
            "Exposed, of a step",
            "number",
            lambda scaling: _part(scaling.collective_exposed_share, scaling.collective_exposed_s),
        ),
    )
    return table_of(
        "Several ranks",
        sorted(run.scaling, key=lambda scaling: (_work(scaling), scaling.host)),
        ("Work", "name", _work),
        *((("Host", "name", lambda scaling: visible(scaling.host)),) * (len(hosts) > 1)),
        ("Environment", "name", lambda scaling: visible(scaling.arm)),
        ("Ranks", "number", _ranks),
        ("samples/s", "number", lambda scaling: _number(scaling.samples_per_s)),
        ("Speed-up", "number", _speed_up),
        ("Efficiency", "number", lambda scaling: _percent(scaling.efficiency)),
        *(exchanges if _has_collectives(run) else ()),
        style="fit",
    )


def _has_collectives(run: RunComparison) -> bool:
    return any(one.collective_s is not None for one in run.scaling)


def _work(scaling: Scaling) -> str:
    return visible(" ".join((scaling.workload, *assigned(scaling.parameters))))


def _ranks(scaling: Scaling) -> Words:
    where = f"(on {', '.join(map(visible, scaling.hosts))})" if scaling.hosts else ""
    return Line(text=str(scaling.ranks), below=(where,))


def _number(value: float | None) -> str:
    return NOT_MEASURED if value is None else number_text(value)


def _percent(share: float | None) -> str:
    return NOT_MEASURED if share is None else f"{three_digits(100 * share)} %"


def _speed_up(scaling: Scaling) -> Words:
    if scaling.ranks == 1 or scaling.speed_up is None:
        return "1" if scaling.ranks == 1 else NOT_MEASURED
    ends = f"({counted(scaling.restarts, 'restart')}: no interval)"
    if scaling.speed_up_low is not None and scaling.speed_up_high is not None:
        ends = f"({three_digits(scaling.speed_up_low)} to {three_digits(scaling.speed_up_high)})"
    return Line(text=three_digits(scaling.speed_up), below=(ends,))


def _part(share: float | None, seconds: float | None) -> Words:
    if seconds is None:
        return NOT_MEASURED
    return Line(text=_percent(share), below=(f"({duration(seconds)})",))


def _networks(run: RunComparison) -> Iterator[str]:
    """Yield what each environment gives its ranks to exchange data by."""
    hosts = dict.fromkeys(one.host for one in run.scaling)
    for arm in run.arms:
        is_told = arm.host in hosts and "network.interfaces" in arm.facts
        if is_told and not arm.arm.endswith(CONTROL_SUFFIX):
            where = f" on {visible(arm.host)}" * (len(hosts) > 1)
            yield f"{visible(arm.arm)}{where}: {_network(arm)}."


def _network(arm: ArmSummary) -> str:
    devices, shared = arm.facts["network.interfaces"], arm.facts.get("shm.bytes")
    told = f"network devices {visible(str(devices))}" if devices else "network devices not known"
    if isinstance(shared, int):
        told += f"; shared memory (/dev/shm) {size(shared)}"
    return told


def batches_section(run: RunComparison) -> Section | None:
    """Return the tables of each sweep over batches, None where there is none."""
    if not run.batch_sweeps:
        return None
    blocks = [
        block
        for sweep in run.batch_sweeps
        for block in (Heading(text=sweep_name(run, sweep)), *batch_tables(run, sweep))
    ]
    intro = [Line(text=_BATCHES)]
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
