"""The user's OpenSSH files, how they reach a host, which host keys they trust; and `ssh -L`."""

from __future__ import annotations

import base64
import binascii
import getpass
import hashlib
import hmac
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from envcompare.errors import TransportError, plain
from envcompare.files import UnfitFileError, read_text

Values = Mapping[str, tuple[str, ...]]
"""Lower-case keywords of ssh_config and their values, in order."""

_AGENT_VARIABLE = "SSH_AUTH_SOCK"

# A `Match exec` in the configuration may run any program of the user.
_ANSWER_S = 30

_FORWARD_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """The user's options for all hosts of a run."""

    config: Path | None = None
    accept_new_host_keys: bool = False
    connect_timeout_s: float = 10.0

    def config_path(self) -> Path | None:
        """Return the configuration file to use in place of ~/.ssh/config."""
        variable = os.environ.get("ENVCOMPARE_SSH_CONFIG")
        return self.config or (Path(variable) if variable else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A host as the user wrote it; the configuration decides what is `None`."""

    alias: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        alias = f"[{self.alias}]" if ":" in self.alias else self.alias
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        return f"{user}{alias}{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SshSettings:
    """A destination with everything the configuration adds."""

    destination: Destination
    hostname: str
    port: int
    user: str
    key_alias: str | None = None
    identity_files: tuple[Path, ...] = ()
    identities_only: bool = False
    agent: Path | None = None  # its socket
    known_hosts: tuple[Path, ...] = ()
    accepts_new_keys: bool = False
    jumps: tuple[Destination, ...] = ()
    proxy_command: str | None = None


def resolve(
    destination: Destination,
    options: SshOptions,
    *,
    without_ssh: Callable[[Path | None, str], Values],
) -> SshSettings:
    """Let `ssh -G` evaluate the configuration; `without_ssh` reads it if ssh is not installed.

    Only OpenSSH fully implements Include, Match and canonical names. Raises TransportError if the
    configuration cannot be read, or requires a check of host keys that envcompare does not make.
    """
    try:
        values = _ask_ssh(destination, options)
    except FileNotFoundError:
        values = without_ssh(options.config_path(), destination.alias)
    return _settings(destination, values, accepts_new_keys=options.accept_new_host_keys)


def _parse_jump(item: str) -> Destination:
    # one hop of ProxyJump: [user@]host[:port] or ssh://[user@]host[:port]
    match = re.fullmatch(
        r"(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<v6>[^]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?/?",
        item,
    )
    if match is None:
        raise TransportError(
            f"the jump host '{item}' cannot be read",
            hint="fix ProxyJump in the SSH configuration: it takes user@host:port",
        )
    port = match["port"]
    return Destination(
        alias=match["v6"] or match["host"], user=match["user"], port=int(port) if port else None
    )


def _ask_ssh(destination: Destination, options: SshOptions) -> Values:
    config = options.config_path()
    try:
        answer = subprocess.run(
            ["ssh", "-G", *_ssh_words(destination, options)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _unreadable(destination, config, f"no answer within {_ANSWER_S} s") from error
    if answer.returncode != 0:
        why = " · ".join(answer.stderr.strip().splitlines()[-3:])
        raise _unreadable(destination, config, why)
    values: dict[str, tuple[str, ...]] = {}
    for line in answer.stdout.splitlines():
        name, _, value = line.partition(" ")
        values[name.lower()] = (*values.get(name.lower(), ()), value)
    return values


def _ssh_words(destination: Destination, options: SshOptions) -> list[str]:
    config = options.config_path()
    words = ["-F", str(config)] if config else []
    words += ["-l", destination.user] if destination.user else []
    words += ["-p", str(destination.port)] if destination.port else []
    # After `--`, an alias that starts with a dash is no option.
    return [*words, "--", destination.alias]


def ssh_arguments(destination: Destination) -> str:
    """Return how a user names a host to ssh, which takes no `host:port`."""
    port = f"-p {destination.port} " if destination.port else ""
    return f"{port}{destination.user + '@' if destination.user else ''}{destination.alias}"


def _unreadable(destination: Destination, config: Path | None, why: str) -> TransportError:
    given = f"-F {shlex.quote(str(config))} " if config else ""
    shown = f"`ssh -G {given}{ssh_arguments(destination)}`"
    return TransportError(
        f"the SSH configuration for {destination} cannot be read",
        details=why,
        hint=f"fix {config or '~/.ssh/config'}; {shown} shows the same",
    )


def _settings(destination: Destination, values: Values, *, accepts_new_keys: bool) -> SshSettings:
    hostname = _first(values, "hostname") or destination.alias
    port = destination.port or int(_first(values, "port") or 22)
    user = destination.user or _first(values, "user") or getpass.getuser()
    tokens = {
        "d": str(Path.home()), "h": hostname, "n": destination.alias, "p": str(port), "r": user,
        # The tokens of ssh_config(5), section TOKENS.
        "u": getpass.getuser(), "i": str(os.getuid()), "l": socket.gethostname(),
        "L": socket.gethostname().partition(".")[0], "%": "%",
    }  # fmt: skip
    identities = values.get("identityfile") or tuple(
        f"~/.ssh/id_{kind}" for kind in ("ed25519", "ecdsa", "rsa")
    )
    files = (
        _first(values, "userknownhostsfile") or "~/.ssh/known_hosts ~/.ssh/known_hosts2",
        _first(values, "globalknownhostsfile") or "/etc/ssh/ssh_known_hosts",
    )
    if revoked := _first(values, "revokedhostkeys"):
        raise TransportError(
            f"the SSH configuration for {destination} names a list of revoked host keys",
            details=f"RevokedHostKeys is {revoked}; envcompare does not read such lists",
            hint="mark the keys with @revoked in known_hosts, and set `RevokedHostKeys none` for "
            "this host, above the line that names the list",
        )
    alias = _first(values, "hostkeyalias")
    proxy_command = _first(values, "proxycommand")
    jumps = _first(values, "proxyjump") or ""
    return SshSettings(
        destination=destination,
        hostname=hostname,
        port=port,
        user=user,
        # OpenSSH writes and hashes an alias in lower case.
        key_alias=alias.lower() if alias else None,
        identity_files=tuple(
            _path(_with_variables(text), tokens) for text in identities if text != "none"
        ),
        identities_only=_first(values, "identitiesonly") == "yes",
        agent=_agent((values.get("identityagent") or (_AGENT_VARIABLE,))[0], tokens),
        known_hosts=tuple(path for text in files for path in _paths(text, tokens)),
        accepts_new_keys=accepts_new_keys
        or _first(values, "stricthostkeychecking") == "accept-new",
        jumps=tuple(_parse_jump(hop.strip()) for hop in jumps.split(",") if hop.strip()),
        proxy_command=_expand(proxy_command, tokens) if proxy_command else None,
    )


def _agent(text: str, tokens: Mapping[str, str]) -> Path | None:
    """Return the agent's socket; OpenSSH takes `none`, the name of a variable, or a path."""
    if text == "none":
        return None
    if text == _AGENT_VARIABLE or re.fullmatch(r"\$\w+", text):
        path = os.environ.get(text.removeprefix("$"), "")
    else:
        path = str(_path(_with_variables(text), tokens))
    return Path(path) if path else None


def _with_variables(text: str) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], ""), text)


