"""The whole command as a user types it, and workloads whose workers start at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BASE = os.environ.get("ENVCOMPARE_TEST_BASE", "envcompare-base:python3.11")
# A cell has at least one generation of all arms, whatever its budget: these runs take no longer.
STEPS_ALONE = ("--no-startup", "--no-quiet-gate", "--profile", "none")
# As long as a slow machine needs, and over at the first look: an interval this narrow is enough.
UNTIL_KNOWN = ("--budget", "120", "--target", "50")
FIRST_ROUNDS = 3  # fewer than any verdict needs
ADDS = '''
class Adds:
    """Adds as many numbers as it is told."""

    PARAMS = {"n": 1000, "kind": "plain"}

    def __init__(self, n, kind):
        self.n = n

    def setup(self, seed, device):
        pass

    def step(self):
        return float(sum(range(self.n)))
'''

LIGHT = """
import time

class Light:
    batch = 1

    def setup(self, seed, device):
        self.steps = 0

    def step(self):
        self.steps += 1
        return float(sum(i * i for i in range(20000)) % 97)

class RaisesInSetup(Light):
    def setup(self, seed, device):
        raise ValueError("no such layer")

class RaisesInStepSeven(Light):
    def step(self):
        if self.steps == 6:
            raise ValueError("the loss is not a number")
        return super().step()

class RaisesInDocker(Light):
    def setup(self, seed, device):
        super().setup(seed, device)
        import os
        if os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker":
            raise MemoryError("docker gave too little")

class OtherWorkInDocker(Light):
    def step(self):
        import os
        return super().step() + (os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker")

class Exits(Light):
    def step(self):
        import os
        os._exit(9)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A finished envcompare, and the run folder it left."""

    exit_code: int
    stdout: str
    stderr: str
    folder: Path | None

    def read(self, name: str) -> Any:
        """Return a JSON file of the run folder."""
        assert self.folder is not None, self.stderr
        return json.loads((self.folder / name).read_text())

    def lines(self, name: str) -> list[Any]:
        """Return a JSON-lines file of the run folder."""
        assert self.folder is not None, self.stderr
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def outcomes(self) -> dict[tuple[str, str], str]:
        """Return the outcome of each arm in each workload."""
        found = self.read("comparison.json")["comparisons"]
        return {(one["workload"], one["arm"]): one["outcome"] for one in found}


def command(out: Path, *arguments: str) -> list[str]:
    """Return the argv of a run that keeps its folder under `out`."""
    return [
        *(sys.executable, "-m", "envcompare", "run", "--out", str(out), "--quick"),
        # others may test on the same lab hosts
        *("--base-image", BASE, "--wait", "240", *arguments),
    ]


def run_folder(out: Path) -> Path | None:
    """Return the only run folder under `out`."""
    found = sorted(path for path in out.glob("*") if path.is_dir())
    return found[-1] if found else None


@contextmanager
def running(out: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Give a run that has written its first samples; it and its pipes end with the context.

    One that a failed test left behind would fail a later one, when it is collected.
    """
    with subprocess.Popen(
        command(out, *arguments),
        cwd=out,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            for _ in range(600):
                folder = run_folder(out)
                if folder and (folder / "samples.jsonl").exists():
                    break
                time.sleep(0.1)
            else:
                process.kill()
                raise AssertionError(process.communicate()[1])
            yield process
        finally:
            process.kill()


def unfinish(folder: Path) -> None:
    """Let a run of a command be as it was when it was killed after its first rounds.

    Nearly all of its budget is still to come, and however fast it was, more rounds are wanted.
    """
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    ready = [json.loads(line)["what"] == "arm-ready" for line in lines]
    path.write_text("".join(lines[: len(ready) - ready[::-1].index(True)]))
    path = folder / "samples.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["number"] < FIRST_ROUNDS))


def resume(folder: Path, *, exit_code: int = 0) -> str:
    """Go on with a run to its end, and return what it said beside its summary."""
    done = subprocess.run(
        [sys.executable, "-m", "envcompare", "run", "--resume", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == exit_code, done.stderr
    return done.stderr


def envcompare(out: Path, *arguments: str) -> Done:
    """Run the command to its end."""
    done = subprocess.run(
        command(out, *arguments), capture_output=True, text=True, check=False, timeout=400
    )
    return Done(
        exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr, folder=run_folder(out)
    )
