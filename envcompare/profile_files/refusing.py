"""How a reader refuses a file: which file, which line, why, and what to do."""

from __future__ import annotations

from envcompare.errors import ProfileError
from envcompare.text import shortened, visible_line


def refusal(file: str, *, why: str, line: int | None = None, hint: str = "") -> ProfileError:
    """Return the error for a file that cannot be read or trusted."""
    place = "" if line is None else f"line {line}: "
    return ProfileError(
        f"cannot trust {file}",
        details=place + visible_line(shortened(why, most=600)),
        hint=hint or "write the file again with the profiler, and import it whole",
    )
