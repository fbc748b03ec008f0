"""Host and processor counters read by the worker, and the CPU time of helper processes.

A FUSE file system such as `squashfuse_ll`, a user-space kernel or a daemon runs in separate
processes, whose CPU time the worker's clocks miss. The host reports it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from envcompare.errors import CommandTimeoutError
from envcompare.profilers import Answer, Pass, convert_answer
from envcompare.run_folder.profiles import (
    HELPERS_WINDOW,
    Profile,
    Quantity,
    Rule,
    helper_quantity,
)
from envcompare.transport import Transport, shell

_RUSAGE, _PERF, _CGROUP = "getrusage", "perf_event_open", "control group"
_SOURCES: dict[str, tuple[str, str]] = {  # unit and source; other counters come from perf events
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
    "read_calls": "read only: a lower bound of system calls",
    "write_calls": "write only: a lower bound of system calls",
}
_SILENT = "the worker could not read it"
# The time of a thread is exact to the nanosecond, but lost when the thread ends. The ticks of a
# process include ended threads: proc(5), fields 4, 14, 15 and 22 of stat.
_LIST_HELPERS = r"""
names=" $1 " tick=$(getconf CLK_TCK) || exit
for folder in /proc/[0-9]*; do
  read -r name <"$folder/comm" || continue
  case $names in *" $name "*) ;; *) continue ;; esac
  threads= exact=0
  for thread in "$folder"/task/*; do
    read -r ns _ <"$thread/schedstat" && threads="$threads,${thread##*/}" exact=$((exact + ns))
  done
  read -r line <"$folder/stat" || continue
  set -- ${line##*) }
  ticked=$(((${12} + ${13}) * (1000000000 / tick)))
  printf '%s %s %s %s ' "$name" "${line%% *}" "$2" "${20}"
  printf '%s %s %s\n' "${threads:-,}" "$exact" "$ticked"
done 2>/dev/null
exit 0
"""
_HELPER_LINE = re.compile(
    r"(?P<name>\S+) (?P<pid>[0-9]+) (?P<parent>[0-9]+) (?P<began>[0-9]+) (?P<threads>[0-9,]+) "
    r"(?P<exact_ns>[0-9]+) (?P<ticked_ns>[0-9]+)"
)


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
    """Counts page faults, context switches, system calls and cycles in the worker."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Return the one pass."""
        return (Pass(name="host"),)

    def read(self, answer: Answer) -> Profile | None:
        """Return a quantity for each counter; a missing value has a reason and a fix.

        Raises ProfileError if the values are not those of the worker's counters.
        """
        if answer.values.get("counters") is None:
            return None
        counted = convert_answer(answer.values, _Counted, what="the counters of the host")
        return Profile(
            tool="perf",
            format="counters of the worker",
            quantities=tuple(
                _quantity(*item, steps=answer.steps) for item in counted.counters.items()
            ),
            steps=answer.steps,
        )


def _quantity(name: str, counter: _Counter, *, steps: int) -> Quantity:
    """Return a counter as a quantity; without kernel time it has a separate name."""
    unit, source = _SOURCES.get(name, ("events", _PERF))
    reason = counter.reason or _SILENT
    why = f"{reason}; try: {counter.hint}" if counter.hint else reason
    rule: Rule = "maximum" if name in _PEAKS else "sum"
    whose = f"{steps} steps, all threads of the worker"
    space = "" if counter.has_kernel else "user space only, for lack of permission"
    parts = (_SCOPES.get(name, ""), counter.scope, space, "" if name in _PEAKS else whose)
    return Quantity(
        name=name if counter.has_kernel else f"{name}_user",
        value=counter.value,
        unit=unit,
        rule=rule,
        source=source,
        scope="; ".join(filter(None, parts)),
        status="missing" if counter.value is None else "ok",
        reason=why if counter.value is None else "",
    )


class HelperProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the host, and its CPU time so far."""

    name: str
    pid: int
    parent: int
    # In ticks since boot: process IDs are reused, so a process is known by its start too.
    began: int
    threads: str  # IDs of threads with an exact time; `,` if the kernel records none
    exact_ns: int  # of live threads
    ticked_ns: int  # of all threads, by ticks


def list_helpers(transport: Transport, names: Sequence[str]) -> tuple[HelperProcess, ...] | None:
    """Return the processes of a host with one of these names, of any user.

    A process whose parent has the same name is skipped, since it may be the workload. None if the
    host does not answer in time.
    """
    if not names:
        return ()
    try:
        lines = shell(transport, _LIST_HELPERS, " ".join(names)).stdout.splitlines()
    except CommandTimeoutError:
        return None
    words = filter(None, map(_HELPER_LINE.fullmatch, lines))
    listed = [msgspec.convert(word.groupdict(), HelperProcess, strict=False) for word in words]
    name_of = {process.pid: process.name for process in listed}
    return tuple(process for process in listed if name_of.get(process.parent) != process.name)


def used_ns(
    names: Sequence[str],
    before: Sequence[HelperProcess] | None,
    after: Sequence[HelperProcess] | None,
) -> dict[str, int]:
    """Return the CPU time in ns that processes of each name used between two listings.

    It is exact if the threads of a process stayed the same, else to a kernel tick (usually 10 ms).
    Processes that ended in between are missed. Empty if a listing failed.
    """
    if before is None or after is None:
        return {}
    known = {(process.pid, process.began): process for process in before}
    used = dict.fromkeys(names, 0)
    for now in after:
        then = known.get((now.pid, now.began))
        is_exact = now.threads != "," and (then is None or then.threads == now.threads)
        field = "exact_ns" if is_exact else "ticked_ns"
        spent = getattr(now, field) - (getattr(then, field) if then else 0)
        used[now.name] += max(0, spent)
    return used


def helper_quantities(
    used: Mapping[str, int], *, steps: int, window_ns: int
) -> tuple[Quantity, ...]:
    """Return the CPU time of each helper during the steps, as quantities of the host pass.

    The time between the two listings is another quantity, since helpers are compared by rate.
    """
    named = {helper_quantity(name): ns for name, ns in used.items()}
    return tuple(
        Quantity(
            name=name,
            value=float(ns),
            unit="ns",
            rule="sum",
            source="/proc of the host",
            scope=f"{steps} steps, all processes of that name on the host",
        )
        for name, ns in (*named.items(), *([(HELPERS_WINDOW, window_ns)] if named else ()))
    )
