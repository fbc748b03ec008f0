"""Record the round log ratios of pairs of equal arms: what the simulation resamples.

The reference against its control has the truth 0, and so have the trials of `false_positives.py`.
Those of `precision.py` have it once the slowdown it injected is taken off. The file of streams is a
list, each with a name, a note on the host, the seconds of a step, and the round log ratios of each
restart:

    {"streams": [{"name": "…", "note": "…", "step_s": 0.075,
                  "restarts": [[0.01, -0.02, 0.0, 0.01], …]}]}
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np

from bookkeeping import HERE, RESULTS, Places, benchmark
from envcompare.run_folder.records import Block
from envcompare.run_folder.results import RunFolder
from envcompare.stats.metrics import Readings, wall_ns
from envcompare.stats.typical import Groups
from ground import read_blocks
from precision import SLOWDOWN
from streams import RECORDED

DIGITS = 6
EXAMPLE = str(HERE.parent / "results" / "example")
TRIAL = str(RESULTS / "precision" / "lockstep-00.jsonl.gz")


@benchmark(__doc__.partition("\n\n")[0], smoke=(EXAMPLE, TRIAL))
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--note", default="", help="What is to be known of the host.")
@click.option("--out", type=click.Path(path_type=Path), help=f"[default: {RECORDED.name}]")
@click.option("--append", is_flag=True, help="Keep the streams that are there under other names.")
def main(
    places: Places,
    *,
    paths: tuple[Path, ...],
    note: str,
    out: Path | None,
    append: bool,
) -> None:
    """Write the streams of all folders."""
    out = out or places.data / RECORDED.name
    found = [
        {**stream, "note": note or stream["note"]}
        for stream in itertools.chain(
            trials([path for path in paths if path.is_file()]),
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
    reference = next(arm.id for arm in run.arms if arm.is_reference)
    control = next(arm.id for arm in run.arms if arm.is_control)
    for cell in run.cells:
        blocks = [s for s in samples if isinstance(s, Block) and s.cell == cell.id]
        readings = Readings(blocks, threads=run.design.threads)
        metric, _ = readings.primary
        groups = readings.groups(control, reference, metric)
        if len(groups) > 1:
            name = f"recorded-{cell.workload}-{run.run_id}"
            yield _stream(name, cell.host, [blocks], _rounded(groups))


def trials(paths: list[Path]) -> Iterable[dict[str, Any]]:
    """Yield one stream of all trials of a benchmark and a workload: `precision/lockstep-00…`."""
    for name, chosen in itertools.groupby(sorted(paths, key=_name), key=_name):
        truth = math.log1p(SLOWDOWN) if name.endswith("precision") else 0.0
        found = [read_blocks(path) for path in chosen]
        groups = [Readings(blocks, metrics=("net",)).groups("b", "a", "net") for blocks in found]
        restarts = [rounds for group in groups for rounds in _rounded(group, truth=truth)]
        yield _stream(name, "", found, restarts)


def _name(path: Path) -> str:
    """Return the name of a trial's stream; its workload ends the name of its file, or is `cnn`."""
    workload = path.name.partition(".")[0].rpartition("-")[2]
    return f"recorded-{'cnn' if workload.isdigit() else workload}-{path.parent.name}"


def _stream(
    name: str, note: str, found: Iterable[Iterable[Block]], restarts: list[list[float]]
) -> dict[str, Any]:
    steps_ns = [wall_ns(b) / b.k for blocks in found for b in blocks if not b.warmup]
    step_s = round(float(np.median(steps_ns)) / 1e9, 4)
    return {"name": name, "note": note, "step_s": step_s, "restarts": restarts}


def _rounded(groups: Groups, *, truth: float = 0.0) -> list[list[float]]:
    return [[round(value - truth, DIGITS) for value in rounds] for rounds in groups]


if __name__ == "__main__":
    main()
