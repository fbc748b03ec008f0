"""How far a run is: seen from another terminal, and by a program that follows its events."""

from __future__ import annotations

import json
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from commandline import envcompare
from runs import run_folder, running, unfinish
from schemas import schema_text

from envcompare.analysis.compare import compare_run
from envcompare.report.wording.verdicts import estimate_text
from envcompare.run_folder.results import RunFolder
from envcompare.runner import live_text
from envcompare.stats.intervals import Interval

WORDS = (
    "--envs", "vm@host,b=vm@host", "--no-quiet-gate", "--profile", "none",
    "--command", "sleep 0.2",
)  # fmt: skip


def asked(folder: Path) -> dict[str, Any]:
    """Return what status says of a run as JSON, which fits its schema."""
    done = envcompare("status", str(folder), "--format", "json", cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(said, json.loads(schema_text("status")))
    return said


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a place with a run that has ended, and its events as a program was told them."""
    place = tmp_path_factory.mktemp("ended")
    done = envcompare("run", "--quick", *WORDS, "--budget", "6", "--events", "json", cwd=place)
    assert done.returncode == 0, done.stderr
    (place / "stdout").write_text(done.stdout)
    (place / "stderr").write_text(done.stderr)
    return place


def test_status_follows_a_run_from_going_on_to_interrupted(tmp_path: Path) -> None:
    """A run that was killed is interrupted, whatever its last event says."""
    with running(tmp_path, *WORDS, "--budget", "300", "--target", "0.001") as process:
        folder = run_folder(tmp_path)
        assert folder is not None
        said = asked(folder)
        assert (said["state"], said["owner"]["pid"]) == ("going-on", process.pid)
        (cell,) = said["cells"]
        assert (cell["state"], [arm["arm"] for arm in cell["arms"]]) == (
            "going-on", ["b", "vm-host~control"],
        )  # fmt: skip
        assert 0 < cell["budget_left_s"] < 300
        before = (folder / "events.jsonl").read_bytes()
        text = envcompare("status", str(folder), cwd=tmp_path).stdout
        assert f"run {folder.name}: going on for " in text
        assert f": process {process.pid} on " in text
        assert before in (folder / "events.jsonl").read_bytes()
        process.send_signal(signal.SIGKILL)
        process.wait()
    said = asked(folder)
    assert (said["state"], said["owner"]) == ("interrupted", None)
    assert said["cells"][0]["state"] == "interrupted"


def test_status_of_a_run_that_has_ended(ended: Path) -> None:
    """Its cells have their states and intervals, and nothing of a budget is left."""
    folder = run_folder(ended / "results")
    assert folder is not None
    said = asked(folder)
    assert said["state"] == "ended"
    (cell,) = said["cells"]
    assert (cell["state"], cell["budget_left_s"], cell["is_program"]) == ("ok", None, True)
    assert cell["restarts"] > 1
    text = envcompare("status", str(folder), cwd=ended).stdout
    assert text.startswith(f"run {folder.name}: ended\n  local/sleep/default: ok, stopped: ")
    assert f", {cell['restarts']} processes\n" in text


def test_status_of_a_run_that_was_cut_off(ended: Path, tmp_path: Path) -> None:
    """With a torn last line, and no lock at all."""
    whole = run_folder(ended / "results")
    assert whole is not None
    folder = tmp_path / whole.name
    shutil.copytree(whole, folder)
    unfinish(folder)
    (folder / ".lock").unlink()
    with (folder / "events.jsonl").open("a") as events:
        events.write('{"t": 1')
    said = asked(folder)
    assert (said["state"], said["cells"][0]["state"]) == ("interrupted", "interrupted")
    assert not (folder / ".lock").exists()


def test_status_has_the_numbers_of_the_report(tmp_path: Path) -> None:
    """They are those of the verdict, not of the typical step where the mean decides."""
    folder = tmp_path / "run"
    shutil.copytree(Path(__file__).parents[1] / "data" / "runs" / "1x1x1", folder)
    told = envcompare("status", str(folder), cwd=tmp_path).stdout
    (docker,) = (one for one in compare_run(RunFolder.open(folder)).compared if one.arm == "docker")
    assert docker.deciding
    assert docker.primary
    assert estimate_text(docker.deciding) != estimate_text(docker.primary)
    assert f"    docker: {estimate_text(docker.deciding)}\n" in told


@pytest.mark.parametrize(
    ("change", "half_width", "said"),
    [
        (-0.001, 0.041, "−0.1 % ± 4.1 %"),
        (0.5, 0.052, "+50.0 % ± 5.2 %"),
        (-0.0002, 0.001, "0.0 % ± 0.1 %"),
        (30.0, 2.0, "×31"),
    ],
)
def test_progress_is_written_as_in_the_report(change: float, half_width: float, said: str) -> None:
    """A minus sign and a space before the percent sign."""
    interval = Interval(
        mean=math.log1p(change),
        half_width=half_width,
        unit="restart",
        restarts=9,
        generations=9,
        level=0.95,
    )
    assert live_text({"b": interval, "c": None}) == f"b {said}, c not yet known"


@pytest.mark.parametrize("content", [None, "{", '{"run_id": 1}'])
def test_status_of_what_is_no_run(content: str | None, tmp_path: Path) -> None:
    """The error says so, with the code for a run folder that cannot be read."""
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    done = envcompare("status", str(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("error: ")


def test_events_go_to_stdout_as_they_are_kept(ended: Path) -> None:
    """Each line fits the schema; what people read goes to stderr."""
    folder = run_folder(ended / "results")
    assert folder is not None
    said = (ended / "stdout").read_text()
    assert said == (folder / "events.jsonl").read_text()
    schema = json.loads(schema_text("events"))
    events = [json.loads(line) for line in said.splitlines()]
    for event in events:
        jsonschema.validate(event, schema)
    assert (events[0]["what"], events[0]["values"]) == ("run-started", {"run": folder.name})
    assert events[-1]["what"] == "run-ended"
    assert "report: " in (ended / "stderr").read_text()
