"""Failures as the controller reads them: a phase, a step, one line and the end of a traceback."""

from __future__ import annotations

import contextlib
import sys
import traceback
from typing import Any, Iterator

TRACEBACK_LINES = 10


class PhaseError(Exception):
    """Something failed in a known phase; the failure itself is `__cause__`.

    Phases: import, data, setup, step, protocol, process, and environment, where it lacks something.
    `step` counts from 1 in a generation.
    """

    def __init__(self, phase: str, step: int | None = None) -> None:
        super().__init__(phase)
        self.phase = phase
        self.step = step


class ProtocolError(Exception):
    """A request cannot be understood, or comes at the wrong moment."""


class HintedError(Exception):
    """A failure with a `hint` on what to try."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ProcessError(HintedError):
    """A process could not be made as asked, or ended before its time."""


class ExhaustedError(ProcessError):
    """A script has ended well, and took fewer steps than were wanted."""


class ContractError(HintedError):
    """A workload's class is not as workloads/README.md says that it must be."""


class LackingError(HintedError):
    """The environment lacks what the workload needs: the arm is not run, and has not failed."""


class DataError(HintedError):
    """Data is missing, damaged or of an unknown format; the message names the file and remedy."""


@contextlib.contextmanager
def phase(name: str, step: int | None = None) -> Iterator[None]:
    """Turn whatever the body raises into a PhaseError, the innermost phase winning.

    SystemExit is caught too: a workload that calls `sys.exit` has failed, the worker has not.
    """
    try:
        yield
    except PhaseError:
        raise
    except (Exception, SystemExit) as error:
        raise PhaseError(name, step) from error


def failure_reply(op: str | None, error: PhaseError) -> dict[str, Any]:
    """Return the reply that reports a failed request."""
    cause = error.__cause__ or error
    if isinstance(cause, HintedError):  # our own message needs no traceback
        said = {"brief": str(cause), "hint": cause.hint, "traceback": ""}
    else:
        said = _unforeseen(cause)
    where = "environment" if isinstance(cause, LackingError) else error.phase
    found: dict[str, Any] = {"phase": where, "step": error.step, **said}
    if isinstance(cause, ExhaustedError):
        found["is_exhausted"] = True
    return {"op": op, "ok": False, "error": found}


def _unforeseen(cause: BaseException) -> dict[str, str]:
    """Return the type and the place of an unexpected failure."""
    lines = "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))
    message = str(cause).strip().splitlines()
    return {
        "brief": type(cause).__name__ + (f": {message[0]}" if message else ""),
        "hint": _install_hint(cause),
        "traceback": "\n".join(lines.rstrip().splitlines()[-TRACEBACK_LINES:]),
    }


def _install_hint(cause: BaseException) -> str:
    """Return what to try if a module is missing; empty for any other failure."""
    if not isinstance(cause, ModuleNotFoundError) or not cause.name:
        return ""
    package = cause.name.split(".")[0]
    return (
        f"{sys.executable}, the Python of this arm, has no module {package}: install the package "
        "that provides it there, or put its file next to your workload's to send it too; for "
        "bundled workloads leave out --stacks host, @host and --host-python, and envcompare "
        "installs it"
    )
