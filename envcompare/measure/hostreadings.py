"""What is read from a host as a whole: its roofs, noise and energy, and samples of its GPUs.

The cache of the host keeps the roofs of its device and its noise. Roofs are measured in the
reference arm. Noise is how far restarts scatter, from the A/A controls of earlier cells: a verdict
adds to the noise of the rounds what restarts add, which few restarts can hardly tell.
`--no-noise-memory` neither reads nor writes it.

Energy: after the timing each arm runs blocks that are long enough for a power sensor. NVML's power
(nvmlDeviceGetPowerUsage) is a mean over 1 s on Ampere and newer GPUs, GA100 excepted:
https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html. Blocks of the timing
are shorter. A program on the host itself samples the GPUs during a pass.

The way to a goal: after the timing every arm trains, epoch by epoch in turns. All arms of a restart
have the same seeds, so that what differs is the time of an epoch.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from envcompare.errors import (
    CommandTimeoutError,
    EnvcompareError,
    StackError,
    StillRunningError,
    WorkloadError,
)
from envcompare.measure import Ran, shuffled
from envcompare.measure.cell import CellContext, failure_of, started, warmed_up
from envcompare.measure.limits import limit_s
from envcompare.measure.worker import Worker
from envcompare.run_folder.profiles import Roofs
from envcompare.run_folder.records import (
    Count,
    EnergyBlock,
    Epoch,
    EventKind,
    FingerprintRecord,
    FingerprintValue,
    Goal,
    GpuReading,
)
from envcompare.stats.typical import (
    LEAST_SPREAD,
    PRIOR_SPREAD,
    PRIOR_WEIGHT,
    WIDE_SPREAD,
    Spread,
    prior_of,
)
from envcompare.text import Command, CommandResult, counted
from envcompare.transport import Process, Transport, make_folder, read_json, run, shell

PROGRAM = "harness/counters/roofs.py"
SECONDS = 10.0  # of measuring, without the start of PyTorch
ROOFS_LIMIT_S = 300.0
STEADY = 0.1  # that the median repetition may take longer than the best
# What a roof holds for: another of these is another roof.
GPU_KEYS = (
    "gpu.name", "gpu.uuid", "gpu.driver", "gpu.clock_sm_mhz_max", "gpu.clock_memory_mhz_max",
    "gpu.clock_sm_mhz_application", "gpu.power_limit_w", "gpu.ecc", "gpu.mig", "torch.version",
)  # fmt: skip
CPU_KEYS = (
    "cpu.model", "cpu.microcode", "cpu.count", "cpu.boost", "cpu.governor", "torch.version",
    "cgroup.cpu_quota",
)  # fmt: skip
_NOISE_FILE = "noise.json"
# A host changes, so with each cell what is remembered counts for less.
_FADING = 0.9
# The excess of one cell is limited, since a worker that is far off says nothing of its host.
_LARGEST_EXCESS = (2 * WIDE_SPREAD) ** 2
_MOST_VARIANCE = 1.0  # a variance beyond is none of a host, but of a broken file
BLOCK_S: Final = 5.0
ROUNDS: Final = 2
_CALL_S: Final = 1.0  # a block is made of calls of about this length until it is long enough
# A worker answers with the times of each step, which limits the steps of a call.
_MOST_STEPS: Final = 5000
_BUDGET_S: Final = 240.0  # beyond which there is one round only
_CALL_LIMIT_S: Final = 60.0
SAMPLER_PROGRAM = "harness/counters/gpusampling.py"
_ENDING_S = 5.0
LINE_READINGS = 1000  # in a line of samples.jsonl
NO_GPU = "the host has no GPU, so power, energy and clocks were not measured"
_STDERR_BYTES = 4096
_LINE_BYTES = 1 << 16
_MOST_READINGS = 1_000_000  # of all GPUs in a pass


class _Measured(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    bytes_per_s: float | None = None
    flops_per_s: dict[str, float] = {}
    uuid: str = ""
    driver: str = ""
    clocks: str = ""
    torch: str = ""
    spread: float | None = None


def roofs_command(
    interpreter: str,
    workloads: str,
    *,
    device: str,
    threads: int | None,
    cpus: tuple[int, ...] | None,
) -> Command:
    """Return the command that measures inside an arm, with the threads and CPUs of the workers."""
    argv = (
        *(interpreter, "-B", f"{workloads}/{PROGRAM}", "--device", device),
        *(("--threads", str(threads)) if threads else ()),
        *("--seconds", str(SECONDS)),
        *(("--cpus", ",".join(map(str, cpus))) if cpus else ()),
    )
    return Command(argv=argv)


def measure_roofs(  # noqa: PLR0913 — what for, where it is kept, and how it is run
    transport: Transport,
    command: Command,
    reference: FingerprintRecord,
    *,
    cache: str,
    run_inside: Callable[[Command], CommandResult],
    busy: Callable[[], str] = str,
) -> Roofs:
    """Return the roofs of a host's device, measured by `command` unless its cache has them.

    Device, driver, clocks and PyTorch in the fingerprint of the reference decide whether cached
    roofs are still valid. `run_inside` runs the command in the arm, for at most ROOFS_LIMIT_S;
    `busy` says why the host is not quiet. Roofs of a busy host may be too low: they are marked, and
    not kept. A reason replaces the numbers if nothing can be measured. Raises TransportError when
    the host is lost.
    """
    path = f"{cache}/roofs/{key_of(command, reference.facts)}.json"
    cached = _read(shell(transport, 'cat -- "$1"', path).stdout)
    if cached is not None:
        return _roofs(reference.host, cached)
    doubt = busy()
    try:
        done = run_inside(command)
    except CommandTimeoutError:
        return _unmeasured(reference, f"the program did not finish within {ROOFS_LIMIT_S:.0f} s")
    except StillRunningError as error:
        return _unmeasured(reference, f"{error.brief}: {error.details}")
    measured = _read(done.stdout)
    if not done.succeeded or measured is None:
        return _unmeasured(reference, done.tail(1) or f"exit code {done.exit_code}")
    if not doubt and measured.spread is not None and measured.spread > STEADY:
        doubt = f"the median repetition took {measured.spread:.0%} longer than the best"
    if not doubt:
        _keep(transport, path, measured)
    return _roofs(reference.host, measured, doubt)


def key_of(command: Command, facts: Mapping[str, FingerprintValue]) -> str:
    """Return a name for what the roofs hold for: device and settings, program, threads, PyTorch."""
    start = next((at for at, word in enumerate(command.argv) if word.endswith(f"/{PROGRAM}")), 0)
    keys = GPU_KEYS if facts.get("gpu.uuid") or facts.get("gpu.name") else CPU_KEYS
    held = {name: facts.get(name) for name in keys}
    text = msgspec.json.encode([command.argv[start:], held])
    return hashlib.sha256(text).hexdigest()[:16]


def _keep(transport: Transport, path: str, kept: msgspec.Struct) -> None:
    """Write a file of the host's cache whole or not at all; a disk that refuses costs only that."""
    with suppress(StackError):
        make_folder(transport, path.rpartition("/")[0])
    script = 'cat > "$1.partial" && mv -- "$1.partial" "$1"'
    argv = ("sh", "-c", script, "sh", path)
    run(transport, Command(argv=argv), stdin=msgspec.json.encode(kept))


