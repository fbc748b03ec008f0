"""What the live benchmarks share: an interpreter with torch, made data, and lockstep without a run.

The measuring itself is the product's own `Lockstep`; a benchmark only chooses the arms.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from bookkeeping import WORK, Conditions, Watch
from envcompare import bundled
from envcompare.config.experiment import restarts_of
from envcompare.config.settings import PRESETS, Preset
from envcompare.environments.oci import ENGINE
from envcompare.environments.registry import environment
from envcompare.errors import Interruption
from envcompare.measure import Facts, LaunchSpec
from envcompare.measure import Variables as StartVariables
from envcompare.measure.cell import Budget, CellContext, Launch, Roster
from envcompare.measure.lockstep import Lockstep, Turns
from envcompare.measure.worker import Worker
from envcompare.run_folder.records import (
    ArmRecord,
    Block,
    CellRecord,
    Design,
    Event,
    RunRecord,
    Sample,
    Scalar,
    Taken,
)
from envcompare.stack import Progress, Request
from envcompare.stats.intervals import ALPHA, Interval, look_factor
from envcompare.stats.metrics import Readings
from envcompare.stats.typical import MIN_RESTARTS, TYPICAL_SHARE, RoundEvidence, error_share
from envcompare.text import Command, CommandResult
from envcompare.transport import LocalTransport, run

Variables = Mapping[str, str]
"""Environment variables of one arm; an empty value takes a variable of `--stabilise` away."""

_LOG = WORK / "worker.log"
_T = TypeVar("_T")


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

    def fingerprint(self, arm: str, found: Facts, *, taken: Taken) -> tuple[()]:  # noqa: ARG002
        """Leave the fingerprint: all arms are this machine's own venv."""
        return ()

    def progress(self, intervals: dict[str, Interval | None], bench: CellContext) -> None:
        """Show nothing: a trial is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """An interpreter that imports torch, and the folder of made data."""

    interpreter: str
    data: Path


def ground(workload: str = "cnn", *, python: str = "") -> Ground:
    """Make ready what every benchmark needs; the venv is the one `envcompare build` makes.

    `python` is an interpreter that imports torch, which is then taken in its place.
    """
    interpreter = python or _venv()
    data = WORK / "data" / Path(workload).name
    data.parent.mkdir(parents=True, exist_ok=True)
    worker = bundled.workloads() / "harness" / "worker.py"
    argv = (interpreter, str(worker), "--prepare", str(data), "--workload", workload)
    if not data.exists():
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return Ground(interpreter=interpreter, data=data)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSize:
    """How much each cell measures: restarts, rounds in each, and steps in a block.

    None leaves it to the budget.
    """

    restarts: int | None = None
    rounds: int | None = None
    steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One lockstep pass over arms that differ in their variables alone; the first is compared with.

    `name` and `seed` decide everything that is drawn at random. `cells` are the parameters of each
    cell: several share their launches, and have `budget_s` each.
    """

    name: str
    arms: Mapping[str, Variables]
    workload: str = "cnn"
    cells: tuple[Mapping[str, Scalar], ...] = ({},)
    budget_s: float
    target: float = 1e-9  # never reached: the budget ends the trial
    seed: int
    stabilise: bool = True
    marks: bool = False
    size: FixedSize = FixedSize()


def measure(trial: Trial, on: Ground) -> Notes:
    """Carry out a trial and return all it recorded; the last event holds its conditions."""
    notes, watch = Notes(), Watch.begin()
    benches = [_bench(trial, on, params, notes) for params in trial.cells]
    Turns([Lockstep(bench, Roster(bench)) for bench in benches]).measure()
    conditions = {**watch.conditions(), "budget_s": trial.budget_s}
    notes.event(Event(t=time.time(), what="note", cell=benches[0].cell, values=conditions))
    return notes


