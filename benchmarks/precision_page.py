"""The table of benchmarks/precision.py: error, half-width and their paired tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from scipy import stats

from bookkeeping import Places, write_json
from envcompare.stats.intervals import Interval, interval
from envcompare.stats.typical import MIN_ROUNDS, RoundEvidence
from ground import budgets, evidence, read_blocks, schedule_text

LEVEL = 0.95
METHODS = ("lockstep", "interleaved", "hyperfine")
TOO_SHORT = "too few pairs for an interval: give each method more seconds"
PRINTED = "lockstep, as a run prints it"  # widened for looking


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One estimate of the log ratio with the half-width of its 95 % interval."""

    mean: float
    half_width: float
    pairs: int
    seconds: float


def write_page(places: Places, *, truth: float) -> str:
    """Write result and page from the raw data; return the page."""
    paths = sorted((places.results / "precision").glob("repeat-*.json"))
    raw = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    folder = places.results / "precision"
    trials = [read_blocks(folder / one["lockstep"]["samples"]) for one in raw]
    repeats = [_found(one, evidence(blocks)) for one, blocks in zip(raw, trials, strict=True)]
    by_method = {name: [one[name] for one in repeats] for name in (*METHODS, PRINTED)}
    rows = {name: _row(found, truth) for name, found in by_method.items()}
    kept = {"truth": truth, "repeats": len(repeats), "rows": rows}
    write_json(places.results / "precision.json", kept)
    head, tests = _head(len(repeats), budgets(raw), schedule_text(trials)), _tests(by_method, truth)
    page = "\n".join((*head, *map(_line, rows.items()), *tests))
    measured = [one for repeat in raw for one in repeat.get("conditions", {}).values()]
    places.write_page("precision.md", page + "\n", measured)
    return page


def _found(raw: dict[str, Any], lockstep: RoundEvidence | None) -> dict[str, Found]:
    if lockstep is None:
        raise click.ClickException(TOO_SHORT)
    seconds = {name: raw[f"{name}_s"] for name in METHODS}
    rounds, printed = sum(map(len, lockstep.groups)), lockstep.printed(alpha=1 - LEVEL)
    return {
        "lockstep": _of_interval(lockstep.interval(level=LEVEL), seconds["lockstep"], rounds),
        PRINTED: _of_interval(printed, seconds["lockstep"], rounds),
        "interleaved": _paired(raw["interleaved"], seconds["interleaved"]),
        "hyperfine": _welch(raw["hyperfine"], seconds["hyperfine"]),
    }


def _of_interval(found: Interval | None, seconds: float, pairs: int) -> Found:
    if found is None:
        raise click.ClickException(TOO_SHORT)
    return Found(mean=found.mean, half_width=found.half_width, pairs=pairs, seconds=seconds)


def _paired(times: dict[str, list[float]], seconds: float) -> Found:
    ratios = np.log(times["b"]) - np.log(times["a"])
    found = interval(ratios.tolist(), level=LEVEL)
    return _of_interval(found, seconds, ratios.size)


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


def _head(repeats: int, each: str, schedule: str) -> tuple[str, ...]:
    return (
        "# Precision: a true slowdown of 2 %, three ways in equal time",
        "",
        f"{repeats} repetitions; in each, every method has {each or 'the same time'}, in random "
        "order "
        "(`python benchmarks/precision.py`; raw data in `benchmarks/results/precision/`). Lockstep "
        "has the two arms alone here, as the others do, without the A/A control that a run adds; "
        "all three see the allocator settings of `--stabilise`."
        f"{schedule}",
        "",
        "| method | RMSE | half-width (95 %), median | covers the truth | excludes 0 "
        "| rounds or pairs | seconds |",
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
        widths = np.log((own / other)[np.isfinite(own) & np.isfinite(other)])
        ratio = float(np.exp(np.median(widths)))
        p_value = float(stats.wilcoxon(widths).pvalue)
        p_error = float(stats.wilcoxon(errors["lockstep"], errors[name]).pvalue)
        lines += [
            "",
            f"Against {name}: the half-width of lockstep is {ratio:.2f} of its own (median of the "
            f"{widths.size} repetitions in which both have an interval; Wilcoxon signed-rank "
            f"p = {p_value:.1g}), and its error is smaller in "
            f"{np.mean(errors['lockstep'] < errors[name]):.0%} of the repetitions "
            f"(p = {p_error:.1g}).",
        ]
    missing = int(np.isinf(own).sum())
    if missing:
        lines += [
            "",
            f"In {missing} repetitions lockstep has fewer than {MIN_ROUNDS} rounds, so no "
            "interval; that counts as wide as can be, covers the truth and does not exclude 0.",
        ]
    return tuple(lines)
