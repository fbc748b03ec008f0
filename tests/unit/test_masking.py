"""What looks like a secret is masked wherever it is shown or kept, and only there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from runs import envcompare

from envcompare.command import Command, shown_text
from envcompare.masking import LineMask, masked, masked_words
from envcompare.transport import run
from envcompare.transport.local import LOCAL

SECRET = "hunter2-not-for-anyone"
URL = f"https://ann:{SECRET}@example.org/simple"


@pytest.mark.parametrize(
    "text",
    [
        f"index {URL} failed",
        f"API_TOKEN={SECRET}",
        f"curl --api-key {SECRET} x",
        f"curl -H 'Authorization: Bearer {SECRET}'",
        f'{{"password": "{SECRET}"}}',
        "pushed with ghp_0123456789abcdefghijABCD",
    ],
)
def test_a_secret_is_masked(text: str) -> None:
    """By its name, as the login of a URL, and by what a token is known by."""
    shown = masked(text)
    assert "***" in shown
    assert SECRET not in shown
    assert "ghp_" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "remove the old one with `ssh-keygen -R 'gpu01' -f '/home/ann/.ssh/known_hosts'`",
        "envcompare run --accept-new-host-keys --budget 60",
        "accept-new-host-keys = true",
        "docker run --security-opt no-new-privileges --cap-drop ALL",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """A remedy that is masked cannot be followed."""
    assert masked(text) == text


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    ["a" * 300_000, "KEY" * 100_000, "--key" * 60_000, "password" * 40_000, "a://" * 70_000,
     "a+" * 150_000, "key" + " " * 300_000, "sk-" * 100_000],
)  # fmt: skip
def test_hostile_text_does_not_stop_the_mask(text: str) -> None:
    """The log of a worker is masked, and a worker is not to be trusted."""
    assert masked(text)


def test_a_secret_that_is_a_word_of_its_own_is_masked_in_a_command() -> None:
    """An expression that reads a number is none, whatever it is called."""
    words = ("envcompare", "run", "--measure", "tokens=([0-9]+)", "--password", SECRET)
    assert masked_words(words) == (*words[:-1], "***")
    assert shown_text(("sh", "-c", f"TOKEN={SECRET} make")) == "sh -c 'TOKEN=*** make'"


def test_a_stream_is_masked_line_by_line_wherever_it_is_cut() -> None:
    """Bytes that are no text stay, and the last line needs no end."""
    content = (
        b"\xff\xfe one\npassword: " + SECRET.encode() + b"\nthe last, TOKEN=" + SECRET.encode()
    )
    for size in (1, 7, 1000):
        mask = LineMask()
        parts = [mask.feed(content[at : at + size]) for at in range(0, len(content), size)]
        assert b"".join([*parts, mask.end()]) == (
            b"\xff\xfe one\npassword: ***\nthe last, TOKEN=***"
        )


def test_the_last_lines_of_a_tool_are_masked() -> None:
    """They become the reason of an error; what a program is parsed for stays whole."""
    done = run(LOCAL, Command(argv=("sh", "-c", f"echo cannot reach {URL} >&2; exit 1")))
    assert done.tail() == "cannot reach https://***@example.org/simple"
    assert URL in done.stderr


def test_the_traceback_of_debug_is_masked(tmp_path: Path) -> None:
    """It goes into bug reports."""
    missing = tmp_path / f"password={SECRET}.toml"
    argv = (sys.executable, "-m", "envcompare", "--debug", "plan", "--config", str(missing))
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "password=***" in done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_a_run_keeps_a_secret_only_where_it_is_needed_to_go_on(tmp_path: Path) -> None:
    """Its command is in run.json, which a resumed run reads; what it prints is masked."""
    script = tmp_path / "fails.sh"
    script.write_text(f"echo 'login to {URL}'; echo 'TOKEN={SECRET}' >&2; exit 3\n")
    words = ("--command", f"sh {script} --api-key {SECRET}", "--envs", "vm")
    argv = (sys.executable, "-m", "envcompare", "plan", *words)
    plan = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "--api-key" in plan.stdout
    assert SECRET not in plan.stdout
    done = envcompare(
        tmp_path / "runs", *words, "--budget", "5", "--no-quiet-gate", "--no-noise-memory"
    )
    assert done.folder is not None, done.stderr
    files = [path for path in done.folder.rglob("*") if path.is_file()]
    holding = [path.name for path in files if SECRET in path.read_text(errors="replace")]
    assert holding == ["run.json"]
    assert SECRET not in done.stdout + done.stderr
    logs = "".join(path.read_text() for path in files if path.suffix == ".log")
    assert "TOKEN=***" in logs
