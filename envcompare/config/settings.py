"""The options of an experiment, each declared once: flag, TOML key, default, range and help."""

from __future__ import annotations

import json
import math
import re
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from envcompare.config import Compression, Variant, known_keys
from envcompare.errors import ConfigError
from envcompare.run_folder.records import ProfileChoice, Scalar
from envcompare.text import closest

# A worker accepts no more threads.
_MAX_THREADS = 4096
# Each host that is measured at once takes a thread and connections.
_MAX_JOBS = 1024
LONGEST_S = 30 * 86_400.0  # the longest time that any option accepts
Preset = Literal["quick", "default", "strict"]
Generation = Literal["auto", "fork", "rebuild"]
Device = Literal["auto", "cpu", "cuda"]
Group = Literal["where", "allocation", "what", "how", "stack", "ssh", "lock"]
"""Environments and hosts; what hosts do together; workloads; measuring; software; connections;
waiting for a host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumberRange:
    """The numbers that an option accepts; `text` describes them in an error."""

    text: str
    above: float = 0
    most: float = math.inf

    def holds(self, number: float) -> bool:
        """Return whether a number is in range; nan and infinity never are."""
        return math.isfinite(number) and self.above < number <= self.most


_SECONDS = _NumberRange(text=f"seconds above 0, {LONGEST_S:.0f} (30 days) at most", most=LONGEST_S)
# A range excludes `above`, and 0 seconds are allowed.
_PATIENCE = _NumberRange(
    text=f"seconds from 0 to {LONGEST_S:.0f} (30 days)", above=math.nextafter(0, -1), most=LONGEST_S
)
_COUNT = _NumberRange(text="a whole number from 1 to 1000", most=1000)
_STEPS = _NumberRange(text="a whole number from 1 to 2000", most=2000)
_PERCENT = _NumberRange(text="a percentage above 0 and below 100", most=math.nextafter(100, 0))


@dataclass(frozen=True, slots=True)
class Option:
    """How an option is given and what it means; flags, defaults and checks derive from it."""

    help: str
    metavar: str | None = None
    _: KW_ONLY
    group: Group = "how"
    default: Any = None
    default_text: str = ""  # if the default is determined later
    off: str = ""  # the flag that turns it off, if not --no-NAME
    is_repeated: bool = False
    bare: float | None = None  # the value of the flag without a number, if that is allowed
    range: _NumberRange | None = None


_of_where = partial(Option, group="where")
_of_allocation = partial(Option, group="allocation")
_of_what = partial(Option, group="what")
_of_stack = partial(Option, group="stack")
_of_ssh = partial(Option, group="ssh")
_of_lock = partial(Option, group="lock")
_Words = str | tuple[str, ...]
ParameterValues = dict[str, dict[str, Scalar | tuple[Scalar, ...]]]


class _Table(
    msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True, omit_defaults=True
):
    """A table of a configuration file; a key is spelled as its flag."""


class WorkloadTable(_Table, frozen=True, kw_only=True):
    """`[workloads.NAME]` of the file; without `command` it is a bundled workload."""

    command: str | tuple[str, ...] | None = None
    measures: dict[str, str] = {}
    cwd: str | None = None
    timeout: float | None = None
    prepare: str | None = None  # shell line before each process, not timed
    conclude: str | None = None  # after each process
    lockstep: bool = False  # a line whose steps are timed, instead of whole processes
    most_rounds: int | None = None  # of processes; a capture holds no more
    step: str | None = None  # MODULE:FUNCTION, each call of which is a step; else optimizers' are


class HostTable(_Table, frozen=True, kw_only=True):
    """`[hosts.NAME]` of the file; without `address` the host is reached by its name."""

    address: str | None = None
    tags: tuple[str, ...] = ()
    group: str = ""  # of hosts that is compared with others


class AllocationTable(_Table, frozen=True, kw_only=True):
    """`[allocation]` of the file: the nodes to request from a scheduler."""

    scheduler: str
    time: str
    nodes: int = 1
    partition: str | None = None
    gres: str | None = None  # of each node
    cpus: int | None = None  # of each node
    mem_gb: int | None = None  # of each node
    exclusive: bool = False
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    script_dir: str | None = None


class Settings(_Table, frozen=True, kw_only=True):
    """Settings of flags and file; None means not given."""

    envs: Annotated[
        _Words | None,
        _of_where(
            "Arms to compare: ENV, ENV@STACK or NAME=ENV:REFERENCE; the first is the reference. "
            "`ladder` means six arms, from a plain process to docker, one change each.",
            "ARM,…",
            default_text="vm,docker,singularity",
        ),
    ] = None
    stacks: Annotated[
        _Words | None,
        _of_where(
            "image, host, or image,host: every plain ENV of --envs runs with each.",
            "STACK,…",
            default=("image",),
        ),
    ] = None
    reference: Annotated[str | None, _of_what("Arm to compare all others with.", "ARM")] = None
    hosts: Annotated[
        _Words | dict[str, HostTable] | None,
        _of_where(
            "user@host[:port], names from ~/.ssh/config, a file with one host per line, or @GROUP "
            "and tag:TAG of the configuration file. NAME=HOST+HOST,NAME=HOST compares groups.",
            "HOST,…",
            default_text="this machine",
        ),
    ] = None
    groups: dict[str, tuple[str, ...]] | None = None  # only in a file
    allocation: Annotated[
        str | AllocationTable | None,
        _of_allocation(
            "Request Slurm nodes, as in slurm:partition=gpu,gres=gpu:a100:1,"
            "time=01:00:00,nodes=2; `inside` uses the nodes of the current job.",
            "slurm:OPTION=VALUE,…",
        ),
    ] = None
    rendezvous: Annotated[
        str | None,
        _of_allocation(
            "Spread the ranks of `ddp` over --hosts; this one has the first, measured rank.",
            "HOST",
        ),
    ] = None
    jobs: Annotated[
        int | None,
        _of_where(
            "Number of hosts to measure on at once.",
            default=32,
            range=_NumberRange(text=f"a whole number from 1 to {_MAX_JOBS}", most=_MAX_JOBS),
        ),
    ] = None
    workloads: Annotated[
        _Words | dict[str, WorkloadTable] | None,
        _of_what("Bundled workloads.", "NAME,…", default=("cnn", "rnn")),
    ] = None
    workload: Annotated[
        _Words | None,
        _of_what(
            "Your own workload; repeatable. Or package.module:CLASS.",
            "FILE.py:CLASS",
            is_repeated=True,
        ),
    ] = None
    set: Annotated[
        ParameterValues | None,
        _of_what(
            "Set a parameter, as in rnn.hidden=64,128; each value makes a cell.",
            "W.NAME=V,…",
            is_repeated=True,
        ),
    ] = None
    compare: Annotated[
        str | None,
        _of_what(
            "Compare the --set values of a parameter, separately in each environment.",
            "parameter=NAME",
        ),
    ] = None
    search: Annotated[
        str | None,
        _of_what(
            "Find the largest batch that fits and the smallest fast one.",
            "batch[=FIRST-LAST][,memory=MIB]",
        ),
    ] = None
    until: Annotated[
        str | None,
        _of_what(
            "After timing, train until a held-out metric reaches a value.",
            "accuracy=VALUE[,epochs=N]",
        ),
    ] = None
    preset: Annotated[Preset | None, Option("", default="default")] = None
    margin: Annotated[
        float | None,
        Option("Smallest difference that matters.", "PERCENT", range=_PERCENT),
    ] = None
    target: Annotated[
        float | None,
        Option(
            "Target half-width of each interval.",
            "PERCENT",
            range=_PERCENT,
            default_text="margin/2",
        ),
    ] = None
    budget: Annotated[float | None, Option("Time limit per cell.", "SECONDS", range=_SECONDS)] = (
        None
    )
    restarts: Annotated[
        int | None,
        Option(
            "Exact number of restarts, within the budget.",
            "N",
            range=_COUNT,
        ),
    ] = None
    rounds: Annotated[int | None, Option("Rounds per restart.", "N", range=_COUNT)] = None
    steps: Annotated[
        int | None,
        Option("Steps per block.", "N", range=_STEPS, default_text="enough to fill 20 ms"),
    ] = None
    sessions: Annotated[
        int | None,
        Option(
            "Sessions; each call of the same command measures the next, with its share of the "
            "budget.",
            "N",
            default=1,
            range=_NumberRange(text="a whole number from 1 to 100", most=100),
        ),
    ] = None
    seed: Annotated[int | None, Option("Seed for every random choice.")] = None
    screen: Annotated[
        bool | None,
        Option("Control the false discovery rate at 5 % (Benjamini-Hochberg).", default=False),
    ] = None
    threads: Annotated[
        int | Literal["as-run"] | None,
        Option(
            "Compute threads in every arm; `as-run` leaves the number to each arm.",
            "N|as-run",
            default=1,
            range=_NumberRange(text=f"a whole number from 1 to {_MAX_THREADS}", most=_MAX_THREADS),
        ),
    ] = None
    pin: Annotated[
        str | tuple[int, ...] | None, Option("CPU set for all arms, as in 0,2-3.", "CPUS")
    ] = None
    generation: Annotated[
        Generation | None, Option("How each restart gets a fresh process.", default="auto")
    ] = None
    device: Annotated[Device | None, Option("Device to compute on.", default="auto")] = None
    startup: Annotated[bool | None, Option("Also measure the start-up.", default=True)] = None
    cold_start: Annotated[
        bool | None,
        Option(
            "Also measure start-up with a cold page cache (needs root).",
            default=False,
        ),
    ] = None
    profile: Annotated[
        ProfileChoice | None,
        Option(
            "What to profile: everything possible, all but hardware counters, or nothing.",
            default="auto",
        ),
    ] = None
    quiet_gate: Annotated[
        bool | None,
        Option("Wait for a quiet machine.", default=True),
    ] = None
    quiet_pressure: Annotated[
        float | None,
        Option(
            "CPU pressure above which the machine counts as busy.",
            "PERCENT",
            default=10.0,
            range=_NumberRange(text="a finite percentage above 0"),
        ),
    ] = None
    quiet_load: Annotated[
        float | None,
        Option(
            "Runnable tasks at which the machine counts as busy.",
            "N",
            default_text="CPUs + 1",
            range=_NumberRange(text="a finite number above 0"),
        ),
    ] = None
    stabilise: Annotated[
        bool | None,
        Option("Fix allocator thresholds and hash seed.", default=True),
    ] = None
    same_cpu: Annotated[
        bool | None,
        Option("Run single-threaded arms of a round on one CPU.", default=True),
    ] = None
    noise_memory: Annotated[
        bool | None,
        Option("Use a host's noise from its earlier A/A controls.", default=True),
    ] = None
    marks: Annotated[
        bool | None,
        Option("Time PyTorch's phases and operators in some rounds.", default=True),
    ] = None
    title: Annotated[str | None, Option("Title of the report.", default="")] = None
    out: Annotated[str | None, Option("Parent of run folders.", "DIR", default="results")] = None
    data: Annotated[str | None, Option("Folder with real data on the host.", "DIR")] = None
    place: Annotated[
        str | None,
        _of_what(
            "Where the data are: bind, image, overlay, tmpfs, sif; each is a cell.",
            "data=PLACE,…",
        ),
    ] = None
    download: Annotated[
        bool | None, Option("Download the real data on the host.", default=False)
    ] = None
    base_image: Annotated[str | None, _of_stack("Base image of the workload image.", "IMAGE")] = (
        None
    )
    variant: Annotated[
        Variant | None,
        _of_stack(
            "Build of torch; auto fits each host's driver and GPU.",
            default="auto",
        ),
    ] = None
    sif_compression: Annotated[
        Compression | None,
        _of_stack("Compression of the SIF; it affects import time.", default="zstd"),
    ] = None
    python: Annotated[
        str | None,
        _of_stack("Python version of the locked wheels.", "3.X", default_text="the host's"),
    ] = None
    vm_python: Annotated[
        str | None, _of_stack("Python interpreter of vm, on the host.", "PATH")
    ] = None
    host_python: Annotated[
        str | None, _of_stack("Python interpreter of the stack `host`.", "PATH")
    ] = None
    docker_options: Annotated[
        _Words | None,
        _of_stack(
            "Options of docker run, for all docker arms or for ARM; repeatable.",
            "[ARM=]'--OPTION …'",
            is_repeated=True,
        ),
    ] = None
    allow_mismatch: Annotated[
        bool | None,
        _of_stack(
            "Continue if software that should be equal differs or changed.",
            default=False,
            off="refuse-mismatch",
        ),
    ] = None
    ssh_config: Annotated[
        str | None, _of_ssh("OpenSSH configuration file.", "FILE", default_text="~/.ssh/config")
    ] = None
    accept_new_host_keys: Annotated[
        bool | None,
        _of_ssh(
            "Accept keys of unknown hosts, but no changed key.",
            default=False,
            off="check-host-keys",
        ),
    ] = None
    host_patience: Annotated[
        float | None,
        _of_ssh(
            "How long to try to reconnect to a lost host.",
            "SECONDS",
            default=300.0,
            range=_PATIENCE,
        ),
    ] = None
    wait: Annotated[
        float | None,
        _of_lock(
            "Wait for busy hosts, at most this long; without a number, forever.",
            "SECONDS",
            default=0.0,
            default_text="not at all",
            bare=LONGEST_S,
            range=_PATIENCE,
        ),
    ] = None
    connect_timeout: Annotated[
        float | None, _of_ssh("Time limit for connecting.", "SECONDS", default=10.0, range=_SECONDS)
    ] = None


@cache
def options() -> dict[str, tuple[Option, tuple[Any, ...]]]:
    """Return each setting's option by name, with the types that its value may have."""
    hints = get_type_hints(Settings, include_extras=True)
    return {
        name: (hint.__metadata__[0], get_args(hint.__origin__)[:-1])
        for name, hint in hints.items()
        if get_origin(hint) is Annotated
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _PresetValues:
    """Margin and target as fractions, budget of a cell in seconds."""

    margin: float
    target: float
    budget_s: float
    min_restarts: int


# The target is half the margin: with a target equal to the margin, two equal environments would end
# as equivalent in only a fifth to a third of the runs.
PRESETS: dict[Preset, _PresetValues] = {
    "quick": _PresetValues(margin=0.05, target=0.025, budget_s=90, min_restarts=2),
    "default": _PresetValues(margin=0.02, target=0.01, budget_s=600, min_restarts=4),
    "strict": _PresetValues(margin=0.01, target=0.005, budget_s=1800, min_restarts=6),
}


DEFAULTS = Settings(**{name: option.default for name, (option, _) in options().items()})


def parse_settings(content: dict[str, object], *, source: str) -> Settings:
    """Check a table of settings; `source` is named in errors."""
    try:
        return msgspec.convert(content, type=Settings)
    except msgspec.ValidationError as error:
        raise _refused(str(error), content, source) from error


_TABLES: dict[str, type[msgspec.Struct]] = {
    "workloads": WorkloadTable,
    "hosts": HostTable,
    "allocation": AllocationTable,
}


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text in quotes",
    "array": "a list",
    "object": "a table",
}
"""Kinds of TOML values, by their names in messages of msgspec."""
_UNITS = {"SECONDS": " of seconds", "PERCENT": " of percent"}


