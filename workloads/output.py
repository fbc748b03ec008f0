"""What a plain command prints: read at once, searched line by line, never kept as a whole."""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
from typing import Dict, Pattern

HEAD_BYTES = 64 << 10  # passed on as it comes
TAIL_BYTES = 16 << 10  # the end, passed on afterwards
LINE_BYTES = 64 << 10  # a longer line is searched in pieces
_CHUNK_BYTES = 1 << 16
_LINE_ENDS = re.compile(rb"[\r\n]")  # progress bars end a line with \r


class Output(threading.Thread):
    """Drains `sink`, so that no program ever waits for a slow log or connection.

    `values` holds the last number each pattern found.
    """

    def __init__(self, patterns: Dict[str, Pattern[bytes]], *, log: int) -> None:
        super().__init__(daemon=True)
        self._source, self.sink = os.pipe()
        self._patterns = patterns
        self._log = log
        self._line = b""
        self._tail = b""
        self._bytes = 0
        self.values: Dict[str, float] = {}

    def run(self) -> None:
        """Read to the end, that is until no process holds the other end any more."""
        while True:
            chunk = os.read(self._source, _CHUNK_BYTES)
            if not chunk:
                break
            self._pass_on(chunk)
            if self._patterns:
                self._search(chunk)
        self._match(self._line)

    def finish(self, timeout_s: float) -> bool:
        """Wait for the end of the output and pass on its last part; False where it did not end."""
        os.close(self.sink)
        self.join(timeout_s)
        left_out = self._bytes - HEAD_BYTES - len(self._tail)
        if left_out > 0:
            self._write(f"\n[… {left_out} bytes left out …]\n".encode())
        self._write(self._tail)
        return not self.is_alive()

    def _pass_on(self, chunk: bytes) -> None:
        room = max(0, HEAD_BYTES - self._bytes)
        self._bytes += len(chunk)
        self._write(chunk[:room])
        self._tail = (self._tail + chunk[room:])[-TAIL_BYTES:]

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody reads the log any more
            while data:
                data = data[os.write(self._log, data) :]

    def _search(self, chunk: bytes) -> None:
        *lines, rest = _LINE_ENDS.split(self._line + chunk)
        for line in lines:
            self._match(line)
        if len(rest) > LINE_BYTES:
            self._match(rest)
            rest = b""
        self._line = rest

    def _match(self, line: bytes) -> None:
        for name, pattern in self._patterns.items():
            for found in pattern.finditer(line):
                number = _number(found[1])
                if number is not None:
                    self.values[name] = number


def _number(text: bytes) -> float | None:
    """Return the finite number in a group; None for anything else."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None
