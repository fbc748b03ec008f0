"""Simulate the typical step of whole cells, from the noise of rounds to its printed interval.

Everything statistical is the product's own code. Fixed seed, some 40 minutes on one core; rows are
written as they come.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click
import numpy as np

from bookkeeping import Places, benchmark, commit
from envcompare.analysis.timing.judge import least_restarts
from envcompare.config.settings import PRESETS, Preset
from envcompare.run_folder.records import Design
from envcompare.stats.intervals import ALPHA, Interval
from envcompare.stats.typical import TYPICAL_SHARE, RoundEvidence, own_spread, spread
from envcompare.stats.verdicts import screen
from replay import Cell, printed, replay
from streams import Stream, streams

RAW, PAGE = "simulation.json", "simulation.md"
SEED = 20_261_121
CELLS = 600
EFFECTS = (0.0, 0.01, 0.02, 0.05)
FAMILIES: tuple[tuple[Preset, int], ...] = (
    ("default", 4),
    ("default", 12),
    ("quick", 4),
    ("quick", 12),
)
SPREADS = (0.005, 0.01, 0.02)  # of the restarts of one arm of three; those of the others: 0.3 %
LONE_RESTARTS, LONE_COMPARISONS = (2, 4, 6), (1, 4)
SCREENED, DIFFERENT, DIFFERENCE = 12, 4, 0.03  # comparisons, those that differ, and how much

Row = dict[str, str | int | float | bool]
Rows = Sequence[Mapping[str, str | int | float | bool]]
LEAST_COVERAGE, MOST_FALSE = 0.93, 0.05

_INTRO = """# Simulation of the typical step

`python benchmarks/simulation.py` draws the log ratios of rounds, and lets the product's own
functions do the rest: how long a restart measures, when a cell is looked at, the stopping rule and
the interval. The truth is known, so the table says how often the interval holds it.
{cells} cells a row, {few} with `--strict`, {runs} runs of many comparisons, {screens} screened;
seed {seed}. The Monte Carlo error of a coverage of 95 % is ± {error:.1f} % over {cells} cells,
± {few_error:.1f} % over {few} and ± {run_error:.1f} % over {runs} runs.

Goals, for streams whose restarts scatter by up to 1 %: coverage at least 93 % in every row and
false positives at most 5 % beyond the Monte Carlo error. Streams beyond are there to show what
happens; the goals leave them out.

A simulated cell is an arm and its reference, at the costs of four arms: a launch takes 12 s, and a
block one step or 20 ms. A real cell has the control as well, and the spread of its restarts is
pooled over all its arms, so it is known better. The interval is that of the typical step, and
cells stop by it. [Headline and verdict](estimator.md) has the mean, what is called equivalent, and
the width of both at 60 s.
"""


def tables(found: Iterable[Stream], *, cells: int) -> Iterator[Row]:
    """Yield every row of so many cells, half with `--strict`; families have fewer runs."""
    for stream in found:
        for preset in PRESETS:
            share = cells // 2 if preset == "strict" else cells
            for effect in EFFECTS:
                yield single(stream, preset, effect, cells=share)
        for preset, comparisons in FAMILIES:
            yield family(stream, preset, comparisons, count=cells // 4)
        yield screened(stream, count=cells // 8)
    for own in SPREADS:
        for restarts in LONE_RESTARTS:
            for comparisons in LONE_COMPARISONS:
                yield lone(own, restarts, comparisons, cells=5 * cells)


def single(stream: Stream, preset: Preset, effect: float, *, cells: int) -> Row:
    """Simulate cells that stand for themselves."""
    plan = design(preset)
    generator = seeded(stream.name, preset, str(effect))
    found = [replay(stream, plan, generator, effect=effect) for _ in range(cells)]
    return {
        "table": "single", **_about(stream), "preset": preset, "effect": effect, "cells": cells,
        **shares(found, effect, plan),
        **_costs(found),
    }  # fmt: skip


def family(stream: Stream, preset: Preset, comparisons: int, *, count: int) -> Row:
    """Simulate runs of so many equal comparisons."""
    plan = design(preset)
    generator = seeded(stream.name, "family", preset, str(comparisons))
    runs = [
        [replay(stream, plan, generator, comparisons=comparisons) for _ in range(comparisons)]
        for _ in range(count)
    ]
    every = [cell for run in runs for cell in run]
    return {
        "table": "family", **_about(stream), "preset": preset,
        "comparisons": comparisons, "runs": count,
        "all_cover": _rate(
            all(covers(printed(cell.evidence, plan, comparisons), 0.0) for cell in run)
            for run in runs
        ),
        **shares(every, 0.0, plan, comparisons=comparisons),
        **_costs(every),
    }  # fmt: skip


def lone(own: float, restarts: int, comparisons: int, *, cells: int) -> Row:
    """Simulate equal arms, of which the restarts of one scatter by `own`, at a single look.

    A restart has 40 rounds; half of their variance is that of the reference, which all arms share.
    """
    generator = seeded("lone", str(own), str(restarts), str(comparisons))
    level = 1 - TYPICAL_SHARE * ALPHA / comparisons
    found = [_lone(generator, (own, 0.003, 0.003), restarts).interval(level=level)
             for _ in range(cells)]  # fmt: skip
    widths = [one.half_width for one in found]
    return {
        "table": "lone", "stream": "lone", "beyond": own > 0.01,
        "spread": own, "restarts": restarts, "comparisons": comparisons, "cells": cells,
        "coverage": _rate(covers(one, 0.0) for one in found),
        "by_restart": _rate(one.unit == "restart" for one in found),
        "half_width": round(float(np.median(widths)), 5),
        "widest": round(float(np.quantile(widths, 0.95)), 5),
    }  # fmt: skip


def _lone(
    generator: np.random.Generator, spreads: tuple[float, ...], restarts: int
) -> RoundEvidence:
    """Return what the first arm's rounds say, beside the others of its cell."""
    noise = 0.05 / math.sqrt(2) * generator.standard_normal((1 + len(spreads), restarts, 40))
    levels = np.asarray(spreads)[:, None] * generator.standard_normal((len(spreads), restarts))
    ratios = noise[1:] - noise[0] + levels[:, :, None]
    arms = [tuple(map(tuple, ratio.tolist())) for ratio in ratios]
    return RoundEvidence(
        groups=arms[0], spread=own_spread(arms[0], spread(arms)), generations=restarts
    )