def _first(values: Values, name: str) -> str | None:
    value = (values.get(name) or ("none",))[0]
    return None if value in ("", "none") else value


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def _path(text: str, tokens: Mapping[str, str]) -> Path:
    return Path(_expand(text.strip('"'), tokens)).expanduser()


def _paths(text: str, tokens: Mapping[str, str]) -> tuple[Path, ...]:
    # `ssh -G` separates files by spaces, and does not quote a name that contains a space.
    whole = _path(text, tokens)
    if whole.exists():
        return (whole,)
    try:
        parts = shlex.split(text)
    except ValueError:
        parts = text.split()
    return tuple(_path(part, tokens) for part in parts)


class _Trust(Enum):
    """Whether the known_hosts files trust a key that a host offered."""

    KNOWN = auto()
    UNKNOWN = auto()
    CHANGED = auto()
    REVOKED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKey:
    """A public key of a host: its type and its content in base64."""

    type: str
    content: str

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 fingerprint as `ssh-keygen -l` prints it."""
        digest = hashlib.sha256(base64.b64decode(self.content)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownHost:
    patterns: tuple[str, ...]
    key: HostKey
    is_revoked: bool
    place: str  # file:line

    def covers(self, name: str) -> bool:
        """Tell whether the line applies to `name`, ignoring case; a negated pattern excludes it."""
        folded = name.lower()
        negated = [pattern[1:] for pattern in self.patterns if pattern.startswith("!")]
        others = [pattern for pattern in self.patterns if not pattern.startswith("!")]
        if any(_matches(one, folded) for one in negated):
            return False
        return any(_matches(one, folded) for one in others)


def _known_name(host: str, port: int) -> str:
    """Return a host's name in known_hosts: with its port unless that is 22."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


def trusted_name(settings: SshSettings) -> str:
    """Return the host's name in known_hosts files."""
    return settings.key_alias or _known_name(settings.hostname, settings.port)


def read_known_hosts(paths: Iterable[Path]) -> tuple[_KnownHost, ...]:
    """Read all lines with a key; missing files count as empty."""
    return tuple(line for path in paths for line in _read(path))


def _judge(known: Iterable[_KnownHost], name: str, key: HostKey) -> tuple[_Trust, str]:
    """Return whether to trust `key` for `name`, and the place (file:line) that decided."""
    lines = [line for line in known if line.covers(name)]
    # Revoked lines come first, because a key that is revoked may also be on a trusted line.
    for line in sorted(lines, key=lambda line: not line.is_revoked):
        if line.key == key:
            return _Trust.REVOKED if line.is_revoked else _Trust.KNOWN, line.place
    trusted = [line for line in lines if not line.is_revoked]
    # A key of a type other than the known one could also come from an impostor.
    return (_Trust.CHANGED, trusted[0].place) if trusted else (_Trust.UNKNOWN, "")


