"""Reading optional facts: a missing one is a gap in a fingerprint, not a failure."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any, Callable


def attempt(read: Callable[[], Any]) -> Any:  # noqa: ANN401  whatever is read
    """Return the result of `read`, or None if it raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    except Exception:  # noqa: BLE001  each host, and each version, lacks something else
        return None


def text_hash(text: str) -> str:
    """Return the sha256 of a text, which may hold names of files that are not UTF-8."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
