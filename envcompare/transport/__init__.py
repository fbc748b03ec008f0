"""How a command reaches a host: the Transport seam, its streams, and what any transport can do.

`LocalTransport` runs commands on this machine, through one POSIX shell, as over SSH.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Protocol, TypeVar, cast

import msgspec

from envcompare.errors import (
    CommandTimeoutError,
    CopyError,
    OutputLimitError,
    StackError,
    UnusableError,
    plain,
)
from envcompare.files import read_chunks
from envcompare.text import Command, CommandResult, spoken

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_T = TypeVar("_T")
# A host that takes longer to answer a question hangs; folders may be on a slow file system.
ANSWER_S = 60.0
FOLDER_S = 300.0
# Reading, copying and making content take as long as there is content; this ends one that hangs.
CONTENT_S = 7200.0
_BUFFER_BYTES = 1 << 16
# After a command ends, a background child may hold its streams open, or write to them, for ever.
_SETTLE_S = 60.0
# Of each stream, in memory. Answers have a few megabytes at most; files go to a sink.
_OUTPUT_LIMIT_BYTES = 64 << 20

OnProgress = Callable[[int], None]
"""Called with the number of bytes copied so far; an exception from it ends the copy."""
# The shell stays as the parent, so that death by a signal is reported as 128 + n, as over SSH.
_LAUNCH = ("/bin/sh", "-c", '"$@"; exit "$?"', "sh")
_LONGEST_PAUSE_S = 0.05


class Process(Protocol):
    """A running command; all three streams are binary and unbuffered on the reading side.

    Closing `stdin` ends the command's input.
    """

    stdin: BinaryIO
    stdout: BinaryIO
    stderr: BinaryIO

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code (128 + n after signal n).

        Raises CommandTimeoutError after the limit, which leaves the command running, and
        TransportError when the connection was lost before the exit code arrived.
        """
        ...

    def kill(self) -> None:
        """Kill the command and all its children (SIGKILL to the group); safe to repeat."""
        ...


class Transport(Protocol):
    """Carries commands and files to one host."""

    @property
    def name(self) -> str:
        """Return the host's name as the user wrote it; `local` for this machine."""
        ...

    @property
    def bare(self) -> Transport:
        """Return the transport without interruption; clean-up runs over it."""
        ...

    def spawn(self, command: Command) -> Process:
        """Start the command on the host; a missing program ends with exit code 127."""
        ...

    def forward_unix(self, path: str) -> AbstractContextManager[Path]:
        """Yield the path of a local socket that reaches the UNIX socket `path` of the host."""
        ...

    def close(self) -> None:
        """Close the connection; safe to repeat."""
        ...


class Sink(Protocol):
    """Receives the output of a command."""

    def write(self, data: bytes, /) -> int:
        """Write the bytes, or raise OSError."""
        ...


def reader(
    receive: Callable[[int], bytes], *, end: Callable[[], object] = lambda: None
) -> BinaryIO:
    """Return a stream over `receive`, which returns bytes once there are any, and none at the end.

    Closing the stream calls `end` once.
    """
    return _LiveReader(_Source(receive, end), _BUFFER_BYTES)


def writer(send: Callable[[bytes], object], *, end: Callable[[], object]) -> BinaryIO:
    """Return a stream that passes all bytes to `send`; closing it calls `end` once.

    `send` raises BrokenPipeError when the other side no longer reads.
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
    """Reads lines from a buffer, but `read(n)` waits for the first bytes only, like a raw pipe."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return super().read()
        return self.read1(size)


class _Sink(io.RawIOBase):
    """Buffers nothing, so that closing cannot fail after the reader has gone."""

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