def _read(text: str) -> _Measured | None:
    try:
        return read_json((text.strip().splitlines() or [""])[-1], _Measured)
    except msgspec.MsgspecError:
        return None


def _roofs(host: str, measured: _Measured, doubt: str = "") -> Roofs:
    source = f"measured with PyTorch {measured.torch}" if measured.torch else "measured"
    numbers = asdict(measured)
    del numbers["torch"], numbers["spread"]
    return Roofs(
        host=host,
        source=f"{source}; may be too low, since {doubt}" if doubt else source,
        is_measured=True,
        **numbers,
    )


def _unmeasured(reference: FingerprintRecord, why: str) -> Roofs:
    facts = reference.facts
    return Roofs(
        host=reference.host,
        device=str(facts.get("gpu.name") or facts.get("cpu.model") or ""),
        source="",
        is_measured=False,
        uuid=str(facts.get("gpu.uuid") or ""),
        driver=str(facts.get("gpu.driver") or ""),
        reason=f"the roofs could not be measured: {why}",
    )


class NoiseMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of the formula: degrees of freedom, and variance times these."""

    df: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    variance_sum: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0

    @property
    def spread(self) -> Spread:
        """Return the prior of a host: the shipped one, moved by what its controls showed."""
        weighted = PRIOR_WEIGHT * PRIOR_SPREAD**2 + self.variance_sum
        variance = weighted / (PRIOR_WEIGHT + self.df)
        return prior_of(math.sqrt(min(_MOST_VARIANCE, max(LEAST_SPREAD**2, variance))))

    def with_cell(self, control: Spread) -> NoiseMemory:
        """Return what is remembered after a cell, of which the spread of the control alone."""
        excess = min(control.own_excess, _LARGEST_EXCESS)
        return NoiseMemory(
            df=_FADING * self.df + control.own_df,
            variance_sum=_FADING * self.variance_sum + control.own_df * excess,
        )


def recall(transport: Transport, cache: str) -> NoiseMemory:
    """Return what a host's cache remembers; nothing where it has none that can be read."""
    try:
        return read_json(
            shell(transport, 'cat -- "$1"', f"{cache}/{_NOISE_FILE}").stdout, NoiseMemory
        )
    except msgspec.MsgspecError:
        return NoiseMemory()


