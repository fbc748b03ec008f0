"""The page of the simulation: its rows as tables, the goals and what misses them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from streams import Stream

Rows = Sequence[Mapping[str, str | int | float | bool]]
LEAST_COVERAGE, MOST_FALSE, LEAST_EQUIVALENT = 0.93, 0.05, 0.90

_INTRO = """# Simulation of the whole pipeline

`python benchmarks/simulation.py` draws the log ratios of rounds, and lets the product's own
functions do the rest: how long a restart measures, when a cell is looked at, the stopping rule, the
interval and the verdict. The truth is known, so the table says how often the answer is right.
{cells} cells a row, {few} with `--strict`, {runs} runs of many comparisons, {screens} screened;
seed {seed}. The Monte Carlo error of a coverage of 95 % is ± {error:.1f} % over {cells} cells,
± {few_error:.1f} % over {few} and ± {run_error:.1f} % over {runs} runs.

Goals, for streams whose restarts scatter by up to 1 %: coverage at least 93 % in every row, false
positives at most 5 % beyond the Monte Carlo error, equal environments called equivalent in at least
90 % of the runs at the noise of a calm host within the default budget. Streams beyond are there to
show what happens; the goals leave them out.

A simulated cell is an arm and its reference, at the costs of four arms: a launch takes 12 s, and a
block one step or 20 ms. A real cell has the control as well, and the spread of its restarts is
pooled over all its arms, so it is known better. The interval is that of the typical step; the mean,
which has a fifth of the error to itself, is not simulated.
"""

_NOT_TESTED = (
    "Not tested: equivalence at the noise of a calm host; no stream of one has been recorded."
)


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
        f"## Beyond the goals\n\n{_beyond(rows)}",
        f"## Streams\n\n{streams}",
        "## One comparison\n\nAt effect 0 what excludes 0 is a false positive; elsewhere it is "
        f"power.\n\n{_single(rows)}",
        "## Many equal comparisons in one run\n\n“All cover” is the share of runs in which every "
        f"interval holds the truth.\n\n{_family(rows)}",
        "## One arm of three whose restarts scatter\n\nThose of the other two scatter by 0.3 %; "
        "40 rounds a restart, one look, rounds of 5 %.\n\n" + _lone(rows),
        f"## Screening\n\n12 comparisons, of which 4 differ by 3 %.\n\n{_screen(rows)}",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def missed_goals(rows: Rows) -> list[str]:
    """Return a sentence for each goal a row misses; what is not printed has no goal."""
    found = []
    for row in (one for one in rows if not one["beyond"]):
        name = ", ".join(
            str(row[key])
            for key in ("stream", "spread", "preset", "effect", "comparisons")
            if key in row
        )
        checks = (
            ("coverage", float(row.get("coverage", 1)) >= LEAST_COVERAGE),
            ("all_cover", float(row.get("all_cover", 1)) >= LEAST_COVERAGE),
            ("wrong_side", float(row.get("wrong_side", 0)) <= _most_false(row)),
            ("false_discoveries", float(row.get("false_discoveries", 0)) <= _most_false(row)),
            ("false_coverage", float(row.get("false_coverage", 0)) <= _most_false(row)),
            ("equivalent", not _is_calm_and_equal(row) or _is_mostly_equivalent(row)),
        )
        found += [f"{name}: {key} {_percent(row[key])}" for key, holds in checks if not holds]
    return found


def _is_calm_and_equal(row: Mapping[str, object]) -> bool:
    is_default = row["table"] == "single" and row["preset"] == "default"
    return is_default and row["effect"] == 0 and bool(row["calm"])


def _is_mostly_equivalent(row: Mapping[str, str | int | float | bool]) -> bool:
    return float(row["equivalent"]) >= LEAST_EQUIVALENT


def _most_false(row: Mapping[str, str | int | float | bool]) -> float:
    """Return 5 % with two standard errors of so many cells or runs."""
    count = int(row.get("cells", row.get("runs", 1)))
    return MOST_FALSE + 2 * math.sqrt(MOST_FALSE * (1 - MOST_FALSE) / count)


def _missed(rows: Rows) -> str:
    missed = "\n".join(f"- {text}" for text in missed_goals(rows)) or "None."
    return missed if any(map(_is_calm_and_equal, rows)) else f"{missed}\n\n{_NOT_TESTED}"


def _beyond(rows: Rows) -> str:
    """Say how often intervals cover where restarts scatter further than the goals ask for."""
    own = [row for row in rows if row["table"] == "single" and row["beyond"]]
    pairs = dict.fromkeys((str(row["stream"]), str(row["preset"])) for row in own)
    lines = []
    for stream, preset in pairs:
        of_pair = [row for row in own if (row["stream"], row["preset"]) == (stream, preset)]
        lowest = min(float(row["coverage"]) for row in of_pair)
        highest = max(float(row["coverage"]) for row in of_pair)
        lines.append(
            f"- `{stream}`, {preset}: {_percent(lowest)} to {_percent(highest)} of the intervals "
            "cover."
        )
    why = (
        "The prior takes restarts to scatter by 0.75 %, and few of them cannot show that they "
        "scatter by more. `--strict` rests on the restarts alone."
    )
    return "\n".join((*lines, "", why)) if lines else "None was simulated."


def _single(rows: Rows) -> str:
    heads = ("stream", "preset", "effect", "covers", "excludes 0", "equivalent", "inconclusive",
             "half-width", "restarts", "rounds", "seconds", "budget spent")  # fmt: skip
    lines = [
        (
            row["stream"], row["preset"], f"{float(row['effect']):.0%}", _percent(row["coverage"]),
            _percent(row["excludes_zero"]),
            _percent(row["equivalent"]), _percent(row["inconclusive"]),
            _percent(row["half_width"], digits=2), f"{float(row['restarts']):.1f}",
            f"{float(row['rounds']):.0f}", f"{float(row['seconds']):.0f}",
            _percent(row["over_budget"]),
        )
        for row in rows
        if row["table"] == "single"
    ]  # fmt: skip
    return _table(heads, lines)


def _family(rows: Rows) -> str:
    heads = ("stream", "preset", "comparisons", "all cover", "each covers", "excludes 0",
             "equivalent", "half-width", "seconds a cell")  # fmt: skip
    lines = [
        (
            row["stream"], row["preset"], row["comparisons"], _percent(row["all_cover"]),
            _percent(row["coverage"]), _percent(row["excludes_zero"]), _percent(row["equivalent"]),
            _percent(row["half_width"], digits=2), f"{float(row['seconds']):.0f}",
        )
        for row in rows
        if row["table"] == "family"
    ]  # fmt: skip
    return _table(heads, lines)


def _lone(rows: Rows) -> str:
    heads = ("restarts of the arm scatter by", "restarts", "comparisons", "covers", "goal",
             "restarts are the units", "half-width", "95 % are narrower than")  # fmt: skip
    lines = [
        (
            _percent(row["spread"]), row["restarts"], row["comparisons"],
            _percent(row["coverage"]), "none" if row["beyond"] else "93 %",
            _percent(row["by_restart"]), _percent(row["half_width"], digits=2),
            _percent(row["widest"], digits=2),
        )
        for row in rows
        if row["table"] == "lone"
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
