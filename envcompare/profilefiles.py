"""The profiles of a run folder: one record for each arm and pass, the raw files beside it."""

from __future__ import annotations

from pathlib import Path

from envcompare.foldernames import cell_name, distinct_name, safe_name
from envcompare.profiles import ProfileRecord, Roofs
from envcompare.results import RunFolder

_FOLDER = "profiles"
_ROOFS = "roofs"


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
    """Read all profiles, or those of a cell, by path; raises RunFolderError for a damaged one."""
    cells = "*" if cell is None else cell_name(cell)
    found = (folder.path / _FOLDER).glob(f"{cells}/*/*.json")
    # by name without its ending: `imported-nsys` comes before `imported-nsys-2`
    paths = sorted(found, key=lambda path: (path.parent, path.stem))
    return tuple(folder.read_json(str(p.relative_to(folder.path)), ProfileRecord) for p in paths)


def write_roofs(folder: RunFolder, roofs: Roofs) -> None:
    """Write profiles/roofs/<host>.json; raises RunFolderError when the disk refuses."""
    folder.write_json(f"{_FOLDER}/{_ROOFS}/{distinct_name(roofs.host)}.json", roofs)


def read_roofs(folder: RunFolder) -> tuple[Roofs, ...]:
    """Read the roofs of all hosts, sorted by path; raises RunFolderError for a damaged one."""
    paths = sorted((folder.path / _FOLDER / _ROOFS).glob("*.json"))
    return tuple(folder.read_json(str(p.relative_to(folder.path)), Roofs) for p in paths)
