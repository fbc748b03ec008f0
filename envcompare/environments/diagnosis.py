"""Known complaints of container engines, in the words of a person, with the remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

DISK_FULL: Final = r"no space left on device|disk quota exceeded"  # as every tool says it


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why an environment could not start a command, and the remedy where it is known."""

    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom(Cause):
    """A cause and what an engine writes of it; `{match}` takes the first group."""

    pattern: str


def recognise(symptoms: tuple[Symptom, ...], text: str) -> Symptom | None:
    """Return the first symptom found in the text, its reason filled in; None for a stranger."""
    for symptom in symptoms:
        found = re.search(symptom.pattern, text, re.IGNORECASE)
        if found:
            groups = [group for group in found.groups() if group]
            match = (groups or [found[0]])[0].strip()
            return replace(symptom, reason=symptom.reason.replace("{match}", match))
    return None


def is_full(said: str) -> bool:
    """Tell whether a tool says that a disk is full, or the user's share of it."""
    return re.search(DISK_FULL, said, re.IGNORECASE) is not None


def last_line(text: str, *, without: tuple[str, ...] = ()) -> str:
    """Return the last line that says something; lines starting with `without` do not."""
    lines = [line.strip() for line in text.splitlines()]
    said = [line for line in lines if line and not line.startswith(without)]
    return said[-1] if said else "it gave no message"
