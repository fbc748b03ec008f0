"""A workload by its name: its class, its parameters, its object, and the hash of its source."""

from __future__ import annotations

import copy
import glob
import hashlib
import importlib
import importlib.util
import math
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Collection, Mapping, Sequence, Union

from harness.failures import ContractError, HintedError

if TYPE_CHECKING:
    import ast

Value = Union[int, float, str, bool]
# Each file in this folder is a bundled workload: its one class with a method `step`, which may be
# inherited from a class of `harness.training`.
WORKLOADS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class ParameterError(HintedError):
    """A parameter is unknown, of the wrong type or outside its range."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="correct it in --set, or under [set] of the file")


def resolve(defaults: Mapping[str, Value], given: Mapping[str, Any]) -> dict[str, Value]:
    """Return every parameter with its value; a default gives the type.

    An int is taken where a float is the default. A bool is never a number.
    """
    for name in given:
        if name not in defaults:
            known = ", ".join(sorted(defaults)) or "none"
            raise ParameterError(f"unknown parameter {name!r}; known are: {known}")
    return {
        name: _typed(name, default, given[name]) if name in given else default
        for name, default in defaults.items()
    }


def require_ranges(values: Mapping[str, Value], ranges: Mapping[str, Sequence[Any]]) -> None:
    """Raise ParameterError for a value outside what a workload declares.

    The range of a text or a bool is its choices; that of a number its least and its most value,
    None where there is no such end.
    """
    for name, limits in ranges.items():
        value = values[name]
        if isinstance(value, (str, bool)):
            require_one_of(name, value, limits)
            continue
        least, most = limits
        require(
            name,
            value,
            least=-math.inf if least is None else least,
            most=math.inf if most is None else most,
        )


def require(name: str, value: float, *, least: float, most: float = math.inf) -> None:
    """Raise ParameterError unless `least` <= value <= `most`."""
    if not least <= value <= most:
        limit = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        limit = f"at most {most:g}" if least == -math.inf else limit
        raise ParameterError(f"parameter {name!r} is {value:g} and must be {limit}")


def require_multiple(values: Mapping[str, Any], name: str, *, of: Union[str, int]) -> None:
    """Raise ParameterError unless a parameter is a multiple of another one, or of a number."""
    least = values[of] if isinstance(of, str) else of
    if values[name] % least:
        what = f"{of!r}, {least}" if isinstance(of, str) else f"{least}"
        raise ParameterError(
            f"parameter {name!r} is {values[name]} and must be a multiple of {what}"
        )


def require_one_of(name: str, value: Value, choices: Collection[object]) -> None:
    """Raise ParameterError unless the value is one of the choices."""
    if value not in choices:
        raise ParameterError(
            f"parameter {name!r} is {value!r} and must be one of: {', '.join(map(str, choices))}"
        )


def _typed(name: str, default: Value, value: Any) -> Value:  # noqa: ANN401  it comes from JSON
    kind = type(default)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ParameterError(
            f"parameter {name!r} is {value!r} ({type(value).__name__}) and must be "
            f"{kind.__name__}, as its default {default!r}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ParameterError(f"parameter {name!r} is {value!r} and must be finite")
    result: Value = value
    return result


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
        folder, file = imported_from(name.rpartition(":")[0])
        places += [(each, os.path.join(folder, each)) for each in sorted({file, *files})]
    digest = hashlib.sha256()
    for place, path in places:
        with open(path, "rb") as stream:
            content = stream.read()
        digest.update(f"{place} {len(content)}\n".encode(errors="surrogateescape") + content)
    return digest.hexdigest()


def imported_from(path: str) -> tuple[str, str]:
    """Return the folder from which a file is imported, and its name there.

    That is its own folder, or the one around the packages that it is in.
    """
    folder = os.path.dirname(path)
    while os.path.isfile(os.path.join(folder, "__init__.py")) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder, os.path.relpath(path, folder)


def _import_file(path: str) -> object:
    """Import a file once, as a module of its package, else under a unique name.

    Its folder, or that of its package, is searched after all others.

    The bundled workloads come last, so the file may import its own module `layer`.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no workload file {path}")
    name = "workload_" + os.path.basename(path)[: -len(".py")]
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == path:
        return known
    others = [place for place in sys.path if os.path.abspath(place) != WORKLOADS]
    folder, file = imported_from(os.path.abspath(path))
    sys.path[:] = [
        *others,
        *dict.fromkeys((folder, os.path.dirname(os.path.abspath(path)))),
        WORKLOADS,
    ]
    if os.sep in file:
        sys.modules[name] = _module_of_package(file, path)
        return sys.modules[name]
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


def _module_of_package(file: str, path: str) -> ModuleType:
    """Import a file as the module that it is from the folder around its packages."""
    own = file[: -len(".py")].replace(os.sep, ".")
    hint = "rename the package, or install the version that you want to measure"
    try:
        module = importlib.import_module(own)
    except ModuleNotFoundError as error:
        if not f"{own}.".startswith(f"{error.name}."):
            raise
        raise ContractError(f"another package hides {own} here", hint=hint) from error
    found = str(getattr(module, "__file__", None))
    if os.path.realpath(found) != os.path.realpath(path):
        raise ContractError(f"{own} is installed here too, as {found}", hint=hint)
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
