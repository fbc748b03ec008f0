"""How to reach a host over SSH, as the user's own configuration says it."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envcompare.errors import TransportError

_CONFIG_VARIABLE = "ENVCOMPARE_SSH_CONFIG"

Values = Mapping[str, tuple[str, ...]]
"""Lower-case keywords of ssh_config and their values, in order."""

_AGENT_VARIABLE = "SSH_AUTH_SOCK"

# A `Match exec` in the configuration runs a program of the user's.
_ANSWER_S = 30

# One hop of ProxyJump: [user@]host[:port] or ssh://[user@]host[:port].
_JUMP = re.compile(
    r"(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<v6>[^]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?/?"
)

_Lookup = Callable[[Path | None, str], Values]


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """What the user said about all hosts of a run."""

    config: Path | None = None
    accept_new_host_keys: bool = False
    connect_timeout_s: float = 10.0

    def config_path(self) -> Path | None:
        """Return the configuration file to use in place of ~/.ssh/config."""
        variable = os.environ.get(_CONFIG_VARIABLE)
        return self.config or (Path(variable) if variable else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A host as the user wrote it; what is `None` is left to the configuration."""

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
    revoked_keys: tuple[Path, ...] = ()  # files that name host keys to be refused
    accepts_new_keys: bool = False
    jumps: tuple[Destination, ...] = ()
    proxy_command: str | None = None


def resolve(destination: Destination, options: SshOptions, *, without_ssh: _Lookup) -> SshSettings:
    """Ask OpenSSH itself what the configuration means; `without_ssh` reads it where ssh is missing.

    Only OpenSSH knows Include, Match and canonical names in full.
    """
    try:
        values = _ask_ssh(destination, options)
    except FileNotFoundError:
        values = without_ssh(options.config_path(), destination.alias)
    return _settings(destination, values, accepts_new_keys=options.accept_new_host_keys)


def _parse_jumps(text: str) -> tuple[Destination, ...]:
    return tuple(_parse_jump(item.strip()) for item in text.split(",") if item.strip())


def _parse_jump(item: str) -> Destination:
    match = _JUMP.fullmatch(item)
    if match is None:
        raise TransportError(
            f"the jump host '{item}' cannot be read",
            details="ProxyJump takes user@host:port",
            hint="fix ProxyJump in the SSH configuration",
        )
    port = match["port"]
    return Destination(
        alias=match["v6"] or match["host"], user=match["user"], port=int(port) if port else None
    )


def _ask_ssh(destination: Destination, options: SshOptions) -> Values:
    config = options.config_path()
    argv = ["ssh", "-G"]
    argv += ["-F", str(config)] if config else []
    argv += ["-l", destination.user] if destination.user else []
    argv += ["-p", str(destination.port)] if destination.port else []
    try:
        answer = subprocess.run(
            [*argv, "--", destination.alias],
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
        said = " · ".join(answer.stderr.strip().splitlines()[-3:])
        raise _unreadable(destination, config, said)
    values: dict[str, tuple[str, ...]] = {}
    for line in answer.stdout.splitlines():
        name, _, value = line.partition(" ")
        values[name.lower()] = (*values.get(name.lower(), ()), value)
    return values


def _unreadable(destination: Destination, config: Path | None, why: str) -> TransportError:
    return TransportError(
        f"the SSH configuration for {destination} cannot be read",
        details=why,
        hint=f"fix {config or '~/.ssh/config'}; `ssh -G {destination.alias}` shows the same",
    )


def _settings(destination: Destination, values: Values, *, accepts_new_keys: bool) -> SshSettings:
    hostname = _first(values, "hostname") or destination.alias
    port = destination.port or int(_first(values, "port") or 22)
    user = destination.user or _first(values, "user") or getpass.getuser()
    tokens = {
        "d": str(Path.home()), "h": hostname, "n": destination.alias, "p": str(port), "r": user,
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
    revoked = _first(values, "revokedhostkeys")
    alias = _first(values, "hostkeyalias")
    proxy_command = _first(values, "proxycommand")
    return SshSettings(
        destination=destination,
        hostname=hostname,
        port=port,
        user=user,
        key_alias=alias.lower() if alias else None,  # as OpenSSH writes and hashes it
        identity_files=tuple(_path(text, tokens) for text in identities if text != "none"),
        identities_only=_first(values, "identitiesonly") == "yes",
        agent=_agent((values.get("identityagent") or (_AGENT_VARIABLE,))[0], tokens),
        known_hosts=tuple(path for text in files for path in _paths(text, tokens)),
        revoked_keys=_paths(_with_variables(revoked), tokens) if revoked else (),
        accepts_new_keys=accepts_new_keys
        or _first(values, "stricthostkeychecking") == "accept-new",
        jumps=_parse_jumps(_first(values, "proxyjump") or ""),
        proxy_command=_expand(proxy_command, tokens) if proxy_command else None,
    )


def _agent(text: str, tokens: Mapping[str, str]) -> Path | None:
    """Return the agent's socket: `none`, the name of a variable, or a path, as OpenSSH reads it."""
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
    # `ssh -G` prints several files with spaces between and never quotes one that has a space.
    whole = _path(text, tokens)
    if whole.exists():
        return (whole,)
    try:
        parts = shlex.split(text)
    except ValueError:
        parts = text.split()
    return tuple(_path(part, tokens) for part in parts)
