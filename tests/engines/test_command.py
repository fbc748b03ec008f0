"""A plain command in vm, docker and singularity on a real host, and on this machine alone."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Lab
from runs import Done, envcompare, resume, run_folder, running

pytestmark = pytest.mark.timeout(420)

PROGRAM = """
import os, sys
assert sys.stdin.read() == ""
total = sum(i * i for i in range(int(sys.argv[1])))
if os.environ["ENVCOMPARE_ENVIRONMENT"] == sys.argv[2]:
    sys.exit("this environment is not liked")
print(f"loss: {total % 97 / 97:.6f}", file=sys.stderr)
"""
ALL = ("--envs", "vm,docker,singularity", "--measure", r"loss=loss: ([0-9.]+)")
HERE = ("--envs", "vm@host", "--no-quiet-gate")


@pytest.fixture(scope="module")
def folder(lab: Lab) -> Iterator[str]:
    """Give a folder of the lab host with a program in it."""
    path = "/home/bench/command-test"
    lab.as_root("mkdir", "-p", path)
    lab.as_root("sh", "-c", f'printf %s "$1" > {path}/work.py', "sh", PROGRAM)
    yield path
    lab.as_root("rm", "-rf", path)


@pytest.fixture(scope="module")
def done(lab: Lab, folder: str, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Return a run of the program in three environments."""
    return envcompare(
        tmp_path_factory.mktemp("command"),
        *("--hosts", lab.alias, *ALL, "--budget", "20", "--seed", "3"),
        *("--command", "python work.py 3000000 none", "--command-dir", folder),
    )


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
@pytest.mark.engine("singularity")
class TestOnEngines:
    """The command runs in every environment, from a folder of the host."""

    def test_every_environment_runs_it_with_its_own_interpreter(self, done: Done) -> None:
        """Each arm has processes that ended well, with the same loss."""
        assert done.exit_code == 0, done.stderr
        runs = [x for x in done.lines("samples.jsonl") if x["kind"] == "process"]
        assert {run["arm"] for run in runs} == {"vm", "docker", "singularity", "vm~control"}
        assert len({run["values"]["loss"] for run in runs}) == 1
        assert all(run["real_ns"] > run["wall_ns"] > 0 for run in runs)

    def test_engine_start_is_in_real_time_alone(self, done: Done) -> None:
        """What a container adds around a process is not in the time of the process."""
        runs = [x for x in done.lines("samples.jsonl") if x["kind"] == "process"]
        around = {
            arm: min(run["real_ns"] - run["wall_ns"] for run in runs if run["arm"] == arm)
            for arm in ("vm", "docker", "singularity")
        }
        assert around["vm"] < min(around["docker"], around["singularity"])

    def test_surroundings_are_recorded_and_the_summary_is_printed(self, done: Done) -> None:
        """A fingerprint for each arm, with what the program ran, a row for each environment."""
        assert done.folder is not None
        paths = list(done.folder.glob("fingerprints/lab-h1/*/work_default.json"))
        assert len(paths) == 4
        for path in paths:
            facts = json.loads(path.read_text())["facts"]
            assert "python3.11" in str(facts["programs"])
            assert "libc.so.6" in str(facts["loaded_libraries"])
        assert "process, vm → this" in done.stdout
        assert set(done.outcomes()) >= {("work", "docker"), ("work", "singularity")}

    def test_environment_that_fails_leaves_the_others_alone(
        self, lab: Lab, folder: str, tmp_path: Path
    ) -> None:
        """Exit code 4, its last lines, and a verdict for the other."""
        done = envcompare(
            tmp_path,
            *("--hosts", lab.alias, *ALL, "--budget", "8"),
            *("--command", "python work.py 1000 docker", "--command-dir", folder),
        )
        assert done.exit_code == 4, done.stderr
        assert done.outcomes()["work", "docker"] == "failed"
        assert done.outcomes()["work", "singularity"] != "failed"
        assert "this environment is not liked" in done.stdout

    def test_folder_that_is_not_on_the_host_is_named(self, lab: Lab, tmp_path: Path) -> None:
        """The remedy is a flag."""
        done = envcompare(
            tmp_path,
            *("--hosts", lab.alias, "--envs", "vm", "--budget", "5"),
            *("--command", "true", "--command-dir", "/nowhere"),
        )
        assert done.exit_code == 4
        assert "/nowhere of the command is not on lab-h1" in done.stderr
        assert "--command-dir" in done.stderr


class TestOnThisMachine:
    """The whole command line, on the host's own interpreter."""

    def test_table_of_a_file_runs_and_ends_well(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`[workloads.x]` and a relative file in the current folder."""
        (tmp_path / "work.py").write_text(PROGRAM)
        (tmp_path / "envcompare.toml").write_text(
            '[workloads.mine]\ncommand = ["python", "work.py", "1000", "none"]\n'
        )
        monkeypatch.chdir(tmp_path)
        done = envcompare(tmp_path / "out", *HERE, "--budget", "4")
        assert done.exit_code == 0, done.stderr
        runs = [x for x in done.lines("samples.jsonl") if x["kind"] == "process"]
        assert {run["cell"] for run in runs} == {"local/mine/default"}

    def test_interrupted_run_is_saved_and_resumed(self, tmp_path: Path) -> None:
        """Ctrl-C ends after the process, exit code 130; --resume goes on from there."""
        arguments = (*HERE, "--budget", "8", "--command", "sleep 0.2")
        with running(tmp_path, *arguments) as process:
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
        folder = run_folder(tmp_path)
        assert process.returncode == 130, stderr
        assert folder is not None
        before = (folder / "samples.jsonl").read_bytes()
        resume(folder)
        after = (folder / "samples.jsonl").read_bytes()
        assert after.startswith(before)
        numbers = [json.loads(line)["number"] for line in after.splitlines()]
        assert numbers == sorted(numbers)
