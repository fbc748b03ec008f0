"""Which cases of a test wait for the nightly job."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def nightly_except(kept: Container[Any], cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a test; only those that are kept are part of every run."""
    return [
        case if case in kept else pytest.param(case, marks=pytest.mark.nightly) for case in cases
    ]
