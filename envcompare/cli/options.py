"""The command line's flags, made of the options that settings declare."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from envcompare.config.settings import (
    PRESETS,
    Group,
    Option,
    options,
)
from envcompare.masking import masked_words
from envcompare.run_folder.profiles import GPU_TOOLS

_F = TypeVar("_F", bound=Callable[..., Any])
_Decorator = Callable[[_F], _F]


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
_COMMAND = (
    click.option(
        "--command",
        "commands",
        metavar="'PROGRAM ARG …'",
        multiple=True,
        help="Any program, timed as a whole process; repeatable.",
    ),
    click.option(
        "--measure",
        "measures",
        metavar="NAME=REGEX",
        multiple=True,
        help="Read a number from the output: first group of the last match.",
    ),
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
_REACHING = (_CONFIG, *_flags("stack", "ssh"))
EXPERIMENT = (
    *_flags("where", "allocation", "what"),
    _CONFIG,
    _STUDY,
    *_COMMAND,
    *_presets(),
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

    def decorate(command: Any) -> Any:  # noqa: ANN401 — click's decorators are untyped
        for flag in reversed(flags):
            command = flag(command)
        return command

    return decorate
