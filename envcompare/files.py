"""Files that may be anybody's, read within bounds: what is no file, or is too large, is refused.

A run folder or a profile may be of another machine, or made to do harm. Nothing here waits for a
writer, goes on without an end, or holds more than its limit in memory.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

MIB: Final = 1 << 20
SETTINGS_BYTES: Final = 16 * MIB  # what a person writes: settings, hosts, a workload
RECORD_BYTES: Final = 256 * MIB  # one JSON file of a run folder; the largest of ours has 0.1 MiB
PRINTED_BYTES: Final = 1024 * MIB  # what a profiler printed
JOURNAL_BYTES: Final = 2048 * MIB  # samples.jsonl grows by some 10 MiB an hour
LINE_BYTES: Final = 64 * MIB  # one line of a journal
_CHUNK_BYTES: Final = MIB
_HOLES_BYTES: Final = 1024 * MIB  # of a file that nobody wrote; less is read as zeros in a moment
_HOLLOW: Final = 0.9
_MOST_EXTENTS: Final = 10_000
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UnfitFileError(OSError):
    """What lies at a path is no file that can be read, or is larger than its limit."""

    def __init__(self, number: int, why: str, path: Path) -> None:
        super().__init__(number, why, str(path))

    def __str__(self) -> str:
        return str(self.strerror)


def irregular(path: Path) -> str:
    """Return what a path is that is no regular file; empty where it is one or is not there.

    It is asked before a file is opened: a named pipe waits for a writer, a device never ends.
    """
    try:
        return _other_kind(path.stat().st_mode)
    except (OSError, ValueError):
        return ""


def _other_kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return ""
    known = (one for is_one, one in _KINDS if is_one(mode))
    return f"it is {next(known, 'of a kind that holds no file')}"


@contextmanager
def opened(path: Path, *, most: int | None = None) -> Iterator[BinaryIO]:
    """Open a regular file to be read; raises OSError for anything else, and above a limit."""
    # a named pipe may have come since anybody looked, and would wait for a writer
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if what := _other_kind(state.st_mode):
            raise UnfitFileError(errno.EINVAL, what, path)
        if most is not None and state.st_size > most:
            raise too_large(path, state.st_size, most)
        yield file


def read_whole(path: Path, *, most: int) -> bytes:
    """Return what a file holds; raises OSError where it is none, or holds more than a limit."""
    with opened(path, most=most) as file:
        content = file.read(most + 1)
    if len(content) > most:  # it grows, or does not tell its size
        raise too_large(path, len(content), most)
    return content


def read_text(path: Path, *, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Return a text that a person wrote, as `Path.read_text`; raises OSError and UnicodeError."""
    text = read_whole(path, most=SETTINGS_BYTES).decode(encoding, errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a journal with their ends, one at a time; the last may have none.

    Raises OSError where it is no file, or a line or the whole is above its limit.
    """
    read = 0
    with opened(path, most=JOURNAL_BYTES) as file:
        while line := file.readline(LINE_BYTES + 1):
            read += len(line)
            if len(line) > LINE_BYTES:
                raise too_large(path, len(line), LINE_BYTES, what="a line of it")
            if read > JOURNAL_BYTES:
                raise too_large(path, read, JOURNAL_BYTES)
            yield line


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield what a file holds as it is opened; what is added meanwhile is left out."""
    with opened(path) as file:
        left = os.fstat(file.fileno()).st_size
        while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
            left -= len(chunk)
            yield chunk


def is_hollow(path: Path) -> bool:
    """Tell whether a file is nearly all holes, of more than 1 GiB; raises OSError without one.

    Nothing of it is read. A file system that does not tell of holes has none.
    """
    with opened(path) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        if size <= _HOLES_BYTES:
            return False
        written = place = 0
        for _ in range(_MOST_EXTENTS):
            try:
                start = os.lseek(descriptor, place, os.SEEK_DATA)
            except OSError:  # a hole up to the end
                place = size
                break
            place = os.lseek(descriptor, start, os.SEEK_HOLE)
            written += place - start
        holes = place - written
    return holes > max(_HOLES_BYTES, _HOLLOW * size)


def too_large(path: Path, size: int, most: int, *, what: str = "it") -> UnfitFileError:
    """Return the error for what is above a limit."""
    more = "over " * (size == most + 1)  # no more was read
    told = f"{what} has {more}{size / MIB:,.0f} MiB; at most {most // MIB} MiB can be read"
    return UnfitFileError(errno.EFBIG, told, path)
