"""The only place that finds bundled files: in the checkout, else in the wheel."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from pathlib import Path

from envcompare.errors import EnvcompareError
from envcompare.records import Scalar

_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadInfo:
    """A bundled workload as its source declares it."""

    name: str
    summary: str
    parameters: dict[str, Scalar]


def root() -> Path:
    """Return the folder that holds `workloads/`, `containers/` and `Dockerfile`.

    The checkout comes first, so that an editable install never sees a stale copy.
    """
    for folder in (_PACKAGE.parent, _PACKAGE / "_files"):
        if (folder / "workloads" / "worker.py").is_file() and (folder / "Dockerfile").is_file():
            return folder
    raise EnvcompareError(
        "the bundled workloads are missing",
        details=f"neither beside {_PACKAGE} nor in it",
        hint="install envcompare-bench again",
    )


def workloads() -> Path:
    """Return the folder of the workloads and the worker."""
    return root() / "workloads"


def tree_program() -> str:
    """Return the program that says what is installed beside an interpreter."""
    return (workloads() / "tree.py").read_text(encoding="utf-8")


def catalogue() -> dict[str, WorkloadInfo]:
    """Return the bundled workloads by name, read from their source without importing it."""
    found: dict[str, WorkloadInfo] = {}
    for path in sorted(workloads().glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            parameters = _parameters(node)
            if isinstance(node, ast.ClassDef) and parameters is not None:
                summary = (ast.get_docstring(node) or "").split("\n")[0]
                found[path.stem] = WorkloadInfo(
                    name=path.stem, summary=summary, parameters=parameters
                )
    return found


def _parameters(node: ast.stmt) -> dict[str, Scalar] | None:
    if not isinstance(node, ast.ClassDef):
        return None
    for statement in node.body:
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]  # type: ignore[assignment]
        if isinstance(target, ast.Name) and target.id == "PARAMS" and statement.value:  # type: ignore[attr-defined]
            value: dict[str, Scalar] = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
            return value
    return None


def tree_key(folder: Path) -> str:
    """Return a name for what a folder holds, byte code left out."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
