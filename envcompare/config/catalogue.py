"""What workloads declare about themselves, read from their source without importing it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envcompare import bundled
from envcompare.run_folder.records import Scalar

Range = tuple[float | None, float | None] | tuple[str, ...]
"""Least and most value of a number, None where there is no such end; or the choices of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadInfo:
    """A workload as its class declares it; a parameter without a range takes any value."""

    name: str
    summary: str
    parameters: dict[str, Scalar]
    ranges: dict[str, Range] = field(default_factory=dict)


def catalogue() -> dict[str, WorkloadInfo]:
    """Return the bundled workloads by name: each file with a class that has a method `step`."""
    return {
        path.stem: workload_info(node, name=path.stem)
        for path in sorted(bundled.workloads().glob("*.py"))
        for node in classes(path).values()
        if any(isinstance(part, ast.FunctionDef) and part.name == "step" for part in node.body)
    }


def classes(path: Path) -> dict[str, ast.ClassDef]:
    """Return the classes at the top of a file by name.

    Raises OSError, ValueError and SyntaxError for what is no Python.
    """
    body = ast.parse(path.read_text(encoding="utf-8"), filename=str(path)).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def workload_info(node: ast.ClassDef, *, name: str) -> WorkloadInfo:
    """Return what a class declares; raises ValueError where that is no literal."""
    return WorkloadInfo(
        name=name,
        summary=(ast.get_docstring(node) or "").split("\n")[0],
        parameters=_declared(node, "PARAMS"),
        ranges=_declared(node, "RANGES"),
    )


def _declared(node: ast.ClassDef, attribute: str) -> dict[str, Any]:
    for statement in node.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        if any(isinstance(target, ast.Name) and target.id == attribute for target in targets):
            assert isinstance(statement, ast.Assign | ast.AnnAssign)
            literal: dict[str, Any] = ast.literal_eval(statement.value) if statement.value else {}
            return literal
    return {}
