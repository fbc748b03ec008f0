"""The quiet gate: before a launch, wait while others want the CPUs of the host.

A first glance at the averages of the kernel costs one command. They still hold the launches of our
own workers, so that they only raise a suspicion; a second look, over 0.2 s in which no worker of
ours computes, decides. Neither looks at the time of any arm. Before a launch, when no worker of
ours lives, the GPU is looked at too: every process that computes on it then is a stranger's.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from envcompare.errors import CommandTimeoutError
from envcompare.gpu import throttle_causes
from envcompare.measure import Values
from envcompare.measure.cell import CellContext
from envcompare.text import first_few

SHARE = 0.2  # of the budget of a cell, at most
POLL_S = 2.0
_GLANCE = "nproc; cat /proc/loadavg /proc/pressure/cpu 2>/dev/null"
_LOOK = (
    "nproc; for i in 1 2 3; do cat /proc/uptime /proc/loadavg; cat /proc/pressure/cpu 2>/dev/null; "
    "test $i = 3 || sleep 0.1; done"
)
_UNREADABLE = (
    "the load of the host cannot be read there (nproc, /proc/loadavg): look at the stretch of each "
    "comparison, or give --no-quiet-gate"
)
# Each query by itself: nvidia-smi answers none of its fields where it does not know one, and the
# reasons of clocks have another name from driver 535 on. The name of a process has 15 characters
# in /proc, which both programs of MPS share.
_GPUS = """command -v nvidia-smi >/dev/null 2>&1 || exit 0
limit=; ! command -v timeout >/dev/null || limit="timeout -s KILL 20"
ask() { $limit nvidia-smi "--query-$2" --format=csv,noheader 2>/dev/null | sed "s/^/$1, /"; }
ask mode gpu=uuid,compute_mode
ask clocks gpu=uuid,clocks_event_reasons.active
ask clocks gpu=uuid,clocks_throttle_reasons.active
ask process compute-apps=gpu_uuid,pid,process_name
cat /proc/[0-9]*/comm 2>/dev/null | grep -q "^nvidia-cuda-mps" && echo mps
true
"""
_MASK = re.compile("0x[0-9a-fA-F]+")
_MPS = "nvidia-cuda-mps"
_SHARED_BY_MPS = (
    "the MPS daemon of CUDA runs on this host: plain processes share the GPU through it and "
    "containers usually do not; end it with `echo quit | nvidia-cuda-mps-control`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GpusSeen:
    """What nvidia-smi says of a host's GPUs, each by its UUID, and whether MPS shares them."""

    modes: dict[str, str]
    limits: dict[str, tuple[str, ...]]  # what holds the clocks down
    processes: tuple[tuple[str, str], ...]  # UUID of the GPU, and "PID name"
    has_mps: bool = False

    def of(self, uuid: str) -> tuple[str, ...]:
        """Return the GPUs that may be the one of a UUID: all where it is not known."""
        return (uuid,) if uuid in self.modes else tuple(self.modes)


def _parse_gpus(text: str) -> _GpusSeen | None:
    """Read what was asked of nvidia-smi; None where it names no GPU."""
    modes: dict[str, str] = {}
    limits: dict[str, tuple[str, ...]] = {}
    processes: list[tuple[str, str]] = []
    for line in text.splitlines():
        match [part.strip() for part in line.split(",", 3)]:
            case ["mode", uuid, mode] if uuid.startswith("GPU-"):
                modes[uuid] = mode
            case ["clocks", uuid, mask] if _MASK.fullmatch(mask):
                limits[uuid] = throttle_causes(int(mask, 16))
            case ["process", uuid, pid, name] if pid.isdecimal() and _MPS not in name:
                processes.append((uuid, f"{pid} {name.rpartition('/')[2]}"))
    if not modes:
        return None
    has_mps = "mps" in text.splitlines()
    return _GpusSeen(modes=modes, limits=limits, processes=tuple(processes), has_mps=has_mps)


