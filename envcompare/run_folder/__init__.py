"""The run folder: its files on disk, with their names, atomic writes, errors, and the lock.

One process at a time writes into a run folder, and other processes can identify it.

Also: the durations in the events of a run, and which events and samples are still valid.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import os
import platform
import re
import secrets
import shlex
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal

import msgspec

from envcompare.errors import RunFolderError, plain
from envcompare.run_folder.records import (
    Block,
    Design,
    Event,
    EventKind,
    MarkedBlock,
    OfRestart,
    Sample,
)
from envcompare.text import age_text, visible_line

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._=,-]+")
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_MARKED: Final = re.compile(r".*-[0-9a-f]{10}", re.DOTALL)
# A file name has at most 255 bytes (NAME_MAX), and suffixes follow.
_LONGEST: Final = 150
LOCK_NAME: Final = ".lock"
Writer = Literal["run", "import"]
# Imports of many ranks may run at once on a busy machine.
_IMPORT_LIMIT_S: Final = 300.0
# A process that asks for the state of a run holds the lock for a moment.
_RUN_LIMIT_S: Final = 2.0
_PAUSE_S: Final = 0.05
_NO_LOCKS: Final = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP}
"""The errors of a network file system without locks; there the user must take turns."""


def missing_folders(path: Path) -> list[Path]:
    """Return the missing folders of a path, the lowest first."""
    return [one for one in (path, *path.parents) if not one.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders in this order; folders with content stay."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def open_private(path: str, flags: int) -> int:
    """Open a file, as an `opener` of `open`; a new file is private to this user.

    It does not follow links, which may lead to a user's file outside the run.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def replace_file(target: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file atomically: a temporary file next to it, sync, rename. Raises OSError.

    The user's umask applies to the mode, as for any new file.
    """
    # two writers must not write into the same partial file
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            # rename(2) is atomic, but without this a crash could leave an empty file
            os.fsync(stream.fileno())
        partial.replace(target)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_whole(stream: BinaryIO, line: bytes) -> None:
    """Write the whole line or none of it: a full disk must not leave half a line."""
    before = stream.tell()
    try:
        written = stream.write(line)
        os.fsync(stream.fileno())
    except OSError:
        os.truncate(stream.fileno(), before)
        raise
    # write(2) may be short on a nearly full disk.
    if written != len(line):
        os.truncate(stream.fileno(), before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_error(
    path: Path, error: OSError, *, what: str = "written", option: str = "--out"
) -> RunFolderError:
    """Return the error for a failed write, with a hint that fits its cause."""
    hint = write_hint(error, option=option)
    return RunFolderError(f"{path} cannot be {what}", details=plain(error), hint=hint)


def is_disk_full(error: BaseException | None) -> bool:
    """Tell whether an error, or what caused it, is a full disk or a used-up quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return True
        error = error.__cause__
    return False


def resume_hint(folder: Path) -> str:
    """Return the hint for a run whose disk was full: what it lacks is still measured."""
    command = f"envcompare run --resume {shlex.quote(str(folder))}"
    return f"once there is room, continue with `{command}`"


def write_hint(error: OSError, *, option: str = "--out") -> str:
    """Return the hint for a failed write; `option` is the one that names the place."""
    other_place = f"choose another place with {option}"
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return f"free some disk space, or {other_place}; written files are kept"
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return f"make the folder writable for this user, or choose another place with {option}"
    if error.errno == errno.ENAMETOOLONG:
        return f"use shorter names, or a shorter path with {option}"
    return other_place


def is_run_id(text: str) -> bool:
    """Tell whether a text is a valid run ID: a single name, for files and for the sweep."""
    return _RUN_ID.fullmatch(text) is not None


def safe_name(text: str) -> str:
    """Return a file name made from `text`; equal texts give equal names."""
    return _UNSAFE.sub("_", text).strip(".") or "_"


def distinct_name(text: str) -> str:
    """Return a file name that no other text gives, for an arm or a host.

    A safe text stays unchanged; otherwise part of its SHA-256 makes the name unique.
    """
    is_plain = text == safe_name(text) and not _MARKED.fullmatch(text)
    return text if is_plain and len(text) <= _LONGEST else _marked(text)


