"""Byte streams of a running command: reads give what is there, writes go out whole, none blocks."""

from __future__ import annotations

import contextlib
import errno
import io
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from typing_extensions import Self

from envcompare.errors import CommandTimeoutError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_TICK_S = 5.0
_BUFFER_BYTES = 1 << 16
# After the end of a command a child in the background may keep its streams open for ever.
_QUIET_S = 1.0
_SETTLE_S = 60.0  # nor write to them
# A copy in which nothing moves any more is given up. Before its first byte and after its last one
# a host may read and hash all of a file.
_STALL_S = 600.0
_HASHING_S = 3600.0
# Of each stream, in memory. What commands are asked for has some megabytes at most; files have a
# sink.
OUTPUT_LIMIT_BYTES = 64 << 20


class Sink(Protocol):
    """Takes what a command writes."""

    def write(self, data: bytes, /) -> int:
        """Take it, or raise OSError."""
        ...


def reader(
    receive: Callable[[int], bytes], *, end: Callable[[], object] = lambda: None
) -> BinaryIO:
    """Return a stream of what `receive` gives: bytes as soon as there are any, none at the end.

    `end` is called once, when the stream is closed.
    """
    return _LiveReader(_Source(receive, end), _BUFFER_BYTES)


def writer(send: Callable[[bytes], object], *, end: Callable[[], object]) -> BinaryIO:
    """Return a stream that hands all bytes to `send`, and calls `end` once where no more follow.

    `send` raises BrokenPipeError when nobody reads any more.
    """
    return cast("BinaryIO", _Sink(send, end))


class _Source(io.RawIOBase):
    def __init__(self, receive: Callable[[int], bytes], end: Callable[[], object]) -> None:
        self._receive = receive
        self._end = end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        data = self._receive(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._end()
        super().close()


class _LiveReader(io.BufferedReader):
    """Lines cost one read, and `read(n)` waits for the first bytes only, as on a raw pipe."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return super().read()
        return self.read1(size)


class _Sink(io.RawIOBase):
    """Nothing is kept back, so closing after the reader went away has nothing left to fail on."""

    def __init__(self, send: Callable[[bytes], object], end: Callable[[], object]) -> None:
        self._send = send
        self._end = end

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        content = bytes(data)
        self._send(content)
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._end()
        super().close()


class _Killable(Protocol):
    """A process that can be killed."""

    def kill(self) -> None:
        """Kill it."""
        ...


class LimitedSink:
    """A file that takes no more than a number of bytes, whatever a host sends."""

    def __init__(self, file: BinaryIO, *, limit_bytes: int) -> None:
        self._file = file
        self._left = limit_bytes

    def write(self, data: bytes, /) -> int:
        """Write; raises OSError for what is beyond the limit."""
        self._left -= len(data)
        if self._left < 0:
            raise OSError(errno.EFBIG, "the host sent more than the file had")
        return self._file.write(data)


class Drain(threading.Thread):
    """Reads one stream to its end, so that no full pipe ever stops the command."""

    def __init__(
        self,
        stream: BinaryIO,
        sink: Sink | None = None,
        *,
        on_limit: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._kept = io.BytesIO()
        self._sink: Sink = sink or self._kept
        self._on_limit = on_limit
        self.is_cut = False
        self._is_settled = False  # what comes later is dropped: its sink may be closed
        self._size_bytes = 0
        self._error: OSError | None = None
        self.start()

    def run(self) -> None:
        """Copy until the end of the stream or of the connection, even if nothing takes it any more.

        What is kept in memory has a limit: what comes after it is read and dropped.
        """
        while chunk := self._read():
            self._size_bytes += len(chunk)
            if self._sink is self._kept and self._size_bytes > OUTPUT_LIMIT_BYTES:
                self._cut()
            elif self._error is None and not self._is_settled:
                try:
                    self._sink.write(chunk)
                except OSError as error:
                    self._error = error
                    self._on_limit()

    def settle(self) -> None:
        """Wait for the end of the stream, or for a while in which nothing comes.

        One that goes on after its command has ended is left after a minute.
        """
        seen, until = -1, time.monotonic() + _SETTLE_S
        while self.is_alive() and seen != self._size_bytes and time.monotonic() < until:
            seen = self._size_bytes
            self.join(_QUIET_S)
        self._is_settled = True
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
            return self._stream.read(_BUFFER_BYTES)
        except OSError:
            return b""


class StallWatch:
    """Kills the processes of a copy in which nothing moves any more; the copy then ends by itself.

    A context manager, left with CommandTimeoutError where it has killed them.
    """

    def __init__(self, what: str, *processes: _Killable) -> None:
        self._what = what
        self._processes = processes
        self._limit_s = _HASHING_S
        self._last_s = time.monotonic()
        self._is_over = threading.Event()
        self._killed_after_s = 0.0

    def note_progress(self) -> None:
        """Note that bytes went."""
        self._last_s, self._limit_s = time.monotonic(), _STALL_S

    def note_all_sent(self) -> None:
        """Note that no bytes follow: what is left is to read and hash the file."""
        self._last_s, self._limit_s = time.monotonic(), _HASHING_S

    def __enter__(self) -> Self:
        """Begin to watch."""
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching, and say where the copy was ended."""
        self._is_over.set()
        if self._killed_after_s:
            raise CommandTimeoutError(
                f"{self._what} stands still",
                details=f"nothing of it has moved for {self._killed_after_s / 60:g} min",
                hint="see whether the disk and the network there respond, then try again",
            )

    def _watch(self) -> None:
        while (left_s := self._last_s + self._limit_s - time.monotonic()) > 0:
            if self._is_over.wait(min(left_s, _TICK_S)):
                return
        self._killed_after_s = self._limit_s
        for process in self._processes:
            process.kill()


class Feeder(threading.Thread):
    """Writes the whole input of a command, which may end before it has read it."""

    def __init__(self, stream: BinaryIO, feed: Callable[[BinaryIO], object]) -> None:
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
