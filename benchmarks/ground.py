"""What the live benchmarks share: an interpreter with torch, made data, and lockstep without a run.

The measuring itself is the product's own `Lockstep`; a benchmark only chooses the arms.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from envcompare import files
from envcompare.command import Command, CommandResult
from envcompare.interrupt import Interruption
from envcompare.measure.bench import Bench, Launch
from envcompare.measure.crew import Roster
from envcompare.measure.lockstep import Lockstep
from envcompare.measure.protocol import Hello
from envcompare.measure.stabilising import Variables as StartVariables
from envcompare.measure.worker import LaunchSpec, Worker
from envcompare.records import Block, Design, Event, Sample, Scalar
from envcompare.stack import Options
from envcompare.stack.prepare import prepare
from envcompare.stats.intervals import Interval
from envcompare.transport.local import LocalTransport
from envcompare.transport.operations import run

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
WORK = HERE / ".work"  # made data and logs, not kept
DOCS = HERE.parent / "docs" / "benchmarks"

Variables = Mapping[str, str]
"""Environment variables of one arm; an empty value takes a variable of `--stabilise` away."""


@dataclass(slots=True)
class Notes:
    """Keeps what a lockstep pass finds, in memory; a recorder without a run folder."""

    samples: list[Sample] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def sample(self, sample: Sample) -> None:
        """Keep one measurement."""
        self.samples.append(sample)

    def event(self, event: Event) -> None:
        """Keep one event; a failure is shown at once."""
        self.events.append(event)
        if event.failure is not None:
            print(f"  {event.arm}: {event.failure.brief}", file=sys.stderr)

    def fingerprint(self, arm: str, hello: Hello) -> None:
        """Leave the fingerprint: all arms are this machine's own venv."""

    def facts(self, arm: str, found: Mapping[str, object], values: Mapping[str, object]) -> None:
        """Leave the facts likewise."""

    def progress(self, intervals: dict[str, Interval | None], bench: Bench) -> None:
        """Show nothing: a trial is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """An interpreter that imports torch, and the folder of made data."""

    interpreter: str
    data: Path


def ground(workload: str = "cnn") -> Ground:
    """Make ready what every benchmark needs; the venv is the one `envcompare build` makes."""
    ready = prepare(LocalTransport(), "vm", options=Options(), progress=_say)
    data = WORK / "data" / workload
    data.parent.mkdir(parents=True, exist_ok=True)
    worker = files.workloads() / "worker.py"
    argv = (ready.interpreter, str(worker), "--prepare", str(data), "--workload", workload)
    if not data.exists():
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return Ground(interpreter=ready.interpreter, data=data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One lockstep pass over arms that differ in their variables alone; the first is compared with.

    `name` and `seed` decide everything that is drawn at random.
    """

    name: str
    arms: Mapping[str, Variables]
    workload: str = "cnn"
    params: Mapping[str, Scalar] = field(default_factory=dict)
    budget_s: float
    target: float = 1e-9  # never reached: the budget ends the trial
    seed: int
    stabilise: bool = True


def measure(trial: Trial, on: Ground) -> Notes:
    """Carry out a trial and return all it recorded."""
    notes = Notes()
    bench = Bench(
        cell=f"local/{trial.name}/default",
        host="local",
        arms=tuple(trial.arms),
        reference=next(iter(trial.arms)),
        control="",
        launch=_launcher(trial, on),
        spec=LaunchSpec(
            workload=trial.workload,
            params=dict(trial.params),
            data=str(on.data),
            threads=1,
            cpus=None,
            generation="auto",
            device="cpu",
            fingerprint=False,
        ),
        design=_design(trial),
        seed=trial.seed,
        comparisons=1,
        recorder=notes,
        on_host=_on_host,
        interruption=Interruption(),
        deadline=time.monotonic() + trial.budget_s,
    )
    Lockstep(bench, Roster(bench)).measure()
    return notes


def save(path: Path, samples: Iterable[Sample | Event]) -> None:
    """Write records as gzipped JSON lines; the file appears when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    # without a time in its head the same records give the same file
    with part.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as stream:
        for one in samples:
            stream.write(msgspec.json.encode(one) + b"\n")
    part.rename(path)


def read_blocks(path: Path) -> tuple[Block, ...]:
    """Read the blocks that `save` wrote."""
    with gzip.open(path, "rb") as stream:
        lines = (line for line in stream if b'"kind":' in line)  # an event has none
        found = [msgspec.json.decode(line, type=Sample) for line in lines]
    return tuple(one for one in found if isinstance(one, Block))


def load_average() -> float:
    """Return the load of the last minute, which every result states."""
    return float(Path("/proc/loadavg").read_text(encoding="ascii").split()[0])


def write_json(path: Path, content: object) -> None:
    """Write a result whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.rename(path)


def _design(trial: Trial) -> Design:
    return Design(
        preset="default",
        margin=0.02,
        target=trial.target,
        budget_s=trial.budget_s,
        min_restarts=4,
        threads=1,
        has_startup=False,
        quiet_gate=False,  # the time of a trial is for measuring alone
        stabilise=trial.stabilise,
    )


def _launcher(trial: Trial, on: Ground) -> Launch:
    transport = LocalTransport()
    worker = str(files.workloads() / "worker.py")
    log = WORK / "worker.log"
    log.parent.mkdir(parents=True, exist_ok=True)

    def launch(arm: str, variables: StartVariables = ()) -> Worker:
        own = {**dict(variables), **trial.arms[arm]}
        kept = tuple((name, value) for name, value in own.items() if value)
        command = Command(argv=(on.interpreter, worker), env=kept)
        return Worker(
            lambda: transport.spawn(command),
            arm=arm,
            log=log,
            log_name=log.name,
            explain=lambda _code, _text: None,
        )

    return launch


def _on_host(script: str) -> CommandResult:
    return run(LocalTransport(), Command(argv=("sh", "-c", script)))


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr)
