"""Import profiler files of any origin into a run folder (`envcompare import`)."""

from __future__ import annotations

import dataclasses
import itertools
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import replace

from envcompare.analysis.timing.runfiles import read_files
from envcompare.bundled import __version__, tool_commit
from envcompare.errors import ConfigError, ProfileError, RunFolderError, plain
from envcompare.files import irregular, opened
from envcompare.profile_files import SEVERAL, check, read
from envcompare.profile_files.derive import launch_text
from envcompare.profile_files.nsysexport import secret_in_report
from envcompare.run_folder import (
    locked,
    missing_folders,
    open_private,
    remove_empty,
    safe_name,
    write_hint,
)
from envcompare.run_folder.profiles import ProfileRecord, Tool, graphs_of, hidden_graphs
from envcompare.run_folder.records import ArmRecord, CellRecord, Design, RunRecord, event_now
from envcompare.run_folder.results import RunFolder, new_run_id
from envcompare.text import counted, shell_text
from envcompare.transport import file_sha256

COPY_LIMIT_BYTES = 256 * 2**20
_HOST = "imported"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
_LONGEST_NAME = 100
_A_WORKLOAD = "a workload, as in --workload resnet50"
_NO_DESIGN = Design(
    preset="default", margin=0.02, target=0.01, budget_s=0, min_restarts=0, threads=0
)
"""A placeholder for the design of a timed run; no verdict uses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The run folder, the messages, and whether there is nothing to compare with yet."""

    folder: RunFolder
    lines: tuple[str, ...]
    is_alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file that is new to the arm."""

    path: Path
    sha256: str
    state: os.stat_result  # before it was read
    secret: str = ""  # name of a secret in it

    @property
    def is_large(self) -> bool:
        # too large to be copied
        return self.state.st_size > COPY_LIMIT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Addition:
    """A new record and its files: one file, or several passes over the same launches."""

    files: tuple[_File, ...]
    record: ProfileRecord

    def check_same(self) -> None:
        """Raise ProfileError if a file changed since it was read."""
        for file in self.files:
            now = file.path.stat()
            if (now.st_size, now.st_mtime_ns) != (file.state.st_size, file.state.st_mtime_ns):
                raise ProfileError(
                    f"{file.path} changed while it was read",
                    hint="import the file again when the profiler has ended",
                )

    def copies(self, folder: RunFolder) -> dict[Path, Path]:
        """Return target and source path of each file that may be kept."""
        pairs = zip(self.record.sha256, self.files, strict=True)
        return {
            folder.imported_path(self.record, name): file.path
            for name, file in pairs
            if not file.is_large and not file.secret
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The updated run, the target cell, and the records that it already has."""

    run: RunRecord
    cell: CellRecord
    folder: RunFolder | None = None
    records: tuple[ProfileRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """What to import, as which arm, and into which run."""

    tool: Tool
    arm: str
    files: tuple[Path, ...]
    out: Path
    into: Path | None = None  # None makes a new run folder under `out`
    steps: int | None = None
    workload: str | None = None
    cell: str | None = None
    reference: str | None = None
    is_copied: bool = True
    command_line: tuple[str, ...] = ()

    def run(self) -> Imported:
        """Read all files and write them into the run folder; nothing is kept if one is refused.

        Raises ProfileError for a file that cannot be trusted, ConfigError for wrong usage and
        RunFolderError if the folder cannot be read or written, or another process writes into it.
        """
        for path in self.files:
            if what := irregular(path):
                raise ConfigError(
                    f"{path} is not a regular file",
                    details=what,
                    hint="write the output to a file, and import that",
                )
        if self.into is None:
            return self._imported()
        # opened before it is locked, so that only run folders get a lock
        with locked(RunFolder.open(self.into).path, by="import") as doubt:
            done = self._imported()
        return dataclasses.replace(done, lines=(doubt, *done.lines)) if doubt else done

    def _imported(self) -> Imported:
        place = self._place()
        known = [record for record in place.records if record.arm == self.arm]
        requested = [_file(self.tool, path) for path in self.files]
        files, lines = self._new_files(known, requested)
        taken = {record.name for record in known}
        stem = f"imported-{self.tool}"
        numbered = (f"{stem}-{number}" for number in itertools.count(2))
        names = (name for name in itertools.chain([stem], numbered) if name not in taken)
        # Passes over the same launches make one profile; else each file is a profile.
        groups = [files] * bool(files) if self.tool in SEVERAL else [(file,) for file in files]
        additions = [self._addition(place.cell, group, next(names)) for group in groups]
        digests = {file.sha256 for file in requested}
        changed = [  # imported again with another number of steps
            replace(record, steps=self.steps)
            for record in known
            if self.steps and record.steps != self.steps and digests & {*record.sha256.values()}
        ]
        sentences = [_sentence(addition.record) for addition in additions]
        restatements = [_restatement(record) for record in changed]
        folder = self._write(place, additions, changed, messages=[*sentences, *restatements])
        lines += restatements
        for addition, sentence in zip(additions, sentences, strict=True):
            lines.append(sentence)
            lines += [text for file in addition.files for text in self._remarks(place, file)]
        records = (*place.records, *(addition.record for addition in additions))
        profiled = {record.arm for record in records if _has_content(record)}
        return Imported(folder=folder, lines=tuple(lines), is_alone=len(profiled) < 2)

    def _place(self) -> _Place:
        """Return the target of the files without writing anything.

        Raises ConfigError for an unusable name, RunFolderError for an unreadable run.
        """
        _check_name(self.arm, "an environment, as in --env docker or --env gpu01-docker")
        if self.into is None:
            cell = _cell(self.workload)
            run = RunRecord(
                run_id=new_run_id(),
                created=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
                seed=0,
                tool_version=__version__,
                tool_commit=tool_commit(),
                command_line=self.command_line,
                design=_NO_DESIGN,
                arms=(replace(_arm(self.arm), is_reference=True),),
                cells=(cell,),
                controller={"python": platform.python_version(), "system": platform.platform()},
            )
            return _Place(run=_with_reference(run, self.reference), cell=cell)
        folder = RunFolder.open(self.into)
        # Reading fails here, before anything is written, if no report of the run can be made.
        files = read_files(folder)
        run = folder.read_run()
        cell = self._target_cell(run)
        if cell not in run.cells:
            run = replace(run, cells=(*run.cells, cell))
        if all(arm.id != self.arm for arm in run.arms):
            for arm in run.arms:
                if arm.id.casefold() == self.arm.casefold():
                    # On a disk that ignores case, both arms would have the same files.
                    raise ConfigError(
                        f"{self.arm} differs from {arm.id} only in case",
                        hint=f"use --env {arm.id}, or another name",
                    )
            run = replace(run, arms=(*run.arms, _arm(self.arm)))
        run = _with_reference(run, self.reference)
        records = tuple(record for record in files.profiles if record.cell == cell.id)
        return _Place(run=run, cell=cell, folder=folder, records=records)

    def _target_cell(self, run: RunRecord) -> CellRecord:
        """Return the requested cell; an imported run gets a new cell for a new name."""
        if self.workload is not None:
            _check_name(self.workload, _A_WORKLOAD)
        wanted = self.workload if self.cell is None else self.cell
        fitting = [cell for cell in run.cells if wanted in (None, cell.id, cell.workload)]
        if not fitting and self.cell is None and not _is_timed(run):
            return _cell(self.workload)
        if len(fitting) == 1:
            return fitting[0]
        raise ConfigError(
            "several cells of the run match" if fitting else f"the run has no {wanted}",
            details=f"its cells are {', '.join(cell.id for cell in run.cells)}",
            hint="name one with --cell",
        )

    def _new_files(
        self, known: list[ProfileRecord], requested: list[_File]
    ) -> tuple[tuple[_File, ...], list[str]]:
        """Return the files that are new to the arm, and messages on the others."""
        there = {digest for record in known for digest in record.sha256.values()}
        files: list[_File] = []
        messages = []
        for file in requested:
            if file.sha256 in there:
                name = file.path.name
                messages.append(f"{self.arm}: {name} is already imported (same SHA-256)")
                continue
            there.add(file.sha256)
            files.append(file)
        return tuple(files), messages

    def _addition(self, cell: CellRecord, files: tuple[_File, ...], name: str) -> _Addition:
        """Read files into a record; raises ProfileError if they differ or cannot be trusted."""
        profile = read(self.tool, tuple(file.path for file in files))
        files = tuple(
            dataclasses.replace(file, secret=secret_in_report(file.path))
            if self.is_copied and not file.is_large
            else file
            for file in files
        )
        kept = _kept_names(files)
        record = ProfileRecord(
            host=cell.host,
            cell=cell.id,
            arm=self.arm,
            kind="imported",
            name=name,
            steps=self.steps or profile.steps,
            sha256={name: file.sha256 for name, file in zip(kept, files, strict=True)},
            profile=replace(profile, files=kept),
        )
        return _Addition(files=files, record=record)

    def _remarks(self, place: _Place, file: _File) -> Iterator[str]:
        """Yield that a file is not kept, or that another arm has the same file."""
        if file.is_large and self.is_copied:
            size_mib, limit_mib = file.state.st_size / 2**20, COPY_LIMIT_BYTES / 2**20
            yield f"{file.path.name} is not copied: {size_mib:.0f} MiB, above {limit_mib:.0f} MiB"
        if file.secret:
            yield f"{file.path.name} is not copied: it holds {file.secret}, which may be a secret"
        twins = (record.arm for record in place.records if file.sha256 in record.sha256.values())
        for arm in dict.fromkeys(twins):
            yield f"{arm} has the same file, so {arm} and {self.arm} cannot differ"

    def _write(
        self,
        place: _Place,
        additions: list[_Addition],
        changed: list[ProfileRecord],
        *,
        messages: list[str],
    ) -> RunFolder:
        """Write everything or nothing, with an event for each message, and return the folder."""
        # The folders that this import makes are its to remove.
        folders = missing_folders(self.out)
        folder = place.folder or RunFolder.create(self.out, place.run)
        is_changed = place.run != folder.read_run()
        shared = (folder.path / "run.json", folder.path / "events.jsonl")
        made: list[Path] = []
        try:
            for addition in additions:
                copies = addition.copies(folder) if self.is_copied else {}
                for path in (*copies, folder.profile_path(addition.record), *shared):
                    folder.check_place(path)
                made += (*copies, folder.profile_path(addition.record))
                _copy(copies)
                # After the copy, because the profiler may still be writing the file.
                addition.check_same()
                names = tuple(str(path.relative_to(folder.path)) for path in copies)
                folder.write_profile(replace(addition.record, raw=names))
            if is_changed:
                folder.write_json("run.json", place.run)
        except BaseException:
            # Also after Ctrl-C, since an import writes everything or nothing.
            if place.folder is None:
                shutil.rmtree(folder.path, ignore_errors=True)
            _undo(folder, made, folders)
            raise
        for record in changed:
            folder.write_profile(record)
        for text in messages or ["the reference or the cells of the run changed"] * is_changed:
            event = event_now(
                "imported",
                host=place.cell.host,
                cell=place.cell.id,
                arm=self.arm,
                text=text,
                values={"command": shell_text(self.command_line)},
            )
            folder.append_event(event)
        folder.close()
        return folder


def _file(tool: Tool, path: Path) -> _File:
    try:
        with opened(path):
            state = path.stat()
        check(tool, path)
        return _File(path=path, sha256=file_sha256(path), state=state)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read", details=plain(error), hint="name files that you can read"
        ) from error


