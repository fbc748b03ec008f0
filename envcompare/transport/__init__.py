"""How a command reaches a host: the Transport seam and what is built on top of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol

from envcompare.command import Command

Told = Callable[[int], None]
"""Told how many bytes of a file are there, as they go; what it raises ends the copy."""


class Process(Protocol):
    """A running command; all three streams are binary and unbuffered on the reading side."""

    @property
    def stdin(self) -> BinaryIO:
        """Give the stream the command reads; closing it is end of input there."""
        ...

    @property
    def stdout(self) -> BinaryIO:
        """Give what the command writes to stdout."""
        ...

    @property
    def stderr(self) -> BinaryIO:
        """Give what the command writes to stderr."""
        ...

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code (128 + n after signal n).

        Raises CommandTimeoutError when the limit passes (the command goes on) and TransportError
        when the connection was lost before an exit code came.
        """
        ...

    def kill(self) -> None:
        """Kill the command and all its children there (SIGKILL to the group); safe to repeat."""
        ...


class Transport(Protocol):
    """Carries commands and files to one host."""

    @property
    def name(self) -> str:
        """Name the host as the user wrote it; `local` for this machine."""
        ...

    @property
    def bare(self) -> Transport:
        """Give the transport that no interruption reaches: what cleans up runs over it."""
        ...

    def spawn(self, command: Command) -> Process:
        """Start the command there, arguments intact; a missing program ends with exit code 127."""
        ...

    def put(self, source: Path, target: str, *, sha256: str = "", told: Told | None = None) -> None:
        """Copy a file to the host, making parent folders; the content is verified.

        `sha256` is the hash of the file where that is known.
        """
        ...

    def get(self, source: str, target: Path, *, sha256: str, told: Told | None = None) -> None:
        """Copy the file with that hash from the host; the content is verified.

        What is not known before it is read comes by `copies.take` and `copies.fetch` alone.
        """
        ...

    def forward_unix(self, path: str) -> AbstractContextManager[Path]:
        """Give a local socket path that reaches the UNIX socket `path` of the host."""
        ...

    def close(self) -> None:
        """End the connection; safe to repeat."""
        ...
