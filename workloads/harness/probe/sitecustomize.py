"""Python runs this file as it starts in a line: it waits for PyTorch, and then for its steps.

PYTHONPATH leads here. Another `sitecustomize`, which this one hides, runs first.
"""

from __future__ import annotations

import contextlib
import os
import sys
from types import ModuleType
from typing import Any, Dict, Iterator


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    own = sys.modules.pop("sitecustomize")
    failed = None
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401, PLC0415
    except Exception as error:  # noqa: BLE001  Python reports it as it would without this file
        sys.modules["sitecustomize"] = own  # the import system looks for it there
        if not (isinstance(error, ImportError) and error.name == "sitecustomize"):
            failed = error
    folder = os.environ.get("ENVCOMPARE_GATE")
    if folder:
        _watch(folder, harness=os.path.dirname(here))
    if failed is not None:
        raise failed


def _watch(folder: str, *, harness: str) -> None:
    """Install the gate."""

    def describe() -> Dict[str, Any]:
        with _own_modules(harness):
            with _only_of_python():
                from harness.facts import inside, otherprocess  # noqa: PLC0415
            torch = sys.modules.get("torch")
            is_on_gpu = torch is not None and torch.cuda.is_initialized()
            pid = os.getpid()
            return {
                **inside.fingerprint(threads=None, device="cuda" if is_on_gpu else "cpu"),
                **otherprocess.process_facts(pid),
                **otherprocess.python_facts(pid),
                **otherprocess.software_facts(pid),
            }

    with _own_modules(harness):
        from harness import stepgate  # noqa: PLC0415
    stepgate.watch(folder, describe)


@contextlib.contextmanager
def _only_of_python() -> Iterator[None]:
    """Let imports find our modules and Python's, and no file of the user's with such a name."""
    kept = sys.path[:]
    library = os.path.dirname(os.__file__)
    sys.path[1:] = [one for one in kept[1:] if one in (library, f"{library}/lib-dynload")]
    try:
        yield
    finally:
        sys.path[:] = kept


@contextlib.contextmanager
def _own_modules(harness: str) -> Iterator[None]:
    """Let `harness` be ours: the program may have a module of that name as well."""
    kept, writes_none = _take_modules(), sys.dont_write_bytecode
    sys.path.insert(0, os.path.dirname(harness))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_none
        del sys.path[0]
        _take_modules()
        sys.modules.update(kept)


def _take_modules() -> Dict[str, ModuleType]:
    names = [name for name in sys.modules if name.split(".")[0] == "harness"]
    return {name: sys.modules.pop(name) for name in names}


_begin()
