"""The catalogue of bundled workloads, read from their source without importing it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from envcompare import bundled
from envcompare.run_folder.records import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadInfo:
    """A bundled workload as its source declares it."""

    name: str
    summary: str
    parameters: dict[str, Scalar]


def catalogue() -> dict[str, WorkloadInfo]:
    """Return the bundled workloads by name, read from their source without importing it."""
    found: dict[str, WorkloadInfo] = {}
    for path in sorted(bundled.workloads().glob("*.py")):
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
