"""Whose file it is: told from the first bytes, so that the wrong reader can name the right one."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Final

from envcompare.profile_files.refusing import refusal
from envcompare.profile_files.tables import encoding_of

_HEAD_BYTES: Final = 1 << 20
_POINTERS: Final = (
    (re.compile(rb"version https://(?:git-lfs|hawser)\.github\.com/spec/"), "Git LFS",
     "git lfs pull --include '*{file}'"),
    (re.compile(rb"/annex/objects/\S+"), "git-annex", "git annex get {file}"),
)  # fmt: skip
_PAGE: Final = re.compile(rb"\s*<(?:!doctype html|html)\b", re.IGNORECASE)
_TEXT_TOOLS: Final = frozenset({"ncu", "nvprof"})
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

    Raises ProfileError when the file cannot be opened, or is not what its name says: the pointer
    that a repository keeps in its place, or text in an encoding that its tool's reader lacks.
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
    _refuse_stand_in(path.name, head)
    tool = _by_name(path) or _by_content(_plain(head))
    if tool not in _TEXT_TOOLS and encoding_of(head).startswith("utf-16"):
        raise refusal(
            path.name,
            why="the file is UTF-16, as PowerShell redirects write it; this format is read as "
            "UTF-8 only",
            hint=f"iconv -f UTF-16 -t UTF-8 {path.name} > NEW, and import that",
        )
    return tool


def _refuse_stand_in(name: str, head: bytes) -> None:
    """Refuse what stands in the place of a file that was not fetched."""
    for pattern, keeper, command in _POINTERS:
        if pattern.match(head):
            size = re.search(rb"^size (\d+)$", head, re.MULTILINE)
            told = f", of {int(size[1]):,} bytes," if size else ""
            why = f"it is a pointer of {keeper}: the file itself{told} was not fetched"
            raise refusal(name, why=why, hint=f"{command.format(file=name)}, then import it again")
    if _PAGE.match(head):
        why = "it is a web page: what was saved is the page about the file, not the file"
        raise refusal(name, why=why, hint="download the raw file, and import that")


def _by_name(path: Path) -> str:
    endings = {".nsys-rep": "nsys", ".qdrep": "nsys", ".ncu-rep": "ncu"}
    return endings.get(path.suffix.lower(), "")


def _plain(head: bytes) -> bytes:
    """Return what the head of a gzip file holds, or of a text in UTF-16, as UTF-8.

    What cannot be unpacked is nothing.
    """
    encoding = encoding_of(head)
    if encoding.startswith("utf-16"):
        return head.decode(encoding, "ignore").encode()
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
