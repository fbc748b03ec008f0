"""What is built on top of any transport: run to the end, and send a folder."""

from __future__ import annotations

import contextlib
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from envcompare.command import Command, CommandResult
from envcompare.errors import CommandTimeoutError, TransportError
from envcompare.transport import Transport

_CHUNK_BYTES = 1 << 16
# After the end of a command a child in the background may keep its streams open for ever.
_QUIET_S = 1.0

Feed = Callable[[BinaryIO], None]


class _Drain(threading.Thread):
    """Reads one stream to its end, so that no full pipe ever stops the command."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._chunks: list[bytes] = []
        self.start()

    def run(self) -> None:
        """Collect until the end of the stream or of the connection."""
        with contextlib.suppress(OSError):
            while chunk := self._stream.read(_CHUNK_BYTES):
                self._chunks.append(chunk)

    def text(self) -> str:
        """Return what came, once the stream has ended or has been silent for a while."""
        seen = -1
        while self.is_alive() and seen != len(self._chunks):
            seen = len(self._chunks)
            self.join(_QUIET_S)
        return b"".join(self._chunks).decode(errors="replace")


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
            raise TransportError(
                "the input of a command could not be read",
                details=str(self._error),
                hint="check that the files can be read",
            ) from self._error


def run(
    transport: Transport, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None
) -> CommandResult:
    """Run the command to its end and return its exit code and both streams as text.

    Raises CommandTimeoutError after `timeout_s`, when the command and its children are killed.
    """

    def feed(stream: BinaryIO) -> None:
        if stdin:
            stream.write(stdin)

    return _exchange(transport, command, feed=feed, timeout_s=timeout_s)


def put_tree(transport: Transport, source: Path, target: str) -> None:
    """Copy the files of a folder into the folder `target` of the host, without byte code.

    What is in `target` already and not in `source` stays.
    """
    if not source.is_dir():
        raise TransportError(
            f"cannot copy {source} to {transport.name}",
            details="it is not a folder",
            hint="check the path",
        )
    script = 'mkdir -p -- "$1" && cd -- "$1" && exec tar -xof -'
    command = Command(argv=("sh", "-c", script, "sh", target))
    result = _exchange(transport, command, feed=lambda stream: _pack(source, stream))
    if not result.succeeded:
        raise TransportError(
            f"cannot copy {source} to {target} on {transport.name}",
            details=f"{result.tail(1)} (exit {result.exit_code})",
            hint="check that the disk there has room, allows writing, and that tar is installed",
        )


def _pack(source: Path, stream: BinaryIO) -> None:
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(source.iterdir()):
            archive.add(path, arcname=path.name, filter=_without_byte_code)


def _without_byte_code(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(member.name).name == "__pycache__" else member


def _exchange(
    transport: Transport, command: Command, *, feed: Feed, timeout_s: float | None = None
) -> CommandResult:
    process = transport.spawn(command)
    drains = (_Drain(process.stdout), _Drain(process.stderr))
    feeder = _Feeder(process.stdin, feed)
    try:
        exit_code = process.wait(timeout_s)
    except CommandTimeoutError as error:
        process.kill()
        stderr = drains[1].text().strip()
        error.details = (
            error.details or f"the last it wrote to stderr: {stderr[-500:] or 'nothing'}"
        )
        error.hint = (
            error.hint or "raise the limit, or run the command by hand to see what it waits for"
        )
        raise
    except BaseException:
        process.kill()
        raise
    feeder.check()
    return CommandResult(
        command=command, exit_code=exit_code, stdout=drains[0].text(), stderr=drains[1].text()
    )
