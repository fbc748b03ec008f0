"""Read the settings a user gives: flags, with `--set` and `--command` parsed, and a TOML file."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from envcompare import bundled
from envcompare.config.settings import (
    ParameterValues,
    Settings,
    WorkloadTable,
    parse_settings,
)
from envcompare.config.workloads import COMMAND_NAME, VARIABLE_SETTING, command_words
from envcompare.errors import ConfigError
from envcompare.files import read_text
from envcompare.run_folder.records import Scalar
from envcompare.text import closest, listed, parse_toml

_DEFAULT_FILE = Path("envcompare.toml")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_INTERPRETERS = re.compile(r"python[\d.]*|torchrun|accelerate|env|nice|time|numactl|taskset")


def settings_of(values: dict[str, Any]) -> tuple[Settings, Settings]:
    """Return the settings of the flags and of the configuration file.

    Raises ConfigError naming what is wrong.
    """
    path = _file_of(values.pop("config", None), values.pop("study", None))
    given = {name: value for name, value in values.items() if value not in (None, ())}
    if "set" in given:
        given["set"] = parse_set(given["set"])
    flags = Settings(**_with_commands(given))
    return flags, read_settings(path) if path is not None else Settings()


def _file_of(config: Path | None, study: str | None) -> Path | None:
    """Return the requested configuration file, else the default one if it exists."""
    if study is None:
        return config or (_DEFAULT_FILE if _DEFAULT_FILE.is_file() else None)
    if config is not None:
        raise ConfigError(
            "--study and --config both name a configuration file",
            hint="give one of them; flags override settings of a study",
        )
    known = bundled.studies()
    if study not in known:
        raise ConfigError(f"unknown study `{study}`", hint=closest(study, tuple(known)))
    return known[study]


def read_settings(path: Path) -> Settings:
    """Read a TOML configuration file.

    Raises ConfigError naming file, key and remedy for unreadable TOML, unknown keys, wrong types.
    """
    try:
        content = parse_toml(read_text(path))
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    return parse_settings(content, source=str(path))


def _unreadable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the configuration file {path} cannot be read",
        details=why,
        hint="check the path, and the TOML syntax at the place named",
    )


def parse_set(items: tuple[str, ...]) -> ParameterValues:
    """Parse `--set WORKLOAD.NAME=VALUE[,VALUE…]` items; raises ConfigError naming the item."""
    parsed: ParameterValues = {}
    for item in items:
        left, equals, right = item.partition("=")
        workload, dot, name = left.partition(".")
        if not (equals and dot and workload and name and right):
            raise ConfigError(
                f"--set {item} is not understood",
                hint="the form is WORKLOAD.NAME=VALUE[,VALUE…], as in --set rnn.hidden=64,128",
            )
        values = tuple(_scalar(text) for text in right.split(","))
        parsed.setdefault(workload, {})[name] = values if len(values) > 1 else values[0]
    return parsed


def _scalar(text: str) -> Scalar:
    text = text.strip()
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _with_commands(given: dict[str, Any]) -> dict[str, Any]:
    """Turn `--command` and its companions into workload tables, as in a file."""
    names = {"commands": (), "measures": (), "command_dir": None, "command_timeout": None}
    about_commands = {name: given.pop(name, default) for name, default in names.items()}
    if not about_commands["commands"]:
        if any(about_commands.values()):
            raise ConfigError(
                "--measure, --command-dir and --command-timeout belong to a --command",
                hint="name the program with --command, or write [workloads.NAME] in the file",
            )
        return given
    tables = tables_of(
        about_commands["commands"],
        measures=about_commands["measures"],
        cwd=about_commands["command_dir"],
        timeout=about_commands["command_timeout"],
    )
    bundled = {name: WorkloadTable() for name in listed(given.get("workloads"))}
    return {**given, "workloads": {**bundled, **tables}}


def tables_of(
    commands: tuple[str, ...], *, measures: tuple[str, ...], cwd: str | None, timeout: float | None
) -> dict[str, WorkloadTable]:
    """Return the tables of `--command` and its companion flags.

    Raises ConfigError for a command that is empty or cannot be split, and for a measure without a
    name or with a duplicate name.
    """
    patterns = _patterns(measures)
    taken = {path.stem for path in bundled.workloads().glob("*.py")}
    tables: dict[str, WorkloadTable] = {}
    for text in commands:
        argv = command_words(text)
        if not argv or not argv[0]:
            raise ConfigError(
                f"--command {text!r} is empty",
                hint="give a program and its arguments, as in --command 'python train.py'",
            )
        name = base = _name(argv, taken)
        for number in range(2, len(commands) + 2):
            if name not in tables:
                break
            name = f"{base}-{number}"
        tables[name] = WorkloadTable(command=argv, measures=patterns, cwd=cwd, timeout=timeout)
    return tables


def _name(argv: tuple[str, ...], taken: set[str]) -> str:
    """Name a command after its program, or after the script that an interpreter runs.

    The names of bundled workloads are reserved.
    """
    words = [word for word in argv if not VARIABLE_SETTING.fullmatch(word)]
    while len(words) > 1 and _INTERPRETERS.fullmatch(PurePosixPath(words[0]).name):
        rest = [word for word in words[1:] if word == "-c" or not word.startswith("-")]
        if rest[:1] == ["-c"]:
            return f"{PurePosixPath(words[0]).name}-c"
        if not rest:
            break
        words = rest
    path = PurePosixPath(words[0] if words else "command")
    name = path.stem if path.suffix in {".py", ".sh"} else path.name
    name = _NOT_IN_NAME.sub("-", name).strip(".-") or "command"
    return f"{name}-command" if name in taken else name


def _patterns(items: tuple[str, ...]) -> dict[str, str]:
    patterns: dict[str, str] = {}
    for name, pattern in map(_measure, items):
        if name in patterns:
            raise ConfigError(
                f"two --measure are called `{name}`",
                details=f"{patterns[name]} and {pattern}",
                hint="give each measure its own name, or leave one out",
            )
        patterns[name] = pattern
    return patterns


def _measure(item: str) -> tuple[str, str]:
    name, equals, pattern = item.partition("=")
    if not (equals and pattern and COMMAND_NAME.fullmatch(name)):
        raise ConfigError(
            f"--measure {item} is not understood",
            hint="the form is NAME=REGEX, as in --measure 'loss=loss: ([0-9.]+)'",
        )
    return name, pattern
