"""The end of a program: its number is lost, and what was prepared for it is put back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness.programs import Run


def test_launcher_does_not_signal_a_program_that_was_reaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of its input may come at any later time."""
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _number: signalled.append(group))
    monkeypatch.setattr(Run, "_end_with_input", lambda _run: None)
    launcher = Run({"argv": ["true"], "patterns": {}, "limit_s": 60.0})
    assert launcher.reply()["exit_code"] == 0
    assert len(signalled) == 1
    launcher._kill()
    assert len(signalled) == 1


def test_lines_around_a_program_have_more_time_than_the_budget_leaves_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else what --prepare starts would stay where the budget ends with its program."""
    monkeypatch.setattr(Run, "_end_with_input", lambda _run: None)
    place = tmp_path / "around"
    lines = {"prepare": f"sleep 0.3; echo p >>{place}", "conclude": f"sleep 0.3; echo c >>{place}"}
    request = {"argv": ["sleep", "9"], "patterns": {}, "limit_s": 0.1, **lines}
    assert Run(request).reply()["is_late"]
    assert place.read_text() == "p\nc\n"
