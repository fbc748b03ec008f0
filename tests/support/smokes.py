"""The benchmarks, what each needs, and a smoke run of one as a user calls it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from bookkeeping import DATA, DOCS, HERE, RESULTS, SMOKE_SAID

NEEDS: dict[str, tuple[str, ...]] = {
    "building": ("docker", "ssh", "singularity"),
    "control_variates": (),
    "distribution": ("docker", "ssh"),
    "explanations": ("ssh", "singularity"),
    "false_positives": ("torch",),
    "overhead": ("ssh", "torch"),
    "precision": ("torch", "hyperfine"),
    "profile_readers": (),
    "record_streams": (),
    "report": (),
    "simulation": (),
    "stabilising": (),
}


def smoke(name: str, *words: str) -> None:
    """Run a benchmark with `--smoke`: it ends well, says what it was, and leaves all as it is."""
    before = _published()
    done = subprocess.run(
        [sys.executable, str(HERE / f"{name}.py"), "--smoke", *words],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.endswith(f"{SMOKE_SAID}\n")
    assert _published() == before


def _published() -> dict[Path, str]:
    """Return what no smoke run may touch."""
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in (RESULTS, DATA, DOCS)
        for path in folder.rglob("*")
        if path.is_file()
    }
