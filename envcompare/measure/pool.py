"""The workers of one launch, which serve the cells of a host one after another."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from envcompare.errors import WorkloadError
from envcompare.measure.context import CellContext
from envcompare.measure.limits import begin_limit_s
from envcompare.measure.replies import LaunchSpec
from envcompare.measure.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """How long the launch of a worker took, in ns: alone where the launches are timed."""

    engine_ns: int
    import_ns: int
    is_first: bool  # of its arm: what the page cache held is not known


@dataclass(slots=True, kw_only=True)
class WorkerPool:
    """The workers of a restart, at most one an arm; a cell takes them and gives them back.

    Each imports the workload of `spec` ahead and serves a cell from a fork, so that a launch is
    paid once for all cells. A worker that cannot stay serves one cell.
    """

    spec: LaunchSpec
    restart: int
    cells: int  # that share what the launches cost
    known: set[str]  # arms that were launched before; it grows
    is_timed: bool = False  # the launches of it are samples of some cell
    launch_s: float = 0.0  # of all workers
    shared_s: float = 0.0  # of those that stay for other cells
    launched: dict[str, Launched] = field(default_factory=dict)
    exits_ns: dict[str, int] = field(default_factory=dict)
    served: set[str] = field(default_factory=set)  # arms whose worker has served a cell
    _workers: dict[str, Worker] = field(default_factory=dict)
    _charged_ns: int = 0  # until when launches are in `launch_s`

    @property
    def share_s(self) -> float:
        """Return what the launches of the workers that stay cost each cell."""
        return self.shared_s / self.cells

    def take(self, arm: str, context: CellContext) -> Worker:
        """Return the worker of an arm, launched now where none is there.

        The caller has it, and no other cell may use it until it is given back. It may still have to
        import: `is_up` tells.
        """
        if arm not in self._workers:
            with context.budget.counting(on=False):
                return context.launch(arm, context.variables(self.restart))
        log, log_name = context.log_of(arm)  # before the worker is taken, since it may raise
        worker = self._workers.pop(arm)
        worker.serve(log, log_name)
        return worker

    def is_up(self, arm: str, worker: Worker) -> bool:
        """Tell whether a worker that was taken has been launched before."""
        return worker.stays and arm in self.launched

    def send_import(self, worker: Worker) -> None:
        """Let a new worker start and import, while others do."""
        worker.send_import(self.spec)

    def await_import(self, arm: str, context: CellContext, worker: Worker) -> Launched:
        """Wait until a new worker is up; its launch is charged to no cell alone.

        What it shares with launches before it is charged once. Raises WorkloadError where it does
        not come up.
        """
        began_ns = worker.spawned_ns
        if began_ns < self._charged_ns:  # launched together with one that was charged until then
            began_ns = time.monotonic_ns()
        with context.budget.counting(on=False):
            try:
                budget_s = context.design.budget_s
                limit_s = begin_limit_s(budget_s, remaining_s=context.remaining_s)
                imported = worker.await_import(limit_s)
            finally:
                now_ns = time.monotonic_ns()
                took_ns = now_ns - worker.spawned_ns
                charged_s = (now_ns - began_ns) / 1e9
                self.launch_s += charged_s
                self._charged_ns = now_ns
        if worker.stays:
            self.shared_s += charged_s
        inside_ns = imported.now_ns - imported.entry_ns
        launched = Launched(
            engine_ns=max(0, took_ns - inside_ns),
            import_ns=imported.import_ns,
            is_first=arm not in self.known,
        )
        self.known.add(arm)
        self.launched[arm] = launched
        self.served.discard(arm)
        return launched

    def give_back(self, arm: str, worker: Worker) -> None:
        """Take a worker back from the cell that it has served.

        Raises WorkloadError where it does not end that work.
        """
        if worker.stays:
            worker.leave()
            self.served.add(arm)
            self._workers[arm] = worker
        else:
            self._end(arm, worker)

    def dismiss(self, told: CellContext) -> None:
        """Let every worker quit, one after the other where that is timed, and end what it leaves.

        One that does not quit by itself has served all cells: that is noted in the one given.
        """
        for worker in () if self.is_timed else tuple(self._workers.values()):
            worker.send_quit()
        for arm in tuple(self._workers):
            worker = self._workers.pop(arm)
            try:
                self._end(arm, worker, is_asked=not self.is_timed)
            except WorkloadError as error:
                told.note("caution", arm=arm, text=error.brief)

    def _end(self, arm: str, worker: Worker, *, is_asked: bool = False) -> None:
        began_ns = time.monotonic_ns()
        try:
            if not is_asked:
                worker.send_quit()
            worker.await_quit()
            self.exits_ns[arm] = time.monotonic_ns() - began_ns
        finally:
            worker.kill()

    def kill(self) -> None:
        """Kill what is still alive, all of it whatever one of them raises; safe to repeat."""
        with ExitStack() as killing:
            for worker in self._workers.values():
                killing.callback(worker.kill)
            self._workers.clear()
