"""The run folder: versioned, append-only, atomic; it connects measuring and reading."""

from __future__ import annotations

import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from envcompare.errors import RunFolderError, WorkloadError, plain
from envcompare.files import (
    MIB,
    RECORD_BYTES,
    irregular,
    read_chunks,
    read_lines,
    read_whole,
    too_large,
)
from envcompare.run_folder import (
    cell_name,
    distinct_name,
    is_disk_full,
    is_run_id,
    missing_folders,
    open_private,
    remove_empty,
    replace_file,
    resume_hint,
    safe_name,
    write_error,
    write_hint,
    write_whole,
)
from envcompare.run_folder.profiles import ProfileRecord, Roofs, impossible_record, impossible_roofs
from envcompare.run_folder.records import (
    SCHEMA,
    ArmRecord,
    Event,
    FingerprintRecord,
    Proof,
    RunRecord,
    Sample,
)
from envcompare.text import listed, parse_toml, shortened, visible_line

PROOF = "proof.json"
_PROFILES = "profiles"
_ROOFS = "roofs"
# Errors from decoding content that is not such a record.
_DAMAGE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_T = TypeVar("_T")
_SAMPLES: msgspec.json.Decoder[Sample] = msgspec.json.Decoder(Sample)
_EVENTS: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class _Head(msgspec.Struct):
    schema: int = SCHEMA