def _refused(message: str, content: dict[str, object], source: str) -> ConfigError:
    # msgspec tells the place only in its message.
    what, _, where = message.partition(" - at `$")
    key = where.rstrip("`").lstrip(".")
    if "unknown field" in what:
        unknown = what.split("`")[1]
        key = f"{key}.{unknown}".lstrip(".")
        known = known_keys(_TABLES.get(re.split(r"[.\[]", key)[0], Settings))
        hint = closest(unknown, known)
        if key in PRESETS:
            hint = f'presets are given as `preset = "{key}"`'
        return ConfigError(f"{source}: unknown key `{key}`", hint=hint)
    value = content.get(re.split(r"[.\[]", key)[0])
    given = f"found {value!r}"
    taken = _taken(what, key)
    return ConfigError(
        f"{source}: `{key}` takes {taken}" if taken else f"{source}: `{key}` cannot be read",
        details=given if taken else f"{what}; {given}",
        hint="`envcompare run --help` shows what each key takes",
    )


def _taken(what: str, key: str) -> str:
    """Return what a key takes, from a message of msgspec; empty if that does not tell."""
    option, types = options().get(key.replace("-", "_"), (Option(""), ()))
    words = [
        json.dumps(word) for kind in types for word in get_args(kind) if get_origin(kind) is Literal
    ]
    if expected := re.match(r"Expected `([^`]*)`", what):
        names = [name for name in expected[1].split(" | ") if not (words and name == "str")]
        words = [_KINDS[name] for name in names if name in _KINDS] + words
    elif "Invalid enum value" in what and int in types:
        words = [_KINDS["int"], *words]
    elif "Invalid enum value" not in what:
        words = []
    if not words:
        return ""
    *most, last = words
    return " or ".join(filter(None, (", ".join(most), last))) + _UNITS.get(option.metavar or "", "")


def settings_toml(settings: Settings) -> str:
    """Return settings as the text of an equivalent configuration file."""
    return tomli_w.dumps(msgspec.to_builtins(settings))


def merge(*layers: Settings) -> Settings:
    """Merge settings, the first layer wins; `set` is merged by workload and parameter."""
    merged: dict[str, Any] = {}
    parameters: ParameterValues = {}
    for layer in reversed(layers):
        given = msgspec.structs.asdict(layer)
        merged |= {name: value for name, value in given.items() if value is not None}
        for workload, values in (layer.set or {}).items():
            parameters[workload] = {**parameters.get(workload, {}), **values}
    return Settings(**{**merged, "set": parameters or None})
