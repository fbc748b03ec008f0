"""Counters of the host and the processor, read by the worker itself: a quantity for each."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from envcompare.profilers import Answer, Pass, converted
from envcompare.run_folder.profiles import Profile, Quantity, Rule

_RUSAGE, _PERF, _CGROUP = "getrusage", "perf_event_open", "control group"
_SOURCES: dict[str, tuple[str, str]] = {  # unit and source; any other is counted by perf events
    "user_ns": ("ns", _RUSAGE),
    "sys_ns": ("ns", _RUSAGE),
    "minor_faults": ("faults", _RUSAGE),
    "major_faults": ("faults", _RUSAGE),
    "voluntary_switches": ("switches", _RUSAGE),
    "involuntary_switches": ("switches", _RUSAGE),
    "max_rss_bytes": ("B", _RUSAGE),
    "read_calls": ("calls", "/proc/self/io"),
    "write_calls": ("calls", "/proc/self/io"),
    "throttled_ns": ("ns", _CGROUP),
    "cgroup_peak_bytes": ("B", _CGROUP),
    "task_clock_ns": ("ns", _PERF),
    "page_faults": ("faults", _PERF),
    "context_switches": ("switches", _PERF),
    "cpu_migrations": ("migrations", _PERF),
    "cycles": ("cycles", _PERF),
    "instructions": ("instructions", _PERF),
    "cpu_flops": ("FLOP", _PERF),
    "cpu_flops_fp32": ("FLOP", _PERF),
    "cpu_flops_fp64": ("FLOP", _PERF),
    "system_calls": ("calls", _PERF),
    "cpu_energy_j": ("J", "RAPL"),
}
_PEAKS = frozenset({"max_rss_bytes", "cgroup_peak_bytes"})
_SCOPES = {
    "read_calls": "read alone: a lower bound of system calls",
    "write_calls": "write alone: a lower bound of system calls",
}
_SILENT = "the worker could not read it"


class _Counter(msgspec.Struct, frozen=True, kw_only=True):
    value: float | None = None
    scope: str = ""
    reason: str = ""
    hint: str = ""
    has_kernel: bool = True


class _Counted(msgspec.Struct, frozen=True, kw_only=True):
    counters: dict[str, _Counter]


@dataclass(frozen=True, slots=True)
class HostCounters:
    """Counts faults, switches, calls and cycles of the steps, in the worker."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Return the one pass in which all of them are read."""
        return (Pass(name="host"),)

    def read(self, answer: Answer) -> Profile | None:
        """Return a quantity for each counter; one without a value says why, and what mends it.

        Raises ProfileError where the values are not what the worker's counters give.
        """
        if answer.values.get("counters") is None:
            return None
        counted = converted(answer.values, _Counted, what="the counters of the host")
        return Profile(
            tool="perf",
            format="counters of the worker",
            quantities=tuple(
                _quantity(*item, steps=answer.steps) for item in counted.counters.items()
            ),
            steps=answer.steps,
        )


def _quantity(name: str, counter: _Counter, *, steps: int) -> Quantity:
    """Return a counter as a quantity; counted without the kernel it is another quantity."""
    unit, source = _SOURCES.get(name, ("events", _PERF))
    rule: Rule = "maximum" if name in _PEAKS else "sum"
    whose = f"{steps} steps, all threads of the worker"
    space = "" if counter.has_kernel else "user space alone, by the rights of the worker"
    parts = (_SCOPES.get(name, ""), counter.scope, space, "" if name in _PEAKS else whose)
    return Quantity(
        name=name if counter.has_kernel else f"{name}_user",
        value=counter.value,
        unit=unit,
        rule=rule,
        source=source,
        scope="; ".join(filter(None, parts)),
        status="missing" if counter.value is None else "ok",
        reason=_why(counter),
    )


def _why(counter: _Counter) -> str:
    if counter.value is not None:
        return ""
    reason = counter.reason or _SILENT
    return f"{reason}; try: {counter.hint}" if counter.hint else reason
