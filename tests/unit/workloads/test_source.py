"""What the files of the workloads promise about themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conversation import WORKER

FILES = sorted(WORKER.parents[1].rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(WORKER.parents[1])))
def test_file_is_python_3_9(path: Path) -> None:
    """Users bring images with old interpreters: no newer syntax, annotations stay unevaluated."""
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    has_annotations = any(
        isinstance(node, ast.FunctionDef) and node.args.args for node in ast.walk(tree)
    )
    future = "from __future__ import annotations"
    assert not has_annotations or future in path.read_text()


def test_worker_imports_nothing_before_stdout_is_safe() -> None:
    """Only modules that every interpreter has loaded already stand at the top of worker.py."""
    tree = ast.parse(WORKER.read_text())
    imported = [
        name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names
    ]
    assert imported == ["os", "sys", "time"]
    assert not any(isinstance(node, ast.ImportFrom) for node in tree.body)
