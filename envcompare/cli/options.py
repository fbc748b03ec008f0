"""The settings a user gives: the flags, made of the options that settings declare, and a TOML file.

`--set` and `--command` are parsed here.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from envcompare import bundled
from envcompare.config.settings import (
    PRESETS,
    Group,
    Option,
    ParameterValues,
    Settings,
    WorkloadTable,
    options,
    parse_settings,
)
from envcompare.config.workloads import COMMAND_NAME, VARIABLE_SETTING, command_words
from envcompare.errors import ConfigError, plain
from envcompare.files import read_text
from envcompare.run_folder.profiles import GPU_TOOLS
from envcompare.run_folder.records import Scalar
from envcompare.text import closest, listed, masked_words, parse_toml

_F = TypeVar("_F", bound=Callable[..., Any])
_Decorator = Callable[[_F], _F]


class UserPath(click.Path):
    """A path on this machine; a shell leaves the `~` of `--out=~/x` to the program."""

    def convert(self, value: Any, *context: Any) -> Any:
        """Return the path, with the home folder in place of `~`."""
        return super().convert(os.path.expanduser(value), *context)  # noqa: PTH111 — keeps ~nobody


# As typed: the code that opens it reports what is wrong, with its own exit code.
PATH = UserPath(path_type=Path, readable=False)
_CONFIG = click.option(
    "--config",
    type=UserPath(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file with the same settings as the flags. [default: envcompare.toml if it exists]",
)
MEASURE = click.option(
    "--measure",
    "measures",
    metavar="NAME=REGEX",
    multiple=True,
    help="Read a number from the output: first group of the last match.",
)
IMPORT = (
    click.argument("tool", type=click.Choice(GPU_TOOLS)),
    click.argument(
        "files",
        type=UserPath(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE…",
        nargs=-1,
        required=True,
    ),
    click.option(
        "--env", "arm", metavar="NAME", required=True, help="Environment the files are from."
    ),
    click.option(
        "--into",
        type=UserPath(file_okay=False, path_type=Path),
        metavar="RUN",
        help="Run folder to add to, imported or measured. [default: a new one]",
    ),
    click.option(
        "--steps",
        type=click.IntRange(min=1),
        metavar="N",
        help="Steps that the files cover; needed for per-step figures.",
    ),
    click.option(
        "--workload",
        metavar="NAME",
        help="Name of the workload; in a measured run, one of its workloads.",
    ),
    click.option("--cell", metavar="ID", help="Cell of the run, if it has several."),
    click.option(
        "--reference", metavar="NAME", help="Environment to compare with. [default: the first]"
    ),
    click.option(
        "--copy/--no-copy",
        "is_copied",
        default=True,
        help="Keep the files, up to 256 MiB each, in the run folder. [default: keep]",
    ),
    click.option(
        "--out",
        type=UserPath(file_okay=False, path_type=Path),
        default=Path("results"),
        metavar="DIR",
        help="Parent of new run folders. [default: results]",
    ),
)
_DEFAULT_FILE = Path("envcompare.toml")
_INTERPRETERS = re.compile(r"python[\d.]*|torchrun|accelerate|env|nice|time|numactl|taskset")


def _help(option: Option) -> str:
    default = option.default
    if isinstance(default, bool):
        shown = "on" if default else "off"
    elif isinstance(default, tuple):
        shown = ",".join(default)
    else:
        shown = f"{default:g}" if isinstance(default, int | float) else default
    shown = option.default_text or shown
    return f"{option.help} [default: {shown}]" if shown else option.help


class _NumberOrWord(click.ParamType[int | str]):
    """A whole number, or one of some words instead."""

    name = "number"

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int | str:
        """Return the parsed value; fail as click does for anything else."""
        if value in self._words:
            return str(value)
        try:
            return int(value)
        except ValueError:
            words = " or ".join(self._words)
            self.fail(f"{value!r} is neither a whole number nor {words}.", param, ctx)


def _flag(name: str, option: Option, types: tuple[Any, ...]) -> _Decorator[Any]:
    """Return the flag of a setting; None or no items means not given."""
    word, text = name.replace("_", "-"), _help(option)
    kind = next((each for each in types if get_origin(each) is Literal), types[0])
    if kind is bool:
        off = option.off or f"no-{word}"
        # None, so that a flag that was not given does not override the file.
        return click.option(f"--{word}/--{off}", name, default=None, help=text)
    given: dict[str, Any] = {"metavar": option.metavar}
    if option.is_repeated:
        given["multiple"] = True
    elif get_origin(kind) is Literal and int in types:
        given["type"] = _NumberOrWord(get_args(kind))
    elif get_origin(kind) is Literal:
        given = {"type": click.Choice(get_args(kind))}
    elif option.bare is not None:
        given = {"metavar": f"[{option.metavar}]", "is_flag": False, "flag_value": option.bare}
        given["type"] = kind
    else:
        given["type"] = kind if kind in (int, float) else str
    return click.option(f"--{word}", name, help=text, **given)


def presets() -> tuple[_Decorator[Any], ...]:
    """Return a flag for each preset except the default one."""
    usual, flags = PRESETS["default"], []
    for name, preset in PRESETS.items():
        if preset is usual:
            continue
        budget_s = preset.budget_s
        budget = f"{budget_s / 60:g} min" if budget_s >= usual.budget_s else f"{budget_s:g} s"
        text = f"Margin {100 * preset.margin:g} %, {budget} per cell"
        if preset.min_restarts > usual.min_restarts:
            text += f", {preset.min_restarts} restarts"
        flags.append(
            click.option(
                f"--{name}",
                "preset",
                flag_value=name,
                multiple=True,  # so that a second preset is seen
                callback=_only_preset,
                help=f"{text}.",
            )
        )
    return tuple(flags)


def _only_preset(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> str | None:
    del context, option
    chosen = tuple(dict.fromkeys(given))
    if len(chosen) > 1:
        flags = " and ".join(f"--{name}" for name in chosen)
        raise ConfigError(f"{flags} exclude each other", hint="leave one of them out")
    return chosen[0] if chosen else None


def _flags(*groups: Group) -> tuple[_Decorator[Any], ...]:
    return tuple(
        _flag(name, option, types)
        for name, (option, types) in options().items()
        if option.group in groups and name != "preset"
    )


def named_flags(*names: str) -> tuple[_Decorator[Any], ...]:
    """Return the flags of a few settings."""
    return tuple(_flag(name, *options()[name]) for name in names)


_REACHING = (_CONFIG, *_flags("stack", "ssh"))
EXPERIMENT = (
    *_flags("where", "allocation", "what"),
    _CONFIG,
    click.option(
        "--study", metavar="NAME", help="Repeat an earlier study; `envcompare list` names them."
    ),
    click.option(
        "--command",
        "commands",
        metavar="'PROGRAM ARG …'",
        multiple=True,
        help="Any program, timed as a whole process; repeatable.",
    ),
    MEASURE,
    click.option(
        "--command-dir",
        metavar="DIR",
        help="Folder on the host in which the command runs. [default: the current folder]",
    ),
    click.option(
        "--command-timeout", type=float, metavar="SECONDS", help="Time limit for one process."
    ),
    *presets(),
    *_flags("how", "stack", "ssh", "lock"),
)
PLACES = (*_flags("where"), *_REACHING)
CLEANED = (*PLACES, *_flags("lock"))
LOOKING = (*_flags("where", "what"), *_REACHING)


def command_line() -> tuple[str, ...]:
    """Return the command as typed, without secrets and the folder of its program."""
    return "envcompare", *masked_words(tuple(sys.argv[1:]))


def taking(flags: tuple[_Decorator[Any], ...]) -> _Decorator[Any]:
    """Give a command all of these options, in this order."""

    def decorate(command: Any) -> Any:
        # Decorators are applied from the bottom up, and --help shows the last one first.
        for flag in reversed(flags):
            command = flag(command)
        return command

    return decorate


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
        raise ConfigError(
            f"the configuration file {path} cannot be read",
            details=plain(error),
            hint="check the path, and the TOML syntax at the place named",
        ) from error
    return parse_settings(content, source=str(path))


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
        if name in parsed.get(workload, {}):
            raise ConfigError(
                f"--set gives {left} twice",
                hint=f"give all values at once, as in --set {left}=1,2",
            )
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
    commands, measures = given.pop("commands", ()), given.pop("measures", ())
    cwd, timeout = given.pop("command_dir", None), given.pop("command_timeout", None)
    if not commands:
        if measures or cwd is not None or timeout is not None:
            raise ConfigError(
                "--measure, --command-dir and --command-timeout belong to a --command",
                hint="name the program with --command, or write [workloads.NAME] in the file",
            )
        return given
    if cwd is not None and not cwd.strip():
        raise ConfigError("--command-dir names no folder", hint="give one, or leave it out")
    tables = tables_of(commands, measures=measures, cwd=cwd, timeout=timeout)
    others = {name: WorkloadTable() for name in listed(given.get("workloads"))}
    return {**given, "workloads": {**others, **tables}}


def tables_of(
    commands: tuple[str, ...], *, measures: tuple[str, ...], cwd: str | None, timeout: float | None
) -> dict[str, WorkloadTable]:
    """Return the tables of `--command` and its companion flags.

    Raises ConfigError for a command that is empty or cannot be split, and for a measure without a
    name or with a duplicate name.
    """
    found = patterns(measures)
    tables: dict[str, WorkloadTable] = {}
    for text in commands:
        argv = command_words(text)
        if not argv or not argv[0]:
            raise ConfigError(
                f"--command {text!r} is empty",
                hint="give a program and its arguments, as in --command 'python train.py'",
            )
        name = base = command_name(argv)
        for number in range(2, len(commands) + 2):
            if name not in tables:
                break
            name = f"{base}-{number}"
        tables[name] = WorkloadTable(command=argv, measures=found, cwd=cwd, timeout=timeout)
    return tables


def command_name(argv: tuple[str, ...]) -> str:
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
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "command"
    is_bundled = (bundled.workloads() / f"{name}.py").is_file()
    return f"{name}-command" if is_bundled else name


def patterns(items: tuple[str, ...]) -> dict[str, str]:
    """Return the expressions of `--measure` by name; raises ConfigError for a bad or double one."""
    kept: dict[str, str] = {}
    for item in items:
        name, equals, pattern = item.partition("=")
        if not (equals and pattern and COMMAND_NAME.fullmatch(name)):
            raise ConfigError(
                f"--measure {item} is not understood",
                hint="the form is NAME=REGEX, as in --measure 'loss=loss: ([0-9.]+)'",
            )
        if name in kept:
            raise ConfigError(
                f"two --measure are called `{name}`",
                details=f"{kept[name]} and {pattern}",
                hint="give each measure its own name, or leave one out",
            )
        kept[name] = pattern
    return kept
