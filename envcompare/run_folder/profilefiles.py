"""The profiles of a run folder: a record for each arm and pass, and the raw files beside it.

Numbers that cannot be are refused, whoever wrote them: a tool, a worker or an editor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

from envcompare.errors import RunFolderError
from envcompare.run_folder.disk import cell_name, distinct_name, safe_name
from envcompare.run_folder.profiles import (
    ApiCall,
    Copy,
    Kernel,
    Operator,
    Profile,
    ProfileRecord,
    Roofs,
)
from envcompare.run_folder.results import RunFolder
from envcompare.text import shortened, visible_line

_FOLDER = "profiles"
_ROOFS = "roofs"
_T = TypeVar("_T", ProfileRecord, Roofs)
# Tools print sums of rounded numbers.
_ROUNDING: Final = 1e-3
_MOST: Final = 1e30  # far above all that was ever counted, far below what sums cannot hold


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
    files = (folder.path / _FOLDER).glob(f"{cells}/*/*.json")
    # by name without its ending: `imported-nsys` comes before `imported-nsys-2`
    paths = sorted(files, key=lambda path: (path.parent, path.stem))
    return tuple(_read(folder, path, ProfileRecord, _impossible_record) for path in paths)


def write_roofs(folder: RunFolder, roofs: Roofs) -> None:
    """Write profiles/roofs/<host>.json; raises RunFolderError when the disk refuses."""
    folder.write_json(f"{_FOLDER}/{_ROOFS}/{distinct_name(roofs.host)}.json", roofs)


def read_roofs(folder: RunFolder) -> tuple[Roofs, ...]:
    """Read the roofs of all hosts, sorted by path.

    Raises RunFolderError for a record that is damaged or holds a number that cannot be.
    """
    paths = sorted((folder.path / _FOLDER / _ROOFS).glob("*.json"))
    return tuple(_read(folder, path, Roofs, _impossible_roofs) for path in paths)


def _read(
    folder: RunFolder, path: Path, kind: type[_T], impossible: Callable[[_T], Iterator[str]]
) -> _T:
    record = folder.read_json(str(path.relative_to(folder.path)), kind)
    why = next(impossible(record), None)
    if why is not None:
        raise RunFolderError(
            f"{path} cannot be trusted",
            details=visible_line(shortened(why, most=600)),
            hint="restore the file from a copy, or import or measure again",
        )
    return record


def impossible(profile: Profile) -> Iterator[str]:
    """Say which numbers of a profile cannot be: negative, endless, a least above a most."""
    yield from _counted(profile)
    yield from _whole(profile)
    called: tuple[Kernel | Copy | ApiCall, ...] = (
        *profile.kernels,
        *profile.copies,
        *profile.api_calls,
    )
    for call in called:
        yield from _calls(call)
    for kernel in profile.kernels:
        told = {**kernel.metrics, "place of the first launch": kernel.first}
        yield from _numbers(told, f"kernel {kernel.name}")
    for operator in profile.operators:
        yield from _operator(operator, is_exact=profile.tool != "torch")


def _impossible_record(record: ProfileRecord) -> Iterator[str]:
    """Say which numbers of a record, or of the profile in it, cannot be."""
    yield from _at_least_one({"steps": record.steps})
    yield from _numbers({"samples in a step": record.batch}, "the record")
    if record.profile is not None:
        yield from impossible(record.profile)


def _impossible_roofs(roofs: Roofs) -> Iterator[str]:
    """Say which roofs of a device cannot be."""
    yield from _numbers({"bytes per second": roofs.bytes_per_s}, roofs.device)
    yield from _numbers(roofs.flops_per_s, roofs.device)


def _counted(profile: Profile) -> Iterator[str]:
    yield from _at_least_one({"steps": profile.steps})
    for place in profile.sequence:
        if not 0 <= place < len(profile.kernels):
            yield f"the order of launches names kernel {place} of {len(profile.kernels)}"


def _at_least_one(counts: dict[str, int | None]) -> Iterator[str]:
    for name, count in counts.items():
        if count is not None and not 1 <= count <= _MOST:
            yield f"{name}: {_shown(count)}"


def _whole(profile: Profile) -> Iterator[str]:
    whole = {
        "time of kernels": profile.kernel_busy_ns,
        "busy time": profile.busy_ns,
        "span": profile.span_ns,
    }
    yield from _numbers({"idle time": profile.launch_gap_ns}, "the GPU")
    yield from _numbers(whole, "the GPU", is_rising=True)
    for quantity in profile.quantities:
        yield from _numbers({quantity.name: quantity.value}, "the profile")


def _calls(call: Kernel | Copy | ApiCall) -> Iterator[str]:
    what = call.kind if isinstance(call, Copy) else call.name
    yield from _at_least_one({f"{what}: calls": call.calls})
    if isinstance(call, Copy):
        yield from _numbers({"bytes": call.total_bytes}, what)
    times = {"shortest": call.min_ns, "longest": call.max_ns, "total": call.total_ns}
    yield from _numbers(times, what, is_rising=True)


def _operator(operator: Operator, *, is_exact: bool) -> Iterator[str]:
    """Look at an operator; PyTorch's own sums go below 0 where operators overlap."""
    what = f"operator {operator.name}"
    yield from _at_least_one({f"{what}: calls": operator.calls})
    times = {"self time": operator.self_cpu_ns, "time": operator.cpu_ns}
    device = {
        "self time on the GPU": operator.self_device_ns,
        "time on the GPU": operator.device_ns,
    }
    if is_exact:
        yield from _numbers(times, what, is_rising=True)
    for name, value in {**times, **device}.items():
        if value is not None and not abs(value) <= _MOST:
            yield f"{what}: {name} is {_shown(value)}"


def _numbers(
    values: Mapping[str, float | None], what: str, *, is_rising: bool = False
) -> Iterator[str]:
    known = [(name, value) for name, value in values.items() if value is not None]
    for name, value in known:
        if not 0 <= value <= _MOST:
            yield f"{what}: {name} is {_shown(value)}"
    for (name, value), (larger, limit) in pairwise(known):
        if is_rising and value > limit * (1 + _ROUNDING) + 1:
            yield f"{what}: {name} is {value:g} and {larger} {limit:g}"


def _shown(value: float) -> str:
    """Return a number as text; a whole one may be too large for that."""
    return f"{value:g}" if abs(value) < 1e300 else f"{'-' * (value < 0)}endless"
