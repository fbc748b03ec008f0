"""The quiet gate: before a generation, wait while others want the CPUs of the host.

A first glance at the averages of the kernel costs one command. They still hold the launches of our
own workers, so that they only raise a suspicion; a second look, over 0.2 s in which no worker of
ours computes, decides. Neither looks at the time of any arm.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from envcompare.errors import CommandTimeoutError
from envcompare.measure.context import CellContext

SHARE = 0.2  # of the budget of a cell, at most
POLL_S = 2.0
_GLANCE = "nproc; cat /proc/loadavg /proc/pressure/cpu 2>/dev/null"
_LOOK = (
    "nproc; for i in 1 2 3; do cat /proc/uptime /proc/loadavg; cat /proc/pressure/cpu 2>/dev/null; "
    "test $i = 3 || sleep 0.1; done"
)
_UNREADABLE = (
    "the load of the host cannot be read there (nproc, /proc/loadavg): nobody waited for a quiet "
    "machine; look at the stretch of each comparison, or give --no-quiet-gate"
)


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

    def __post_init__(self) -> None:
        self._is_open = not self.context.design.quiet_gate
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
            self.context.note("caution", text=_UNREADABLE)
        elif self._is_busy(seen, to_come=0):
            self._wait_while_busy()

    def busy(self) -> str:
        """Return what keeps the host busy now; empty where it is quiet or does not say."""
        seen = self._look()
        return _told(seen) if seen else ""

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
        threads = self.context.design.threads  # what our worker is going to ask for
        return seen if seen is not None and self._is_busy(seen, to_come=threads) else None

    def _is_busy(self, seen: Reading, *, to_come: int) -> bool:
        design = self.context.design
        most = design.quiet_load if design.quiet_load is not None else seen.cpus + 1
        under_pressure = seen.pressure is not None and seen.pressure > design.quiet_pressure
        return under_pressure or seen.load + to_come >= most

    def _note(self, worst: Reading, *, seconds: float, is_quiet: bool) -> None:
        self.context.note(
            "waited",
            text=f"waited {seconds:.0f} s for a quiet machine: {_told(worst)}",
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
        self.context.note("caution", text=f"{text} ({_told(worst)}): {remedy}")

    def _ask(self, script: str) -> str:
        try:
            return self.context.on_host(script).stdout
        except CommandTimeoutError:
            return ""


def _told(worst: Reading) -> str:
    pressure = "" if worst.pressure is None else f"CPU pressure {worst.pressure:.0f} %, "
    return f"{pressure}{worst.load:.0f} other tasks for {worst.cpus} CPUs"
