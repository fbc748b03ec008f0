"""Writes whole run folders that nobody measured, of any size, for benchmarks and tests.

All of it is drawn from the seed through envcompare's own records; no engine and no torch take
part. The title of each says that it is synthetic. Fingerprints have about 120 facts an arm, as many
as a worker finds around itself, since the size of a report depends on them.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from envcompare.errors import Phase
from envcompare.run_folder.records import (
    ArmRecord,
    Block,
    CellRecord,
    Design,
    Event,
    EventKind,
    Failure,
    FingerprintRecord,
    FingerprintValue,
    Memory,
    RunRecord,
    Sample,
    Startup,
)
from envcompare.run_folder.results import RunFolder

TITLE = "A synthetic run: drawn at random, measured nowhere"
_BEGAN = 1_767_225_600.0  # the first second of 2026
REFERENCE = "vm"
CONTROL = "vm~control"
_STEP_NS = 8_000_000  # of the first workload; each further one takes a half more
_STARTUP_NS = {
    "engine": 300_000_000, "import": 1_800_000_000, "data": 150_000_000, "build": 20_000_000,
    "first_step": 40_000_000, "train": 80_000_000, "exit": 60_000_000,
}  # fmt: skip
_Facts = dict[str, FingerprintValue]
_COUNTED = ("cpu", "limits", "vulnerabilities", "env.OMP", "torch", "cgroup", "gpu")
_LIBRARIES = tuple(f"libwork{number:02}.so.1" for number in range(70))
_PACKAGES = ("numpy==2.4.0", "torch==2.9.0+cpu", *(f"made{n}==1.{n}.0" for n in range(12)))
_BLAS = "libopenblas.so.0"
_COMMON: _Facts = {
    "arch": "x86_64",
    "allocator.name": "glibc",
    "cgroup.version": 2,
    "cpu.count": 8,
    "cpu.model": "made up",
    "kernel.release": "6.1.0",
    "libc.version": "glibc 2.36",
    "memory.total_bytes": 64 * 2**30,
    "numpy.version": "2.4.0",
    "python.executable": "/usr/bin/python3.11",
    "python.implementation": "cpython",
    "python.version": "3.11.2",
    "threads.mkl": 1,
    "threads.omp": 1,
    "torch.threads": 1,
    "torch.version": "2.9.0+cpu",
    "packages": _PACKAGES,
    "loaded_packages": _PACKAGES,
}
_PLAIN: _Facts = {
    "os.release": "Debian GNU/Linux 12 (bookworm)",
    "mount.python": "ext4 relatime,rw",
    "seccomp.mode": 0,
    "capabilities.effective": "000001ffffffffff",
    "shm.bytes": 32 * 2**30,
    "no_new_privs": False,
}
_CONTAINER: _Facts = {
    **_PLAIN,
    "os.release": "Debian GNU/Linux 13 (trixie)",
    "mount.python": "overlay relatime,rw",
    "seccomp.mode": 2,
    "capabilities.effective": "0000000000000000",
    "shm.bytes": 64 * 2**20,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An arm beside the reference: how many times as long its steps take, and how sure that is.

    `spread` is the standard deviation of the logarithm from restart to restart: 0.001 is a quiet
    machine, at 0.05 nothing is told apart.
    """

    id: str
    environment: str = "docker"
    ratio: float = 1.0
    spread: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """An arm that fails in one cell and is well in all others."""

    cell: str
    arm: str
    phase: Phase = "setup"
    exit_code: int | None = 137


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a run folder holds; with the same shape its files are the same, byte by byte.

    Beside the arms there are the reference and its control. `parameters` gives each workload a
    cell for every choice; the first of them is a number, and what an arm costs shrinks with it.
    `by_host` adds to the logarithm of the times of an arm on a host.
    """

    seed: int = 1
    hosts: tuple[str, ...] = ("gpu01",)
    workloads: tuple[str, ...] = ("cnn", "rnn")
    arms: tuple[Arm, ...] = (
        Arm(id="docker", ratio=1.08),
        Arm(id="singularity", environment="singularity", ratio=1.003),
    )
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    by_host: Mapping[tuple[str, str], float] = field(default_factory=dict)
    restarts: int = 6
    generations: int = 2
    rounds: int = 4
    steps: int = 5
    launches: int = 4
    failing: Failing | None = None
    not_run: tuple[str, str] | None = None  # host, arm
    confounded: str = ""  # the arm that loads another build of OpenBLAS

    @property
    def records(self) -> tuple[ArmRecord, ...]:
        """Return all arms, the reference first and its control last."""
        return (
            ArmRecord(id=REFERENCE, environment="vm", is_reference=True),
            *(ArmRecord(id=arm.id, environment=arm.environment) for arm in self.arms),
            ArmRecord(id=CONTROL, environment="vm", is_control=True),
        )

    @property
    def cells(self) -> tuple[CellRecord, ...]:
        """Return the cells of all hosts."""
        choices = [dict(zip(self.parameters, one, strict=True)) for one in self._products()]
        return tuple(
            CellRecord(
                id=f"{host}/{workload}/{_spelt(choice)}",
                host=host,
                workload=workload,
                parameters=dict(choice),
            )
            for host in self.hosts
            for workload in self.workloads
            for choice in choices
        )

    def works(self, cell: CellRecord, arm: str) -> bool:
        """Tell whether an arm gives results in a cell."""
        if self.not_run == (cell.host, arm):
            return False
        return self.failing is None or (self.failing.cell, self.failing.arm) != (cell.id, arm)

    def _products(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*self.parameters.values())


def _spelt(choice: Mapping[str, int]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(choice.items())) or "default"


def write(out: Path, shape: Shape) -> RunFolder:
    """Write a run folder under `out` and return it."""
    folder = RunFolder.create(out, _run(shape))
    generator = np.random.default_rng(shape.seed)
    drawn = [one for cell in shape.cells for one in _samples(shape, cell, generator)]
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
            _fingerprint(
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


def _samples(shape: Shape, cell: CellRecord, generator: np.random.Generator) -> Iterator[Sample]:
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


def _fingerprint(
    host: str, arm: str, cell: str, *, environment: str, has_other_blas: bool = False
) -> FingerprintRecord:
    """Return what a worker would have found, with another build of OpenBLAS where asked for."""
    blas = f"{_BLAS} {_digest('other' if has_other_blas else 'same')}"
    libraries = (blas, *(f"{name} {_digest(name)}" for name in _LIBRARIES))
    own = _PLAIN if environment == "vm" else _CONTAINER
    facts = {
        **{f"{_COUNTED[n % len(_COUNTED)]}.made_{n:02}": f"value {n}" for n in range(90)},
        **_COMMON,
        **own,
        "hostname": host if environment == "vm" else _digest(f"{host} {arm}")[:12],
        "loaded_libraries": libraries,
        "loaded_paths": tuple(f"{one.split()[0]} /usr/lib/{one.split()[0]}" for one in libraries),
    }
    return FingerprintRecord(
        host=host,
        arm=arm,
        cell=cell,
        facts=facts,
        identity={"stack": "image", "lock": _digest("lock")},
        taken="step",
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
