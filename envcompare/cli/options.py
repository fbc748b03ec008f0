"""The settings a user gives: the flags, made of the options that settings declare, and a TOML file.

`--set` and `--command` are parsed here.
"""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Callable, Iterable
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
from envcompare.config.workloads import COMMAND_NAME, SHELL, VARIABLE_SETTING, command_words
from envcompare.errors import ConfigError
from envcompare.files import read_text
from envcompare.run_folder.profiles import GPU_TOOLS
from envcompare.run_folder.records import CAPTURED as CAPTURED_LINE
from envcompare.run_folder.records import Scalar
from envcompare.text import closest, listed, masked_words, parse_toml

CONTAINERS = re.compile(r"\b(?:docker|podman)\b")
_F = TypeVar("_F", bound=Callable[..., Any])
_Decorator = Callable[[_F], _F]
_CONFIG = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file with the same settings as the flags. [default: envcompare.toml if it exists]",
)
_STUDY = click.option(
    "--study",
    metavar="NAME",
    help="Repeat an earlier study; `envcompare list` names them.",
)
_MEASURE = click.option(
    "--measure",
    "measures",
    metavar="NAME=REGEX",
    multiple=True,
    help="Read a number from the output: first group of the last match.",
)
_COMMAND = (
    click.option(
        "--command",
        "commands",
        metavar="'PROGRAM ARG …'",
        multiple=True,
        help="Any program, timed as a whole process; repeatable.",
    ),
    _MEASURE,
    click.option(
        "--command-dir",
        metavar="DIR",
        help="Folder on the host in which the command runs. [default: the current folder]",
    ),
    click.option(
        "--command-timeout", type=float, metavar="SECONDS", help="Time limit for one process."
    ),
)
IMPORT = (
    click.argument("tool", type=click.Choice(GPU_TOOLS)),
    click.argument(
        "files",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE…",
        nargs=-1,
        required=True,
    ),
    click.option(
        "--env", "arm", metavar="NAME", required=True, help="Environment the files are from."
    ),
    click.option(
        "--into",
        type=click.Path(file_okay=False, path_type=Path),
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
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("results"),
        metavar="DIR",
        help="Parent of new run folders. [default: results]",
    ),
)
SUFFIX = ".capture"
_NAMES_CAPTURE = re.compile(rf"\S+{re.escape(SUFFIX)}")
_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_STEP = re.compile(f"{_NAME}:{_NAME}")
_NAMED_LINE = re.compile(r"([a-z][a-z0-9-]*)=(.*)", re.DOTALL)
_SCRIPT = re.compile(r"[^\s'\"=:]+\.(?:py|sh)\b")
_LINE_MARGIN = 5.0  # percent
_SEARCHED = 4096  # characters of a line, for the name of a script
_DEFAULT_FILE = Path("envcompare.toml")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_INTERPRETERS = re.compile(r"python[\d.]*|torchrun|accelerate|env|nice|time|numactl|taskset")


def _help(option: Option) -> str:
    """Return the help of an option with its default."""
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
        value: Any,  # noqa: ANN401 — as click has it
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
        return click.option(f"--{word}/--{off}", name, default=None, help=text)
    if option.is_repeated:
        return click.option(f"--{word}", name, metavar=option.metavar, multiple=True, help=text)
    if get_origin(kind) is Literal and int in types:
        number_or_word = _NumberOrWord(get_args(kind))
        return click.option(
            f"--{word}", name, type=number_or_word, metavar=option.metavar, help=text
        )
    if get_origin(kind) is Literal:
        return click.option(f"--{word}", name, type=click.Choice(get_args(kind)), help=text)
    if option.bare is not None:
        form = f"[{option.metavar}]"
        return click.option(
            f"--{word}", name, type=kind, metavar=form, is_flag=False, flag_value=option.bare,
            help=text,
        )  # fmt: skip
    number = kind if kind in (int, float) else str
    return click.option(f"--{word}", name, type=number, metavar=option.metavar, help=text)


def _presets() -> tuple[_Decorator[Any], ...]:
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
        flags.append(click.option(f"--{name}", "preset", flag_value=name, help=f"{text}."))
    return tuple(flags)


