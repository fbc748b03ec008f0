"""The turns of cells that share their launches: restart by restart, each cell in every one.

A restart launches each arm once. Its workers serve one cell after the other, in random order, and
what the cells may take in all is shared by those that are not decided yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from envcompare.config.plan import derive_seed, shuffled
from envcompare.measure.lockstep import Lockstep
from envcompare.measure.pool import WorkerPool
from envcompare.measure.quiet import QuietGate

Turn = Callable[[Lockstep, WorkerPool], None]


@dataclass(slots=True)
class Turns:
    """Measures cells of one host until each is decided, or all budgets are spent.

    `turn` runs a restart of one cell; what it raises ends all of them.
    """

    cells: Sequence[Lockstep]
    turn: Turn = Lockstep.run_restart
    _left_s: float = 0.0
    _launched: set[str] = field(default_factory=set)  # arms

    def measure(self) -> None:
        """Run restarts of all cells.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        if not self.cells:
            return
        contexts = [cell.context for cell in self.cells]
        gate = QuietGate(contexts[0])
        gate.waited_s = sum(context.waited_s for context in contexts)
        self._left_s = sum(context.remaining_s for context in contexts)
        for cell in self.cells:
            cell.context.budget.stop()
        while live := self._share_budget():
            began = time.monotonic()
            self._run_restart(live, gate)
            self._left_s -= time.monotonic() - began

    def _share_budget(self) -> list[Lockstep]:
        """Stop the cells that are done; give those that are left an equal part of what is left.

        What one takes beyond its budget is for itself. Where a part is not worth a launch, the last
        of these cells ends and leaves its part.
        """
        live = [cell for cell in self.cells if cell.stopped_by is None]
        more_s: dict[str, float] = {}
        while live:
            for cell in live:
                more = more_s.get(cell.context.cell, 0.0)
                cell.context.budget.left_s = self._left_s / len(live) + more
            reasons = [(cell, cell.why_done()) for cell in live]
            done = [(cell, why) for cell, why in reasons if why not in (None, "budget")]
            spent = [(cell, why) for cell, why in reasons if why == "budget"]
            beyond = {} if done else {c.context.cell: c.overtime_s() for c, _ in spent}
            if any(beyond.values()):
                more_s |= beyond
                continue
            for cell, why in done or spent[-1:]:
                assert why is not None
                cell.stop(why)
            if not done and not spent:
                break
            live = [cell for cell in live if cell.stopped_by is None]
        self._left_s += sum(more_s.values())
        return live

    def _run_restart(self, live: Sequence[Lockstep], gate: QuietGate) -> None:
        """Launch once and serve each cell; after a break those first that are a restart behind."""
        restart = min(cell.restart for cell in live)
        cells = [cell for cell in live if cell.restart == restart]
        gate.wait_to_launch([cell.context for cell in live], uuid=cells[0].roster.gpu_uuid)
        pool = WorkerPool(
            spec=self.cells[0].context.spec,
            restart=restart,
            cells=len(cells),
            known=self._launched,
            is_timed=any(cell.launches.are_due for cell in cells),
        )
        try:
            for cell in self._in_order(cells, restart):
                with cell.context.budget.counting():
                    self.turn(cell, pool)
                cell.context.note("turn", values={"restart": restart})
            began = time.monotonic()
            pool.dismiss(cells[-1].context)
            exits_s = (time.monotonic() - began) / len(cells)
            for cell in cells:
                cell.end_restart(pool.exits_ns, exits_s=exits_s)
        finally:
            pool.kill()

    def _in_order(self, cells: Sequence[Lockstep], restart: int) -> list[Lockstep]:
        by_name = {cell.context.cell: cell for cell in cells}
        context = cells[0].context
        seed = derive_seed(context.seed, "cells", context.host, restart)
        return [by_name[name] for name in shuffled(tuple(by_name), seed)]
