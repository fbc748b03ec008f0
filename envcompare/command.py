"""A command as data, its result, and the only place that quotes for a shell."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from envcompare.text import masked, masked_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run: argv, extra environment and working directory; never shell text."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None

    def flat(self) -> tuple[str, ...]:
        """Return one argv that sets the environment and directory itself (POSIX sh, env)."""
        argv = self.argv
        if self.env:
            argv = ("env", *(f"{name}={value}" for name, value in self.env), *argv)
        if self.cwd is not None:
            argv = ("sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", self.cwd, *argv)
        return argv


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The exit code (128 + n after signal n) and both streams of a finished command."""

    command: Command
    exit_code: int
    stdout: str
    stderr: str

    @property
    def succeeded(self) -> bool:
        """Tell whether the exit code is 0."""
        return self.exit_code == 0

    def tail(self, lines: int = 10) -> str:
        """Return the last lines of stderr, or of stdout if stderr is empty, without secrets."""
        text = self.stderr.strip() or self.stdout.strip()
        return masked("\n".join(text.splitlines()[-lines:]))


def shell_text(argv: tuple[str, ...]) -> str:
    """Quote argv for a POSIX shell."""
    return shlex.join(argv)


def shown_text(argv: tuple[str, ...]) -> str:
    """Quote argv for a reader, without its secrets."""
    return shlex.join(masked_words(argv))
