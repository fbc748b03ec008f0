"""The version of envcompare from pyproject.toml, and the commit of its source."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

__version__ = "0.1.0"
_DISTRIBUTION: Final = "envcompare-bench"
_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_LIMIT_S: Final = 10.0
_DESCRIBE: Final = (
    "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty= modified",
)  # fmt: skip


@cache
def tool_commit() -> str:
    """Return the commit of this envcompare: of its checkout, else of its installation source.

    With suffix `modified` if tracked files have changed since. Empty if neither git nor the
    metadata of the distribution (PEP 610) has it.
    """
    return _of_checkout() if (_CHECKOUT / ".git").exists() else _of_distribution()


def _of_checkout() -> str:
    """Ask git, without variables that may point it to another checkout."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ("git", "--no-optional-locks", "-C", str(_CHECKOUT), *_DESCRIBE),
            capture_output=True,
            text=True,
            check=True,
            timeout=_LIMIT_S,
            env=variables,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _of_distribution() -> str:
    """Read where pip, or another installer, took the distribution from."""
    try:
        origin = json.loads(distribution(_DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    source = origin.get("vcs_info", {}) if isinstance(origin, dict) else {}
    return str(source.get("commit_id", "")) if isinstance(source, dict) else ""
