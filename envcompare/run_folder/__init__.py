"""The run folder: its files on disk, with their names, atomic writes, errors, and the lock.

One process at a time writes into a run folder, and other processes can identify it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import platform
import re
import secrets
import shlex
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal

import msgspec

from envcompare.errors import RunFolderError
from envcompare.text import age_text, visible_line

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CLOSED: Final = {errno.EACCES, errno.EPERM, errno.EROFS}
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._=,-]+")
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_MARKED: Final = re.compile(r".*-[0-9a-f]{10}", re.DOTALL)
_LONGEST: Final = 150  # a file name has at most 255 bytes, and suffixes follow
LOCK_NAME: Final = ".lock"
Writer = Literal["run", "import"]
_IMPORT_LIMIT_S: Final = 300.0  # time for imports of many ranks that run at once on a busy machine
_RUN_LIMIT_S: Final = 2.0  # a request for a run's state holds the lock for a moment
_PAUSE_S: Final = 0.05
_NO_LOCKS: Final = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP}
"""The errors of a network file system without locks; there the user must take turns."""
_MOST_BYTES: Final = 4096


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
    if written != len(line):  # write(2) may be short on a nearly full disk
        os.truncate(stream.fileno(), before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_error(
    path: Path, error: OSError, *, what: str = "written", option: str = "--out"
) -> RunFolderError:
    """Return the error for a failed write, with a hint that fits its cause."""
    hint = write_hint(error, option=option)
    return RunFolderError(f"{path} cannot be {what}", details=str(error), hint=hint)


def write_hint(error: OSError, *, option: str = "--out") -> str:
    """Return the hint for a failed write; `option` is the one that names the place."""
    other_place = f"choose another place with {option}; written files are kept"
    if error.errno in _FULL:
        return f"free some disk space, or {other_place}"
    if error.errno in _CLOSED:
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
                raise _refusal(folder, owner) from error
            time.sleep(_PAUSE_S)  # flock(2) has no time limit, so poll
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise write_error(folder / LOCK_NAME, error) from error
            return (
                f"the file system of {folder} has no locks: make sure that no other `envcompare` "
                "writes to this run folder at the same time"
            )
        else:
            return ""


def _refusal(folder: Path, owner: Owner | None) -> RunFolderError:
    what = f"another `envcompare {owner.command}`" if owner else "another process"
    details = f"{owner.place} has held it for {owner.age}" if owner else "it has locked the folder"
    look = f"`envcompare status {shlex.quote(str(folder))}` shows how far it is"
    return RunFolderError(
        f"{folder} is being written to by {what}",
        details=details,
        hint=f"wait until it has ended, then give the same command again; {look}",
    )


def _sign(descriptor: int, by: Writer) -> None:
    """Write the owner into the lock; a failed write is no reason to stop."""
    owner = Owner(command=by, pid=os.getpid(), host=platform.node(), since=time.time())
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(owner), 0)


def _signed(descriptor: int) -> Owner | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, _MOST_BYTES, 0), type=Owner)
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None
