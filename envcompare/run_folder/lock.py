"""The lock of a run folder: one process at a time writes into it, and others can see which one."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shlex
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from envcompare.errors import RunFolderError
from envcompare.run_folder.disk import write_error
from envcompare.text import age_text, visible_line

LOCK_NAME: Final = ".lock"
Writer = Literal["run", "import"]
_IMPORT_LIMIT_S: Final = 60.0
_RUN_LIMIT_S: Final = 2.0  # who asks for the state of a run holds its lock for a moment
_PAUSE_S: Final = 0.05
_NO_LOCKS: Final = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP}
"""What a network's file system without locks answers; there the user has to take turns."""
_MOST_BYTES: Final = 4096


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
