"""`--docker-options` in a whole run: what the worker gets, and what the report says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runs import BASE, LIGHT, Done, envcompare

from envcompare.environments import Isolation, new_worker_mark
from envcompare.environments.registry import environment
from envcompare.text import Command
from envcompare.transport import LOCAL

pytestmark = [pytest.mark.engine("docker"), pytest.mark.timeout(300)]
OPTIONS = "free=--cap-add SYS_NICE --security-opt no-new-privileges=false --env API_TOKEN=hunter2"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Return a run of one image with and without options of the user's."""
    folder = tmp_path_factory.mktemp("options")
    (folder / "light.py").write_text(LIGHT)
    return envcompare(
        folder / "runs",
        *("--envs", f"usual=docker:{BASE},free=docker:{BASE}", "--docker-options", OPTIONS),
        *("--workload", f"{folder / 'light.py'}:Light", "--budget", "6", "--seed", "5"),
        *("--no-startup", "--no-quiet-gate", "--no-noise-memory"),
    )


def facts(done: Done, arm: str) -> Any:
    """Return the fingerprint of an arm."""
    (path,) = (done.folder or Path()).glob(f"fingerprints/*/{arm}/*.json")
    return json.loads(path.read_text())["facts"]


def test_the_worker_has_the_rights_that_were_asked_for(done: Done) -> None:
    """And that of the other arm has those of envcompare."""
    assert done.exit_code == 0, done.stderr
    assert facts(done, "usual")["no_new_privs"] is True
    assert facts(done, "free")["no_new_privs"] is False


def test_the_report_shows_the_options_of_each_arm_and_no_secret(done: Done) -> None:
    """They stand among the properties that differ on purpose."""
    ours = (
        "--network none --log-driver none --cap-drop ALL --security-opt no-new-privileges "
        "--pids-limit 8192"
    )
    assert facts(done, "usual")["engine.options"].startswith(ours)
    assert facts(done, "free")["engine.options"].endswith("--env API_TOKEN=***")
    (one,) = (
        d for d in done.read("comparison.json")["differences"] if d["key"] == "engine.options"
    )
    assert one["fact_class"] == "varied"
    page = (done.folder / "report.html").read_text() if done.folder else ""
    assert "--security-opt no-new-privileges=false" in page
    assert "hunter2" not in page


def test_profiles_are_made_with_a_root_that_is_read_only(done: Done) -> None:
    """The same work has been profiled in both arms."""
    records = list((done.folder or Path()).glob("profiles/*/*/host.json"))
    assert {path.parent.name for path in records} >= {"usual", "free"}
    assert {json.loads(path.read_text())["state"] for path in records} == {"ok"}


def test_labels_of_the_user_keep_no_container_from_being_removed(tmp_path: Path) -> None:
    """Of labels with one name the last counts, also after those of a file."""
    (tmp_path / "labels").write_text("envcompare.worker=mine\n")
    words = ("--label-file", str(tmp_path / "labels"), "--label", "envcompare.worker=mine")
    isolation = Isolation(
        run_id="labelled", arm="docker", reference=BASE, worker=new_worker_mark(), options=words
    )
    where = environment("docker")
    container = LOCAL.spawn(where.wrap(Command(argv=("sh", "-c", "echo up; cat")), isolation))
    assert container.stdout.readline() == b"up\n"
    assert where.sweep(LOCAL, "labelled", worker=isolation.worker) == 1
    assert container.wait(30) != 0
