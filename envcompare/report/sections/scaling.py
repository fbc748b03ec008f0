"""Several ranks against one, in each environment: speed-up, collectives and the network."""

from __future__ import annotations

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
from envcompare.run_folder.records import CONTROL_SUFFIX
from envcompare.text import assigned, counted, visible

_INTRO: Final = (
    "A rank is a process with a batch of its own, so that the work of a step grows with the ranks. "
    "The speed-up is that of the samples in a second against one rank of the same environment: "
    "the geometric mean over the restarts that measured both, with its 95 % interval (Student t), "
    "not widened; the efficiency is the speed-up divided by the ranks."
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
        *_networks(run),
    )
    blocks = (Line(text=_INTRO), scaling_table(run), Items(items=notes, style="small"))
    return Section(anchor="scaling", title="Several ranks", link="Ranks", blocks=blocks)


def scaling_table(run: RunComparison) -> Table:
    """Return a row for each environment and number of ranks."""
    hosts = {one.host for one in run.scaling}
    exchanges: tuple[Field[Scaling], ...] = (
        (
            "Collectives, of a step",
            "number",
            lambda scaling: _part(scaling.collective_share, scaling.collective_s),
        ),
        (
            "Exposed, of a step",
            "number",
            lambda scaling: _part(scaling.collective_exposed_share, scaling.collective_exposed_s),
        ),
    )
    return table_of(
        "Several ranks",
        sorted(run.scaling, key=lambda scaling: (_work(scaling), scaling.host)),
        ("Work", "name", _work),
        *((("Host", "name", lambda scaling: visible(scaling.host)),) * (len(hosts) > 1)),
        ("Environment", "name", lambda scaling: visible(scaling.arm)),
        ("Ranks", "number", _ranks),
        ("samples/s", "number", lambda scaling: _number(scaling.samples_per_s)),
        ("Speed-up", "number", _speed_up),
        ("Efficiency", "number", lambda scaling: _percent(scaling.efficiency)),
        *(exchanges if _has_collectives(run) else ()),
        style="fit",
    )


def _has_collectives(run: RunComparison) -> bool:
    return any(one.collective_s is not None for one in run.scaling)


def _work(scaling: Scaling) -> str:
    return visible(" ".join((scaling.workload, *assigned(scaling.parameters))))


def _ranks(scaling: Scaling) -> Words:
    where = f"(on {', '.join(map(visible, scaling.hosts))})" if scaling.hosts else ""
    return Line(text=str(scaling.ranks), below=(where,))


def _number(value: float | None) -> str:
    return NOT_MEASURED if value is None else number_text(value)


def _percent(share: float | None) -> str:
    return NOT_MEASURED if share is None else f"{three_digits(100 * share)} %"


def _speed_up(scaling: Scaling) -> Words:
    if scaling.ranks == 1 or scaling.speed_up is None:
        return "1" if scaling.ranks == 1 else NOT_MEASURED
    ends = f"({counted(scaling.restarts, 'restart')}: no interval)"
    if scaling.speed_up_low is not None and scaling.speed_up_high is not None:
        ends = f"({three_digits(scaling.speed_up_low)} to {three_digits(scaling.speed_up_high)})"
    return Line(text=three_digits(scaling.speed_up), below=(ends,))


def _part(share: float | None, seconds: float | None) -> Words:
    if seconds is None:
        return NOT_MEASURED
    return Line(text=_percent(share), below=(f"({duration(seconds)})",))


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
