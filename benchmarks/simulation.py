"""Simulate whole cells, from block noise to the verdict, and tabulate how often it is right.

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
from envcompare.analysis.timing.judge import MIN_RESTARTS
from envcompare.config.plan import MANY_COMPARISONS, STRICT_RESTARTS
from envcompare.config.settings import PRESETS, Preset
from envcompare.run_folder.records import Design
from envcompare.stats.intervals import ALPHA, Interval, gather
from envcompare.stats.intervals import printed as widened
from envcompare.stats.multiplicity import gather_pooled, screen
from envcompare.stats.verdicts import verdict
from replay import Cell, printed, replay
from simulation_page import page
from streams import Stream, streams

RAW, PAGE = "simulation.json", "simulation.md"
SEED = 20_261_121
CELLS = 1000
EFFECTS: dict[Preset, tuple[float, ...]] = {
    "default": (0.0, 0.01, 0.02, 0.05),
    "quick": (0.0, 0.02, 0.05),
    "strict": (0.0, 0.01, 0.02),
}
FAMILIES: tuple[tuple[Preset, int], ...] = (("default", 6), ("default", 12), ("quick", 12))
SCREENED, DIFFERENT, DIFFERENCE = 12, 4, 0.03  # comparisons, those that differ, and how much

Row = dict[str, str | int | float | bool]


def tables(found: Iterable[Stream], *, cells: int) -> Iterator[Row]:
    """Yield every row; `cells` are simulated for one of the default preset, fewer for others."""
    for stream in found:
        for preset, effects in EFFECTS.items():
            share = cells // 2 if preset == "strict" else cells
            for effect in effects:
                yield single(stream, preset, effect, cells=share)
        for preset, comparisons in FAMILIES:
            yield from families(stream, preset, comparisons, count=cells // 4)
        yield screened(stream, count=cells // 8)


def single(stream: Stream, preset: Preset, effect: float, *, cells: int) -> Row:
    """Simulate cells that stand for themselves."""
    plan = design(preset)
    generator = seeded(stream.name, preset, str(effect))
    found = [replay(stream, plan, generator, effect=effect) for _ in range(cells)]
    intervals = [printed(one.groups, plan, 1) for one in found]
    return {
        "table": "single", "stream": stream.name, "calm": stream.is_calm, "preset": preset,
        "effect": effect, "cells": cells,
        **shares(intervals, effect, plan),
        **_costs(found),
    }  # fmt: skip


def families(stream: Stream, preset: Preset, comparisons: int, *, count: int) -> Iterator[Row]:
    """Simulate runs of so many equal comparisons."""
    plan = design(preset, comparisons)
    generator = seeded(stream.name, "family", preset, str(comparisons))
    runs = [
        [replay(stream, plan, generator, comparisons=comparisons) for _ in range(comparisons)]
        for _ in range(count)
    ]

    ways = {"own": own_intervals, "printed": printed_intervals}
    for name, way in ways.items():
        found = [way(run, plan, comparisons) for run in runs]
        every = [one for run in found for one in run]
        yield {
            "table": "family", "stream": stream.name, "calm": stream.is_calm, "preset": preset,
            "interval": name, "comparisons": comparisons, "runs": count,
            "all_cover": _rate(all(covers(one, 0.0) for one in run) for run in found),
            **shares(every, 0.0, plan),
            **_costs([cell for run in runs for cell in run]),
        }  # fmt: skip


def own_intervals(run: list[Cell], plan: Design, comparisons: int) -> list[Interval | None]:
    """Return what each cell says by itself."""
    return [printed(one.groups, plan, comparisons) for one in run]


def printed_intervals(run: list[Cell], plan: Design, comparisons: int) -> list[Interval | None]:
    """Return what the product prints: pooled restarts where the budget ended a cell of many."""
    pooled = gather_pooled([one.groups for one in run])
    own = own_intervals(run, plan, comparisons)
    return [
        widened(shared, alpha=ALPHA / comparisons)
        if shared is not None and cell.stopped_by == "budget"
        else found
        for cell, shared, found in zip(run, pooled, own, strict=True)
    ]


def screened(stream: Stream, *, count: int) -> Row:
    """Simulate `--screen` over comparisons of which some differ."""
    plan = design("default", SCREENED, screen=True)
    generator = seeded(stream.name, "screen")
    effects = [DIFFERENCE] * DIFFERENT + [0.0] * (SCREENED - DIFFERENT)
    false_shares, missed_shares, hits, equivalent = [], [], [], []
    for _ in range(count):
        run = [replay(stream, plan, generator, effect=e, comparisons=SCREENED) for e in effects]
        found = screen([one for cell in run if (one := gather(cell.groups))], planned=SCREENED)
        both = list(zip(effects, found, strict=True))
        chosen = [(e, one.interval) for e, one in both if one.is_selected]
        false_shares.append(sum(e == 0 for e, _ in chosen) / max(1, len(chosen)))
        missed_shares.append(sum(not covers(i, e) for e, i in chosen) / max(1, len(chosen)))
        hits.append(sum(e > 0 for e, _ in chosen) / DIFFERENT)
        equivalent += [
            verdict(one.interval.low, one.interval.high, margin=plan.margin) == "equivalent"
            for e, one in both
            if e == 0
        ]
    return {
        "table": "screen", "stream": stream.name, "calm": stream.is_calm,
        "comparisons": SCREENED, "different": DIFFERENT, "effect": DIFFERENCE, "runs": count,
        "false_discoveries": _mean(false_shares), "false_coverage": _mean(missed_shares),
        "power": _mean(hits), "equivalent": _rate(equivalent),
    }  # fmt: skip


def design(preset: Preset, comparisons: int = 1, *, screen: bool = False) -> Design:
    """Return the design the planner would make."""
    values = PRESETS[preset]
    least = STRICT_RESTARTS if comparisons >= MANY_COMPARISONS else 0
    return Design(
        preset=preset,
        margin=values.margin,
        target=values.target,
        budget_s=values.budget_s,
        min_restarts=max(values.min_restarts, least),
        threads=1,
        screen=screen,
    )


def seeded(*parts: str) -> np.random.Generator:
    """Return the generator of a row: the same whatever was simulated before it."""
    return np.random.default_rng([SEED, zlib.crc32("/".join(parts).encode())])


def covers(found: Interval | None, effect: float) -> bool:
    """Tell whether the interval holds the truth; one without ends does."""
    if found is None or found.low is None or found.high is None:
        return True
    return found.low <= math.log1p(effect) <= found.high


def shares(found: list[Interval | None], effect: float, plan: Design) -> Row:
    """Return how often intervals are right, and what they say; below the least restarts nothing."""
    least = plan.min_restarts if plan.preset == "strict" else MIN_RESTARTS
    ends = [(one.low, one.high) if one and one.restarts >= least else (None, None) for one in found]
    verdicts = [verdict(low, high, margin=plan.margin) for low, high in ends]
    above = [low is not None and low > 0 for low, _ in ends]
    below = [high is not None and high < 0 for _, high in ends]
    away = [up or down for up, down in zip(above, below, strict=True)]
    return {
        "coverage": _rate(covers(one, effect) for one in found),
        "excludes_zero": _rate(away),
        "wrong_side": _rate(below if effect else away),
        "equivalent": _rate(one == "equivalent" for one in verdicts),
        "inconclusive": _rate(one == "inconclusive" for one in verdicts),
        "half_width": _mean([one.half_width for one in found if one and one.low is not None]),
    }


def _costs(found: list[Cell]) -> Row:
    return {
        "generations": _mean([one.generations for one in found]),
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
    known = [one for one in streams() if not (synthetic and one.is_recorded)]
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
