"""The ranks of a distributed program, each of which wrote a trace of its own, as one profile.

Ranks run different launches, so that their traces do not contradict each other. What adds up is
summed over the ranks; busy times, rates and shares are of each rank.
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
"""Values of the note `distributed`: of several ranks, a list in text; ranks that others lack."""

_ENDS: Final[Mapping[str, Callable[[list[float]], float]]] = {"min_ns": min, "max_ns": max}
_MOST_DIGITS: Final = 10  # of a number of a rank
_Called = TypeVar("_Called", Kernel, Copy, ApiCall, Operator)
_Ranks = Mapping[int, ProfileRecord]


def over_ranks(records: Records) -> Records:
    """Return the records of a cell, those of several ranks of one program as one.

    Where arms have traces of other ranks, those that all of them have are compared.
    """
    merged, single = [], list(records)
    for by_arm in _programs(records):
        shared = set.intersection(*map(set, by_arm.values()))
        for ranks in by_arm.values():
            if len(ranks) > 1:
                kept = {rank: ranks[rank] for rank in sorted(shared or ranks)}
                merged.append(_over(kept, lacking=sorted(ranks.keys() - kept.keys())))
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
    """Return how many ranks the program has; empty where its trace does not say."""
    return str(_distributed(profile_of(record)).values.get("world_size", ""))


def _over(ranks: _Ranks, *, lacking: list[int]) -> ProfileRecord:
    """Return the records of some ranks as one; `lacking` are those that other arms do not have."""
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
        kernels=_added((p.kernels for p in profiles), lambda one: (one.name, one.grid, one.block)),
        sequence=(),
        copies=_added((p.copies for p in profiles), lambda one: one.kind),
        api_calls=_added((p.api_calls for p in profiles), lambda one: one.name),
        operators=_added((p.operators for p in profiles), lambda one: one.name),
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
    """Return which ranks these are, and what else is to be known of them, each once."""
    told = {RANK: _listed(ranks), LEFT_OUT: _listed(lacking)}
    notes = [Note(kind="distributed", values={**_distributed(profiles[0]).values, **told})]
    for note in (note for profile in profiles for note in profile.notes):
        if note.kind != "distributed" and note not in notes:
            notes.append(note)
    return tuple(notes)


def _listed(ranks: Iterable[int]) -> str:
    return " and ".join(", ".join(map(str, ranks)).rsplit(", ", 1))


def _added(
    groups: Iterable[tuple[_Called, ...]], key: Callable[[_Called], Hashable]
) -> tuple[_Called, ...]:
    """Return what ranks called, each once, with the sums of its numbers over the ranks."""
    sums: dict[Hashable, _Called] = {}
    for called in (one for group in groups for one in group):
        name = key(called)
        sums[name] = _sum(sums[name], called) if name in sums else called
    return tuple(sums.values())


def _sum(one: _Called, other: _Called) -> _Called:
    """Return the sums of two; the least of the shortest, the most of the longest."""
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
    """Yield the sums over all ranks; what one of them lacks a value of has none."""
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
    """Yield what does not add up over ranks, such as how long the GPU of each was busy."""
    for rank, record in ranks.items():
        for quantity in profile_of(record).quantities:
            if quantity.rule != "sum" or quantity.gpu is not None:
                yield replace(quantity, rank=rank)
