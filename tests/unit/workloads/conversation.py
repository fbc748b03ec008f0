"""A real worker at the other end of two pipes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parents[3] / "workloads" / "harness" / "worker.py"


class Conversation:
    """A running worker, or a program with its protocol, asked one request at a time."""

    def __init__(
        self, python: str, errors: Path, *, program: Path | None = None, **variables: str
    ) -> None:
        self._errors = errors
        with errors.open("wb") as sink:
            self.process = subprocess.Popen(
                [python, str(program or WORKER)],
                env={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                bufsize=0,
            )

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return the reply."""
        self.say(json.dumps({"op": op, **fields}) + "\n")
        return self.hear()

    def say(self, text: str) -> None:
        """Write text as it is."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())

    def hear(self) -> dict[str, Any]:
        """Return the next reply."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the worker is gone: {self.printed()}"
        reply: dict[str, Any] = json.loads(line)
        return reply

    def hang_up(self) -> None:
        """Close the worker's input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def rest(self) -> bytes:
        """Wait for the end and return what was on stdout besides the replies that were heard."""
        assert self.process.stdout is not None
        rest: bytes = self.process.stdout.read()
        self.process.wait(30)
        return rest

    def printed(self) -> str:
        """Return what came over stderr."""
        return self._errors.read_text()


Start = Callable[..., Conversation]
