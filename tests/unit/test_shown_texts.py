"""What hosts say is shown, and has no power over the terminal it is shown on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from envcompare.console import Display, print_bytes, print_lines
from envcompare.errors import UnusableError
from envcompare.fingerprint.sentences import describe
from envcompare.run_folder.records import FactDifference
from envcompare.text import escaped_json, one_line, shortened

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\u202e\x9b31m"
SHOWN = "⟨U+001B⟩]0;owned⟨U+0007⟩⟨U+001B⟩[2J⟨U+000D⟩⟨U+202E⟩⟨U+009B⟩31m"


def test_result_lines_show_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines themselves stay lines."""
    print_lines([f"vm: {HOSTILE}", "a\n\tb"])
    assert capsys.readouterr().out == f"vm: {SHOWN}\na\n\tb\n"


def test_what_a_program_reads_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON would be changed by it."""
    print_bytes("{\u200d}\n".encode())
    assert capsys.readouterr().out == "{\u200d}\n"


def test_progress_and_errors_show_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """A host's name, its banner and the last words of its programs go through here."""
    display = Display()
    display.say(HOSTILE)
    display.cell(HOSTILE, done=0.5, text=HOSTILE)
    display.cell_done("cell", HOSTILE)
    display.error(UnusableError(HOSTILE, details=f"{HOSTILE}\nsecond", hint=HOSTILE))
    found = capsys.readouterr().err
    assert found.count(SHOWN) == 7
    assert "\nsecond\n" in found
    assert not any(not char.isprintable() for char in found.replace("\n", ""))


def test_live_bars_show_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal gets the sequences of Rich alone."""
    from rich.console import Console

    display = Display(_console=Console(file=sys.stderr, force_terminal=True, width=400))
    with display.showing_progress():
        display.cell(HOSTILE, done=0.5, text=HOSTILE)
        display.moving(HOSTILE, done=0.5, text=HOSTILE)
    found = capsys.readouterr().err
    assert SHOWN in found
    assert "owned\x07" not in found


def test_value_of_a_difference_stays_on_its_line() -> None:
    """A variable with a line break could forge a line of its own."""
    difference = FactDifference(
        host="h", arm="docker", key="env.MALLOC_ARENA_MAX", reference=None,
        value="1\n  ✓ all is well", fact_class="confounder",
    )  # fmt: skip
    assert describe(difference) == "MALLOC_ARENA_MAX none → 1⟨U+000A⟩  ✓ all is well"


def test_mistake_is_told_without_the_characters_it_was_made_with(tmp_path: Path) -> None:
    """Through the whole command line."""
    argv = [sys.executable, "-m", "envcompare", "report", f"a{HOSTILE}"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert "⟨U+001B⟩]0;owned" in done.stderr
    assert "\x1b" not in done.stderr


def test_json_for_a_terminal_has_the_same_values_and_no_power_over_it() -> None:
    """JSON itself escapes only what is below a space."""
    values = {"host": "a\x9b31mb\u202ec\ufeff", "name": "Zo\u00eb \U0001f600"}
    said = escaped_json(msgspec.json.encode(values))
    assert msgspec.json.decode(said) == values
    assert b"\\u009b" in said
    assert "Zo\u00eb" in said.decode()
    assert not {"\x9b", "\u202e", "\ufeff"} & set(said.decode())


def test_a_line_of_progress_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A host could print a verdict of its own below it."""
    Display().say("gpu01: failed\n\u2248 docker is equivalent to vm")
    assert capsys.readouterr().err.count("\n") == 1


def test_a_shortened_text_tells_the_number_of_its_characters_however_often_it_is() -> None:
    """Of the whole, and not of what was left of it the first time."""
    whole = "a" * 1000
    once = shortened(whole, most=240)
    assert once == f"{'a' * 240}… (1000 characters)"
    assert shortened(once, most=240) == one_line(once) == once
    assert shortened(once, most=20) == f"{'a' * 20}… (1000 characters)"
