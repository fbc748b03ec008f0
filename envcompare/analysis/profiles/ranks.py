"""Merge the traces of the ranks of a distributed program into one profile.

Sums are added over the ranks; busy times, rates and shares are kept for each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from msgspec.structs import replace

from envcompare.analysis.profiles.armprofiles import Records, profile_of, usable
from envcompare.run_folder.profiles import (
    ApiCall,
    Copy,
    Kernel,
    Note,
    Operator,
    Profile,
    ProfileRecord,
    Quantity,
)

RANK: Final = "rank"
LEFT_OUT: Final = "left_out"
"""Values of the note `distributed`: the ranks as text, and ranks that other arms lack."""

_ENDS: Final[Mapping[str, Callable[[list[float]], float]]] = {"min_ns": min, "max_ns": max}
_MOST_DIGITS: Final = 10  # of a rank number
_Called = TypeVar("_Called", Kernel, Copy, ApiCall, Operator)
_Ranks = Mapping[int, ProfileRecord]


def over_ranks(records: Records) -> Records:
    """Return the records of a cell, with the ranks of one program merged.

    If the arms have different ranks, only the shared ranks are kept.
    """
    merged, single = [], list(records)
    for by_arm in _programs(records):
        shared = set.intersection(*map(set, by_arm.values()))
        for ranks in by_arm.values():
            if len(ranks) > 1:
                kept = {rank: ranks[rank] for rank in sorted(shared or ranks)}
                merged.append(_merge_ranks(kept, lacking=sorted(ranks.keys() - kept.keys())))
                single = [one for one in single if all(one is not of for of in ranks.values())]
    return (*merged, *single)


def _programs(records: Iterable[ProfileRecord]) -> Iterable[dict[str, dict[int, ProfileRecord]]]:
    """Return the first trace of each rank by arm, for each pass of a tool and size of a program."""
    programs: dict[Hashable, dict[str, dict[int, ProfileRecord]]] = {}
    for record in usable(records):
        profile = profile_of(record)
        rank, size = str(_distributed(profile).values.get(RANK, "")), _size(record)
        if rank.isdecimal() and size.isdecimal() and len(rank) < _MOST_DIGITS:
            by_arm = programs.setdefault((record.kind, profile.tool, size), {})
            by_arm.setdefault(record.arm, {}).setdefault(int(rank), record)
    return programs.values()


def _distributed(profile: Profile) -> Note:
    notes = (note for note in profile.notes if note.kind == "distributed")
    return next(notes, Note(kind="distributed"))


def _size(record: ProfileRecord) -> str:
    """Return the world size of the program; empty if unknown."""
    return str(_distributed(profile_of(record)).values.get("world_size", ""))


def _merge_ranks(ranks: _Ranks, *, lacking: list[int]) -> ProfileRecord:
    """Merge the records of some ranks; `lacking` are ranks that other arms lack."""
    records = tuple(ranks.values())
    profiles = tuple(map(profile_of, records))
    steps = {profile.steps for profile in profiles}
    notes = _notes(ranks, profiles, lacking=lacking)
    if len(records) == 1:
        return replace(records[0], profile=replace(profiles[0], notes=notes))
    merged = replace(
        profiles[0],
        files=tuple(name for profile in profiles for name in profile.files),
        devices=tuple(device for profile in profiles for device in profile.devices),
        span_ns=None, busy_ns=None, kernel_busy_ns=None, launch_gap_ns=None,
        kernels=_summed_by((p.kernels for p in profiles), lambda k: (k.name, k.grid, k.block)),
        sequence=(),
        copies=_summed_by((p.copies for p in profiles), lambda one: one.kind),
        api_calls=_summed_by((p.api_calls for p in profiles), lambda one: one.name),
        operators=_summed_by((p.operators for p in profiles), lambda one: one.name),
        quantities=(*_sums(profiles), *_of_each(ranks)),
        steps=steps.pop() if len(steps) == 1 else None,
        has_time=all(profile.has_time for profile in profiles),
        notes=notes,
    )  # fmt: skip
    return replace(
        records[0],
        raw=tuple(name for record in records for name in record.raw),
        sha256={name: digest for record in records for name, digest in record.sha256.items()},
        profile=merged,
    )


def _notes(ranks: _Ranks, profiles: tuple[Profile, ...], *, lacking: list[int]) -> tuple[Note, ...]:
    """Return the note on ranks, then all other notes once."""
    values = {RANK: _listed(ranks), LEFT_OUT: _listed(lacking)}
    notes = [Note(kind="distributed", values={**_distributed(profiles[0]).values, **values})]
    for note in (note for profile in profiles for note in profile.notes):
        if note.kind != "distributed" and note not in notes:
            notes.append(note)
    return tuple(notes)


def _listed(ranks: Iterable[int]) -> str:
    return " and ".join(", ".join(map(str, ranks)).rsplit(", ", 1))


def _summed_by(
    groups: Iterable[tuple[_Called, ...]], key: Callable[[_Called], Hashable]
) -> tuple[_Called, ...]:
    sums: dict[Hashable, _Called] = {}
    for called in (one for group in groups for one in group):
        name = key(called)
        sums[name] = _sum(sums[name], called) if name in sums else called
    return tuple(sums.values())


def _sum(one: _Called, other: _Called) -> _Called:
    """Return the sum of two items, with the smaller minimum and the larger maximum."""
    changes: dict[str, object] = {}
    for name in one.__struct_fields__:
        ours, theirs = getattr(one, name), getattr(other, name)
        if isinstance(ours, dict):
            changes[name] = {key: ours[key] + theirs[key] for key in ours.keys() & theirs.keys()}
        elif name in {"first", "grid", "block"} or isinstance(ours, str):
            changes[name] = ours
        elif ours is None or theirs is None:
            changes[name] = None
        else:
            changes[name] = _ENDS.get(name, sum)([ours, theirs])
    return replace(one, **changes)


def _sums(profiles: tuple[Profile, ...]) -> Iterator[Quantity]:
    """Yield the sums over all ranks; unknown if one of them is unknown."""
    found: dict[str, list[Quantity]] = {}
    for quantity in (one for profile in profiles for one in profile.quantities):
        if quantity.rule == "sum" and quantity.gpu is None:
            found.setdefault(quantity.name, []).append(quantity)
    for same in found.values():
        unknown = next((one for one in same if one.value is None), None)
        total = sum(one.value or 0.0 for one in same)
        scope = f"over {len(profiles)} ranks"
        yield unknown or replace(same[0], value=total, scope=scope)


def _of_each(ranks: _Ranks) -> Iterator[Quantity]:
    """Yield the quantities of each rank that cannot be summed, such as GPU busy time."""
    for rank, record in ranks.items():
        for quantity in profile_of(record).quantities:
            if quantity.rule != "sum" or quantity.gpu is not None:
                yield replace(quantity, rank=rank)
