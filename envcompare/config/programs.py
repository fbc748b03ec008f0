"""A program of the user's own as a workload: a plain command, timed as a whole process."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from envcompare.errors import ConfigError

LONGEST_S = 30 * 86_400.0  # nobody waits longer, and clocks and timers hold it
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_SETTING = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_SHELL_WORDS = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1"})
_INTERPRETERS = re.compile(r"python[\d.]*|torchrun|accelerate|env|nice|time|numactl|taskset")
# Shown from the host, these would hide what a container is made of.
_SYSTEM_FOLDERS = frozenset({
    "/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/run", "/sbin",
    "/sys", "/tmp", "/usr", "/usr/local", "/var",  # noqa: S108 — nothing is written there
})  # fmt: skip


class WorkloadTable(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="kebab",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """`[workloads.NAME]` of the file; without `command` it is a bundled workload."""

    command: str | tuple[str, ...] | None = None
    measures: dict[str, str] = {}
    cwd: str | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What runs in every arm, where, for how long at most, and what is read from its output."""

    argv: tuple[str, ...]
    cwd: str  # on the host; shown read-only to containers at the same path
    measures: tuple[tuple[str, str], ...] = ()  # name, regular expression with one group
    timeout_s: float | None = None


def table_keys() -> tuple[str, ...]:
    """Return the keys a table of a workload may hold."""
    return tuple(field.encode_name for field in msgspec.structs.fields(WorkloadTable))


def parse_program(name: str, table: WorkloadTable) -> Program:
    """Check a table and return its program; raises ConfigError naming the workload."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"`{name}` is no name for a command",
            hint="use letters, digits, dots, underscores and hyphens",
        )
    argv = _words(table.command) if isinstance(table.command, str) else table.command or ()
    if not argv or not argv[0]:
        raise ConfigError(
            f"the command of the workload `{name}` is empty",
            details="its first word must be a program",
            hint="name a program and its arguments",
        )
    if table.timeout is not None and not 0 < table.timeout <= LONGEST_S:
        raise ConfigError(
            f"the timeout {table.timeout:g} of {name} is out of range",
            details=f"it must be seconds above 0, {LONGEST_S:.0f} (30 days) at most",
            hint="give --command-timeout, or `timeout` in the file, such a number",
        )
    return Program(
        argv=argv,
        cwd=_folder(name, table.cwd),
        measures=tuple((key, _pattern(key, text)) for key, text in table.measures.items()),
        timeout_s=table.timeout,
    )


def table_of(program: Program) -> WorkloadTable:
    """Return the table that says the same in any working directory."""
    return WorkloadTable(
        command=program.argv,
        measures=dict(program.measures),
        cwd=program.cwd,
        timeout=program.timeout_s,
    )


def tables_of(
    commands: tuple[str, ...], *, measures: tuple[str, ...], cwd: str | None, timeout: float | None
) -> dict[str, WorkloadTable]:
    """Return the tables that the flags `--command` and its companions say.

    Raises ConfigError for a command that is empty or cannot be split, and for a measure without a
    name or of a name that is taken.
    """
    patterns = _patterns(measures)
    tables: dict[str, WorkloadTable] = {}
    for text in commands:
        argv = _words(text)
        if not argv or not argv[0]:
            raise ConfigError(
                f"--command {text!r} is empty",
                details="it names no program",
                hint="give a program and its arguments, as in --command 'python train.py'",
            )
        name = base = _name(argv)
        for number in range(2, len(commands) + 2):
            if name not in tables:
                break
            name = f"{base}-{number}"
        tables[name] = WorkloadTable(command=argv, measures=patterns, cwd=cwd, timeout=timeout)
    return tables


def _words(text: str) -> tuple[str, ...]:
    """Split a command line as a shell would; NAME=VALUE in front of it sets a variable."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"the command {text!r} cannot be split into words",
            details=str(error),
            hint="close every quote",
        ) from error
    for word in words:
        if word in _SHELL_WORDS:
            raise ConfigError(
                f"the command {text!r} holds `{word}`, but no shell runs it",
                hint="give it to one: --command \"sh -c '…'\"",
            )
    return ("env", *words) if words and _SETTING.fullmatch(words[0]) else tuple(words)


def _name(argv: tuple[str, ...]) -> str:
    """Name a command after its program, or after what an interpreter is given to run."""
    words = [word for word in argv if not _SETTING.fullmatch(word)]
    while len(words) > 1 and _INTERPRETERS.fullmatch(PurePosixPath(words[0]).name):
        rest = [word for word in words[1:] if word == "-c" or not word.startswith("-")]
        if not rest or rest[0] == "-c":
            break
        words = rest
    path = PurePosixPath(words[0] if words else "command")
    name = path.stem if path.suffix in {".py", ".sh"} else path.name
    return _NOT_IN_NAME.sub("-", name).strip(".-") or "command"


def _patterns(items: tuple[str, ...]) -> dict[str, str]:
    patterns: dict[str, str] = {}
    for name, pattern in map(_measure, items):
        if name in patterns:
            raise ConfigError(
                f"two --measure are called `{name}`",
                details=f"{patterns[name]} and {pattern}",
                hint="give each measure a name of its own, or leave one out",
            )
        patterns[name] = pattern
    return patterns


def _measure(item: str) -> tuple[str, str]:
    name, equals, pattern = item.partition("=")
    if not (equals and pattern and _NAME.fullmatch(name)):
        raise ConfigError(
            f"--measure {item} is not understood",
            details="the form is NAME=REGEX, with the number in the first group",
            hint="for example --measure 'loss=loss: ([0-9.]+)'",
        )
    return name, pattern


def _pattern(name: str, text: str) -> str:
    hint = r"put the number in parentheses, as in loss: ([0-9.]+)"
    try:
        groups = re.compile(text.encode()).groups  # output is searched as bytes
    except re.error as error:
        raise ConfigError(
            f"the measure {name} is no regular expression", details=f"{text}: {error}", hint=hint
        ) from error
    if groups < 1:
        raise ConfigError(f"the measure {name} has no group", details=text, hint=hint)
    return text


def _folder(name: str, given: str | None) -> str:
    folder = os.path.normpath(Path(given or ".").expanduser().absolute())
    if folder in _SYSTEM_FOLDERS:
        raise ConfigError(
            f"the command {name} cannot run in {folder}",
            details="shown inside, that folder would hide the container's own",
            hint="change into the folder of the program, or name it with --command-dir",
        )
    return folder
