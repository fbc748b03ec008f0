"""The search for the largest batch before the cells of its sizes: once a host, in every arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from envcompare.config.plan import Cell, Plan
from envcompare.config.search import BATCH, CPU_MEMORY_MIB, BatchSearch
from envcompare.hosts.folders import CellFolders
from envcompare.measure.context import CellContext
from envcompare.measure.fitting import LIMIT_S, Fit, fitting_command, search_fit
from envcompare.run_folder.records import Scalar
from envcompare.run_folder.results import RunFolder
from envcompare.text import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCheck:
    """Says of a cell of a search whether its batch is to be measured."""

    search: BatchSearch
    cell: Cell
    plan: Plan
    folder: RunFolder
    folders: CellFolders

    def why_not(self, context: CellContext) -> str:
        """Return why the batch is not measured, empty where it is; search unless that was done.

        What does not fit in one arm is measured in none: there would be nothing to compare.
        """
        known = self._known()
        for arm in context.arms:
            if arm != context.control and arm not in known:
                context.check_interruption()
                known[arm] = self._search(context, arm)
        batch = int(str(dict(self.cell.parameters)[BATCH]))
        reasons = (_why_not(arm, values, batch) for arm, values in known.items())
        is_known = any("largest" in values for values in known.values())
        unknown = "" if is_known else "the largest batch is not known in any arm"
        return next(filter(None, reasons), unknown)

    def _known(self) -> dict[str, Mapping[str, Scalar]]:
        """Return what was found for the sizes of this workload, by arm."""
        alike = {cell.id for cell in self.plan.cells if _work(cell) == _work(self.cell)}
        events = self.folder.read_events().events
        return {e.arm: e.values for e in events if e.what == "batch-fits" and e.cell in alike}

    def _search(self, context: CellContext, arm: str) -> Mapping[str, Scalar]:
        """Search in an arm and record what was found, or the reason why it is not known."""
        session, limit = self.folders.session, self.search.memory_mib
        ready = session.arms[arm]
        command = fitting_command(
            ready.prepared.python,
            session.workloads,
            context.spec_of(arm),
            sizes=[int(str(size)) for size in dict(self.cell.workload.parameters)[BATCH]],
            memory_mib={"cpu": limit or CPU_MEMORY_MIB, "cuda": limit or 0},
            beside=len(context.arms),
        )
        inside = partial(session.run_inside, ready, mounts=self.folders.mounts, timeout_s=LIMIT_S)
        fit = search_fit(command, inside)
        values: dict[str, Scalar] = fit.values() if isinstance(fit, Fit) else {"reason": fit}
        context.note("batch-fits", arm=arm, text=_told(arm, fit), values=values)
        return values


def _work(cell: Cell) -> tuple[object, ...]:
    """Return what cells of a search have in common."""
    others = tuple(one for one in cell.parameters if one[0] != BATCH)
    return cell.host, cell.workload.name, cell.within, others


def _told(arm: str, fit: Fit | str) -> str:
    if isinstance(fit, str):
        return f"the largest batch in {arm} is not known: {fit}"
    tries = counted(fit.tries, "try", "tries")
    return f"the largest batch that fits in {arm}: {fit.largest or 'none'} ({tries})"


def _why_not(arm: str, values: Mapping[str, Scalar], batch: int) -> str:
    largest, measurable = values.get("largest"), values.get("measurable")
    if isinstance(largest, int) and batch > largest:
        why = f"the largest that fits is {largest}" if largest else "no size does"
        return f"a batch of {batch} does not fit in {arm}: {why}"
    if isinstance(measurable, int) and batch > measurable:
        return f"a batch of {batch} does not fit into the GPU once for each arm at the same time"
    return ""