def remember(transport: Transport, cache: str, memory: NoiseMemory) -> None:
    """Keep it whole or not at all; a disk that refuses costs what was learnt."""
    _keep(transport, f"{cache}/{_NOISE_FILE}", memory)


@dataclass(slots=True, kw_only=True)
class EnergyPass:
    """Runs long blocks of each arm in turn, while the power of the host's GPUs is sampled.

    No time of it enters a comparison, and none is taken from the budget of the cell.
    """

    context: CellContext
    arms: tuple[str, ...]
    launch: Callable[[str], Worker]
    sampling: Callable[[], AbstractContextManager[None]]
    prior: Sequence[EnergyBlock] = ()  # of this cell, before an interruption
    block_s: float = BLOCK_S
    _workers: dict[str, Worker] = field(default_factory=dict)
    _step_s: dict[str, float] = field(default_factory=dict)
    _taken: int = 0

    def measure(self) -> str:
        """Run the blocks that are missing, and say in a line what there is.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        kept = {(block.round, block.arm) for block in self.prior}
        missing = [
            (number, arm)
            for number in range(ROUNDS)
            for arm in self._order(number)
            if (number, arm) not in kept
        ]
        if missing:
            try:
                self._run(missing)
            except StillRunningError as error:
                self.context.note("note", text=f"no further energy was measured: {error.brief}")
        count = self._taken + len(kept)
        if not count:
            return "no energy was measured"
        return f"energy of {count} blocks of at least {self.block_s:g} s"

    def _order(self, number: int) -> tuple[str, ...]:
        return shuffled(self.arms, self.context.seed_of("energy", number))

    def _run(self, missing: list[tuple[int, str]]) -> None:
        with ExitStack() as stack:
            for arm in dict.fromkeys(arm for _, arm in missing):
                with self._surviving(arm):
                    self._start(arm, stack)
            if not self._workers:
                return
            # one round where steps are so long that two take minutes
            lasting_s = sum(max(self.block_s, step_s) for step_s in self._step_s.values())
            rounds = ROUNDS if ROUNDS * lasting_s <= _BUDGET_S else 1
            with self.sampling():
                for number, arm in missing:
                    if number < rounds and arm in self._workers:
                        self.context.check_interruption()
                        with self._surviving(arm):
                            self._take(number, arm)
            for arm, worker in self._workers.items():
                with self._surviving(arm):
                    worker.quit()

    def _start(self, arm: str, stack: ExitStack) -> None:
        """Bring a worker of an arm past its first steps; one that runs on the CPU is left out."""
        self.context.check_interruption()
        spec = self.context.untimed_spec(arm)
        worker, hello = stack.enter_context(started(lambda: self.launch(arm), spec))
        if hello.device == "cuda":
            self._step_s[arm] = warmed_up(self.context, worker)
            self._workers[arm] = worker

    def _take(self, number: int, arm: str) -> None:
        worker, step_s = self._workers[arm], max(self._step_s[arm], 1e-9)
        k = max(1, min(_MOST_STEPS, math.ceil(min(_CALL_S, self.block_s) / step_s)))
        limit = limit_s(_CALL_LIMIT_S, k, step_s)
        calls = [worker.run(k, limit)]
        while _lasted_ns(calls) < self.block_s * 1e9:
            calls.append(worker.run(k, limit))
        block = EnergyBlock(
            cell=self.context.cell,
            arm=arm,
            round=number,
            order=self._order(number).index(arm),
            k=k * len(calls),
            t0_ns=calls[0].t0_ns,
            wall_ns=_lasted_ns(calls),
        )
        self.context.recorder.sample(block)
        self._taken += 1

    def _surviving(self, arm: str) -> AbstractContextManager[None]:
        what = "no further energy was measured"
        return _surviving(self.context, arm, what=what, drop=lambda: self._drop(arm))

    def _drop(self, arm: str) -> None:
        """End the worker of an arm: what still runs would be taken for the power of others."""
        if arm in self._workers:
            self._workers.pop(arm).kill()


def _lasted_ns(calls: Sequence[Ran]) -> int:
    """Return the time from the first step to the last, with what is between two calls."""
    return calls[-1].t0_ns + sum(calls[-1].wall_ns) - calls[0].t0_ns


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of one GPU, as printed by the program on the host."""

    uuid: str
    t_ns: Count
    has_instant_power: bool = False
    power_mw: Count | None = None
    energy_mj: Count | None = None
    sm_mhz: Count | None = None
    memory_mhz: Count | None = None
    temperature_c: Count | None = None
    throttling: int | None = None
    utilization_percent: Count | None = None


