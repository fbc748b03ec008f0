"""The table of benchmarks/precision.py: error, half-width and their paired tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from envcompare.metrics import estimate
from envcompare.stats.intervals import Interval, interval, printed_interval
from ground import DOCS, RESULTS, read_blocks, write_json

LEVEL = 0.95
METHODS = ("lockstep", "interleaved", "hyperfine")
PRINTED = "lockstep, as a run prints it"  # widened for looking


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One estimate of the log ratio with the half-width of its 95 % interval."""

    mean: float
    half_width: float
    pairs: int
    seconds: float


def write_page(folder: Path, *, truth: float, budget_s: float) -> str:
    """Write result and page from the raw data; return the page."""
    repeats = [_found(folder, path) for path in sorted(folder.glob("repeat-*.json"))]
    by_method = {name: [one[name] for one in repeats] for name in (*METHODS, PRINTED)}
    rows = {name: _row(found, truth) for name, found in by_method.items()}
    write_json(RESULTS / "precision.json", {"truth": truth, "repeats": len(repeats), "rows": rows})
    page = "\n".join(
        (*_head(len(repeats), budget_s), *map(_line, rows.items()), *_tests(by_method, truth))
    )
    DOCS.mkdir(parents=True, exist_ok=True)
    (DOCS / "precision.md").write_text(page + "\n", encoding="utf-8")
    return page


def _found(folder: Path, path: Path) -> dict[str, Found]:
    raw = json.loads(path.read_text(encoding="utf-8"))
    seconds = {name: raw[f"{name}_s"] for name in METHODS}
    _, groups = estimate(
        read_blocks(folder / raw["lockstep"]["samples"]), arm="b", reference="a", metric="net"
    )
    printed = printed_interval(groups, comparisons=1, is_strict=False)
    return {
        "lockstep": _lockstep(interval(groups, level=LEVEL), seconds["lockstep"]),
        PRINTED: _lockstep(printed, seconds["lockstep"]),
        "interleaved": _paired(raw["interleaved"], seconds["interleaved"]),
        "hyperfine": _welch(raw["hyperfine"], seconds["hyperfine"]),
    }


def _lockstep(own: Interval, seconds: float) -> Found:
    return Found(mean=own.mean, half_width=own.half_width, pairs=own.generations, seconds=seconds)


def _paired(times: dict[str, list[float]], seconds: float) -> Found:
    ratios = np.log(times["b"]) - np.log(times["a"])
    own = interval(tuple((one,) for one in ratios.tolist()), level=LEVEL)
    return Found(mean=own.mean, half_width=own.half_width, pairs=ratios.size, seconds=seconds)


def _welch(times: dict[str, list[float]], seconds: float) -> Found:
    a, b = np.log(times["a"]), np.log(times["b"])
    low, high = stats.ttest_ind(b, a, equal_var=False).confidence_interval(LEVEL)
    return Found(
        mean=float(b.mean() - a.mean()),
        half_width=float(high - low) / 2,
        pairs=a.size,
        seconds=seconds,
    )


def _row(found: list[Found], truth: float) -> dict[str, float]:
    errors = np.asarray([one.mean - truth for one in found])
    halves = np.asarray([one.half_width for one in found])
    return {
        "rmse": float(np.sqrt((errors**2).mean())),
        "half_width": float(np.median(halves)),
        "covers": float((np.abs(errors) <= halves).mean()),
        "excludes_0": float(np.mean([abs(one.mean) > one.half_width for one in found])),
        "pairs": float(np.median([one.pairs for one in found])),
        "seconds": float(np.median([one.seconds for one in found])),
    }


def _head(repeats: int, budget_s: float) -> tuple[str, ...]:
    return (
        "# Precision: a true slowdown of 2 %, three ways in equal time",
        "",
        f"{repeats} repetitions; in each, every method has {budget_s:.0f} s, in random order "
        "(`python benchmarks/precision.py`; raw data in `benchmarks/results/precision/`). Lockstep "
        "has the two arms alone here, as the others do, without the A/A control that a run adds; "
        "all three see the allocator settings of `--stabilise`.",
        "",
        "| method | RMSE | half-width (95 %), median | covers the truth | excludes 0 "
        "| generations or pairs | seconds |",
        "|---|---|---|---|---|---|---|",
    )


def _line(row: tuple[str, dict[str, float]]) -> str:
    name, found = row
    return (
        f"| {name} | {found['rmse']:.2%} | ±{found['half_width']:.2%} | {found['covers']:.0%} | "
        f"{found['excludes_0']:.0%} | {found['pairs']:.0f} | {found['seconds']:.0f} |"
    )


def _tests(by_method: dict[str, list[Found]], truth: float) -> tuple[str, ...]:
    """Compare widths and errors of lockstep with those of each other method, repeat by repeat."""
    lines = []
    own = np.asarray([one.half_width for one in by_method["lockstep"]])
    errors = {
        name: np.abs([one.mean - truth for one in found]) for name, found in by_method.items()
    }
    for name in METHODS[1:]:
        other = np.asarray([one.half_width for one in by_method[name]])
        ratio = float(np.exp(np.median(np.log(own / other))))
        p_value = float(stats.wilcoxon(np.log(own / other)).pvalue)
        p_error = float(stats.wilcoxon(errors["lockstep"], errors[name]).pvalue)
        lines += [
            "",
            f"Against {name}: the half-width of lockstep is {ratio:.2f} of its own (median of the "
            f"pairs; Wilcoxon signed-rank p = {p_value:.1g}), and its error is smaller in "
            f"{np.mean(errors['lockstep'] < errors[name]):.0%} of the repetitions "
            f"(p = {p_error:.1g}).",
        ]
    return tuple(lines)
