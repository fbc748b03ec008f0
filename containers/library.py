"""Compile what Python's own library in a base image has no byte code of.

usage: PYTHONHASHSEED=0 python3 -s -B library.py TARGET

TARGET becomes the root of what is added to the image; "/" compiles in place. Some images of Python
come without byte code, and a container could not keep what it compiles at each of its starts.
"""
# ruff: noqa: INP001 - it is run in an image, and no part of a package

from __future__ import annotations

import py_compile
import sys
import sysconfig
from importlib.util import cache_from_source
from pathlib import Path

# Packages have their own, and nobody imports the tests.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


def compile_missing(library: Path, target: Path) -> None:
    """Compile each module without byte code, in an order that no file system decides."""
    for path in sorted(library.rglob("*.py")):
        code = Path(cache_from_source(str(path)))
        if not _LEFT_OUT.intersection(path.relative_to(library).parts) and not code.exists():
            py_compile.compile(
                str(path),
                cfile=str(target / code.relative_to("/")),
                quiet=2,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )


if __name__ == "__main__":
    compile_missing(Path(sysconfig.get_path("stdlib")).resolve(), Path(sys.argv[1]))
