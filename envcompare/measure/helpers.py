"""CPU time of the programs that work for an environment beside the worker, such as `squashfuse_ll`.

A file system of FUSE, a kernel in user space or a daemon computes in processes of its own, which no
clock of the worker counts. The host tells what each has used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from envcompare.run_folder.profiles import Quantity, helper_quantity
from envcompare.transport import Transport, shell

# What a thread has used is exact to the nanosecond, and gone when it ends; the ticks of a process
# keep that of all its threads, ended ones too: proc(5), fields 4, 14, 15 and 22 of stat.
_LIST = r"""
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
_LINE = re.compile(r"(\S+) ([0-9]+) ([0-9]+) ([0-9]+) ([0-9,]+) ([0-9]+) ([0-9]+)")


class HelperProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the host, and the CPU time that it has used so far."""

    name: str
    pid: int
    parent: int
    began: int  # in ticks since the boot: a number may be given anew
    threads: str  # the numbers of those whose time the kernel tells; `,` where it keeps none
    exact_ns: int  # of the threads that live
    ticked_ns: int  # of all threads, by ticks


def list_helpers(transport: Transport, names: Sequence[str]) -> tuple[HelperProcess, ...]:
    """Return the processes of a host that have one of these names, whoever runs them.

    A process that was started by one of the same name is left out: it may be the workload.
    """
    if not names:
        return ()
    lines = shell(transport, _LIST, " ".join(names)).stdout.splitlines()
    listed = [_helper(words) for line in lines if (words := _LINE.fullmatch(line))]
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
    names: Sequence[str], before: Sequence[HelperProcess], after: Sequence[HelperProcess]
) -> dict[str, int]:
    """Return the CPU time that processes of each name used between two looks, in ns.

    It is exact where a process has the threads that it had, else to a tick of the kernel (10 ms as
    a rule). What ended in between is not seen.
    """
    known = {(one.pid, one.began): one for one in before}
    used = dict.fromkeys(names, 0)
    for now in after:
        then = known.get((now.pid, now.began))
        is_exact = now.threads != "," and (then is None or then.threads == now.threads)
        field = "exact_ns" if is_exact else "ticked_ns"
        spent = getattr(now, field) - (getattr(then, field) if then else 0)
        used[now.name] += max(0, spent)
    return used


def helper_quantities(used: Mapping[str, int], *, steps: int) -> tuple[Quantity, ...]:
    """Return the CPU time of each helper while the steps ran, as quantities of the host pass."""
    return tuple(
        Quantity(
            name=helper_quantity(name),
            value=float(ns),
            unit="ns",
            rule="sum",
            source="/proc of the host",
            scope=f"{steps} steps, all processes of that name on the host",
        )
        for name, ns in used.items()
    )
