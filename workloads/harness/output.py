"""The output of a plain command: read at once, searched line by line, never kept as a whole.

A separate process searches it for numbers. An expression may never end, and in a thread it would
hold the interpreter's lock while it matches, which would delay the clock of the launcher.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import signal
import threading
import time
from typing import Dict, NoReturn, Pattern, Set

HEAD_BYTES = 64 << 10  # passed on as it comes
TAIL_BYTES = 16 << 10  # the end, passed on afterwards
LINE_BYTES = 64 << 10  # a longer line is searched in pieces
MATCH_LIMIT_S = 5.0  # of CPU time, for one expression on one line
_WAIT_LIMIT_S = 30.0  # on the clock, where others want the CPU as well
_CHUNK_BYTES = 1 << 16
_LINE_ENDS = re.compile(rb"[\r\n]")  # progress bars end a line with \r


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
        """Wait for the end of the output and pass on its last part; False if it did not end."""
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


class Searcher:
    """Takes output piece by piece; `values` holds the last number each pattern found in the end.

    `slow` names the patterns that took too long: they have no value. Made before any thread is.
    """

    def __init__(self, patterns: Dict[str, Pattern[bytes]], *, strangers: Set[int]) -> None:
        self._names = list(patterns)
        self.values: Dict[str, float] = {}
        self.slow: list[str] = []
        self.waited_ns = 0
        inlet, self._inlet = os.pipe()
        self._outlet, outlet = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _search(patterns, inlet, outlet, {*strangers, self._inlet, self._outlet})
        os.close(inlet)
        os.close(outlet)

    def feed(self, chunk: bytes) -> None:
        """Add the next part of the output."""
        with contextlib.suppress(OSError):  # it is gone, and its values with it
            while chunk:
                chunk = chunk[os.write(self._inlet, chunk) :]

    def finish(self) -> None:
        """Wait until all is searched, but not for ever."""
        began_ns = time.monotonic_ns()
        os.close(self._inlet)
        self.slow = self._names
        if select.select([self._outlet], [], [], _WAIT_LIMIT_S)[0]:
            with open(self._outlet, "rb") as file, contextlib.suppress(ValueError):
                self.values, self.slow = json.loads(file.read())
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self.waited_ns = time.monotonic_ns() - began_ns


def _search(
    patterns: Dict[str, Pattern[bytes]], inlet: int, outlet: int, strangers: Set[int]
) -> NoReturn:
    """Search the input, report the matches, and end this process."""
    code = 1
    try:
        signal.signal(signal.SIGVTALRM, _raise_timeout)
        for number in strangers:
            os.close(number)
        search = _Search(patterns)
        while chunk := os.read(inlet, _CHUNK_BYTES):
            search.take(chunk)
        search.end()
        with open(outlet, "wb") as file:
            file.write(json.dumps([search.values, search.slow]).encode())
        code = 0
    finally:
        os._exit(code)


class _Search:
    def __init__(self, patterns: Dict[str, Pattern[bytes]]) -> None:
        self._patterns = dict(patterns)
        self._line = b""
        self.values: Dict[str, float] = {}
        self.slow: list[str] = []

    def take(self, chunk: bytes) -> None:
        *lines, rest = _LINE_ENDS.split(self._line + chunk)
        for line in lines:
            self._match(line)
        if len(rest) > LINE_BYTES:
            self._match(rest)
            rest = b""
        self._line = rest

    def end(self) -> None:
        self._match(self._line)

    def _match(self, line: bytes) -> None:
        for name in list(self._patterns):
            self._match_within_limit(name, line)

    def _match_within_limit(self, name: str, line: bytes) -> None:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, MATCH_LIMIT_S)
            self._take_numbers(name, self._patterns[name], line)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except TimeoutError:
            del self._patterns[name]
            self.values.pop(name, None)
            self.slow.append(name)

    def _take_numbers(self, name: str, pattern: Pattern[bytes], line: bytes) -> None:
        for found in pattern.finditer(line):
            number = _number(found[1])
            if number is not None:
                self.values[name] = number


def _raise_timeout(_number: int, _frame: object) -> NoReturn:
    raise TimeoutError


def _number(text: bytes) -> float | None:
    """Return the finite number in a group; None for anything else."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None
