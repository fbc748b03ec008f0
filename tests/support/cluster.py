"""The cluster of the lab as a user of its login node has it, with envcompare in a venv there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import ROOT, docker_client
from runs import LIGHT, STEPS_ALONE

CELL = (
    "--envs",
    "vm,singularity",
    "--stacks",
    "host",
    "--workload",
    "light.py:Light",
    *STEPS_ALONE,
)
SHORT = ("--quick", "--restarts", "2", "--rounds", "3", "--steps", "2")
LONG = ("--quick", "--restarts", "3", "--rounds", "60", "--steps", "20")
INTERRUPTED, UNUSABLE = 130, 3
LOGIN, NODES = "slurm-login", ("slurm-c1", "slurm-c2")
JOBS = "squeue --noheader --format='job %A'"  # lists the jobs, a line each
CANCEL = "scancel --me"  # ends them all
# Jobs, and what a client leaves running
_LEFTOVERS = f"{JOBS}; ps -u bench -o args= | grep -E '[s]run|[a]llocation'"
PROCESSES = "ps -u bench -o pid=,args= | grep -vF '<defunct>'"  # a zombie runs no more
_MARKED = "grep -lsF ENVCOMPARE_RUN= /proc/[0-9]*/environ"
_MOUNTS = "awk '$2 ~ /envcompare/ {print \"mount\", $2}' /proc/mounts"
_INSTALL = """
python3.11 -m venv --without-pip venv && PYTHONPATH=$(echo pip-*.whl) \\
  venv/bin/python -m pip install -q --no-compile --no-index --find-links . \\
  "$(echo envcompare_bench-*.whl)[allocation]" pytest pytest-timeout && rm *.whl
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The login node as an ordinary user has it: a folder of the shared home, and a venv there."""

    folder: str

    def start(self, script: str, *words: str) -> subprocess.Popen[str]:
        """Start a script of sh in the folder on the login node."""
        prologue = f"export PYTHONUNBUFFERED=1 PATH={self.folder}/venv/bin:$PATH; "
        variables = ("-e", "USER=bench", "-e", "HOME=/home/bench")
        argv = (docker_client(), "exec", "-u", "bench", *variables, "-w", self.folder)
        return subprocess.Popen(
            (*argv, LOGIN, "bash", "-c", prologue + script, "bash", *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, script: str, *words: str, code: int = 0) -> str:
        """Run a script to its end and return its output; it must end with this exit code."""
        process = self.start(script, *words)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == code, output
        return output

    def measuring(self, out: str, *options: str) -> subprocess.Popen[str]:
        """Start `envcompare run` with the cell of these tests; its run folder stands in `out`."""
        return self.start('exec envcompare run "$@"', *CELL, "--out", out, *options)

    def measure(self, out: str, *options: str, code: int = 0) -> str:
        """Carry that out to its end and return its output."""
        return self.run('envcompare run "$@"', *CELL, "--out", out, *options, code=code)

    def lines(self, out: str, name: str) -> list[dict[str, Any]]:
        """Return what a file of the run folder in `out` holds by now."""
        text = self.run(f"cat {out}/*/{name} 2>/dev/null; :")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def events(self, out: str, what: str) -> list[dict[str, Any]]:
        """Return the events of one kind in the run folder in `out`."""
        return [event for event in self.lines(out, "events.jsonl") if event["what"] == what]

    def left(self) -> str:
        """Return jobs, processes, mounts and folders of runs that are there, and nothing else.

        On a node nothing but runs has processes of the user. What ends by itself within a second
        is not left.
        """
        if self._left():
            time.sleep(1)
        return self._left()

    def _left(self) -> str:
        marks = f"{_MARKED}; {_MOUNTS}"
        script = f"{_LEFTOVERS}; {marks}; ls ~/.cache/envcompare/runs; :"
        on_nodes = [as_root(node, f"{PROCESSES}; {marks}") for node in NODES]
        return self.run(script) + "".join(on_nodes)


def as_root(host: str, script: str) -> str:
    """Run a script as root on a machine of the cluster, whatever its exit code."""
    argv = (docker_client(), "exec", host, "sh", "-c", f"{script}; :")
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def eventually(claim: Callable[[], bool], seconds: float = 60) -> bool:
    """Tell whether the claim comes true within the time."""
    end = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def installed(wheels: Path) -> None:
    """Make the wheel of envcompare, and fetch what the extra and the contract tests need."""
    python = (sys.executable, "-m")
    build = (*python, "build", "--wheel", "--no-isolation", "-o", wheels, ROOT)
    lock = (ROOT / "requirements" / "dev.txt").read_text()
    tests = re.findall(r"^(?:pytest|pytest-timeout)==[^ ;\\]+", lock, re.MULTILINE)
    download = (*python, "pip", "download", "-q", "--only-binary=:all:", "-d", wheels)
    locked = ("--python-version", "3.11", "-r", ROOT / "requirements" / "allocation.txt")
    for argv in (build, (*download, *locked), (*download, "pip", *tests)):
        subprocess.run([str(word) for word in argv], check=True, capture_output=True)


@contextmanager
def installed_there(wheels: Path) -> Iterator[Cluster]:
    """Give a user's folder on the cluster, with envcompare and its extra in a venv.

    The wheels are made where the folder has none yet.
    """
    if not any(wheels.glob("*.whl")):
        installed(wheels)
    (wheels / "light.py").write_text(LIGHT)
    folder = f"/home/bench/test-{uuid.uuid4().hex[:8]}"
    there = Cluster(folder=folder)
    subprocess.run([docker_client(), "cp", f"{wheels}/.", f"{LOGIN}:{folder}"], check=True)
    as_root(LOGIN, f"chown -R bench:bench {folder}")
    try:
        there.run(_INSTALL)
        yield there
    finally:
        as_root(LOGIN, f"rm -rf {folder}")
