"""Writes whole run folders that nobody measured, of any size: what benchmark and tests read.

All of it is drawn from the seed through envcompare's own records; no engine and no torch take
part. The title of each says that it is synthetic.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from envcompare.run_folder.records import CellRecord, Design, Event, EventKind, Failure, RunRecord
from envcompare.run_folder.results import RunFolder
from runfacts import fingerprint
from runsamples import samples
from runshapes import CONTROL, REFERENCE, Arm, Failing, Shape

__all__ = ["CONTROL", "REFERENCE", "TITLE", "Arm", "Failing", "Shape", "write"]

TITLE = "A synthetic run: drawn at random, measured nowhere"
_BEGAN = 1_767_225_600.0  # the first second of 2026


def write(out: Path, shape: Shape) -> RunFolder:
    """Write a run folder under `out` and return it."""
    folder = RunFolder.create(out, _run(shape))
    generator = np.random.default_rng(shape.seed)
    drawn = [one for cell in shape.cells for one in samples(shape, cell, generator)]
    encoder = msgspec.json.Encoder()
    # appended one by one each would be synced to the disk, which takes minutes for a large run
    folder.write_bytes("samples.jsonl", encoder.encode_lines(drawn))
    folder.write_bytes("events.jsonl", encoder.encode_lines(_events(folder, shape)))
    _write_surroundings(folder, shape)
    return folder


def _run(shape: Shape) -> RunRecord:
    return RunRecord(
        run_id=f"20260101-000000-{shape.seed % 0x10000:04x}",
        created="2026-01-01T00:00:00Z",
        seed=shape.seed,
        title=TITLE,
        tool_version="0.1.0",
        command_line=("python", "benchmarks/runfolders.py"),
        design=Design(
            preset="default",
            margin=0.02,
            target=0.01,
            budget_s=600.0,
            min_restarts=4,
            threads=1,
            stabilise=True,
            looks="doubling",
        ),
        arms=shape.records,
        cells=shape.cells,
    )


def _write_surroundings(folder: RunFolder, shape: Shape) -> None:
    """Write what was around each arm that worked, and the log of each that was started."""
    for cell, arm in itertools.product(shape.cells, shape.records):
        if shape.not_run == (cell.host, arm.id):
            continue
        log = folder.log_path(cell.host, cell.id, arm.id)
        if not shape.works(cell, arm.id):
            log.write_text("MemoryError: made up, and out of memory\n", encoding="utf-8")
            continue
        log.touch()
        folder.write_fingerprint(
            fingerprint(
                cell.host,
                arm.id,
                cell.id,
                environment=arm.environment,
                has_other_blas=arm.id == shape.confounded,
            )
        )


def _events(folder: RunFolder, shape: Shape) -> list[Event]:
    """Return the course of the run, an event a second."""
    found = [_event("run-started")]
    for host in shape.hosts:
        found.append(_event("host-ready", host=host))
        if shape.not_run is not None and shape.not_run[0] == host:
            found.append(_not_usable(*shape.not_run))
        for cell in shape.cells:
            if cell.host == host:
                found += _of_cell(folder, shape, cell)
    found.append(_event("run-ended"))
    return [msgspec.structs.replace(one, t=_BEGAN + second) for second, one in enumerate(found)]


def _event(what: EventKind, **fields: object) -> Event:
    return Event(t=0.0, what=what, **fields)  # type: ignore[arg-type]


def _not_usable(host: str, arm: str) -> Event:
    failure = Failure(
        phase="environment",
        brief=f"{arm} is not usable on {host}",
        details="its program is not there",
        hint=f"install it on {host}, or leave {arm} out",
    )
    return _event("arm-failed", host=host, arm=arm, text=failure.brief, failure=failure)


def _of_cell(folder: RunFolder, shape: Shape, cell: CellRecord) -> Iterator[Event]:
    place = {"host": cell.host, "cell": cell.id}
    yield _event("cell-started", **place)
    for arm in shape.records:
        if shape.works(cell, arm.id):
            values = {"batch": 64, "device": "cpu", "code": "synthetic"}
            yield _event("note", arm=arm.id, values=values, **place)
            forked = {"generation": "fork"}
            yield _event("arm-ready", arm=arm.id, values=forked, **place)
        elif shape.failing is not None and shape.failing.arm == arm.id:
            yield _event("arm-failed", arm=arm.id, failure=_failure(folder, shape.failing), **place)
    yield _event("calibrated", values={"steps_per_block": shape.steps}, **place)
    stop = "budget" if any(arm.spread > 0.01 for arm in shape.arms) else "target"
    yield _event("stopped", text=stop, **place)
    yield _event("cell-ended", text=f"stopped by {stop}", state="ok", **place)


def _failure(folder: RunFolder, failing: Failing) -> Failure:
    host = failing.cell.partition("/")[0]
    log = folder.log_path(host, failing.cell, failing.arm)
    return Failure(
        phase=failing.phase,
        brief="MemoryError: made up, and out of memory",
        details="the worker said so on stderr",
        hint="raise the memory limit of the arm",
        exit_code=failing.exit_code,
        log=str(log.relative_to(folder.path)),
    )