def _bench(trial: Trial, on: Ground, params: Mapping[str, Scalar], notes: Notes) -> CellContext:
    values = ",".join(f"{name}={value}" for name, value in sorted(params.items())) or "default"
    return CellContext(
        cell=f"local/{trial.name}/{values}",
        host="local",
        arms=tuple(trial.arms),
        reference=next(iter(trial.arms)),
        control="",
        launch=_launcher(trial, on),
        spec=LaunchSpec(
            workload=trial.workload,
            params=dict(params),
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
        log_of=lambda _arm: (_LOG, _LOG.name),
        budget=Budget.running(trial.budget_s),
    )


def save(path: Path, notes: Notes) -> None:
    """Write records as gzipped JSON lines; the file appears when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    # without a time in its head the same records give the same file
    with part.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as stream:
        for one in (*notes.samples, *notes.events):
            stream.write(msgspec.json.encode(one) + b"\n")
    part.rename(path)


def read_blocks(path: Path) -> tuple[Block, ...]:
    """Read the blocks that `save` wrote."""
    return tuple(one for one in read_samples(path) if isinstance(one, Block))


def read_samples(path: Path) -> list[Sample]:
    """Read all measurements that `save` wrote."""
    return list(_records(path, b'"kind":', msgspec.json.Decoder(Sample)))


def read_events(path: Path) -> list[Event]:
    """Read the events that `save` wrote."""
    return list(_records(path, b'"what":', msgspec.json.Decoder(Event)))


def _records(path: Path, mark: bytes, decoder: msgspec.json.Decoder[_T]) -> Iterator[_T]:
    """Yield the records of the lines with a mark, which those of no other kind have."""
    with gzip.open(path, "rb") as stream:
        for line in stream:
            if mark in line:
                yield decoder.decode(line)


def read_conditions(path: Path) -> Conditions:
    """Read the conditions that `measure` noted; nothing where the file holds none."""
    noted = _records(path, b'"commit":', msgspec.json.Decoder(Event))
    return next((event.values for event in noted), {})


def recorded_run(
    blocks: Iterable[Block], *, preset: Preset, reference: str, control: str = ""
) -> RunRecord:
    """Return the run that a trial stands for, with the arms and cells of its blocks."""
    every = tuple(blocks)
    values = PRESETS[preset]
    return RunRecord(
        run_id="trial",
        created="",
        seed=0,
        tool_version="",
        design=Design(
            preset=preset,
            margin=values.margin,
            target=values.target,
            budget_s=0,
            min_restarts=values.min_restarts,
            threads=1,
        ),
        arms=tuple(
            ArmRecord(
                id=arm,
                environment="vm",
                is_reference=arm == reference,
                is_control=arm == control,
            )
            for arm in dict.fromkeys(block.arm for block in every)
        ),
        cells=tuple(
            CellRecord(id=cell, host="local", workload=cell.split("/")[1])
            for cell in dict.fromkeys(block.cell for block in every)
        ),
    )


def evidence(
    blocks: Iterable[Block], *, arm: str = "b", reference: str = "a"
) -> RoundEvidence | None:
    """Return what the rounds of two arms say, None without a complete one.

    The spread of restarts is of these two arms alone.
    """
    own = (block for block in blocks if block.arm in {arm, reference})
    return Readings(own, metrics=("net",)).evidence(arm, reference, "net")


def printed_at_the_end(rounds: RoundEvidence, *, comparisons: int = 1) -> Interval:
    """Return what a run with so many comparisons prints where its budget ends, after its looks."""
    alpha = ALPHA / comparisons
    factor = end_widening(len(rounds.groups), TYPICAL_SHARE * alpha)
    return replace(rounds, widening=factor).printed(alpha=alpha)


def end_widening(restarts: int, alpha: float) -> float:
    """Return the factor of an interval with the error `alpha` at the end of the budget."""
    share = error_share(is_out_of_budget=True, restarts=restarts, planned=MIN_RESTARTS)
    return look_factor(alpha, share)


def schedule_text(trials: Iterable[Iterable[Block]]) -> str:
    """Say that trials were measured with several generations in a restart, where they were."""
    if not any(block.generation > 0 for blocks in trials for block in blocks):
        return ""
    return (
        " The raw data was measured with several generations in a restart, in blocks of 0.1 s and "
        "more."
    )


def budgets(measured: Iterable[Conditions]) -> str:
    """Say how long each trial had, where its file tells."""
    known = sorted({float(s) for one in measured if (s := one.get("budget_s")) is not None})
    return " or ".join(f"{budget_s:.0f} s" for budget_s in known)


def _design(trial: Trial) -> Design:
    return Design(
        preset="default",
        margin=0.02,
        target=trial.target,
        budget_s=trial.budget_s,
        min_restarts=restarts_of("default", trial.budget_s),
        threads=1,
        has_startup=False,
        quiet_gate=False,  # the time of a trial is for measuring alone
        stabilise=trial.stabilise,
        same_cpu=True,
        marks=trial.marks,
        restarts=trial.size.restarts,
        rounds=trial.size.rounds,
        steps=trial.size.steps,
    )


def _launcher(trial: Trial, on: Ground) -> Launch:
    transport = LocalTransport()
    worker = str(bundled.workloads() / "harness" / "worker.py")
    WORK.mkdir(parents=True, exist_ok=True)

    def launch(arm: str, variables: StartVariables = ()) -> Worker:
        own = {**dict(variables), **trial.arms[arm]}
        kept = tuple((name, value) for name, value in own.items() if value)
        command = Command(argv=(on.interpreter, worker), env=kept)
        return Worker(
            lambda: transport.spawn(command),
            arm=arm,
            log=_LOG,
            log_name=_LOG.name,
            explain=lambda _code, _text: None,
        )

    return launch


def _on_host(script: str) -> CommandResult:
    return run(LocalTransport(), Command(argv=("sh", "-c", script)))


def _venv() -> str:
    request = Request(transport=LocalTransport(), progress=Progress(_say), builder=ENGINE)
    return environment("vm").prepare(request).interpreter


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr)
