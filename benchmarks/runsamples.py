"""Draws the samples of a run folder that is made and not measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from envcompare.run_folder.records import Block, CellRecord, Memory, Sample, Startup
from runshapes import REFERENCE, Arm, Shape

_STEP_NS = 8_000_000  # of the first workload; each further one takes a half more
_STARTUP_NS = {
    "engine": 300_000_000, "import": 1_800_000_000, "data": 150_000_000, "build": 20_000_000,
    "first_step": 40_000_000, "train": 80_000_000, "exit": 60_000_000,
}  # fmt: skip


def samples(shape: Shape, cell: CellRecord, generator: np.random.Generator) -> Iterator[Sample]:
    """Yield the samples of a cell in the order in which a run would have written them."""
    arms = [arm.id for arm in shape.records if shape.works(cell, arm.id)]
    yield from _startups(shape, cell, arms, generator)
    times = {arm: _times(shape, cell, arm, generator) for arm in arms}
    t0_ns = 10**12
    for restart, generation in itertools.product(range(shape.restarts), range(shape.generations)):
        for number in range(-1, shape.rounds):
            for order, place in enumerate(generator.permutation(len(arms))):
                own = times[arms[place]][restart, generation, number]
                at = {"restart": restart, "generation": generation, "round": number}
                yield _block(own, cell=cell.id, arm=arms[place], order=order, t0_ns=t0_ns, **at)
                t0_ns += int(own.sum()) + 1_000_000
        for arm in arms:
            peak = 300_000_000 + int(generator.integers(5_000_000))
            yield Memory(
                cell=cell.id, arm=arm, restart=restart, generation=generation, max_rss_bytes=peak
            )


def _times(shape: Shape, cell: CellRecord, arm: str, generator: np.random.Generator) -> np.ndarray:
    """Return wall times in ns by restart, generation, round (the last one is warm-up) and step."""
    known = {one.id: one for one in shape.arms}.get(arm, Arm(id=arm))
    sizes_of = {name: value for name, value in cell.parameters.items() if isinstance(value, int)}
    size = next((value / shape.parameters[name][0] for name, value in sizes_of.items()), 1.0)
    place = shape.workloads.index(cell.workload)
    middle = np.log(_STEP_NS * (1 + place / 2) * size) + np.log(known.ratio) / size
    middle += shape.by_host.get((cell.host, arm), 0.0)
    sizes = (shape.restarts, shape.generations, shape.rounds + 1, shape.steps)
    spreads = ((known.spread, 1), (0.001, 2), (0.002, 3), (0.02, 4))
    logarithms = middle + sum(
        spread * generator.standard_normal((*sizes[:depth], *(1,) * (4 - depth)))
        for spread, depth in spreads
    )
    # one step in fifty is held up, as on every machine
    late = generator.random(sizes) < 0.02
    times_ns: np.ndarray = np.exp(logarithms + late * generator.exponential(0.03, sizes))
    return times_ns.astype(np.int64)


def _block(own: np.ndarray, **place: int | str) -> Block:
    wall_ns = tuple(own.tolist())
    return Block(
        **place,  # type: ignore[arg-type]
        k=len(wall_ns),
        wall_ns=wall_ns,
        cpu_ns=tuple((own - own // 100).tolist()),
        wait_ns=0,
        all_wait_ns=0,
        throttled_ns=0,
        voluntary_switches=0,
        involuntary_switches=1,
        minor_faults=20,
        major_faults=0,
        loss=0.5,
        checksum=2.25,
        warmup=place["round"] == -1,
    )


def _startups(
    shape: Shape, cell: CellRecord, arms: list[str], generator: np.random.Generator
) -> Iterator[Startup]:
    for repetition in range(shape.launches):
        for order, place in enumerate(generator.permutation(len(arms))):
            factor = float(generator.lognormal(0, 0.02))
            took_ns = {name: int(ns * factor) for name, ns in _STARTUP_NS.items()}
            if not arms[place].startswith(REFERENCE):
                took_ns["engine"] *= 3
            yield Startup(
                cell=cell.id,
                arm=arms[place],
                repetition=repetition,
                order=order,
                real_ns=sum(took_ns.values()),
                user_ns=int(1.2e9 * factor),
                sys_ns=int(0.3e9 * factor),
                train_steps=10,
                page_cache="warm" if repetition else "unknown",
                engine_ns=took_ns["engine"],
                import_ns=took_ns["import"],
                data_ns=took_ns["data"],
                build_ns=took_ns["build"],
                first_step_ns=took_ns["first_step"],
                train_ns=took_ns["train"],
                exit_ns=took_ns["exit"],
            )
