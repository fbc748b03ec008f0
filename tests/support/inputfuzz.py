"""Spoil what users and workers hand to envcompare: it is refused in words, with its exit code."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import BinaryIO

import click
import pytest
from filespoiling import BYTES, TEXT
from profilefuzz import limited

from envcompare.cli import app
from envcompare.errors import EnvcompareError, TransportError, WorkloadError
from envcompare.measure.worker import Worker

_CHANGES = {**BYTES, **TEXT}
_REFUSALS = {2, 3, 5}
_RUN = Path(__file__).resolve().parents[2] / "results" / "h200-counters"
CONFIGURATION = """title = "two of them"
envs = ["vm", "docker", "old=docker:app:1"]
stacks = ["image", "host"]
hosts = ["gpu01", "me@gpu02:2222"]
preset = "quick"
seed = 1
budget = 30.5
threads = 2
pin = "0-1"

[set.rnn]
hidden = [64, 128]

[workloads.cnn]

[workloads.rnn]

[workloads.train]
command = ["python", "train.py"]
measures = { loss = 'loss: (\\S+)' }
"""
HOSTS = """# machines
gpu01
me@gpu02:2222   # with a port
[::1]:22
local
"""
_HEAD = {"ok": True, "protocol": 1, "pid": 7, "entry_ns": 1, "now_ns": 2}
REPLIES: tuple[dict[str, object], ...] = (
    {
        "op": "hello", **_HEAD, "import_ns": 3, "data_ns": 4, "generation": "fork",
        "device": "cpu", "batch": 1, "code_hash": "ab", "params": {"hidden": 64},
        "fingerprint": {"python.version": "3.11.2", "libraries": ["libm.so.6"]},
    },
    {"op": "hello", "ok": False, "error": {"phase": "setup", "brief": "no such layer"}},
)  # fmt: skip


class _Written:
    """A process that has written its answers and ended."""

    def __init__(self, content: bytes) -> None:
        self.stdin: BinaryIO = io.BytesIO()
        self.stdout: BinaryIO = io.BytesIO(content)
        self.stderr: BinaryIO = io.BytesIO()

    def wait(self, timeout_s: float | None = None) -> int:
        """Return that it ended by itself."""
        assert timeout_s is None or timeout_s > 0
        return 0

    def kill(self) -> None:
        """Do nothing: it has ended."""


def outcome(name: str, draw: random.Random, folder: Path) -> tuple[str, Path]:
    """Spoil one input and use it; return whether it was refused, and where what was spoiled lies.

    Raises whatever is no refusal in words.
    """
    path, use = INPUTS[name](draw, folder)
    with limited():
        return ("read" if use() else "refused"), path


def _spoil(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    for _ in range(draw.randint(1, 4)):
        content = _CHANGES[draw.choice(sorted(_CHANGES))](content, draw)
    path.write_bytes(content)


def accepts(*words: str) -> bool:
    """Run the command line in this process; False where it refuses as documented."""
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            patch.setattr(sys, "argv", ["envcompare", *words])
            app(args=list(words), standalone_mode=False)
    except EnvcompareError as error:
        _require(error.brief and error.exit_code in _REFUSALS, f"{error.exit_code}: {error.brief}")
        return False
    except (click.ClickException, click.exceptions.Exit):
        return False
    except SystemExit as end:
        _require(end.code in {None, 0, *_REFUSALS}, f"exit code {end.code}")
    except OSError as error:
        if not error.filename:
            raise
        return False
    return True


def _require(what: object, why: str) -> None:
    assert what, why


def _configuration(draw: random.Random, folder: Path) -> tuple[Path, Callable[[], bool]]:
    path = folder / "envcompare.toml"
    path.write_text(CONFIGURATION)
    _spoil(path, draw)
    return path, lambda: accepts("plan", "--config", str(path))


def _hosts(draw: random.Random, folder: Path) -> tuple[Path, Callable[[], bool]]:
    path = folder / "hosts.txt"
    path.write_text(HOSTS)
    _spoil(path, draw)
    return path, lambda: accepts("plan", "--hosts", str(path), "--envs", "vm,docker")


def _protocol(draw: random.Random, folder: Path) -> tuple[Path, Callable[[], bool]]:
    path = folder / "replies.jsonl"
    path.write_text(f"{json.dumps(draw.choice(REPLIES))}\n")
    _spoil(path, draw)

    def use() -> bool:
        worker = Worker(
            lambda: _Written(path.read_bytes()),
            arm="docker",
            log=folder / "docker.log",
            log_name="docker.log",
            explain=lambda _code, _text: None,
        )
        try:
            worker.await_hello(limit_s=5.0)
        except (WorkloadError, TransportError) as error:
            _require(error.brief, "a refusal without words")
            return False
        finally:
            worker.kill()
        return True

    return path, use


def _run_folder(draw: random.Random, folder: Path) -> tuple[Path, Callable[[], bool]]:
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(_RUN, run)
    files = sorted(path for path in run.rglob("*") if path.is_file())
    path = draw.choice([file for file in files if file.suffix in {".json", ".jsonl"}])
    _spoil(path, draw)
    out = os.fspath(folder / "report.md")
    return path, lambda: accepts("report", str(run), "--format", "md", "--output", out)


INPUTS = {
    "configuration": _configuration,
    "hosts": _hosts,
    "protocol": _protocol,
    "run": _run_folder,
}
