"""The difference ledger without a GPU: where a step's time on the clock went, from its blocks.

Mean times over all measured blocks, since means add up where medians do not; a verdict rests on
paired ratios and may differ by what its trimming leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from envcompare.analysis.model.profiling import Ledger, Part
from envcompare.analysis.profiles.ledger import Division, difference
from envcompare.run_folder.records import Block, Measured, ProcessRun
from envcompare.stats.metrics import wall_ns

_ONE_THREAD: Final = "On a CPU is the CPU time of the process; the rest is what no clock explains."
_SPLIT: Final = "It is split into own work and kernel as in the pass that counted host events."
_MANY_THREADS: Final = (
    "CPU time and waiting together are more than the clock shows, as where several threads "
    "compute: what was neither waiting nor stopped counts as on a CPU."
)
_PROGRAM: Final = (
    "On a CPU is the program and the children it waited for; the rest is waiting, for a CPU too."
)
_PARALLEL: Final = "They ran side by side and are scaled to the time on the clock."
_CLOCKS_APART: Final = 1.02  # CPU time over the time that is left, by the grain of the clocks
_MODES_NS: Final = 1e9  # of CPU time, below which the kernel's ticks cannot tell modes apart
_TOO_SHORT: Final = (
    "Own work and work inside the kernel are not told apart: the pass that counted host events "
    "was shorter than 1 s."
)


class Modes(NamedTuple):
    """CPU time outside and inside the kernel, as another pass saw it."""

    user_ns: float
    sys_ns: float


def timing_ledger(
    before: Sequence[Measured],
    after: Sequence[Measured],
    *,
    arm: str,
    modes: tuple[Modes, Modes] | None = None,
) -> Ledger | str:
    """Return where the change of a step's time on the clock comes from, or why that is not known.

    The CPU time of blocks is split into user and system as `modes` of both arms were.
    """
    if not before or not after:
        return "no block was measured in one of the arms"
    if any(isinstance(one, Block) and one.gpu_ns for one in (*before, *after)):
        return "the work runs on a GPU, so that only a trace tells its parts"
    is_told = modes is not None and min(map(sum, modes)) >= _MODES_NS
    split = modes if modes and is_told else (None, None)
    divisions = [_divided(each, split[place]) for place, each in enumerate((before, after))]
    is_program = isinstance(before[0], ProcessRun)
    made = difference(
        *divisions,
        arm=arm,
        basis="timing",
        whole="a process on the clock" if is_program else "a step on the clock",
    )
    count = f"{len(before)} and {len(after)} {'processes' if is_program else 'blocks'}"
    return replace(
        made,
        piece="process" if is_program else "step",
        source=f"timing pass, means of {count}",
        timing_change_ns=made.change_ns,
        notes=(*_notes(before, after), *((_TOO_SHORT,) if modes and not is_told else ())),
    )


def _divided(measured: Sequence[Measured], modes: Modes | None) -> Division:
    runs = [one for one in measured if isinstance(one, ProcessRun)]
    if runs:
        return _of_programs(runs)
    blocks = [one for one in measured if isinstance(one, Block)]
    return _of_blocks(blocks, modes)


def _of_programs(runs: Sequence[ProcessRun]) -> Division:
    wall = _mean(run.wall_ns for run in runs)
    user, system = _mean(run.user_ns for run in runs), _mean(run.sys_ns for run in runs)
    rules: tuple[str, ...] = (_PROGRAM,)
    scale = 1.0
    if user + system > wall:
        rules, scale = (_PROGRAM, _PARALLEL), wall / (user + system)
    parts: dict[Part, float] = {"user": user * scale, "system": system * scale}
    return Division(parts={**parts, "rest": max(0.0, wall - sum(parts.values()))}, rules=rules)


def _of_blocks(blocks: Sequence[Block], modes: Modes | None) -> Division:
    steps = sum(block.k for block in blocks)
    wall = sum(wall_ns(block) for block in blocks) / steps
    quota = min(wall, sum(block.throttled_ns or 0 for block in blocks) / steps)
    # as for the metric net: the scheduler counts a stop by the quota as a wait too
    waited = sum(max(0, (b.wait_ns or 0) - (b.throttled_ns or 0)) for b in blocks) / steps
    waited = min(waited, wall - quota)
    left = wall - quota - waited
    cpu = sum(sum(block.cpu_ns) for block in blocks) / steps
    rules = (_ONE_THREAD if cpu <= left * _CLOCKS_APART else _MANY_THREADS,)
    parts: dict[Part, float] = _on_cpu(min(cpu, left), modes)
    parts |= {"wait": waited, "throttled": quota, "rest": max(0.0, left - cpu)}
    return Division(parts=parts, rules=(*rules, _SPLIT) if modes else rules)


def _on_cpu(cpu: float, modes: Modes | None) -> dict[Part, float]:
    if modes is None:
        return {"cpu": cpu}
    user = cpu * modes.user_ns / (modes.user_ns + modes.sys_ns)
    return {"user": user, "system": cpu - user}


def _notes(before: Sequence[Measured], after: Sequence[Measured]) -> Iterable[str]:
    """Say what the kernel counted in both arms and what it did not tell."""
    sides = [[one for one in each if isinstance(one, Block)] for each in (before, after)]
    if not all(sides):
        return
    for name, words in (("minor_faults", "Minor faults"), ("major_faults", "Major faults")):
        rates = [_rate(blocks, name) for blocks in sides]
        if None not in rates and any(rates):
            yield f"{words} in a step: {rates[0]:.4g} in the reference, {rates[1]:.4g} here."
    for name, words in (("wait_ns", "the wait for a CPU"), ("throttled_ns", "a CPU quota")):
        if any(getattr(block, name) is None for blocks in sides for block in blocks):
            yield f"The kernel did not tell {words}; it stands in the rest."


def _rate(blocks: Sequence[Block], name: str) -> float | None:
    counts = [getattr(block, name) for block in blocks]
    return None if None in counts else sum(counts) / sum(block.k for block in blocks)


def _mean(values: Iterable[int]) -> float:
    found = list(values)
    return sum(found) / len(found)