def _kept_names(files: tuple[_File, ...]) -> tuple[str, ...]:
    """Return a name for each file; duplicates get a number as prefix."""
    names: dict[str, None] = {}
    for number, file in enumerate(files, start=1):
        name = safe_name(file.path.name)
        while name in names:
            name = f"{number}-{name}"
        names[name] = None
    return tuple(names)


def _copy(copies: dict[Path, Path]) -> None:
    for path, source in copies.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A killed import may have left the file, which mode x would not overwrite.
            path.unlink(missing_ok=True)
            with opened(source) as file, open(path, "xb", opener=open_private) as copy:
                shutil.copyfileobj(file, copy)
        except OSError as error:
            raise RunFolderError(
                f"{path.name} cannot be copied into the run folder",
                details=plain(error),
                hint=f"{write_hint(error)}, or leave the file where it is with --no-copy",
            ) from error


def _undo(folder: RunFolder, made: list[Path], folders: list[Path]) -> None:
    """Remove what this import wrote, and folders that become empty."""
    for path in made:
        path.unlink(missing_ok=True)
    inside = {up for path in made for up in path.parents if folder.path in up.parents}
    remove_empty([*sorted(inside, key=lambda path: len(path.parts), reverse=True), *folders])


def _arm(name: str) -> ArmRecord:
    return ArmRecord(id=name, environment=name, is_timed=False)


