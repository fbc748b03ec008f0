"""Read untrusted files within limits; irregular and large files are refused.

A run folder or a profile may come from another machine, or be malicious. Nothing here waits for a
writer, reads without end, or holds more than its limit in memory.
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
SETTINGS_BYTES: Final = 16 * MIB  # files written by a person: settings, hosts, a workload
# One JSON file of a run folder; our largest has 0.1 MiB.
RECORD_BYTES: Final = 256 * MIB
PRINTED_BYTES: Final = 1024 * MIB  # the output of a profiler
# samples.jsonl grows by some 10 MiB an hour.
JOURNAL_BYTES: Final = 2048 * MIB
LINE_BYTES: Final = 64 * MIB  # one line of a journal
_CHUNK_BYTES: Final = MIB
# Smaller holes are read as zeros in a moment.
_HOLES_BYTES: Final = 1024 * MIB
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
    """A path is not a readable file, or is larger than its limit."""

    def __init__(self, number: int, why: str, path: Path) -> None:
        super().__init__(number, why, str(path))

    def __str__(self) -> str:
        return str(self.strerror)


def irregular(path: Path) -> str:
    """Return the kind of an irregular path; empty for a regular or missing file.

    Call it before opening a file: a named pipe waits for a writer, and a device never ends.
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
    """Open a regular file for reading; raises OSError for anything else, and above a limit."""
    # a named pipe may have appeared since the check, and would wait for a writer
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if what := _other_kind(state.st_mode):
            raise UnfitFileError(errno.EINVAL, what, path)
        if most is not None and state.st_size > most:
            raise too_large(path, state.st_size, most)
        yield file


def read_whole(path: Path, *, most: int) -> bytes:
    """Return the content of a file; raises OSError for irregular or too large files."""
    with opened(path, most=most) as file:
        content = file.read(most + 1)
    # A file may grow, or have more content than it reports, as in /proc.
    if len(content) > most:
        raise too_large(path, len(content), most)
    return content


def read_text(path: Path, *, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Return a text written by a person, as `Path.read_text`; raises OSError and UnicodeError."""
    text = read_whole(path, most=SETTINGS_BYTES).decode(encoding, errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a journal with their line ends, which the last line may lack.

    Raises OSError for an irregular file, or if a line or the file is above its limit.
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
    """Yield the content of a file at its opening, without later additions."""
    with opened(path) as file:
        left = os.fstat(file.fileno()).st_size
        while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
            left -= len(chunk)
            yield chunk


def is_hollow(path: Path) -> bool:
    """Tell whether a file of over 1 GiB is nearly all holes; raises OSError without one.

    Reads no content. A file system that does not report holes has none.
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
            except OSError:
                # Only a hole follows (ENXIO of lseek(2)).
                place = size
                break
            place = os.lseek(descriptor, start, os.SEEK_HOLE)
            written += place - start
        holes = place - written
    return holes > max(_HOLES_BYTES, _HOLLOW * size)


def too_large(path: Path, size: int, most: int, *, what: str = "it") -> UnfitFileError:
    """Return the error for a file above a limit."""
    # No more than one byte above the limit was read, so the size is unknown.
    more = "over " * (size == most + 1)
    sizes = f"{what} has {more}{size / MIB:,.0f} MiB; at most {most // MIB} MiB can be read"
    return UnfitFileError(errno.EFBIG, sizes, path)
