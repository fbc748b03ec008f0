"""How far a transfer is, as a user sees it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from envcompare import console
from envcompare.console import Display, Speed
from envcompare.errors import InterruptedRunError, Interruption


def test_a_short_transfer_has_no_line_and_a_quiet_display_says_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Lines come every few seconds, so that a log does not fill."""
    for is_quiet in (False, True):
        say = Display(is_quiet=is_quiet).saying("lab-h1 vm")
        with say.moving("wheels", 100) as told:
            told(50)
        say("done")
    assert capsys.readouterr().err == "  lab-h1 vm: done\n"


def test_a_long_transfer_says_host_share_and_size(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More bytes than were promised are still the whole."""
    monkeypatch.setattr(console, "_MOVING_LINE_EVERY_S", 0.0)
    monkeypatch.setattr(console, "_SHOWN_EVERY_S", 0.0)
    say = Display().saying("lab-h1 vm")
    with say.moving("wheels", 300_000_000) as told:
        told(129_000_000)
        told(400_000_000)
    assert capsys.readouterr().err == (
        "  lab-h1 vm: wheels: 43% of 300 MB\n  lab-h1 vm: wheels: 100% of 300 MB\n"
    )


def test_the_speed_counts_only_what_went_since_the_start() -> None:
    """What an earlier call has sent does not make this one fast."""
    now = iter((10.0, 10.1, 12.0))
    speed = Speed(clock=lambda: next(now))
    said = [speed.text(done) for done in (500_000_000, 501_000_000, 520_000_000)]
    assert said == ["", "", ", 10.0 MB/s"]


def test_asking_to_stop_ends_a_transfer(capsys: pytest.CaptureFixture[str]) -> None:
    """The next bytes are not sent."""
    interruption = Interruption()
    say = Display().saying("lab-h1 vm", interruption.check)
    with say.moving("wheels", 100) as told:
        told(1)
        interruption.request()
        with pytest.raises(InterruptedRunError):
            told(2)
    with pytest.raises(InterruptedRunError):
        say("next")
    assert capsys.readouterr().err == ""


def test_bars_of_many_cells_stay_within_the_terminal() -> None:
    """As many as there is room for, and how many others there are."""
    written = io.StringIO()
    terminal = Console(file=written, force_terminal=True, width=100, height=10)
    display = Display(_console=terminal)
    with display.showing_progress():
        for number in range(50):
            display.cell(f"gpu{number:02}/cnn/default", done=0.5, text="3 restarts")
        assert display._progress is not None
        table, rest = display._progress.get_renderables()
    assert isinstance(table, Table)
    assert table.row_count == 8
    assert str(rest) == "and 42 more"
