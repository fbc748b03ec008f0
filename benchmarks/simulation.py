"""Simulate whole cells, from the noise of rounds to the verdict, and say how often it is right.

Everything statistical is the product's own code. Fixed seed, one core, below ten minutes; rows are
written as they come.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import numpy as np

from bookkeeping import Places, benchmark, commit
from envcompare.analysis.timing.judge import least_restarts
from envcompare.config.settings import PRESETS, Preset
from envcompare.run_folder.records import Design
from envcompare.stats.intervals import ALPHA, Interval, screen, verdict
from envcompare.stats.typical import TYPICAL_SHARE, RoundEvidence, own_spread, spread
from replay import Cell, printed, replay
from simulation_page import page
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
        "table": "lone", "stream": "lone", "calm": False, "beyond": own > 0.01,
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
    arms = [tuple(map(tuple, one.tolist())) for one in ratios]
    return RoundEvidence(
        groups=arms[0], spread=own_spread(arms[0], spread(arms)), generations=restarts
    )


def _about(stream: Stream) -> Row:
    return {"stream": stream.name, "calm": stream.is_calm, "beyond": stream.is_beyond}


def screened(stream: Stream, *, count: int) -> Row:
    """Simulate `--screen` over comparisons of which some differ."""
    plan = design("default", screen=True)
    generator = seeded(stream.name, "screen")
    effects = [DIFFERENCE] * DIFFERENT + [0.0] * (SCREENED - DIFFERENT)
    false_shares, missed_shares, hits, equivalent = [], [], [], []
    for _ in range(count):
        run = [replay(stream, plan, generator, effect=e, comparisons=SCREENED) for e in effects]
        found = screen([cell.evidence for cell in run], planned=SCREENED)
        both = list(zip(effects, found, strict=True))
        chosen = [(e, interval) for e, (interval, is_selected) in both if is_selected]
        false_shares.append(sum(e == 0 for e, _ in chosen) / max(1, len(chosen)))
        missed_shares.append(sum(not covers(i, e) for e, i in chosen) / max(1, len(chosen)))
        hits.append(sum(e > 0 for e, _ in chosen) / DIFFERENT)
        equivalent += [
            verdict(interval.low, interval.high, margin=plan.margin) == "equivalent"
            for e, (interval, _) in both
            if e == 0
        ]
    return {
        "table": "screen", **_about(stream),
        "comparisons": SCREENED, "different": DIFFERENT, "effect": DIFFERENCE, "runs": count,
        "false_discoveries": _mean(false_shares), "false_coverage": _mean(missed_shares),
        "power": _mean(hits), "equivalent": _rate(equivalent),
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
    """Return how often intervals are right, and what they say; below the least restarts nothing."""
    intervals = [printed(cell.evidence, plan, comparisons) for cell in found]
    ends = [
        (one.low, one.high) if is_enough(cell.evidence, plan) else (None, None)
        for one, cell in zip(intervals, found, strict=True)
    ]
    verdicts = [verdict(low, high, margin=plan.margin) for low, high in ends]
    above = [low is not None and low > 0 for low, _ in ends]
    below = [high is not None and high < 0 for _, high in ends]
    away = [up or down for up, down in zip(above, below, strict=True)]
    return {
        "coverage": _rate(covers(one, effect) for one in intervals),
        "excludes_zero": _rate(away),
        "wrong_side": _rate(below if effect else away),
        "equivalent": _rate(one == "equivalent" for one in verdicts),
        "inconclusive": _rate(one == "inconclusive" for one in verdicts),
        "half_width": _mean([one.half_width for one in intervals if math.isfinite(one.half_width)]),
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
        docs.write_text(page(rows, chosen, cells=cells, seed=SEED), encoding="utf-8")


def write_page(places: Places) -> None:
    """Write the page of what is kept."""
    content = json.loads((places.results / RAW).read_text(encoding="utf-8"))
    known = {row["stream"] for row in content["rows"]}
    chosen = [one for one in streams() if one.name in known]
    written = page(content["rows"], chosen, cells=content["cells"], seed=content["seed"])
    places.write_page(PAGE, written)


if __name__ == "__main__":
    main()