def _about(stream: Stream) -> Row:
    return {"stream": stream.name, "beyond": stream.is_beyond}


def screened(stream: Stream, *, count: int) -> Row:
    """Simulate `--screen` over comparisons of which some differ."""
    plan = design("default", screen=True)
    generator = seeded(stream.name, "screen")
    effects = [DIFFERENCE] * DIFFERENT + [0.0] * (SCREENED - DIFFERENT)
    false_shares, missed_shares, hits = [], [], []
    for _ in range(count):
        run = [replay(stream, plan, generator, effect=e, comparisons=SCREENED) for e in effects]
        found = screen([cell.evidence for cell in run], planned=SCREENED)
        both = list(zip(effects, found, strict=True))
        chosen = [(e, case.interval) for e, case in both if case.is_selected]
        false_shares.append(sum(e == 0 for e, _ in chosen) / max(1, len(chosen)))
        missed_shares.append(sum(not covers(i, e) for e, i in chosen) / max(1, len(chosen)))
        hits.append(sum(e > 0 for e, _ in chosen) / DIFFERENT)
    return {
        "table": "screen", **_about(stream),
        "comparisons": SCREENED, "different": DIFFERENT, "effect": DIFFERENCE, "runs": count,
        "false_discoveries": _mean(false_shares), "false_coverage": _mean(missed_shares),
        "power": _mean(hits),
    }  # fmt: skip


def design(preset: Preset, *, screen: bool = False) -> Design:
    """Return the design the planner would make."""
    values = PRESETS[preset]
    return Design(
        preset=preset,
        margin=values.margin,
        target=values.target,
        budget_s=values.budget_s,
        min_restarts=values.min_restarts,
        threads=1,
        screen=screen,
    )


def seeded(*parts: str) -> np.random.Generator:
    """Return the generator of a row: the same whatever was simulated before it."""
    return np.random.default_rng([SEED, zlib.crc32("/".join(parts).encode())])


def covers(found: Interval, effect: float) -> bool:
    """Tell whether the interval holds the truth; one without ends does."""
    return abs(found.mean - math.log1p(effect)) <= found.half_width


def shares(found: list[Cell], effect: float, plan: Design, *, comparisons: int = 1) -> Row:
    """Return how often intervals are right; below the least restarts nothing rests on them."""
    intervals = [printed(cell.evidence, plan, comparisons) for cell in found]
    ends = [
        (one.low, one.high) if is_enough(cell.evidence, plan) else (None, None)
        for one, cell in zip(intervals, found, strict=True)
    ]
    above = [low is not None and low > 0 for low, _ in ends]
    below = [high is not None and high < 0 for _, high in ends]
    away = [up or down for up, down in zip(above, below, strict=True)]
    return {
        "coverage": _rate(covers(interval, effect) for interval in intervals),
        "excludes_zero": _rate(away),
        "wrong_side": _rate(below if effect else away),
        "half_width": _mean(
            [interval.half_width for interval in intervals if math.isfinite(interval.half_width)]
        ),
    }


def is_enough(evidence: RoundEvidence, plan: Design) -> bool:
    """Tell whether there are the restarts that a verdict needs."""
    least = least_restarts(preset=plan.preset, planned=plan.min_restarts, is_program=False)
    return len(evidence.groups) >= least


