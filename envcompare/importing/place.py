"""Where imported files go: which run, which cell, which arm, and what becomes the reference."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from envcompare.errors import ConfigError
from envcompare.run_folder.profilefiles import read_profiles
from envcompare.run_folder.profiles import ProfileRecord, Tool
from envcompare.run_folder.records import ArmRecord, CellRecord, Design, RunRecord
from envcompare.run_folder.results import RunFolder, new_run_id
from envcompare.version import __version__

_HOST = "imported"
_WORKLOAD = "workload"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
_LONGEST_NAME = 100
_A_WORKLOAD = "a workload, as in --workload resnet50"
_NO_DESIGN = Design(
    preset="default", margin=0.02, target=0.01, budget_s=0, min_restarts=0, threads=0
)
"""Stands where a timed run has its design; nothing is judged by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be imported, as which arm, and into which run."""

    tool: Tool
    arm: str
    files: tuple[Path, ...]
    out: Path
    into: Path | None = None  # None makes a new run folder under `out`
    steps: int | None = None
    workload: str | None = None
    cell: str | None = None
    reference: str | None = None
    is_copied: bool = True
    command_line: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The run as it will be, the cell that gets the profile, and what is there already."""

    run: RunRecord
    cell: CellRecord
    folder: RunFolder | None = None
    records: tuple[ProfileRecord, ...] = ()

    def of_arm(self, arm: str) -> tuple[ProfileRecord, ...]:
        """Return what the arm has in the cell already."""
        return tuple(record for record in self.of_cell() if record.arm == arm)

    def of_cell(self) -> tuple[ProfileRecord, ...]:
        """Return what all arms have in the cell already."""
        return tuple(record for record in self.records if record.cell == self.cell.id)


def holds_any(record: ProfileRecord) -> bool:
    """Say whether anything was seen: a kernel, a copy, an operator, a call or a counter."""
    seen = record.profile
    return seen is not None and bool(
        seen.kernels
        or seen.copies
        or seen.operators
        or seen.api_calls
        or any(quantity.value for quantity in seen.quantities)
    )


def find_place(request: Request) -> Place:
    """Return where the files go, writing nothing.

    Raises ConfigError for a name that fits nowhere, RunFolderError for a run that cannot be read.
    """
    _check_name(request.arm, "an environment, as in --env docker or --env gpu01-docker")
    if request.into is None:
        cell = _cell(request.workload)
        return Place(run=_referring(_new_run(request, cell), request.reference), cell=cell)
    folder = RunFolder.open(request.into)
    folder.check_version("extended")
    run = folder.read_run()
    cell = _chosen(run, request)
    if cell not in run.cells:
        run = replace(run, cells=(*run.cells, cell))
    if all(arm.id != request.arm for arm in run.arms):
        _refuse_like(request.arm, run)
        run = replace(run, arms=(*run.arms, _arm(request.arm)))
    run = _referring(run, request.reference)
    return Place(run=run, cell=cell, folder=folder, records=read_profiles(folder))


def _new_run(request: Request, cell: CellRecord) -> RunRecord:
    return RunRecord(
        run_id=new_run_id(),
        created=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        seed=0,
        tool_version=__version__,
        command_line=request.command_line,
        design=_NO_DESIGN,
        arms=(replace(_arm(request.arm), is_reference=True),),
        cells=(cell,),
        controller={"python": platform.python_version(), "system": platform.platform()},
    )


def _arm(name: str) -> ArmRecord:
    return ArmRecord(id=name, environment=name, is_timed=False)


def _cell(workload: str | None) -> CellRecord:
    name = _WORKLOAD if workload is None else workload
    _check_name(name, _A_WORKLOAD)
    return CellRecord(id=f"{_HOST}/{name}/default", host=_HOST, workload=name)


def _chosen(run: RunRecord, request: Request) -> CellRecord:
    """Return the cell of the run that is meant; an imported run gets a new one by its name."""
    if request.workload is not None:
        _check_name(request.workload, _A_WORKLOAD)
    wanted = request.workload if request.cell is None else request.cell
    fitting = [cell for cell in run.cells if wanted in (None, cell.id, cell.workload)]
    if not fitting and request.cell is None and not _is_timed(run):
        return _cell(request.workload)
    if len(fitting) == 1:
        return fitting[0]
    raise ConfigError(
        "the run has several cells that could be meant" if fitting else f"the run has no {wanted}",
        details=f"its cells are {', '.join(cell.id for cell in run.cells)}",
        hint="name one with --cell",
    )


def _referring(run: RunRecord, name: str | None) -> RunRecord:
    """Return the run with the reference that was asked for, where it can be changed."""
    if name is None:
        return run
    if all(arm.id != name for arm in run.arms):
        raise ConfigError(
            f"--reference names {name}, which is no environment of the run",
            hint=f"one of {', '.join(arm.id for arm in run.arms)}",
        )
    arms = tuple(replace(arm, is_reference=arm.id == name) for arm in run.arms)
    if arms != run.arms and _is_timed(run):
        raise ConfigError(
            "the reference of a run that was timed cannot be changed",
            hint="leave --reference out",
        )
    return replace(run, arms=arms)


def _is_timed(run: RunRecord) -> bool:
    """Say whether anything of the run was to be timed."""
    return any(arm.is_timed for arm in run.arms)


def _refuse_like(name: str, run: RunRecord) -> None:
    """Refuse a name that a disk blind to upper and lower case would take for another's."""
    for arm in run.arms:
        if arm.id.casefold() == name.casefold():
            raise ConfigError(
                f"the run has {arm.id}, from which {name} differs only in upper and lower case",
                hint=f"use --env {arm.id}, or a name that differs in more",
            )


def _check_name(name: str, what: str) -> None:
    if len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"`{name[:20]}…` is too long to name {what.partition(',')[0]}",
            details=f"it has {len(name)} characters, of {_LONGEST_NAME} at most",
            hint=f"give a shorter name {what.partition(', ')[2]}",
        )
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"`{name}` cannot name {what.partition(',')[0]}",
            hint=f"use letters, digits and . _ @ - to name {what}",
        )
