"""The page of the simulation: its rows as tables, the goals and what misses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streams import Stream

Rows = Sequence[Mapping[str, str | int | float | bool]]
LEAST_COVERAGE, MOST_FALSE, LEAST_EQUIVALENT = 0.93, 0.05, 0.90

_INTRO = """# Simulation of the whole pipeline

`python benchmarks/simulation.py` draws block noise, and lets the product's own functions do the
rest: trimmed generation means, restarts, looks, the stopping rule, the interval and the verdict.
The truth is known, so the table says how often the answer is right. {cells} cells a row, {few} with
`--strict`, {runs} runs of many comparisons, {screens} screened; seed {seed}. The Monte Carlo error
of a coverage of 95 % is ± {error:.1f} % over {cells} cells, ± {few_error:.1f} % over {few} and
± {run_error:.1f} % over {runs} runs.

Goals: coverage at least 93 % in every row, false positives at most 5 %, equal environments called
equivalent in at least 90 % of the runs at the noise of a calm host within the default budget.

A simulated cell is an arm and its reference. A real one has the control as well: its rounds take
half as long again, and the variance of a ratio is up to a quarter smaller.
"""

_NOT_TESTED = (
    "Not tested: equivalence at the noise of a calm host; no stream of one has been recorded."
)

_CHOICES = """## What was chosen by it

Each by changing one thing and simulating equal comparisons again, 1500 cells or 60 runs of 12.

- A cell may stop as soon as its interval lies inside the margin: `normal` takes 16 generations
  instead of 30, `restarts` 21 instead of 41. The price is looks that may call equivalent what
  differs by the whole margin: at most 4 % do by default, 6 % with `--strict` under `drift`.
- Half-widths are multiplied by 1.2 for looking. At 1.1 `restarts` has 4.5 % false positives instead
  of 3.8 %. An earlier version of the streams, with longer rounds, covered an effect as large as the
  margin in 93 to 97 % then (600 to 1200 cells a row).
- The confidence sequence is widened by Student's quantile over the normal one, since a cell has few
  restarts: without that `restarts` has 5.3 % false positives.
- The restart variance is pooled only where the budget ended a cell. Pooled everywhere, 49 % of
  `normal` cells in runs of 12 are called equivalent instead of all: the rule had stopped them on
  another interval. Where the budget ends many cells pooling decides more of them, as the rows of
  `quick` above show.
- `--strict` never pools: its intervals rest on the restarts of their own cell alone.
"""


def page(rows: Rows, found: Sequence[Stream], *, cells: int, seed: int) -> str:
    """Return the page as Markdown."""
    few, runs = cells // 2, cells // 4
    errors = [196 * (0.95 * 0.05 / count) ** 0.5 for count in (cells, few, runs)]
    intro = _INTRO.format(
        cells=cells,
        few=few,
        runs=runs,
        screens=cells // 8,
        seed=seed,
        error=errors[0],
        few_error=errors[1],
        run_error=errors[2],
    )
    streams = "\n".join(f"- `{one.name}`: {one.note}" for one in found)
    parts = [
        intro,
        f"## Goals missed\n\n{_missed(rows)}",
        f"## Streams\n\n{streams}",
        "## One comparison\n\nAt effect 0 what excludes 0 is a false positive; elsewhere it is "
        f"power.\n\n{_single(rows)}",
        "## Many equal comparisons in one run\n\n“All cover” is the share of runs in which every "
        "interval holds the truth. “Own” rests on the cell alone; “printed” takes the restart "
        "variance of all cells where the budget ended a cell and there are 8 or more.\n\n"
        f"{_family(rows)}",
        f"## Screening\n\n12 comparisons, of which 4 differ by 3 %.\n\n{_screen(rows)}",
        _CHOICES,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def missed_goals(rows: Rows) -> list[str]:
    """Return a sentence for each goal a row misses; what is not printed has no goal."""
    found = []
    for row in rows:
        name = ", ".join(
            str(row[key])
            for key in ("stream", "preset", "effect", "comparisons", "interval")
            if key in row
        )
        checks = (
            ("coverage", float(row.get("coverage", 1)) >= LEAST_COVERAGE),
            ("all_cover", float(row.get("all_cover", 1)) >= LEAST_COVERAGE),
            ("wrong_side", float(row.get("wrong_side", 0)) <= _most_false(row)),
            ("false_discoveries", float(row.get("false_discoveries", 0)) <= MOST_FALSE),
            ("false_coverage", float(row.get("false_coverage", 0)) <= MOST_FALSE),
            ("equivalent", not _is_calm_and_equal(row) or _is_mostly_equivalent(row)),
        )
        found += [f"{name}: {key} {_percent(row[key])}" for key, holds in checks if not holds]
    return found


def _is_calm_and_equal(row: Mapping[str, object]) -> bool:
    is_default = row["table"] == "single" and row["preset"] == "default"
    return is_default and row["effect"] == 0 and bool(row["calm"])


def _is_mostly_equivalent(row: Mapping[str, str | int | float | bool]) -> bool:
    return float(row["equivalent"]) >= LEAST_EQUIVALENT


def _most_false(row: Mapping[str, object]) -> float:
    return MOST_FALSE if row["table"] == "single" else 1.0


def _missed(rows: Rows) -> str:
    missed = "\n".join(f"- {text}" for text in missed_goals(rows)) or "None."
    return missed if any(map(_is_calm_and_equal, rows)) else f"{missed}\n\n{_NOT_TESTED}"


def _single(rows: Rows) -> str:
    heads = ("stream", "preset", "effect", "covers", "excludes 0", "equivalent", "inconclusive",
             "half-width", "generations", "seconds", "budget spent")  # fmt: skip
    lines = [
        (
            row["stream"], row["preset"], f"{float(row['effect']):.0%}", _percent(row["coverage"]),
            _percent(row["excludes_zero"]),
            _percent(row["equivalent"]), _percent(row["inconclusive"]),
            _percent(row["half_width"], digits=2), f"{float(row['generations']):.0f}",
            f"{float(row['seconds']):.0f}", _percent(row["over_budget"]),
        )
        for row in rows
        if row["table"] == "single"
    ]  # fmt: skip
    return _table(heads, lines)


def _family(rows: Rows) -> str:
    heads = ("stream", "preset", "comparisons", "interval", "all cover", "each covers",
             "equivalent", "half-width", "seconds a cell")  # fmt: skip
    lines = [
        (
            row["stream"], row["preset"], row["comparisons"], row["interval"],
            _percent(row["all_cover"]), _percent(row["coverage"]), _percent(row["equivalent"]),
            _percent(row["half_width"], digits=2), f"{float(row['seconds']):.0f}",
        )
        for row in rows
        if row["table"] == "family"
    ]  # fmt: skip
    return _table(heads, lines)


def _screen(rows: Rows) -> str:
    heads = ("stream", "false among the selected", "selected that do not cover", "found",
             "equal called equivalent")  # fmt: skip
    lines = [
        (
            row["stream"], _percent(row["false_discoveries"]), _percent(row["false_coverage"]),
            _percent(row["power"]), _percent(row["equivalent"]),
        )
        for row in rows
        if row["table"] == "screen"
    ]  # fmt: skip
    return _table(heads, lines)


def _table(heads: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    rule = "|".join("---" for _ in heads)
    body = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
    return f"| {' | '.join(heads)} |\n|{rule}|\n{body}"


def _percent(share: object, *, digits: int = 1) -> str:
    return f"{100 * float(str(share)):.{digits}f} %"
