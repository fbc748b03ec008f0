"""Scripts that are found before the programs of the system, where the real ones cannot serve."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest


def first_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder for programs, and give this machine a cache of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@dataclass(frozen=True)
class Programs:
    """A folder of programs that comes first on PATH."""

    folder: Path

    def program(self, name: str, script: str) -> None:
        """Put a script of sh in the place of a program."""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\ncd {shlex.quote(str(self.folder))} || exit\n{script}\n")
        path.chmod(0o755)
