"""A cell of a plain command measured with real processes on this machine, without any engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import benches
from benches import Kept, Measured, bench

from envcompare.analysis.compare import compare_run
from envcompare.config.workloads import Program
from envcompare.measure.cell import CellContext, Roster
from envcompare.measure.startup import ProcessPass
from envcompare.measure.worker import Worker
from envcompare.run_folder.records import ProcessRun

LAUNCHER = Path(__file__).parents[2] / "workloads" / "harness" / "measuring.py"
IN_DOCKER = '[ "$ENVCOMPARE_ENVIRONMENT" = docker ]'


def launch(path: Path, arm: str) -> Worker:
    """Start the launcher of an arm."""
    return benches.launch(path, arm, program=LAUNCHER)


def prepared(folder: Path, *argv: str, **changes: Any) -> tuple[CellContext, ProcessPass]:
    """Make a cell of a command ready."""
    fields = {name: changes.pop(name) for name in ("measures", "timeout_s") if name in changes}
    runs, before = changes.pop("runs", []), changes.pop("before", {})
    made = bench(folder / "run", "command", **{"budget_s": 60.0, **changes})
    made = replace(made, launch=lambda arm, _variables=(): launch(folder, arm))
    program = Program(argv=argv, cwd=str(folder), **fields)
    return made, ProcessPass(made, Roster(made, before=before), program, runs)


def concluded(made: CellContext) -> Measured:
    """Analyse what a pass left."""
    kept = made.recorder
    assert isinstance(kept, Kept)
    kept.folder.close()
    return Measured(
        comparison=compare_run(kept.folder), events=tuple(kept.events), folder=kept.folder
    )


def measured(folder: Path, *argv: str, **changes: Any) -> Measured:
    """Measure a command to the end."""
    made, processes = prepared(folder, *argv, **changes)
    processes.measure()
    return concluded(made)


def runs_of(found: Measured) -> list[ProcessRun]:
    """Return the processes that were kept."""
    return [
        sample for sample in found.folder.read_samples().samples if isinstance(sample, ProcessRun)
    ]