class Drain(threading.Thread):
    """Reads one stream to its end, so that a full pipe never blocks the command."""

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
        # Later output is dropped, since its sink may be closed by then.
        self._is_settled = False
        self._is_writing = False
        self._size_bytes = 0
        self._steps = 0
        self._error: OSError | None = None
        self.start()

    def run(self) -> None:
        """Copy until the stream or the connection ends, even after the sink has failed.

        Output beyond the limit in memory is read and dropped.
        """
        while chunk := self._read():
            self._size_bytes += len(chunk)
            self._steps += 1
            if self._sink is self._kept and self._size_bytes > _OUTPUT_LIMIT_BYTES:
                if not self.is_cut:
                    self.is_cut = True
                    self._on_limit()
            elif self._error is None and not self._is_settled:
                self._is_writing = True
                try:
                    self._sink.write(chunk)
                except OSError as error:
                    self._error = error
                    self._on_limit()
                self._steps += 1
                self._is_writing = False

    def settle(self) -> None:
        """Wait for the end of the stream, or for a second without output; a minute at most.

        Raises the OSError of the sink, if it failed.
        """
        seen, until = -1, time.monotonic() + _SETTLE_S
        # A slow sink is no silence: more output may wait behind it.
        while (
            self.is_alive()
            and (self._is_writing or seen != self._steps)
            and time.monotonic() < until
        ):
            seen = self._steps
            self.join(1)
        self._is_settled = True
        if self._error is not None:
            raise self._error

    def text(self) -> str:
        """Return the output so far; empty if there is a sink."""
        return self._kept.getvalue().decode(errors="replace")

    def last_line(self) -> str:
        """Wait for the end of the stream, and return its last line."""
        self.settle()
        return "".join(self.text().strip().splitlines()[-1:])

    def _read(self) -> bytes:
        try:
            return self._stream.read(_BUFFER_BYTES)
        except OSError:
            # `wait` reports a connection that was lost.
            return b""


