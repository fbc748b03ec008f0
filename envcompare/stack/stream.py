"""Send what one command writes into another, across hosts and without a file between."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import BinaryIO

from envcompare.command import Command
from envcompare.stack import Progress
from envcompare.transport import Process, Transport

_CHUNK_BYTES = 1 << 20
_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piped:
    """How both ends of a pipe ended: exit codes and what they said."""

    source_exit: int
    sink_exit: int
    text: str

    @property
    def succeeded(self) -> bool:
        """Tell whether both ended with 0."""
        return self.source_exit == 0 and self.sink_exit == 0


@dataclass(slots=True)
class _Said:
    """Collects a stream in the background, so that a full one never stops its command."""

    stream: BinaryIO
    text: bytes = b""
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._collect, daemon=True)
        self.thread.start()

    def _collect(self) -> None:
        while chunk := self.stream.read(_CHUNK_BYTES):
            self.text = (self.text + chunk)[-_CHUNK_BYTES:]

    def end(self) -> str:
        """Return the text once the stream has ended."""
        self.thread.join(5)
        return self.text.decode(errors="replace")


def pipe(
    source: tuple[Transport, Command], sink: tuple[Transport, Command], *, progress: Progress
) -> Piped:
    """Run both commands, the second reading what the first writes; neither outlives a failure."""
    writer, reader = source[0].spawn(source[1]), sink[0].spawn(sink[1])
    said = (_Said(writer.stderr), _Said(reader.stderr), _Said(reader.stdout))
    try:
        writer.stdin.close()
        _copy(writer, reader, progress)
        exits = (writer.wait(), reader.wait())
    except BaseException:
        writer.kill()
        reader.kill()
        raise
    texts = [one.end() for one in said]
    return Piped(source_exit=exits[0], sink_exit=exits[1], text="\n".join(texts))


def _copy(writer: Process, reader: Process, progress: Progress) -> None:
    sent, told = 0, time.monotonic()
    try:
        while chunk := writer.stdout.read(_CHUNK_BYTES):
            reader.stdin.write(chunk)
            sent += len(chunk)
            if time.monotonic() - told > _EVERY_S:
                told = time.monotonic()
                progress(f"{sent / 1e6:.0f} MB sent")
    except BrokenPipeError:
        writer.kill()  # the reader ended early, and its exit code says why
    finally:
        reader.stdin.close()
