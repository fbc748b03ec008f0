"""A workload by its name: the class, the object that does the work, and the hash of its source."""

from __future__ import annotations

import copy
import glob
import hashlib
import importlib
import importlib.util
import os
import sys
from typing import Any

from parameters import Value, require, resolve

HERE = os.path.dirname(os.path.abspath(__file__))
BUNDLED = {"cnn": ("cnn", "Cnn"), "rnn": ("rnn", "Rnn")}


class UnknownWorkloadError(Exception):
    """There is no workload of this name."""


class Workload:
    """A user's or a bundled workload object, with the optional parts of the contract filled in."""

    def __init__(self, kind: type, given: dict[str, Any]) -> None:
        defaults: dict[str, Value] = getattr(kind, "PARAMS", {})
        self.params = resolve(defaults, given)
        self._object = kind(**self.params)
        require("batch", self.batch, least=1)

    def load(self, data: str | None) -> None:
        """Let the object read its data, once, before any generation."""
        if hasattr(self._object, "load"):
            self._object.load(data)

    def fresh(self) -> Any:  # noqa: ANN401  a user's class
        """Return a copy for one generation, so that nothing of an earlier one is left in it."""
        return copy.copy(self._object)

    @property
    def batch(self) -> int:
        """Give the number of samples a step works on."""
        return int(getattr(self._object, "batch", 1))

    @property
    def steps_per_epoch(self) -> int | None:
        """Give how many steps see the whole training data once, where the workload knows it."""
        steps = getattr(self._object, "steps_per_epoch", None)
        return None if steps is None else int(steps)


def load_class(name: str) -> type:
    """Import and return the class of a bundled name or of `/path/file.py:Class`."""
    if name in BUNDLED:
        module_name, class_name = BUNDLED[name]
        return _member(importlib.import_module(module_name), class_name)
    path, separator, class_name = name.rpartition(":")
    if not separator or not path.endswith(".py"):
        known = ", ".join(BUNDLED)
        raise UnknownWorkloadError(f"no workload {name!r}; there are {known}, or FILE.py:CLASS")
    return _member(_import_file(path), class_name)


def code_hash(name: str) -> str:
    """Return the sha256 of everything beside the worker, and of the user's file where it is one.

    What a user's file imports from beside itself is not in it.
    """
    files = sorted(glob.glob(os.path.join(HERE, "*.py")))
    if name not in BUNDLED:
        files.append(name.rpartition(":")[0])
    digest = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            content = file.read()
        digest.update(f"{os.path.basename(path)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _import_file(path: str) -> object:
    """Import a file under a name of its own; its folder is searched after all others."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no workload file {path}")
    sys.path.append(os.path.dirname(os.path.abspath(path)))
    name = "workload_" + os.path.basename(path)[: -len(".py")]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _member(module: object, name: str) -> type:
    found = getattr(module, name, None)
    if isinstance(found, type):
        return found
    classes = [key for key, value in vars(module).items() if isinstance(value, type)]
    raise UnknownWorkloadError(
        f"no class {name!r} in {getattr(module, '__file__', module)}; "
        f"it has: {', '.join(classes) or 'none'}"
    )
