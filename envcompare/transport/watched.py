"""A transport whose commands can all be killed at once, when the user asks to stop twice."""

from __future__ import annotations

from pathlib import Path

from envcompare.command import Command
from envcompare.interrupt import Interruption
from envcompare.transport import Process, Told, Transport
from envcompare.transport.copies import get_file, put_file


class Watched:
    """A transport whose commands all die when the user asks to stop a second time.

    Those of one that `ends_at_once` die at the first: nothing is lost with an unanswered question.
    """

    def __init__(
        self, transport: Transport, interruption: Interruption, *, ends_at_once: bool = False
    ) -> None:
        self._transport = transport
        self._interruption = interruption
        self._ends_at_once = ends_at_once
        self.forward_unix = transport.forward_unix
        self.close = transport.close

    @property
    def name(self) -> str:
        """Name the host as the user wrote it."""
        return self._transport.name

    @property
    def bare(self) -> Transport:
        """Return the transport below, for what must run after everything else was killed."""
        return self._transport

    def spawn(self, command: Command) -> Process:
        """Start the command there and remember it until the run ends."""
        process = self._transport.spawn(command)
        self._interruption.add(process, at_once=self._ends_at_once)
        return process

    def put(self, source: Path, target: str, *, sha256: str = "", told: Told | None = None) -> None:
        """Copy a file to the host by a command that is watched as well."""
        put_file(self, source, target, sha256=sha256, told=told)

    def get(self, source: str, target: Path, *, sha256: str, told: Told | None = None) -> None:
        """Copy the file with that hash from the host by a command that is watched as well."""
        get_file(self, source, target, sha256=sha256, told=told)
