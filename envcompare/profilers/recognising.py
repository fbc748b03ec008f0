"""Whose file it is: told from the first bytes, so that the wrong reader can name the right one."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Final

from envcompare.profilers.refusing import refusal

_HEAD_BYTES: Final = 1 << 20
_GZIP: Final = b"\x1f\x8b"
# Both trace to SQLite under the same table names; only nsys keeps strings in `StringIds`.
_SQLITE: Final = b"SQLite format 3\0"
_TEXTS: Final = (
    (
        "nvprof",
        re.compile(rb'^"?==\d+== |^"Type","Time\(%\)"|^"Device","Kernel","Inv', re.MULTILINE),
    ),
    (
        "ncu",
        re.compile(rb'^==PROF== |^"ID","Process ID"|^"Process ID","Process Name"', re.MULTILINE),
    ),
    ("kineto", re.compile(rb'^\s*\{\s*"|"traceEvents"\s*:|^\s*\[\s*\{')),
)


def recognise(path: Path) -> str:
    """Return nsys, ncu, kineto or nvprof, or an empty text for a file of no known kind.

    Raises ProfileError when the file cannot be opened.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise refusal(
            path.name,
            why=f"it cannot be opened: {error.strerror}",
            hint="name a file that is there and may be read",
        ) from error
    return _by_name(path) or _by_content(_plain(head))


def _by_name(path: Path) -> str:
    endings = {".nsys-rep": "nsys", ".qdrep": "nsys", ".ncu-rep": "ncu"}
    return endings.get(path.suffix.lower(), "")


def _plain(head: bytes) -> bytes:
    """Return what the head of a gzip file holds; what cannot be unpacked is nothing."""
    if not head.startswith(_GZIP):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""


def _by_content(head: bytes) -> str:
    if head.startswith(_SQLITE):
        return "nvprof" if b"StringTable" in head and b"StringIds" not in head else "nsys"
    return next((tool for tool, pattern in _TEXTS if pattern.search(head)), "")
