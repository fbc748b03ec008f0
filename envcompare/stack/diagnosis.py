"""What engines and other tools print when they fail, and the problem it stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from envcompare.errors import Problem, StackError
from envcompare.masking import masked
from envcompare.transport import Transport

DISK_FULL: Final = r"no space left on device|disk quota exceeded"  # as every tool says it
USER_NAMESPACES: Final = (
    "sudo sysctl -w user.max_user_namespaces=15000 (and, where they exist, "
    "kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0)"
)
"""What lets ordinary users make namespaces."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OF_BUILDKIT = re.compile(r"^#\d+ \d+\.\d+ (.*\S)", re.MULTILINE)
_OF_CLASSIC = re.compile(r"^ ---> Running in [0-9a-f]+$", re.MULTILINE)
_END = ("{'errorDetail'", "The command '", " ---> ", "Removing intermediate", "Step ")

ROOM_HINT = (
    "free some space, set XDG_CACHE_HOME there to another disk, or remove the cache "
    "with envcompare clean"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """What an engine prints, and the problem it stands for; `{match}` takes the first group."""

    pattern: str
    brief: str
    hint: str = ""
    passes: bool = False  # what failed may be tried again in a moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What is special to an engine: its client program, its socket, and how it complains."""

    program: str
    socket: str  # where its daemon listens unless its context says otherwise
    symptoms: tuple[Symptom, ...]
    silent_hint: str  # what to try where the daemon does not answer
    room_hint: str  # what to try where its disk is full


def recognise(symptoms: tuple[Symptom, ...], text: str) -> Problem | None:
    """Return the problem of the first symptom in the text; None where no symptom is known."""
    for symptom in symptoms:
        match = re.search(symptom.pattern, text, re.IGNORECASE)
        if match:
            groups = [group for group in match.groups() if group]
            named = (groups or [match[0]])[0].strip()
            brief = symptom.brief.replace("{match}", named)
            return Problem(brief=brief, hint=symptom.hint, passes=symptom.passes)
    return None


def is_full(said: str) -> bool:
    """Tell whether a tool says that a disk is full, or the user's share of it."""
    return re.search(DISK_FULL, said, re.IGNORECASE) is not None


def last_line(text: str, *, without: tuple[str, ...] = ()) -> str:
    """Return the last line that says something, masked; lines starting with `without` do not."""
    lines = [line.strip() for line in masked(text).splitlines()]
    said = [line for line in lines if line and not line.startswith(without)]
    return said[-1] if said else "it gave no message"


def said_by_step(text: str) -> str:
    """Return what the last step that ran printed; all of the log where no step did.

    A builder ends with the whole instruction and its exit code, which explains nothing.
    """
    text = _COLOUR.sub("", text)
    lines = _OF_BUILDKIT.findall(text)
    if not lines and (parts := _OF_CLASSIC.split(text)[1:]):
        printed = filter(str.strip, parts[-1].splitlines())
        lines = [line for line in printed if not line.startswith(_END)]
    return text if is_full(text) or not lines else "\n".join(lines)


def failure(
    transport: Transport, what: str, text: str, *, hint: str, room_hint: str = ROOM_HINT
) -> StackError:
    """Return the error for a step that failed; a full disk is said as such."""
    lines = [line.strip() for line in masked(text).splitlines() if line.strip()]
    if full := [line for line in lines if is_full(line)]:
        return StackError(
            f"{what} failed on {transport.name}: its disk is full", details=full[-1], hint=room_hint
        )
    said = [line for line in lines if line.startswith(("ERROR", "FATAL", "error"))] or lines
    return StackError(
        f"{what} failed on {transport.name}",
        details=said[-1] if said else "it gave no message",
        hint=hint,
    )