@dataclass(slots=True, kw_only=True)
class Sampling:
    """The readings of a finished pass; `reason` says what is missing."""

    readings: tuple[GpuReading, ...] = ()
    reason: str = ""


def sampler_command(interpreter: str, workloads: str) -> Command:
    """Return the sampling command; it writes no byte code next to the workloads."""
    return Command(argv=(interpreter, "-B", f"{workloads}/{SAMPLER_PROGRAM}"))


@contextmanager
def sampling(
    transport: Transport,
    command: Command | None,
    *,
    cell: str,
    keep: Callable[[GpuReading], None],
) -> Iterator[Sampling]:
    """Sample the host's GPUs during the body, then pass the readings to `keep`.

    Without a command nothing is started. A failing sampler only sets `reason`; the pass continues.
    If the body raises, its readings are kept first.
    """
    sampled = Sampling(reason="" if command else NO_GPU)
    sampler = None
    if command:
        try:
            sampler = _Sampler(transport.spawn(command))
        except EnvcompareError as error:
            sampled.reason = f"the GPU was not sampled: {error.brief}"
    try:
        yield sampled
    finally:
        if sampler is not None:
            lines, sampled.reason = sampler.finish()
            sampled.readings = tuple(gpu_readings(cell, lines))
            for reading in sampled.readings:
                keep(reading)


def gpu_readings(cell: str, lines: list[_Line]) -> Iterator[GpuReading]:
    """Yield the lines of each GPU as columns, in chunks of LINE_READINGS."""
    by_gpu: dict[str, list[_Line]] = {}
    for line in lines:
        by_gpu.setdefault(line.uuid, []).append(line)
    for uuid, of_gpu in by_gpu.items():
        for start in range(0, len(of_gpu), LINE_READINGS):
            piece = of_gpu[start : start + LINE_READINGS]
            yield GpuReading(
                cell=cell,
                uuid=uuid,
                t_ns=tuple(line.t_ns for line in piece),
                has_instant_power=all(line.has_instant_power for line in piece),
                power_mw=tuple(line.power_mw for line in piece),
                energy_mj=tuple(line.energy_mj for line in piece),
                sm_mhz=tuple(line.sm_mhz for line in piece),
                memory_mhz=tuple(line.memory_mhz for line in piece),
                temperature_c=tuple(line.temperature_c for line in piece),
                throttling=tuple(line.throttling for line in piece),
                utilization_percent=tuple(line.utilization_percent for line in piece),
            )


