"""A program that was reaped has lost its number: its launcher signals it no more."""

from __future__ import annotations

import os

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
