"""The profiles of a run folder: one record for each arm and pass, the raw files beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from envcompare.errors import RunFolderError
from envcompare.run_folder.foldernames import cell_name, distinct_name, safe_name
from envcompare.run_folder.plausible import impossible_record, impossible_roofs
from envcompare.run_folder.profiles import ProfileRecord, Roofs
from envcompare.run_folder.results import RunFolder
from envcompare.text import shortened, visible_line

_FOLDER = "profiles"
_ROOFS = "roofs"
_T = TypeVar("_T", ProfileRecord, Roofs)


def raw_path(folder: RunFolder, cell: str, arm: str, name: str) -> Path:
    """Return the path of a file among the profiles of an arm, with its folder made."""
    path = _arm_folder(folder, cell, arm) / safe_name(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def raw_folder(folder: RunFolder, record: ProfileRecord) -> Path:
    """Return the folder of the files a profile was read from; a JSON trace there is no record."""
    return _arm_folder(folder, record.cell, record.arm) / safe_name(record.name)


def _arm_folder(folder: RunFolder, cell: str, arm: str) -> Path:
    return folder.path / _FOLDER / cell_name(cell) / distinct_name(arm)


def record_path(folder: RunFolder, record: ProfileRecord) -> Path:
    """Return the path of a record."""
    name = safe_name(f"{record.name}.json")
    return _arm_folder(folder, record.cell, record.arm) / name


def write_profile(folder: RunFolder, record: ProfileRecord) -> None:
    """Write profiles/<cell>/<arm>/<name>.json; raises RunFolderError when the disk refuses."""
    path = record_path(folder, record)
    folder.write_json(str(path.relative_to(folder.path)), record)


def read_profiles(folder: RunFolder, cell: str | None = None) -> tuple[ProfileRecord, ...]:
    """Read all profiles, or those of a cell, by path.

    Raises RunFolderError for a record that is damaged or holds a number that cannot be.
    """
    cells = "*" if cell is None else cell_name(cell)
    found = (folder.path / _FOLDER).glob(f"{cells}/*/*.json")
    # by name without its ending: `imported-nsys` comes before `imported-nsys-2`
    paths = sorted(found, key=lambda path: (path.parent, path.stem))
    return tuple(_read(folder, path, ProfileRecord, impossible_record) for path in paths)


def write_roofs(folder: RunFolder, roofs: Roofs) -> None:
    """Write profiles/roofs/<host>.json; raises RunFolderError when the disk refuses."""
    folder.write_json(f"{_FOLDER}/{_ROOFS}/{distinct_name(roofs.host)}.json", roofs)


def read_roofs(folder: RunFolder) -> tuple[Roofs, ...]:
    """Read the roofs of all hosts, sorted by path.

    Raises RunFolderError for a record that is damaged or holds a number that cannot be.
    """
    paths = sorted((folder.path / _FOLDER / _ROOFS).glob("*.json"))
    return tuple(_read(folder, path, Roofs, impossible_roofs) for path in paths)


def _read(
    folder: RunFolder, path: Path, kind: type[_T], impossible: Callable[[_T], Iterator[str]]
) -> _T:
    found = folder.read_json(str(path.relative_to(folder.path)), kind)
    why = next(impossible(found), None)
    if why is not None:
        raise RunFolderError(
            f"{path} cannot be trusted",
            details=visible_line(shortened(why, most=600)),
            hint="restore the file from a copy, or import or measure again",
        )
    return found
