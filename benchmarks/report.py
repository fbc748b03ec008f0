"""How large the page of a run is, and how long it takes to analyse and to draw, by its size.

The runs are synthetic, of the shapes below, and one is real: the run folder that is named, with
profiles. Each reading is a process of its own, and all sizes take turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

import runfolders
from bookkeeping import HERE, Places, Watch, benchmark, write_json
from runfolders import Arm, Shape

RAW = "report.json"
EXAMPLE = str(HERE.parent / "results" / "example")
READ = """
import json, sys, time
from pathlib import Path
sys.modules["rfc3987_syntax"] = None  # of development: jsonschema parses a grammar with it
from envcompare.analysis.compare import compare_run
from envcompare.report.page import render
from envcompare.run_folder.results import RunFolder

started = time.process_time()
folder = RunFolder.open(Path(sys.argv[1]))
comparison = compare_run(folder)
compared = time.process_time()
page = render(comparison, files=folder.file_names())
drawn = time.process_time()
peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
print(json.dumps({
    "start_s": started, "analysis_s": compared - started, "drawing_s": drawn - compared,
    "page_bytes": len(page.encode()), "peak_mb": int(peak) * 1024 / 1e6,
    "comparisons": sum(not one.is_control for one in comparison.comparisons),
    "steps": sum(cell.steps for cell in comparison.cells),
}))
"""
USUAL = Shape(restarts=5, generations=1, rounds=5, steps=5)
SHAPES = {
    "thousand": USUAL,
    "hundred thousand": replace(USUAL, restarts=10, generations=5, rounds=10, steps=25),
    "million": replace(USUAL, restarts=10, generations=5, rounds=100, steps=25),
    "many": Shape(
        hosts=tuple(f"gpu{number:02}" for number in range(5)),
        workloads=tuple(f"work{number:02}" for number in range(20)),
        arms=tuple(
            Arm(
                id=f"image{number}",
                environment=("docker", "singularity")[number % 2],
                ratio=1 + 0.02 * (number - 4),
            )
            for number in range(9)
        ),
    ),
}
SMALL = {
    **dict.fromkeys(SHAPES, USUAL),
    "many": Shape(hosts=("gpu00",), workloads=("work00",), arms=SHAPES["many"].arms),
}
GOALS = {"usual": (0.5, 5.0), "many": (3.0, 20.0)}  # MB, seconds

PAGE = """# The report

`python benchmarks/report.py {real}`; raw data in `benchmarks/results/report.json`. The runs are
synthetic: drawn at random by `benchmarks/runfolders.py`, in the types and files of a real one, and
no profiler was there; the last row is the real run that the command names, with profiles. Each
reading is a process of its own; what counts is the processor's time of all its threads, since the
machine had other work to do. The middle one of {runs} each, or the slower of the two in the middle;
all sizes in turn; load {load:.1f}.

| run | steps | page, MB | analysis, s | drawing, s | with the start, s | peak memory, MB |
|---|---:|---:|---:|---:|---:|---:|
{rows}

The usual run compares {usual} times: two workloads, two environments with the reference and its
control. The large one compares {many} times: five hosts, twenty workloads, nine environments.

| goal | found | |
|---|---|---|
{goals}

The goals for a usual run are those of a hundred thousand steps, about what the default budget
gives, and of the real one. Above what the smallest run takes, the analysis of a million steps takes
{growth:.1f} times as long as that of a hundred thousand: 10 is linear. The page does not grow with
the steps, since no single one stands in it. The start is Python and what it imports, without what
only development installs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One process that analysed and drew a run."""

    run: str
    start_s: float
    analysis_s: float
    drawing_s: float
    page_bytes: int
    peak_mb: float
    comparisons: int
    steps: int

    @property
    def whole_s(self) -> float:
        """Return all the time it took."""
        return self.start_s + self.analysis_s + self.drawing_s


@benchmark(__doc__, smoke=("--small", "--runs", "1", EXAMPLE))
@click.argument("run_folder", type=click.Path(exists=True, path_type=Path))
@click.option("--runs", default=5, show_default=True)
@click.option("--small", is_flag=True, help="Make small runs alone.")
def main(places: Places, run_folder: Path, runs: int, *, small: bool) -> None:
    """Measure unless that was done, then write the page."""
    result = places.results / RAW
    if not result.exists():
        watch = Watch.begin()
        with tempfile.TemporaryDirectory() as folder:
            written = dict(_written(Path(folder), SMALL if small else SHAPES))
            found = {**written, "real": run_folder}
            readings = [_read(name, path) for _ in range(runs) for name, path in found.items()]
        kept = {
            "load": watch.load,
            "real": str(run_folder),
            "readings": list(map(asdict, readings)),
            "conditions": watch.conditions(),
        }
        write_json(result, kept)
    write_page(places)


def write_page(places: Places) -> None:
    """Write the page of what is kept."""
    content = json.loads((places.results / RAW).read_text(encoding="utf-8"))
    places.write_page("report.md", _page(content), [content.get("conditions", {})])


def _written(folder: Path, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Path]]:
    for name, shape in shapes.items():
        out = folder / name.replace(" ", "-")
        yield name, runfolders.write(out, shape).path


def _read(name: str, path: Path) -> Reading:
    argv = [sys.executable, "-c", READ, str(path)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    reading = Reading(run=name, **json.loads(said))
    click.echo(reading)
    return reading


def _page(content: dict[str, Any]) -> str:
    readings = [Reading(**one) for one in content["readings"]]
    found = {
        name: _middle(readings, name) for name in dict.fromkeys(reading.run for reading in readings)
    }
    small, middle, large = (found[name].analysis_s for name in tuple(SHAPES)[:3])
    return PAGE.format(
        runs=len([reading for reading in readings if reading.run == "million"]),
        load=content["load"],
        real=content["real"],
        rows="\n".join(_row(one) for one in found.values()),
        usual=found["million"].comparisons,
        many=found["many"].comparisons,
        goals="\n".join(_goals(found)),
        growth=(large - small) / (middle - small),
    )


def _middle(readings: list[Reading], name: str) -> Reading:
    """Return the reading of middle time, the slower of two; the page is the same each time."""
    own = sorted(
        (reading for reading in readings if reading.run == name),
        key=lambda reading: reading.whole_s,
    )
    return own[len(own) // 2]


def _row(one: Reading) -> str:
    names = {"many": f"{one.comparisons} comparisons", "real": "real, with profiles"}
    return (
        f"| {names.get(one.run, 'usual')} | {one.steps:,} | {one.page_bytes / 1e6:.2f} | "
        f"{one.analysis_s:.2f} | {one.drawing_s:.2f} | {one.whole_s:.1f} | {one.peak_mb:.0f} |"
    )


def _goals(found: dict[str, Reading]) -> Iterator[str]:
    kinds = {"usual": ("hundred thousand", "real"), "many": ("many",)}
    for kind, names in kinds.items():
        size = max(found[name].page_bytes for name in names) / 1e6
        taken = max(found[name].whole_s for name in names)
        what = "a usual run" if kind == "usual" else f"{found[kind].comparisons} comparisons"
        for goal, value, unit in zip(GOALS[kind], (size, taken), ("MB", "s"), strict=True):
            word = "met" if value <= goal else "**not met**"
            yield f"| {what}: at most {goal:g} {unit} | {value:.2f} {unit} | {word} |"


if __name__ == "__main__":
    main()
