"""The command as a user calls it, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def envcompare(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "envcompare", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
