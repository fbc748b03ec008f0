"""The search for the largest batch, before its cells: once per host, in every arm.

A program inside the arm tries each size in a separate process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from envcompare.command import Command, CommandResult
from envcompare.config.experiment import BATCH, CPU_MEMORY_MIB, BatchSearch
from envcompare.config.plan import Cell, Plan
from envcompare.errors import (
    CommandTimeoutError,
    OutputLimitError,
    StillRunningError,
    WorkloadError,
)
from envcompare.hosts import HostSession
from envcompare.measure.cell import CellContext
from envcompare.measure.replies import Amount, LaunchSpec
from envcompare.run_folder.records import Scalar
from envcompare.run_folder.results import RunFolder
from envcompare.stack import Mount
from envcompare.text import counted
from envcompare.transport import read_json

_PROGRAM = "harness/fitting.py"
_LIMIT_S = 1800.0
_ENV = (("MALLOC_MMAP_THRESHOLD_", str(1 << 16)),)  # freed memory leaves no holes


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCheck:
    """Decides whether the batch of a cell in a search is measured."""

    search: BatchSearch
    cell: Cell
    plan: Plan
    folder: RunFolder
    session: HostSession
    mounts: tuple[Mount, ...]

    def why_not(self, context: CellContext) -> str:
        """Return why the batch is not measured; empty if it is. Searches if necessary.

        A size that does not fit in one arm is measured in none, since nothing could be compared.
        Raises WorkloadError if no size is left, or if nothing is known of any arm.
        """
        known = self._known()
        fits = {arm: known.get(arm) for arm in context.arms if arm != context.control}
        for arm, values in fits.items():
            if values is None:
                context.check_interruption()
                fits[arm] = self._search(context, arm)
        answered = {arm: values for arm, values in fits.items() if values is not None}
        _require_known(answered)
        if why_none := _first_reason(answered, min(self._sizes)):
            raise WorkloadError(
                f"no size can be measured: {why_none}",
                hint="name smaller sizes, as in --search batch=1-64, or a higher limit, memory=MIB",
                phase="setup",
            )
        return _first_reason(answered, int(str(dict(self.cell.parameters)[BATCH])))

    @property
    def _sizes(self) -> list[int]:
        return [int(str(size)) for size in dict(self.cell.workload.parameters)[BATCH]]

    def _known(self) -> dict[str, Mapping[str, Scalar]]:
        """Return the sizes known for this workload, by arm.

        A search that failed before the run was resumed is repeated.
        """
        alike = {cell.id for cell in self.plan.cells if _work(cell) == _work(self.cell)}
        events = self.folder.read_events().events
        begun = max((i for i, e in enumerate(events) if e.what == "run-resumed"), default=0)
        return {
            e.arm: e.values
            for i, e in enumerate(events)
            if e.what == "batch-fits" and e.cell in alike and (i >= begun or "largest" in e.values)
        }

    def _search(self, context: CellContext, arm: str) -> Mapping[str, Scalar]:
        """Search in an arm and record the result, or the reason for having none."""
        limit = self.search.memory_mib
        ready = self.session.arms[arm]
        command = _fitting_command(
            ready.prepared.python,
            self.session.workloads,
            context.spec_of(arm),
            sizes=self._sizes,
            memory_mib={"cpu": limit or CPU_MEMORY_MIB, "cuda": limit or 0},
            arms=len(context.arms),
        )
        inside = partial(
            self.session.run_inside,
            ready,
            mounts=self.mounts,
            timeout_s=_LIMIT_S,
            interruption=context.interruption,
        )
        fit = search_fit(command, inside)
        context.check_interruption()  # a killed search has no result
        values: dict[str, Scalar] = fit.values() if isinstance(fit, Fit) else {"reason": fit}
        context.note("batch-fits", arm=arm, text=_fit_text(arm, fit), values=values)
        return values


def _work(cell: Cell) -> tuple[object, ...]:
    """Return the common key of the cells of a search."""
    others = tuple(one for one in cell.parameters if one[0] != BATCH)
    return cell.host, cell.workload.name, cell.within, others


def _require_known(fits: Mapping[str, Mapping[str, Scalar]]) -> None:
    """Raise WorkloadError if the search failed in every arm."""
    if any("largest" in values for values in fits.values()):
        return
    reasons = [f"{arm}: {values.get('reason', '')}" for arm, values in fits.items()]
    raise WorkloadError(
        "the largest batch is not known in any arm",
        details="; ".join(reasons),
        hint="run the workload without --search: its log then has the whole error",
        phase="setup",
    )


def _fit_text(arm: str, fit: Fit | str) -> str:
    if isinstance(fit, str):
        return f"the largest batch in {arm} is not known: {fit}"
    tries = counted(fit.tries, "try", "tries")
    return f"the largest batch that fits in {arm}: {fit.largest or 'none'} ({tries})"


def _first_reason(fits: Mapping[str, Mapping[str, Scalar]], batch: int) -> str:
    return next(filter(None, (_why_not(arm, values, batch) for arm, values in fits.items())), "")


def _why_not(arm: str, values: Mapping[str, Scalar], batch: int) -> str:
    largest, measurable = values.get("largest"), values.get("measurable")
    if isinstance(largest, int) and batch > largest:
        why = f"the largest that fits is {largest}" if largest else "no size does"
        return f"a batch of {batch} does not fit in {arm}: {why}"
    if isinstance(measurable, int) and batch > measurable:
        where = "the GPU" if values.get("device") == "cuda" else "the memory that the host has left"
        return f"a batch of {batch} does not fit into {where} once for each arm at the same time"
    return ""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The program's result: 0 if not even the first size fits.

    `measurable` is the largest requested size of which every arm can hold one at a time.
    """

    largest: Amount
    measurable: Amount
    beyond: Amount | None  # the smallest tried that does not fit
    limited_by: Literal["memory", "workload", "cap"]
    memory_mib: Amount  # of a process, or PyTorch's limit on a GPU; 0 is all of it
    device: Literal["cpu", "cuda"]
    tries: Amount
    said: str = ""  # the workload's message on what it does not take

    def values(self) -> dict[str, Scalar]:
        """Return the values as those of an event."""
        return msgspec.structs.asdict(self)