def _cell(workload: str | None) -> CellRecord:
    name = "workload" if workload is None else workload
    _check_name(name, _A_WORKLOAD)
    return CellRecord(id=f"{_HOST}/{name}/default", host=_HOST, workload=name)


def _with_reference(run: RunRecord, name: str | None) -> RunRecord:
    """Return the run with the requested reference; raises ConfigError if impossible."""
    if name is None:
        return run
    if all(arm.id != name for arm in run.arms):
        raise ConfigError(
            f"--reference {name} is not an environment of the run",
            hint=f"one of {', '.join(arm.id for arm in run.arms)}",
        )
    arms = tuple(replace(arm, is_reference=arm.id == name) for arm in run.arms)
    if arms != run.arms and _is_timed(run):
        raise ConfigError(
            "the reference of a run that was timed cannot be changed",
            hint="leave --reference out",
        )
    return replace(run, arms=arms)


def _is_timed(run: RunRecord) -> bool:
    return any(arm.is_timed for arm in run.arms)


def _check_name(name: str, what: str) -> None:
    if len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"`{name[:20]}…` is too long to name {what.partition(',')[0]}",
            details=f"it has {len(name)} characters; the limit is {_LONGEST_NAME}",
            hint=f"give a shorter name {what.partition(', ')[2]}",
        )
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"`{name}` cannot name {what.partition(',')[0]}",
            hint=f"use letters, digits and . _ @ - to name {what}",
        )


