"""The host keys a user trusts: known_hosts files as OpenSSH reads them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

_SSH_PORT = 22


class Trust(Enum):
    """What the files say about a key that a host offered."""

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
class KnownHost:
    """One line of a known_hosts file."""

    patterns: tuple[str, ...]
    key: HostKey
    is_revoked: bool
    place: str  # file:line

    def covers(self, name: str) -> bool:
        """Tell whether the line speaks about `name`; a negated pattern rules it out."""
        is_covered = False
        for pattern in self.patterns:
            if pattern.startswith("!"):
                if _matches(pattern[1:], name):
                    return False
            elif _matches(pattern, name):
                is_covered = True
        return is_covered


def known_name(host: str, port: int) -> str:
    """Write a host as known_hosts does: with its port only where that is not 22."""
    return host.lower() if port == _SSH_PORT else f"[{host.lower()}]:{port}"


def read_known_hosts(paths: Iterable[Path]) -> tuple[KnownHost, ...]:
    """Read all lines that name a key; files that are not there count as empty."""
    return tuple(line for path in paths for line in _read(path))


def judge(known: Iterable[KnownHost], name: str, key: HostKey) -> tuple[Trust, str]:
    """Say whether to trust `key` for `name`, and the place (file:line) that decided."""
    lines = [line for line in known if line.covers(name)]
    for line in lines:
        if line.is_revoked and line.key == key:
            return Trust.REVOKED, line.place
    trusted = [line for line in lines if not line.is_revoked]
    for line in trusted:
        if line.key == key:
            return Trust.KNOWN, line.place
    # A key of another type than the known one could be an impostor's as well.
    return (Trust.CHANGED, trusted[0].place) if trusted else (Trust.UNKNOWN, "")


def known_types(known: Iterable[KnownHost], name: str) -> tuple[str, ...]:
    """Return the key types known for `name`, so that one of them can be asked for."""
    lines = (line for line in known if not line.is_revoked and line.covers(name))
    return tuple(dict.fromkeys(line.key.type for line in lines))


def remember(path: Path, name: str, key: HostKey) -> None:
    """Append a key to a known_hosts file, which only its owner may read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with open(descriptor, "r+b") as file:  # noqa: PTH123  # a mode at creation
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        # A last line that was written by hand may lack its end, and must not take this one in.
        start = "" if file.read(1) in (b"", b"\n") else "\n"
        file.write(f"{start}{name} {key.type} {key.content}\n".encode())


def _read(path: Path) -> Iterator[KnownHost]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        # A certificate authority signs keys; it is none itself, and certificates are not checked.
        if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", "@revoked"):
            continue
        names, key_type, content = fields[:3]
        if _is_base64(content):
            yield KnownHost(
                patterns=tuple(names.split(",")),
                key=HostKey(type=key_type, content=content),
                is_revoked=marker == "@revoked",
                place=f"{path}:{number}",
            )


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        return _matches_hash(pattern, name)
    expression = re.escape(pattern.lower()).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, name) is not None


def _matches_hash(pattern: str, name: str) -> bool:
    """Compare with a hashed name, `|1|salt|HMAC-SHA1(salt, name)`, as OpenSSH writes it."""
    _, _, salt, expected, *_ = (*pattern.split("|"), "", "")
    try:
        digest = hmac.digest(base64.b64decode(salt), name.encode(), "sha1")
        return hmac.compare_digest(digest, base64.b64decode(expected))
    except (binascii.Error, ValueError):
        return False
