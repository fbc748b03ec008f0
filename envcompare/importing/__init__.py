"""Put profiler files of any origin into a run folder: what `envcompare import` does."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from envcompare.command import shell_text
from envcompare.errors import ConfigError, RunFolderError
from envcompare.importing.place import Place, Request, find_place, holds_any
from envcompare.profile_files import SEVERAL, read
from envcompare.profile_files.derive.metricsums import launched
from envcompare.run_folder.disk import (
    irregular,
    locked,
    missing_folders,
    remove_empty,
    safe_name,
    write_hint,
)
from envcompare.run_folder.profilefiles import raw_folder, record_path, write_profile
from envcompare.run_folder.profiles import ProfileRecord
from envcompare.run_folder.records import Event
from envcompare.run_folder.results import RunFolder
from envcompare.text import counted

_NO_LAUNCHES = ("launch_count", "missing")  # of a trace that counted in ranges of a profiler
COPY_LIMIT_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The run folder, what to say of it, and whether there is nothing to compare with yet."""

    folder: RunFolder
    lines: tuple[str, ...]
    is_alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file that the arm does not have yet."""

    path: Path
    sha256: str
    size_bytes: int

    @property
    def is_large(self) -> bool:
        """Say whether it stays where it is."""
        return self.size_bytes > COPY_LIMIT_BYTES


Files = tuple[_File, ...]
Pairs = tuple[tuple[Files, ProfileRecord], ...]
"""The files of each new record: one, or passes over the same launches."""
Digests = Mapping[Path, str]
"""The SHA-256 of each file of a request."""


def import_files(request: Request) -> Imported:
    """Read all files, then put them into their run folder; where one is refused nothing is kept.

    Raises ProfileError for a file that cannot be trusted, ConfigError for wrong usage and
    RunFolderError where the folder cannot be read or written, or where another import holds it.
    """
    for path in request.files:
        _refuse_irregular(path)
    if request.into is None:
        return _imported(request)
    # opened before it is locked: what is no run folder gets no lock
    with locked(RunFolder.open(request.into).path):
        return _imported(request)


def _imported(request: Request) -> Imported:
    place = find_place(request)
    digests = {path: _digest(path) for path in request.files}
    files, said = _new_files(request, place, digests)
    names = _free_names(request, place)
    # Passes over the same launches make one profile, else each file does.
    groups = [files] * bool(files) if request.tool in SEVERAL else [(file,) for file in files]
    pairs = tuple((group, _record(request, place, group, name=next(names))) for group in groups)
    restated = tuple(_restated(request, place, digests))
    sentences = [_sentence(record) for _, record in pairs]
    restatements = [_restatement(record) for record in restated]
    folder = _written(request, place, pairs, restated, told=[*sentences, *restatements])
    said += restatements
    for (group, _), sentence in zip(pairs, sentences, strict=True):
        said.append(sentence)
        said += [text for file in group for text in _remarks(request, place, file)]
    records = (*place.of_cell(), *(record for _, record in pairs))
    profiled = {record.arm for record in records if holds_any(record)}
    return Imported(folder=folder, lines=tuple(said), is_alone=len(profiled) < 2)


def _new_files(request: Request, place: Place, digests: Digests) -> tuple[Files, list[str]]:
    """Return the files that the arm does not have, and say which it has."""
    known = {digest for record in place.of_arm(request.arm) for digest in record.sha256.values()}
    files: list[_File] = []
    said = []
    for path in request.files:
        digest = digests[path]
        if digest in known:
            said.append(f"{request.arm}: {path.name} is there already, by its SHA-256; left as is")
            continue
        known.add(digest)
        files.append(_File(path=path, sha256=digest, size_bytes=path.stat().st_size))
    return tuple(files), said


def _restated(request: Request, place: Place, digests: Digests) -> Iterator[ProfileRecord]:
    """Give the records of files named again that are said to cover another number of steps."""
    if not request.steps:
        return
    named = set(digests.values())
    for record in place.of_arm(request.arm):
        if named & set(record.sha256.values()) and record.steps != request.steps:
            yield replace(record, steps=request.steps)


def _refuse_irregular(path: Path) -> None:
    what = irregular(path)
    if what:
        raise ConfigError(
            f"{path} is not a regular file",
            details=what,
            hint="write the profiler's output to a file, and import that",
        )


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read", details=str(error), hint="name files that you can read"
        ) from error


def _free_names(request: Request, place: Place) -> Iterator[str]:
    """Give names for records that the arm does not have yet."""
    taken = {record.name for record in place.of_arm(request.arm)}
    number, name = 1, f"imported-{request.tool}"
    while True:
        if name not in taken:
            yield name
        number += 1
        name = f"imported-{request.tool}-{number}"


def _record(request: Request, place: Place, files: Files, *, name: str) -> ProfileRecord:
    """Read files into one record; raises ProfileError where they cannot be trusted or differ."""
    profile = read(request.tool, tuple(file.path for file in files))
    kept = _kept_names(files)
    return ProfileRecord(
        host=place.cell.host,
        cell=place.cell.id,
        arm=request.arm,
        kind="imported",
        name=name,
        steps=request.steps or profile.steps,
        sha256={name: file.sha256 for name, file in zip(kept, files, strict=True)},
        profile=replace(profile, files=kept),
    )


def _kept_names(files: Files) -> tuple[str, ...]:
    """Return a name for each file; files of one name get their number before it."""
    names: dict[str, None] = {}
    for number, file in enumerate(files, start=1):
        name = safe_name(file.path.name)
        while name in names:
            name = f"{number}-{name}"
        names[name] = None
    return tuple(names)


def _remarks(request: Request, place: Place, file: _File) -> Iterator[str]:
    """Say that a file is not kept, or that another arm has the same."""
    if file.is_large and request.is_copied:
        sizes = f"{file.size_bytes / 2**20:.0f} MiB, above {COPY_LIMIT_BYTES / 2**20:.0f} MiB"
        yield f"{file.path.name} is not copied: {sizes}"
    twins = (record.arm for record in place.of_cell() if file.sha256 in record.sha256.values())
    for arm in dict.fromkeys(twins):
        yield f"{arm} has the same file: between it and {request.arm} nothing can differ"


def _written(
    request: Request,
    place: Place,
    pairs: Pairs,
    restated: tuple[ProfileRecord, ...],
    *,
    told: list[str],
) -> RunFolder:
    """Write everything or nothing, with an event for each text, and return the folder."""
    folders = missing_folders(request.out)  # made by this import, so its to remove
    folder = place.folder or RunFolder.create(request.out, place.run)
    is_changed = place.run != folder.read_run()
    made: list[Path] = []
    try:
        for files, record in pairs:
            copies = _copies(folder, files, record) if request.is_copied else {}
            made += (*copies, record_path(folder, record))
            _copy(copies)
            names = tuple(str(path.relative_to(folder.path)) for path in copies)
            write_profile(folder, replace(record, raw=names))
        if is_changed:
            folder.write_json("run.json", place.run)
    except BaseException:
        if place.folder is None:
            shutil.rmtree(folder.path, ignore_errors=True)
        _undo(folder, made, folders)
        raise
    for record in restated:
        write_profile(folder, record)
    for text in told or ["the run has another reference or cell now"] * is_changed:
        folder.append_event(_event(request, place, text))
    folder.close()
    return folder


def _copies(folder: RunFolder, files: Files, record: ProfileRecord) -> dict[Path, Path]:
    """Return where each file that is not too large goes, beside its record, and its source."""
    target = raw_folder(folder, record)
    pairs = zip(record.sha256, files, strict=True)
    return {target / name: file.path for name, file in pairs if not file.is_large}


def _copy(copies: dict[Path, Path]) -> None:
    for path, source in copies.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
        except OSError as error:
            raise RunFolderError(
                f"{path.name} cannot be copied into the run folder",
                details=str(error),
                hint=f"{write_hint(error)}, or leave the file where it is with --no-copy",
            ) from error


def _undo(folder: RunFolder, made: list[Path], folders: list[Path]) -> None:
    """Remove what this import wrote and nothing else, and the folders that are empty then."""
    for path in made:
        path.unlink(missing_ok=True)
    inside = {up for path in made for up in path.parents if folder.path in up.parents}
    remove_empty([*sorted(inside, key=lambda path: len(path.parts), reverse=True), *folders])


def _event(request: Request, place: Place, text: str) -> Event:
    return Event(
        t=time.time(),
        what="imported",
        host=place.cell.host,
        cell=place.cell.id,
        arm=request.arm,
        text=text,
        values={"command": shell_text(request.command_line)},
    )


def _restatement(record: ProfileRecord) -> str:
    return f"{record.arm}: {record.name} covers {counted(record.steps or 0, 'step')} now"


def _sentence(record: ProfileRecord) -> str:
    """Say what a record brought: launches, operators, steps, and which tool wrote it."""
    profile = record.profile
    assert profile is not None
    if not holds_any(record):
        return (
            f"⚠ {record.arm}: {', '.join(record.sha256)} holds nothing to compare: no kernel, no "
            "copy, no operator and no call"
        )
    operators = len(profile.operators)
    ranges = [row.scope for row in profile.quantities if (row.name, row.status) == _NO_LAUNCHES]
    counts = [f"counters of {scope}" for scope in ranges]
    counts += [launched(profile.kernels)] * bool(profile.kernels and not ranges)
    counts += [counted(operators, "operator")] * bool(operators)
    covered = profile.steps or record.steps
    steps = f" in {counted(covered, 'step')}" if covered else ""
    tool = f"{profile.tool} {profile.version}".rstrip()
    return f"{record.arm}: {', '.join(counts) or 'no kernel'}{steps}, read from {tool}"
