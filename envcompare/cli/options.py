"""The command-line options that `run`, `plan` and `build` share, and how they become settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from envcompare.config.programs import WorkloadTable, tables_of
from envcompare.config.settings import Settings, listed, parse_set, read_settings
from envcompare.errors import ConfigError

_F = TypeVar("_F", bound=Callable[..., Any])
Decorator = Callable[[_F], _F]
DEFAULT_FILE = Path("envcompare.toml")

_WHAT = (
    click.option(
        "--envs",
        metavar="ARM,…",
        help="Arms to compare: ENV, ENV@STACK or NAME=ENV:REFERENCE; the first is the reference. "
        "[default: vm,docker,singularity]",
    ),
    click.option(
        "--stacks",
        metavar="STACK,…",
        help="image, host, or image,host: every plain ENV of --envs in each. [default: image]",
    ),
    click.option("--reference", metavar="ARM", help="The arm all others are compared with."),
    click.option(
        "--hosts",
        metavar="HOST,…",
        help="user@host[:port], names from ~/.ssh/config, or a file with one host a line. "
        "[default: this machine]",
    ),
    click.option("--workloads", metavar="NAME,…", help="Bundled workloads. [default: cnn,rnn]"),
    click.option(
        "--workload",
        metavar="FILE.py:CLASS",
        multiple=True,
        help="A workload of your own; may be repeated.",
    ),
    click.option(
        "--set",
        "set_",
        metavar="W.NAME=V,…",
        multiple=True,
        help="Set a parameter, as in rnn.hidden=64,128; several values make several cells.",
    ),
    click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="TOML file that holds what the flags hold. [default: envcompare.toml if there]",
    ),
)
_COMMAND = (
    click.option(
        "--command",
        "commands",
        metavar="'PROGRAM ARG …'",
        multiple=True,
        help="Any program of your own, timed as a whole process; may be repeated. It stands in the "
        "report as typed, a secret in it too.",
    ),
    click.option(
        "--measure",
        "measures",
        metavar="NAME=REGEX",
        multiple=True,
        help="Read a number from the command's output: the first group of the last match.",
    ),
    click.option(
        "--command-dir",
        metavar="DIR",
        help="Folder of the host the command runs in. [default: the current folder]",
    ),
    click.option("--command-timeout", type=float, metavar="SECONDS", help="Limit of one process."),
)
_HOW = (
    click.option("--quick", "preset", flag_value="quick", help="Margin 5 %, 90 s a cell."),
    click.option(
        "--strict", "preset", flag_value="strict", help="Margin 1 %, 30 min a cell, 6 restarts."
    ),
    click.option("--budget", type=float, metavar="SECONDS", help="Time a cell may take."),
    click.option("--margin", type=float, metavar="PERCENT", help="Differences below it are equal."),
    click.option(
        "--target", type=float, metavar="PERCENT", help="Half-width to reach. [default: margin/2]"
    ),
    click.option(
        "--screen/--no-screen",
        default=None,
        help="Find what differs among many comparisons: Benjamini-Hochberg at 5 %.",
    ),
    click.option("--seed", type=int, help="Seed of all that is drawn at random."),
    click.option("--threads", type=int, help="Computing threads in every arm. [default: 1]"),
    click.option("--pin", metavar="CPUS", help="CPU set of all arms, as in 0,2-3."),
    click.option(
        "--generation",
        type=click.Choice(["auto", "fork", "rebuild"]),
        help="How a generation starts fresh. [default: auto]",
    ),
    click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="[default: auto]"),
    click.option(
        "--stabilise/--no-stabilise",
        default=None,
        help="Fix the allocator's thresholds and the hash seed in every arm. [default: on]",
    ),
    click.option("--startup/--no-startup", default=None, help="Measure the start-up as well."),
    click.option(
        "--cold-start/--no-cold-start",
        default=None,
        help="Start-up with a cold page cache as well; it empties the host's, as its root.",
    ),
    click.option(
        "--profile",
        type=click.Choice(["auto", "trace", "none"]),
        help="What to profile after the timing, in workers of its own: all that the host allows, "
        "all but hardware counters, or nothing. [default: auto]",
    ),
    click.option(
        "--quiet-gate/--no-quiet-gate",
        default=None,
        help="Wait for a quiet machine, a fifth of the budget at most. [default: wait]",
    ),
    click.option(
        "--quiet-pressure",
        type=float,
        metavar="PERCENT",
        help="CPU pressure above it is busy. [default: 10]",
    ),
    click.option(
        "--quiet-load",
        type=float,
        metavar="N",
        help="As many tasks that want a CPU are busy. [default: CPUs + 1]",
    ),
    click.option("--data", metavar="DIR", help="Folder of real data on the host."),
    click.option("--download/--no-download", default=None, help="Fetch the real data there."),
    click.option("--title", help="Title of the report."),
    click.option("--out", metavar="DIR", help="Where run folders go. [default: results]"),
)
_STACK = (
    click.option("--base-image", metavar="IMAGE", help="Base of the workload image."),
    click.option(
        "--sif-compression",
        type=click.Choice(["zstd", "gzip", "none", "sandbox"]),
        help="It changes import time, so it is recorded. [default: zstd]",
    ),
    click.option(
        "--variant",
        type=click.Choice(["auto", "cpu", "cuda"]),
        help="Build of torch in the wheels; auto is what each host can use. [default: auto]",
    ),
    click.option("--python", metavar="3.X", help="Python of the locked wheels. [default: 3.11]"),
    click.option("--vm-python", metavar="PATH", help="Interpreter of vm, on the host."),
    click.option("--host-python", metavar="PATH", help="Interpreter of the stack `host`."),
    click.option(
        "--allow-mismatch/--refuse-mismatch",
        default=None,
        help="Go on where software that should be the same differs, between environments or since "
        "the run was interrupted, and say so.",
    ),
)
_SSH = (
    click.option("--ssh-config", metavar="FILE", help="[default: ~/.ssh/config]"),
    click.option(
        "--accept-new-host-keys/--check-host-keys",
        "accept_new_host_keys",
        default=None,
        help="Accept the key of a host that is not known yet; a changed key never is.",
    ),
    click.option("--connect-timeout", type=float, metavar="SECONDS", help="[default: 10]"),
)
IMPORT = (
    click.argument("tool", type=click.Choice(["nsys", "ncu", "kineto", "nvprof"])),
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
        help="Steps of the workload that the files cover; needed for figures of a step.",
    ),
    click.option("--workload", metavar="NAME", help="Name of the work, or workload of the run."),
    click.option("--cell", metavar="ID", help="Cell of the run, where it has several."),
    click.option("--reference", metavar="NAME", help="Compare with it. [default: the first]"),
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
        help="Where new run folders go. [default: results]",
    ),
)
EXPERIMENT = (*_WHAT, *_COMMAND, *_HOW, *_STACK, *_SSH)
PLACES = (_WHAT[0], _WHAT[1], _WHAT[3], _WHAT[7], *_STACK, *_SSH)
LOOKING = (*_WHAT, *_STACK, *_SSH)


def taking(options: tuple[Decorator[Any], ...]) -> Decorator[Any]:
    """Give a command all of these options, in this order."""

    def decorate(command: Any) -> Any:  # noqa: ANN401 — click's decorators are untyped
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def settings_of(values: dict[str, Any]) -> tuple[Settings, Settings]:
    """Return the settings of the flags and of the configuration file.

    Raises ConfigError naming what is wrong.
    """
    path = values.pop("config", None)
    given = {name: value for name, value in values.items() if value not in (None, ())}
    if "set_" in given:
        given["set"] = parse_set(given.pop("set_"))
    flags = Settings(**_with_commands(given))
    if path is None and DEFAULT_FILE.is_file():
        path = DEFAULT_FILE
    return flags, read_settings(path) if path is not None else Settings()


def _with_commands(given: dict[str, Any]) -> dict[str, Any]:
    """Turn `--command` and its companions into tables of workloads, as a file holds them."""
    names = {"commands": (), "measures": (), "command_dir": None, "command_timeout": None}
    found = {name: given.pop(name, default) for name, default in names.items()}
    if not found["commands"]:
        if any(found.values()):
            raise ConfigError(
                "--measure, --command-dir and --command-timeout belong to a --command",
                hint="name the program with --command, or write [workloads.NAME] in the file",
            )
        return given
    tables = tables_of(
        found["commands"],
        measures=found["measures"],
        cwd=found["command_dir"],
        timeout=found["command_timeout"],
    )
    bundled = {name: WorkloadTable() for name in listed(given.get("workloads"))}
    return {**given, "workloads": {**bundled, **tables}}
