"""What looks like a secret is masked wherever it is shown or kept, and only there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from runs import envcompare

from envcompare.console import Display
from envcompare.errors import UnusableError
from envcompare.measure.cell import failure_of
from envcompare.text import Command, LineMask, masked, masked_words, shown_text
from envcompare.transport import LOCAL, run

SECRET = "hunter2-not-for-anyone"
KEY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
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
        f'password: "two words, {SECRET}',
        f'os.environ["API_TOKEN"] = "two words {SECRET}"',
        f"GET /simple?token%3D{SECRET}",
        f"PASSWORD=a,b&c;{SECRET}",
        f"Authorization: token {SECRET}",
        f"Cookie: theme=dark; session={SECRET}",
        f"-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: x-y\n\n{KEY}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\\n{KEY}\\n",
        f'password="a\\"b {SECRET}"',
    ],
)
def test_a_secret_is_masked(text: str) -> None:
    """By its name, as the login of a URL, and by what a token is known by."""
    shown = masked(text)
    assert "***" in shown
    assert SECRET not in shown
    assert KEY not in shown
    assert "ghp_" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "remove the old one with `ssh-keygen -R 'gpu01' -f '/home/ann/.ssh/known_hosts'`",
        "envcompare run --accept-new-host-keys --budget 60",
        "accept-new-host-keys = true",
        "docker run --security-opt no-new-privileges --cap-drop ALL",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "pypi-attestations 0.0.27 is there already",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """A remedy that is masked cannot be followed."""
    assert masked(text) == text


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    ["a" * 300_000, "KEY" * 100_000, "--key" * 60_000, "password" * 40_000, "a://" * 70_000,
     "a+" * 150_000, "key" + " " * 300_000, "sk-" * 100_000, "key=" + ",a" * 150_000,
     "key=" + ",a=" * 100_000, "key='" * 60_000, "-----BEGIN " * 30_000, "Cookie:" * 40_000,
     "-----BEGIN PRIVATE KEY-----" * 10_000],
)  # fmt: skip
def test_hostile_text_does_not_stop_the_mask(text: str) -> None:
    """The log of a worker is masked, and a worker is not to be trusted."""
    assert masked(text)


def test_a_secret_that_is_a_word_of_its_own_is_masked_in_a_command() -> None:
    """An expression that reads a number is none, whatever it is called."""
    words = ("envcompare", "run", "--measure", "tokens=([0-9]+)", "--password", SECRET)
    assert masked_words(words) == (*words[:-1], "***")
    assert shown_text(("sh", "-c", f"TOKEN={SECRET} make")) == "sh -c 'TOKEN=*** make'"


def test_the_value_of_an_option_is_masked_with_its_spaces() -> None:
    """The shell that gave the word has taken its quotes off."""
    secret = f"two words {SECRET}"
    named = f"API_TOKEN={secret}"
    words = ("--password", secret, f"--api-key={secret}", "--env", named, f"--env={named}", named)
    assert masked_words(words) == (
        *("--password", "***", "--api-key=***"),
        *("--env", "API_TOKEN=***", "--env=API_TOKEN=***", "API_TOKEN=***"),
    )
    assert masked_words(("--use-token", "true")) == ("--use-token", "true")


def test_a_key_is_masked_over_many_lines() -> None:
    """However they come; what stands around it is told."""
    begin, end = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
    text = f"one\n{begin}\n{KEY}\n{KEY}\n{end}\n{begin}\n{KEY}\n-----BEGIN CERTIFICATE-----\n"
    for size in (1, 9, 40, 1000):
        mask = LineMask()
        parts = [mask.feed(text[at : at + size].encode()) for at in range(0, len(text), size)]
        said = b"".join([*parts, mask.end()]).decode()
        assert KEY not in said
        assert said.startswith(f"one\n{begin}***")
        assert said.count(end) == 1
        assert said.endswith("-----BEGIN CERTIFICATE-----\n")


def test_words_about_a_key_hide_nothing_of_a_log() -> None:
    """A traceback that follows is no part of a key."""
    mask = LineMask()
    said = mask.feed(b"no -----BEGIN PRIVATE KEY----- in a.pem\n")
    said += mask.feed(b'Traceback (most recent call last):\n  File "a.py", line 3\nValueError: 7\n')
    assert said.endswith(b'(most recent call last):\n  File "a.py", line 3\nValueError: 7\n')


def test_a_line_that_is_too_long_is_cut_where_nothing_of_a_secret_can_follow() -> None:
    """Its rest is left out up to its end, which may be a carriage return."""
    mask = LineMask()
    said = mask.feed(b"x" * 70_000 + b" TOK") + mask.feed(f"EN={SECRET}".encode())
    said += mask.feed(f"{SECRET}\rnext\n".encode())
    assert said.endswith(b"x... the rest of this line is left out: too long\nnext\n")
    assert len(said) < 70_000


def test_characters_of_utf8_end_no_secret() -> None:
    """A byte of one is a space in other encodings."""
    mask = LineMask()
    assert mask.feed(f"password=voil\u00e0-{SECRET}\n".encode()) == b"password=***\n"


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


def test_an_error_is_masked_where_it_is_shown_and_where_it_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever raised it may have quoted a program."""
    error = UnusableError("cannot log in", details=f"TOKEN={SECRET}", hint=f"see {URL}")
    display = Display()
    display.error(error)
    display.say(f"tried with TOKEN={SECRET}")
    kept = failure_of(error)
    assert SECRET not in f"{kept}" + capsys.readouterr().err
    assert kept.details == "TOKEN=***"
