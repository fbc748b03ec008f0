"""The energy that the processor's packages have taken, by their own counters (RAPL).

Kernel: Documentation/power/powercap/powercap.rst. Whatever else runs on the machine is in it.
"""

from __future__ import annotations

import glob
import os
import re
from typing import NamedTuple

from harness.facts.cgroups import read_text

FOLDER = "/sys/class/powercap"
# Packages alone, which AMD's processors have under the same name; what is in them is named 0:1.
_PACKAGE = re.compile(r"intel-rapl:\d+")
ABSENT = "this machine shows no energy counters (RAPL); virtual machines and containers have none"
CLOSED = "the energy counters (RAPL) are readable by root alone"
CLOSED_HINT = "run as root of the host"


class Reading(NamedTuple):
    """The counter of each package, or the reason why none can be read."""

    packages: dict[str, int]
    reason: str = ""
    hint: str = ""


def read() -> Reading:
    """Return the counters of all packages in µJ."""
    paths = [path for path in glob.glob(f"{FOLDER}/*") if _PACKAGE.fullmatch(_name(path))]
    texts = {path: read_text(f"{path}/energy_uj") for path in sorted(paths)}
    if not texts:
        return Reading({}, ABSENT)
    known = {path: int(text) for path, text in texts.items() if text and text.isdigit()}
    return Reading(known) if len(known) == len(texts) else Reading({}, CLOSED, CLOSED_HINT)


def joules(before: Reading, after: Reading) -> float | None:
    """Return the energy between two readings; None if either is missing.

    A counter wraps around at its range, which takes minutes: at most one wrap is assumed.
    """
    if not before.packages or before.packages.keys() != after.packages.keys():
        return None
    total = 0
    for path, start in before.packages.items():
        end = after.packages[path]
        if end < start:
            end += int(read_text(f"{path}/max_energy_range_uj") or 0)
        if end < start:
            return None
        total += end - start
    return total / 1e6


def _name(path: str) -> str:
    return os.path.basename(path)
