"""The one door to all readers of profiler files: which tool's, and is it that tool's at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from envcompare.errors import ConfigError
from envcompare.profile_files.derive import with_quantities
from envcompare.profile_files.merging import merge
from envcompare.profile_files.ncu.launches import CONTROLS_UNTOLD
from envcompare.profile_files.plausible import refuse_impossible
from envcompare.profile_files.recognising import recognise
from envcompare.profile_files.refusing import refusal
from envcompare.run_folder.profiles import Profile
from envcompare.text import counted

READERS: Final = {
    "kineto": "envcompare.profile_files.kineto",
    "ncu": "envcompare.profile_files.ncu",
    "nsys": "envcompare.profile_files.nsys",
    "nvprof": "envcompare.profile_files.nvprof",
}
"""The module of each tool, with a function `read(path) -> Profile`; imported when asked for."""

SEVERAL: Final = frozenset({"ncu", "nvprof"})
"""Tools whose counters are collected in several runs over the same launches."""

_NAMELESS: Final = "[unknown]"
_KINDS: Final = {
    "kineto": "a trace of torch.profiler",
    "ncu": "a file of Nsight Compute",
    "nsys": "a file of Nsight Systems",
    "nvprof": "a file of nvprof",
}


def read(tool: str, paths: Sequence[Path], *, version: str = "", controls: str = "") -> Profile:
    """Read what one tool wrote, quantities included; passes of ncu and nvprof become one profile.

    Who ran the tool may know what its file does not tell: its version, and how it treated caches
    and clocks.

    Raises ConfigError for an unknown tool or not just one file, ProfileError for a file that
    cannot be trusted or is another tool's, and for passes whose launches differ.
    """
    if tool not in READERS:
        raise ConfigError(
            f"unknown profiler {tool!r}", hint=f"choose one of {', '.join(sorted(READERS))}"
        )
    if len(paths) != 1 and not (paths and tool in SEVERAL):
        raise ConfigError(
            f"{len(paths)} files for one profile of {tool}",
            hint="import one file at a time; each gets a name of its own",
        )
    for path in paths:
        _refuse_other_tool(tool, path)
    merged = _known(merge([_reader(tool)(path) for path in paths]))
    notes = (controls if controls and note == CONTROLS_UNTOLD else note for note in merged.notes)
    told = replace(merged, version=version or merged.version, notes=tuple(notes))
    profile = with_quantities(told)
    refuse_impossible(profile)
    return profile


def _known(profile: Profile) -> Profile:
    """Return the profile without launches of which the tool could not tell what they were."""
    kept = [n for n, one in enumerate(profile.kernels) if one.name.lower() != _NAMELESS]
    if len(kept) == len(profile.kernels):
        return profile
    places = {place: number for number, place in enumerate(kept)}
    sequence = tuple(places[n] for n in profile.sequence if n in places)
    firsts = dict(zip(reversed(sequence), range(len(sequence) - 1, -1, -1), strict=True))
    kernels = (
        replace(profile.kernels[n], first=firsts.get(number, profile.kernels[n].first))
        for number, n in enumerate(kept)
    )
    lost = sum(one.calls for one in profile.kernels) - sum(profile.kernels[n].calls for n in kept)
    told = f"{counted(lost, 'launch', 'launches')} named [Unknown] {'was' if lost == 1 else 'were'}"
    return replace(
        profile,
        kernels=tuple(kernels),
        sequence=sequence,
        notes=(*profile.notes, f"{told} left out: the tool did not record which kernel ran"),
    )


def _refuse_other_tool(tool: str, path: Path) -> None:
    found = recognise(path)
    if found and found != tool:
        raise refusal(
            path.name,
            why=f"this is {_KINDS[found]}, not {_KINDS[tool]}",
            hint=f"use `envcompare import {found}`",
        )


def _reader(tool: str) -> Callable[[Path], Profile]:
    reader: Callable[[Path], Profile] = import_module(READERS[tool]).read
    return reader
