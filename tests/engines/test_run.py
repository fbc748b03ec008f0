"""The whole command on real engines: what it measures, what it leaves, and what it survives."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import jsonschema
import pytest
from lab import ON_ONE_NODE, ROOT, Lab
from playwright.sync_api import Browser
from runs import (
    BASE,
    LIGHT,
    STEPS_ALONE,
    UNTIL_KNOWN,
    Done,
    envcompare,
    resume,
    run_folder,
    running,
    unfinish,
)

from envcompare.environments.oci import image_store
from envcompare.stack import Progress, image
from envcompare.text import Command
from envcompare.transport import LOCAL, run
from envcompare.transport.hosts import connect, parse_hosts

pytestmark = [pytest.mark.engine("ssh"), pytest.mark.timeout(420)]
BUILD_A_SIF = "apptainer -q build -F $1 docker-daemon:$2"
RETAG = """
container=$(docker create "$1" true)
docker commit --change "LABEL envcompare.test=retagged" "$container" "$1"
docker rm "$container" >/dev/null
"""
KILL_A_CONTAINER = (  # between two generations there is none
    "until docker ps -q --filter label=envcompare.run | head -n 1 | xargs docker kill; "
    "do sleep 0.1; done"
)


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a workload file whose workers start at once."""
    path = tmp_path_factory.mktemp("own") / "light.py"
    path.write_text(LIGHT)
    return path


@pytest.fixture(autouse=True)
def nothing_left(lab: Lab, tmp_path: Path) -> Iterator[None]:
    """After every test no container, no process and no folder of its runs is left on the host."""
    yield
    for path in tmp_path.glob("*/run.json"):
        assert wait_until_empty(lab, path.parent) == ""


def wait_until_empty(lab: Lab, folder: Path | None) -> str:
    """Return what is left of a run on the host, after giving it some seconds to end."""
    assert folder is not None
    for _ in range(40):
        left = lab.left_of(folder.name)
        if not left:
            return ""
        time.sleep(0.5)
    return left


