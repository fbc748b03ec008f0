"""Cells of a host that share launches: started together, measured in turns, each ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from envcompare.config.arms import IN_IMAGE
from envcompare.config.plan import Cell
from envcompare.errors import (
    CopyError,
    EnvcompareError,
    InterruptedRunError,
    StillRunningError,
    TransportError,
    UnusableError,
    as_known,
    phase_of,
)
from envcompare.measure.limits import REASONS
from envcompare.measure.lockstep import Lockstep, Turns
from envcompare.measure.startup import StartupPass
from envcompare.measure.workers import WorkerPool
from envcompare.run_folder.records import CellState
from envcompare.runner.cellrun import CellRun
from envcompare.runner.recording import Job

_T = TypeVar("_T")


def sharing(cells: Iterable[Cell]) -> list[tuple[Cell, ...]]:
    """Return the cells of a host in groups that share launches, in the order of the plan.

    Cells of a group have the same arms, and their data at the same place. In an image, data belong
    to a single workload, since all data have the same path there.

    A user's file is imported alone, since its settings must not affect others. A plain command is
    launched for each process, and a worker with ranks on other hosts for the ranks of its cell.
    """
    groups: dict[object, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_shared(cell), []).append(cell)
    return [tuple(group) for group in groups.values()]


def _shared(cell: Cell) -> object:
    """Return the common key of cells that share launches."""
    workload = cell.workload
    if workload.program is not None or cell.hosts:
        return cell.id
    held = workload.name if cell.place in IN_IMAGE else ""
    return workload.path, cell.within, cell.place, held


def run_cells(job: Job, runs: Iterable[CellRun], *, ended: set[str]) -> None:
    """Measure the cells of a group; the failure of one does not end the others.

    Adds the ID of each ended cell to `ended`, whatever happens to the others. Raises TransportError
    if the host is lost, InterruptedRunError if the user stops, even as the cause of another error,
    and StillRunningError if something keeps computing there.
    """
    group = _Group(job=job, runs=tuple(runs), ended=ended)
    try:
        group.measure()
    except (InterruptedRunError, TransportError) as error:
        for run in group.unended:
            run.close()
            job.note("interrupted", host=run.cell.host, cell=run.cell.id, text=error.brief)
        raise


def give_up(job: Job, cell: Cell, error: TransportError) -> None:
    """Record that a cell is not measured, since its host is unreachable."""
    job.fail("cell-failed", error, phase="connect", host=cell.host, cell=cell.id)
    _end(job, cell, "unreachable", error.brief)


def _end(job: Job, cell: Cell, state: CellState, text: str) -> None:
    job.note("cell-ended", host=cell.host, cell=cell.id, state=state, text=text)
    job.display.cell_done(cell.id, f"{state}, {text}" if text else state)


@dataclass(slots=True, kw_only=True)
class _Group:
    job: Job
    runs: tuple[CellRun, ...]
    ended: set[str]

    @property
    def unended(self) -> tuple[CellRun, ...]:
        return tuple(run for run in self.runs if run.cell.id not in self.ended)

    def measure(self) -> None:
        for run in self.runs:
            self.job.note("cell-started", host=run.cell.host, cell=run.cell.id)
            self._wait_for_turn(run)
        timed = [(run, lockstep) for run in self.runs if (lockstep := self._prepare(run))]
        self._show_all_folders()
        left = self._measure_in_turns(timed)
        for run in self.unended:
            ending = self._survives(run, run.finish)
            if ending is not None:
                self._end(run, *ending)
        if left is not None:
            raise left

    def _prepare(self, run: CellRun) -> Lockstep | None:
        lockstep = self._survives(run, run.prepare)
        self._wait_for_turn(run)
        return lockstep

    def _wait_for_turn(self, run: CellRun) -> None:
        """Stop a cell's clock, since its budget pays only for its own turns."""
        if run.cell.workload.program is None:
            self.job.note("turn", host=run.cell.host, cell=run.cell.id, text="waits for its turn")

    def _show_all_folders(self) -> None:
        """Let a worker see the folders of all its cells, since it serves them all."""
        shown = tuple(dict.fromkeys(mount for run in self.unended for mount in run.folders.shown))
        for run in self.unended:
            run.folders.shown = shown

    def _measure_in_turns(self, timed: list[tuple[CellRun, Lockstep]]) -> StillRunningError | None:
        """Measure all cells; return the error if something keeps computing on the host.

        An error that is not of one cell ends all undecided cells.
        """
        runs = {lockstep.context.cell: run for run, lockstep in timed}

        def take_turn(lockstep: Lockstep, pool: WorkerPool) -> None:
            run = runs[lockstep.context.cell]
            self._survives(run, lambda: run.run_restart(lockstep, pool))
            if run.cell.id in self.ended:
                lockstep.stopped_by = "failure"

        cells = [lockstep for _, lockstep in timed]
        try:
            Turns(cells, turn=take_turn).measure()
            _measure_startup([cell for cell in cells if cell.stopped_by in REASONS])
        except InterruptedRunError:
            raise
        except EnvcompareError as error:
            self._refuse_lost(error)
            undecided = [run for run, lockstep in timed if lockstep.stopped_by is None]
            for run in undecided:
                self._fail(run, error)
            if not undecided:
                first = self.runs[0].cell
                text = f"{error.brief}; start-up was measured less often"
                self.job.note("caution", host=first.host, cell=first.id, text=text)
            return error if isinstance(error, StillRunningError) else None
        return None

    def _refuse_lost(self, error: Exception) -> None:
        """Raise if the user stops, or if the error is that the host is lost."""
        self.job.interruption.check()
        if isinstance(error, TransportError) and not isinstance(error, CopyError):
            raise error

    def _survives(self, run: CellRun, act: Callable[[], _T]) -> _T | None:
        """Act for a cell; record an error that ends the cell."""
        try:
            return act()
        except InterruptedRunError:
            raise
        except Exception as error:  # noqa: BLE001 — recorded; the failure of one cell ends no other
            self._refuse_lost(error)
            self._fail(run, error)
            return None

    def _fail(self, run: CellRun, error: Exception) -> None:
        known = as_known(error)
        phase = phase_of(error, "environment" if isinstance(error, UnusableError) else "data")
        host, cell = run.cell.host, run.cell.id
        self.job.fail("cell-failed", known, phase=phase, host=host, cell=cell)
        self._end(run, "unreachable" if isinstance(error, CopyError) else "failed", known.brief)

    def _end(self, run: CellRun, state: CellState, text: str) -> None:
        run.close()
        _end(self.job, run.cell, state, text)
        self.ended.add(run.cell.id)


def _measure_startup(decided: Sequence[Lockstep]) -> None:
    """Launch again for cells that were decided after too few restarts."""
    if decided and decided[0].context.design.has_startup:
        StartupPass([cell.launches for cell in decided]).measure_warm()
