"""`init` and `--install-completion`: what a user sets up once."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from envcompare.cli.options import UserPath, command_name
from envcompare.config.scheduling import SLURM, parse_allocation
from envcompare.config.settings import Settings, WorkloadTable, settings_toml
from envcompare.console import Display, print_lines
from envcompare.environments.registry import all_traits
from envcompare.errors import CommandTimeoutError, ConfigError, RunFolderError, plain
from envcompare.text import Command, first_few, spoken
from envcompare.transport import LOCAL, run

FILE: Final = Path("envcompare.toml")
_PROGRAMS: Final = ("train.py", "main.py", "run.py", "bench.py", "benchmark.py", "app.py")
_MAIN: Final = re.compile(r"^if __name__ == ['\"]__main__['\"]:", re.MULTILINE)
_SBATCH: Final = re.compile(
    r"^#SBATCH[ \t]+(?:--(?P<name>[\w-]+)[= \t]|-(?P<letter>\w)=?)[ \t]*"
    r"(?P<value>\"[^\"\n]*\"|'[^'\n]*'|\S+)",
    re.MULTILINE,
)
# --mem of sbatch(1) is in MB, unless it ends with a unit.
_MEMORY: Final = re.compile(r"([0-9]{1,12})([KMGT]?)")
_GB: Final = {"K": 2.0**-20, "": 2.0**-10, "M": 2.0**-10, "G": 1.0, "T": 1024.0}
_LETTERS: Final = {
    "p": "partition",
    "A": "account",
    "t": "time",
    "N": "nodes",
    "q": "qos",
    "C": "constraint",
    "c": "cpus-per-task",
}
_NAMES: Final = {"cpus-per-task": "cpus", "mem": "mem-gb", "gpus": "gres", "gpus-per-node": "gres"}
_SHOWN_FILES: Final = 8
_USUAL_IMAGE: Final = "python:3-slim"
_USUAL_TIME: Final = "01:00:00"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suggestion:
    """A way to run the program: its line, its arm for `run`, and what must be done before."""

    name: str
    line: str
    arm: str
    before: str = ""  # a command that makes the image
    needs_daemon: bool = False  # which a scheduler's job cannot hold


@click.command()
@click.argument(
    "program", type=UserPath(path_type=Path), metavar="[PROGRAM]", required=False, default=None
)
@click.option(
    "--try-s",
    default=20.0,
    show_default=True,
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Run each line once for at most so long; 0 runs none.",
)
@click.pass_obj
def init(display: Display, /, *, program: Path | None, try_s: float) -> None:
    """Write envcompare.toml for the program in this folder, and print lines for `why`.

    It also runs each line once, for 20 s at most; --try-s 0 runs none.

    PROGRAM is a Python file of the folder; without it, train.py, main.py or the only program. A
    Dockerfile, a SIF, a definition file and a Slurm script are found. An existing envcompare.toml
    is never overwritten.
    """
    folder = Path.cwd()
    if FILE.exists():
        raise ConfigError(
            f"{FILE} exists already",
            hint=f"rename it, or see what it means: envcompare plan --config {FILE}",
        )
    script = program or _program_in(folder)
    place = (folder / script).parent.resolve() / script.name
    is_inside = place.is_relative_to(folder) and place.resolve().is_relative_to(folder)
    if not (is_inside and place.is_file()):
        raise ConfigError(f"there is no file {script} in {folder}", hint=_choices(folder))
    script = place.relative_to(folder)
    ways = _suggestions(folder, script)
    try:
        FILE.write_text(_file_text(ways, script, folder), encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{FILE} cannot be written", details=plain(error)) from error
    builds = [f"  {way.before}" for way in ways if way.before]
    print_lines(
        [
            f"wrote {FILE}; see it with `envcompare plan`, measure with `envcompare run`",
            *(["first:", *builds] if builds else []),
            "to compare your own lines, with the reason for a difference:",
            f"  envcompare why {' '.join(shlex.quote(way.line) for way in ways)}",
        ]
    )
    if try_s:
        for way in ways:
            display.say(f"running {way.name}")
            print_lines([f"{way.name}: {_try_line(way, limit_s=try_s)}"])


def _program_in(folder: Path) -> Path:
    for name in _PROGRAMS:
        if (folder / name).is_file():
            return Path(name)
    others = [path.name for path in sorted(folder.glob("*.py")) if _MAIN.search(_text(path))]
    if len(others) == 1:
        return Path(others[0])
    raise ConfigError(
        f"several programs are in {folder}: {', '.join(others)}"
        if others
        else f"no program is in {folder}",
        details=f"looked for {', '.join(_PROGRAMS)}, and files that run as a program",
        hint=_choices(folder),
    )


def _choices(folder: Path) -> str:
    """Return a hint with the Python files of a folder, first those that run as a program."""
    paths = [path for path in sorted(folder.glob("*.py")) if path.is_file()]
    paths.sort(key=lambda path: _MAIN.search(_text(path)) is None)
    names = tuple(path.name for path in paths)
    if not names:
        return "go to the folder of a Python program, as in `cd project && envcompare init`"
    files = first_few(names, most=_SHOWN_FILES)
    return f"name a file of this folder, as in `envcompare init {shlex.quote(names[0])}`: {files}"


def _suggestions(folder: Path, program: Path) -> list[_Suggestion]:
    """Return the ways to run a program that the folder and this machine show, plain first."""
    words = shlex.quote(str(program))
    venvs = (name for name in (".venv", "venv", "env") if (folder / name / "bin/python").exists())
    venv = next(venvs, "")
    python = f"{venv}/bin/python" if venv else "python3"
    ways = [_Suggestion(name="plain", line=f"{python} {words}", arm="plain=vm")]
    has_gpu = shutil.which("nvidia-smi") is not None
    inside = f'{"--gpus all " * has_gpu}-v "$PWD":/w -w /w {{}} python3 {words}'
    engine, client = _image_engine()
    dockerfile = next(
        (name for name in ("Dockerfile", "Containerfile") if (folder / name).is_file()), ""
    )
    packed = list(_sif_suggestions(folder, "--nv " * has_gpu, words))
    if dockerfile or not packed:
        image, before = _USUAL_IMAGE, f"{client} pull {_USUAL_IMAGE}"
        if dockerfile:
            name = re.sub(r"[^a-z0-9._-]+", "-", folder.name.lower()).strip("-._") or "app"
            image = f"{name}:test"
            before = f"{client} build --tag {image} --file {dockerfile} ."
        ways.append(
            _Suggestion(
                name="image",
                line=f"{client} run --rm {inside.format(image)}",
                arm=f"image={engine}:{image}",
                before=before,
                needs_daemon=all_traits()[engine].is_daemons,
            )
        )
    return [*ways, *packed]


def _sif_suggestions(folder: Path, given: str, words: str) -> Iterator[_Suggestion]:
    sifs, definitions = (sorted(folder.glob(pattern)) for pattern in ("*.sif", "*.def"))
    if not (sifs or definitions):
        return
    name = sifs[0].name if sifs else definitions[0].with_suffix(".sif").name
    engine, traits = next(item for item in all_traits().items() if item[1].reference == "file")
    program = next(filter(shutil.which, traits.programs), traits.programs[0])
    made = "" if sifs else f"{program} build {shlex.join((name, definitions[0].name))}"
    yield _Suggestion(
        name="sif",
        line=f"{program} exec {given}{shlex.quote(name)} python3 {words}",
        arm=f"sif={engine}:{name}",
        before=made,
    )


def _image_engine() -> tuple[str, str]:
    """Return the first environment that runs images and whose program is here, and the program."""
    programs = [
        (name, traits.limit_command.split()[0])
        for name, traits in all_traits().items()
        if traits.reference == "image" and traits.limit_command
    ]
    return next((item for item in programs if shutil.which(item[1])), programs[0])


def _file_text(ways: list[_Suggestion], program: Path, folder: Path) -> str:
    table = WorkloadTable(command=("python3", str(program)))
    settings = Settings(
        envs=tuple(way.arm for way in ways),
        budget=300.0,
        margin=5.0,
        threads="as-run",
        workloads={command_name((str(program),)): table},
    )
    builds = [f"#   {way.before}" for way in ways if way.before]
    venv, is_venv, _ = ways[0].line.partition("/bin/python ")
    comments = [
        "# Made by `envcompare init`; see `envcompare run --help` for every setting.",
        "# `envcompare plan` shows what it means, `envcompare run` measures.",
        "# The first arm is the reference. Whole processes are timed: keep the work short,",
        "# such as one epoch. A difference below `margin` percent counts as equal.",
        *(["# Make these first:", *builds] if builds else []),
        # a line has `python3`, which is that of PATH
        *([f"# First activate the environment: . {venv}/bin/activate"] if is_venv else []),
        *_allocation(folder, [way.arm for way in ways if not way.needs_daemon]),
        "",
    ]
    return "\n".join(comments) + settings_toml(settings)


def _allocation(folder: Path, arms: list[str]) -> list[str]:
    """Return how to measure on a node, if the folder has a Slurm script.

    `arms` are those that need no daemon.
    """
    if len(arms) == 1:
        return []
    for path in sorted(folder.iterdir()):
        given = _asked(_text(path)) if path.suffix in {".sh", ".sbatch", ".slurm"} else {}
        if given:
            asked = ",".join(f"{key}={value}" for key, value in given.items())
            words = ("--envs", ",".join(arms), "--allocation", f"slurm:{asked}")
            command = f"#   envcompare run {shlex.join(words)}"
            return [f"# On a node, as {path.name} asks:", command]
    return []


def _asked(script: str) -> dict[str, str]:
    """Return what a Slurm script asks for, as keys of --allocation; empty for another script.

    A value that --allocation refuses is left out.
    """
    given: dict[str, str] = {}
    for line in _SBATCH.finditer(script):
        option = line["name"] or _LETTERS.get(line["letter"], "")
        name, value = _NAMES.get(option, option), line["value"].strip("'\"")
        if option == "mem" and (memory := _MEMORY.fullmatch(value.upper())):
            value = str(math.ceil(int(memory[1]) * _GB[memory[2]]))
        elif option == "gres":
            # --allocation takes one resource
            value = next((each for each in value.split(",") if each.startswith("gpu")), value)
        elif option.startswith("gpus"):
            value = f"gpu:{value}"
        asked = {"time": _USUAL_TIME, name: value}
        with suppress(ConfigError):
            text = ",".join(f"{key}={value}" for key, value in asked.items())
            parse_allocation(f"{SLURM}:{text}", {}, now_s=0)
            given[name] = value
    return given | {"time": given.get("time", _USUAL_TIME)} if given else {}


def _try_line(way: _Suggestion, *, limit_s: float) -> str:
    if way.before:
        return f"not tried: first {way.before}"
    began_s = time.monotonic()
    try:
        done = run(LOCAL, Command(argv=("sh", "-c", way.line)), timeout_s=limit_s)
    except CommandTimeoutError:
        return f"runs for more than {limit_s:g} s: shorten the work, or add --lockstep to `why`"
    if not done.succeeded:
        return f"failed with exit code {done.exit_code}: {spoken(done.tail(1)) or 'no output'}"
    return f"ran in {time.monotonic() - began_s:.1f} s"


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(1 << 20).decode(errors="replace")
    except OSError:
        return ""


def install_completion(context: click.Context, option: click.Parameter, shell: str | None) -> None:
    """Write the completions of a shell where it looks for them, and exit."""
    del option
    if shell is None or context.resilient_parsing:
        return
    kind = get_completion_class(shell)
    assert kind is not None  # as click offers only those that it has
    name = "envcompare"
    source = kind(context.command, {}, name, f"_{name.upper()}_COMPLETE").source()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    places = {
        "bash": f"{data}/bash-completion/completions/{name}",
        "zsh": f"~/.zfunc/_{name}",
        "fish": f"{config}/fish/completions/{name}.fish",
    }
    path = Path(places[shell]).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written", details=plain(error)) from error
    more = "; ~/.zshrc needs `fpath+=~/.zfunc` before `compinit`" if shell == "zsh" else ""
    print_lines([f"{path} is written: open a new shell{more}"])
    context.exit()
