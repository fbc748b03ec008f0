"""Work that feels how a container is confined: system calls, processes, and files in /tmp."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_CALLS = 4000
_PROCESSES = 8
_FILES, _BYTES = 40, 1 << 16


class Calls:
    """Small system calls, one after the other."""

    batch = 1

    def setup(self, seed: int, device: str) -> None:
        """Need nothing."""

    def step(self) -> float:
        """Look for a file again and again."""
        return float(sum(os.access("/etc/passwd", os.R_OK) for _ in range(_CALLS)))


class Processes(Calls):
    """Short processes, one after the other."""

    def step(self) -> float:
        """Start a program and wait for it, again and again."""
        environment = dict(os.environ)
        for _ in range(_PROCESSES):
            os.waitpid(os.posix_spawn("/bin/true", ["true"], environment), 0)
        return float(_PROCESSES)


class Files(Calls):
    """Small files in the folder for temporary files, where an image has it."""

    def setup(self, seed: int, device: str) -> None:
        """Make a folder in /tmp, which a start with `--read-only` has in memory."""
        super().setup(seed, device)
        self.folder = Path(tempfile.mkdtemp(dir="/tmp"))

    def step(self) -> float:
        """Write, read and remove files."""
        size = 0
        for number in range(_FILES):
            path = self.folder / str(number)
            path.write_bytes(bytes(_BYTES))
            size += len(path.read_bytes())
            path.unlink()
        return float(size)