@dataclass(slots=True)
class _Sampler:
    """The program on the host, and the threads that read its output."""

    process: Process
    lines: list[_Line] = field(default_factory=list)
    stderr_tail: bytes = b""
    fault: str = ""
    _threads: tuple[threading.Thread, ...] = ()

    def __post_init__(self) -> None:
        """Read both streams from the start, since a full pipe would block the program."""
        tasks = (self._take_readings, self._take_words)
        self._threads = tuple(threading.Thread(target=task, daemon=True) for task in tasks)
        for thread in self._threads:
            thread.start()

    def finish(self) -> tuple[list[_Line], str]:
        """End the program; return its readings, and why some or all are missing."""
        exit_code = self._end()
        for thread in self._threads:
            thread.join(_ENDING_S)
        words = self.stderr_tail.decode(errors="replace").strip().splitlines()
        if exit_code and not self.lines:
            cause = words[-1] if words else f"it ended with exit code {exit_code}"
            return [], f"the GPU was not sampled: {cause}"
        if self.fault or exit_code:
            return self.lines, self.fault or f"the sampler ended early, with code {exit_code}"
        return self.lines, "" if self.lines else "the pass was over before the first reading"

    def _end(self) -> int:
        try:
            with suppress(OSError):
                self.process.stdin.close()
            return self.process.wait(_ENDING_S)
        except EnvcompareError:
            # It is killed below, which loses no reading.
            return 0
        finally:
            with suppress(EnvcompareError, OSError):
                self.process.kill()

    def _take_readings(self) -> None:
        with suppress(OSError, ValueError, EnvcompareError):
            while line := self.process.stdout.readline(_LINE_BYTES):
                if len(self.lines) == _MOST_READINGS:
                    self.fault = f"the sampler wrote more than {_MOST_READINGS} readings"
                    # The output is read on to its end, since a full pipe would block the program.
                    continue
                try:
                    self.lines.append(read_json(line, _Line))
                except msgspec.MsgspecError as error:
                    self.fault = f"a GPU reading could not be parsed: {error}"

    def _take_words(self) -> None:
        with suppress(OSError, ValueError, EnvcompareError):
            while chunk := self.process.stderr.read(_STDERR_BYTES):
                self.stderr_tail = (self.stderr_tail + chunk)[-_STDERR_BYTES:]


_MOST_GOAL_STEPS: Final = 500  # in a call
_LEAST_LIMIT_S: Final = 300.0  # of a call, plus 30 times what its steps took so far


@dataclass(slots=True, kw_only=True)
class _Training:
    """An arm in training, and the part of its first epoch that ran while the model was built."""

    worker: Worker
    steps_per_epoch: int
    first_step_ns: int = 0
    longest_step_ns: int = 0  # of an average over a call

    def limit_s(self, steps: int) -> float:
        """Return how long a call may take that has to do with so many steps."""
        return limit_s(_LEAST_LIMIT_S, steps, self.longest_step_ns / 1e9)


