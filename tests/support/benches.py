"""A cell measured with real workers on this machine, in a moment and without any engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders import CELL, design, run_record

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import Comparison, RunComparison
from envcompare.errors import Interruption
from envcompare.measure import Facts, LaunchSpec
from envcompare.measure.cell import Budget, CellContext, Roster
from envcompare.measure.lockstep import Lockstep, Turns
from envcompare.measure.startup import StartupPass
from envcompare.measure.worker import Worker
from envcompare.run_folder.records import Event, FingerprintRecord, Sample, Taken
from envcompare.run_folder.results import RunFolder
from envcompare.stats.intervals import Interval
from envcompare.text import Command, CommandResult
from envcompare.transport import LOCAL, run

WORKER = Path(__file__).parents[2] / "workloads" / "harness" / "worker.py"
ARMS = ("vm", "docker", "vm~control")
Answer = Callable[[str], CommandResult]


@dataclass(frozen=True, slots=True)
class Kept:
    """Keeps what is measured in a run folder, and the events for the test."""

    folder: RunFolder
    events: list[Event] = field(default_factory=list)

    def sample(self, sample: Sample) -> None:
        """Keep one measurement."""
        self.folder.append_sample(sample)

    def event(self, event: Event) -> None:
        """Keep one event."""
        self.events.append(event)
        self.folder.append_event(event)

    def fingerprint(self, arm: str, found: Facts, *, taken: Taken) -> tuple[()]:
        """Keep the surroundings as the product does."""
        record = FingerprintRecord(host="local", arm=arm, cell=CELL, facts=found, taken=taken)
        self.folder.write_fingerprint(record)
        return ()

    def progress(self, intervals: dict[str, Interval | None], bench: CellContext) -> None:
        """Show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of a cell."""

    comparison: RunComparison
    events: tuple[Event, ...]
    folder: RunFolder

    @property
    def docker(self) -> Comparison:
        """Return the comparison of the arm that is no control."""
        return next(
            comparison for comparison in self.comparison.comparisons if comparison.arm == "docker"
        )

    @property
    def cautions(self) -> str:
        """Return what was noted for the reader."""
        return "\n".join(self.comparison.cells[0].cautions)

    def failures(self) -> str:
        """Return brief and hint of every failure."""
        rows = self.comparison.course.failures
        return "\n".join(f"{row.brief} | {row.hint}" for row in rows)


def bench(
    path: Path, workload: str, *, on_host: Answer | None = None, **changes: Any
) -> CellContext:
    """Return a bench of three arms, each a plain process that knows its arm by a variable."""
    spec = {name: changes.pop(name) for name in ("cpus",) if name in changes}
    plan = design(**{"quiet_gate": False, "has_startup": False, **changes})
    kept = Kept(RunFolder.create(path, run_record(design=plan)))
    data = path / "data"  # apart: each arm hashes it, and logs grow beside it meanwhile
    data.mkdir(exist_ok=True)
    return CellContext(
        cell=CELL,
        host="local",
        arms=ARMS,
        reference="vm",
        control="vm~control",
        launch=lambda arm, variables=(): launch(path, arm, variables),
        spec=LaunchSpec(
            workload=workload,
            params={},
            data=str(data),
            threads=1,
            cpus=spec.get("cpus"),
            generation="auto",
            device="auto",
        ),
        design=plan,
        seed=7,
        comparisons=1,
        recorder=kept,
        on_host=on_host or on_this_machine,
        interruption=Interruption(),
        log_of=lambda arm: (path / f"{arm}.log", f"{arm}.log"),
        budget=Budget.running(plan.budget_s),
    )


def on_this_machine(script: str) -> CommandResult:
    """Run a script of sh here."""
    return run(LOCAL, Command(argv=("sh", "-c", script)), timeout_s=60)


def launch(
    path: Path,
    arm: str,
    variables: tuple[tuple[str, str], ...] = (),
    *,
    program: Path = WORKER,
    around: Callable[[Command], Command] = lambda command: command,
    end: Callable[[], object] = lambda: None,
) -> Worker:
    """Start the worker of an arm, or its launcher; it knows its arm by a variable."""
    environment = (("ENVCOMPARE_ENVIRONMENT", arm), *variables)
    command = around(Command(argv=(sys.executable, str(program)), env=environment))
    return Worker(
        lambda: LOCAL.spawn(command),
        arm=arm,
        log=path / f"{arm}.log",
        log_name=f"{arm}.log",
        explain=lambda _code, _text: None,
        end=end,
    )


def measure(made: CellContext, *, passes: tuple[str, ...] = ("lockstep",)) -> Measured:
    """Run the passes and analyse what they left."""
    kept = made.recorder
    assert isinstance(kept, Kept)
    roster = Roster(made)
    lockstep = Lockstep(made, roster)
    startup = StartupPass([lockstep.launches])
    if "startup" in passes:
        startup.measure_cold()
    if "lockstep" in passes:
        Turns([lockstep]).measure()
    if "startup" in passes:
        startup.measure_warm()
    kept.folder.close()
    return Measured(
        comparison=compare_run(kept.folder), events=tuple(kept.events), folder=kept.folder
    )
