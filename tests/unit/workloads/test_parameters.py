"""The parameters of a workload, given and checked."""

from __future__ import annotations

from typing import Any

import pytest
from harness.loading import ParameterError, require, require_one_of, resolve

DEFAULTS: dict[str, Any] = {"batch": 64, "lr": 1.0, "optimizer": "sgd", "evaluate": False}


def test_defaults_stand_when_nothing_is_given() -> None:
    """Every parameter comes back with its default, in the order of the defaults."""
    assert list(resolve(DEFAULTS, {}).items()) == list(DEFAULTS.items())


def test_given_values_replace_defaults() -> None:
    """A whole number serves where a float is the default, and becomes one."""
    found = resolve(DEFAULTS, {"lr": 2, "batch": 8, "evaluate": True, "optimizer": "adam"})
    assert found == {"batch": 8, "lr": 2.0, "optimizer": "adam", "evaluate": True}
    assert type(found["lr"]) is float


@pytest.mark.parametrize(
    ("given", "brief"),
    [
        ({"bach": 8}, "unknown parameter 'bach'; known are: batch, evaluate, lr, optimizer"),
        ({"batch": 8.0}, "parameter 'batch' is 8.0 (float) and must be int, as its default 64"),
        ({"batch": True}, "parameter 'batch' is True (bool) and must be int"),
        ({"lr": "0.1"}, "parameter 'lr' is '0.1' (str) and must be float"),
        ({"lr": float("nan")}, "parameter 'lr' is nan and must be finite"),
        ({"evaluate": 1}, "parameter 'evaluate' is 1 (int) and must be bool"),
        ({"optimizer": None}, "parameter 'optimizer' is None (NoneType) and must be str"),
    ],
)
def test_wrong_parameter_is_named(given: dict[str, Any], brief: str) -> None:
    """The message names the parameter, the value and what would be right."""
    with pytest.raises(ParameterError) as caught:
        resolve(DEFAULTS, given)
    assert str(caught.value).startswith(brief)


def test_range_is_named_when_a_value_lies_outside() -> None:
    """Limits and choices stand in the message."""
    require("batch", 1, least=1)
    with pytest.raises(ParameterError, match="'batch' is 0 and must be at least 1"):
        require("batch", 0, least=1)
    with pytest.raises(ParameterError, match=r"'dropout1' is 1\.5 and must be from 0 to 1"):
        require("dropout1", 1.5, least=0, most=1)
    with pytest.raises(ParameterError, match="'sdg' and must be one of: sgd, adam"):
        require_one_of("optimizer", "sdg", {"sgd": "SGD", "adam": "Adam"})