@dataclass(slots=True, kw_only=True)
class AccuracyPass:
    """Trains every arm to the goal, once for each of the cell's minimum restarts.

    It takes at most the budget of the cell again, plus one restart; an epoch that has begun is
    finished. Only the first restart is cut: a later one would count as not reaching the goal, which
    would leave only the quick ones. An arm that fails is trained no further.
    """

    context: CellContext
    goal: Goal
    arms: tuple[str, ...]
    launch: Callable[[str], Worker]
    prior: Sequence[Epoch] = ()  # of this cell, before an interruption
    _training: dict[str, _Training] = field(default_factory=dict)
    _reached: int = 0
    _failed: set[str] = field(default_factory=set)

    @property
    def missing(self) -> int:
        """Return how many restarts are left to train, 0 or less where none is."""
        return (self.context.design.restarts or self.context.design.min_restarts) - self._complete

    def measure(self) -> str:
        """Train, and say in a line how often the goal was reached.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        began, design = time.monotonic(), self.context.design
        first = 1 + max((epoch.restart for epoch in self.prior), default=-1)
        done, complete = 0, self._complete
        try:
            for restart in range(first, first + self.missing):
                spent_s = time.monotonic() - began
                if done and spent_s * (done + 1) / done > design.budget_s:
                    break
                is_cut = not (done or complete)
                if not self._run(restart, until_s=began + design.budget_s if is_cut else math.inf):
                    break
                done += 1
        except StillRunningError as error:
            self.context.note("note", text=f"no arm was trained further: {error.brief}")
        goal = f"{self.goal.metric} {self.goal.value:g}"
        if not done:
            return f"not trained to {goal}: no arm finished an epoch"
        tried = f"{counted(done, 'restart')} of {counted(len(self.arms), 'arm')}"
        return f"trained to {goal} in {tried}: reached {counted(self._reached, 'time')}"

    @property
    def _complete(self) -> int:
        """Count the restarts before an interruption in which every arm came to an end."""
        ends: dict[int, set[str]] = {}
        for epoch in self.prior:
            if epoch.is_last:
                ends.setdefault(epoch.restart, set()).add(epoch.arm)
        return sum(set(self.arms) <= arms for arms in ends.values())

    def _run(self, restart: int, *, until_s: float) -> bool:
        """Train in a restart all arms that have not failed; return whether any ended an epoch."""
        arms = tuple(arm for arm in self.arms if arm not in self._failed)
        trained: set[str] = set()
        with ExitStack() as stack:
            for arm in shuffled(arms, self._seed("launch", restart)):
                with self._surviving(arm):
                    self._start(arm, restart, stack)
            for epoch in range(1, self.goal.epochs + 1):
                order = shuffled(tuple(self._training), self._seed(f"epoch {epoch}", restart))
                is_last = epoch == self.goal.epochs or time.monotonic() >= until_s
                for place, arm in enumerate(order):
                    self.context.check_interruption()
                    with self._surviving(arm):
                        self._train(arm, restart, epoch, order=place, is_last=is_last)
                        trained.add(arm)
            self._training.clear()
        return bool(trained)

    def _seed(self, purpose: str, restart: int) -> int:
        return self.context.seed_of(f"until {purpose}", restart)

    def _start(self, arm: str, restart: int, stack: ExitStack) -> None:
        """Build the model of an arm, the same as in all others."""
        self.context.check_interruption()
        spec = self.context.untimed_spec(arm)
        worker, hello = stack.enter_context(started(lambda: self.launch(arm), spec))
        if not hello.steps_per_epoch:
            raise WorkloadError(
                "the workload does not tell how many steps an epoch has",
                hint="set `steps_per_epoch` in its `load`",
                phase="data",
            )
        training = _Training(worker=worker, steps_per_epoch=hello.steps_per_epoch)
        # From here on it is killed if it does not answer.
        self._training[arm] = training
        worker.send_begin(self._seed("model", restart) % 2**31, 0)
        training.first_step_ns = training.longest_step_ns = worker.await_begin().first_step_ns

    def _train(self, arm: str, restart: int, epoch: int, *, order: int, is_last: bool) -> None:
        training = self._training[arm]
        # The first step of the first epoch has built the model.
        steps = training.steps_per_epoch - (epoch == 1)
        # the first one may start CUDA or compile the model: it counts only where there is no other
        times_ns = [] if steps else [training.first_step_ns]
        waits_ns: list[int | None] = []
        while steps:
            k = min(steps, _MOST_GOAL_STEPS)
            self.context.check_interruption()
            ran = training.worker.run(k, training.limit_s(k))
            times_ns += ran.wall_ns
            training.longest_step_ns = max(training.longest_step_ns, sum(ran.wall_ns) // k)
            # a CPU that others held; a stop by a quota is the environment's own
            others_ns = None if ran.wait_ns is None else ran.wait_ns - (ran.throttled_ns or 0)
            waits_ns.append(None if others_ns is None else max(0, others_ns))
            steps -= k
        known_ns = [wait for wait in waits_ns if wait is not None]
        evaluated = training.worker.evaluate(training.limit_s(training.steps_per_epoch))
        value = evaluated.values.get(self.goal.metric)
        is_reached = value is not None and value >= self.goal.value
        sample = Epoch(
            cell=self.context.cell,
            arm=arm,
            restart=restart,
            epoch=epoch,
            order=order,
            k=len(times_ns),
            wall_ns=sum(times_ns),
            wait_ns=sum(known_ns) if len(known_ns) == len(waits_ns) else None,
            evaluate_ns=evaluated.wall_ns,
            value=value,
            is_last=is_reached or is_last,
        )
        self.context.recorder.sample(sample)
        self._reached += is_reached
        if sample.is_last:
            self._training.pop(arm).worker.quit()

    def _surviving(self, arm: str) -> AbstractContextManager[None]:
        what, drop = "it was trained no further", partial(self._drop, arm)
        return _surviving(self.context, arm, what=what, drop=drop, event="training-failed")

    def _drop(self, arm: str) -> None:
        self._failed.add(arm)
        if arm in self._training:
            self._training.pop(arm).worker.kill()


@contextmanager
def _surviving(
    context: CellContext,
    arm: str,
    *,
    what: str,
    drop: Callable[[], None],
    event: EventKind = "note",
) -> Iterator[None]:
    """Continue a pass outside the timing if a worker of an arm fails in the body.

    Record an `event` that says `what` no longer happens, and why. Any event but a note, and any
    violation of the protocol, is a failure. Raises StillRunningError if something still computes.
    """
    try:
        yield
    except StillRunningError:
        raise
    except WorkloadError as error:
        context.check_interruption()
        drop()
        is_failure = event != "note" or error.phase == "protocol"
        failure = failure_of(error) if is_failure else None
        context.note(event, arm=arm, text=f"{what}: {error.brief}", failure=failure)
