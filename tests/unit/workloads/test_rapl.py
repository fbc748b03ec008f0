"""Energy of the processor by files as the kernel shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.counters import rapl

RANGE_UJ = 262_143_328_850


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder in the place of the kernel's, with two packages and what is within one."""
    monkeypatch.setattr(rapl, "FOLDER", str(tmp_path))
    for name in ("intel-rapl", "intel-rapl:0", "intel-rapl:0:1", "intel-rapl:1", "dtpm"):
        (tmp_path / name).mkdir()
    for name in ("intel-rapl:0", "intel-rapl:0:1", "intel-rapl:1"):
        (tmp_path / name / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
        (tmp_path / name / "energy_uj").write_text("1000000\n")
    return tmp_path


def test_energy_is_the_sum_of_the_packages(shown: Path) -> None:
    """What is within a package is counted with it, and not a second time."""
    before = rapl.read()
    (shown / "intel-rapl:0" / "energy_uj").write_text("3500000\n")
    (shown / "intel-rapl:0:1" / "energy_uj").write_text("9000000\n")
    (shown / "intel-rapl:1" / "energy_uj").write_text("1250000\n")
    assert rapl.joules(before, rapl.read()) == 2.75


def test_counter_that_began_anew_goes_on(shown: Path) -> None:
    """It wraps at a range that the kernel tells."""
    (shown / "intel-rapl:0" / "energy_uj").write_text(f"{RANGE_UJ - 1_000_000}\n")
    before = rapl.read()
    (shown / "intel-rapl:0" / "energy_uj").write_text("500000\n")
    assert rapl.joules(before, rapl.read()) == 1.5


def test_missing_and_closed_counters_are_told_apart(
    shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter that may not be read gives no energy, nor do those beside it."""
    whole = rapl.read()
    (shown / "intel-rapl:1" / "energy_uj").unlink()
    closed = rapl.read()
    assert (closed.packages, closed.reason, closed.hint) == ({}, rapl.CLOSED, rapl.CLOSED_HINT)
    assert rapl.joules(whole, closed) is None
    monkeypatch.setattr(rapl, "FOLDER", str(shown / "dtpm"))
    assert rapl.read() == rapl.Reading({}, rapl.ABSENT)
