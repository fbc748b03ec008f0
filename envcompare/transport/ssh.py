"""Commands and files on another machine, over authenticated SSH; the only home of paramiko."""

from __future__ import annotations

import io
import logging
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast
from weakref import WeakKeyDictionary

import paramiko  # noqa: TID251  # the only module that may import it
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentSSH  # noqa: TID251 — likewise
from paramiko.common import MSG_CHANNEL_CLOSE  # noqa: TID251 — likewise
from paramiko.message import Message  # noqa: TID251 — likewise
from paramiko.pkey import PublicBlob, UnknownKeyType  # noqa: TID251 — likewise

from envcompare.errors import CommandTimeoutError, TransportError, plain
from envcompare.files import SETTINGS_BYTES, read_text, read_whole
from envcompare.text import Command, shell_text
from envcompare.transport import Transport, reader, writer
from envcompare.transport.openssh import (
    Destination,
    HostKey,
    SshOptions,
    SshSettings,
    Values,
    check_host_key,
    forwarding,
    known_types,
    read_known_hosts,
    resolve,
    ssh_arguments,
    trusted_name,
)

# TCP drops a connection whose data is not acknowledged for this time. Behind a jump host, or when
# sshd itself hangs, the kernel still acknowledges everything; only missing keepalive replies show
# the loss.
_UNACKNOWLEDGED_MS = 10_000
_UNANSWERED_S = 30.0
_MOST_JUMPS = 8
_HOST_FILES = {".txt", ".list", ".hosts", ".csv", ".toml", ".yaml", ".yml", ".conf", ".cfg"}
# sshd may take long to check an account (LDAP, a slow home) or to open a session.
_AUTH_S = 30.0
_Channel = paramiko.Channel
_ENCRYPTED = "encrypted, and no agent holds it"
# paramiko builds a message under the channel's lock and sends it afterwards. When a command ends
# just as its input is written or closed, the reply to its CLOSE may overtake that message, and sshd
# drops the whole connection if anything follows a CLOSE.
_locks: WeakKeyDictionary[_Channel, threading.Lock] = WeakKeyDictionary()
# SSH forwards no signals, so the remote shell first prints its process group, which another session
# can kill. The shell stays as the parent, so that death by a signal arrives as 128 + n.
_SCRIPT = (
    'see() { read -r line <"/proc/$1/stat"; set -- ${line##*) }; group=$3 start=${20}; }; '
    'see "$$"; see "$group"; '
    'printf "\\nenvcompare-group %s %s\\n" "$group" "$start"; "$@"; exit "$?"'
)
_MARK = re.compile(rb"\nenvcompare-group (\d+) (\d+)\n")
_Group = tuple[str, str]  # the number of a process group of a host, and its leader's start time
# The kernel reuses the number of a reaped process; only number and start time identify a process.
_KILL_GROUP = (
    'group=$1 began=$2; read -r line <"/proc/$group/stat" || exit 0; set -- ${line##*) }; '
    '[ "${20}" != "$began" ] || kill -s KILL -- "-$group"'
)
# For each packet, which has this size at most, paramiko copies the whole rest of the text.
_PIECE_BYTES = (1 << 15) - 64
_START_S = 30.0
_KILL_S = 10.0
_MATCH = re.compile(r"^[ \t]*match(?:[ \t]*=[ \t]*|[ \t]+)(.+)", re.IGNORECASE | re.MULTILINE)
# The criteria that Paramiko knows, with a value or without.
_WITH_VALUE = frozenset({"host", "originalhost", "user", "localuser", "exec"})
_WITHOUT_VALUE = frozenset({"all", "canonical", "final"})
# Paramiko passes on the ValueError of an open quotation, the ImportError of `Match exec` where its
# extra is not installed, and the KeyError of a lacking CanonicalDomains.
_CONFIG_ERRORS = (
    paramiko.ConfigParseError,
    paramiko.CouldNotCanonicalize,
    OSError,
    ValueError,
    ImportError,
    KeyError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connection:
    """An open connection, and the jump host's connection below it."""

    transport: paramiko.Transport
    settings: SshSettings
    through: _Connection | None = None

    def start(self, text: str) -> _Channel | None:
        """Start shell text; None if the connection is dead or refuses a session (MaxSessions).

        None means that the text certainly did not start: the caller may try another connection.
        """
        try:
            channel = self.transport.open_session(timeout=_AUTH_S)
        except (paramiko.SSHException, OSError, EOFError):
            return None
        with _explained(self.settings):
            channel.exec_command(text)
        return channel

    def close(self) -> None:
        """Close the connection and those below it."""
        self.transport.close()
        if self.through is not None:
            self.through.close()


def _route(destination: Destination, options: SshOptions) -> tuple[SshSettings, ...]:
    """Return the settings of the host, then those of each jump host on the way back to here."""
    settings = resolve(destination, options, without_ssh=_read_config)
    hops, jumps = [settings], settings.jumps
    while jumps:
        hops.append(last := resolve(jumps[-1], options, without_ssh=_read_config))
        if len(hops) > _MOST_JUMPS + 1:
            raise _broken(last, f"more than {_MOST_JUMPS} jump hosts")
        jumps = jumps[:-1] or last.jumps
    return tuple(hops)


def _login(route: tuple[SshSettings, ...], options: SshOptions) -> _Connection:
    """Connect, check the host key and authenticate, at each jump host and then at the host."""
    logger = logging.getLogger("paramiko")
    # Without a handler, Python prints paramiko's log next to our own error.
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    settings, *jumps = route
    through = _login(tuple(jumps), options) if jumps else None
    try:
        with _explained(settings, options.connect_timeout_s):
            transport = _OrderedTransport(_open_link(settings, through, options.connect_timeout_s))
            try:
                _introduce(transport, settings, options.connect_timeout_s)
            except BaseException:
                transport.close()
                raise
    except BaseException:
        if through is not None:
            through.close()
        raise
    return _Connection(transport=transport, settings=settings, through=through)


def _introduce(transport: paramiko.Transport, settings: SshSettings, timeout_s: float) -> None:
    known = read_known_hosts(settings.known_hosts)
    _prefer(transport, known_types(known, trusted_name(settings)))
    transport.banner_timeout = timeout_s
    transport.auth_timeout = max(timeout_s, _AUTH_S)
    negotiated = threading.Event()
    transport.start_client(event=negotiated)
    if not negotiated.wait(2 * timeout_s):
        raise TimeoutError
    if not transport.is_active():
        raise transport.get_exception() or paramiko.SSHException("negotiation failed")
    offered = transport.get_remote_server_key()
    key = HostKey(type=offered.get_name(), content=offered.get_base64())
    check_host_key(settings, known, key)
    with _agent_keys(settings.agent) as keys:
        _offer_keys(transport, settings, _candidates(settings, keys))
    threading.Thread(target=_keep_alive, args=(transport,), daemon=True).start()


def _keep_alive(transport: paramiko.Transport) -> None:
    """Send a keepalive every few seconds, and close a connection that does not reply."""
    while transport.is_active():
        patience = threading.Timer(_UNANSWERED_S, transport.close)
        patience.daemon = True
        patience.start()
        with suppress(paramiko.SSHException, OSError, EOFError):
            # any reply counts, even a refusal (RFC 4254, section 4)
            transport.global_request("keepalive@openssh.com", wait=True)
        patience.cancel()
        time.sleep(5)


def _open_link(
    settings: SshSettings, through: _Connection | None, timeout_s: float
) -> socket.socket | _Channel:
    """Open the byte stream to sshd: a channel of the jump host, a proxy program, or TCP."""
    if through is not None:
        try:
            return through.transport.open_channel(
                "direct-tcpip",
                (settings.hostname, settings.port),
                ("127.0.0.1", 0),
                timeout=timeout_s,
            )
        except paramiko.ChannelException as error:
            raise TransportError(
                f"jump host '{through.settings.destination}' cannot reach host "
                f"'{settings.destination}'",
                details=f"{_address(settings)}: {error}",
                hint="check that the jump host can resolve the name, and AllowTcpForwarding there",
            ) from error
    if settings.proxy_command:
        return _start_proxy(settings.proxy_command)
    link = socket.create_connection((settings.hostname, settings.port), timeout_s)
    # Without TCP_NODELAY a small command waits 40 ms for an acknowledgement.
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
    return link


def _prefer(transport: paramiko.Transport, types: tuple[str, ...]) -> None:
    """Prefer key types that are known, or an unchanged host would seem changed."""
    # An ssh-rsa key is negotiated by the names of its signatures (RFC 8332).
    signatures = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
    names = [name for kind in types for name in signatures.get(kind, (kind,))]
    security = transport.get_security_options()
    offered = [name for name in names if name in security.key_types]
    security.key_types = offered + [name for name in security.key_types if name not in offered]
    # GCM ciphers authenticate in the same pass, in half the time for a packet.
    fast = [name for name in security.ciphers if "gcm" in name]
    security.ciphers = fast + [name for name in security.ciphers if name not in fast]


def _offer_keys(
    transport: paramiko.Transport,
    settings: SshSettings,
    candidates: Iterable[tuple[str, paramiko.PKey | str]],
) -> None:
    tried: list[str] = []
    locked = ""
    for label, key in candidates:
        if isinstance(key, str):
            tried.append(f"{label} ({key})")
            locked = locked or (label if key == _ENCRYPTED else "")
            continue
        tried.append(label)
        try:
            further = transport.auth_publickey(settings.user, key)
        except paramiko.BadAuthenticationType as error:
            reason = f"it only accepts {', '.join(error.allowed_types)}"
            raise _denied(settings, tried, reason=reason) from error
        except paramiko.SSHException as error:
            if not transport.is_active():
                reason = "it closed the connection, perhaps after too many keys"
                raise _denied(settings, tried, reason=reason) from error
            continue
        if further:
            reason = f"after the key it asks for {' or '.join(further)}"
            raise _denied(settings, tried, reason=reason)
        return
    raise _denied(settings, tried, locked=locked)


def _candidates(
    settings: SshSettings, agent_keys: Sequence[paramiko.PKey]
) -> Iterator[tuple[str, paramiko.PKey | str]]:
    """Yield labels and keys, the agent's first; for an unusable key, the reason as text."""
    files = [path for path in settings.identity_files if path.exists()]
    wanted = {_public_blob(path) for path in settings.identity_files}
    held = {key.asbytes() for key in agent_keys}
    for key in agent_keys:
        if key.asbytes() in wanted or not settings.identities_only:
            yield f"{key.get_name()} (agent)", key
    for path in files:
        if _public_blob(path) not in held:
            yield str(path), _load(path)


class _Agent(AgentSSH):
    """The agent behind a socket; paramiko's own class supports only SSH_AUTH_SOCK."""

    def __init__(self, link: socket.socket) -> None:
        super().__init__()
        self._connect(link)  # type: ignore[attr-defined]  # exists, but not in the stubs


@contextmanager
def _agent_keys(path: Path | None) -> Iterator[Sequence[paramiko.PKey]]:
    """Yield the agent's keys while it is connected; none if it does not answer."""
    keys: Sequence[paramiko.PKey] = ()
    with socket.socket(socket.AF_UNIX) as link:
        # The agent may prompt its user, or hang.
        link.settimeout(60)
        with suppress(paramiko.SSHException, OSError):
            if path:
                link.connect(str(path))
                keys = _Agent(link).get_keys()
        yield keys


def _public_blob(path: Path) -> bytes | None:
    public = Path(f"{path}.pub")
    try:
        read_whole(public, most=SETTINGS_BYTES)
        return PublicBlob.from_file(str(public)).key_blob
    except (OSError, ValueError):
        return None


def _load(path: Path) -> paramiko.PKey | str:
    try:
        # paramiko would wait for the writer of a pipe, and read a file of any size into memory.
        read_whole(path, most=SETTINGS_BYTES)
        return paramiko.PKey.from_path(path)
    except (TypeError, paramiko.PasswordRequiredException):
        # cryptography raises TypeError for an encrypted key without a password.
        return _ENCRYPTED
    except OSError as error:
        return error.strerror or "not readable"
    except (ValueError, paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm):
        return "not a supported private key"


def _read_config(path: Path | None, alias: str) -> Values:
    """Read ssh_config without OpenSSH: no Include, and not every Match."""
    source = path or Path("~/.ssh/config").expanduser()
    try:
        if not source.exists():
            return {}
        text = read_text(source)
        _require_known_criteria(text)
        lookup = paramiko.SSHConfig.from_text(text).lookup(alias)
    except _CONFIG_ERRORS as error:
        raise TransportError(
            f"the SSH configuration {source} cannot be read",
            details=plain(error),
            hint="fix it, or install the OpenSSH client",
        ) from error
    # Of the two ways through another host the first one counts (ssh_config(5)); Paramiko turns
    # `ProxyCommand none` into None.
    later = [key for key in lookup if key in {"proxycommand", "proxyjump"}][1:]
    values = cast("Mapping[str, str | list[str] | None]", lookup)
    return {
        key: (text,) if isinstance(text, str) else tuple(text)
        for key, text in values.items()
        if text is not None and key not in later
    }


def _require_known_criteria(text: str) -> None:
    """Raise ConfigParseError for a criterion of Match that Paramiko would take as met."""
    for line in _MATCH.finditer(text):
        words = shlex.split(line[1], comments=True)
        while words:
            criterion = words.pop(0).removeprefix("!")
            if criterion not in _WITH_VALUE | _WITHOUT_VALUE:
                raise paramiko.ConfigParseError(f"only OpenSSH reads {line[0].strip()!r}")
            if criterion in _WITH_VALUE:
                del words[:1]


@contextmanager
def _explained(settings: SshSettings, timeout_s: float = _AUTH_S) -> Iterator[None]:
    try:
        yield
    except (socket.gaierror, UnicodeError) as error:
        # A name that IDNA cannot encode raises UnicodeError.
        name = settings.hostname
        file = f"; there is no file {name} here" * (Path(name).suffix in _HOST_FILES)
        raise TransportError(
            f"cannot find host '{settings.hostname}'",
            details=f"neither the SSH configuration nor the name service knows it ({plain(error)})",
            hint=f"check the spelling, or add the host to ~/.ssh/config{file}",
        ) from error
    except ConnectionRefusedError as error:
        raise TransportError(
            f"host '{settings.destination}' refused the connection",
            details=f"nothing listens on {_address(settings)}",
            hint="start sshd there, or give its port: user@host:port",
        ) from error
    except TimeoutError as error:
        raise TransportError(
            f"host '{settings.destination}' did not answer within {timeout_s:g} s",
            details=f"no answer from {_address(settings)}",
            hint="check that the host is up and that no firewall blocks the connection",
        ) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise _broken(settings, plain(error) or type(error).__name__) from error


def _broken(settings: SshSettings, reason: str) -> TransportError:
    return TransportError(
        f"no SSH session with host '{settings.destination}'",
        details=f"{_address(settings)}: {reason}",
        hint=f"look at the output of `ssh -v {ssh_arguments(settings.destination)} true`",
    )


def _denied(
    settings: SshSettings, tried: Sequence[str], *, reason: str = "", locked: str = ""
) -> TransportError:
    """Return the error for rejected keys; `locked` is an encrypted key that no agent holds."""
    keys = ", ".join(tried) or "no key was found and no agent answers"
    return TransportError(
        f"host '{settings.destination}' does not let user '{settings.user}' in",
        details=f"{reason + '; ' if reason else ''}tried: {keys}",
        hint=f"unlock the key with `ssh-add {locked}`"
        if locked
        else f"install a key with `ssh-copy-id {ssh_arguments(settings.destination)}`, "
        "or set IdentityFile in ~/.ssh/config",
    )


def _address(settings: SshSettings) -> str:
    return f"{settings.hostname} port {settings.port}"


def _start_proxy(command: str) -> socket.socket:
    """Start ProxyCommand, which is shell text by definition, on one end of a socket pair."""
    ours, theirs = socket.socketpair()
    with theirs:
        program = subprocess.Popen(
            # `exec` leaves no shell behind, as ssh_config(5) advises for ProxyCommand.
            ("/bin/sh", "-c", f"exec {command}"),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            start_new_session=True,
        )
    # A program that has ended stays a zombie until it is reaped.
    threading.Thread(target=program.wait, daemon=True).start()
    return ours


def _sending(channel: _Channel) -> threading.Lock:
    """Return the lock to hold while sending into a channel or closing its input."""
    return _locks.setdefault(channel, threading.Lock())


def _close_in_order(channel: _Channel) -> None:
    """Close a channel after pending sends, but wait a second at most: a send may be blocked."""
    lock = _sending(channel)
    is_free = lock.acquire(timeout=1)
    try:
        channel.close()
    finally:
        if is_free:
            lock.release()


def _handle_close(channel: Any, _: Message) -> None:  # noqa: ANN401 — has what stubs leave out
    """Handle the other side's CLOSE, and reply to it after pending sends.

    The connection's thread must not wait for a sender, which may be waiting for that thread.
    """
    with channel.lock:
        messages = channel._close_internal()  # noqa: SLF001 — as paramiko's own handler
        channel.transport._unlink_channel(channel.chanid)  # noqa: SLF001 — likewise
    lock = _sending(channel)
    if lock.acquire(blocking=False):
        try:
            _answer(channel, messages)
        finally:
            lock.release()
    else:
        threading.Thread(target=_wait_and_answer, args=(channel, messages), daemon=True).start()


def _wait_and_answer(channel: _Channel, messages: tuple[Message | None, ...]) -> None:
    with _sending(channel), suppress(OSError, EOFError, paramiko.SSHException):
        _answer(channel, messages)


def _answer(channel: Any, messages: tuple[Message | None, ...]) -> None:  # noqa: ANN401 — as above
    for message in messages:
        if message is not None:
            channel.transport._send_user_message(message)  # noqa: SLF001 — as paramiko's reader


class _OrderedTransport(paramiko.Transport):
    """A connection that replies to a CLOSE only after pending sends into that channel."""

    _channel_handler_table = {  # noqa: RUF012 — as in paramiko
        **vars(paramiko.Transport)["_channel_handler_table"],
        MSG_CHANNEL_CLOSE: _handle_close,
    }


def _output(receive: Callable[[int], bytes], first: bytes = b"") -> BinaryIO:
    """Return an output stream of a channel; `first` was read from it already."""
    waiting = io.BytesIO(first)
    return reader(lambda size: waiting.read(size) or receive(size))


def _input(channel: _Channel) -> BinaryIO:
    def send(data: bytes) -> None:
        try:
            for start in range(0, len(data), _PIECE_BYTES):
                with _sending(channel):
                    channel.sendall(data[start : start + _PIECE_BYTES])
        except (OSError, EOFError) as error:
            raise BrokenPipeError("the command no longer reads its input") from error

    def end() -> None:
        with suppress(OSError, EOFError), _sending(channel):
            channel.shutdown_write()

    return writer(send, end=end)


class _SshProcess:
    """A command on another machine; a second session can kill its process group."""

    def __init__(
        self,
        channel: _Channel,
        *,
        host: Destination,
        brief: str,
        kill_group: Callable[[_Group], None],
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
            raise _lost(str(self._host), self._brief)
        # Without an exit code, the shell around the command was killed together with its group.
        return 128 + signal.SIGKILL

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
        _close_in_order(self._channel)

    def _is_cut(self) -> bool:
        # another thread notices within this time that the connection, too, has ended
        end = time.monotonic() + 1
        transport = self._channel.get_transport()
        while transport.is_active():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True


class SshTransport:
    """Carries commands and files to one host, and opens further connections as sessions need."""

    def __init__(self, name: str, destination: Destination, options: SshOptions) -> None:
        self.name = name  # as the user wrote it
        self._destination = destination
        self._options = options
        self._lock = threading.Lock()
        # Asked once: a configuration that changes during a run must not lead to another host, and
        # `ssh -G` may be slow on a machine that is busy with workloads.
        self._route = _route(destination, options)
        self._connections = [_login(self._route, options)]
        self._is_closed = False

    @property
    def bare(self) -> Transport:
        """Return the transport itself: interruption does not reach it."""
        return self

    def spawn(self, command: Command) -> _SshProcess:
        """Start the command on the host; a missing program ends with exit code 127."""
        channel = self._start(shell_text(("/bin/sh", "-c", _SCRIPT, "sh", *command.flat())))
        brief = " ".join(command.argv[:2])
        return _SshProcess(
            channel, host=self._destination, brief=brief, kill_group=self._kill_group
        )

    @contextmanager
    def forward_unix(self, path: str) -> Iterator[Path]:
        """Yield a local socket that reaches `path`; uses `ssh -L`, since paramiko cannot do it."""
        # The folder has mode 0700. Its name is short: a socket's path has 108 bytes at most.
        with tempfile.TemporaryDirectory(prefix="envcompare-", dir="/tmp") as folder:
            local = Path(folder, "socket")
            with forwarding(self._destination, self._options, local=local, remote=path):
                yield local

    def close(self) -> None:
        """Close all connections; safe to repeat."""
        with self._lock:
            self._is_closed = True
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    def _start(self, text: str) -> _Channel:
        with self._lock:
            if self._is_closed:
                raise _lost(self.name, "nothing")
            for dead in [link for link in self._connections if not link.transport.is_active()]:
                dead.close()
                self._connections.remove(dead)
            for connection in reversed(self._connections):
                channel = connection.start(text)
                if channel is not None:
                    return channel
            connection = _login(self._route, self._options)
            self._connections.append(connection)
            channel = connection.start(text)
            if channel is None:
                raise TransportError(
                    f"host '{self.name}' grants no session",
                    details="it refused the first session of a new connection, or closed it",
                    hint="check MaxSessions in its sshd_config, and the log of its sshd",
                )
            return channel

    def _kill_group(self, group: _Group) -> None:
        argv = ("/bin/sh", "-c", _KILL_GROUP, "sh", *group)
        channel = self._start(shell_text(argv))
        channel.status_event.wait(_KILL_S)
        _close_in_order(channel)


def _lost(host: str, what: str) -> TransportError:
    return TransportError(
        f"the connection to host '{host}' was lost",
        details=f"it broke while {what} ran",
        hint="check the network and that the host is still up; a run can be resumed",
    )


def _read_mark(channel: _Channel, host: Destination) -> tuple[_Group, bytes]:
    """Return the process group, and the output after its line; skips what the login shell printed.

    Raises TransportError if the line does not come.
    """
    output = b""
    channel.settimeout(_START_S)
    until = time.monotonic() + _START_S
    with suppress(TimeoutError):
        # a login shell may print something before the command starts
        while len(output) < 1 << 20 and time.monotonic() < until:
            if not (chunk := channel.recv(1 << 16)):
                break
            # A mark is shorter than this, and may lie across two chunks.
            searched = max(0, len(output) - 64)
            output += chunk
            if match := _MARK.search(output, searched):
                channel.settimeout(None)
                return (match[1].decode(), match[2].decode()), output[match.end() :]
    output += channel.recv_stderr(4096) if channel.recv_stderr_ready() else b""
    _close_in_order(channel)
    raise TransportError(
        f"cannot start commands on host '{host}'",
        details="its login shell printed: "
        f"{output.strip()[-300:].decode(errors='replace') or 'nothing'}",
        hint=f"check that `ssh {ssh_arguments(host)} true` works, and that the host runs Linux",
    )
