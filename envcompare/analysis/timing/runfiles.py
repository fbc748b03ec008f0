"""Read a run folder by cell.

Raises RunFolderError if its files do not belong together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import msgspec

from envcompare.analysis.timing import CellData
from envcompare.errors import RunFolderError
from envcompare.fingerprint.comparing import changed_software
from envcompare.run_folder import (
    RUN_IN_S,
    elapsed_s,
    last_calibration,
    standing,
    standing_samples,
    written_samples,
)
from envcompare.run_folder.profiles import ProfileRecord, Roofs
from envcompare.run_folder.records import (
    Block,
    CellRecord,
    EnergyBlock,
    Epoch,
    Event,
    FingerprintRecord,
    FingerprintValue,
    GpuReading,
    HostGroup,
    MarkedBlock,
    Measured,
    Memory,
    ProcessRun,
    RunRecord,
    Sample,
    Startup,
)
from envcompare.run_folder.results import RunFolder, arms_within

_GUARDS = ("waited", "caution", "training-failed")
_PROCESS_TIMES = ("wall_ns", "user_ns", "sys_ns", "real_ns")
_STARTUP_TIMES = tuple(name for name in Startup.__struct_fields__ if name.endswith("_ns"))


class _OfCell(Protocol):
    """A record that belongs to a cell."""

    @property
    def cell(self) -> str:
        """The ID of the cell; empty for records outside cells."""


_Kind = TypeVar("_Kind", bound=_OfCell)


def _by_cell(records: Iterable[_Kind]) -> dict[str, list[_Kind]]:
    """Return records by cell, in order; a scan per cell would be slow."""
    grouped: dict[str, list[_Kind]] = {}
    for record in records:
        grouped.setdefault(record.cell, []).append(record)
    return grouped


@dataclass(frozen=True, kw_only=True)  # no slots, for the cached properties
class RunFiles:
    """A run folder in memory."""

    run: RunRecord
    samples: tuple[Sample, ...]  # without restarts that a later attempt replaced
    events: tuple[Event, ...]
    fingerprints: tuple[FingerprintRecord, ...]
    profiles: tuple[ProfileRecord, ...]
    roofs: tuple[Roofs, ...]
    held: int  # number of samples, including replaced ones
    torn: int  # number of incomplete lines
    imports: tuple[str, ...] = ()

    def cell_data(self) -> tuple[CellData, ...]:
        """Return the data of each cell, in the order of the plan."""
        blocks = _by_cell(sample for sample in self.samples if isinstance(sample, Measured))
        standing, every = _by_cell(self.standing), _by_cell(self.events)
        return tuple(
            CellData(
                run=self._run_of(cell),
                cell=cell,
                blocks=tuple(blocks.get(cell.id, ())),
                events=tuple(standing.get(cell.id, ())),
                host_events=tuple(e for e in standing.get("", ()) if e.host == cell.host),
                guard_events=tuple(e for e in every.get(cell.id, ()) if e.what in _GUARDS),
                elapsed_s=elapsed_s(every.get(cell.id, ())),
                batch=_batch(every.get(cell.id, ())),
                run_in_s=last_calibration(every.get(cell.id, ())).get(RUN_IN_S, 0.0),
                long_spinning=self._long_spinning(cell),
            )
            for cell in self.run.cells
        )

    def _long_spinning(self, cell: CellRecord) -> frozenset[str]:
        """Return the arms of a cell that loaded libiomp5, whose idle threads spin longest."""
        return frozenset(
            fingerprint.arm
            for fingerprint in self.fingerprints
            if fingerprint.cell == cell.id
            and "libiomp5" in str(fingerprint.facts.get("loaded_libraries"))
        )

    def _run_of(self, cell: CellRecord) -> RunRecord:
        """Return the run with only the timed arms of one cell."""
        arms = arms_within(self.timed.arms, cell.within)
        return msgspec.structs.replace(self.timed, arms=arms)

    @property
    def timed(self) -> RunRecord:
        """Return the run without the arms that were only imported."""
        timed = tuple(arm for arm in self.run.arms if arm.is_timed)
        return msgspec.structs.replace(self.run, arms=timed) if timed else self.run

    @property
    def group_pairs(self) -> tuple[tuple[HostGroup, HostGroup], ...]:
        """Return the first group of hosts, paired with each of the others."""
        return tuple((self.run.groups[0], group) for group in self.run.groups[1:])

    @cached_property
    def standing(self) -> tuple[Event, ...]:
        """Return the events that no resumption has replaced."""
        return standing(self.events)

    @property
    def is_complete(self) -> bool:
        """Tell whether the run ended after its last start, and all its samples are here.

        A run that was only imported has no end.
        """
        if not any(arm.is_timed for arm in self.run.arms):
            return True
        return any(e.what == "run-ended" for e in self.standing) and not self.lost

    @cached_property
    def lost(self) -> int:
        """Return the number of recorded samples that are missing; 0 without a count."""
        return max(0, written_samples(self.events) - self.held)

    @cached_property
    def readings(self) -> dict[str, list[GpuReading]]:
        """Return the GPU readings by cell."""
        return _by_cell(sample for sample in self.samples if isinstance(sample, GpuReading))

    @cached_property
    def epochs(self) -> dict[str, list[Epoch]]:
        """Return the epochs of training by cell."""
        return _by_cell(sample for sample in self.samples if isinstance(sample, Epoch))

    @cached_property
    def marked(self) -> dict[str, list[MarkedBlock]]:
        """Return the marked blocks by cell."""
        return _by_cell(sample for sample in self.samples if isinstance(sample, MarkedBlock))

    @cached_property
    def energy_blocks(self) -> dict[str, list[EnergyBlock]]:
        """Return the blocks of the energy pass by cell."""
        return _by_cell(sample for sample in self.samples if isinstance(sample, EnergyBlock))

    @cached_property
    def cell_profiles(self) -> dict[str, list[ProfileRecord]]:
        """Return the profile records by cell."""
        return _by_cell(self.profiles)

    @cached_property
    def facts(self) -> dict[str, dict[str, Mapping[str, FingerprintValue]]]:
        """Return the facts of each arm by cell."""
        prints = _by_cell(self.fingerprints)
        return {
            cell: {fingerprint.arm: fingerprint.facts for fingerprint in found}
            for cell, found in prints.items()
        }

    @cached_property
    def codes(self) -> dict[str, dict[str, str]]:
        """Return the hash of the timed program of each arm, as its worker reported it."""
        codes: dict[str, dict[str, str]] = {}
        for event in self.standing:
            if isinstance(code := event.values.get("code"), str):
                codes.setdefault(event.cell, {})[event.arm] = code
        return codes

    def unscreened(self) -> RunRecord:
        """Return the run as if without a screen: each interval is corrected for all."""
        design = msgspec.structs.replace(self.run.design, screen=False)
        return msgspec.structs.replace(self.run, design=design)


def read_files(folder: RunFolder) -> RunFiles:
    """Read a run folder, complete or not.

    Raises RunFolderError if a file is damaged, missing, or from another run.
    """
    run, samples, journal = folder.read_run(), folder.read_samples(), folder.read_events()
    # an import may come days after the run, so it is not part of its duration
    events = tuple(event for event in journal.events if event.what != "imported")
    fingerprints = _fingerprints(folder)
    if not samples.samples and any(e.what == "cell-ended" and e.state == "ok" for e in events):
        raise RunFolderError(
            f"{folder.path}/samples.jsonl is missing or empty",
            details="the events say that cells were measured",
            hint="restore the file from a copy, or run again",
        )
    _check_names(folder, "samples.jsonl", run, samples.samples)
    _check_names(folder, "events.jsonl", run, events)
    _check_names(folder, "fingerprints", run, fingerprints)
    standing = standing_samples(samples.samples, run.design, events)
    may_repeat = run.design.restarts is not None and len(standing) < len(samples.samples)
    _check_samples(folder, samples.samples, may_repeat=may_repeat)
    return RunFiles(
        run=run,
        samples=standing,
        held=len(samples.samples),
        events=events,
        fingerprints=fingerprints,
        profiles=folder.read_profiles(),
        roofs=folder.read_roofs(),
        torn=samples.torn + journal.torn,
        imports=tuple(
            dict.fromkeys(
                command
                for event in journal.events
                if event.what == "imported"
                and isinstance(command := event.values.get("command"), str)
                and command
            )
        ),
    )


def _fingerprints(folder: RunFolder) -> tuple[FingerprintRecord, ...]:
    """Return the fingerprints; a later one replaces one taken before any work.

    An interruption may prevent the first part of a run from looking after the steps.
    """
    later = folder.read_later_fingerprints()
    return tuple(
        next((fingerprint for fingerprint in later if _completes(first, fingerprint)), first)
        for first in folder.read_fingerprints()
    )


def _completes(first: FingerprintRecord, later: FingerprintRecord) -> bool:
    is_same = (first.host, first.arm, first.cell) == (later.host, later.arm, later.cell)
    is_after = (first.taken, later.taken) == ("start", "step")
    return is_same and is_after and not changed_software(first, later)


def _batch(events: Iterable[Event]) -> int | None:
    """Return the samples per step, as reported by the first worker of a cell."""
    batches = (event.values.get("batch") for event in events)
    return next((batch for batch in batches if isinstance(batch, int)), None)


def _check_names(
    folder: RunFolder,
    name: str,
    run: RunRecord,
    records: Iterable[Sample | Event | FingerprintRecord],
) -> None:
    """Raise RunFolderError if a record has an unknown cell or environment."""
    cells, arms = ({one.id for one in part} | {""} for part in (run.cells, run.arms))
    for record in records:
        arm = "" if isinstance(record, GpuReading) else record.arm
        if record.cell in cells and arm in arms:
            continue
        what = f"the environment {arm}" if record.cell in cells else f"the cell {record.cell}"
        raise RunFolderError(
            f"{folder.path / name} does not belong to the run {run.run_id}",
            details=f"it holds {what}, which run.json does not name",
            hint="restore both files from a copy: one is from another run, or was changed",
        )


def _check_samples(folder: RunFolder, samples: Iterable[Sample], *, may_repeat: bool) -> None:
    """Raise RunFolderError for a sample that cannot come from a measurement."""
    seen: dict[tuple[str, str, int, int, int, int], int] = {}
    for number, sample in enumerate(samples, start=1):
        why = _fault(sample)
        if not (why or may_repeat) and isinstance(sample, Measured):
            calibration = sample.calibration if isinstance(sample, Block) else 0
            place = sample.restart, sample.generation, calibration, sample.round
            key = (sample.cell, sample.arm, *place)
            first = seen.setdefault(key, number)
            why = "" if first == number else f"the round of line {first} once more"
        if why:
            raise RunFolderError(
                f"{folder.path}/samples.jsonl is damaged in line {number}",
                details=f"it has {why}",
                hint="remove that line, or restore the file from a copy",
            )


def _fault(sample: Sample) -> str:
    """Return what is impossible in a sample's times; empty if nothing is."""
    if isinstance(sample, GpuReading | Memory):
        return ""
    if isinstance(sample, MarkedBlock):
        return "" if sample.phases else "steps without a phase"
    if isinstance(sample, Block) and not sample.k == len(sample.wall_ns) > 0:
        return f"{len(sample.wall_ns)} times of {sample.k} steps"
    if isinstance(sample, EnergyBlock | Epoch):
        return "" if sample.k > 0 and sample.wall_ns > 0 else "no steps, or no time of them"
    # blocks are dropped because a clock jumped
    return "a time below 0" if sample.status == "ok" and min(_times_ns(sample)) < 0 else ""


def _times_ns(sample: Measured | Startup) -> tuple[int, ...]:
    if isinstance(sample, Block):
        return (*sample.wall_ns, *sample.cpu_ns, *(sample.gpu_ns or ()))
    names = _PROCESS_TIMES if isinstance(sample, ProcessRun) else _STARTUP_TIMES
    times = (getattr(sample, name) for name in names)
    return tuple(time for time in times if time is not None)
