"""Names of files, writes that are whole or not at all, and what the refusals of a disk mean."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from envcompare.errors import RunFolderError

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_CLOSED: Final = {errno.EACCES, errno.EPERM, errno.EROFS}
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._=,-]+")
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_MARKED: Final = re.compile(r".*-[0-9a-f]{10}", re.DOTALL)
_LONGEST: Final = 150  # a file name has at most 255 bytes, and endings follow


def irregular(path: Path) -> str:
    """Return what a path is that is no regular file; empty where it is one or is not there.

    It is asked before a file is opened: a named pipe waits for a writer, a device never ends.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return ""
    if stat.S_ISREG(mode):
        return ""
    known = (one for is_one, one in _KINDS if is_one(mode))
    return f"it is {next(known, 'of a kind that holds no file')}"


@contextmanager
def redrawable(folder: Path) -> Iterator[None]:
    """Say of a page that the disk refuses where its run is kept, and how to draw it again."""
    try:
        yield
    except RunFolderError as error:
        raise RunFolderError(
            error.brief,
            details=error.details,
            hint=f"the run is kept in {folder}: once the folder can be written to, "
            f"`envcompare report {shlex.quote(str(folder))}` draws its report, and with "
            "`--output FILE` elsewhere",
        ) from error


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