def _flags(*groups: Group) -> tuple[_Decorator[Any], ...]:
    return tuple(
        _flag(name, option, types)
        for name, (option, types) in options().items()
        if option.group in groups and name != "preset"
    )


def _named_flags(*names: str) -> tuple[_Decorator[Any], ...]:
    return tuple(_flag(name, *options()[name]) for name in names)


_REACHING = (_CONFIG, *_flags("stack", "ssh"))
EXPERIMENT = (
    *_flags("where", "allocation", "what"),
    _CONFIG,
    _STUDY,
    *_COMMAND,
    *_presets(),
    *_flags("how", "stack", "ssh", "lock"),
)
LINES = (
    click.option(
        "--prepare",
        metavar="'LINE'",
        help="Shell line before each process, not timed, as in 'rm -rf out'.",
    ),
    click.option("--conclude", metavar="'LINE'", help="Shell line after each process, not timed."),
    _MEASURE,
    click.option(
        "--lockstep",
        is_flag=True,
        help="Compare steps of a PyTorch training script instead of whole processes.",
    ),
    click.option(
        "--step",
        metavar="MODULE:FUNCTION",
        help="Compare the time from one call of a Python function to the next, as in "
        "__main__:predict; implies --lockstep.",
    ),
    click.option(
        "--prove",
        is_flag=True,
        help="Change the slow line towards the fast one and measure again, to find the cause; "
        "takes up to --budget once more.",
    ),
    *_presets(),
    *_named_flags("margin", "target", "budget", "seed", "quiet_gate", "title", "out", "wait"),
)
CAPTURED = (*LINES[:2], *_named_flags("budget", "seed", "quiet_gate", "title", "out", "wait"))
PLACES = (*_flags("where"), *_REACHING)
CLEANED = (*PLACES, *_flags("lock"))
LOOKING = (*_flags("where", "what"), *_REACHING)


def command_line() -> tuple[str, ...]:
    """Return the command as typed, without secrets and the folder of its program."""
    return "envcompare", *masked_words(tuple(sys.argv[1:]))


def taking(flags: tuple[_Decorator[Any], ...]) -> _Decorator[Any]:
    """Give a command all of these options, in this order."""

    def decorate(command: Any) -> Any:  # noqa: ANN401 — click's decorators are untyped
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


def line_settings(
    lines: tuple[str, ...], values: dict[str, Any], *, most_rounds: int | None = None
) -> Settings:
    """Return the settings that compare command lines, run in the current folder.

    A line may begin with its name, as in `fast=python train.py`. Raises ConfigError for a repeated
    name, and for another number of lines than 2 to 26.
    """
    from envcompare.environments.line import engine_call, name_of  # --help does without engines
    from envcompare.run_folder.captures import read_capture

    if not 2 <= len(lines) <= len(string.ascii_lowercase):
        raise ConfigError(
            f"why compares 2 to {len(string.ascii_lowercase)} command lines, not {len(lines)}",
            hint="quote each of them: envcompare why 'python train.py' 'docker run …'",
        )
    step = values.get("step")
    if step and not _STEP.fullmatch(step):
        raise ConfigError(
            f"--step {step} is not understood",
            hint="the form is MODULE:FUNCTION, as in __main__:predict or model:Net.forward",
        )
    lockstep = bool(values.get("lockstep") or step)
    arms: dict[str, str] = {}
    rounds: list[int] = []
    for letter, text in zip(string.ascii_lowercase, lines, strict=False):
        named = _NAMED_LINE.fullmatch(text)
        name, line = (named[1], named[2]) if named else (letter, text)
        if any("\ud800" <= character <= "\udfff" or character == "\0" for character in line):
            raise ConfigError(
                f"the line {text!a} is not valid UTF-8", hint="write it into a script"
            )
        if name in arms or not line.strip():
            raise ConfigError(
                f"the line {text!r} is empty" if not line.strip() else f"two lines are {name!r}",
                hint="give each line its own name, as in 'fast=python train.py'",
            )
        if _NAMES_CAPTURE.fullmatch(line) and not engine_call(line):
            path = Path(line).absolute()
            captured = read_capture(path)
            rounds.append(min(len(captured.processes), len(captured.control)))
            arms[name] = f"{name}={CAPTURED_LINE}:{path}"
            continue
        call = engine_call(line)
        if lockstep and call is None and CONTAINERS.search(line):
            raise ConfigError(
                f"the steps of a script in the container of {text!r} cannot be seen",
                hint="write the line as one `docker run` or `podman run`, or leave --lockstep and "
                "--step out",
            )
        arms[name] = f"{name}={name_of(call.client) if call else 'line'}:{line}"
    given = {name: value for name, value in values.items() if value not in (None, ())}
    usual: dict[str, Any] = {} if "preset" in given else {"margin": _LINE_MARGIN}
    own = {name: given.pop(name, None) for name in ("prepare", "conclude", "step")}
    given.pop("lockstep", None)
    measures = _patterns(given.pop("measures", ()))
    if rounds:
        _require_runs(given, measures=measures, lockstep=lockstep)
    given.pop("prove", None)
    if lockstep:
        usual |= {"same_cpu": False, "marks": False, "startup": False}
        if own["prepare"] or own["conclude"] or measures:
            raise ConfigError(
                "steps cannot be combined with --prepare, --conclude or --measure",
                hint="leave --lockstep and --step out to time whole processes",
            )
    most = min(rounds, default=most_rounds)
    table = WorkloadTable(
        command=SHELL, lockstep=lockstep, most_rounds=most, measures=measures, **own
    )
    return Settings(
        **{**usual, **given},
        envs=tuple(arms.values()),
        workloads={_script(lines): table},
        profile="none",
        threads="as-run",
        stabilise=False,
    )


