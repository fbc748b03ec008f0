"""Whole run folders as a run leaves them, made by hand: samples, events and fingerprints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from builders import CELL, blocks, design, run_record

from envcompare.run_folder.records import (
    ArmRecord,
    Event,
    Failure,
    FingerprintRecord,
    FingerprintValue,
    Scalar,
    Taken,
)
from envcompare.run_folder.results import RunFolder

CODE = "c0de" * 16
FACTS: dict[str, FingerprintValue] = {
    "python.version": "3.11.2",
    "torch.version": "2.13.0",
    "cpu.model": "EPYC",
    "hostname": "one",
    "pid": 7,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a run is to be like; the defaults are a whole run of one cell."""

    run_id: str
    cells: dict[str, dict[str, float]]  # time of each arm in each cell, the reference's is 1
    noise: float = 0.002
    restarts: int = 4
    held: float = 0.0  # the share of the rounds that are, on the first CPU
    facts: dict[str, dict[str, FingerprintValue]] = field(default_factory=dict)  # by arm
    identity: dict[str, dict[str, Scalar]] = field(default_factory=dict)  # by arm
    taken: Taken = "step"
    code: str | None = CODE
    data: str | None = "da7a"
    design: dict[str, object] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)  # by arm, in every cell
    ended: bool = True
    arms: tuple[ArmRecord, ...] = ()
    configuration: str = ""


def run_folder(out: Path, made: Made) -> Path:
    """Write the run and return its folder."""
    record = run_record(
        run_id=made.run_id,
        design=design(**made.design),
        cells=tuple(
            msgspec.structs.replace(run_record().cells[0], id=cell, workload=cell.split("/")[1])
            for cell in made.cells
        ),
        configuration=made.configuration,
        **({"arms": made.arms} if made.arms else {}),
    )
    folder = RunFolder.create(out, record)
    for event in _events(made):
        folder.append_event(event)
    for cell, ratios in made.cells.items():
        for block in blocks(ratios, restarts=made.restarts, noise=made.noise):
            is_held = block.round % 5 < 5 * made.held
            cpu = 0 if is_held else None
            folder.append_sample(
                msgspec.structs.replace(block, cell=cell, cpu=cpu, is_held=is_held)
            )
        for arm in ratios:
            fingerprint = FingerprintRecord(
                host="local",
                arm=arm,
                cell=cell,
                facts={**FACTS, **made.facts.get(arm, {})},
                identity=made.identity.get(arm, {}),
                taken=made.taken,
            )
            folder.write_fingerprint(fingerprint)
    folder.close()
    return folder.path


def one_cell(run_id: str, docker: float, **changes: Any) -> Made:
    """Return a run of vm, docker and the control in one cell."""
    cells = {CELL: {"vm": 1.0, "docker": docker, "vm~control": 1.0}}
    return replace(Made(run_id=run_id, cells=cells), **changes)


def _events(made: Made) -> Iterable[Event]:
    yield Event(t=1.0, what="run-started")
    for cell, ratios in made.cells.items():
        values = {"batch": 64, "device": "cpu", "code": made.code, "data": made.data}
        for arm in ratios:
            kept = {key: value for key, value in values.items() if value is not None}
            yield Event(t=2.0, what="note", host="local", cell=cell, arm=arm, values=kept)
        for arm, failure in made.failures.items():
            yield Event(t=3.0, what="arm-failed", host="local", cell=cell, arm=arm, failure=failure)
        if ratios:  # else nothing was timed
            yield Event(t=4.0, what="cell-ended", host="local", cell=cell, state="ok")
    if made.ended:
        yield Event(t=5.0, what="run-ended")
