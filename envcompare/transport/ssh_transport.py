"""Commands and files on another machine, over SSH."""

from __future__ import annotations

import io
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envcompare.command import Command, shell_text
from envcompare.errors import CommandTimeoutError, TransportError
from envcompare.transport import Transport, reader, writer
from envcompare.transport.openssh import Destination, SshOptions
from envcompare.transport.ssh import Channel, Connection, close_in_order, login, sending

# SSH forwards no signals, so the remote shell first prints its process group, which another session
# can kill. The shell stays as the parent, so that death by a signal arrives as 128 + n.
_SCRIPT = (
    'see() { read -r line <"/proc/$1/stat"; set -- ${line##*) }; group=$3 start=${20}; }; '
    'see "$$"; see "$group"; '
    'printf "\\nenvcompare-group %s %s\\n" "$group" "$start"; "$@"; exit "$?"'
)
_MARK = re.compile(rb"\nenvcompare-group (\d+) (\d+)\n")
# The kernel reuses the number of a reaped process; only number and start time identify a process.
_KILL_GROUP = (
    'group=$1 began=$2; read -r line <"/proc/$group/stat" || exit 0; set -- ${line##*) }; '
    '[ "${20}" != "$began" ] || kill -s KILL -- "-$group"'
)
# For each packet, which has this size at most, paramiko copies the whole rest of the text.
_PIECE_BYTES = (1 << 15) - 64
_START_S = 30.0
_FORWARD_S = 20.0
_KILL_S = 10.0
# Another thread notices that the connection ended, within this time after the channel's.
_END_S = 1.0
_SIGKILL_CODE = 137
_GREETING_BYTES = 1 << 20  # the most a login shell may print before the command starts
_MARK_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A process group of a host: its number, and the start time of its leader."""

    number: str
    start: str


def _output(receive: Callable[[int], bytes], first: bytes = b"") -> BinaryIO:
    """Return an output stream of a channel; `first` was read from it already."""
    waiting = io.BytesIO(first)
    return reader(lambda size: waiting.read(size) or receive(size))


def _input(channel: Channel) -> BinaryIO:
    def send(data: bytes) -> None:
        try:
            for start in range(0, len(data), _PIECE_BYTES):
                with sending(channel):
                    channel.sendall(data[start : start + _PIECE_BYTES])
        except (OSError, EOFError) as error:
            raise BrokenPipeError("the command no longer reads its input") from error

    def end() -> None:
        with suppress(OSError, EOFError), sending(channel):
            channel.shutdown_write()

    return writer(send, end=end)


class _SshProcess:
    """A command on another machine; a second session can kill its process group."""

    def __init__(
        self, channel: Channel, *, host: str, brief: str, kill_group: Callable[[_Group], None]
    ) -> None:
        self._channel = channel
        self._host = host
        self._brief = brief
        self._kill_group = kill_group
        self._is_killed = False
        self._group, first = _read_mark(channel, host)
        self.stdin = _input(channel)
        self.stdout = _output(channel.recv, first)
        self.stderr = _output(channel.recv_stderr)

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code, 128 + n after signal n.

        Raises TransportError when the connection was lost.
        """
        if not self._channel.status_event.wait(timeout_s):
            raise CommandTimeoutError(
                f"{self._brief} did not end within {timeout_s:g} s on {self._host}"
            )
        code = int(self._channel.exit_status)
        if code >= 0:
            return code
        if not self._is_killed and self._is_cut():
            raise _lost(self._host, self._brief)
        # Without an exit code, the shell around the command was killed together with its group.
        return _SIGKILL_CODE

    def kill(self) -> None:
        """Kill the command and all its children; safe to repeat.

        Reconnects if the connection was lost, and gives up silently if the host is down.
        """
        if self._is_killed:
            return
        self._is_killed = True
        with suppress(TransportError):
            self._kill_group(self._group)
        self._channel.status_event.wait(_KILL_S)
        close_in_order(self._channel)

    def _is_cut(self) -> bool:
        end = time.monotonic() + _END_S
        transport = self._channel.get_transport()
        while transport.is_active():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True