class _Feeder(threading.Thread):
    """Writes the whole input of a command, which may end before it has read it."""

    def __init__(self, stream: BinaryIO, feed: Callable[[BinaryIO], object]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._feed = feed
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Write, then close the input; a command that stops reading early is no error here."""
        try:
            with contextlib.suppress(BrokenPipeError), self._stream:
                self._feed(self._stream)
        except Exception as error:  # noqa: BLE001 — `check` raises it in the caller's thread
            self._error = error

    def check(self) -> None:
        """Raise the error that reading the input caused on this side, if any."""
        # The input is closed, which ends the command, before its error is noted.
        self.join(1)
        if self._error is not None:
            raise self._error


def run(
    transport: Transport,
    command: Command,
    *,
    stdin: bytes | Callable[[BinaryIO], object] = b"",
    sink: Sink | None = None,
    timeout_s: float = ANSWER_S,
) -> CommandResult:
    """Run the command and return its exit code and both streams as text.

    `stdin` is its input, or a function that writes it; with a `sink`, stdout goes there instead.
    Kills the command and its children on failure. Raises CommandTimeoutError after `timeout_s`,
    and OutputLimitError when it prints more than 64 MiB.
    """
    process = transport.spawn(command)
    stdout = Drain(process.stdout, sink, on_limit=process.kill)
    stderr = Drain(process.stderr, on_limit=process.kill)
    feed = (lambda stream: stream.write(stdin)) if isinstance(stdin, bytes) else stdin
    feeder = _Feeder(process.stdin, feed)
    try:
        exit_code = process.wait(timeout_s)
    except BaseException as error:
        process.kill()
        if isinstance(error, CommandTimeoutError):
            stderr.settle()
            error.details = f"the end of its stderr: {stderr.text()[-500:].strip()!r}"
            error.hint = "run the command by hand to see where it waits"
        raise
    feeder.check()
    stdout.settle()
    stderr.settle()
    if stdout.is_cut or stderr.is_cut:
        raise OutputLimitError(
            f"{' '.join(command.argv[:2])} printed more than "
            f"{_OUTPUT_LIMIT_BYTES >> 20} MiB on {transport.name}",
            details="envcompare keeps a command's output in memory, and killed this one",
            hint="run the command by hand to see its output",
        )
    return CommandResult(
        command=command, exit_code=exit_code, stdout=stdout.text(), stderr=stderr.text()
    )


def shell(
    transport: Transport, script: str, *words: str, timeout_s: float = ANSWER_S
) -> CommandResult:
    """Run a fixed script of POSIX sh on the host with `words` as its arguments.

    Raises CommandTimeoutError, which quotes the script, after `timeout_s`.
    """
    try:
        return run(transport, Command(argv=("sh", "-c", script, "sh", *words)), timeout_s=timeout_s)
    except CommandTimeoutError as error:
        raise CommandTimeoutError(
            f"{transport.name} did not answer within {timeout_s:g} s",
            details=f"the command was: {spoken(' '.join((script, *words)))}; {error.details}",
            hint="run the command there by hand; a program, a device or a file system, such as a "
            "network share whose server is down, does not respond",
        ) from error


def make_folder(transport: Transport, path: str) -> None:
    """Make a folder of the cache, readable by its owner alone; raises StackError."""
    # chmod as well, because mkdir -p keeps the mode of an existing folder.
    script = 'umask 077 && mkdir -p -- "$1" && chmod 700 -- "$1"'
    _make(transport, script, path, hint="set XDG_CACHE_HOME there to a writable folder")


def make_new_folder(transport: Transport, path: str) -> None:
    """Make an empty, private folder inside an existing one that others may write to.

    Removes whatever has that name, and follows no link. Raises StackError.
    """
    # Without -p, mkdir fails if someone makes a link of this name after the removal.
    script = 'umask 077 && rm -rf -- "$1" && mkdir -- "$1"'
    hint = "check that the disk there has room, and that its parent folder is writable"
    _make(transport, script, path, hint=hint)


def _make(transport: Transport, script: str, path: str, *, hint: str) -> None:
    result = shell(transport, script, path, timeout_s=FOLDER_S)
    if not result.succeeded:
        raise StackError(
            f"cannot make {path} on {transport.name}", details=result.tail(1), hint=hint
        )


def remove_folder(transport: Transport, path: str) -> None:
    """Remove a folder of the host with its content; ignores what cannot be removed."""
    run(transport, Command(argv=("rm", "-rf", "--", path)), timeout_s=FOLDER_S)


def put_tree(
    transport: Transport, source: Path, target: str, *, names: tuple[str, ...] = ()
) -> None:
    """Copy a folder's files, without byte code, into the folder `target` of the host.

    With `names`, copies these files only, and follows links. Other files in `target` stay. Raises
    CopyError.
    """
    goal = f"{transport.name}:{target}"
    if not source.is_dir():
        raise not_copied(str(source), goal, "it is not a folder")
    # With `o`, files belong to the login even if that is root (--no-same-owner of tar(1)).
    unpack = 'mkdir -p -- "$1" && cd -- "$1" && exec tar -xof -'
    command = Command(argv=("sh", "-c", unpack, "sh", target))
    pack = partial(_pack, source, names)
    try:
        result = run(transport, command, stdin=pack, timeout_s=CONTENT_S)
    except OSError as error:
        raise not_copied(str(source), goal, plain(error, has_file=True)) from error
    if not result.succeeded:
        raise not_copied(str(source), goal, result.tail(1))


def not_understood(transport: Transport, what: str, answer: str, *, hint: str) -> UnusableError:
    """Return the error for a host's answer that does not have the expected form."""
    return UnusableError(
        f"cannot read {what} from {transport.name}'s answer",
        details=f"the host printed: {spoken(answer)}",
        hint=hint,
    )


def read_json(text: str | bytes, kind: type[_T]) -> _T:
    """Decode JSON that a host or an arm wrote; raises msgspec.DecodeError and nothing else.

    msgspec itself raises other errors for text that is not UTF-8, and for deep nesting.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (UnicodeError, RecursionError, OverflowError) as error:
        raise msgspec.DecodeError(f"JSON cannot be read: {error}") from error


def not_copied(source: str, target: str, why: str) -> CopyError:
    """Return the error for a failed copy."""
    return CopyError(
        f"cannot copy {source} to {target}",
        details=why,
        hint="check that the source is readable, and that the target's disk is writable and has "
        "room",
    )


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content as hexadecimal digits."""
    digest = hashlib.sha256()
    for chunk in read_chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _pack(source: Path, names: tuple[str, ...], stream: BinaryIO) -> None:
    with tarfile.open(
        fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, dereference=bool(names)
    ) as archive:
        for name in names or sorted(path.name for path in source.iterdir()):
            archive.add(
                source / name,
                arcname=name,
                filter=lambda member: None if Path(member.name).name == "__pycache__" else member,
            )


def _source(stream: IO[bytes] | None) -> BinaryIO:
    descriptor = _duplicate(stream)
    return reader(partial(os.read, descriptor), end=partial(os.close, descriptor))


def _sink(stream: IO[bytes] | None) -> BinaryIO:
    descriptor = _duplicate(stream)

    def send(data: bytes) -> None:
        left = memoryview(data)
        while left:
            # A signal may cut a write short (write(2)).
            left = left[os.write(descriptor, left) :]

    return writer(send, end=partial(os.close, descriptor))


def _duplicate(stream: IO[bytes] | None) -> int:
    assert stream is not None
    with stream:
        return os.dup(stream.fileno())


class LocalProcess:
    """A command in its own session, so that one signal reaches all its children.

    It is reaped by `kill` or by garbage collection, not by `wait`: until then no other process or
    group can get its number.
    """

    def __init__(self, command: Command, *, launch: tuple[str, ...] = _LAUNCH) -> None:
        self._brief = " ".join(command.argv[:2])
        self._reaping = threading.Lock()
        self._popen = subprocess.Popen(
            (*launch, *command.flat()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.stdin = _sink(self._popen.stdin)
        self.stdout = _source(self._popen.stdout)
        self.stderr = _source(self._popen.stderr)

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code, 128 + n after signal n."""
        code = self._await_end(timeout_s)
        if code is None:
            raise CommandTimeoutError(f"{self._brief} did not end within {timeout_s:g} s on local")
        return code

    def kill(self) -> None:
        """Kill the command and all its children (SIGKILL to the group); safe to repeat."""
        if self._popen.returncode is not None:
            return
        self.signal(signal.SIGKILL)
        # A process in an uninterruptible wait dies later.
        self._await_end(5)
        # Until the command is reaped, its number cannot name another group, which `signal` relies
        # on.
        with self._reaping:
            self._popen.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command and all its children, unless the command was reaped."""
        with self._reaping:
            if self._popen.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._popen.pid, number)

    def __del__(self) -> None:
        """Reap a command that has ended and was never killed."""
        if hasattr(self, "_popen"):
            self._popen.poll()

    def _await_end(self, timeout_s: float | None) -> int | None:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = _LONGEST_PAUSE_S / 100
        while (code := self._exit_code(is_patient=until is None)) is None:
            left_s = pause_s if until is None else until - time.monotonic()
            if left_s <= 0:
                return None
            pause_s = min(2 * pause_s, left_s, _LONGEST_PAUSE_S)
            time.sleep(pause_s)
        return code

    def _exit_code(self, *, is_patient: bool) -> int | None:
        """Return the exit code without reaping the command; None while it runs."""
        options = os.WEXITED | os.WNOWAIT | (0 if is_patient else os.WNOHANG)
        code = self._popen.returncode
        if code is None:
            try:
                ended = os.waitid(os.P_PID, self._popen.pid, options)
            except ChildProcessError:
                # Another thread has reaped it.
                with self._reaping:
                    code = self._popen.wait()
            else:
                if ended is None:
                    return None
                is_exit = ended.si_code == os.CLD_EXITED
                return ended.si_status if is_exit else 128 + ended.si_status
        return code if code >= 0 else 128 - code


class LocalTransport:
    """Carries commands and files to this machine."""

    name = "local"

    @property
    def bare(self) -> Transport:
        """Return the transport itself: interruption does not reach it."""
        return self

    def spawn(self, command: Command, *, launch: tuple[str, ...] = _LAUNCH) -> LocalProcess:
        """Start the command; a missing program ends with exit code 127.

        `launch` is the shell that starts it and gets the command as its arguments. Raises
        UnusableError when the system refuses the command, such as for an argument that is too long.
        """
        try:
            return LocalProcess(command, launch=launch)
        except (OSError, ValueError) as error:
            raise UnusableError(
                f"cannot start {' '.join(command.argv[:2])[:80]!r} on local",
                details=plain(error),
                hint="check the limits of processes and memory here: ulimit -a",
            ) from error

    @contextmanager
    def forward_unix(self, path: str) -> Iterator[Path]:
        """Yield the path itself: the socket is on this machine."""
        yield Path(path)

    def close(self) -> None:
        """Do nothing: there is no connection."""


LOCAL = LocalTransport()  # stateless, so all can share it
