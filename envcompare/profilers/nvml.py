"""Sample the GPUs of a host during a pass, on the host itself, and keep the readings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from envcompare.command import Command
from envcompare.errors import EnvcompareError
from envcompare.run_folder.records import Count, GpuReading
from envcompare.transport import Process, Transport, read_json

PROGRAM = "harness/counters/gpusampling.py"
_ENDING_S = 5.0
LINE_READINGS = 1000  # in a line of samples.jsonl
NO_GPU = "the host has no GPU, so power, energy and clocks were not measured"
_STDERR_BYTES = 4096
_LINE_BYTES = 1 << 16
_MOST_READINGS = 1_000_000  # of all GPUs in a pass


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
    return Command(argv=(interpreter, "-B", f"{workloads}/{PROGRAM}"))


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
    sampler = _start_sampler(transport, command, sampled) if command else None
    try:
        yield sampled
    finally:
        if sampler is not None:
            lines, sampled.reason = sampler.finish()
            sampled.readings = tuple(readings(cell, lines))
            for reading in sampled.readings:
                keep(reading)


def readings(cell: str, lines: list[_Line]) -> Iterator[GpuReading]:
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


def _start_sampler(transport: Transport, command: Command, sampled: Sampling) -> _Sampler | None:
    try:
        return _Sampler(transport.spawn(command))
    except EnvcompareError as error:
        sampled.reason = f"the GPU was not sampled: {error.brief}"
        return None


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
            return 0  # it is killed below, which loses no reading
        finally:
            with suppress(EnvcompareError, OSError):
                self.process.kill()

    def _take_readings(self) -> None:
        with suppress(OSError, ValueError, EnvcompareError):
            while line := self.process.stdout.readline(_LINE_BYTES):
                if len(self.lines) == _MOST_READINGS:
                    self.fault = f"the sampler wrote more than {_MOST_READINGS} readings"
                    continue
                try:
                    self.lines.append(read_json(line, _Line))
                except msgspec.MsgspecError as error:
                    self.fault = f"a GPU reading could not be parsed: {error}"

    def _take_words(self) -> None:
        with suppress(OSError, ValueError, EnvcompareError):
            while chunk := self.process.stderr.read(_STDERR_BYTES):
                self.stderr_tail = (self.stderr_tail + chunk)[-_STDERR_BYTES:]