def cell_name(cell: str) -> str:
    """Return a file name that no other cell gives; slashes become underscores."""
    plain = cell.replace("/", "_")
    return plain if "_" not in cell and distinct_name(plain) == plain else _marked(cell)


def _marked(text: str) -> str:
    # A lone surrogate, as in a name that is not UTF-8 (PEP 383), cannot be encoded otherwise.
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{safe_name(text)[:_LONGEST]}-{digest[:10]}"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds a run folder; `since` is UTC seconds since 1970."""

    command: Writer
    pid: int
    host: str
    since: float

    @property
    def place(self) -> str:
        """Describe the process, from the fields of the lock."""
        if not self.pid:
            return "another process"
        return f"process {self.pid} on {visible_line(self.host)}"

    @property
    def age(self) -> str:
        """Return how long it has held the folder, in words."""
        return age_text(max(0.0, time.time() - self.since))


@contextmanager
def locked(folder: Path, *, by: Writer, limit_s: float | None = None) -> Iterator[str]:
    """Lock a folder against other processes; the system releases it when a process ends.

    Yields an empty text, or a warning if the file system has no locks, as on some networks.

    An import waits for another import, which is short; nothing waits for a run. Raises
    RunFolderError with the owner if another process holds the lock beyond the limit.
    """
    usual_s = _RUN_LIMIT_S if by == "run" else _IMPORT_LIMIT_S
    path = folder / LOCK_NAME
    # opening a named pipe in place of the lock must not wait (open(2), O_NONBLOCK)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        raise write_error(path, error) from error
    try:
        doubt = _wait(descriptor, folder, limit_s=usual_s if limit_s is None else limit_s)
        _sign(descriptor, by)
        yield doubt
    finally:
        os.close(descriptor)


def owner_of(folder: Path) -> Owner | None:
    """Return the process that writes into a folder now; None if there is none or it is unknown."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        # A shared lock fails only if a writer holds the exclusive one, and does not disturb other
        # readers.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        unknown = Owner(command="run", pid=0, host="", since=time.time())
        return _signed(descriptor) or unknown
    except OSError:
        return None
    else:
        return None
    finally:
        os.close(descriptor)


def _wait(descriptor: int, folder: Path, *, limit_s: float) -> str:
    """Lock a folder; return a warning if its file system has no locks."""
    begun = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = _signed(descriptor)
            is_run = owner is not None and owner.command == "run"
            if time.monotonic() - begun > (min(limit_s, _RUN_LIMIT_S) if is_run else limit_s):
                what, held = "another process", "it has locked the folder"
                if owner:
                    what = f"another `envcompare {owner.command}`"
                    held = f"{owner.place} has held it for {owner.age}"
                look = f"`envcompare status {shlex.quote(str(folder))}` shows how far it is"
                raise RunFolderError(
                    f"{folder} is being written to by {what}",
                    details=held,
                    hint=f"wait until it has ended, then give the same command again; {look}",
                ) from error
            # flock(2) has no time limit.
            time.sleep(_PAUSE_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise write_error(folder / LOCK_NAME, error) from error
            return (
                f"the file system of {folder} has no locks: make sure that no other `envcompare` "
                "writes to this run folder at the same time"
            )
        else:
            return ""


def _sign(descriptor: int, by: Writer) -> None:
    """Write the owner into the lock; a failed write is no reason to stop."""
    owner = Owner(command=by, pid=os.getpid(), host=platform.node(), since=time.time())
    # Something else may be in place of the lock, such as a named pipe.
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(owner), 0)


def _signed(descriptor: int) -> Owner | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Owner)
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None


EXPECTED_SPREAD = "expected_spread"
"""In a `calibrated` event: the standard deviation that a restart is expected to add."""

STEPS, STEP_S = "steps_per_block", "step_s"
"""In a `calibrated` event: the steps of a block, and their duration. An arm's name follows if its
own differ."""

STOPS = "stops"
"""In a `calibrated` event: arms are stopped between their turns."""

RUN_IN_S = "run-in s"
"""In a `calibrated` event: the least duration of the untimed steps that begin a turn."""

SETTLED = "settled"
"""In a `calibrated` event: turns need no other look at what a pause before them changes."""

CALIBRATION = "calibration"
"""In a `calibrated` event: its number in the cell; blocks of a lower one do not count."""

LEFT_S = "left_s"
"""In a `turn` event: the seconds left in the cell's budget."""

