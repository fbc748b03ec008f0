"""Say how much what no environment can change narrows the intervals of run folders.

Two candidates: the control, whose ratio to the reference is 1 whatever happens, and the place of an
arm in its round, which is drawn at random. Both leave the expectation of a ratio as it is.
"""

from __future__ import annotations

import gzip
import math
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import click
import numpy as np

from bookkeeping import HERE, Places, benchmark
from envcompare.run_folder.records import CONTROL_SUFFIX, Block
from envcompare.run_folder.results import RunFolder
from envcompare.stats.intervals import interval
from envcompare.stats.metrics import estimate, net_ns

LEVEL = 0.95
EXAMPLE = HERE.parent / "results" / "example"


@benchmark(__doc__, smoke=(str(EXAMPLE),))
@click.argument("folders", nargs=-1, type=click.Path(exists=True, path_type=Path))
def main(places: Places, folders: tuple[Path, ...]) -> None:
    """Write the table of all comparisons that have a control; without folders of what is kept."""
    print(_write(places, folders) if folders else write_page(places))


def write_page(places: Places) -> str:
    """Write the page of the explanations that are kept; return it."""
    with tempfile.TemporaryDirectory() as folder:
        kept = sorted((places.results / "explanations").glob("*/comparison.json"))
        return _write(places, [_unpacked(p.parent, Path(folder) / p.parent.name) for p in kept])


def _unpacked(kept: Path, folder: Path) -> Path:
    shutil.copytree(kept, folder)
    packed = folder / "samples.jsonl.gz"
    (folder / "samples.jsonl").write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


def _write(places: Places, folders: Iterable[Path]) -> str:
    rows = [row for folder in folders for row in rows_of(folder)]
    ratios = [ratio for _, _, ratio, _ in rows]
    gains = [1 - math.sqrt(1 - share) for *_, share in rows]
    lines = [
        "# Control variates",
        "",
        "`python benchmarks/control_variates.py RUN_FOLDER…`, here on the explanations. For "
        "each comparison: its half-width with the control taken into the reference, against that "
        "without it, and the share of the variance of its rounds that the place in the round "
        "explains.",
        "",
        "| cell | arm | half-width with ÷ without the control | explained by the place |",
        "|---|---|---|---|",
        *(f"| {cell} | {arm} | {ratio:.2f} | {share:.1%} |" for cell, arm, ratio, share in rows),
        "",
        f"The control narrows an interval to {np.exp(np.mean(np.log(ratios))):.2f} in the mean of "
        f"these {len(rows)} (theory: √¾ = 0.87; a single ratio of two estimated widths scatters "
        f"around it), so it is used. The place in the round would narrow it by "
        f"{np.mean(gains):.1%}, so it is not. Faults and waits are no covariates: an environment "
        "can change them.",
    ]
    page = "\n".join(lines) + "\n"
    places.write_page("control-variates.md", page)
    return page


def rows_of(folder: Path) -> Iterable[tuple[str, str, float, float]]:
    """Yield cell, arm, ratio of the half-widths, and the explained share of the variance."""
    read = RunFolder.open(folder)
    run = read.read_run()
    blocks = [one for one in read.read_samples().samples if isinstance(one, Block)]
    reference = next(arm.id for arm in run.arms if arm.is_reference)
    for cell in run.cells:
        own = [block for block in blocks if block.cell == cell.id]
        alone = [block for block in own if not block.arm.endswith(CONTROL_SUFFIX)]
        for arm in run.arms:
            if not (arm.is_reference or arm.is_control) and len(alone) < len(own):
                ratio = _half_width(own, arm.id, reference) / _half_width(alone, arm.id, reference)
                yield cell.id, arm.id, ratio, _explained(own, arm.id, reference)


def _half_width(blocks: list[Block], arm: str, reference: str) -> float:
    found = interval(estimate(blocks, arm=arm, reference=reference, metric="net")[1], level=LEVEL)
    return math.nan if found is None else found.half_width


def _explained(blocks: list[Block], arm: str, reference: str) -> float:
    """Return the squared correlation of a round's log ratio with the difference of the places."""
    rounds: dict[tuple[int, int, int], dict[str, Block]] = {}
    for block in blocks:
        if not block.warmup and net_ns(block) is not None:
            key = (block.restart, block.generation, block.round)
            rounds.setdefault(key, {})[block.arm] = block
    both = [found for found in rounds.values() if {arm, reference} <= found.keys()]
    ratios = [math.log((net_ns(f[arm]) or 1) / (net_ns(f[reference]) or 1)) for f in both]
    places = [found[arm].order - found[reference].order for found in both]
    return float(np.corrcoef(ratios, places)[0, 1] ** 2)


if __name__ == "__main__":
    main()