@pytest.fixture(scope="module")
def whole_run(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Return the main job: three environments, two workloads, over SSH."""
    return envcompare(
        tmp_path_factory.mktemp("whole"),
        *("--hosts", lab.alias, "--envs", "vm,docker,singularity", "--workloads", "cnn,rnn"),
        *("--budget", "15", "--seed", "5", "--profile", "none"),
    )


needs_all = [pytest.mark.engine("docker"), pytest.mark.engine("singularity")]


class TestWholeRun:
    """The main job leaves a folder and a report that say what happened."""

    pytestmark = needs_all

    def test_ends_well_and_prints_a_verdict_for_each_environment(self, whole_run: Done) -> None:
        """Exit code 0, a row for each arm, the margin, and the path of the report."""
        assert whole_run.exit_code == 0, whole_run.stderr
        for word in ("docker", "singularity", "±5 %", "report.html"):
            assert word in whole_run.stdout

    def test_leaves_nothing_on_the_host(self, lab: Lab, whole_run: Done) -> None:
        """Containers, workers and the folder of the run go with it."""
        assert wait_until_empty(lab, whole_run.folder) == ""

    def test_measures_every_arm_in_every_cell(self, whole_run: Done) -> None:
        """Blocks of all four arms in both cells; the warm-up is marked."""
        found = {
            (line["cell"], line["arm"], line["warmup"])
            for line in whole_run.lines("samples.jsonl")
            if line["kind"] == "block"
        }
        cells = ("lab-h1/cnn/default", "lab-h1/rnn/default")
        arms = ("vm", "docker", "singularity", "vm~control")
        assert found == {(c, a, w) for c in cells for a in arms for w in (False, True)}

    @ON_ONE_NODE
    def test_runs_all_arms_of_most_rounds_on_one_cpu(self, whole_run: Done) -> None:
        """Else what wakes a worker would decide which one it gets; a page from the disk waits."""
        for cell in whole_run.read("comparison.json")["cells"]:
            assert cell["held_rounds"] > cell["rounds"] / 2, cell["id"]

    def test_measures_start_up_and_memory_of_every_environment(self, whole_run: Done) -> None:
        """Each phase is a positive time, and the classic real is at least their sum."""
        lines = [x for x in whole_run.lines("samples.jsonl") if x["kind"] == "startup"]
        assert {line["arm"] for line in lines} == {"vm", "docker", "singularity"}
        for line in lines:
            parts = ("import", "data", "build", "first_step", "train", "exit")
            assert all(line[f"{part}_ns"] > 0 for part in parts)
            assert line["real_ns"] > sum(line[f"{part}_ns"] for part in parts)
        memory = [x for x in whole_run.lines("samples.jsonl") if x["kind"] == "memory"]
        assert all(line["max_rss_bytes"] > 50_000_000 for line in memory)

    def test_every_arm_did_the_same_work(self, whole_run: Done) -> None:
        """The first loss of a generation is the same in every arm."""
        losses: dict[tuple[str, int, int], set[float]] = {}
        for line in whole_run.lines("samples.jsonl"):
            if line["kind"] == "block":
                key = (line["cell"], line["restart"], line["generation"])
                losses.setdefault(key, set()).add(round(line["checksum"], 4))
        assert losses
        assert all(len(found) == 1 for found in losses.values())

    def test_proves_the_same_software_in_every_arm(self, whole_run: Done) -> None:
        """Packages, interpreter and C library are those of the reference: nothing confounds."""
        assert whole_run.folder is not None
        prints = [
            json.loads(path.read_text())["facts"]
            for path in sorted(whole_run.folder.glob("fingerprints/lab-h1/*/cnn_default.json"))
        ]
        assert len(prints) == 4
        for key in ("packages", "python.sha256", "libc.version", "torch.version"):
            assert len({json.dumps(facts[key]) for facts in prints}) == 1, key
        differences = whole_run.read("comparison.json")["differences"]
        assert [d["key"] for d in differences if d["fact_class"] == "confounder"] == []

    def test_run_folder_obeys_its_schemas(self, whole_run: Done) -> None:
        """What is written is what docs/schema says."""
        for name in ("run", "comparison"):
            schema = json.loads((ROOT / "docs" / "schema" / f"{name}.schema.json").read_text())
            jsonschema.validate(whole_run.read(f"{name}.json"), schema)
        for name in ("samples", "events"):
            schema = json.loads((ROOT / "docs" / "schema" / f"{name}.schema.json").read_text())
            for line in whole_run.lines(f"{name}.jsonl"):
                jsonschema.validate(line, schema)

    @pytest.mark.browser
    def test_report_opens_in_chromium_with_the_answer_on_the_first_screen(
        self, whole_run: Done, browser: Browser
    ) -> None:
        """Headline and table at 1280 × 860, and nothing on the console."""
        messages: list[str] = []
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.on("console", lambda message: messages.append(message.text))
        assert whole_run.folder is not None
        page.goto((whole_run.folder / "report.html").as_uri())
        box = page.locator("#answer table").first.bounding_box()
        assert "docker" in page.locator("#answer").inner_text()
        assert box is not None
        assert box["y"] + box["height"] <= 860
        assert messages == []
        page.close()

    def test_report_is_drawn_again_from_the_folder_alone(self, whole_run: Done) -> None:
        """The page is the same, byte for byte."""
        assert whole_run.folder is not None
        before = (whole_run.folder / "report.html").read_bytes()
        subprocess.run(
            [sys.executable, "-m", "envcompare", "report", str(whole_run.folder)],
            check=True,
            capture_output=True,
        )
        assert (whole_run.folder / "report.html").read_bytes() == before


class TestFailures:
    """One thing that fails never takes the others with it, and is always explained."""

    @pytest.mark.engine("docker")
    def test_missing_images_fail_their_arms_alone(
        self, lab: Lab, light: Path, tmp_path: Path
    ) -> None:
        """An image and a SIF that are not there: exit code 3, the others are measured."""
        done = envcompare(
            tmp_path,
            *("--hosts", lab.alias, "--workload", f"{light}:Light", "--budget", "3", *STEPS_ALONE),
            *("--envs", "vm,docker,bad=docker:nosuch:1,worse=singularity:/nowhere.sif"),
        )
        assert done.exit_code == 3
        assert done.outcomes()[("light-Light", "bad")] == "failed"
        assert done.outcomes()[("light-Light", "worse")] == "failed"
        blocks = [x for x in done.lines("samples.jsonl") if x["kind"] == "block"]
        assert {block["arm"] for block in blocks} == {"vm", "docker", "vm~control"}
        page = (done.folder or Path()).joinpath("report.html").read_text()
        for text in (done.stderr, page):
            assert "nosuch:1 is not on" in text
            assert "/nowhere.sif" in text

    def test_corrupt_sif_is_named(self, lab: Lab, light: Path, tmp_path: Path) -> None:
        """A file that is no image is said to be none."""
        lab.as_root(
            "sh", "-c", "head -c 100000 /dev/urandom > /tmp/corrupt.sif; chmod 644 /tmp/corrupt.sif"
        )
        done = envcompare(
            tmp_path,
            *("--hosts", lab.alias, "--workload", f"{light}:Light", "--budget", "8"),
            *("--envs", "vm,bad=singularity:/tmp/corrupt.sif"),
        )
        assert done.exit_code == 3
        assert "/tmp/corrupt.sif" in done.stderr
        assert "try:" in done.stderr
        lab.as_root("rm", "/tmp/corrupt.sif")

    def test_workload_that_breaks_is_told_by_phase(
        self, lab: Lab, light: Path, tmp_path: Path
    ) -> None:
        """Exit code 4, the phase, the step and the log; the run ends by itself."""
        expected = {
            "RaisesInSetup": ("setup", "no such layer"),
            "RaisesInStepSeven": ("step", "the loss is not a number (step 7)"),
            "Exits": ("process", "exit"),
        }
        done = envcompare(
            tmp_path,
            *("--hosts", lab.alias, "--envs", "vm", "--budget", "8"),
            *(word for name in expected for word in ("--workload", f"{light}:{name}")),
        )
        assert done.exit_code == 4
        failures = done.read("comparison.json")["course"]["failures"]
        for name, (phase, text) in expected.items():
            found = next(
                failure for failure in failures if failure["cell"] == f"lab-h1/light-{name}/default"
            )
            assert found["phase"] == phase
            assert text in found["brief"]
            assert (done.folder or Path()).joinpath(found["log"]).is_file()

    @pytest.mark.engine("docker")
    def test_arm_that_fails_leaves_the_others_alone(
        self, lab: Lab, light: Path, tmp_path: Path
    ) -> None:
        """Docker fails, vm and its control are measured to the end."""
        expected = {"RaisesInDocker": "docker gave too little", "OtherWorkInDocker": "same work"}
        done = envcompare(
            tmp_path,
            *("--hosts", lab.alias, "--envs", "vm,docker,sif=singularity:/nowhere.sif"),
            *("--budget", "3", "--profile", "none", "--no-quiet-gate"),
            *(word for name in expected for word in ("--workload", f"{light}:{name}")),
        )
        assert done.exit_code == 3  # of an arm that was never usable and a workload that failed
        for name, text in expected.items():
            assert done.outcomes()[(f"light-{name}", "docker")] == "failed"
            assert text in done.stdout

    def test_hosts_that_cannot_be_reached_leave_the_others_alone(
        self, lab: Lab, light: Path, tmp_path: Path
    ) -> None:
        """A refused port and an unknown name: exit code 3, the good host is measured."""
        done = envcompare(
            tmp_path,
            *("--hosts", f"{lab.alias},bench@127.0.0.1:1,nowhere.invalid", "--envs", "vm"),
            *("--workload", f"{light}:Light", "--budget", "3", *STEPS_ALONE),
            *("--connect-timeout", "5"),
        )
        assert done.exit_code == 3
        states = {cell["host"]: cell["state"] for cell in done.read("comparison.json")["cells"]}
        assert sorted(states.values()) == ["ok", "unreachable", "unreachable"]
        assert done.stderr.count("try:") >= 2


class TestInterruption:
    """Whatever ends envcompare, what was measured is kept and nothing runs on."""

    def start(
        self, out: Path, lab: Lab, light: Path
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        """Start a run in three environments, for as long as the context is open."""
        return running(
            out,
            *("--hosts", lab.alias, "--envs", "vm,docker,singularity", "--budget", "16"),
            *("--workload", f"{light}:Light", *STEPS_ALONE),
        )

    def test_kill_leaves_a_folder_that_can_be_read(
        self, lab: Lab, light: Path, tmp_path: Path
    ) -> None:
        """After kill -9 the report is drawn from what was measured, marked as incomplete."""
        with self.start(tmp_path, lab, light) as process:
            process.kill()
        folder = run_folder(tmp_path)
        drawn = subprocess.run(
            [sys.executable, "-m", "envcompare", "report", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert drawn.returncode == 0, drawn.stderr
        assert (
            json.loads((folder / "comparison.json").read_text())["course"]["is_complete"] is False
        )
        assert "not complete" in drawn.stdout
        lab.remove(folder.name)

    def test_interrupted_run_is_saved_and_resumed(
        self, lab: Lab, light: Path, tmp_path: Path
    ) -> None:
        """Ctrl-C once: exit code 130 and a report; --resume finishes the run."""
        with self.start(tmp_path, lab, light) as process:
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130, stderr
        assert "--resume" in stderr
        folder = run_folder(tmp_path)
        before = (folder / "samples.jsonl").read_bytes()
        resume(folder)
        assert (folder / "samples.jsonl").read_bytes().startswith(before)
        assert json.loads((folder / "comparison.json").read_text())["course"]["is_complete"] is True

    def test_second_interruption_kills_and_cleans_up(
        self, lab: Lab, light: Path, tmp_path: Path
    ) -> None:
        """Ctrl-C twice in a row: exit code 130, and nothing is left on the host."""
        with self.start(tmp_path, lab, light) as process:
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130, stderr
        assert wait_until_empty(lab, run_folder(tmp_path)) == ""

    @pytest.mark.engine("docker")
    def test_killed_container_ends_its_generation_alone(
        self, lab: Lab, light: Path, tmp_path: Path
    ) -> None:
        """A worker killed from outside is launched again; the death is recorded."""
        with self.start(tmp_path, lab, light) as process:
            lab.as_root("timeout", "20", "sh", "-c", KILL_A_CONTAINER)
            _, stderr = process.communicate(timeout=120)
        folder = run_folder(tmp_path)
        events = [json.loads(x) for x in (folder / "events.jsonl").read_text().splitlines()]
        assert [e["arm"] for e in events if e["what"] == "arm-failed"] == ["docker"], stderr
        assert process.returncode in {0, 4}


@pytest.fixture
def named(lab: Lab) -> Iterator[str]:
    """Give the name of an image that the lab host's engine holds."""
    name = "envcompare-test-resumed:1"
    host = connect(parse_hosts([lab.alias])[0])
    found = image.find(image_store(LOCAL), BASE)
    assert found, f"{BASE} is not here; script/lab up makes it"
    there = image.deliver(
        image_store(host), found, local=image_store(LOCAL), progress=Progress(print)
    )
    assert run(host, Command(argv=("docker", "tag", there.id, name))).succeeded
    yield name
    run(host, Command(argv=("docker", "image", "rm", name)))
    host.close()


@pytest.mark.engine("docker")
class TestResumedWithOtherSoftware:
    """A name or a path that leads to other software than it did is refused with both."""

    def measured(self, lab: Lab, out: Path, arm: str) -> Path:
        """Measure a command in an arm, and let its cell be open again."""
        done = envcompare(
            out,
            *("--hosts", lab.alias, "--envs", f"vm@host,own={arm}", *UNTIL_KNOWN),
            *("--command", "sleep 0.01", "--command-dir", "/home/bench", "--no-quiet-gate"),
        )
        assert done.exit_code == 0, done.stderr
        assert done.folder is not None
        unfinish(done.folder)
        return done.folder

    def refused(self, lab: Lab, folder: Path, *values: str) -> None:
        """Try to go on; nothing is measured, and both values are said."""
        samples = (folder / "samples.jsonl").read_bytes()
        events = (folder / "events.jsonl").read_bytes()
        said = resume(folder, exit_code=2)
        assert f"own on {lab.alias} changed since it was started" in said
        assert f"the {values[0]}, now {values[1]}" in said
        assert (folder / "samples.jsonl").read_bytes() == samples
        assert (folder / "events.jsonl").read_bytes() == events

    def test_image_of_another_content_under_the_name(
        self, lab: Lab, named: str, tmp_path: Path
    ) -> None:
        """The IDs of both images are named; the first under its name again is measured on."""
        inspect = ("docker", "image", "inspect", "--format", "{{.Id}}", named)
        first = lab.as_root(*inspect).strip()
        folder = self.measured(lab, tmp_path, f"docker:{named}")
        lab.as_root("sh", "-c", RETAG, "sh", named)
        second = lab.as_root(*inspect).strip()
        assert first != second
        self.refused(lab, folder, f"image was {first}", second)
        lab.as_root("docker", "tag", first, named)
        lab.as_root("docker", "image", "rm", second)
        resume(folder)

    @pytest.mark.nightly
    @pytest.mark.engine("singularity")
    def test_sif_of_another_content_at_the_path(self, lab: Lab, named: str, tmp_path: Path) -> None:
        """Its path is the same, its hash is not."""
        path = "/home/bench/resumed.sif"
        lab.as_root("su", "bench", "-c", BUILD_A_SIF, "sh", path, named)
        try:
            first = lab.as_root("sha256sum", path).split()[0]
            folder = self.measured(lab, tmp_path, f"singularity:{path}")
            lab.as_root("sh", "-c", f"printf x >>{path}")
            second = lab.as_root("sha256sum", path).split()[0]
            self.refused(lab, folder, f"SIF was {first}", second)
        finally:
            lab.as_root("rm", "-f", path)
