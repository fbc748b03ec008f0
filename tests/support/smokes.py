"""The benchmarks, what each needs, and a smoke run of one as a user calls it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bookkeeping import DATA, DOCS, HERE, RESULTS, SMOKE_SAID

NEEDS: dict[str, tuple[str, ...]] = {
    "building": ("docker", "ssh", "singularity"),
    "causes": ("docker",),
    "distribution": ("docker", "ssh"),
    "estimator": (),
    "explanations": ("ssh", "singularity"),
    "false_positives": ("torch",),
    "fanout": ("ssh",),
    "felt": ("docker",),
    "first_run": ("docker", "ssh", "singularity"),
    "live": ("docker",),
    "operators": ("torch",),
    "overhead": ("docker", "ssh", "torch"),
    "power": ("torch",),
    "precision": ("torch", "hyperfine"),
    "profile_readers": (),
    "record_streams": (),
    "report": (),
    "rights": ("docker",),
    "same_cpu": ("docker", "ssh", "singularity"),
    "simulation": (),
    "stabilising": (),
    "steps": ("recipes",),
    "turn_length": ("torch",),
}


def smoke(name: str, *words: str) -> None:
    """Run a benchmark with `--smoke`: it ends well, says what it was, and leaves all as it is."""
    with tempfile.TemporaryDirectory(prefix="envcompare-benchmark-") as folder:
        root = _checkout(Path(folder))
        before = _published(root)
        done = subprocess.run(
            [sys.executable, str(root / HERE.name / f"{name}.py"), "--smoke", *words],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert done.stdout.endswith(f"{SMOKE_SAID}\n")
        assert _published(root) == before


def _checkout(root: Path) -> Path:
    """Copy benchmarks and what they publish: one measured at the same time writes elsewhere."""
    leave_out = shutil.ignore_patterns(".work", "*.part", "__pycache__")
    for path in (HERE, DOCS):
        shutil.copytree(path, root / path.relative_to(HERE.parent), ignore=leave_out)
    for path in HERE.parent.iterdir():
        if not (root / path.name).exists():
            (root / path.name).symlink_to(path)
    return root


def _published(root: Path) -> dict[Path, str]:
    """Return what no smoke run may touch."""
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in (RESULTS, DATA, DOCS)
        for path in (root / folder.relative_to(HERE.parent)).rglob("*")
        if path.is_file()
    }
