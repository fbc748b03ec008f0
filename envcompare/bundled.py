"""The only place that finds bundled files: in the checkout, else in the wheel."""

from __future__ import annotations

import hashlib
from pathlib import Path

from envcompare.errors import EnvcompareError

_PACKAGE = Path(__file__).resolve().parent


def root() -> Path:
    """Return the folder with `workloads/`, `studies/`, `containers/` and `Dockerfile`.

    The checkout comes first, so an editable install never uses a stale copy.
    """
    for folder in (_PACKAGE.parent, _PACKAGE / "_files"):
        parts = (folder / "workloads" / "harness" / "worker.py", folder / "Dockerfile")
        if all(part.is_file() for part in parts):
            return folder
    raise EnvcompareError(
        "the bundled workloads are missing",
        details=f"neither next to {_PACKAGE} nor in it",
        hint="install envcompare-bench again",
    )


def workloads() -> Path:
    """Return the folder of the workloads and the worker."""
    return root() / "workloads"


def studies() -> dict[str, Path]:
    """Return the configuration files that repeat studies, by name."""
    return {path.stem: path for path in sorted((root() / "studies").glob("*.toml"))}


def tree_program() -> str:
    """Return the program that lists the packages of its interpreter."""
    return (workloads() / "harness" / "tree.py").read_text(encoding="utf-8")


def tree_key(folder: Path) -> str:
    """Return a name for the content of a folder, without byte code."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
