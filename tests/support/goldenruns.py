"""The fixed runs whose pages are kept word for word, from one comparison to a thousand."""

from __future__ import annotations

import functools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.report.page import render
from envcompare.run_folder.results import RunFolder
from runfolders import Arm, Failing, Shape, write

KEPT: Final = Path(__file__).resolve().parents[1] / "data" / "runs"
_FEW: Final = {"restarts": 4, "generations": 2, "rounds": 3, "steps": 3, "launches": 2}
SHAPES: Final[dict[str, Shape]] = {  # environments × workloads × hosts
    "1x1x1": Shape(seed=1, workloads=("cnn",), arms=(Arm(id="docker", ratio=1.08),), **_FEW),
    "3x2x1": Shape(
        seed=2,
        arms=(
            Arm(id="docker", ratio=1.08),
            Arm(id="singularity", environment="singularity", ratio=1.003),
            Arm(id="old", ratio=0.95, spread=0.03),
        ),
        failing=Failing(cell="gpu01/rnn/default", arm="singularity"),
        confounded="docker",
        **_FEW,
    ),
    "10x20x5": Shape(
        seed=3,
        hosts=tuple(f"gpu{number:02}" for number in range(1, 6)),
        workloads=tuple(f"work{number:02}" for number in range(1, 21)),
        arms=tuple(Arm(id=f"env{number:02}", ratio=0.8 + 0.05 * number) for number in range(10)),
        failing=Failing(cell="gpu01/work03/default", arm="env04"),
        not_run=("gpu05", "env09"),
        **{**_FEW, "rounds": 2, "steps": 2, "launches": 1},
    ),
}
SMALL: Final = ("1x1x1", "3x2x1")
SWEPT: Final = Shape(
    seed=4,
    parameters={"hidden": (64, 128)},
    failing=Failing(cell="gpu01/rnn/hidden=64", arm="singularity"),
    confounded="docker",
    **_FEW,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenRun:
    """A run folder, and what the analysis found in it."""

    folder: RunFolder
    comparison: RunComparison

    @property
    def html(self) -> str:
        """Return the page of the run, drawn once."""
        return self.page.read_text(encoding="utf-8")

    @property
    def page(self) -> Path:
        """Return the page as a file beside the files it links to, drawn once."""
        path = self.folder.path / "report.html"
        if not path.exists():
            html = render(self.comparison, files=self.folder.file_names())
            path.write_text(html, encoding="utf-8")
        return path


@functools.cache
def golden_run(name: str) -> GoldenRun:
    """Return a fixed run, or the swept one; the smallest is read from files that were kept."""
    out = Path(_scratch().name)
    kept = KEPT / name
    if kept.is_dir():
        shutil.copytree(kept, out / name)
        folder = RunFolder.open(out / name)
    else:
        folder = write(out, {"swept": SWEPT, **SHAPES}[name])
    comparison = compare_run(folder)
    folder.write_json("comparison.json", comparison)
    return GoldenRun(folder=folder, comparison=comparison)


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is removed when the tests end."""
    return tempfile.TemporaryDirectory(prefix="envcompare-golden-", ignore_cleanup_errors=True)
