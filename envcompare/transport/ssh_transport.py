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

# SSH hands on no signal, so the far side first names its process group, which another session can
# kill. The shell stays as the parent: only so does a death by signal arrive as 128 + n.
_SCRIPT = (
    'see() { read -r line <"/proc/$1/stat"; set -- ${line##*) }; group=$3 start=${20}; }; '
    'see "$$"; see "$group"; '
    'printf "\\nenvcompare-group %s %s\\n" "$group" "$start"; "$@"; exit "$?"'
)
_MARK = re.compile(rb"\nenvcompare-group (\d+) (\d+)\n")
# A number is given anew once its process was reaped: only with the same start is it the same.
_KILL_GROUP = (
    'group=$1 began=$2; read -r line <"/proc/$group/stat" || exit 0; set -- ${line##*) }; '
    '[ "${20}" != "$began" ] || kill -s KILL -- "-$group"'
)
# paramiko copies all that is left of a text for each packet, which holds no more than this.
_PIECE_BYTES = (1 << 15) - 64
_START_S = 30.0
_FORWARD_S = 20.0
_KILL_S = 10.0
# A connection's end is noticed by another thread than the channel's; it follows within this time.
_END_S = 1.0
_SIGKILL_CODE = 137
_GREETING_BYTES = 1 << 20  # that a login shell may print before the command starts
_MARK_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A process group of a host: its number, and when its leader started."""

    number: str
    start: str


def _output(receive: Callable[[int], bytes], first: bytes = b"") -> BinaryIO:
    """Return one of the two streams that a channel delivers, after what was read of it already."""
    waiting = io.BytesIO(first)
    return reader(lambda size: waiting.read(size) or receive(size))


def _input(channel: Channel) -> BinaryIO:
    """Return the stream that a channel takes."""

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
    """A command on another machine, in a process group that can be killed from a second session."""

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
        """Return the exit code, 128 + n after signal n; raises when the connection was lost."""
        if not self._channel.status_event.wait(timeout_s):
            raise CommandTimeoutError(
                f"{self._brief} did not end within {timeout_s:g} s on {self._host}"
            )
        code = int(self._channel.exit_status)
        if code >= 0:
            return code
        if not self._is_killed and self._is_cut():
            raise _lost(self._host, self._brief)
        # Without an exit code the shell around the command was killed itself, with its group.
        return _SIGKILL_CODE

    def kill(self) -> None:
        """Kill the command and all its children there; safe to repeat.

        Connects anew where the connection was lost, and gives up silently on a host that is gone.
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
    """Carries commands and files to one host, over as many connections as its sessions need."""

    def __init__(self, name: str, destination: Destination, options: SshOptions) -> None:
        self._name = name
        self._destination = destination
        self._options = options
        self._lock = threading.Lock()
        self._connections = [login(destination, options)]
        self._is_closed = False

    @property
    def name(self) -> str:
        """Name the host as the user wrote it."""
        return self._name

    @property
    def bare(self) -> Transport:
        """Give the transport itself: its commands are killed by who started them alone."""
        return self

    def spawn(self, command: Command) -> _SshProcess:
        """Start the command there; a missing program ends with exit code 127."""
        channel = self._start(shell_text(("/bin/sh", "-c", _SCRIPT, "sh", *command.flat())))
        brief = " ".join(command.argv[:2])
        return _SshProcess(channel, host=self._name, brief=brief, kill_group=self._kill_group)

    @contextmanager
    def forward_unix(self, path: str) -> Iterator[Path]:
        """Give a local socket that reaches `path` there; OpenSSH carries it, paramiko cannot."""
        # The folder is 0700 and its name short: a socket's path has room for 108 bytes.
        with tempfile.TemporaryDirectory(prefix="envcompare-", dir="/tmp") as folder:
            local = Path(folder, "socket")
            with _forwarding(self._destination, self._options, local=local, remote=path):
                yield local

    def close(self) -> None:
        """End all connections; safe to repeat."""
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
            return self._start_anew(text)

    def _start_anew(self, text: str) -> Channel:
        connection: Connection = login(self._destination, self._options)
        self._connections.append(connection)
        channel = connection.start(text)
        if channel is None:
            raise TransportError(
                f"host '{self._name}' grants no session",
                details="it refused the first one of a new connection, or ended that connection",
                hint="check MaxSessions in its sshd_config, and what its sshd logs",
            )
        return channel

    def _kill_group(self, group: _Group) -> None:
        argv = ("/bin/sh", "-c", _KILL_GROUP, "sh", group.number, group.start)
        channel = self._start(shell_text(argv))
        channel.status_event.wait(_KILL_S)
        close_in_order(channel)


def _lost(host: str, what: str) -> TransportError:
    """Say that the connection broke while something ran."""
    return TransportError(
        f"the connection to host '{host}' was lost",
        details=f"it broke while {what} ran",
        hint="check the network and that the host is still up; a run can be resumed",
    )


def _read_mark(channel: Channel, host: str) -> tuple[_Group, bytes]:
    """Read up to the line with the process group, past what a login shell printed before it."""
    heard = b""
    channel.settimeout(_START_S)
    until = time.monotonic() + _START_S
    with suppress(TimeoutError):
        while len(heard) < _GREETING_BYTES and time.monotonic() < until:
            if not (chunk := channel.recv(1 << 16)):
                break
            searched = max(0, len(heard) - _MARK_BYTES)
            heard += chunk
            if match := _MARK.search(heard, searched):
                channel.settimeout(None)
                group = _Group(number=match[1].decode(), start=match[2].decode())
                return group, heard[match.end() :]
    said = (heard + (channel.recv_stderr(4096) if channel.recv_stderr_ready() else b"")).strip()
    close_in_order(channel)
    raise TransportError(
        f"host '{host}' starts no command",
        details=f"its login shell printed: {said[-300:].decode(errors='replace') or 'nothing'}",
        hint=f"check that `ssh {host} true` works, and that the host runs Linux",
    )


@contextmanager
def _forwarding(
    destination: Destination, options: SshOptions, *, local: Path, remote: str
) -> Iterator[None]:
    """Keep `ssh -L local:remote` running; its folder must be the user's alone."""
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
    """Wait until the socket is listened to; say why where it never will be."""
    end = time.monotonic() + _FORWARD_S
    while not _is_open(local):
        if ssh.poll() is not None:
            return log.read_text(errors="replace").strip()[-300:]
        if time.monotonic() > end:
            return f"ssh made no socket within {_FORWARD_S:g} s"
        time.sleep(0.02)
    return ""


def _is_open(local: Path) -> bool:
    """Say whether somebody accepts connections; a socket has a name before anybody does."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(local)) == 0


def _not_forwarded(destination: Destination, remote: str, why: str) -> TransportError:
    return TransportError(
        f"the socket {remote} of host '{destination}' cannot be reached from here",
        details=why,
        hint=f"check that `ssh {destination.alias} true` works without a prompt",
    )
