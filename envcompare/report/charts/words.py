"""Texts in charts: names of the user, made safe and short, and names of files."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from envcompare.text import shortened, visible_line

_OTHER: Final = re.compile(r"[^a-z0-9]+")
_LONGEST_SLUG: Final = 60


def shown(text: str, *, most: int = 120) -> str:
    """Return a name for a description: hidden characters visible, and not endless."""
    return shortened(visible_line(text), most=most)


def label(text: str, *, most: int = 20) -> str:
    """Return a name for a place in a chart that has room for `most` characters."""
    seen = visible_line(text[: 2 * most])
    return seen if len(text) <= most and len(seen) <= most else f"{seen[: most - 1]}…"


def chart_name(kind: str, *parts: str) -> str:
    """Return a name of [a-z0-9-]+ that no other parts give."""
    text = "/".join(parts)
    digest = hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()
    slug = _OTHER.sub("-", f"{kind}-{text}".lower())[:_LONGEST_SLUG].strip("-")
    return f"{slug}-{digest[:6]}"
