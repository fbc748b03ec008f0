"""A host whose connection is lost in the middle of a run: gone on with, or given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lab import KILL_LOGINS, START_ENGINE, STOP_ENGINE, STOP_LOGINS, Lab
from runs import BASE, LIGHT, STEPS_ALONE, run_folder, running

from envcompare.run_folder.records import Block
from envcompare.run_folder.results import RunFolder

pytestmark = [
    pytest.mark.engine("ssh"), pytest.mark.engine("docker"), pytest.mark.timeout(420),
]  # fmt: skip


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a workload file that needs no PyTorch."""
    path = tmp_path / "own.py"
    path.write_text(LIGHT)
    return path


def measured(
    lab: Lab, own: Path, out: Path, *words: str, then: Callable[[], None]
) -> tuple[int, str, RunFolder]:
    """Run a cell on the lab host; do something while it is measured."""
    out.mkdir()
    with running(
        out,
        *("--hosts", lab.alias, "--workload", f"{own}:Light"),
        *("--envs", f"vm@host,mine=docker:{BASE}", "--budget", "20", "--target", "0.0001"),
        *(*STEPS_ALONE, *words),
    ) as process:
        then()
        said = process.communicate(timeout=300)
    folder = run_folder(out)
    assert folder is not None
    return process.returncode, "".join(said), RunFolder.open(folder)


def check_nothing_is_double_or_left(lab: Lab, folder: RunFolder) -> None:
    """Every block is there once, and the host is as it was."""
    blocks = [sample for sample in folder.read_samples().samples if isinstance(sample, Block)]
    keys = [
        (block.cell, block.arm, block.restart, block.calibration, block.round) for block in blocks
    ]
    assert len(keys) == len(set(keys)) > 0
    assert lab.left_of(folder.path.name) == ""


def test_run_goes_on_after_its_connection_was_killed(lab: Lab, own: Path, tmp_path: Path) -> None:
    """What was measured stays, what was left on the host goes, and the cell goes on."""
    code, said, folder = measured(
        lab, own, tmp_path / "out", then=lambda: _as_root(lab, KILL_LOGINS)
    )
    events = folder.read_events().events
    assert code == 0, said
    assert [event.what for event in events].count("host-lost") == 1
    assert [event.state for event in events if event.what == "cell-ended"] == ["ok"]
    assert "connected again" in said
    check_nothing_is_double_or_left(lab, folder)


@pytest.mark.nightly
def test_engine_that_starts_later_than_its_host_is_waited_for(
    lab: Lab, own: Path, tmp_path: Path
) -> None:
    """After a reboot sshd answers before dockerd does: no arm is given up for that."""

    def reboot() -> None:
        _as_root(lab, STOP_ENGINE + KILL_LOGINS)
        time.sleep(15)
        lab.as_root("sh", "-c", START_ENGINE)

    code, said, folder = measured(lab, own, tmp_path / "out", then=reboot)
    events = folder.read_events().events
    assert code == 0, said
    assert "arm-failed" not in [event.what for event in events]
    assert [event.state for event in events if event.what == "cell-ended"] == ["ok"]
    check_nothing_is_double_or_left(lab, folder)


@pytest.mark.nightly
def test_run_goes_on_after_the_network_was_cut_and_healed(
    lab: Lab, own: Path, tmp_path: Path
) -> None:
    """The host's sshd knows nothing of the cut: the claim it holds is taken over."""

    def cut_for_a_while() -> None:
        with lab.cut():
            time.sleep(15)

    code, said, folder = measured(lab, own, tmp_path / "out", then=cut_for_a_while)
    assert code == 0, said
    assert [event.what for event in folder.read_events().events].count("host-lost") == 1
    check_nothing_is_double_or_left(lab, folder)


def test_host_is_given_up_when_patience_is_over(lab: Lab, own: Path, tmp_path: Path) -> None:
    """Its cells are unreachable, with exit code 3, and a resumed run brings them to their end."""
    code, said, folder = measured(
        lab, own, tmp_path / "out", "--host-patience", "0", then=lambda: _as_root(lab, KILL_LOGINS)
    )
    ends = [event for event in folder.read_events().events if event.what == "cell-ended"]
    assert (code, [one.state for one in ends]) == (3, ["unreachable"])
    assert f"the connection to host '{lab.alias}' was lost" in said
    lab.remove(folder.path.name)


@pytest.mark.nightly
def test_sshd_that_stands_still_is_lost_too(lab: Lab, own: Path, tmp_path: Path) -> None:
    """TCP acknowledges what nobody reads: only the reply to a keepalive tells."""
    code, said, folder = measured(
        lab, own, tmp_path / "out", then=lambda: _as_root(lab, STOP_LOGINS)
    )
    _as_root(lab, KILL_LOGINS)
    assert code == 0, said
    assert [event.what for event in folder.read_events().events].count("host-lost") == 1
    check_nothing_is_double_or_left(lab, folder)


def _as_root(lab: Lab, script: str) -> None:
    time.sleep(2)  # in the middle of a restart
    lab.as_root("sh", "-c", script)