SESSION = "session"
"""In an event that starts or resumes a run: the number of its session, from 1."""


def duration_s(events: Iterable[Event]) -> float:
    """Return the seconds between the events of a run.

    Pauses before resumptions and time in a scheduler's queue are left out.
    """
    begun = (event for event in events if event.what != "submitted")
    return _sum_between_s(begun, after_pause="run-resumed")


def elapsed_s(events: Iterable[Event]) -> float:
    """Return the seconds that a cell has used, without pauses before resumptions.

    After its turn in a restart, and once it is decided, others are served. That time does not
    count, even if a note on the cell comes before its next turn.
    """
    own = _while_served(events)
    return _sum_between_s(own, after_pause="cell-started", left_out=("turn",))


def _while_served(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events without the notes between two turns, and without those after the timing."""
    is_between = is_over = False
    for event in events:
        is_over &= event.what != "cell-started"
        # notes do not mark the start of work
        if not (is_over or (is_between and event.what in {"note", "caution"})):
            is_between, is_over = event.what == "turn", event.what == "stopped"
            yield event


def _sum_between_s(
    events: Iterable[Event], *, after_pause: EventKind, left_out: tuple[EventKind, ...] = ()
) -> float:
    return sum(
        _between_s(before, after)
        for before, after in itertools.pairwise(events)
        if after.what != after_pause and before.what not in left_out
    )


def _between_s(before: Event, after: Event) -> float:
    """Return the seconds between two events of one part, despite changes of the system time."""
    if before.clock_s is None or after.clock_s is None:
        return after.t - before.t
    return max(0.0, after.clock_s - before.clock_s)


def waited_s(events: Iterable[Event]) -> float:
    """Return the seconds that a cell waited for a quiet machine, over all resumptions."""
    waits = (e.values.get("seconds") for e in events if e.what == "waited")
    return float(sum(seconds for seconds in waits if isinstance(seconds, int | float)))


def last_calibration(events: Iterable[Event]) -> dict[str, float]:
    """Return the numbers of a cell's last calibration, and the spread that it expects."""
    noted: dict[str, float] = {}
    for event in events:
        if event.what != "calibrated":
            continue
        if STEPS in event.values:
            noted = {name: value for name, value in noted.items() if name == EXPECTED_SPREAD}
        noted |= {k: v for k, v in event.values.items() if isinstance(v, int | float)}
    return noted


def since_retry(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events of a cell since its last retry."""
    ended = [i for i, e in enumerate(events) if e.what == "cell-ended" and e.state != "unreachable"]
    begun = max((i for i, e in enumerate(events) if e.what == "cell-started"), default=0)
    earlier = [i for i in ended if i < begun]
    return events[earlier[-1] + 1 :] if earlier else events


def own_left_s(events: Sequence[Event], *, whole_s: float) -> float:
    """Return the rest of a cell's share: the value at its last turn, minus the time since."""
    turns = [i for i, e in enumerate(events) if e.what == "turn" and "restart" in e.values]
    if not turns:
        return max(0.0, whole_s - elapsed_s(events))
    noted_s = events[turns[-1]].values.get(LEFT_S)
    if not isinstance(noted_s, int | float):
        return whole_s
    return max(0.0, noted_s - elapsed_s(events[turns[-1] :]))


def since_session(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events since the last session started; all events of a run without sessions."""
    begins = [i for i, e in enumerate(events) if SESSION in e.values]
    if not begins:
        return events
    last = events[begins[-1]].values[SESSION]
    return events[next(i for i in begins if events[i].values[SESSION] == last) :]


def next_session(events: Sequence[Event]) -> int:
    """Return the session to measure next, which repeats one that was interrupted or empty."""
    numbers = [e.values[SESSION] for e in events if SESSION in e.values]
    begun = int(str(numbers[-1])) if numbers else 0
    session = since_session(events)
    has_ended = any(e.what == "run-ended" for e in session)
    return begun + 1 if has_ended and _has_measured(session) else max(1, begun)


def measured_sessions(events: Sequence[Event]) -> dict[int, float]:
    """Return the start of each session that measured a cell, in UTC seconds since 1970."""
    begins = [i for i, e in enumerate(events) if SESSION in e.values]
    parts = itertools.zip_longest(begins, begins[1:])
    sessions: dict[int, float] = {}
    for begin, end in parts:
        if _has_measured(events[begin:end]):
            sessions.setdefault(int(str(events[begin].values[SESSION])), events[begin].t)
    return sessions


def _has_measured(events: Iterable[Event]) -> bool:
    return any(e.what == "cell-ended" and e.state == "ok" for e in events)


def written_samples(events: Iterable[Event]) -> int:
    """Return the number of samples when the run last ended; 0 without a count."""
    counts = (e.values.get("samples") for e in events if e.what == "run-ended")
    return max((count for count in counts if isinstance(count, int)), default=0)


def standing(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return the events that no later resumption has replaced.

    For a cell, those since its last start; for the run, those since its last resumption; for a
    host, those since its retry at the end of the run.
    """
    starts = {e.cell: i for i, e in enumerate(events) if e.what == "cell-started"}
    begun = max((i for i, e in enumerate(events) if e.what == "run-resumed"), default=0)
    retried = {e.host: i for i, e in enumerate(events) if e.what == "host-retried"}
    return tuple(
        e
        for i, e in enumerate(events)
        if i >= (starts.get(e.cell, 0) if e.cell else max(begun, retried.get(e.host, 0)))
    )


def arm_events(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return the events of arms from the last part of a run that timed a cell or repeated them."""
    timed = [i for i, e in enumerate(events) if e.what in {"arm-ready", "restart", "stopped"}]
    starts = (i for i, e in enumerate(events) if e.what == "cell-started")
    end = next((i for i in starts if timed and i > timed[-1]), len(events))
    kinds = {"arm-ready", "arm-failed", "restart", "generation", "not-marked", "round-dropped"}
    return tuple(e for e in standing(events[:end]) if e.what in kinds or "code" in e.values)


def standing_samples(
    samples: Iterable[Sample], design: Design, events: Iterable[Event] = ()
) -> tuple[Sample, ...]:
    """Return the samples without rounds and interrupted restarts that were repeated.

    Rounds are repeated if the turns before were too short. Only designs of a fixed size repeat
    restarts. A restart belongs to the last part of the run that has samples of it. Within one part,
    as after an arm fails, the restart begins again at the first repeated block.
    """
    samples = tuple(samples)
    # the number of the last calibration of each cell, which no block may have yet
    last: dict[str, int] = {}
    for event in events:
        number = event.values.get(CALIBRATION) if event.what == "calibrated" else None
        if isinstance(number, int):
            last[event.cell] = max(number, last.get(event.cell, 0))
    for sample in samples:
        if isinstance(sample, Block):
            last[sample.cell] = max(sample.calibration, last.get(sample.cell, 0))
    samples = tuple(
        one
        for one in samples
        if not isinstance(one, Block | MarkedBlock) or one.calibration >= last.get(one.cell, 0)
    )
    if design.restarts is None:
        return samples
    parts: dict[tuple[str, int], int] = {}
    for sample in samples:
        if isinstance(sample, OfRestart):
            restart = (sample.cell, sample.restart)
            parts[restart] = max(parts.get(restart, 0), sample.part)
    return _without_overtaken(
        sample
        for sample in samples
        if not isinstance(sample, OfRestart) or sample.part == parts[sample.cell, sample.restart]
    )


def _without_overtaken(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    kept: dict[int, Sample] = {}
    places: dict[tuple[str, int], set[int]] = {}  # indices of a restart's samples
    blocks: dict[tuple[str, int], set[tuple[str, int]]] = {}  # arm and round, by restart
    for place, sample in enumerate(samples):
        kept[place] = sample
        if not isinstance(sample, OfRestart):
            continue
        restart = (sample.cell, sample.restart)
        if isinstance(sample, Block):
            block = (sample.arm, sample.round)
            if block in blocks.setdefault(restart, set()):
                for overtaken in places.pop(restart):
                    del kept[overtaken]
                blocks[restart].clear()
            blocks[restart].add(block)
        places.setdefault(restart, set()).add(place)
    return tuple(kept.values())
