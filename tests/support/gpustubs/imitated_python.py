"""Let an interpreter tell the version in the name it was started by; a .pth file loads this.

It decides what is chosen before a download. Modules compiled for that version are not loaded by
it: a venv of such wheels needs the real one.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple


class _Version(NamedTuple):
    major: int
    minor: int
    micro: int = 0
    releaselevel: str = "final"
    serial: int = 0


def _imitate() -> None:
    name = re.fullmatch(r"python3\.(\d+)", Path(sys.executable).resolve().name)
    if name is None or int(name[1]) == sys.version_info[1]:
        return
    version = _Version(3, int(name[1]))
    sys.version_info = sys.implementation.version = version
    sys.hexversion = 3 << 24 | version.minor << 16 | 0xF0
    sys.version = f"3.{version.minor}.0 (envcompare imitation, Jan  1 1970, 00:00:00) [GCC 0]"


_imitate()
