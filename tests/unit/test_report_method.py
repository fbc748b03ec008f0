"""What the method section says of the rules that ended a cell."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from envcompare.analysis.model import RunComparison
from envcompare.report.method import method_view

DATA = Path(__file__).resolve().parents[1] / "data" / "report"
EXAMPLE = msgspec.json.decode((DATA / "three-arms.json").read_bytes(), type=RunComparison)


def told(run: RunComparison) -> str:
    """Return the sentence on stopping."""
    return next(text for text in method_view(run).sentences if "looked at" in text)


@pytest.mark.parametrize(("least", "rebuilt"), [(4, 8), (10, 10)])
def test_first_look_is_told_with_all_it_waits_for(least: int, rebuilt: int) -> None:
    """Restarts and generations, and more restarts where generations are rebuilt."""
    text = told(msgspec.structs.replace(EXAMPLE, min_restarts=least))
    assert f"from {least} restarts and 8 generations on" in text
    assert f"({rebuilt} restarts where generations are rebuilt" in text


def test_first_look_at_a_command_is_told_in_rounds() -> None:
    """A plain command has no generation."""
    cells = tuple(msgspec.structs.replace(one, processes=30) for one in EXAMPLE.cells)
    text = told(msgspec.structs.replace(EXAMPLE, cells=cells, min_restarts=4))
    assert "after each round, from 8 rounds on" in text
    assert "rebuilt" not in text
