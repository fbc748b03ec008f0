"""The raw files of a comparison that lie beside the page: logs, profiles, fingerprints, samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from envcompare.analysis.model.comparison import Comparison
from envcompare.report.sections.links import Link, link
from envcompare.run_folder.foldernames import cell_name, distinct_name
from envcompare.text import visible

_MOST: Final = 12  # of one arm; all are listed with the files of the run
_SAMPLES: Final = "samples.jsonl"

FileGroup = tuple[str, tuple[Link, ...]]  # of what, and the files by their short names


def raw_files(one: Comparison, *, reference: str, files: tuple[str, ...]) -> tuple[FileGroup, ...]:
    """Return links to what was written about both arms of a comparison in its cell."""
    groups = [("all samples", [_SAMPLES] * (_SAMPLES in files))]
    groups += [
        (visible(arm), [name for start in _starts(one, arm) for name in files
                        if name.startswith(start)][:_MOST])
        for arm in (reference, one.arm)
    ]  # fmt: skip
    return tuple((what, _links(names, files)) for what, names in groups if names)


def _links(names: list[str], files: tuple[str, ...]) -> tuple[Link, ...]:
    found = ((link(name, files), PurePosixPath(name)) for name in names)
    return tuple(replace(file, text=_short(path)) for file, path in found if file is not None)


def _short(path: PurePosixPath) -> str:
    """Return what a file is where its folder tells that, else its name."""
    return {"logs": "log", "fingerprints": "fingerprint"}.get(path.parts[0], path.name)


def _starts(one: Comparison, arm: str) -> tuple[str, ...]:
    """Return how the names of an arm's files begin, as the run folder lays them out."""
    host, name, cell = distinct_name(one.host), distinct_name(arm), cell_name(one.cell)
    work = cell_name(one.cell.removeprefix(f"{one.host}/"))
    return (
        f"logs/{host}/{cell}/{name}.log",
        f"fingerprints/{host}/{name}/{work}.json",
        f"profiles/{cell}/{name}/",
    )