def new_run_id() -> str:
    """Return `YYYYMMDD-HHMMSS-xxxx` (UTC, four random hex digits)."""
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def count_comparisons(arms: tuple[ArmRecord, ...], cells: int) -> int:
    """Return m: cell × timed arm that is neither reference nor control, at least 1.

    A rung of the ladder adds a comparison with the rung below, unless either is the reference. With
    one reference per cell, all cells have the same number.
    """
    compared = (arm for arm in arms if arm.is_timed)
    with_reference = sum(not (arm.is_reference or arm.is_control) for arm in compared)
    rungs = [arm for arm in arms if arm.rung]
    pairs = zip(rungs[1:], rungs, strict=False)
    steps = sum(not (arm.is_reference or below.is_reference) for arm, below in pairs)
    references = max(1, sum(arm.is_reference for arm in arms))
    return max(1, cells * (with_reference + steps) // references)


def references_of(run: RunRecord) -> dict[str, str]:
    """Return the reference of each cell, by the IDs of both."""
    within = {arm.within: arm.id for arm in run.arms if arm.is_reference}
    return {cell.id: within[cell.within] for cell in run.cells}


def arms_within(arms: tuple[ArmRecord, ...], within: str) -> tuple[ArmRecord, ...]:
    """Return the arms of a cell; arms that were only imported belong to every cell."""
    return tuple(arm for arm in arms if not within or arm.within in {"", within})


def configuration_of(run: RunRecord) -> dict[str, Any]:
    """Return the tables of a run's configuration; raises RunFolderError for invalid TOML."""
    try:
        return parse_toml(run.configuration)
    except ValueError as error:
        raise RunFolderError(
            f"the configuration in run.json of {run.run_id} cannot be read",
            details=str(error),
            hint="restore the file from a copy, or run again",
        ) from error


def addresses_of(run: RunRecord) -> dict[str, str]:
    """Return what `--hosts` takes for each host of a run: empty if a job chose it.

    If ranks run on several hosts, the first one has the addresses of all. Unknown hosts are left
    out.
    """
    try:
        content = configuration_of(run)
    except RunFolderError:
        return {}
    labels = tuple(dict.fromkeys(cell.host for cell in run.cells))
    if "allocation" in content:
        return dict.fromkeys(labels, "")
    given = content.get("hosts", [])
    if isinstance(given, dict):
        tables = (table if isinstance(table, dict) else {} for table in given.values())
        given = [table.get("address", name) for name, table in zip(given, tables, strict=True)]
    addresses = tuple(map(str, given if isinstance(given, list) else listed(str(given))))
    if any(cell.hosts for cell in run.cells):
        addresses = (",".join(addresses),)
    return dict(zip(labels, addresses, strict=True)) if len(labels) == len(addresses) else {}


def json_bytes(content: object) -> bytes:
    """Return a record as JSON text in bytes."""
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Lines read from a .jsonl file; `torn` counts the unreadable ones at its end."""

    samples: tuple[Sample, ...] = ()
    events: tuple[Event, ...] = ()
    torn: int = 0


@dataclass(slots=True)
class RunFolder:
    """Write and read one run; every appended line is on disk when the call returns."""

    path: Path
    listener: Callable[[bytes], None] | None = None  # receives each event's line once it is written
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _files: dict[str, BinaryIO] = field(default_factory=dict)
    _held: list[Event] | None = None  # events held back; None if they are not
    _run_id: str = ""  # set at the first request

    @classmethod
    def create(cls, out: Path, run: RunRecord) -> RunFolder:
        """Create `out/<run id>/` with run.json in it, private to this user.

        Raises RunFolderError if the folder exists or cannot be created.
        """
        folder = cls(out / run.run_id)
        missing = missing_folders(folder.path)
        try:
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=False)
            folder.write_json("run.json", run)
        except OSError as error:
            remove_empty(missing)
            raise RunFolderError(
                f"the run folder {folder.path} cannot be made",
                details=plain(error),
                hint=write_hint(error),
            ) from error
        except RunFolderError:
            remove_empty(missing)
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run folder; raises RunFolderError if it is not one."""
        if not (path / "run.json").is_file():
            why = "it is a file" if path.exists() else "there is no such folder"
            if path.is_dir():
                what = irregular(path / "run.json")
                why = f"its run.json is no file: {what}" if what else "it has no run.json"
            raise RunFolderError(
                f"{path} is not a run folder",
                details=why,
                hint="name the folder that `envcompare run` printed, such as results/<run id>",
            )
        return cls(path)

    @property
    def run_id(self) -> str:
        """Return the ID of the run, which identifies all that it left on hosts.

        Raises RunFolderError if run.json has no valid ID.
        """
        if not self._run_id:
            run_id = self.read_run().run_id
            if not is_run_id(run_id):
                raise RunFolderError(
                    f"{self.path / 'run.json'} holds no ID that a run can have",
                    details=f"its run_id is {visible_line(shortened(repr(run_id), most=100))}",
                    hint="restore the file from a copy; what a run left on a host is found by "
                    "its ID, and by another ID other things would be removed",
                )
            self._run_id = run_id
        return self._run_id

    def append_sample(self, sample: Sample) -> None:
        """Add one line to samples.jsonl and sync it."""
        line = msgspec.json.encode(sample)
        try:
            # A line that cannot be decoded would make the whole run unreadable.
            _SAMPLES.decode(line)
        except _DAMAGE as error:
            raise WorkloadError(
                f"a measurement in {sample.cell} cannot be stored: {error}", phase="protocol"
            ) from error
        self._append("samples.jsonl", line)

    def append_event(self, event: Event) -> None:
        """Add one line to events.jsonl and sync it, unless events are held back."""
        if self._held is not None:
            self._held.append(event)
            return
        line = msgspec.json.encode(event)
        self._append("events.jsonl", line)
        if self.listener is not None:
            self.listener(line)

    @contextmanager
    def holding_events(self) -> Iterator[None]:
        """Write the events of a block once it has succeeded; if it raises, none is written."""
        held: list[Event] = []
        self._held = held
        try:
            yield
        finally:
            self._held = None
        for event in held:
            self.append_event(event)

    def write_fingerprint(self, record: FingerprintRecord, *, part: int = 0) -> None:
        """Write fingerprints/<host>/<arm>/<cell>.json, since the workload decides what is loaded.

        A later `part` of a resumed run writes to <arm>/later/<cell>-<part>.json instead.
        """
        cell = cell_name(record.cell.removeprefix(f"{record.host}/"))
        folder = f"fingerprints/{distinct_name(record.host)}/{distinct_name(record.arm)}"
        name = f"later/{cell}-{part}" if part else cell
        self.write_json(f"{folder}/{name}.json", record)

    def raw_path(self, cell: str, arm: str, name: str) -> Path:
        """Return the path of a file among the profiles of an arm, and create its folder."""
        return self.made(self._profiles_of(cell, arm) / safe_name(name))

    def imported_path(self, record: ProfileRecord, name: str) -> Path:
        """Return the path of a profile's source file; JSON traces there are not records."""
        return self._profiles_of(record.cell, record.arm) / safe_name(record.name) / name

    def profile_path(self, record: ProfileRecord) -> Path:
        """Return the path of profiles/<cell>/<arm>/<name>.json."""
        return self._profiles_of(record.cell, record.arm) / safe_name(f"{record.name}.json")

    def _profiles_of(self, cell: str, arm: str) -> Path:
        return self.path / _PROFILES / cell_name(cell) / distinct_name(arm)

    def write_profile(self, record: ProfileRecord) -> None:
        """Write a profile; raises RunFolderError if it would be unreadable or writing fails."""
        path = self.profile_path(record)
        content = json_bytes(record)
        try:
            kept = _decoded(path, content, msgspec.json.Decoder(ProfileRecord))
        except _DAMAGE as error:
            raise _unreadable(path, error) from error
        _check_plausible(path, impossible_record(kept))
        if len(content) > RECORD_BYTES:
            raise _unreadable(path, too_large(path, len(content), RECORD_BYTES))
        self.write_bytes(str(path.relative_to(self.path)), content)

    def write_roofs(self, roofs: Roofs) -> None:
        """Write profiles/roofs/<host>.json; raises RunFolderError if writing fails."""
        self.write_json(f"{_PROFILES}/{_ROOFS}/{distinct_name(roofs.host)}.json", roofs)

    def write_json(self, name: str, content: object) -> None:
        """Write a file atomically (temporary name, sync, rename)."""
        self.write_bytes(name, json_bytes(content))

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write bytes atomically; raises RunFolderError if writing fails."""
        target = self.path / name
        try:
            replace_file(self.made(target), content, mode=0o600)
        except OSError as error:
            raise write_error(target, error) from error

    def log_path(self, host: str, cell: str, arm: str) -> Path:
        """Return the path of an arm's log, and create its folder."""
        place = self.path / "logs" / distinct_name(host) / cell_name(cell)
        return self.made(place / f"{distinct_name(arm)}.log")

    def made(self, path: Path) -> Path:
        """Return the path of a file of the run, and create its folder; raises as `check_place`."""
        self.check_place(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def check_place(self, path: Path) -> None:
        """Raise RunFolderError if a link leads out of the run folder.

        Others may write to the folder, so nothing is written through a link in it.
        """
        below = path.relative_to(self.path)
        for place in (path, *(self.path / up for up in below.parents if up.name)):
            if place.is_symlink():
                raise RunFolderError(
                    f"{path} cannot be written",
                    details=f"{place} is a link",
                    hint="put the file or folder itself there in place of the link",
                )

    def file_names(self) -> tuple[str, ...]:
        """Return the relative names of all visible files in the folder, sorted."""
        # Hidden files are the lock, and parts of files that are still being written.
        files = (p for p in self.path.rglob("*") if p.is_file() and not p.name.startswith("."))
        return tuple(sorted(str(path.relative_to(self.path)) for path in files))

    def read_run(self) -> RunRecord:
        """Read run.json; raises RunFolderError for damage, another schema or inconsistent arms."""
        run = self.read_json("run.json", RunRecord)
        why = _disorder(run)
        if why:
            raise RunFolderError(
                f"{self.path / 'run.json'} cannot be used: {why}",
                details="one environment must be the reference, and each must have its own name",
                hint="restore the file from a copy, or measure or import again",
            )
        return run

    def read_proof(self) -> Proof | None:
        """Read what was proven of a cause; None if nothing was tried. Raises as `read_run`."""
        return self.read_json(PROOF, Proof) if (self.path / PROOF).is_file() else None

    def read_fingerprints(self) -> tuple[FingerprintRecord, ...]:
        """Read the first fingerprint of each arm in each cell, sorted by path."""
        return self._read_fingerprints(_below(self.path / "fingerprints", levels=3))

    def read_later_fingerprints(self) -> tuple[FingerprintRecord, ...]:
        """Read the fingerprints that resumed runs found to be different, sorted by path."""
        paths = _below(self.path / "fingerprints", levels=4)
        return self._read_fingerprints(path for path in paths if path.parent.name == "later")

    def _read_fingerprints(self, paths: Iterable[Path]) -> tuple[FingerprintRecord, ...]:
        names = sorted(path.relative_to(self.path) for path in paths if path.suffix == ".json")
        return tuple(self.read_json(str(name), FingerprintRecord) for name in names)

    def read_profiles(self, cell: str | None = None) -> tuple[ProfileRecord, ...]:
        """Read all profiles, or those of a cell, by path.

        Raises RunFolderError for a damaged record or an impossible number.
        """
        cells = "*" if cell is None else cell_name(cell)
        files = (self.path / _PROFILES).glob(f"{cells}/*/*.json")
        # sort by name without its suffix: `imported-nsys` comes before `imported-nsys-2`
        paths = sorted(files, key=lambda path: (path.parent, path.stem))
        return tuple(self._read_plausible(p, ProfileRecord, impossible_record) for p in paths)

    def read_roofs(self) -> tuple[Roofs, ...]:
        """Read the roofs of all hosts, sorted by path; raises as `read_profiles`."""
        paths = sorted((self.path / _PROFILES / _ROOFS).glob("*.json"))
        return tuple(self._read_plausible(path, Roofs, impossible_roofs) for path in paths)

    def _read_plausible(
        self, path: Path, kind: type[_T], impossible: Callable[[_T], Iterator[str]]
    ) -> _T:
        record = self.read_json(str(path.relative_to(self.path)), kind)
        _check_plausible(path, impossible(record))
        return record

    def read_samples(self) -> Journal:
        """Read samples.jsonl; a torn last line is dropped and counted."""
        samples, torn = self._read_lines("samples.jsonl", _SAMPLES)
        return Journal(samples=samples, torn=torn)

    def read_events(self) -> Journal:
        """Read events.jsonl; a torn last line is dropped and counted."""
        events, torn = self._read_lines("events.jsonl", _EVENTS)
        return Journal(events=events, torn=torn)

    def count_samples(self) -> int:
        """Return the number of complete lines in samples.jsonl."""
        path = self.path / "samples.jsonl"
        return sum(chunk.count(b"\n") for chunk in read_chunks(path)) if path.exists() else 0

    def close(self) -> None:
        """Close the journals; safe to repeat."""
        with self._lock:
            for stream in self._files.values():
                stream.close()
            self._files.clear()

    def _append(self, name: str, line: bytes) -> None:
        with self._lock:
            try:
                stream = self._files.get(name) or self._open_journal(name)
                write_whole(stream, line + b"\n")
            except OSError as error:
                known = write_error(self.path / name, error)
                # imports add events, but no samples, and are not resumed
                if name == "samples.jsonl" and is_disk_full(error):
                    known.hint = resume_hint(self.path)
                raise known from error

    def _open_journal(self, name: str) -> BinaryIO:
        """Open for appending, after removing a torn line, so that no line merges with it."""
        path = self.path / name
        self.check_place(path)
        _refuse_irregular(path)
        # Without a buffer, so that `write_whole` sees a short write.
        stream = open(  # noqa: SIM115 — kept open; opener
            path, "a+b", buffering=0, opener=open_private
        )
        os.truncate(stream.fileno(), _end_of_lines(stream))
        stream.seek(0, os.SEEK_END)
        self._files[name] = stream
        return stream

    def read_json(self, name: str, kind: type[_T]) -> _T:
        """Read a file of one type; raises RunFolderError for damage or an unknown schema."""
        path = self.path / name
        _refuse_irregular(path)
        try:
            content = read_whole(path, most=RECORD_BYTES)
            return _decoded(path, content, msgspec.json.Decoder(kind))
        except (OSError, *_DAMAGE) as error:
            raise _unreadable(path, error) from error

    def _read_lines(
        self, name: str, decoder: msgspec.json.Decoder[_T]
    ) -> tuple[tuple[_T, ...], int]:
        path = self.path / name
        _refuse_irregular(path)
        records: list[_T] = []
        try:
            for line in read_lines(path):
                if not line.endswith(b"\n"):
                    return tuple(records), 1
                records.append(_decoded(path, line, decoder))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _unreadable(path, error) from error
        except _DAMAGE as error:
            raise RunFolderError(
                f"{path} is damaged in line {len(records) + 1}",
                details=str(error),
                hint="remove that line, or restore the file from a copy",
            ) from error
        return tuple(records), 0


def _decoded(path: Path, content: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    """Return a record; raises RunFolderError for another schema, and one of _DAMAGE for damage."""
    try:
        return decoder.decode(content)
    except msgspec.ValidationError:
        schema = msgspec.json.decode(content, type=_Head).schema
        if schema == SCHEMA:
            raise
        raise RunFolderError(
            f"{path} has schema {schema}",
            details=f"this envcompare reads schema {SCHEMA} only",
            hint="use the version of envcompare that wrote it; run.json names it",
        ) from None


def _check_plausible(path: Path, reasons: Iterator[str]) -> None:
    why = next(reasons, None)
    if why is not None:
        raise RunFolderError(
            f"{path} cannot be trusted",
            details=visible_line(shortened(why, most=600)),
            hint="restore the file from a copy, or import or measure again",
        )


def _unreadable(path: Path, error: Exception) -> RunFolderError:
    return RunFolderError(
        f"{path} cannot be read",
        details=plain(error),
        hint="restore the file from a copy, or measure again",
    )


def _end_of_lines(stream: BinaryIO) -> int:
    """Return the end of the last complete line of a journal."""
    place = stream.seek(0, os.SEEK_END)
    # From the end, since a journal may have gigabytes.
    while place:
        begin = max(0, place - MIB)
        stream.seek(begin)
        if (end := stream.read(place - begin).rfind(b"\n")) >= 0:
            return begin + end + 1
        place = begin
    return 0


def _below(path: Path, *, levels: int) -> Iterator[Path]:
    """Yield the paths this many levels below a path; raises OSError for unreadable folders."""
    if not levels:
        yield path
    elif path.is_dir():
        for child in path.iterdir():
            yield from _below(child, levels=levels - 1)


def _disorder(run: RunRecord) -> str:
    """State why arms or cells of a run are ambiguous or not comparable; empty if they are fine."""
    references = Counter(arm.within for arm in run.arms if arm.is_reference)
    for what, ids in (
        ("environment", [arm.id for arm in run.arms]),
        ("cell", [cell.id for cell in run.cells]),
    ):
        if len(set(ids)) < len(ids):
            return f"it names one {what} twice"
    if not run.arms:
        return "it names no environment"
    lacking = {cell.within for cell in run.cells} - references.keys() or not references
    count = references.total()
    return f"it names {count} references" if lacking or count > len(references) else ""


def _refuse_irregular(path: Path) -> None:
    what = irregular(path)
    if what:
        raise RunFolderError(
            f"{path} is not a regular file",
            details=what,
            hint="restore the file from a copy",
        )
