"""Operators of a Kineto trace, added up as torch.profiler does: what is theirs, what is inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from envcompare.profile_files.placing import innermost, launching_calls
from envcompare.profile_files.rows import Table
from envcompare.run_folder.profiles import Operator

Values = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caused:
    """What operators caused; `work` and `memory` tell of each row which operator, or -1."""

    operators: Table
    names: Sequence[str]
    durations: Values
    work: Values
    memory: Table
    memory_owners: Values


def owners(rows: Table, calls: Table, operators: Table) -> Values:
    """Return the place in `operators` of what caused each row of GPU work, or -1.

    It is the innermost operator around the call that launched it; without a call, the one whose
    external id the row carries.
    """
    if not len(rows) or not len(operators):
        return np.full(len(rows), -1)
    found = np.full(len(rows), -1)
    if len(calls):
        at = launching_calls(rows, calls)
        around = innermost(operators, threads=calls["thread"][at], times=calls["start"][at])
        found = np.where(at >= 0, np.array(around, dtype=np.int64), -1)
    return np.where(found >= 0, found, _by_external(rows["owner"], operators["external"]))


def _by_external(asked: Values, offered: Values) -> Values:
    order = np.argsort(offered, kind="stable")
    at = np.minimum(np.searchsorted(offered[order], asked), len(order) - 1)
    found = order[at]
    # Kineto writes 0 where it knows of no operator.
    return np.where((offered[found] == asked) & (asked > 0), found, -1)


def memory_owners(memory: Table, operators: Table) -> Values:
    """Return the innermost operator around each allocation, or -1."""
    found = innermost(operators, threads=memory["thread"], times=memory["time"])
    return np.array(found, dtype=np.int64)


def operator_sums(caused: Caused) -> tuple[Operator, ...]:
    """Return the operators by name, those with the most time of their own first."""
    rows = caused.operators
    if not len(rows):
        return ()
    order = np.lexsort(
        [rows[name] for name in ("name", "external")]
        + [-rows["end"], rows["start"], rows["thread"]]
    )
    parents = _parents(rows, order)
    stands_for = _once(rows, parents, order)
    parents = np.where(parents >= 0, stands_for[parents], -1)
    is_kept = stands_for == np.arange(len(rows))
    length = rows["end"] - rows["start"]
    own = length - _inside(rows, np.where(is_kept, parents, -1))
    device = _added(_moved(caused.work, stands_for), caused.durations, len(rows))
    device_all = _with_children(device, np.where(is_kept, parents, -1), order)
    held = _moved(caused.memory_owners, stands_for)
    memory = [
        _added(held[picked], caused.memory["bytes"][picked], len(rows))
        for picked in (caused.memory["is_device"] == 0, caused.memory["is_device"] == 1)
    ]
    columns = np.stack([np.ones_like(length), own, length, device, device_all, *memory])
    return _by_name(columns[:, is_kept], rows["name"][is_kept], caused)


def _by_name(columns: Values, names: Values, caused: Caused) -> tuple[Operator, ...]:
    numbers, inverse = np.unique(names, return_inverse=True)
    sums = np.zeros((len(columns), len(numbers)), dtype=np.int64)
    for at, column in enumerate(columns):
        np.add.at(sums[at], inverse, column)
    has_gpu, has_memory = len(caused.work) > 0, len(caused.memory) > 0
    found = []
    for number, row in zip(numbers.tolist(), sums.T.tolist(), strict=True):
        calls, own, total, device, device_all, host_bytes, device_bytes = row
        found.append(
            Operator(
                name=caused.names[number],
                calls=calls,
                self_cpu_ns=float(own),
                cpu_ns=float(total),
                self_device_ns=float(device) if has_gpu else None,
                device_ns=float(device_all) if has_gpu else None,
                self_cpu_bytes=host_bytes if has_memory else None,
                self_device_bytes=device_bytes if has_memory else None,
            )
        )
    return tuple(
        sorted(found, key=lambda one: (-(one.self_device_ns or 0), -one.self_cpu_ns, one.name))
    )


def _parents(rows: Table, order: Values) -> Values:
    """Return the place of the operator each one stands in on its thread, or -1."""
    parents = np.full(len(rows), -1)
    threads, starts, ends = (rows[name].tolist() for name in ("thread", "start", "end"))
    around: list[int] = []
    for place in order.tolist():
        while around and (
            threads[around[-1]] != threads[place] or ends[around[-1]] <= starts[place]
        ):
            around.pop()
        if around:
            parents[place] = around[-1]
        around.append(place)
    return parents


def _once(rows: Table, parents: Values, order: Values) -> Values:
    """Return for each operator its place, or that of the one it repeats.

    A dispatcher may call the same name again and nothing else; torch.profiler shows one of them.
    """
    children = np.bincount(parents[parents >= 0], minlength=len(rows))
    repeats = (parents >= 0) & (rows["name"] == rows["name"][parents]) & (children[parents] == 1)
    stands_for = np.arange(len(rows))
    for place in order[repeats[order]].tolist():
        stands_for[place] = stands_for[parents[place]]
    return stands_for


def _moved(places: Values, stands_for: Values) -> Values:
    return np.where(places >= 0, stands_for[places], -1)


def _inside(rows: Table, parents: Values) -> Values:
    """Return how long children ran inside each operator; rounding may carry one past the end."""
    is_child = parents >= 0
    own = parents[is_child]
    until = np.minimum(rows["end"][is_child], rows["end"][own])
    return _added(own, until - rows["start"][is_child], len(rows))


def _with_children(values: Values, parents: Values, order: Values) -> Values:
    sums = values.tolist()
    above = parents.tolist()
    for place in reversed(order.tolist()):
        if above[place] >= 0:
            sums[above[place]] += sums[place]
    return np.array(sums, dtype=np.int64)


def _added(places: Values, values: Values, count: int) -> Values:
    sums = np.zeros(count, dtype=np.int64)
    known = places >= 0
    np.add.at(sums, places[known], values[known])
    return sums
