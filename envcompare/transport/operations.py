"""What is built on top of any transport: run to the end, and copy files and folders."""

from __future__ import annotations

import contextlib
import hashlib
import io
import secrets
import shutil
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

# $1 target, $2 a name beside it, $3 mode, $4 SHA-256
_RECEIVE = (
    'mkdir -p -- "$(dirname -- "$1")" && { cat >"$2" && chmod "$3" "$2" && '
    'test "$(sha256sum <"$2")" = "$4  -" && mv -f -- "$2" "$1"; } || { rm -f -- "$2"; exit 1; }'
)
_SEND = 'cat <"$1" && sum=$(sha256sum <"$1") && echo "${sum%% *}" >&2'
_UNPACK = 'mkdir -p -- "$1" && cd -- "$1" && exec tar -xof -'

Feed = Callable[[BinaryIO], None]


def run(
    transport: Transport, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None
) -> CommandResult:
    """Run the command to its end and return its exit code and both streams as text.

    Raises CommandTimeoutError after `timeout_s`, when the command and its children are killed.
    """
    return _Exchange(
        transport, command, feed=lambda stream: _write(stream, stdin), timeout_s=timeout_s
    ).result()


def put_file(transport: Transport, source: Path, target: str) -> None:
    """Copy a file to the host: written beside the target, compared by SHA-256, then renamed.

    Plain streams carry it: SFTP may be switched off, or be disturbed by a login shell that prints.
    """
    goal = f"{transport.name}:{target}"
    try:
        digest, mode = file_sha256(source), f"{source.stat().st_mode & 0o777:o}"
        with source.open("rb") as file:
            part = f"{target}.part-{secrets.token_hex(4)}"
            command = Command(argv=("sh", "-c", _RECEIVE, "sh", target, part, mode, digest))
            result = _Exchange(
                transport, command, feed=lambda stream: shutil.copyfileobj(file, stream)
            ).result()
    except OSError as error:
        raise _not_copied(str(source), goal, str(error)) from error
    if not result.succeeded:
        why = result.tail(1) or f"it arrived changed or not whole (exit {result.exit_code})"
        raise _not_copied(str(source), goal, why)


def get_file(transport: Transport, source: str, target: Path) -> None:
    """Copy a file from the host: written beside the target, compared by SHA-256, then renamed."""
    origin = f"{transport.name}:{source}"
    part = target.with_name(f"{target.name}.part-{secrets.token_hex(4)}")
    command = Command(argv=("sh", "-c", _SEND, "sh", source))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            result = _Exchange(transport, command, sink=file).result()
        if not result.succeeded:
            raise _not_copied(origin, str(target), result.tail(1))
        if file_sha256(part) != result.stderr.split()[-1]:
            raise _not_copied(origin, str(target), "it arrived changed or not whole")
        part.replace(target)
    except OSError as error:
        raise _not_copied(origin, str(target), str(error)) from error
    finally:
        part.unlink(missing_ok=True)


def put_tree(transport: Transport, source: Path, target: str) -> None:
    """Copy the files of a folder into the folder `target` of the host, without byte code.

    What is in `target` already and not in `source` stays.
    """
    goal = f"{transport.name}:{target}"
    if not source.is_dir():
        raise _not_copied(str(source), goal, "it is not a folder")
    command = Command(argv=("sh", "-c", _UNPACK, "sh", target))
    try:
        result = _Exchange(transport, command, feed=lambda stream: _pack(source, stream)).result()
    except OSError as error:
        raise _not_copied(str(source), goal, str(error)) from error
    if not result.succeeded:
        raise _not_copied(str(source), goal, result.tail(1))


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Drain(threading.Thread):
    """Reads one stream to its end, so that no full pipe ever stops the command."""

    def __init__(self, stream: BinaryIO, sink: BinaryIO) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._sink = sink
        self._size_bytes = 0
        self._error: OSError | None = None
        self.start()

    def run(self) -> None:
        """Copy until the end of the stream or of the connection; go on reading on a full disk."""
        while chunk := self._read():
            self._size_bytes += len(chunk)
            if self._error is None:
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


class _Exchange:
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
        self._kept = (io.BytesIO(), io.BytesIO())
        self._process = transport.spawn(command)
        self._stdout = _Drain(self._process.stdout, sink or self._kept[0])
        self._stderr = _Drain(self._process.stderr, self._kept[1])
        self._feeder = _Feeder(self._process.stdin, feed)

    def result(self) -> CommandResult:
        """Wait for the end; whatever keeps it from coming kills the command."""
        try:
            exit_code = self._process.wait(self._timeout_s)
        except BaseException as error:
            self._process.kill()
            if isinstance(error, CommandTimeoutError):
                self._stderr.settle()
                error.details = f"the last it wrote to stderr: {self._texts()[1][-500:].strip()!r}"
                error.hint = "raise the limit, or run the command by hand to see where it waits"
            raise
        self._feeder.check()
        self._stdout.settle()
        self._stderr.settle()
        stdout, stderr = self._texts()
        return CommandResult(
            command=self._command, exit_code=exit_code, stdout=stdout, stderr=stderr
        )

    def _texts(self) -> tuple[str, str]:
        stdout, stderr = (kept.getvalue().decode(errors="replace") for kept in self._kept)
        return stdout, stderr


def _write(stream: BinaryIO, data: bytes) -> None:
    if data:
        stream.write(data)


def _not_copied(source: str, target: str, why: str) -> TransportError:
    return TransportError(
        f"cannot copy {source} to {target}",
        details=why,
        hint="check that it can be read, and that the disk there has room and allows writing",
    )


def _pack(source: Path, stream: BinaryIO) -> None:
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(source.iterdir()):
            archive.add(path, arcname=path.name, filter=_without_byte_code)


def _without_byte_code(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(member.name).name == "__pycache__" else member
