"""Command lines as typed, compared on this machine through the whole command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import BASE, Done, run_folder

pytestmark = pytest.mark.timeout(420)

# It closes every possible descriptor, as old programs do before they start another (moby#45436).
CLOSES = (
    "import os, resource\n"
    "for fd in range(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0]):\n"
    "    try: os.close(fd)\n"
    "    except OSError: pass\n"
)
# It writes what it finds where a line of the user's would look.
TELLS = (
    "import json, os, sys\n"
    "names = ('HOME', 'MINE', 'TMPDIR', 'PYTHONDONTWRITEBYTECODE', 'OMP_NUM_THREADS')\n"
    "found = {name: os.environ.get(name) for name in names}\n"
    "json.dump([found, os.getcwd(), sys.argv[1:]], open(f'found-{found[\"MINE\"]}', 'w'))\n"
)


def why(folder: Path, *arguments: str, **variables: str) -> Done:
    """Run the command to its end in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "envcompare", "why", "--out", "out", "--wait", "240", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    out = run_folder(folder / "out") if (folder / "out").exists() else None
    return Done(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr, folder=out)


def containers(run: str) -> list[str]:
    """Return the containers of a run that the engine still has."""
    words = ("docker", "ps", "-aq", "--filter", f"label=envcompare.run={run}")
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def test_line_runs_as_the_shell_runs_it(tmp_path: Path) -> None:
    """With the variables, the folder and the byte code that it has without envcompare."""
    (tmp_path / "tells.py").write_text(TELLS)
    line = f"MINE='a b' {sys.executable} tells.py \"$OTHER\" 'c  d' > printed"
    done = why(tmp_path, "--budget", "2", line, f"{sys.executable} tells.py", OTHER="é")
    assert done.exit_code in {0, 7}, done.stderr
    paths = [tmp_path / "found-a b", tmp_path / "found-None"]
    measured = [json.loads(path.read_text()) for path in paths]
    for text in (line, f"{sys.executable} tells.py"):
        variables = {**os.environ, "OTHER": "é"}
        subprocess.run(["sh", "-c", text], cwd=tmp_path, env=variables, check=True)
    assert measured == [json.loads(path.read_text()) for path in paths]
    assert measured[0][2] == ["é", "c  d"]


@pytest.mark.engine("docker")
class TestInContainers:
    """Two calls of `docker run` that differ in one option."""

    def test_difference_and_its_cause_are_found(self, tmp_path: Path) -> None:
        """Slower, with the limit of open files among what may be the cause."""
        lines = [
            f"{name}=docker run --rm --ulimit nofile={limit}:20000 {BASE} python3 -c '{CLOSES}'"
            for name, limit in (("few", 1024), ("many", 20000))
        ]
        done = why(tmp_path, "--budget", "60", *lines)
        assert done.exit_code == 0, done.stderr
        assert done.outcomes()["line", "many"] == "slower"
        assert "nofile" in done.stdout
        assert done.folder is not None
        assert containers(done.folder.name) == []

    def test_engine_reports_what_it_made_of_the_line(self, tmp_path: Path) -> None:
        """Facts are those of the process in the container, not of its client."""
        line = f"docker run --rm --cpus 1 -e OMP_NUM_THREADS=3 {BASE} python3 -c '{CLOSES}'"
        done = why(tmp_path, "--budget", "4", line, line.replace("--cpus 1", "--network host"))
        assert done.exit_code in {0, 7}, done.stderr
        assert done.folder is not None
        paths = done.folder.glob("fingerprints/local/*/line_default.json")
        facts = {path.parent.name: json.loads(path.read_text())["facts"] for path in paths}
        assert facts["a"]["cgroup.cpu_quota"] == 1
        assert facts["b"]["cgroup.cpu_quota"] == "unlimited"
        assert facts["a"]["env.OMP_NUM_THREADS"] == "3"
        assert facts["a"]["container.network"] == "default"
        assert facts["b"]["container.network"] == "host"
        assert any(one.startswith("python3.11 ") for one in facts["a"]["programs"])
        assert facts["a"]["python.version"] == "3.11"
        assert facts["a"]["image.id"].startswith("sha256:")

    def test_line_that_fails_is_shown_with_its_output(self, tmp_path: Path) -> None:
        """Exit code 4; the other lines end as they do without it."""
        fails = f"docker run --rm {BASE} sh -c 'echo no such model >&2; exit 9'"
        done = why(tmp_path, "--budget", "4", f"docker run --rm {BASE} true", fails)
        assert done.exit_code == 4
        assert done.outcomes()["line", "b"] == "failed"
        assert "no such model" in done.stdout

    @pytest.mark.parametrize("option", ["-d", "-it", "--cidfile f"])
    def test_line_that_cannot_be_timed_is_refused(self, tmp_path: Path, option: str) -> None:
        """Before it is run, with what to leave out."""
        done = why(tmp_path, "true", f"docker run --rm {option} {BASE} true")
        assert done.exit_code == 3
        assert "leave" in done.stdout + done.stderr

    def test_interrupted_line_leaves_no_container(self, tmp_path: Path) -> None:
        """Neither a container nor a process of the line goes on after the second Ctrl-C."""
        line = f"docker run --rm {BASE} sleep 987654"
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "envcompare",
                "why",
                "--out",
                "out",
                "--wait",
                "240",
                line,
                line,
            ],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            until = time.monotonic() + 120
            while time.monotonic() < until and not (
                (run := run_folder(tmp_path / "out") if (tmp_path / "out").exists() else None)
                and containers(run.name)
            ):
                time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=120) == 130
        assert run is not None
        assert containers(run.name) == []
