"""Names of files and folders made of the names that a user gives."""

from __future__ import annotations

import hashlib
import re
from typing import Final

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._=,-]+")
_MARKED: Final = re.compile(r".*-[0-9a-f]{10}", re.DOTALL)
_LONGEST: Final = 150  # a file name has at most 255 bytes, and endings follow


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
