"""The parameters of a workload: its defaults, and the user's values."""

from __future__ import annotations

import math
from typing import Any, Collection, Mapping, Sequence, Union

from harness.failures import HintedError

Value = Union[int, float, str, bool]


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
