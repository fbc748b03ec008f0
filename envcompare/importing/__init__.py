"""Put profiler files of any origin into a run folder: what `envcompare import` does."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from envcompare.errors import ConfigError, RunFolderError
from envcompare.importing.place import Place, Request, find_place
from envcompare.profilefiles import raw_folder, write_profile
from envcompare.profilers.reading import read
from envcompare.profiles import Profile, ProfileRecord
from envcompare.records import Event
from envcompare.results import RunFolder, safe_name

COPY_LIMIT_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The run folder, what to say of it, and whether there is nothing to compare with yet."""

    folder: RunFolder
    lines: tuple[str, ...]
    is_alone: bool


def import_files(request: Request) -> Imported:
    """Read the files, then put them into their run folder; nothing is kept of what is refused.

    Raises ProfileError for a file that cannot be trusted, ConfigError for wrong usage and
    RunFolderError where the folder cannot be read or written.
    """
    place = find_place(request)
    sha256 = _digests(request.files)
    is_alone = len(place.profiled() | {request.arm}) < 2
    if place.folder is not None and _is_there(place.of_arm(request.arm), sha256, request.arm):
        text = f"{request.arm}: imported before, the same file by its SHA-256; nothing is changed"
        return Imported(folder=place.folder, lines=(text,), is_alone=is_alone)
    profile = read(request.tool, request.files)
    record = _record(request, place, profile, sha256)
    lines = (_sentence(record), *_kept(request, record), *_twins(place, record))
    return Imported(folder=_written(request, place, record), lines=lines, is_alone=is_alone)


def _digests(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file by the name it gets in the run folder."""
    found: dict[str, str] = {}
    for path in files:
        name = safe_name(path.name)
        unique = name if name not in found else f"{len(found) + 1}-{name}"
        try:
            with path.open("rb") as stream:
                found[unique] = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read", details=str(error), hint="name files that you can read"
            ) from error
    if len(set(found.values())) < len(found):
        raise ConfigError(
            "the same file is named twice",
            details="two of the files have one SHA-256; their launches would count double",
            hint="name each file once",
        )
    return found


def _is_there(records: tuple[ProfileRecord, ...], sha256: dict[str, str], arm: str) -> bool:
    """Say whether the arm has all of these files; raises ConfigError where it has some of them."""
    known = {digest for one in records for digest in one.sha256.values()}
    found = [name for name, digest in sha256.items() if digest in known]
    if found and len(found) < len(sha256):
        raise ConfigError(
            f"{', '.join(found)} was imported for {arm} before",
            details="the same file by its SHA-256; its launches would count double",
            hint="leave it out",
        )
    return bool(found)


def _record(
    request: Request, place: Place, profile: Profile, sha256: dict[str, str]
) -> ProfileRecord:
    taken = {one.name for one in place.of_arm(request.arm)}
    first = f"imported-{request.tool}"
    names = (first, *(f"{first}-{number}" for number in range(2, len(taken) + 2)))
    # what a file says of its own steps is overruled by who made it
    steps = request.steps or profile.steps
    return ProfileRecord(
        host=place.cell.host,
        cell=place.cell.id,
        arm=request.arm,
        kind="imported",
        name=next(name for name in names if name not in taken),
        steps=steps,
        sha256=sha256,
        profile=msgspec.structs.replace(profile, steps=steps, files=tuple(sha256)),
    )


def _kept(request: Request, record: ProfileRecord) -> tuple[str, ...]:
    """Say which files stay where they are; `_written` leaves the same ones out."""
    sizes = zip(record.sha256, map(_size, request.files), strict=True)
    limit = f"above {COPY_LIMIT_BYTES / 2**20:.0f} MiB"
    return tuple(
        f"{name} is not copied: {size / 2**20:.0f} MiB, {limit}"
        for name, size in sizes
        if request.is_copied and size > COPY_LIMIT_BYTES
    )


def _twins(place: Place, record: ProfileRecord) -> tuple[str, ...]:
    digests = set(record.sha256.values())
    arms = (one.arm for one in place.records if digests & set(one.sha256.values()))
    return tuple(
        f"{arm} has the same file: between it and {record.arm} nothing can differ"
        for arm in dict.fromkeys(arms)
        if arm != record.arm
    )


def _written(request: Request, place: Place, record: ProfileRecord) -> RunFolder:
    """Write everything or nothing, and return the folder."""
    folder = place.folder or RunFolder.create(request.out, place.run)
    raw = raw_folder(folder, record)
    try:
        names = tuple(
            str(_copied(path, raw / name).relative_to(folder.path))
            for path, name in zip(request.files, record.sha256, strict=True)
            if request.is_copied and _size(path) <= COPY_LIMIT_BYTES
        )
        write_profile(folder, msgspec.structs.replace(record, raw=names))
        if place.run != folder.read_run():
            folder.write_json("run.json", place.run)
    except BaseException:
        shutil.rmtree(raw if place.folder else folder.path, ignore_errors=True)
        raw.with_name(f"{raw.name}.json").unlink(missing_ok=True)
        raise
    where = {"host": record.host, "cell": record.cell, "arm": record.arm}
    folder.append_event(Event(t=time.time(), what="imported", text=_sentence(record), **where))
    folder.close()
    return folder


def _copied(source: Path, target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise RunFolderError(
            f"{target.name} cannot be copied into the run folder",
            details=str(error),
            hint="make room, or leave the file where it is with --no-copy",
        ) from error
    return target


def _size(path: Path) -> int:
    return path.stat().st_size


def _sentence(record: ProfileRecord) -> str:
    """Say what one import brought: tool, launches, operators, steps."""
    profile = record.profile
    assert profile is not None
    launches = sum(one.calls for one in profile.kernels)
    counts = [f"{launches} launches of {len(profile.kernels)} kernels"] * bool(profile.kernels)
    counts += [f"{len(profile.operators)} operators"] * bool(profile.operators)
    what = ", ".join(counts) or "no kernel"
    steps = f" in {record.steps} steps" if record.steps else ""
    return f"{record.arm}: {what}{steps}, read from {profile.tool} {profile.version}".rstrip()
