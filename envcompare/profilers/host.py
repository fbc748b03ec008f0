"""Counters of host and processor, read by the worker itself, and CPU time of what works beside it.

A file system of FUSE such as `squashfuse_ll`, a kernel in user space or a daemon computes in
processes of its own, which no clock of the worker counts. The host tells what each has used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from envcompare.errors import CommandTimeoutError
from envcompare.profilers import Answer, Pass, converted
from envcompare.run_folder.profiles import (
    HELPERS_WINDOW,
    Profile,
    Quantity,
    Rule,
    helper_quantity,
)
from envcompare.transport import Transport, shell

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
# What a thread has used is exact to the nanosecond, and gone when it ends; the ticks of a process
# keep that of all its threads, ended ones too: proc(5), fields 4, 14, 15 and 22 of stat.
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
_HELPER_LINE = re.compile(r"(\S+) ([0-9]+) ([0-9]+) ([0-9]+) ([0-9,]+) ([0-9]+) ([0-9]+)")


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


class HelperProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the host, and the CPU time that it has used so far."""

    name: str
    pid: int
    parent: int
    began: int  # in ticks since the boot: a number may be given anew
    threads: str  # the numbers of those whose time the kernel tells; `,` where it keeps none
    exact_ns: int  # of the threads that live
    ticked_ns: int  # of all threads, by ticks


def list_helpers(transport: Transport, names: Sequence[str]) -> tuple[HelperProcess, ...] | None:
    """Return the processes of a host that have one of these names, whoever runs them.

    A process that was started by one of the same name is left out: it may be the workload. None
    where the host does not answer in time.
    """
    if not names:
        return ()
    try:
        lines = shell(transport, _LIST_HELPERS, " ".join(names)).stdout.splitlines()
    except CommandTimeoutError:
        return None
    listed = [_helper(words) for line in lines if (words := _HELPER_LINE.fullmatch(line))]
    name_of = {one.pid: one.name for one in listed}
    return tuple(one for one in listed if name_of.get(one.parent) != one.name)


def _helper(words: re.Match[str]) -> HelperProcess:
    name, pid, parent, began, threads, exact_ns, ticked_ns = words.groups()
    return HelperProcess(
        name=name,
        pid=int(pid),
        parent=int(parent),
        began=int(began),
        threads=threads,
        exact_ns=int(exact_ns),
        ticked_ns=int(ticked_ns),
    )


def used_ns(
    names: Sequence[str],
    before: Sequence[HelperProcess] | None,
    after: Sequence[HelperProcess] | None,
) -> dict[str, int]:
    """Return the CPU time that processes of each name used between two looks, in ns.

    It is exact where a process has the threads that it had, else to a tick of the kernel (10 ms as
    a rule). What ended in between is not seen. Nothing is known where the host gave no answer.
    """
    if before is None or after is None:
        return {}
    known = {(one.pid, one.began): one for one in before}
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
    """Return the CPU time of each helper while the steps ran, as quantities of the host pass.

    The time between the two looks is one more: helpers are compared by their rates.
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
