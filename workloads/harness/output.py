"""What a plain command prints: read at once, searched line by line, never kept as a whole."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Dict, Pattern

from harness.searching import Searcher

HEAD_BYTES = 64 << 10  # passed on as it comes
TAIL_BYTES = 16 << 10  # the end, passed on afterwards
_CHUNK_BYTES = 1 << 16


class Output(threading.Thread):
    """Drains `sink`, so that no program ever waits for a slow log or connection.

    `values` holds the last number each pattern found, `slow` the patterns that took too long.
    """

    def __init__(self, patterns: Dict[str, Pattern[bytes]], *, log: int) -> None:
        super().__init__(daemon=True)
        self._source, self.sink = os.pipe()
        ends = {self._source, self.sink}
        self._searcher = Searcher(patterns, strangers=ends) if patterns else None
        self._log = log
        self._tail = b""
        self._bytes = 0
        self.values: Dict[str, float] = {}
        self.slow: list[str] = []
        self.searching_ns = 0  # waited for at the end

    def run(self) -> None:
        """Read to the end, that is until no process holds the other end any more."""
        while True:
            chunk = os.read(self._source, _CHUNK_BYTES)
            if not chunk:
                break
            self._pass_on(chunk)
            if self._searcher is not None:
                self._searcher.feed(chunk)

    def finish(self, timeout_s: float) -> bool:
        """Wait for the end of the output and pass on its last part; False where it did not end."""
        os.close(self.sink)
        self.join(timeout_s)
        has_ended = not self.is_alive()
        left_out = self._bytes - HEAD_BYTES - len(self._tail)
        if left_out > 0:
            self._write(f"\n[… {left_out} bytes left out …]\n".encode())
        self._write(self._tail)
        if self._searcher is not None:
            self._searcher.finish()
            self.values, self.slow = self._searcher.values, self._searcher.slow
            self.searching_ns = self._searcher.waited_ns
        return has_ended

    def _pass_on(self, chunk: bytes) -> None:
        room = max(0, HEAD_BYTES - self._bytes)
        self._bytes += len(chunk)
        self._write(chunk[:room])
        self._tail = (self._tail + chunk[room:])[-TAIL_BYTES:]

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody reads the log any more
            while data:
                data = data[os.write(self._log, data) :]