class SshTransport:
    """Carries commands and files to one host, and opens further connections as sessions need."""

    def __init__(self, name: str, destination: Destination, options: SshOptions) -> None:
        self._name = name
        self._destination = destination
        self._options = options
        self._lock = threading.Lock()
        self._connections = [login(destination, options)]
        self._is_closed = False

    @property
    def name(self) -> str:
        """Return the host's name as the user wrote it."""
        return self._name

    @property
    def bare(self) -> Transport:
        """Return the transport itself: interruption does not reach it."""
        return self

    def spawn(self, command: Command) -> _SshProcess:
        """Start the command on the host; a missing program ends with exit code 127."""
        channel = self._start(shell_text(("/bin/sh", "-c", _SCRIPT, "sh", *command.flat())))
        brief = " ".join(command.argv[:2])
        return _SshProcess(channel, host=self._name, brief=brief, kill_group=self._kill_group)

    @contextmanager
    def forward_unix(self, path: str) -> Iterator[Path]:
        """Yield a local socket that reaches `path`; uses `ssh -L`, since paramiko cannot do it."""
        # The folder has mode 0700. Its name is short: a socket's path has 108 bytes at most.
        with tempfile.TemporaryDirectory(prefix="envcompare-", dir="/tmp") as folder:
            local = Path(folder, "socket")
            with _forwarding(self._destination, self._options, local=local, remote=path):
                yield local

    def close(self) -> None:
        """Close all connections; safe to repeat."""
        with self._lock:
            self._is_closed = True
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    def _start(self, text: str) -> Channel:
        with self._lock:
            if self._is_closed:
                raise _lost(self._name, "nothing")
            for dead in [link for link in self._connections if not link.is_alive]:
                dead.close()
                self._connections.remove(dead)
            for connection in reversed(self._connections):
                channel = connection.start(text)
                if channel is not None:
                    return channel
            return self._start_on_new(text)

    def _start_on_new(self, text: str) -> Channel:
        connection: Connection = login(self._destination, self._options)
        self._connections.append(connection)
        channel = connection.start(text)
        if channel is None:
            raise TransportError(
                f"host '{self._name}' grants no session",
                details="it refused the first session of a new connection, or closed it",
                hint="check MaxSessions in its sshd_config, and the log of its sshd",
            )
        return channel

    def _kill_group(self, group: _Group) -> None:
        argv = ("/bin/sh", "-c", _KILL_GROUP, "sh", group.number, group.start)
        channel = self._start(shell_text(argv))
        channel.status_event.wait(_KILL_S)
        close_in_order(channel)


def _lost(host: str, what: str) -> TransportError:
    """Return the error for a connection that broke while `what` ran."""
    return TransportError(
        f"the connection to host '{host}' was lost",
        details=f"it broke while {what} ran",
        hint="check the network and that the host is still up; a run can be resumed",
    )


def _read_mark(channel: Channel, host: str) -> tuple[_Group, bytes]:
    """Return the process group, and the output after its line; skips what the login shell printed.

    Raises TransportError if the line does not come.
    """
    output = b""
    channel.settimeout(_START_S)
    until = time.monotonic() + _START_S
    with suppress(TimeoutError):
        while len(output) < _GREETING_BYTES and time.monotonic() < until:
            if not (chunk := channel.recv(1 << 16)):
                break
            searched = max(0, len(output) - _MARK_BYTES)
            output += chunk
            if match := _MARK.search(output, searched):
                channel.settimeout(None)
                group = _Group(number=match[1].decode(), start=match[2].decode())
                return group, output[match.end() :]
    output += channel.recv_stderr(4096) if channel.recv_stderr_ready() else b""
    close_in_order(channel)
    raise TransportError(
        f"cannot start commands on host '{host}'",
        details="its login shell printed: "
        f"{output.strip()[-300:].decode(errors='replace') or 'nothing'}",
        hint=f"check that `ssh {host} true` works, and that the host runs Linux",
    )


@contextmanager
def _forwarding(
    destination: Destination, options: SshOptions, *, local: Path, remote: str
) -> Iterator[None]:
    """Keep `ssh -L local:remote` running; the folder of `local` must be private."""
    log = local.with_suffix(".log")
    with log.open("wb") as stderr:
        try:
            ssh = subprocess.Popen(
                _forwarding_argv(destination, options, f"{local}:{remote}"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise _not_forwarded(
                destination, remote, "the program ssh is not installed here"
            ) from error
    with ssh:
        try:
            why = _await_socket(ssh, local, log)
            if why:
                raise _not_forwarded(destination, remote, why)
            yield
        finally:
            ssh.kill()


def _forwarding_argv(destination: Destination, options: SshOptions, forward: str) -> list[str]:
    config = options.config_path()
    settings = (
        "BatchMode=yes", "ClearAllForwardings=no", "ControlMaster=no", "ControlPath=none",
        "ExitOnForwardFailure=yes", "ConnectTimeout=10", "ServerAliveInterval=5",
        "StreamLocalBindMask=0177",
        f"StrictHostKeyChecking={'accept-new' if options.accept_new_host_keys else 'yes'}",
    )  # fmt: skip
    argv = ["ssh", "-nNT", "-L", forward, *(f"-o{setting}" for setting in settings)]
    argv += ["-F", str(config)] if config else []
    argv += ["-l", destination.user] if destination.user else []
    argv += ["-p", str(destination.port)] if destination.port else []
    return [*argv, "--", destination.alias]


def _await_socket(ssh: subprocess.Popen[bytes], local: Path, log: Path) -> str:
    """Wait until the socket accepts connections; return the reason if it never will."""
    end = time.monotonic() + _FORWARD_S
    while not _is_open(local):
        if ssh.poll() is not None:
            return log.read_text(errors="replace").strip()[-300:]
        if time.monotonic() > end:
            return f"ssh made no socket within {_FORWARD_S:g} s"
        time.sleep(0.02)
    return ""


def _is_open(local: Path) -> bool:
    """Tell whether the socket accepts connections; it exists before it does."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(local)) == 0


def _not_forwarded(destination: Destination, remote: str, why: str) -> TransportError:
    return TransportError(
        f"the socket {remote} of host '{destination}' cannot be reached from here",
        details=why,
        hint=f"check that `ssh {destination.alias} true` works without a prompt",
    )