def _restatement(record: ProfileRecord) -> str:
    """Return the message on a record with another number of steps, and which number is used."""
    name, own = f"{record.arm}: {record.name}", record.profile and record.profile.steps
    if not own:
        return f"{name} now covers {counted(record.steps or 0, 'step')}"
    unused = f"; --steps {record.steps} is not used" * (own != record.steps)
    return f"{name} covers {counted(own, 'step')}, which its file counts{unused}"


def _has_content(record: ProfileRecord) -> bool:
    """Return whether the record has any kernel, copy, operator, call or counter."""
    seen = record.profile
    return seen is not None and bool(
        seen.kernels
        or seen.copies
        or seen.operators
        or seen.api_calls
        or any(quantity.value for quantity in seen.quantities)
    )


def _sentence(record: ProfileRecord) -> str:
    """Return the message on a new record: launches, operators, steps and tool."""
    profile = record.profile
    assert profile is not None
    if not _has_content(record):
        return (
            f"⚠ {record.arm}: {', '.join(record.sha256)} has nothing to compare: no kernel, copy, "
            "operator or call"
        )
    operators = len(profile.operators)
    hiding = hidden_graphs(profile)
    missing = () if hiding else profile.quantities
    # a trace with counters of profiler ranges has no launches
    without = ("launch_count", "missing")
    ranges = [row.scope for row in missing if (row.name, row.status) == without]
    counts = [f"counters of {scope}" for scope in ranges]
    counts += [launch_text(profile.kernels)] * bool(profile.kernels and not ranges)
    counts += [f"hidden kernels of {graphs_of(hiding)}"] if hiding else []
    counts += [counted(operators, "operator")] * bool(operators)
    covered = profile.steps or record.steps
    steps = f" in {counted(covered, 'step')}" if covered else ""
    ranks = (note.values for note in profile.notes if note.kind == "distributed")
    steps += next(
        (f" on rank {values.get('rank')} of {values.get('world_size')}" for values in ranks), ""
    )
    tool = f"{profile.tool} {profile.version}".rstrip()
    return f"{record.arm}: {', '.join(counts) or 'no kernel'}{steps}, read from {tool}"
