"""A workload by its name: the class, the object that does the work, and the hash of its source."""

from __future__ import annotations

import copy
import glob
import hashlib
import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any, Sequence

from harness.failures import ContractError
from harness.parameters import Value, require, require_ranges, resolve

if TYPE_CHECKING:
    import ast

# Each file in this folder is a bundled workload: its one class with a method `step`, which may be
# inherited from a class of `harness.training`.
WORKLOADS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class UnknownWorkloadError(Exception):
    """There is no workload of this name."""


class Workload:
    """A user's or a bundled workload object, with the optional parts of the contract filled in."""

    def __init__(self, kind: type, given: dict[str, Any]) -> None:
        for name in ("setup", "step"):
            if not callable(getattr(kind, name, None)):
                raise ContractError(
                    f"the class {kind.__name__} has no method `{name}`",
                    hint="workloads/README.md, Your own, shows the methods that a class needs",
                )
        defaults: dict[str, Value] = getattr(kind, "PARAMS", {})
        self.params = resolve(defaults, given)
        require_ranges(self.params, getattr(kind, "RANGES", {}))
        self._object = kind(**self.params)
        require("batch", self.batch, least=1)

    def load(self, data: str | None) -> None:
        """Let the object read its data, once, before any generation."""
        if hasattr(self._object, "load"):
            self._object.load(data)

    def fresh(self) -> Any:  # noqa: ANN401  a user's class
        """Return a copy for one generation, without state of an earlier one."""
        return copy.copy(self._object)

    @property
    def batch(self) -> int:
        """Return the number of samples in a step."""
        return self._whole("batch", 1)

    @property
    def processes(self) -> int:
        """Return the number of processes that compute in a step."""
        return self._whole("processes", 1)

    @property
    def steps_per_epoch(self) -> int | None:
        """Return how many steps see all training data once; None if the workload does not say."""
        known = getattr(self._object, "steps_per_epoch", None) is not None
        return self._whole("steps_per_epoch", 1) if known else None

    def _whole(self, name: str, usual: int) -> int:
        value = getattr(self._object, name, usual)
        try:
            return int(value)
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"`{name}` must be a whole number, not {value!r}",
                hint=f"set self.{name} to an int in __init__, or leave it out",
            ) from error


def bundled() -> list[str]:
    """Return the names of the bundled workloads."""
    files = glob.glob(os.path.join(WORKLOADS, "*.py"))
    return sorted(os.path.basename(path)[: -len(".py")] for path in files)


def load_class(name: str) -> type:
    """Import and return the class of a bundled name or of `/path/file.py:Class`."""
    if name not in bundled():
        path, class_name = _file_and_class(name)
        return _member(_import_file(path), class_name)
    module = importlib.import_module(name)
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
    kinds = [kind for kind in kinds if kind.__module__ == name and hasattr(kind, "step")]
    if len(kinds) != 1:
        raise UnknownWorkloadError(f"{name}.py must have one class with a method `step`")
    return kinds[0]


def declared(name: str, attribute: str) -> Any:  # noqa: ANN401  any literal
    """Return a literal that the class of a workload declares itself, None without one.

    The source is read and not imported: what it imports may take seconds.
    """
    import ast  # noqa: PLC0415  a worker that measures has no use for it

    is_bundled = name in bundled()
    path, class_name = (_bundled_file(name), "") if is_bundled else _file_and_class(name)
    with open(path, encoding="utf-8") as file:
        body = ast.parse(file.read(), path).body
    for node in (part for part in body if isinstance(part, ast.ClassDef)):
        methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
        if "step" in methods if is_bundled else node.name == class_name:
            return _literal(node, attribute)
    return None


def _literal(node: ast.ClassDef, attribute: str) -> Any:  # noqa: ANN401  any literal
    import ast  # noqa: PLC0415  as above

    for statement in node.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        if any(isinstance(target, ast.Name) and target.id == attribute for target in targets):
            assert isinstance(statement, (ast.Assign, ast.AnnAssign))
            return None if statement.value is None else ast.literal_eval(statement.value)
    return None


def _bundled_file(name: str) -> str:
    return os.path.join(WORKLOADS, name + ".py")


def _file_and_class(name: str) -> tuple[str, str]:
    """Return the parts of `/path/file.py:Class`."""
    path, separator, class_name = name.rpartition(":")
    if not separator or not path.endswith(".py"):
        known = ", ".join(bundled())
        raise UnknownWorkloadError(f"no workload {name!r}; there are {known}, or FILE.py:CLASS")
    return path, class_name


def code_hash(name: str, files: Sequence[str] = ()) -> str:
    """Return the sha256 of the code of all bundled workloads and the harness.

    For a user's workload it also covers its file and the `files` that were sent with it, under
    their names in its folder.
    """
    paths = glob.glob(os.path.join(WORKLOADS, "**", "*.py"), recursive=True)
    places = sorted((os.path.relpath(path, WORKLOADS), path) for path in paths)
    if name not in bundled():
        folder, file = os.path.split(name.rpartition(":")[0])
        places += [(each, os.path.join(folder, each)) for each in sorted({file, *files})]
    digest = hashlib.sha256()
    for place, path in places:
        with open(path, "rb") as stream:
            content = stream.read()
        digest.update(f"{place} {len(content)}\n".encode(errors="surrogateescape") + content)
    return digest.hexdigest()


def _import_file(path: str) -> object:
    """Import a file once, under a unique name; its folder is searched after all others.

    The bundled workloads come last, so the file may import its own module `layer`.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no workload file {path}")
    name = "workload_" + os.path.basename(path)[: -len(".py")]
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == path:
        return known
    others = [place for place in sys.path if os.path.abspath(place) != WORKLOADS]
    sys.path[:] = [*others, os.path.dirname(os.path.abspath(path)), WORKLOADS]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # half a module would pass for a whole one
        raise
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