def _fitting_command(  # noqa: PLR0913 — the sizes to try, and their limits
    interpreter: str,
    workloads: str,
    spec: LaunchSpec,
    *,
    sizes: Sequence[int],
    memory_mib: dict[str, int],
    arms: int,
) -> Command:
    """Return the search command; `memory_mib` is by device (0: no limit), `arms` run at once."""
    asked = {
        "workload": spec.workload,
        "params": {name: value for name, value in spec.params.items() if name != "batch"},
        "data": spec.data or None,
        "threads": spec.threads,
        "cpus": spec.cpus,
        "device": spec.device,
        "sizes": sizes,
        "memory_mib": memory_mib,
        "beside": arms,
    }
    argv = (interpreter, "-B", f"{workloads}/{_PROGRAM}", json.dumps(asked))
    return Command(argv=argv, env=_ENV)


def search_fit(command: Command, run_inside: Callable[[Command], CommandResult]) -> Fit | str:
    """Return what fits, or why it is unknown. Raises TransportError if the host is lost."""
    try:
        done = run_inside(command)
    except CommandTimeoutError:
        return f"the search did not finish within {_LIMIT_S:.0f} s"
    except (OutputLimitError, StillRunningError) as error:
        return f"{error.brief}: {error.details}"
    said = done.stdout.strip().splitlines()
    if not done.succeeded or not said:
        return done.tail(1) or f"the search ended with exit code {done.exit_code}"
    try:
        fit = read_json(said[-1], Fit)
    except msgspec.MsgspecError as error:
        return f"the answer of the search is not understood: {error}"
    if fit.limited_by != "workload":
        return fit
    why = done.tail(1) or "the workload did not say why"
    return msgspec.structs.replace(fit, said=why) if fit.largest else why