def known_types(known: Iterable[_KnownHost], name: str) -> tuple[str, ...]:
    """Return the key types known for `name`, so that the client can ask for one of them."""
    lines = (line for line in known if not line.is_revoked and line.covers(name))
    return tuple(dict.fromkeys(line.key.type for line in lines))


def _remember(path: Path, name: str, key: HostKey) -> None:
    """Append a key to a known_hosts file, which only its owner may read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Only os.open sets the mode at creation, before anyone can read the file.
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with open(descriptor, "r+b") as file:  # noqa: PTH123  # a mode at creation
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        # A last line written by hand may lack its newline; do not append to it.
        start = "" if file.read(1) in (b"", b"\n") else "\n"
        file.write(f"{start}{name} {key.type} {key.content}\n".encode())


def check_host_key(settings: SshSettings, known: Iterable[_KnownHost], key: HostKey) -> None:
    """Raise TransportError unless the user trusts the key that a host offered.

    Adds an unknown key to known_hosts if the settings accept new keys.
    """
    trust, place = _judge(known, trusted_name(settings), key)
    if trust is _Trust.REVOKED:
        raise TransportError(
            f"the host key of '{settings.destination}' is revoked",
            details=f"{place} revokes {key.fingerprint}",
            hint="do not connect; ask the host's administrator",
        )
    if trust is _Trust.CHANGED:
        raise TransportError(
            f"the host key of '{settings.destination}' has changed",
            details=f"it offers {key.type} {key.fingerprint}; {place} has another key, so "
            "either the host was reinstalled or someone intercepts the connection",
            hint="ask the host's administrator; only if the new key is right, remove the old one "
            f"with `ssh-keygen -R '{trusted_name(settings)}' -f '{place.rpartition(':')[0]}'`",
        )
    if trust is _Trust.UNKNOWN:
        if not settings.accepts_new_keys:
            raise _unknown_key(settings, key)
        if settings.known_hosts:
            _remember(settings.known_hosts[0], trusted_name(settings), key)


def _unknown_key(settings: SshSettings, key: HostKey) -> TransportError:
    """Return the error for an unknown key, with the command that accepts exactly this key."""
    name = trusted_name(settings)
    kind = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(key.type, "ecdsa")
    target = settings.known_hosts[0] if settings.known_hosts else "~/.ssh/known_hosts"
    return TransportError(
        f"the host key of '{settings.destination}' is not known",
        details=f"it offers the {kind} key {key.fingerprint}, which is in no known_hosts file",
        hint=(
            f"if `ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub` shows the same there, run "
            f"`echo '{name} {key.type} {key.content}' >> '{target}'`, or use --accept-new-host-keys"
        ),
    )


def _read(path: Path) -> Iterator[_KnownHost]:
    if str(path) == os.devnull:
        # OpenSSH reads /dev/null as an empty file; `read_text` refuses a device.
        return
    try:
        text = read_text(path, errors="replace")
    except UnfitFileError as error:
        hint = "write a file of fewer lines, or name another with UserKnownHostsFile"
        raise TransportError(f"{path} cannot be read", details=plain(error), hint=hint) from error
    except OSError:
        return
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        # A certificate authority's key is no host key, and certificates are not checked.
        if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", "@revoked"):
            continue
        names, key_type, content = fields[:3]
        try:
            blob = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            continue
        yield _KnownHost(
            patterns=tuple(names.split(",")),
            # encoded again, so that it compares equal to a server's key
            key=HostKey(type=key_type, content=base64.b64encode(blob).decode()),
            is_revoked=marker == "@revoked",
            place=f"{path}:{number}",
        )


def _matches(pattern: str, name: str) -> bool:
    # OpenSSH hashes a name as |1|salt|HMAC-SHA1(salt, name).
    if pattern.startswith("|1|"):
        # A malformed pattern may have fewer fields.
        _, _, salt, expected, *_ = (*pattern.split("|"), "", "")
        try:
            digest = hmac.digest(base64.b64decode(salt), name.encode(), "sha1")
            return hmac.compare_digest(digest, base64.b64decode(expected))
        except (binascii.Error, ValueError):
            return False
    expression = re.escape(pattern.lower()).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, name) is not None


@contextmanager
def forwarding(
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
    settings = (
        # These override what a configuration may contain: prompts, no forwards, or a shared
        # connection, which would outlive this process.
        "BatchMode=yes", "ClearAllForwardings=no", "ControlMaster=no", "ControlPath=none",
        "ExitOnForwardFailure=yes", "ConnectTimeout=10", "ServerAliveInterval=5",
        "StreamLocalBindMask=0177",
        f"StrictHostKeyChecking={'accept-new' if options.accept_new_host_keys else 'yes'}",
    )  # fmt: skip
    own = (f"-o{setting}" for setting in settings)
    return ["ssh", "-nNT", "-L", forward, *own, *_ssh_words(destination, options)]


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
        hint=f"check that `ssh {ssh_arguments(destination)} true` works without a prompt",
    )
