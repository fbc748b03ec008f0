"""Files of a run on a disk: their names, writes that are whole or not at all, refusals, the lock.

One process at a time writes into a run folder, and others can see which one.
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
_LONGEST: Final = 150  # a file name has at most 255 bytes, and endings follow
LOCK_NAME: Final = ".lock"
Writer = Literal["run", "import"]
_IMPORT_LIMIT_S: Final = 300.0  # imports of many ranks, given at once on a busy machine
_RUN_LIMIT_S: Final = 2.0  # who asks for the state of a run holds its lock for a moment
_PAUSE_S: Final = 0.05
_NO_LOCKS: Final = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP}
"""What a network's file system without locks answers; there the user has to take turns."""
_MOST_BYTES: Final = 4096


def missing_folders(path: Path) -> list[Path]:
    """Return the folder and those above it that are not there, the lowest first."""
    return [one for one in (path, *path.parents) if not one.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders in this order; one that holds something stays."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def open_private(path: str, flags: int) -> int:
    """Open a file as `open` asks its opener to; a new one is for this user alone.

    No link is followed: it may lead to a file of the user's that is none of the run's.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def replace_file(target: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file atomically: a temporary name beside it, sync, rename. Raises OSError.

    The user's mask takes from the mode, as from that of any new file.
    """
    # a name of its own: two writers must not write into one partial file
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(target)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_whole(stream: BinaryIO, line: bytes) -> None:
    """Write all of a line or nothing of it: a full disk must not leave half a line."""
    before = stream.tell()
    try:
        written = stream.write(line)
        os.fsync(stream.fileno())
    except OSError:
        os.truncate(stream.fileno(), before)
        raise
    if written != len(line):
        os.truncate(stream.fileno(), before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_error(
    path: Path, error: OSError, *, what: str = "written", option: str = "--out"
) -> RunFolderError:
    """Return the error for a file that the disk refuses, with a hint that fits its cause."""
    hint = write_hint(error, option=option)
    return RunFolderError(f"{path} cannot be {what}", details=str(error), hint=hint)


def write_hint(error: OSError, *, option: str = "--out") -> str:
    """Return what to try where a disk refuses; the option is the one that names the place."""
    if error.errno in _FULL:
        return f"free some disk space, or choose another place with {option}; what stands is kept"
    if error.errno in _CLOSED:
        return f"make the folder writable for this user, or choose another place with {option}"
    if error.errno == errno.ENAMETOOLONG:
        return f"use shorter names, or a shorter path with {option}"
    return f"choose another place with {option}; what stands is kept"


def is_run_id(text: str) -> bool:
    """Tell whether a text can be the ID of a run: one name, of a file and of what is swept."""
    return _RUN_ID.fullmatch(text) is not None


def safe_name(text: str) -> str:
    """Return a file name made of `text`; the same text gives the same name."""
    return _UNSAFE.sub("_", text).strip(".") or "_"


def distinct_name(text: str) -> str:
    """Return a file name that no other text gives, as an arm or a host needs it.

    What is safe stays as it is; elsewhere part of the text's SHA-256 tells it from all others.
    """
    is_plain = text == safe_name(text) and not _MARKED.fullmatch(text)
    return text if is_plain and len(text) <= _LONGEST else _marked(text)


def cell_name(cell: str) -> str:
    """Return a file name that no other cell gives; its slashes become underscores."""
    plain = cell.replace("/", "_")
    return plain if "_" not in cell and distinct_name(plain) == plain else _marked(cell)


def _marked(text: str) -> str:
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{safe_name(text)[:_LONGEST]}-{digest[:10]}"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Which process holds a run folder; `since` is UTC seconds since 1970."""

    command: Writer
    pid: int
    host: str
    since: float

    @property
    def place(self) -> str:
        """Say which process it is, as far as the lock tells."""
        if not self.pid:
            return "another process"
        return f"process {self.pid} on {visible_line(self.host)}"

    @property
    def age(self) -> str:
        """Say for how long it has held the folder."""
        return age_text(max(0.0, time.time() - self.since))


@contextmanager
def locked(folder: Path, *, by: Writer, limit_s: float | None = None) -> Iterator[str]:
    """Keep all others that ask for it out of a folder; the system frees it when a process ends.

    Yields a warning where the file system has no locks, as some of a network, else an empty text.

    An import waits for another import, which is short; nothing waits for a run. Raises
    RunFolderError, which names the owner, where another holds it for longer than the limit.
    """
    usual_s = _RUN_LIMIT_S if by == "run" else _IMPORT_LIMIT_S
    path = folder / LOCK_NAME
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
    """Return who writes into a folder now; None where nobody does, or where nothing tells."""
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
    """Lock a folder; return a warning where its file system has no locks."""
    begun = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = _signed(descriptor)
            is_run = owner is not None and owner.command == "run"
            if time.monotonic() - begun > (min(limit_s, _RUN_LIMIT_S) if is_run else limit_s):
                raise _refusal(folder, owner) from error
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
    """Write into the lock who holds it; a disk that refuses that is no reason to stop."""
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
