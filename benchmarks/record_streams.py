"""Record the round log ratios of the A/A pairs of run folders: what the simulation resamples.

The reference against its control has the truth 0. Sample files of `precision.py` make one stream
more, from which the slowdown it injected is taken. The file of streams is a list, each with a name,
a note on the host, whether that was calm, its costs in seconds, and restarts of generations of
round log ratios:

    {"streams": [{"name": "…", "note": "…", "calm": true,
                  "cost": {"launch_s": 4.0, "generation_s": 1.4, "round_s": 0.24, "block_s": 0.1},
                  "restarts": [[[0.01, -0.02], [0.0, 0.01]], …]}]}
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from bookkeeping import HERE, RESULTS, Places, benchmark
from envcompare.run_folder.records import Block, Event, RunRecord
from envcompare.run_folder.results import RunFolder
from envcompare.stats.metrics import estimate, primary_metric
from envcompare.stats.pairs import Pairs
from ground import read_blocks
from precision import SLOWDOWN
from streams import RECORDED

DIGITS = 6
EXAMPLE = str(HERE.parent / "results" / "example")
TRIAL = str(RESULTS / "precision" / "lockstep-00.jsonl.gz")


@benchmark(__doc__.partition("\n\n")[0], smoke=(EXAMPLE, TRIAL))
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--note", default="", help="What is to be known of the host.")
@click.option("--calm", is_flag=True, help="Nothing else ran: the goals for a calm host apply.")
@click.option("--out", type=click.Path(path_type=Path), help=f"[default: {RECORDED.name}]")
@click.option("--append", is_flag=True, help="Keep the streams that are there under other names.")
def main(  # noqa: PLR0913 — an option each
    places: Places,
    *,
    paths: tuple[Path, ...],
    note: str,
    out: Path | None,
    calm: bool,
    append: bool,
) -> None:
    """Write the streams of all folders."""
    out = out or places.data / RECORDED.name
    found = [
        {**stream, "note": note or stream["note"], "calm": calm}
        for stream in itertools.chain(
            trial_streams([path for path in paths if path.is_file()]),
            *(streams_of(path) for path in paths if path.is_dir()),
        )
    ]
    names = {one["name"] for one in found}
    kept = json.loads(out.read_text(encoding="utf-8"))["streams"] if append else []
    found = [*(one for one in kept if one["name"] not in names), *found]
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in found)
    out.write_text(f'{{"streams": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(found)} streams: {out}")


def streams_of(folder: Path) -> Iterable[dict[str, Any]]:
    """Yield the stream of each cell of a run folder that has one."""
    read = RunFolder.open(folder)
    run, samples = read.read_run(), read.read_samples().samples
    events = read.read_events().events
    for cell in run.cells:
        blocks = [s for s in samples if isinstance(s, Block) and s.cell == cell.id]
        restarts = _restarts(run, blocks)
        if len(restarts) > 1:
            yield {
                "name": f"recorded-{cell.workload}-{run.run_id}",
                "note": cell.host,
                "cost": _cost(blocks) | _calibrated(events, cell.id),
                "restarts": restarts,
            }


def trial_streams(paths: list[Path]) -> Iterable[dict[str, Any]]:
    """Yield one stream of all restarts of the lockstep trials of `precision.py`."""
    trials = [read_blocks(path) for path in paths]
    if trials:
        costs = [_cost(list(blocks)) for blocks in trials]
        yield {
            "name": "recorded-cnn-precision",
            "note": "",
            "cost": {
                name: round(statistics.median(cost[name] for cost in costs), 3)
                for name in ("launch_s", "generation_s", "round_s")
            },
            "restarts": [restart for blocks in trials for restart in _trial_restarts(blocks)],
        }


def _trial_restarts(blocks: tuple[Block, ...]) -> list[list[list[float]]]:
    pairs, _ = estimate(blocks, arm="b", reference="a", metric="net")
    return _rounded(pairs, truth=math.log1p(SLOWDOWN))


def _rounded(pairs: Pairs, *, truth: float = 0.0) -> list[list[list[float]]]:
    return [
        [[round(value - truth, DIGITS) for value in rounds] for rounds in gens.values()]
        for gens in pairs.values()
    ]


def _restarts(run: RunRecord, blocks: list[Block]) -> list[list[list[float]]]:
    reference = next(arm.id for arm in run.arms if arm.is_reference)
    control = next(arm.id for arm in run.arms if arm.is_control)
    metric, _ = primary_metric(blocks, threads=run.design.threads)
    pairs, _ = estimate(blocks, arm=control, reference=reference, metric=metric)
    return _rounded(pairs)


def _cost(blocks: list[Block]) -> dict[str, float]:
    """Return the median seconds of a launch, of a generation without rounds, and of a round."""
    spans: dict[tuple[int, int, int], tuple[int, int]] = {}
    for block in blocks:
        key = (block.restart, block.generation, block.round)
        begin, end = block.t0_ns, block.t0_ns + sum(block.wall_ns)
        known = spans.get(key, (begin, end))
        spans[key] = (min(begin, known[0]), max(end, known[1]))
    order = sorted(spans)
    rounds = [spans[key][1] - spans[key][0] for key in order if key[2] >= 0]
    gaps: dict[bool, list[int]] = {True: [], False: []}  # whether a restart lies in it
    for last, key in itertools.pairwise(order):
        if key[:2] != last[:2]:
            gaps[key[0] != last[0]].append(spans[key][0] - spans[last][1])
    between = statistics.median(gaps[False]) if gaps[False] else 0.0
    warmups = [spans[key][1] - spans[key][0] for key in order if key[2] < 0]
    warmup = statistics.median(warmups) if warmups else 0.0
    return {
        "launch_s": _seconds(max(0.0, statistics.median(gaps[True]) - between)),
        "generation_s": _seconds(between + warmup),
        "round_s": _seconds(statistics.median(rounds)),
    }


def _calibrated(events: Iterable[Event], cell: str) -> dict[str, float]:
    """Return what a block of the reference took when it was calibrated, where that was noted."""
    found = {}
    for event in events:
        steps, step_s = (event.values.get(name) for name in ("steps_per_block", "step_s"))
        if event.cell == cell and isinstance(steps, int) and isinstance(step_s, float):
            found["block_s"] = round(steps * step_s, 3)
    return found


def _seconds(duration_ns: float) -> float:
    return round(duration_ns / 1e9, 3)


if __name__ == "__main__":
    main()
