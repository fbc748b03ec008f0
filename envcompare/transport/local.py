"""Commands and files on this machine, by the same road as over SSH: one POSIX shell in between."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO

from envcompare.command import Command
from envcompare.errors import CommandTimeoutError, UnusableError
from envcompare.transport import Transport
from envcompare.transport.streams import reader, writer

# The shell stays as the parent: over SSH only so does a death by signal arrive as 128 + n.
_LAUNCH = ("/bin/sh", "-c", '"$@"; exit "$?"', "sh")
# A process in an uninterruptible wait dies later, by itself.
_REAP_S = 5.0


def _source(stream: IO[bytes] | None) -> BinaryIO:
    descriptor = _own(stream)
    return reader(partial(os.read, descriptor), end=partial(os.close, descriptor))


def _sink(stream: IO[bytes] | None) -> BinaryIO:
    descriptor = _own(stream)
    return writer(partial(_write_all, descriptor), end=partial(os.close, descriptor))


def _own(stream: IO[bytes] | None) -> int:
    """Return a descriptor of the pipe in place of the one that `stream` has."""
    assert stream is not None
    with stream:
        return os.dup(stream.fileno())


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


class _LocalProcess:
    """A command in a session of its own, so that one signal reaches all its children."""

    def __init__(self, command: Command) -> None:
        self._brief = " ".join(command.argv[:2])
        self._popen = subprocess.Popen(
            (*_LAUNCH, *command.flat()),
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
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise CommandTimeoutError(
                f"{self._brief} did not end within {timeout_s:g} s on local"
            ) from error
        return code if code >= 0 else 128 - code

    def kill(self) -> None:
        """Kill the command and all its children (SIGKILL to the group); safe to repeat."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_REAP_S)


class LocalTransport:
    """Carries commands and files to this machine."""

    @property
    def name(self) -> str:
        """Name the host as the user writes it."""
        return "local"

    @property
    def bare(self) -> Transport:
        """Give the transport itself: its commands are killed by who started them alone."""
        return self

    def spawn(self, command: Command) -> _LocalProcess:
        """Start the command; a missing program ends with exit code 127.

        Raises UnusableError where the system refuses it, as an argument that is too long.
        """
        try:
            return _LocalProcess(command)
        except (OSError, ValueError) as error:
            raise UnusableError(
                f"cannot start {' '.join(command.argv[:2])[:80]!r} on local",
                details=str(error),
                hint="check the limits of processes and memory here: ulimit -a",
            ) from error

    @contextmanager
    def forward_unix(self, path: str) -> Iterator[Path]:
        """Give the path itself: the socket is on this machine already."""
        yield Path(path)

    def close(self) -> None:
        """Do nothing: there is no connection."""


LOCAL = LocalTransport()  # it has no state, so that one serves all
