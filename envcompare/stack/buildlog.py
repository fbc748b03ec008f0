"""What the programs of an image's build said, apart from what its builder says around them."""

from __future__ import annotations

import re

from envcompare.environments.diagnosis import is_full

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OF_BUILDKIT = re.compile(r"^#\d+ \d+\.\d+ (.*\S)", re.MULTILINE)
_OF_CLASSIC = re.compile(r"^ ---> Running in [0-9a-f]+$", re.MULTILINE)
_END = ("{'errorDetail'", "The command '", " ---> ", "Removing intermediate", "Step ")


def said_by_step(text: str) -> str:
    """Return what the last step that ran printed; all of the log where no step did.

    A builder ends with the whole instruction and its exit code, which explains nothing.
    """
    text = _COLOUR.sub("", text)
    lines = _OF_BUILDKIT.findall(text)
    if not lines and (parts := _OF_CLASSIC.split(text)[1:]):
        lines = [one for one in parts[-1].splitlines() if one.strip() and not one.startswith(_END)]
    return text if is_full(text) or not lines else "\n".join(lines)
