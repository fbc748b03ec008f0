"""The run folders under results/: their table in the README follows from their samples."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import envcompare
from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import Estimate, LadderStep, RunComparison
from envcompare.run_folder.records import Block
from envcompare.run_folder.results import RunFolder

RESULTS = Path(__file__).resolve().parents[2] / "results"
_ROW = re.compile(r"^\| `(\w+)` [^|]*\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)

_NODE = re.compile(
    r"^\| `(slurm-\d)` \| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE
)

_GPU = re.compile(r"^\| `(docker|singularity)-host` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_COUNTED = re.compile(r"^\| ([\w ,]+) \| ([\d.]+) (\S+) \| ([\d.]+) (\S+) \|$", re.MULTILINE)
# Rows of the table of counters: the quantity, its profiler, and the unit that it is told in.
COUNTED = {
    "FLOPs of the model": ("flops_model", "torch", "G", 1e9),
    "FLOPs on tensor cores, TF32": ("flops_tensor_tf32", "ncu", "G", 1e9),
    "FLOPs in FP32": ("flops_fp32", "ncu", "M", 1e6),
    "HBM transactions of 32 B": ("dram_sectors", "ncu", "M", 1e6),
    "HBM bytes": ("dram_bytes", "ncu", "MB", 1e6),
    "kernel time": ("kernel_time_ns", "kineto", "µs", 1e3),
}

_STEP = re.compile(r"^\| [\w ]+ \| `([\w-]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


_RANKS = re.compile(
    r"^\| (one|two) \| `(\w+)` \| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$",
    re.MULTILINE,
)


def _percent(ratio: float) -> str:
    value = 100 * (ratio - 1)
    if value > 1000:
        return "over 1000"
    digits = 0 if value > 100 else 1
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")  # no sign before 0.0


def _ratio_percent(log_ratio: float) -> str:
    return _percent(math.exp(log_ratio))


def test_the_table_of_environments_has_the_numbers_of_its_run() -> None:
    """Analysed anew, from the samples; gVisor has a run of its own."""
    found = [
        one
        for run in ("environments", "gvisor")
        for one in envcompare.read(RESULTS / run).comparisons.to_dict("records")
        if one["is_primary"] and not one["is_control"]
    ]
    told = {(one["arm"], one["workload"]): _decided(one, 0.05) for one in found}
    rows = _ROW.findall((RESULTS / "README.md").read_text(encoding="utf-8"))
    assert {name for name, _, _ in rows} == {arm for arm, _ in told}
    for name, *cells in rows:
        assert cells == [told[name, workload] for workload in ("files", "cnn")]


def test_the_first_page_has_the_numbers_of_these_runs() -> None:
    """Rounded, and those of the headline."""
    text = " ".join((RESULTS.parent / "README.md").read_text(encoding="utf-8").split())
    ratios = {
        (run, one["arm"], one["workload"]): one
        for run in ("environments", "gvisor", "ladder")
        for one in envcompare.read(RESULTS / run).comparisons.to_dict("records")
        if one["is_primary"] and not one["is_control"]
    }
    gvisor = ratios["gvisor", "gvisor", "cnn"]
    assert gvisor["outcome"] == "equivalent"
    change, low, high = (_percent(gvisor[name]) for name in ("ratio", "ratio_low", "ratio_high"))
    assert f"/gvisor/report.html) too (+{change} %, {low} to {high} %)" in text
    overlays = [
        round(100 * ratios["environments", arm, "files"]["ratio"] - 100)
        for arm in ("charliecloud", "docker", "podman")
    ]
    assert f"{min(overlays)} to {max(overlays)} % more from an overlay" in text
    assert f"{ratios['environments', 'singularity', 'files']['ratio']:.1f} times as long" in text
    rows = _STEP.findall((RESULTS / "README.md").read_text(encoding="utf-8"))
    cell = next(cells for name, *cells in rows if name == "seccomp")[0]
    assert f"added {cell[1:].partition(' ')[0]} % to bare system calls" in text


def test_the_text_of_environments_tells_what_serves_the_files() -> None:
    """The CPU time of the helper, and the median step beside it."""
    text = " ".join((RESULTS / "README.md").read_text(encoding="utf-8").split())
    run = compare_run(RunFolder.open(RESULTS / "environments"))
    (used,) = (
        quantity.per_step
        for cell in run.profiles
        for arm in cell.arms
        for quantity in arm.quantities
        if quantity.name == "helper_squashfuse_ll_ns" and quantity.per_step
    )
    (took_ms,) = (
        1e3 * times.median_s
        for cell in run.cells
        for times in cell.step_times
        if (cell.workload, times.arm) == ("files", "singularity")
    )
    assert f"{used / 1e6:.1f} ms of CPU time a step beside the {took_ms:.1f} ms" in text


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("environments", 2),
        ("gvisor", 2),
        ("ladder", 3),
        ("zoo", 18),
        ("example", 3),
        ("slurm", 6),
        ("ranks", 6),
        ("ranks-hosts", 4),
        ("h200", 2),
        ("h200-counters", 1),
    ],
)
def test_a_published_run_is_whole_and_names_no_other_machine(name: str, cells: int) -> None:
    """Its paths are relative, and none of its comparisons has failed."""
    found = envcompare.read(RESULTS / name).comparisons
    primary = found[found["is_primary"]]
    assert len(primary["cell"].unique()) == cells
    assert "failed" not in set(primary["outcome"])
    text = (RESULTS / name / "run.json").read_text(encoding="utf-8")
    assert not re.search(r'"/(?:tmp|root|work)', text)


def test_the_table_of_the_ladder_has_the_steps_of_its_run() -> None:
    """Each against the rung below, analysed anew."""
    run = compare_run(RunFolder.open(RESULTS / "ladder"))
    steps = {(step.arm, step.workload): step for step in run.views.ladder}
    rows = _STEP.findall((RESULTS / "README.md").read_text(encoding="utf-8"))
    assert [arm for arm, *_ in rows] == list(dict.fromkeys(step.arm for step in run.views.ladder))[
        1:
    ]
    for arm, *told in rows:
        workloads = ("systemcalls-SystemCalls", "files", "cnn")
        assert told == [_told(steps[arm, workload]) for workload in workloads]
    assert not any(step.is_confounded for step in run.views.ladder)


def _told(step: LadderStep) -> str:
    if step.outcome == "equivalent":
        return "equivalent within ±5 %"
    if step.outcome in {"not-run", "inconclusive"}:
        return step.outcome.replace("-", " ")
    assert step.step is not None
    low, high = map(_ratio_percent, _ends(step.step))
    change = _ratio_percent(step.step.log_ratio)
    return f"{'+' if step.outcome == 'slower' else ''}{change} % ({low} to {high} %)"


def test_the_table_of_the_cluster_has_the_numbers_of_its_run() -> None:
    """Each node and environment, analysed anew."""
    rows = _NODE.findall((RESULTS / "README.md").read_text(encoding="utf-8"))
    assert [row[:2] for row in rows] == [
        (node, environment)
        for node in ("slurm-1", "slurm-2")
        for environment in ("singularity", "charliecloud")
    ]
    found = envcompare.read(RESULTS / "slurm").comparisons
    margin = RunFolder.open(RESULTS / "slurm").read_run().design.margin
    for node, environment, *told in rows:
        here = found[found["is_primary"] & (found["host"] == node)]
        of_arm = here[here["arm"] == f"{environment}-host"].set_index("workload")
        decided = of_arm.to_dict("index")
        assert told == [_decided(decided[name], margin) for name in ("cnn", "rnn", "files")]


def test_the_text_of_the_cluster_claims_what_its_table_can_carry() -> None:
    """All are equivalent; the text names the widest interval."""
    text = " ".join((RESULTS / "README.md").read_text(encoding="utf-8").split())
    compared = [
        comparison
        for comparison in compare_run(RunFolder.open(RESULTS / "slurm")).comparisons
        if comparison.arm in {"singularity-host", "charliecloud-host"}
    ]
    assert {one.outcome for one in compared} == {"equivalent"}
    low, high = max((_ends(one.mean) for one in compared), key=lambda ends: ends[1] - ends[0])
    ends = f"{_ratio_percent(low)} to {_ratio_percent(high)} %"
    said = f"All {len(compared)} comparisons are equivalent, the widest interval being {ends}."
    assert said in text


def _ends(estimate: Estimate | None) -> tuple[float, float]:
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def _decided(one: Mapping[str, Any], margin: float) -> str:
    if one["outcome"] == "equivalent":
        return f"equivalent within ±{100 * margin:.0f} %"
    change, low, high = (_percent(one[name]) for name in ("ratio", "ratio_low", "ratio_high"))
    told = f"{'+' if one['ratio'] > 1 else ''}{change} % ({low} to {high} %)"
    return f"inconclusive: {told}" if one["outcome"] == "inconclusive" else told


def test_the_zoo_decides_what_its_text_says() -> None:
    """Slower in `files` alone, and equivalent in twelve comparisons."""
    found = envcompare.read(RESULTS / "zoo").comparisons
    primary = found[found["is_primary"] & (found["arm"] != "vm~control")]
    slower = primary[primary["outcome"] == "slower"]
    assert set(slower["workload"]) == {"files"}
    assert sorted(round(100 * (ratio - 1)) for ratio in slower["ratio"]) == [40, 496]
    assert sum(primary["outcome"] == "equivalent") == 12
    assert len(primary) == 36


def test_the_table_of_ranks_has_the_numbers_of_its_runs() -> None:
    """Of both of them, a row for each environment and batch; collectives are those of a step."""
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    runs = [compare_run(RunFolder.open(RESULTS / name)) for name in ("ranks", "ranks-hosts")]
    rows = [
        row for hosts, run in zip(("one", "two"), runs, strict=True) for row in _scaled(hosts, run)
    ]
    assert _RANKS.findall(text) == rows
    one, two = map(_waits, runs)
    told = f"waited for a CPU for {one} % of its time on one host and {two} % on two"
    assert told in " ".join(text.split())
    gains = [row for run in runs for row in run.views.scaling if row.ranks == 2]
    assert {row.speed_up_low for row in gains} == {None}  # no row of the table has an interval


def _waits(run: RunComparison) -> str:
    shares = [row.waited_share for row in run.views.scaling if row.waited_share is not None]
    return f"{100 * min(shares):.0f} to {100 * max(shares):.0f}"


def _scaled(hosts: str, run: RunComparison) -> list[tuple[str, ...]]:
    scaling = run.views.scaling
    counts = {comparison.cell: comparison.primary for comparison in run.comparisons}
    alone = {(row.parameters["batch"], row.arm): row for row in scaling if row.ranks == 1}
    pairs = [(alone[row.parameters["batch"], row.arm], row) for row in scaling if row.ranks == 2]
    return [
        (
            hosts,
            row.arm,
            str(row.parameters["batch"]),
            f"{single.samples_per_s:.0f} → {row.samples_per_s:.0f}",
            f"{counts[row.cell].rounds} ({counts[row.cell].restarts})",
            f"{row.collective_share:.0%} ({row.collective_exposed_share:.0%})".replace("%", " %"),
        )
        for single, row in pairs
    ]


def test_the_tables_of_the_gpu_have_the_numbers_of_their_runs() -> None:
    """Of the timing, analysed anew, and of what was counted in a step."""
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    found = envcompare.read(RESULTS / "h200").comparisons
    primary = found[found["is_primary"]].set_index(["arm", "workload"]).to_dict("index")
    rows = _GPU.findall(text)
    assert [name for name, *_ in rows] == ["docker", "singularity"]
    for name, *told in rows:
        ones = [primary[f"{name}-host", workload] for workload in ("cnn", "rnn")]
        assert told == [_decided(one, 0.05) for one in ones]
    (cell,) = compare_run(RunFolder.open(RESULTS / "h200-counters")).profiles
    counted = _COUNTED.findall(text)
    assert [row[0] for row in counted] == list(COUNTED)
    for title, *told in counted:
        name, tool, unit, size = COUNTED[title]
        values = [
            next(q.per_step for q in arm.quantities if (q.name, q.tool) == (name, tool))
            for arm in cell.arms
        ]
        digits = len(told[0].partition(".")[2])
        assert told == [word for value in values for word in (f"{value / size:.{digits}f}", unit)]


def test_the_text_of_the_gpu_tells_its_kernels_and_how_its_blocks_scatter() -> None:
    """The kernel time of a step, and the spread of blocks of an arm in a restart."""
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    run = compare_run(RunFolder.open(RESULTS / "h200"))
    times = [
        f"{diff.reference_ns / 1e3:.0f} → {diff.arm_ns / 1e3:.0f} µs"
        for cell in run.profiles
        for diff in cell.kernel_diffs
        if "cnn" in cell.cell and diff.identical_kernel_set
    ]
    assert times == ["514 → 518 µs"] * 2
    assert "(CNN 514 → 518 µs a step in both containers)" in text
    blocks: dict[tuple[object, ...], list[float]] = {}
    for one in RunFolder.open(RESULTS / "h200").read_samples().samples:
        if isinstance(one, Block) and not one.warmup:
            mean = sum(one.wall_ns) / one.k
            blocks.setdefault((one.cell, one.restart, one.arm), []).append(math.log(mean))
    spread = statistics.median(statistics.stdev(values) for values in blocks.values())
    assert f"a block of 20 ms by {100 * spread:.0f} % in the median of arms and restarts" in text
