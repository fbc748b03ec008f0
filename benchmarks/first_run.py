"""Make a new user's first run again and again, and count how often it decides.

A trial is the run of `script/demo`: vm, docker and singularity on a lab host, with `--quick`. The
host's noise memory is left out, since a first run has none. A run that was stopped goes on where
it was.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import click
import numpy as np

import envcompare
from bookkeeping import Places, Watch, benchmark, mean_load, on_lab_host, one_run, write_json

FOLDER, PAGE = "first-run", "first-run.md"
DEMO = (
    *("--envs", "vm,docker,singularity"),
    *("--base-image", "envcompare-base:python3.11", "--sif-compression", "zstd", "--quick"),
)
CALM = 2.0  # up to this load, the mean of the minutes before and after, a run is calm
DECIDED = ("equivalent", "slower", "faster")


@benchmark(__doc__, smoke=("--trials", "1", "--budget", "8", "--workloads", "rnn"))
@click.option("--trials", default=20, show_default=True)
@click.option("--budget", default=0.0, help="Seconds a cell; 0 is that of --quick.")
@click.option("--workloads", default="cnn,rnn", show_default=True)
@on_lab_host
def main(  # noqa: PLR0913 — the options of a run
    places: Places, trials: int, *, budget: float, workloads: str, host: str, ssh_config: str
) -> None:
    """Measure what is missing, then write the page."""
    words = (*DEMO, "--workloads", workloads, *(("--budget", str(budget)) if budget else ()))
    words += ("--hosts", host, "--ssh-config", ssh_config, "--no-noise-memory")
    for number in range(trials):
        path = places.results / FOLDER / f"trial-{number:02}.json"
        if path.exists():
            continue
        watch = Watch.begin()
        compared = _run((*words, "--seed", str(number)))
        conditions = watch.conditions()
        write_json(path, {"conditions": conditions, "compared": compared})
        print(f"{path.name}: {conditions['elapsed_s']:.0f} s", file=sys.stderr)
    print(write_page(places))


def _run(words: tuple[str, ...]) -> list[dict[str, Any]]:
    """Run once; return verdict and interval of each comparison of typical steps."""
    with one_run(*words) as folder:
        rows = envcompare.read(folder).comparisons.query("is_primary and not is_control")
    kept = ["workload", "arm", "outcome", "ratio", "ratio_low", "ratio_high"]
    return json.loads(rows[kept].to_json(orient="records"))  # type: ignore[no-any-return]


def write_page(places: Places) -> str:
    """Write the page of the runs that are kept, and return it."""
    paths = sorted((places.results / FOLDER).glob("trial-*.json"))
    trials = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    loads = [mean_load(trial["conditions"]) for trial in trials]
    bands = {
        f"up to {CALM:.0f}": [t for t, load in zip(trials, loads, strict=True) if load <= CALM],
        f"above {CALM:.0f}": [t for t, load in zip(trials, loads, strict=True) if load > CALM],
    }
    page = "\n".join(
        [
            "# The first run",
            "",
            f"{len(trials)} runs as `script/demo` makes them: vm, docker and singularity on a lab "
            "host, CNN and RNN, `--quick`, without what earlier runs taught of the host's noise "
            "(`python benchmarks/first_run.py`; raw data in `benchmarks/results/first-run/`). "
            "Nothing was built in them.",
            "",
            "| load, mean of before and after | runs | all four comparisons decided | comparisons "
            "*equivalent* within ±5 % | *slower* or *faster* | *inconclusive* "
            "| half-width, median (max) | seconds, median |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
            *(f"| {says} | {_row(some)} |" for says, some in bands.items() if some),
            "",
        ]
    )
    places.write_page(PAGE, page, [trial["conditions"] for trial in trials])
    return page


def _row(trials: list[dict[str, Any]]) -> str:
    outcomes = [[row["outcome"] for row in trial["compared"]] for trial in trials]
    of_all = [outcome for run in outcomes for outcome in run]
    decided = sum(all(outcome in DECIDED for outcome in run) for run in outcomes)
    shares = (
        sum(outcome == "equivalent" for outcome in of_all),
        sum(outcome in ("slower", "faster") for outcome in of_all),
        sum(outcome not in DECIDED for outcome in of_all),
    )
    widths = [
        100 * np.log(row["ratio_high"] / row["ratio_low"]) / 2
        for trial in trials
        for row in trial["compared"]
        if row["ratio_low"] and row["ratio_high"]
    ]
    width = f"±{np.median(widths):.1f} % (±{max(widths):.1f} %)" if widths else "–"
    seconds = np.median([trial["conditions"]["elapsed_s"] for trial in trials])
    told = (len(trials), decided, *(f"{n} of {len(of_all)}" for n in shares))
    return " | ".join((*map(str, told), width, f"{seconds:.0f}"))


if __name__ == "__main__":
    main()
