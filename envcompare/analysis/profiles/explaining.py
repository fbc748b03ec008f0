"""What a run folder holds to explain the times of its cells, gathered cell by cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from envcompare.analysis.model.profiling import CellProfiles
from envcompare.analysis.profiles.profiled import ProfiledCell, cell_profiles
from envcompare.analysis.timing.cells import CellData, by_cell
from envcompare.analysis.timing.energy import arm_quantities
from envcompare.analysis.timing.primaries import Key, Primary
from envcompare.run_folder.profiles import ProfileRecord, Quantity, Roofs
from envcompare.run_folder.records import (
    Block,
    Event,
    FactDifference,
    FingerprintRecord,
    FingerprintValue,
    GpuReading,
    RunRecord,
    Sample,
)

Facts = Mapping[str, FingerprintValue]


@dataclass(frozen=True, kw_only=True)  # no slots: what each cell asks for is gathered once
class Sources:
    """A run folder, as far as it explains times."""

    run: RunRecord
    samples: tuple[Sample, ...]
    events: tuple[Event, ...]
    fingerprints: tuple[FingerprintRecord, ...]
    records: tuple[ProfileRecord, ...]
    roofs: tuple[Roofs, ...]

    @cached_property
    def readings(self) -> dict[str, list[GpuReading]]:
        """Return the readings of GPUs by cell."""
        return by_cell(one for one in self.samples if isinstance(one, GpuReading))

    @cached_property
    def profiles(self) -> dict[str, list[ProfileRecord]]:
        """Return the records of profiles by cell."""
        return by_cell(self.records)

    @cached_property
    def facts(self) -> dict[str, dict[str, Facts]]:
        """Return the facts of each arm by cell."""
        prints = by_cell(self.fingerprints)
        return {cell: {one.arm: one.facts for one in found} for cell, found in prints.items()}

    @cached_property
    def codes(self) -> dict[str, dict[str, str]]:
        """Return the hash of the program that was timed in each arm, as its worker said it."""
        found: dict[str, dict[str, str]] = {}
        for one in self.events:
            if isinstance(code := one.values.get("code"), str):
                found.setdefault(one.cell, {})[one.arm] = code
        return found


def explain(
    sources: Sources,
    data: Iterable[CellData],
    *,
    differences: Mapping[str, tuple[FactDifference, ...]],
    settled: Mapping[Key, Primary],
) -> tuple[CellProfiles, ...]:
    """Return what explains the times of each cell; a cell with nothing of that kind is left out."""
    strays = tuple(dict.fromkeys(_stray(sources)))
    found = []
    for one in data:
        own = cell_profiles(_cell(sources, one, differences.get(one.cell.id, ()), settled))
        if own is not None:
            found.append(replace(own, cautions=(*own.cautions, *strays)))
    return tuple(found)


def _stray(sources: Sources) -> Iterable[str]:
    """Say which records are of an environment, a cell or a host that the run does not know."""
    arms = {arm.id for arm in sources.run.arms}
    hosts = {cell.id: cell.host for cell in sources.run.cells}
    for one in sources.records:
        if one.arm in arms and hosts.get(one.cell) == one.host:
            continue
        if one.arm in arms and one.cell in hosts:
            yield f"{one.name} of {one.arm}: by run.json its cell is not on the host {one.host}."
        else:
            lack = f"environment {one.arm}" if one.arm not in arms else f"cell {one.cell}"
            yield f"{one.name} is left out: run.json has no {lack}."


def _cell(
    sources: Sources,
    data: CellData,
    differences: tuple[FactDifference, ...],
    settled: Mapping[Key, Primary],
) -> ProfiledCell:
    cell, arms = data.cell, sources.run.arms
    facts = sources.facts.get(cell.id, {})
    return ProfiledCell(
        cell=cell,
        reference=next(arm.id for arm in arms if arm.is_reference),
        arms=tuple(arm.id for arm in arms if not (arm.is_reference or arm.is_control)),
        records=tuple(sources.profiles.get(cell.id, ())),
        roofs=tuple(one for one in sources.roofs if one.host == cell.host),
        blocks={arm.id: data.arm_blocks(arm.id) for arm in arms},
        codes=sources.codes.get(cell.id, {}),
        facts=facts,
        differences=differences,
        energy=_energy(sources, data, facts),
        log_ratios={
            arm: one.interval.mean for (name, arm), one in settled.items() if name == cell.id
        },
        is_net=data.metric[0] == "net",
        timed=frozenset(arm.id for arm in arms if arm.is_timed),
    )


def _energy(
    sources: Sources, data: CellData, facts: Mapping[str, Facts]
) -> dict[str, tuple[Quantity, ...]]:
    """Return what each arm took of its GPU; nothing where no arm ran on one."""
    readings = sources.readings.get(data.cell.id, [])
    blocks = {
        arm.id: [one for one in data.arm_blocks(arm.id) if isinstance(one, Block)]
        for arm in sources.run.arms
        if not arm.is_control
    }
    return {
        arm: arm_quantities(
            timed,
            readings,
            batch=data.batch,
            uuid=str(facts.get(arm, {}).get("gpu.uuid") or ""),
        )
        for arm, timed in blocks.items()
        if any(block.gpu_ns for block in timed)
    }