def _costs(found: list[Cell]) -> Row:
    return {
        "restarts": _mean([len(one.evidence.groups) for one in found]),
        "rounds": _mean([sum(map(len, one.evidence.groups)) for one in found]),
        "seconds": _mean([one.seconds for one in found]),
        "over_budget": _rate(one.stopped_by == "budget" for one in found),
    }


def _rate(found: Iterable[bool]) -> float:
    return _mean(list(found))


def _mean(found: list[float] | list[bool] | list[int]) -> float:
    return round(float(np.mean(found)), 5) if found else 0.0


@benchmark(__doc__, smoke=("--cells", "8", "--stream", "normal"))
@click.option("--cells", default=CELLS, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="[default: among the results]")
@click.option("--docs", type=click.Path(path_type=Path), help="[default: among the pages]")
@click.option("--synthetic", is_flag=True, help="Leave the recorded streams out.")
@click.option("--stream", "only", multiple=True, help="Simulate these alone.")
def main(  # noqa: PLR0913 — an option each
    places: Places,
    *,
    cells: int,
    out: Path | None,
    docs: Path | None,
    only: tuple[str, ...],
    synthetic: bool,
) -> None:
    """Write the rows and the page as they grow."""
    out, docs = out or places.results / RAW, docs or places.docs / PAGE
    rows: list[Row] = []
    known = [one for one in streams() if not (synthetic and one.name.startswith("recorded-"))]
    chosen = [one for one in known if not only or one.name in only]
    for path in (out, docs):
        path.parent.mkdir(parents=True, exist_ok=True)
    for row in tables(chosen, cells=cells):
        rows.append(row)
        print(*row.values(), flush=True)
        content = {**commit(), "seed": SEED, "cells": cells, "rows": rows}
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        docs.write_text(_page(rows, chosen, cells=cells, seed=SEED), encoding="utf-8")


def write_page(places: Places) -> None:
    """Write the page of what is kept."""
    content = json.loads((places.results / RAW).read_text(encoding="utf-8"))
    known = {row["stream"] for row in content["rows"]}
    chosen = [one for one in streams() if one.name in known]
    written = _page(content["rows"], chosen, cells=content["cells"], seed=content["seed"])
    places.write_page(PAGE, written)


def _page(rows: Rows, found: Sequence[Stream], *, cells: int, seed: int) -> str:
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
    listed = "\n".join(f"- `{one.name}`: {one.note}" for one in found)
    parts = [
        intro,
        f"## Goals missed\n\n{_missed(rows)}",
        f"## Beyond the goals\n\n{_beyond(rows)}",
        f"## Streams\n\n{listed}",
        "## One comparison\n\nAt effect 0 what excludes 0 is a false positive; elsewhere it is "
        f"power.\n\n{_single(rows)}",
        "## Many equal comparisons in one run\n\n“All cover” is the share of runs in which every "
        f"interval holds the truth.\n\n{_family(rows)}",
        "## One arm of three whose restarts scatter\n\nThose of the other two scatter by 0.3 %; "
        "40 rounds a restart, one look, rounds of 5 %.\n\n" + _scattering(rows),
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
        )
        found += [f"{name}: {key} {_percent(row[key])}" for key, holds in checks if not holds]
    return found


def _most_false(row: Mapping[str, str | int | float | bool]) -> float:
    """Return 5 % with two standard errors of so many cells or runs."""
    count = int(row.get("cells", row.get("runs", 1)))
    return MOST_FALSE + 2 * math.sqrt(MOST_FALSE * (1 - MOST_FALSE) / count)


def _missed(rows: Rows) -> str:
    return "\n".join(f"- {text}" for text in missed_goals(rows)) or "None."


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
    heads = ("stream", "preset", "effect", "covers", "excludes 0", "half-width",
             "restarts", "rounds", "seconds", "budget spent")  # fmt: skip
    lines = [
        (
            row["stream"], row["preset"], f"{float(row['effect']):.0%}", _percent(row["coverage"]),
            _percent(row["excludes_zero"]),
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
             "half-width", "seconds a cell")  # fmt: skip
    lines = [
        (
            row["stream"], row["preset"], row["comparisons"], _percent(row["all_cover"]),
            _percent(row["coverage"]), _percent(row["excludes_zero"]),
            _percent(row["half_width"], digits=2), f"{float(row['seconds']):.0f}",
        )
        for row in rows
        if row["table"] == "family"
    ]  # fmt: skip
    return _table(heads, lines)


def _scattering(rows: Rows) -> str:
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
    heads = ("stream", "false among the selected", "selected that do not cover", "found")
    lines = [
        (
            row["stream"], _percent(row["false_discoveries"]), _percent(row["false_coverage"]),
            _percent(row["power"]),
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


if __name__ == "__main__":
    main()
