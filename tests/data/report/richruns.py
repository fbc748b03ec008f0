"""Runs drawn at random that hold every kind of number a report prints."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from envcompare.analysis.model import (
    STEP_PROBABILITIES,
    CellSummary,
    Decomposition,
    Drift,
    MemorySummary,
    RunComparison,
    StartupPart,
    StartupSummary,
    StepTimes,
)
from envcompare.analysis.model.profiling import (
    ArmProfiles,
    CellProfiles,
    KernelDiff,
    KernelDiffRow,
    Ledger,
    LedgerPart,
)
from tests.data.report.builders import PLAIN, changed, random_estimates, runs

_PARTS = (("gemm", "GEMM"), ("memcpy", "memcpy"), ("idle", "GPU idle"), ("rest", "rest"))
_BINS = 8
NANOSECONDS = st.integers(200, 90_000_000)
SECONDS = st.floats(1e-4, 2e3)


@st.composite
def rich_runs(draw: st.DrawFn, *, names: st.SearchStrategy[str] = PLAIN) -> RunComparison:
    """Return a run with spreads, start-ups, peaks, drifts, ledgers, kernels and a 2 × 2."""
    run = draw(runs(names=names))
    arms = tuple(
        dict.fromkeys((run.reference_arm, *(comparison.arm for comparison in run.comparisons)))
    )
    cells = tuple(draw(_spread(cell, is_drawn=not place)) for place, cell in enumerate(run.cells))
    first = cells[0]
    return changed(
        run,
        cells=cells,
        startup=tuple(draw(_startup(first.id, arm)) for arm in arms),
        memory=tuple(draw(_memory(first.id, arm)) for arm in arms),
        profiles=(draw(_profiles(first, arms)),),
        decompositions=(draw(_decompositions(run)),),
    )


@st.composite
def _spread(draw: st.DrawFn, cell: CellSummary, *, is_drawn: bool) -> CellSummary:
    """Give the arms of a cell quantiles; one that is drawn has counts between edges as well."""
    found = [draw(_quantiles(times)) for times in cell.step_times]
    low = min(one.quantiles_s[0] for one in found)
    high = max(one.quantiles_s[-1] for one in found)
    edges = tuple(low + (high - low) * place / _BINS for place in range(_BINS + 1))
    counts = st.lists(st.integers(0, 40), min_size=_BINS, max_size=_BINS).map(tuple)
    if is_drawn:
        found = [
            msgspec.structs.replace(one, counts=drawn, steps=sum(drawn) + draw(st.integers(0, 3)))
            for one in found
            for drawn in (draw(counts),)
        ]
    drift = Drift(
        arm=found[-1].arm, is_ratio=draw(st.booleans()), slope=draw(st.floats(-0.05, 0.05)),
        over_generation=draw(st.floats(-0.2, 0.2)), p_value=draw(st.floats(1e-9, 0.009)),
        generations=draw(st.integers(4, 30)), is_detected=True,
    )  # fmt: skip
    return msgspec.structs.replace(
        cell,
        step_times=tuple(found),
        step_edges_s=edges if is_drawn else (),
        drifts=(drift,) * draw(st.booleans()),
        waited_s=draw(st.sampled_from([0.0, 12.5, 700.0])),
        measured_s=draw(SECONDS),
        elapsed_s=draw(SECONDS),
    )


@st.composite
def _quantiles(draw: st.DrawFn, one: StepTimes) -> StepTimes:
    size = len(STEP_PROBABILITIES)
    shares = sorted(draw(st.lists(st.floats(0.5, 1.9), min_size=size, max_size=size)))
    found = tuple(one.median_s * share / shares[size // 2] for share in shares)
    return msgspec.structs.replace(
        one,
        quantiles_s=found,
        p05_s=found[1],
        p95_s=found[-2],
        longest_s=found[-1] * draw(st.floats(1.0, 3.0)),
        samples_per_s=draw(st.none() | st.floats(1.0, 1e6)),
    )


@st.composite
def _startup(draw: st.DrawFn, cell: str, arm: str) -> StartupSummary:
    parts = []
    for phase in ("engine", "import", "first_step", "real", "user"):
        low, middle, high = sorted(draw(st.tuples(SECONDS, SECONDS, SECONDS)))
        ends: dict[str, Any] = {}
        if arm != "vm" and draw(st.booleans()):
            names = ("difference_low_s", "difference_s", "difference_high_s")
            three = sorted(draw(st.lists(st.floats(-5, 60), min_size=3, max_size=3)))
            ends = {"pairs": 4, **dict(zip(names, three, strict=True))}
        parts.append(
            StartupPart(phase=phase, median_s=middle, low_s=low, high_s=high, **ends)  # type: ignore[arg-type]
        )
    return StartupSummary(
        cell=cell, arm=arm, launches=4, train_steps=10, page_cache="warm", parts=tuple(parts)
    )


@st.composite
def _memory(draw: st.DrawFn, cell: str, arm: str) -> MemorySummary:
    count = st.none() | st.integers(2**20, 2**38)
    return MemorySummary(
        cell=cell, arm=arm, generations=8, max_rss_bytes=draw(count),
        cgroup_peak_bytes=draw(count), cuda_allocated_peak_bytes=draw(count),
    )  # fmt: skip


@st.composite
def _profiles(draw: st.DrawFn, cell: CellSummary, arms: tuple[str, ...]) -> CellProfiles:
    return CellProfiles(
        cell=cell.id,
        host=cell.host,
        reference=arms[0],
        arms=tuple(ArmProfiles(arm=arm, passes=()) for arm in arms),
        ledgers=tuple(draw(_ledger(arm)) for arm in arms[1:]),
        kernel_diffs=tuple(draw(_kernels(arm)) for arm in arms[1:]),
    )


@st.composite
def _ledger(draw: st.DrawFn, arm: str) -> Ledger:
    pairs = [(draw(NANOSECONDS), draw(NANOSECONDS)) for _ in _PARTS]
    whole = sum(after - before for before, after in pairs)
    timing = draw(st.none() | st.integers(-90_000_000, 90_000_000))
    return Ledger(
        arm=arm,
        basis="gpu-trace",
        whole="GPU time from the first start to the last end",
        rule="Time in which several kernels ran is given to the one that started first.",
        reference_ns=sum(before for before, _ in pairs),
        arm_ns=sum(after for _, after in pairs),
        change_ns=whole,
        parts=tuple(
            LedgerPart(
                part=part,  # type: ignore[arg-type]
                label=label,
                reference_ns=before,
                arm_ns=after,
                change_ns=after - before,
                share=(after - before) / whole if whole else None,
            )
            for (part, label), (before, after) in zip(_PARTS, pairs, strict=True)
        ),
        timing_change_ns=timing,
        unseen_ns=None if timing is None else timing - whole,
    )


@st.composite
def _kernels(draw: st.DrawFn, arm: str) -> KernelDiff:
    def row(name: str, *, replaced: bool) -> KernelDiffRow:
        return KernelDiffRow(
            kind="replaced" if replaced else "both",
            kernel_class="gemm",
            reference_name=name,
            arm_name=f"{name}_new" if replaced else name,
            reference_ns=float(draw(NANOSECONDS)),
            arm_ns=float(draw(NANOSECONDS)),
            reference_launches=float(draw(st.integers(1, 300))),
            arm_launches=float(draw(st.integers(1, 300))),
        )

    return KernelDiff(
        arm=arm, source="nsys", scaling="Both profiles cover 20 steps.", is_per_step=True,
        identical_kernel_set=False, replaced=1, only_reference=0, only_arm=0, both=1,
        reference_ns=float(draw(NANOSECONDS)), arm_ns=float(draw(NANOSECONDS)),
        reference_launches=40.0, arm_launches=41.0,
        rows=(row("winograd", replaced=True), row("relu", replaced=False)),
    )  # fmt: skip


@st.composite
def _decompositions(draw: st.DrawFn, run: RunComparison) -> Decomposition:
    one = run.comparisons[0]
    fields = ("total", "environment", "stack", "environment_by_image", "stack_by_base")
    parts: dict[str, Any] = {name: draw(random_estimates()) for name in (*fields, "interaction")}
    return Decomposition(
        cell=one.cell, host=one.host, workload=one.workload, arm=one.arm,
        host_arm=f"{one.arm}@host", base="vm", base_image="vm@image", **parts,
    )  # fmt: skip
