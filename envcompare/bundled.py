"""The version of envcompare, and its bundled files: in the checkout, else in the wheel."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

_PACKAGE = Path(__file__).resolve().parent
__version__ = "0.1.0"
_CHECKOUT: Final = _PACKAGE.parent
_LIMIT_S: Final = 10.0
# Without tags, so that the answer always contains the full commit.
_DESCRIBE: Final = (
    "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty= modified",
)  # fmt: skip


class MissingFilesError(Exception):
    """The files that belong to the package are missing."""


def root() -> Path:
    """Return the folder with `workloads/`, `studies/`, `containers/` and `Dockerfile`.

    The checkout comes first, so an editable install never uses a stale copy. Raises
    MissingFilesError if neither has them.
    """
    for folder in (_CHECKOUT, _PACKAGE / "_files"):
        parts = (folder / "workloads" / "harness" / "worker.py", folder / "Dockerfile")
        if all(part.is_file() for part in parts):
            return folder
    raise MissingFilesError(f"neither next to {_PACKAGE} nor in it")


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
            # Optional locks would disturb another git command in the checkout (git(1)).
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
        origin = json.loads(distribution("envcompare-bench").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    source = origin.get("vcs_info", {}) if isinstance(origin, dict) else {}
    return str(source.get("commit_id", "")) if isinstance(source, dict) else ""
