"""A transport to this machine that keeps a record of what it is told to run."""

from __future__ import annotations

from envcompare.text import Command
from envcompare.transport import LocalTransport, Process


class Recorder(LocalTransport):
    """Runs commands here and keeps a record of them."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def spawn(self, command: Command) -> Process:
        """Note the command and start it."""
        self.commands.append(command)
        return super().spawn(command)
