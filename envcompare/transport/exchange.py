"""One command on any transport with a thread for each of its streams, so that none blocks."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable
from typing import BinaryIO

from envcompare.command import Command, CommandResult
from envcompare.errors import CommandTimeoutError, OutputLimitError
from envcompare.transport import Transport

_CHUNK_BYTES = 1 << 16
# After the end of a command a child in the background may keep its streams open for ever.
_QUIET_S = 1.0
# Of each stream, in memory. What commands are asked for has some megabytes at most; files have a
# sink.
OUTPUT_LIMIT_BYTES = 64 << 20

Feed = Callable[[BinaryIO], None]


class Drain(threading.Thread):
    """Reads one stream to its end, so that no full pipe ever stops the command."""

    def __init__(
        self,
        stream: BinaryIO,
        sink: BinaryIO | None = None,
        *,
        on_limit: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._kept = io.BytesIO()
        self._sink = sink or self._kept
        self._on_limit = on_limit
        self.is_cut = False
        self._size_bytes = 0
        self._error: OSError | None = None
        self.start()

    def run(self) -> None:
        """Copy until the end of the stream or of the connection; go on reading on a full disk.

        What is kept in memory has a limit: what comes after it is read and dropped.
        """
        while chunk := self._read():
            self._size_bytes += len(chunk)
            if self._sink is self._kept and self._size_bytes > OUTPUT_LIMIT_BYTES:
                self._cut()
            elif self._error is None:
                try:
                    self._sink.write(chunk)
                except OSError as error:
                    self._error = error

    def settle(self) -> None:
        """Wait for the end of the stream, or for a while in which nothing comes."""
        seen = -1
        while self.is_alive() and seen != self._size_bytes:
            seen = self._size_bytes
            self.join(_QUIET_S)
        if self._error is not None:
            raise self._error

    def text(self) -> str:
        """Return what came so far, where no sink took it."""
        return self._kept.getvalue().decode(errors="replace")

    def last_line(self) -> str:
        """Return the last line of what came, once all has."""
        self.settle()
        return "".join(self.text().strip().splitlines()[-1:])

    def _cut(self) -> None:
        if not self.is_cut:
            self.is_cut = True
            self._on_limit()

    def _read(self) -> bytes:
        try:
            return self._stream.read(_CHUNK_BYTES)
        except OSError:
            return b""


class _Feeder(threading.Thread):
    """Writes the whole input of a command, which may end before it has read it."""

    def __init__(self, stream: BinaryIO, feed: Feed) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._feed = feed
        self._error: OSError | None = None
        self.start()

    def run(self) -> None:
        """Write, then end the input; the command's exit code says what it made of it."""
        try:
            with contextlib.suppress(BrokenPipeError), self._stream:
                self._feed(self._stream)
        except OSError as error:
            self._error = error

    def check(self) -> None:
        """Raise what kept the input from being read on this side."""
        if self._error is not None:
            raise self._error


class Exchange:
    """One command with a thread for each of its streams."""

    def __init__(
        self,
        transport: Transport,
        command: Command,
        *,
        feed: Feed = lambda _: None,
        sink: BinaryIO | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._process = transport.spawn(command)
        kill = self._process.kill
        self._stdout = Drain(self._process.stdout, sink, on_limit=kill)
        self._stderr = Drain(self._process.stderr, on_limit=kill)
        self._host = transport.name
        self._feeder = _Feeder(self._process.stdin, feed)

    def result(self) -> CommandResult:
        """Wait for the end; whatever keeps it from coming kills the command.

        Raises OutputLimitError where the command was killed for what it printed.
        """
        try:
            exit_code = self._process.wait(self._timeout_s)
        except BaseException as error:
            self._process.kill()
            if isinstance(error, CommandTimeoutError):
                self._stderr.settle()
                error.details = (
                    f"the last it wrote to stderr: {self._stderr.text()[-500:].strip()!r}"
                )
                error.hint = "raise the limit, or run the command by hand to see where it waits"
            raise
        self._feeder.check()
        self._stdout.settle()
        self._stderr.settle()
        if self._stdout.is_cut or self._stderr.is_cut:
            raise self._too_long()
        return CommandResult(
            command=self._command,
            exit_code=exit_code,
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
        )

    def _too_long(self) -> OutputLimitError:
        brief = " ".join(self._command.argv[:2])
        return OutputLimitError(
            f"{brief} printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB on {self._host}",
            details="envcompare keeps what a command prints in memory, and stopped this one",
            hint="run the command by hand to see what it prints",
        )
