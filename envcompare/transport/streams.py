"""Byte streams of a running command: reads give what is there, writes go out whole."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_BUFFER_BYTES = 1 << 16


class RawSource(Protocol):
    """Where bytes come from."""

    def receive(self, size: int, /) -> bytes:
        """Return at most `size` bytes as soon as there are any; nothing at the end."""
        ...

    def end(self) -> None:
        """Let go of the source."""
        ...


class RawSink(Protocol):
    """Where bytes go."""

    def send(self, data: bytes, /) -> None:
        """Send every byte; raises BrokenPipeError when nobody reads any more."""
        ...

    def end(self) -> None:
        """Tell the reader that no more bytes follow."""
        ...


class _Source(io.RawIOBase):
    def __init__(self, source: RawSource) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        data = self._source.receive(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._source.end()
        super().close()


class _LiveReader(io.BufferedReader):
    """Lines cost one read, and `read(n)` waits for the first bytes only, as on a raw pipe."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return super().read()
        return self.read1(size)


class _Sink(io.RawIOBase):
    """Nothing is kept back, so closing after the reader went away has nothing left to fail on."""

    def __init__(self, sink: RawSink) -> None:
        self._sink = sink

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        content = bytes(data)
        self._sink.send(content)
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._sink.end()
        super().close()


def reader(source: RawSource) -> BinaryIO:
    """Return a stream that reads from `source`."""
    return _LiveReader(_Source(source), _BUFFER_BYTES)


def writer(sink: RawSink) -> BinaryIO:
    """Return a stream that writes to `sink`."""
    return cast("BinaryIO", _Sink(sink))
