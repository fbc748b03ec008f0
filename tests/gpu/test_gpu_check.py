"""Everything that needs a real GPU, by the one command for it: CI has none.

    pytest tests/gpu -rs

runs `script/gpu-check` and gives each row of its table as a test. What the machine does not allow,
such as hardware counters, is skipped with the reason and the remedy that the run itself gave.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest
from lab import ROOT

import gpu_claims
from gpu_claims import Row

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(3 * 3600)]
BUDGET_S = os.environ.get("ENVCOMPARE_GPU_BUDGET", "60")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """Return the exit code of one call, and the folder it wrote to."""
    out = tmp_path_factory.mktemp("gpu")
    argv = [ROOT / "script" / "gpu-check", "--out", out, "--budget", BUDGET_S]
    return subprocess.run(argv, check=False).returncode, out


@pytest.fixture(scope="module")
def rows(checked: tuple[int, Path]) -> dict[str, Row]:
    """Return the rows of the table by their names."""
    (path,) = checked[1].glob("gpu-check-*/rows.json")
    found = msgspec.json.decode(path.read_bytes(), type=list[Row])
    return {row.check: row for row in found}


@pytest.mark.parametrize("check", ["the stacks are built", "the run ends", *gpu_claims.names()])
def test_row_of_the_table(rows: dict[str, Row], check: str) -> None:
    """It passed, or is not possible on this machine."""
    row = rows[check]
    if row.state == "not possible here":
        pytest.skip(row.detail)
    assert row.state == "passed", row.detail


def test_nothing_failed_and_the_image_reached_the_gpu(checked: tuple[int, Path]) -> None:
    """By the exit code that a person's script would look at."""
    assert checked[0] == 0


def test_archive_is_written(checked: tuple[int, Path]) -> None:
    """One file to send."""
    assert len(list(checked[1].glob("gpu-check-*.tar.gz"))) == 1
