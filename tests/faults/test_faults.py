"""Faults on purpose, the short part: each run is hurt, resumed, and whole in the end.

`script/faults` inflicts all of them, and far oftener.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faultkinds import FAULTS, SHORT
from faulttrials import on, trial
from lab import Lab
from nightly import nightly_except

pytestmark = [
    pytest.mark.engine("ssh"), pytest.mark.engine("docker"), pytest.mark.timeout(420),
]  # fmt: skip
SEED = os.environ.get("ENVCOMPARE_FAULTS_SEED", "1")
KILLS = 3
IN_EACH_RUN = ("answers-endless-line",)  # of CI; the others are nightly


def survive(name: str, number: int, lab: Lab, folder: Path) -> None:
    """Inflict a fault on a run, and check it."""
    with trial(on(lab, lab.alias), folder, f"{SEED}/{name}/{number}") as hurt:
        FAULTS[name].hurt(hurt)
        hurt.check()


@pytest.mark.parametrize("number", nightly_except((0,), range(KILLS)))
def test_run_whose_client_was_killed_is_whole_when_it_is_resumed(
    lab: Lab, tmp_path: Path, number: int
) -> None:
    """Whatever the client was at, each block is there once, and nothing is left."""
    survive("client-killed", number, lab, tmp_path)


@pytest.mark.parametrize("name", nightly_except(IN_EACH_RUN, SHORT))
def test_run_is_whole_after(lab: Lab, tmp_path: Path, name: str) -> None:
    """Each block is there once, nothing is left, and no verdict rests on a broken round."""
    survive(name, 0, lab, tmp_path)
