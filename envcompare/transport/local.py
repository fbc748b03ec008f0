"""Commands and files on this machine, through one POSIX shell, as over SSH."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO

from envcompare.command import Command
from envcompare.errors import CommandTimeoutError, UnusableError
from envcompare.transport import Transport, reader, writer

# The shell stays as the parent, so that death by a signal is reported as 128 + n, as over SSH.
_LAUNCH = ("/bin/sh", "-c", '"$@"; exit "$?"', "sh")
# A process in an uninterruptible wait dies later.
_REAP_S = 5.0
_LONGEST_PAUSE_S = 0.05


def _source(stream: IO[bytes] | None) -> BinaryIO:
    descriptor = _duplicate(stream)
    return reader(partial(os.read, descriptor), end=partial(os.close, descriptor))


def _sink(stream: IO[bytes] | None) -> BinaryIO:
    descriptor = _duplicate(stream)
    return writer(partial(_write_all, descriptor), end=partial(os.close, descriptor))


def _duplicate(stream: IO[bytes] | None) -> int:
    """Duplicate the stream's descriptor, and close the stream."""
    assert stream is not None
    with stream:
        return os.dup(stream.fileno())


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


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
        self._await_end(_REAP_S)
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
        """Return the exit code, None after the limit."""
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
            except ChildProcessError:  # another thread has reaped it
                with self._reaping:
                    code = self._popen.wait()
            else:
                return _code_of(ended)
        return code if code >= 0 else 128 - code


def _code_of(ended: os.waitid_result | None) -> int | None:
    if ended is None:
        return None
    is_exit = ended.si_code == os.CLD_EXITED
    return ended.si_status if is_exit else 128 + ended.si_status


class LocalTransport:
    """Carries commands and files to this machine."""

    @property
    def name(self) -> str:
        """Return `local`."""
        return "local"

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
                details=str(error),
                hint="check the limits of processes and memory here: ulimit -a",
            ) from error

    @contextmanager
    def forward_unix(self, path: str) -> Iterator[Path]:
        """Yield the path itself: the socket is on this machine."""
        yield Path(path)

    def close(self) -> None:
        """Do nothing: there is no connection."""


LOCAL = LocalTransport()  # stateless, so all can share it
