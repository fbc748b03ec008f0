"""Send what one command writes into another, across hosts and without a file between.

Nothing is compressed on the way: a core packs fewer bytes a second than a network of 1 Gbit/s
carries, and an engine unpacks slower than both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from envcompare.command import Command
from envcompare.console import Saying
from envcompare.environments.diagnosis import is_full
from envcompare.errors import TransportError
from envcompare.stack import Progress
from envcompare.stack.cache import failure
from envcompare.transport import Process, Told, Transport
from envcompare.transport.streams import Drain

_CHUNK_BYTES = 1 << 16


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


def pipe(
    source: tuple[Transport, Command], sink: tuple[Transport, Command], *, told: Told
) -> Piped:
    """Run both commands, the second reading what the first writes; neither outlives a failure."""
    with contextlib.ExitStack() as killing:
        writer = source[0].spawn(source[1])
        killing.callback(writer.kill)
        reader = sink[0].spawn(sink[1])
        killing.callback(reader.kill)
        said = tuple(Drain(stream) for stream in (writer.stderr, reader.stderr, reader.stdout))
        writer.stdin.close()
        _copy(writer, reader, told)
        exits = (writer.wait(), reader.wait())
        killing.pop_all()
    for one in said:
        one.settle()
    text = "\n".join(one.text() for one in said)
    return Piped(source_exit=exits[0], sink_exit=exits[1], text=text)


def put(transport: Transport, source: Path, target: str, *, sha256: str, told: Told) -> None:
    """Send a file of that hash to the host; raises StackError where it has no room."""
    try:
        transport.put(source, target, sha256=sha256, told=told)
    except TransportError as error:
        if is_full(error.details):
            what = f"sending {source.name}"
            raise failure(transport, what, error.details, hint=error.hint) from error
        raise


@contextlib.contextmanager
def moving(progress: Progress, what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Give what is told how much of a transfer has gone; only a display shows more than lines."""
    if isinstance(progress, Saying):
        with progress.moving(what, total_bytes) as told:
            yield told
    else:
        yield lambda _done_bytes: None


def _copy(writer: Process, reader: Process, told: Told) -> None:
    sent = 0
    try:
        while chunk := writer.stdout.read(_CHUNK_BYTES):
            reader.stdin.write(chunk)
            sent += len(chunk)
            told(sent)
    except BrokenPipeError:
        writer.kill()  # the reader ended early, and its exit code says why
    finally:
        reader.stdin.close()
