"""Print what a user feels: changes whose true size is known, through the real command.

Each case compares two containers of one image that differ in a variable or in an option of Docker.
The truth is known by construction, or from steps on the clock in plain `docker run`s, one at a
time, A B A B …, each alone. A run that was stopped goes on with the case it was at. Needs root,
Docker, and for the case `fuse` the image of a lab host (`script/lab up`).
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from faults_page import keep_record, kept_records
from scipy import stats

import envcompare
from bookkeeping import HERE, Conditions, Places, Watch, benchmark, run_envcompare

DATA, PAGE = "felt.jsonl", "felt.md"
WORK = HERE / "workloads" / "truths.py"
ALONE = HERE / "programs" / "alone.py"
ARMS = ("a", "b")
Pairs = tuple[tuple[float, float], ...]
"""Seconds of a step of either arm, alone, one after the other."""
MARGIN = 0.05
ENOUGH = 0.03  # half-width of the truth, as a log ratio
LEAST_PAIRS = 4
SIDECAR = 0.12  # of the worker's CPU
FLAGS = (
    *("--quick", "--no-startup", "--profile", "none", "--no-marks", "--no-noise-memory"),
    *("--device", "cpu"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the second arm has that the first has not, and how the truth is known."""

    says: str
    work: str  # class of `truths.py`
    options: str  # of docker run, for the second arm
    params: dict[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()  # of envcompare run
    truth: float | None = None  # by construction, as a ratio less 1; None: from runs alone
    around: str = ""  # what the host has meanwhile: sidecar, pinned, files, fuse
    seconds: float = 2.5  # of one run alone


def variable(value: float) -> str:
    """Return the option that says how far an arm is slowed."""
    return f"--env FELT={value:g}"


AS_RUN = ("--threads", "as-run")
CASES = {
    "loader-sleeps": Case(
        says="2 processes of a loader sleep 24 ms a batch", work="Loader",
        options=variable(0.024),
    ),
    "loader-computes": Case(
        says="4 processes of a loader compute 8 ms a batch", work="Loader",
        options=variable(0.008), params={"workers": 4, "work": "compute"},
    ),
    "loader-reads": Case(
        says="2 processes of a loader read 600 files a batch", work="Loader",
        options=variable(600), params={"work": "read"}, around="files",
    ),
    "quota-1-2": Case(
        says="a quota of 1 CPU, 2 threads", work="Threads", options="--cpus 1", words=AS_RUN,
    ),
    "quota-1-4": Case(
        says="a quota of 1 CPU, 4 threads", work="Threads", options="--cpus 1", words=AS_RUN,
        params={"threads": 4},
    ),
    "quota-half": Case(
        says="a quota of half a CPU, 1 thread", work="Plain", options="--cpus 0.5",
    ),
    "fuse": Case(
        says="files in a SquashFS that squashfuse serves", work="Files", options="", around="fuse",
    ),
    "sidecar-pinned": Case(
        says="a sidecar takes 12 % on the worker's CPU", work="Plain", options=variable(SIDECAR),
        words=("--pin", "0"), around="pinned",
    ),
    "sidecar-free": Case(
        says="the same sidecar on any CPU", work="Plain", options=variable(SIDECAR),
        around="sidecar",
    ),
    "log-driver": Case(
        says="300 printed lines a step through json-file", work="Chatty",
        options="--log-driver json-file",
    ),
    "rare-sleep": Case(
        says="a sleep of 80 ms in one of 500 steps of 2 ms", work="Rare", options=variable(1),
        truth=0.08,
    ),
    "slow-launch": Case(
        says="one launch of 4 takes 1.4 times as long", work="Launch", options=variable(1),
        truth=0.1, around="files",
    ),
    "nothing": Case(says="nothing", work="Plain", options="", truth=0.0),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was printed of a case, and how long steps took alone; ratios are less 1."""

    case: str
    outcome: str
    printed: tuple[float, float, float] | None  # the estimate that decided, low, high
    estimate_of: str | None  # mean or typical
    control: tuple[float, float, float] | None
    alone_s: Pairs
    budget_s: float
    cpu: str
    conditions: Conditions

    @property
    def truth(self) -> tuple[float, float]:
        """Return the true ratio less 1, and the half-width of its logarithm (Student, 95 %)."""
        known = CASES[self.case].truth
        return (known, 0.0) if known is not None else _truth(self.alone_s)

    @property
    def error(self) -> float:
        """Return how far the estimate is from the truth; infinite without one."""
        return abs(self.printed[0] - self.truth[0]) if self.printed else math.inf

    @property
    def is_covered(self) -> bool:
        """Tell whether the truth lies in the printed interval."""
        return self.printed is not None and self.printed[1] <= self.truth[0] <= self.printed[2]

    @property
    def may_be_covered(self) -> bool:
        """Tell whether the interval of the truth meets the printed one."""
        truth, half = math.log1p(self.truth[0]), self.truth[1]
        return self.printed is not None and (
            math.log1p(self.printed[1]) <= truth + half
            and truth - half <= math.log1p(self.printed[2])
        )

    @property
    def is_close(self) -> bool:
        """Tell whether the error is at most 1.5 points, or a tenth of the change."""
        return self.error <= max(0.015, abs(self.truth[0]) / 10)

    @property
    def is_wrongly_equivalent(self) -> bool:
        """Tell whether a difference above the margin was called equivalent."""
        return self.outcome == "equivalent" and abs(math.log1p(self.truth[0])) > math.log1p(MARGIN)


@benchmark(__doc__, smoke=("--cases", "loader-sleeps,nothing", "--budget", "10", "--limit", "8"))
@click.option("--cases", default=",".join(CASES), show_default=True)
@click.option("--budget", default=90.0, help="Seconds a cell.", show_default=True)
@click.option("--limit", default=75.0, help="Seconds for a truth.", show_default=True)
@click.option("--base-image", default="envcompare-base:python3.11", help="An image with Python.")
def main(places: Places, cases: str, *, budget: float, limit: float, base_image: str) -> None:
    """Measure what is missing, then write the page."""
    for name in cases.split(","):
        if name not in {record.case for record in _records(places)}:
            record = _measure(name, base_image, budget_s=budget, limit_s=limit, places=places)
            keep_record(places.results / DATA, record)
            print(_row(record), file=sys.stderr)
    print(write_page(places))


def _records(places: Places) -> tuple[Record, ...]:
    return kept_records(places.results / DATA, Record)


def _measure(name: str, image: str, *, budget_s: float, limit_s: float, places: Places) -> Record:
    """Run the real command, between two halves of the steps alone."""
    case, watch = CASES[name], Watch.begin()
    with _around(case.around) as shared:
        options = [
            f"{mount} {more}".strip()
            for mount, more in zip(shared, ("", case.options), strict=True)
        ]
        pairs = _alternate(case, image, options, (), limit_s / 2)
        out = places.work / "felt" / f"{name}-{time.time():.0f}"
        _run(case, image, options, ("--budget", f"{budget_s:g}", "--out", str(out)))
        pairs = _alternate(case, image, options, pairs, limit_s / 2)
    rows = envcompare.read(*out.iterdir()).comparisons
    compared = {
        bool(row["is_control"]): row for row in rows.to_dict("records") if row["is_primary"]
    }
    row = compared.get(False, {"outcome": "inconclusive"})
    return Record(
        case=name,
        outcome=row["outcome"],
        printed=_interval(row),
        estimate_of=row.get("estimate_of"),
        control=_interval(compared.get(True, {})),
        alone_s=pairs,
        budget_s=budget_s,
        cpu=_cpu(),
        conditions=watch.conditions(),
    )


def _run(case: Case, image: str, options: list[str], words: tuple[str, ...]) -> None:
    given = [f"{arm}={said}" for arm, said in zip(ARMS, options, strict=True) if said]
    sets = [f"{WORK.stem}-{case.work}.{key}={value}" for key, value in case.params.items()]
    run_envcompare(
        "run", "--envs", ",".join(f"{arm}=docker:{image}" for arm in ARMS),
        "--workload", f"{WORK}:{case.work}", *(word for one in sets for word in ("--set", one)),
        *(word for one in given for word in ("--docker-options", one)),
        *FLAGS, *case.words, *words,
    )  # fmt: skip


def _interval(row: dict[str, Any]) -> tuple[float, float, float] | None:
    ends = [float(row.get(f"log_ratio{end}", math.nan)) for end in ("", "_low", "_high")]
    middle, low, high = map(math.expm1, ends)
    return None if any(map(math.isnan, ends)) else (middle, low, high)


def _alternate(case: Case, image: str, options: list[str], pairs: Pairs, limit_s: float) -> Pairs:
    """Add the seconds of a step of either arm, alone, until the ratio is known or time is up."""
    ends_s = time.monotonic() + limit_s
    least = len(pairs) + LEAST_PAIRS // 2
    while case.truth is None and (
        len(pairs) < least or (time.monotonic() < ends_s and _truth(pairs)[1] > ENOUGH)
    ):
        order = (0, 1) if len(pairs) % 2 else (1, 0)
        step_s = {arm: _step_alone_s(case, image, options[arm]) for arm in order}
        pairs = (*pairs, (step_s[0], step_s[1]))
    return pairs


def _step_alone_s(case: Case, image: str, options: str) -> float:
    argv = (
        *("docker", "run", "--rm", "--pull", "never", "--network", "none", "--log-driver", "none"),
        *(("--cpuset-cpus", "0") if case.around == "pinned" else ()),
        *("-v", f"{HERE}:{HERE}:ro", *options.split(), image, "python3", str(ALONE)),
        *(f"{WORK}:{case.work}", json.dumps(case.params), f"{case.seconds:g}"),
    )
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return float(json.loads(done.stdout)["step_s"])


def _truth(alone_s: Pairs) -> tuple[float, float]:
    logs = np.log([b / a for a, b in alone_s])
    error = stats.sem(logs) * stats.t.ppf(0.975, len(logs) - 1) if len(logs) > 1 else math.inf
    return math.expm1(float(logs.mean())), float(error)


@contextmanager
def _around(what: str) -> Iterator[tuple[str, str]]:
    """Make what a case needs of the host; yield the mounts of either arm."""
    with tempfile.TemporaryDirectory(prefix="envcompare-felt-") as name:
        folder = Path(name)
        if what == "":
            yield "", ""
        elif what in ("sidecar", "pinned"):
            with _sidecar(folder / "sidecar", is_pinned=what == "pinned"):
                yield "", f"-v {folder}:/felt"
        else:
            plain = folder / "plain"
            plain.mkdir()
            for number in range(600):
                content = random.Random(number).randbytes(1024 + 8 * number).hex()
                (plain / f"{number:04}").write_text(content)
            if what == "files":
                yield f"-v {plain}:/felt", f"-v {plain}:/felt"
            else:
                with _served_by_fuse(folder) as served:
                    yield f"-v {plain}:/felt:ro", f"-v {served}:/felt:ro"


@contextmanager
def _sidecar(path: Path, *, is_pinned: bool) -> Iterator[None]:
    """Compute for as long as each datagram says, as an agent next to the work does."""
    inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    inbox.bind(str(path))
    process = multiprocessing.get_context("fork").Process(target=_compute, args=(inbox, is_pinned))
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _compute(inbox: socket.socket, is_pinned: bool) -> None:  # noqa: FBT001 — of a new process
    if is_pinned:
        os.sched_setaffinity(0, {0})
    while True:
        ends_s = time.thread_time() + float(inbox.recv(64))
        while time.thread_time() < ends_s:
            pass


@contextmanager
def _served_by_fuse(folder: Path) -> Iterator[Path]:
    """Serve the files of a folder from a SquashFS, by the squashfuse of a lab host's image."""
    image = subprocess.run(
        ("docker", "images", "--quiet", "envcompare-lab"),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split()[0]
    shared = folder / "shared"
    served = shared / "served"
    shared.mkdir()
    _call("mount", "--bind", shared, shared)
    _call("mount", "--make-shared", shared)
    served.mkdir()
    script = (
        "mksquashfs /plain /tmp/image -quiet -no-progress "
        "&& exec squashfuse_ll -f -o allow_other /tmp/image /shared/served"
    )
    started = (
        "docker",
        "run",
        "--rm",
        "--detach",
        "--cap-add",
        "SYS_ADMIN",
        "--device",
        "/dev/fuse",
    )
    mounts = ("-v", f"{shared}:/shared:rshared", "-v", f"{folder / 'plain'}:/plain:ro")
    container = subprocess.run(
        (*started, *mounts, image, "sh", "-c", script),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()
    try:
        for _ in range(100):
            if any(served.iterdir()):
                break
            time.sleep(0.1)
        yield served
    finally:
        _call("docker", "kill", container)
        _call("umount", "--lazy", served)
        _call("umount", "--lazy", shared)


def _call(*argv: str | Path) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def _cpu() -> str:
    words = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.partition(":")[2] for line in words.splitlines() if line.startswith("model name")]
    return f"{names[0].strip() if names else 'unknown'}, {os.cpu_count()} CPUs"


def write_page(places: Places) -> str:
    """Write the table of all cases; return the page."""
    kept = {record.case: record for record in _records(places)}
    records = [kept[name] for name in CASES if name in kept]
    budgets = " or ".join(sorted({f"{record.budget_s:g}" for record in records}))
    lines = [
        "# What a user feels",
        "",
        f"`python benchmarks/felt.py`: {len(records)} pairs of containers of one image whose true "
        "difference is known, compared by `envcompare run --quick` with "
        f"{budgets} s a cell; raw data in `benchmarks/results/{DATA}`. Where the truth has an "
        "interval, it was measured by steps on the clock in plain `docker run`s, one at a time, in "
        "turn; where it has none, it is known by construction. An estimate is close if it is "
        "within 1.5 points or a tenth of the change, and a truth is nearly covered if its own "
        "interval meets the printed one.",
        "",
        "| what the second container has | truth | printed | verdict | covered | error | close |",
        "|---|---|---|---|---|---:|---|",
        *map(_row, records),
        "",
        f"- The truth lies in the printed interval in {sum(r.is_covered for r in records)} of "
        f"{len(records)} cases; its own interval meets the printed one in "
        f"{sum(r.may_be_covered for r in records)}.",
        f"- The estimate is close in {sum(r.is_close for r in records)} of {len(records)}.",
        f"- A difference above {100 * MARGIN:.0f} % was called *equivalent* in "
        f"{sum(r.is_wrongly_equivalent for r in records)}.",
        "",
        f"CPU: {', '.join(dict.fromkeys(record.cpu for record in records))}. Measured "
        f"{_days(records)}.",
    ]
    page = "\n".join(lines) + "\n"
    places.write_page(PAGE, page, [record.conditions for record in records])
    return page


def _days(records: list[Record]) -> str:
    days = sorted({str(record.conditions["began"])[:10] for record in records})
    return " and ".join(dict.fromkeys((days[0], days[-1]))) if days else "never"


def _row(record: Record) -> str:
    truth, half = record.truth
    ends = [math.expm1(math.log1p(truth) + sign * half) for sign in (-1, 1)]
    known = f"{truth:+.1%}" + (f" ({ends[0]:+.1%} to {ends[1]:+.1%})" if half else "")
    printed = "–"
    if record.printed:
        middle, low, high = record.printed
        printed = f"{middle:+.1%} ({low:+.1%} to {high:+.1%})"
    covered = "yes" if record.is_covered else "nearly" if record.may_be_covered else "no"
    error = f"{100 * record.error:.1f}" if record.printed else "–"
    return (
        f"| {CASES[record.case].says} | {known} | {printed} | {record.outcome} | {covered} "
        f"| {error} | {'yes' if record.is_close else 'no'} |"
    )


if __name__ == "__main__":
    main()
