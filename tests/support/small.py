"""The whole command with a stack of two packages: made in seconds, by the road of the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lab import ROOT
from runs import BASE

ARRAYS = """
import numpy


class Arrays:
    batch = 1

    def setup(self, seed, device):
        self.values = numpy.random.default_rng(seed).random((64, 64))

    def step(self):
        return float((self.values @ self.values).sum())
"""
PLAIN = """
class Plain:
    batch = 1

    def setup(self, seed, device):
        pass

    def step(self):
        return float(sum(i * i for i in range(5000)) % 97)
"""
PARTS = ("envcompare", "workloads", "studies", "containers", "Dockerfile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """A copy of the project whose workloads need numpy alone, with a cache of its own."""

    root: Path
    host: str

    @property
    def lock(self) -> str:
        """Return the hash of the lock, once it is resolved."""
        (found,) = (self.root / "cache" / "envcompare").glob("*/wheelhouse")
        return found.parent.name

    @property
    def numpy(self) -> str:
        """Return the version of numpy in the wheels."""
        (wheel,) = (self.root / "cache" / "envcompare").glob("*/wheelhouse/numpy-*.whl")
        return wheel.name.split("-")[1]

    @property
    def arrays(self) -> tuple[str, str]:
        """Return the flags of a workload that imports numpy."""
        return "--workload", f"{self.root / 'arrays.py'}:Arrays"

    @property
    def plain(self) -> tuple[str, str]:
        """Return the flags of a workload that imports nothing."""
        return "--workload", f"{self.root / 'plain.py'}:Plain"

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a subcommand to its end."""
        subcommand, *rest = words
        argv = [sys.executable, "-m", "envcompare", "-q", subcommand, "--hosts", self.host]
        return subprocess.run(
            [*argv, "--base-image", BASE, *rest],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root), **self.variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )

    @property
    def variables(self) -> dict[str, str]:
        """Return what keeps its cache apart."""
        return {"XDG_CACHE_HOME": str(self.root / "cache")}


def small_project(root: Path, host: str) -> Small:
    """Copy the project there, with a stack of numpy and pip."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / part)
    (root / "workloads" / "requirements" / "cu130.in").write_text("numpy\npip\n")
    (root / "arrays.py").write_text(ARRAYS)
    (root / "plain.py").write_text(PLAIN)
    return Small(root=root, host=host)
