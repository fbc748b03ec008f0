"""The GitHub action's own steps, as a runner runs them: bash with its variables and files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab import need
from runs import BASE

ROOT = Path(__file__).resolve().parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
CLOSES = (
    "class Close:\n    def __init__(self, n=1): pass\n"
    "    def setup(self, seed, device): pass\n"
    "    def step(self):\n        import os, resource\n"
    "        for fd in range(200, resource.getrlimit(resource.RLIMIT_NOFILE)[0]):\n"
    "            try: os.close(fd)\n"
    "            except OSError: pass\n"
    "        return 0.0\n"
)
# A stand-in for GitHub's client: it keeps what it was asked, and knows the comment in a file.
GH = (
    '#!/bin/sh\nprintf "%s\\n" "$@" >>"$RUNNER_TEMP/gh"\n'
    'case $* in *--paginate*) cat "$RUNNER_TEMP/comments" ;; esac\n'
)

pytestmark = pytest.mark.timeout(300)


class Runner:
    """Runs steps with the variables and files of a runner of GitHub Actions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs: dict[str, str] = {}
        programs = folder / "envcompare" / "bin"
        programs.mkdir(parents=True)
        for name, text in (
            ("envcompare", f'#!/bin/sh\nexec {sys.executable} -m envcompare "$@"\n'),
            ("gh", GH),
        ):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.variables = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(folder),
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        }

    def step(self, name: str, **given: str) -> subprocess.CompletedProcess[str]:
        """Run a step as `shell: bash` does; `given` are its variables, whose names must be its."""
        step = STEPS[name]
        assert set(given) == set(step["env"])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env={**self.variables, **given},
            capture_output=True,
            text=True,
            check=False,
        )
        output = self.folder / "output"
        if output.exists():
            self.outputs = dict(line.split("=", 1) for line in output.read_text().splitlines())
        return done


def test_gate_fails_for_an_image_that_is_slower(tmp_path: Path) -> None:
    """With a summary, annotations, a comment, and the exit code of the gates."""
    need("docker")
    runner = Runner(tmp_path)
    (tmp_path / "fds.py").write_text(CLOSES)
    options = (
        "--workload fds.py:Close --budget 20 --quick --no-startup --no-quiet-gate --wait 240 "
        "--profile none --docker-options 'old=--ulimit nofile=1024:20000' "
        "--docker-options 'new=--ulimit nofile=20000:20000'"
    )
    measured = runner.step("Measure", ENVS=f"old=docker:{BASE},new=docker:{BASE}", OPTIONS=options)
    assert measured.returncode == 0, measured.stderr
    folder = runner.outputs["folder"]
    assert json.loads((Path(folder) / "run.json").read_text())["run_id"] == Path(folder).name
    judged = runner.step("Judge", FOLDER=folder, FAIL_ON="unproven:5%,failed")
    assert judged.returncode == 0, judged.stderr
    assert runner.outputs["exit-code"] == "1"
    assert "::error title=gate unproven%3A5%25::" in judged.stdout
    assert (tmp_path / "summary").read_text().startswith("**FAIL** 1 gate hit: unproven:5%")
    assert (Path(folder) / "gates.xml").read_text().count("<failure ") == 1
    places = {"COMMENTS": "repos/me/app/issues/7/comments", "ONE": "repos/me/app/issues/comments"}
    given = {"GH_TOKEN": "x", "NAME": "gate", **places}
    body = f"body=@{tmp_path}/comment.md"
    for known, request in (
        ("", ["POST", places["COMMENTS"]]),
        ("9\n8\n", ["PATCH", f"{places['ONE']}/9"]),
    ):
        (tmp_path / "comments").write_text(known)
        assert runner.step("Comment", **given).returncode == 0
        asked = (tmp_path / "gh").read_text().splitlines()
        assert asked[-4:] == [*request, "--field", body]
    assert (tmp_path / "comment.md").read_text().startswith("<!-- gate -->\n**FAIL**")
    assert runner.step("Fail if a gate is hit", CODE=runner.outputs["exit-code"]).returncode == 1


def test_run_that_cannot_begin_ends_the_action(tmp_path: Path) -> None:
    """With the exit code of `envcompare run`."""
    done = Runner(tmp_path).step("Measure", ENVS="none", OPTIONS="")
    assert done.returncode == 2
    assert "unknown environment" in done.stderr
