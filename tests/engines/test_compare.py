"""Two real runs of one machine are comparable, and a run under another policy is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from commandline import envcompare as call
from lab import Lab
from runs import LIGHT, STEPS_ALONE, Done, envcompare

from envcompare.analysis.two_runs import RunChange

pytestmark = [
    pytest.mark.engine("ssh"),
    pytest.mark.engine("docker"),
    pytest.mark.timeout(420),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a workload whose workers start at once."""
    made = tmp_path_factory.mktemp("changes")
    (made / "light.py").write_text(LIGHT)
    return made


def measured(lab: Lab, place: Path, name: str, *arguments: str) -> Done:
    """Run vm and docker on the lab host for some seconds."""
    done = envcompare(
        place / name,
        *("--hosts", lab.alias, "--envs", "vm,docker", "--workload", f"{place}/light.py:Light"),
        *("--restarts", "2", "--rounds", "3", *STEPS_ALONE, *arguments),
    )
    assert done.exit_code == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def before(lab: Lab, place: Path) -> Done:
    """Return a run."""
    return measured(lab, place, "before", "--seed", "1")


def test_two_runs_of_one_machine_are_compared(lab: Lab, place: Path, before: Done) -> None:
    """Nothing that must be the same varies from run to run by itself."""
    after = measured(lab, place, "after", "--seed", "2")
    arguments = (str(before.folder), str(after.folder), "--format", "json")
    done = call("compare", *arguments, cwd=place)
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(done.stdout, type=RunChange)
    assert [(change.arm, change.differences) for change in found.changes] == [("docker", ())]
    assert (found.mismatches, found.left_out, found.cautions) == ((), (), ())


def test_a_run_under_another_policy_is_refused(lab: Lab, place: Path, before: Done) -> None:
    """Without fixed allocator thresholds the workload is another one."""
    other = measured(lab, place, "other", "--no-stabilise")
    done = call("compare", str(before.folder), str(other.folder), cwd=place)
    assert done.returncode == 2
    assert "--stabilise on → off" in done.stderr
    allowed = call("compare", str(before.folder), str(other.folder), "--allow-mismatch", cwd=place)
    assert allowed.returncode == 0, allowed.stderr
    assert "Compared despite a mismatch" in " ".join(allowed.stdout.split())
