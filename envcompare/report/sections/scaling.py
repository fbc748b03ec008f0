"""Several ranks against one, in each environment: speed-up, collectives and the network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from envcompare.analysis.model.comparison import ArmSummary, RunComparison, Scaling
from envcompare.report.format.blocks import Items, Line, Section, Table, Words
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    duration,
    number_text,
    size,
    three_digits,
)
from envcompare.report.sections.fields import Field, table_of
from envcompare.report.wording.labels import varied_parameters
from envcompare.run_folder.records import CONTROL_SUFFIX
from envcompare.text import assigned, counted, visible

_INTRO: Final = (
    "A rank is a process with a batch of its own, so that the work of a step grows with the ranks. "
    "The samples in a second are those of the median step. The speed-up is their ratio to one rank "
    "of the same environment in each restart that measured both, by its typical steps, and so not "
    "the quotient of two rows: the geometric mean of the restarts with its 95 % interval (Student "
    "t), not widened; the efficiency is the speed-up divided by the ranks."
)
_COLLECTIVES: Final = (
    "Collectives are the exchanges between ranks, as torch.profiler sees them in the first rank "
    "after the timing, waiting for the others included; they are exposed while nothing computes "
    "there."
)
_NO_BASE: Final = "Without ranks=1 of the same work there is no speed-up: add it to --set."


def scaling_section(run: RunComparison) -> Section | None:
    """Return what several ranks bring, None where no workload set `ranks`."""
    if not run.scaling:
        return None
    notes = (
        *(_COLLECTIVES,) * _has_collectives(run),
        *(_NO_BASE,) * all(one.speed_up is None for one in run.scaling),
        *_crowded(run),
        *_networks(run),
    )
    blocks = (Line(text=_INTRO), scaling_table(run), Items(items=notes, style="small"))
    return Section(anchor="scaling", title="Several ranks", link="Ranks", blocks=blocks)


def scaling_table(run: RunComparison) -> Table:
    """Return a row for each environment and number of ranks."""
    hosts = {one.host for one in run.scaling}
    works = _works(run.scaling)
    order = list(dict.fromkeys(works.values()))
    exchanges: tuple[Field[Scaling], ...] = (
        (
            "Collectives, of a step",
            "number",
            lambda one: _part(one.collective_share, one.collective_s),
        ),
        (
            "Exposed, of a step",
            "number",
            lambda one: _part(one.collective_exposed_share, one.collective_exposed_s),
        ),
    )
    return table_of(
        "Several ranks",
        sorted(run.scaling, key=lambda one: (order.index(works[one.cell]), one.host)),
        ("Work", "name", lambda one: works[one.cell]),
        *((("Host", "name", lambda one: visible(one.host)),) * (len(hosts) > 1)),
        ("Environment", "name", lambda one: visible(one.arm)),
        ("Ranks", "number", _ranks),
        ("samples/s", "number", lambda one: _number(one.samples_per_s)),
        ("Speed-up", "number", _speed_up),
        ("Efficiency", "number", lambda one: _percent(one.efficiency)),
        *(exchanges if _has_collectives(run) else ()),
        style="fit",
    )


def _has_collectives(run: RunComparison) -> bool:
    return any(one.collective_s is not None for one in run.scaling)


def _works(rows: tuple[Scaling, ...]) -> dict[str, str]:
    """Name the work of each cell by its workload, and by those parameters that differ."""
    varied = varied_parameters(rows)
    told = {
        one.cell: {
            name: value for name, value in one.parameters.items() if (one.workload, name) in varied
        }
        for one in rows
    }
    return {one.cell: visible(" ".join((one.workload, *assigned(told[one.cell])))) for one in rows}


def _ranks(one: Scaling) -> Words:
    where = f"(on {', '.join(map(visible, one.hosts))})" if one.hosts else ""
    return Line(text=str(one.ranks), below=(where,))


def _number(value: float | None) -> str:
    return NOT_MEASURED if value is None else number_text(value)


def _percent(share: float | None) -> str:
    return NOT_MEASURED if share is None else f"{three_digits(100 * share)} %"


def _speed_up(one: Scaling) -> Words:
    if one.ranks == 1 or one.speed_up is None:
        return "1" if one.ranks == 1 else NOT_MEASURED
    ends = f"({counted(one.restarts, 'restart')}: no interval)"
    if one.speed_up_low is not None and one.speed_up_high is not None:
        ends = f"({three_digits(one.speed_up_low)} to {three_digits(one.speed_up_high)})"
    return Line(text=three_digits(one.speed_up), below=(ends,))


def _part(share: float | None, seconds: float | None) -> Words:
    if seconds is None:
        return NOT_MEASURED
    return Line(text=_percent(share), below=(f"({duration(seconds)})",))


def _crowded(run: RunComparison) -> Iterator[str]:
    """Yield which numbers of ranks had fewer CPUs than threads."""
    cpus = {arm.host: arm.facts.get("cpu.affinity") for arm in run.arms}
    on_gpu = {cell for host in run.hosts for cell in host.devices if host.devices[cell] != "cpu"}
    for host, bound in cpus.items():
        known = len(bound) if isinstance(bound, list | tuple) else math.inf
        ranks = (one for one in run.scaling if one.host == host and one.cell not in on_gpu)
        many = {one.ranks for one in ranks if _ranks_here(one) * run.threads > known}
        if many:
            numbers = ",".join(map(str, sorted(many)))
            yield (
                f"With ranks={numbers} more threads computed than {visible(host)} has CPUs "
                f"({known}): ranks took turns, and their efficiency is that of too few CPUs."
            )


def _ranks_here(one: Scaling) -> int:
    """Return how many of its ranks lie on the host of the first."""
    return math.ceil(one.ranks / max(1, len(one.hosts)))


def _networks(run: RunComparison) -> Iterator[str]:
    """Yield what each environment gives its ranks to exchange data by."""
    hosts = dict.fromkeys(one.host for one in run.scaling)
    for arm in run.arms:
        is_told = arm.host in hosts and "network.interfaces" in arm.facts
        if is_told and not arm.arm.endswith(CONTROL_SUFFIX):
            where = f" on {visible(arm.host)}" * (len(hosts) > 1)
            yield f"{visible(arm.arm)}{where}: {_network(arm)}."


def _network(arm: ArmSummary) -> str:
    devices, shared = arm.facts["network.interfaces"], arm.facts.get("shm.bytes")
    told = f"network devices {visible(str(devices))}" if devices else "network devices not known"
    if isinstance(shared, int):
        told += f"; shared memory (/dev/shm) {size(shared)}"
    return told