def _require_runs(given: dict[str, Any], *, measures: dict[str, str], lockstep: bool) -> None:
    """Raise ConfigError for what a capture does not hold."""
    if given.get("prove"):
        raise ConfigError(
            "--prove changes lines and runs them again, which a capture does not allow",
            hint="leave --prove out",
        )
    if measures:
        raise ConfigError(
            "a capture holds no output, which --measure would search",
            hint="leave --measure out",
        )
    if lockstep:
        raise ConfigError(
            "a capture holds whole processes, no steps",
            hint="leave --lockstep and --step out",
        )


def twice(text: str) -> tuple[str, str]:
    """Return a line, without its name, as two lines to compare."""
    named = _NAMED_LINE.fullmatch(text)
    line = named[2] if named else text
    if _NAMES_CAPTURE.fullmatch(line):
        raise ConfigError(f"{line} is a capture already", hint="give the line itself")
    return f"a={line}", f"b={line}"


def _script(lines: Iterable[str]) -> str:
    """Return the name of the first script in the lines, else `line`."""
    scripts = (word for line in lines for word in _SCRIPT.findall(line[:_SEARCHED]))
    return _name((next(scripts, "line"),))


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
    others = {name: WorkloadTable() for name in listed(given.get("workloads"))}
    return {**given, "workloads": {**others, **tables}}


def tables_of(
    commands: tuple[str, ...], *, measures: tuple[str, ...], cwd: str | None, timeout: float | None
) -> dict[str, WorkloadTable]:
    """Return the tables of `--command` and its companion flags.

    Raises ConfigError for a command that is empty or cannot be split, and for a measure without a
    name or with a duplicate name.
    """
    patterns = _patterns(measures)
    tables: dict[str, WorkloadTable] = {}
    for text in commands:
        argv = command_words(text)
        if not argv or not argv[0]:
            raise ConfigError(
                f"--command {text!r} is empty",
                hint="give a program and its arguments, as in --command 'python train.py'",
            )
        name = base = _name(argv)
        for number in range(2, len(commands) + 2):
            if name not in tables:
                break
            name = f"{base}-{number}"
        tables[name] = WorkloadTable(command=argv, measures=patterns, cwd=cwd, timeout=timeout)
    return tables


def _name(argv: tuple[str, ...]) -> str:
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
    is_bundled = (bundled.workloads() / f"{name}.py").is_file()
    return f"{name}-command" if is_bundled else name


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