def _gpu_cautions(seen: _GpusSeen, uuid: str) -> tuple[str, ...]:
    """Return what makes the GPU of a UUID unfit before anything runs on it, each with a remedy."""
    cautions = [_SHARED_BY_MPS] if seen.has_mps else []
    for gpu in seen.of(uuid):
        mode = seen.modes[gpu]
        if mode.lower().startswith(("exclusive", "prohibited")):
            cautions.append(
                f"the compute mode of {gpu} is {mode}: it takes one process at a time at most, "
                "and every arm has one; run `sudo nvidia-smi -c DEFAULT`"
            )
        if limits := seen.limits.get(gpu):
            cautions.append(
                f"the clock of {gpu} is held down before anything runs on it ({', '.join(limits)}):"
                " let it cool, look at its power limit and supply, and measure again"
            )
    return tuple(cautions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the host said; None where it does not say it."""

    cpus: int
    load: float  # tasks that run or wait for a CPU
    pressure: float | None  # percent of the time in which some task waited for a CPU


def parse_glance(text: str) -> Reading | None:
    """Return the averages of the kernel: load of one minute, pressure of ten seconds."""
    try:
        cpus, loads, *pressure = text.splitlines()
        return Reading(
            cpus=int(cpus), load=float(loads.split()[0]), pressure=_field(pressure, "avg10")
        )
    except (ValueError, IndexError):
        return None


def parse_look(text: str) -> Reading | None:
    """Return what was seen over the samples: the fewest tasks, and the exact pressure between."""
    try:
        cpus, *lines = text.splitlines()
        size = len(lines) // 3
        samples = [lines[start : start + size] for start in range(0, 3 * size, size)]
        # the task that reads is running as well
        tasks = [int(sample[1].split()[3].partition("/")[0]) - 1 for sample in samples]
        seconds = float(samples[-1][0].split()[0]) - float(samples[0][0].split()[0])
        count = int(cpus)
        first, last = (_field(sample[2:], "total") for sample in (samples[0], samples[-1]))
    except (ValueError, IndexError):
        return None
    known = first is not None and last is not None and seconds > 0
    # the uptime has two decimals, so that the share may come out above the whole
    pressure = min(100.0, (last - first) / seconds / 1e4) if known else None  # type: ignore[operator]
    return Reading(cpus=count, load=max(0, min(tasks)), pressure=pressure)


def _field(lines: list[str], key: str) -> float | None:
    """Return a field of the line `some` (kernel: Documentation/accounting/psi.rst)."""
    for line in lines:
        kind, *fields = line.split()
        if kind == "some":
            return next(float(f.partition("=")[2]) for f in fields if f.startswith(f"{key}="))
    return None


@dataclass(slots=True)
class QuietGate:
    """The gate of one cell; `waited_s` grows up to a fifth of the budget, over resumptions too."""

    context: CellContext
    waited_s: float = field(init=False)
    _is_open: bool = field(default=False)  # for good: it was switched off, is blind, or has waited
    _is_gpu_open: bool = field(default=False)  # likewise
    _said: set[str] = field(default_factory=set)  # cautions about the GPU
    _cells: Sequence[CellContext] = ()  # the cells that a caution is for; its own where none is

    def __post_init__(self) -> None:
        self._is_open = not self.context.design.quiet_gate
        self._is_gpu_open = self._is_open or not self.context.has_gpu
        self.waited_s = self.context.waited_s

    def wait(self) -> None:
        """Wait while the host is busy, and record how long.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        if self._is_open:
            return
        seen = parse_glance(self._ask(_GLANCE))
        if seen is None:
            self._is_open = True
            self._caution(_UNREADABLE)
        elif self._is_busy(seen, to_come=0):
            self._wait_while_busy()

    def wait_to_launch(self, cells: Sequence[CellContext] = (), *, uuid: str = "") -> None:
        """Wait as `wait` does, and while others compute on the GPU of a UUID; empty: any.

        No worker of this run may live. The launch serves these cells, each of which gets what is
        to be said of the machine. Raises as `wait`.
        """
        self._cells = cells
        self.wait()
        if self._is_gpu_open:
            return
        seen = _parse_gpus(self._ask(_GPUS))
        if seen is None:
            self._is_gpu_open = True
            return
        for caution in _gpu_cautions(seen, uuid):
            if caution not in self._said:
                self._said.add(caution)
                self._caution(caution)
        # of several GPUs it is not known before the first launch which one will be used
        if len(seen.of(uuid)) == 1:
            self._wait_for_gpu(seen.of(uuid)[0], seen)

    def _wait_for_gpu(self, uuid: str, seen: _GpusSeen | None) -> None:
        began = time.monotonic()
        left_s = SHARE * self.context.design.budget_s - self.waited_s
        worst = strangers = _strangers(seen, uuid)
        try:
            while strangers and (spent_s := time.monotonic() - began) < left_s:
                self.context.check_interruption()
                time.sleep(min(POLL_S, left_s - spent_s))
                strangers = _strangers(_parse_gpus(self._ask(_GPUS)), uuid)
        finally:
            if worst:
                seconds = time.monotonic() - began
                self.waited_s += seconds
                text = f"waited {seconds:.0f} s for the GPU: {worst}"
                values: Values = {"seconds": seconds, "is_quiet": not strangers}
                self._waiting.note("waited", text=text, values=values)
        if strangers:
            self._is_gpu_open = True
            text = f"other processes used the GPU before this run did ({strangers})"
            self._caution(f"{text}: end them, or measure at a quieter time")

    def busy(self) -> str:
        """Return what keeps the host busy now; empty where it is quiet or does not say."""
        seen = self._look()
        return _reading_text(seen) if seen else ""

    def _wait_while_busy(self) -> None:
        began = time.monotonic()
        seen = self._look()
        if seen is None:
            return
        worst, left_s = seen, SHARE * self.context.design.budget_s - self.waited_s
        try:
            while seen is not None and (spent_s := time.monotonic() - began) < left_s:
                self.context.check_interruption()
                time.sleep(min(POLL_S, left_s - spent_s))
                seen = self._look()
        finally:  # a wait that was interrupted is a part of the whole too
            seconds = time.monotonic() - began
            self.waited_s += seconds
            self._note(worst, seconds=seconds, is_quiet=seen is None)
        if seen is not None:
            self._give_up(worst)

    def _look(self) -> Reading | None:
        """Return what was seen where the host is busy, None where it is not."""
        seen = parse_look(self._ask(_LOOK))
        threads = self.context.design.threads or 1  # what our worker is going to ask for
        return seen if seen is not None and self._is_busy(seen, to_come=threads) else None

    def _is_busy(self, seen: Reading, *, to_come: int) -> bool:
        design = self.context.design
        most = design.quiet_load if design.quiet_load is not None else seen.cpus + 1
        under_pressure = seen.pressure is not None and seen.pressure > design.quiet_pressure
        return under_pressure or seen.load + to_come >= most

    def _note(self, worst: Reading, *, seconds: float, is_quiet: bool) -> None:
        self._waiting.note(
            "waited",
            text=f"waited {seconds:.0f} s for a quiet machine: {_reading_text(worst)}",
            values={
                "seconds": seconds,
                "pressure_percent": worst.pressure,
                "tasks": worst.load,
                "is_quiet": is_quiet,
            },
        )

    def _give_up(self, worst: Reading) -> None:
        self._is_open = True
        text = f"the machine stayed busy for the {self.waited_s:.0f} s that were waited"
        remedy = "measure at a quieter time, or raise --quiet-pressure and --quiet-load"
        self._caution(f"{text} ({_reading_text(worst)}): {remedy}")

    @property
    def _waiting(self) -> CellContext:
        """Return the cell that a wait is noted in."""
        return self._cells[0] if self._cells else self.context

    def _caution(self, text: str) -> None:
        for context in self._cells or (self.context,):
            context.note("caution", text=text)

    def _ask(self, script: str) -> str:
        try:
            return self.context.on_host(script).stdout
        except CommandTimeoutError:
            return ""


def _strangers(seen: _GpusSeen | None, uuid: str) -> str:
    """Return the processes on a GPU in words; empty where there are none."""
    processes = [name for gpu, name in seen.processes if gpu == uuid] if seen else []
    return f"process {first_few(processes, most=3)}" if processes else ""


def _reading_text(worst: Reading) -> str:
    pressure = "" if worst.pressure is None else f"CPU pressure {worst.pressure:.0f} %, "
    return f"{pressure}{worst.load:.0f} other tasks for {worst.cpus} CPUs"
