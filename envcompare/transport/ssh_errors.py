"""What keeps a host from being reached over SSH, in words: what happened, why, what to try."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envcompare.errors import TransportError
from envcompare.transport.known_hosts import HostKey, known_name
from envcompare.transport.ssh_settings import SshSettings

_TYPE_NAMES = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}


def unknown_name(settings: SshSettings, error: Exception) -> TransportError:
    """Say that no address was found."""
    return TransportError(
        f"cannot find host '{settings.hostname}'",
        details=f"it is neither in the SSH configuration nor in the name service ({error})",
        hint="check the spelling, or add the host to ~/.ssh/config",
    )


def refused(settings: SshSettings) -> TransportError:
    """Say that nothing listens there."""
    return TransportError(
        f"host '{settings.destination}' refused the connection",
        details=f"nothing listens on {_address(settings)}",
        hint="start sshd there, or give its port: user@host:port",
    )


def silent(settings: SshSettings, timeout_s: float) -> TransportError:
    """Say that no answer came in time."""
    return TransportError(
        f"host '{settings.destination}' did not answer within {timeout_s:g} s",
        details=f"no answer from {_address(settings)}",
        hint="check that the host is up and that no firewall blocks the connection",
    )


def broken(settings: SshSettings, error: BaseException) -> TransportError:
    """Say that the conversation ended before a session stood."""
    reason = str(error) or type(error).__name__
    return TransportError(
        f"no SSH session with host '{settings.destination}'",
        details=f"{_address(settings)}: {reason}",
        hint=f"see what `ssh -v {_ssh_arguments(settings)} true` prints",
    )


def unknown_key(settings: SshSettings, key: HostKey) -> TransportError:
    """Say that the host's key is not known yet, and how to accept exactly this key."""
    name = trusted_name(settings)
    kind = _TYPE_NAMES.get(key.type, "ecdsa")
    target = settings.known_hosts[0] if settings.known_hosts else "~/.ssh/known_hosts"
    return TransportError(
        f"the host key of '{settings.destination}' is not known",
        details=f"it offers the {kind} key {key.fingerprint}, which no known_hosts file names",
        hint=(
            f"if `ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub` shows the same there, run "
            f"`echo '{name} {key.type} {key.content}' >> '{target}'`, or use --accept-new-host-keys"
        ),
    )


def changed_key(settings: SshSettings, key: HostKey, place: str) -> TransportError:
    """Say that the host offers another key than the known one; this is never accepted."""
    return TransportError(
        f"the host key of '{settings.destination}' has changed",
        details=f"it offers {key.type} {key.fingerprint}; {place} names another key: "
        "either the host was reinstalled or someone intercepts the connection",
        hint="ask who runs the host; only if the new key is right, remove the old one with "
        f"`ssh-keygen -R '{trusted_name(settings)}' -f '{place.rpartition(':')[0]}'`",
    )


def revoked_key(settings: SshSettings, key: HostKey, place: str) -> TransportError:
    """Say that the offered key is revoked, by a line of known_hosts or a file of revoked keys."""
    return TransportError(
        f"the host key of '{settings.destination}' is revoked",
        details=f"{place} revokes {key.fingerprint}",
        hint="do not connect; ask who runs the host",
    )


def unread_revocations(settings: SshSettings, path: Path, error: Exception) -> TransportError:
    """Say that RevokedHostKeys names a file that cannot be read, so that no key is trusted."""
    why = error.strerror if isinstance(error, OSError) else str(error)
    return TransportError(
        f"the host key of '{settings.destination}' cannot be checked",
        details=f"RevokedHostKeys names {path}, which cannot be read: {why}",
        hint="restore the file, or correct RevokedHostKeys in the SSH configuration",
    )


def denied(
    settings: SshSettings, tried: Sequence[str], *, reason: str = "", locked: str = ""
) -> TransportError:
    """Say which keys were tried in vain; `locked` is an encrypted key that no agent holds."""
    keys = ", ".join(tried) or "no key was found and no agent answers"
    return TransportError(
        f"host '{settings.destination}' does not let user '{settings.user}' in",
        details=f"{reason + '; ' if reason else ''}tried: {keys}",
        hint=f"unlock the key with `ssh-add {locked}`"
        if locked
        else f"install a key with `ssh-copy-id {_ssh_arguments(settings)}`, or name it by "
        "IdentityFile in ~/.ssh/config",
    )


def unreachable_behind(
    settings: SshSettings, jump: SshSettings, error: Exception
) -> TransportError:
    """Say that the jump host could not go on to the host."""
    return TransportError(
        f"jump host '{jump.destination}' cannot reach host '{settings.destination}'",
        details=f"{_address(settings)}: {error}",
        hint="check the host name as the jump host sees it, and AllowTcpForwarding there",
    )


def lost(host: str, what: str) -> TransportError:
    """Say that the connection broke while something ran."""
    return TransportError(
        f"the connection to host '{host}' was lost",
        details=f"it broke while {what} ran",
        hint="check the network and that the host is still up; a run can be resumed",
    )


def trusted_name(settings: SshSettings) -> str:
    """Return the name under which known_hosts files keep the host's key."""
    return settings.key_alias or known_name(settings.hostname, settings.port)


def _address(settings: SshSettings) -> str:
    return f"{settings.hostname} port {settings.port}"


def _ssh_arguments(settings: SshSettings) -> str:
    target = settings.destination
    port = f"-p {target.port} " if target.port else ""
    return f"{port}{target.user + '@' if target.user else ''}{target.alias}"
