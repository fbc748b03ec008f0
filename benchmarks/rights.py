"""See whether the rights of a container change the times of a plain `docker run`.

One image is three arms of one run: with the engine's own rights, with the few that envcompare gives
a container, and with a root file system that is read-only as well. The control is the first of them
again. Work that feels rights most stands beside the bundled workloads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import click
import numpy as np
from live import image_of

from bookkeeping import HERE, Conditions, Places, Watch, benchmark, one_run
from envcompare.run_folder.records import Block, Event
from envcompare.run_folder.results import RunFolder
from envcompare.stats.metrics import Readings
from ground import Notes, budgets, printed_at_the_end, read_blocks, read_conditions, save

PAGE = "rights.md"
WORK = HERE / "workloads" / "confined.py"
RUNS = {
    "bundled": ("--workloads", "cnn,rnn"),
    "confined": tuple(
        word
        for name in ("Calls", "Processes", "Files")
        for word in ("--workload", f"{WORK}:{name}")
    ),
    "processes": ("--workload", f"{WORK}:Processes"),  # again, since they scatter the most
}
REFERENCE, CONTROL = "plain", "plain~control"
ARMS = {"rights": "few rights", "read-only": "few rights, read-only root", CONTROL: "control"}
# What containers of Docker have by default (moby: oci/caps/defaults.go)
CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID"),
    *("SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
)
PLAIN = (
    " ".join(f"--cap-add {name}" for name in CAPABILITIES)
    + " --security-opt no-new-privileges=false --pids-limit -1"
)
FACTS = ("no_new_privs", "capabilities.effective", "uid")
READ_ONLY = "--read-only --tmpfs /tmp:exec --tmpfs /var/tmp:exec"


@benchmark(__doc__, smoke=("--budget", "8", "--runs", "confined"))
@click.option("--budget", default=240.0, help="Seconds a cell.", show_default=True)
@click.option("--runs", default=",".join(RUNS), show_default=True)
@click.option("--base-image", default="", help="Base of the workload image, where one is needed.")
def main(places: Places, runs: str, *, budget: float, base_image: str) -> None:
    """Measure what is missing, then write the page."""
    base = ("--base-image", base_image) if base_image else ()
    for name in runs.split(","):
        path = places.results / "rights" / f"{name}.jsonl.gz"
        if not path.exists():
            save(path, _measure(image_of(base), RUNS[name], budget))
    print(write_page(places))


def _measure(image: str, works: tuple[str, ...], budget_s: float) -> Notes:
    """Run once; return the blocks, what each arm was found to have, and the conditions."""
    arms = ",".join(f"{name}=docker:{image}" for name in (REFERENCE, "rights", "read-only"))
    watch = Watch.begin()
    words = (
        *("--envs", arms, *works, "--budget", f"{budget_s}", "--no-startup"),
        *("--docker-options", f"{REFERENCE}={PLAIN}"),
        *("--docker-options", f"read-only={READ_ONLY}"),
        *("--device", "cpu", "--target", "0.01", "--seed", "1", "--profile", "none"),
        *("--no-noise-memory", "--no-marks"),
    )
    with one_run(*words) as path:
        folder = RunFolder.open(path)
        notes = Notes(samples=list(folder.read_samples().samples))
        found = {record.arm: record.facts for record in folder.read_fingerprints()}
        folder.close()
    notes.samples = [sample for sample in notes.samples if isinstance(sample, Block)]
    for arm, facts in found.items():
        kept = ((name, facts.get(name)) for name in FACTS)
        values = {name: value for name, value in kept if not isinstance(value, tuple)}
        notes.event(Event(t=time.time(), what="note", arm=arm, values=values))
    conditions = {**watch.conditions(), "budget_s": budget_s}
    notes.event(Event(t=time.time(), what="note", values=conditions))
    return notes


def write_page(places: Places) -> str:
    """Write the page of the run that is kept, and return it."""
    paths = sorted((places.results / "rights").glob("*.jsonl.gz"))
    measured = [read_conditions(path) for path in paths]
    rows = [row for path in paths for row in _rows(path.name.partition(".")[0], read_blocks(path))]
    page = _page([row.line for row in rows], _summary(rows), measured)
    places.write_page(PAGE, page, measured)
    return page


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The intervals of one cell of a run, in the order of the arms; None where there is none."""

    run: str
    work: str
    restarts: int
    intervals: tuple[tuple[float, float, float] | None, ...]  # middle and ends, as ratios less 1

    @property
    def line(self) -> str:
        """Return the row of the table."""
        shown = (
            "–" if ends is None else f"{ends[0]:+.1%} ({ends[1]:+.1%} to {ends[2]:+.1%})"
            for ends in self.intervals
        )
        return f"| {self.run} | {self.work} | {self.restarts} | {' | '.join(shown)} |"


def _rows(run: str, blocks: tuple[Block, ...]) -> Iterator[Row]:
    for cell in dict.fromkeys(block.cell for block in blocks):
        of_cell = [block for block in blocks if block.cell == cell]
        readings = Readings(of_cell, metrics=("net",))
        yield Row(
            run=run,
            work=cell.split("/")[1].rpartition("-")[2],
            restarts=len({block.restart for block in of_cell}),
            intervals=tuple(_interval(readings, arm) for arm in ARMS),
        )


def _interval(readings: Readings, arm: str) -> tuple[float, float, float] | None:
    evidence = readings.evidence(arm, REFERENCE, "net")
    found = printed_at_the_end(evidence) if evidence else None
    if found is None or found.low is None or found.high is None:
        return None
    middle, low, high = (float(np.expm1(end)) for end in (found.mean, found.low, found.high))
    return middle, low, high


def _summary(rows: list[Row]) -> list[str]:
    """Say for each arm how many of its intervals exclude 0, each alone at 95 %."""
    lines = []
    for place, name in enumerate(ARMS.values()):
        known = [(row, one) for row in rows if (one := row.intervals[place]) is not None]
        away = [f"{row.work} of {row.run}" for row, (_, low, high) in known if low > 0 or high < 0]
        named = f" ({', '.join(away)})" if away else ""
        lines.append(f"- {name}: {len(away)} of {len(known)} intervals exclude 0{named}")
    return lines


def _page(lines: list[str], summary: list[str], measured: list[Conditions]) -> str:
    rows = [
        "# Rights of a container",
        "",
        "Do the options by which envcompare takes rights from a container change what is "
        f"measured? One image is three arms of one run, {budgets(measured)} a cell "
        "(`python benchmarks/rights.py`; raw data in `benchmarks/results/rights/`). The reference "
        f"has the rights of a plain `docker run`: `{PLAIN}`.",
        "",
        "- **few rights**: `--cap-drop ALL --security-opt no-new-privileges --pids-limit 8192`",
        f"- **few rights, read-only root**: the same and `{READ_ONLY}`",
        "- **control**: the reference again, under another name",
        "",
        "CPU time of the typical step against the reference, with 95 % intervals:",
        "",
        f"| run | work | restarts | {' | '.join(ARMS.values())} |",
        "|---|---|---:|---|---|---|",
        *lines,
        "",
        "`Calls` is 4000 small system calls a step, `Processes` 8 short programs, `Files` 40 files "
        "of 64 KiB that are written to `/tmp`, read and removed.",
        "",
        *summary,
        "",
        "A read-only root needs a `/tmp` of its own, in memory or in a folder of the host, where a "
        "plain `docker run` writes to the layer of the container. `Files` shows what that does to "
        "work that writes there. So a timed container has few rights and the file system of a "
        "plain `docker run`; every other container has a read-only root as well.",
    ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
