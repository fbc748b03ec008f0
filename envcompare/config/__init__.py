"""Flags and TOML become a frozen experiment, and the experiment a plan; pure.

This file has the arms, read from how a user writes them, and which of them is the reference.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

import msgspec

from envcompare.errors import ConfigError
from envcompare.run_folder.records import Scalar
from envcompare.text import closest, listed

_ARM_ID = re.compile(r"[a-z0-9-]+")
_STACKS = ("image", "host")
LADDER = "ladder"
"""The word of `--envs` for arms that each add one thing to the arm below."""

# The grammar of names, tags and digests of the OCI distribution specification 1.1, "Pulling
# manifests", with host and port before the name as docker pull takes them.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_DOMAIN = r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9-]+(?=:)|\[[0-9A-Fa-f:]+\])"
_IMAGE = re.compile(
    rf"(?:{_DOMAIN}(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"
    r"(?:@[a-z0-9]+(?:[+._-][a-z0-9]+)*:[A-Za-z0-9=_-]+)?"
)
_NETWORK = {"--network", "--net"}

CounterAccess = Literal["login", "root", "granted"]
"""Who may read a GPU's counters in an environment if the driver restricts them: an administrator's
login, only root of the host, or anyone who may use the engine, which grants the right."""
SoftwareKind = Literal["venv", "image", "sif", "files"]
Compression = Literal["zstd", "gzip", "none", "sandbox"]
Variant = Literal["auto", "cpu", "cuda", "cu130", "cu128", "cu126"]
Place = Literal["bind", "image", "overlay", "tmpfs", "sif"]
PLACES: tuple[Place, ...] = get_args(Place)
IN_IMAGE: frozenset[Place] = frozenset({"image", "sif"})
"""Places inside the image of an arm: all data have one path there and are read-only."""


class Placing(NamedTuple):
    """How an environment holds data at a place, or why it cannot.

    Data are in `folder` inside; `{run}` and `{arm}` are their names. Without a folder they
    stay in the folder of the host. The worker copies what the image does not hold (`is_held`).
    `private` is the enclosing folder, which only this login may enter.
    """

    folder: str = ""
    is_held: bool = False
    refusal: str = ""
    private: str = ""


class Rung(NamedTuple):
    """The place of an environment on the ladder, from the plain process up, and what it adds."""

    place: int
    adds: str
    arm: str = ""  # the name of its arm; empty to use the usual one


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is special about an environment, for planning, profiling and explaining."""

    aliases: tuple[str, ...] = ()  # other names that a user may write
    reference: Literal["none", "image", "file", "folder", "line"] = "none"  # what a user may name
    is_default: bool = False  # compared if --envs is not given
    is_isolated: bool = True  # from the host, in any way
    is_daemons: bool = False  # started by a daemon, not the login: no scheduler job holds it
    has_client: bool = False  # of an engine: stdin passes through it, and it stays busy for a while
    software: SoftwareKind = "image"  # what the stack `image` is built as; a venv is the host's
    has_network: bool = True
    counters: CounterAccess = "login"
    limit_command: str = ""  # whose options limit CPUs and memory, as in `docker run`
    fixed_options: tuple[str, ...] | None = None  # not the user's choice; None: takes no options
    short_switches: tuple[str, ...] = ()  # further short options that take no value
    programs: tuple[str, ...] = ()  # any of which starts it; empty if that proves nothing
    helpers: tuple[str, ...] = ()  # processes that serve the worker, by /proc/PID/comm
    rung: Rung | None = None  # of the ladder, on the host's own files
    places: Mapping[Place, Placing] = field(default_factory=dict)  # of data, in addition to `bind`
    temporary: str = ""  # folder of a run (`{run}`) in the login's TMPDIR, if /tmp is the host's

    def placing(self, place: Place) -> Placing:
        """Return how data are held at a place; every environment can bind a folder of the host."""
        usual = Placing() if place == "bind" else Placing(refusal=f"it has no place `{place}`")
        return self.places.get(place, usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One environment × stack, and one value of a compared parameter.

    `reference` is an image or SIF that the user named.
    """

    id: str
    environment: str
    traits: Traits = Traits()
    stack: str = "image"
    reference: str = ""
    options: tuple[str, ...] = ()  # the user's, of the command that starts it
    parameters: tuple[tuple[str, Scalar], ...] = ()  # in addition to those of the cell
    rung: str = ""  # what it adds as a rung of the ladder; empty if it is no rung
    within: str = ""  # the arm of `--envs` whose values are compared, if there are several


def expand_stacks(items: tuple[str, ...], stacks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arms with each plain environment in every stack, stack after stack.

    Items that name a stack or image are kept, once.
    """
    plain = tuple(item for item in items if item != LADDER and not set("@:=") & set(item))
    ends = {stack: "" if stack == "image" else f"@{stack}" for stack in stacks}
    first = tuple(f"{item}{ends[stacks[0]]}" if item in plain else item for item in items)
    return (*first, *(f"{item}{ends[stack]}" for stack in stacks[1:] for item in plain))


def chosen_stacks(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the stacks of `--stacks`, each once; raises ConfigError for an unknown one."""
    stacks = tuple(dict.fromkeys(listed(given)))
    if not stacks:
        raise ConfigError("--stacks names no stack", hint="for example --stacks image,host")
    for stack in stacks:
        if stack not in _STACKS:
            raise ConfigError(f"unknown stack `{stack}` in --stacks", hint=closest(stack, _STACKS))
    return stacks


def parse_places(text: str | None) -> tuple[Place, ...]:
    """Parse `data=PLACE[,PLACE…]`; empty if nothing was given.

    Raises ConfigError for an unknown or repeated place.
    """
    if text is None:
        return ()
    kind, _, named = text.partition("=")
    names = listed(named)
    if kind != "data" or not names:
        raise ConfigError(
            f"--place {text} is not understood",
            hint="the form is data=PLACE[,PLACE…], for example --place data=bind,tmpfs",
        )
    known = {str(place): place for place in PLACES}
    for name in names:
        if name not in known or names.count(name) > 1:
            what = "names a place twice" if name in known else f"names an unknown place `{name}`"
            raise ConfigError(f"--place {text} {what}", hint=closest(name, PLACES))
    return tuple(known[name] for name in names)


def parse_arms(items: tuple[str, ...], environments: Mapping[str, Traits]) -> tuple[Arm, ...]:
    """Parse `ENV`, `ENV@STACK`, `NAME=ENV:REFERENCE` and `ladder`.

    Raises ConfigError naming the item.
    """
    if not items:
        raise ConfigError("no environment is named", hint="for example --envs vm,docker")
    arms = tuple(
        arm
        for item in items
        for arm in (_ladder(environments) if item == LADDER else (_arm(item, environments),))
    )
    seen: set[str] = set()
    for arm in arms:
        if arm.id in seen:
            raise ConfigError(
                f"the arm {arm.id} is named twice",
                details="the reference is already measured a second time, as the control",
                hint="give each arm its own name, as in old=docker:app:1,new=docker:app:2",
            )
        seen.add(arm.id)
    return arms


def with_options(arms: tuple[Arm, ...], items: tuple[str, ...]) -> tuple[Arm, ...]:
    """Return the arms with the options `[ARM=]--OPTION …` of the command that starts a container.

    Options without an arm apply to every arm that takes options. Raises ConfigError for an arm that
    takes none, and for options that are malformed or fixed.
    """
    by_arm: dict[str, tuple[str, ...]] = {}
    traits = {arm.id: arm.traits for arm in arms}
    taking = {id_: each.fixed_options for id_, each in traits.items()}
    for item in items:
        name, _, text = item.partition("=") if not item.startswith("-") else ("", "", item)
        ids = (name,) if name else tuple(id_ for id_, fixed in taking.items() if fixed is not None)
        if not ids or any(taking.get(each) is None for each in ids):
            able = ", ".join(id_ for id_, fixed in taking.items() if fixed is not None) or "none"
            raise ConfigError(
                f"--docker-options {item}: no arm takes these options",
                details=f"arms started by docker run: {able}",
                hint="for example --docker-options 'docker=--cap-add SYS_NICE'",
            )
        words = _option_words(item, text)
        for each in ids:
            _refuse_fixed(item, words, traits[each])
            by_arm[each] = (*by_arm.get(each, ()), *words)
    return tuple(replace(arm, options=by_arm.get(arm.id, ())) for arm in arms)


def on_network(arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
    """Return the arms with the host's network if their containers have none by default.

    Raises ConfigError for an arm that cannot have one.
    """
    without = [
        arm.id for arm in arms if not arm.traits.has_network and arm.traits.fixed_options is None
    ]
    if without:
        raise ConfigError(
            f"--rendezvous: {', '.join(without)} cannot reach another host",
            hint="leave it out; vm, docker and singularity have a network",
        )
    return tuple(
        arm
        if arm.traits.has_network or _NETWORK & {word.partition("=")[0] for word in arm.options}
        else replace(arm, options=(*arm.options, "--network", "host"))
        for arm in arms
    )


def with_values(arms: tuple[Arm, ...], name: str, values: tuple[Scalar, ...]) -> tuple[Arm, ...]:
    """Return each arm once for each value of a parameter, named as in `vm-bf16` or `vm-hidden-64`.

    Raises ConfigError if two get the same name.
    """
    made: dict[str, Arm] = {}
    for arm, value in itertools.product(arms, values):
        identity = f"{arm.id}-{_value_word(name, value)}"
        if identity in made:
            raise ConfigError(
                f"two values of {name} would both be called {identity}",
                hint="leave one of them out",
            )
        within = arm.id if len(arms) > 1 else ""
        # its values are compared with each other; there is no ladder
        made[identity] = replace(
            arm, id=identity, parameters=((name, value),), within=within, rung=""
        )
    return tuple(made.values())


def _value_word(name: str, value: Scalar) -> str:
    """Return a value as part of an arm's name: numbers after the parameter, signs as words."""
    if isinstance(value, str):
        text = value
    else:
        text = f"{name} {value}".replace("-", " minus ").replace("+", " plus ")
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "empty"


def _option_words(item: str, text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(
            f"--docker-options {item} cannot be split into words",
            details=str(error),
            hint="close each quote",
        ) from error
    if not words or not words[0].startswith("-"):
        raise ConfigError(
            f"--docker-options {item} names no option",
            hint="the form is [ARM=]--OPTION [VALUE] …, as in --docker-options '--shm-size 1g'",
        )
    return words


def _refuse_fixed(item: str, words: tuple[str, ...], traits: Traits) -> None:
    fixed = traits.fixed_options or ()
    for word in words:
        name = word.partition("=")[0]
        if any(each in fixed for each in _separated(name, traits.short_switches)):
            raise ConfigError(
                f"--docker-options {item}: {name} cannot be chosen",
                hint=f"leave {name} out",
            )


def _separated(name: str, switches: tuple[str, ...]) -> Iterator[str]:
    """Yield the options of a word: short ones may be combined, until one takes the rest."""
    if not re.fullmatch(r"-[A-Za-z]+", name):
        yield name
        return
    for letter in name[1:]:
        yield f"-{letter}"
        if f"-{letter}" not in switches:
            return


def check_image(name: str, *, flag: str) -> None:
    """Raise ConfigError for an invalid image name or ID."""
    if not _IMAGE.fullmatch(name):
        raise ConfigError(
            f"{flag}: `{name}` is not a valid image name",
            details="the form is [HOST[:PORT]/]NAME[:TAG], in lowercase",
            hint="`docker images` lists the available names",
        )


def _ladder(environments: Mapping[str, Traits]) -> tuple[Arm, ...]:
    """Return the rungs from the plain process up, all with the host's own files."""
    rungs = sorted((its.rung, name) for name, its in environments.items() if its.rung)
    return tuple(
        replace(_arm(f"{rung.arm and f'{rung.arm}='}{name}@host", environments), rung=rung.adds)
        for rung, name in rungs
    )


def _arm(item: str, environments: Mapping[str, Traits]) -> Arm:
    name, equals, rest = item.partition("=")
    # A colon before the equals sign is that of a reference, and the item has no name.
    if not equals or ":" in name:
        name, rest = "", item
    environment, colon, reference = rest.partition(":")
    environment, at, stack = environment.partition("@")
    environment = _known(item, environment, environments)
    traits = environments[environment]
    if at and stack not in _STACKS:
        raise ConfigError(f"unknown stack `{stack}` in --envs {item}", hint=closest(stack, _STACKS))
    if stack == "host" and reference:
        raise ConfigError(
            f"--envs {item}: the stack host takes no image",
            details="it shows the host's own files in the container",
            hint=f"use {environment}@host, or {name or 'mine'}={environment}:{reference}",
        )
    if traits.reference == "line" and not reference:
        raise ConfigError(
            f"--envs {item}: {environment} is how `envcompare why` runs a command line",
            hint="envcompare why 'LINE' 'LINE'",
        )
    if colon and not reference:
        raise ConfigError(f"--envs {item} names no image", hint="docker:app:1")
    if reference:
        _check_reference(item, name, environment, reference, environments)
    identity = name or (f"{environment}-{stack}" if stack == "host" else environment)
    if not _ARM_ID.fullmatch(identity):
        raise ConfigError(
            f"the arm name `{identity}` is not usable",
            details="arm names consist of lowercase letters, digits and hyphens",
            hint="for example new=docker:app:2",
        )
    return Arm(
        id=identity,
        environment=environment,
        traits=traits,
        stack=stack or "image",
        reference=reference,
    )


def _known(item: str, name: str, environments: Mapping[str, Traits]) -> str:
    aliases = {alias: known for known, its in environments.items() for alias in its.aliases}
    environment = aliases.get(name, name)
    named = (known for known, its in environments.items() if its.reference != "line")
    if environment not in environments:
        raise ConfigError(
            f"unknown environment `{environment}` in --envs {item}",
            hint=closest(environment, (*named, LADDER)),
        )
    return environment


def _check_reference(
    item: str, name: str, environment: str, reference: str, environments: Mapping[str, Traits]
) -> None:
    if not name:
        raise ConfigError(
            f"--envs {item} names an image but no arm", hint=f"give it a name: mine={item}"
        )
    kind = environments[environment].reference
    if kind == "none":
        words = {"image": "IMAGE", "file": "FILE.sif"}
        others = [
            f"{other}:{words[traits.reference]}"
            for other, traits in environments.items()
            if traits.is_default and traits.reference in words
        ]
        raise ConfigError(
            f"--envs {item}: {environment} has no image",
            hint=f"use {', or '.join((environment, *others))}",
        )
    if kind == "image":
        check_image(reference, flag=f"--envs {item}")
    if kind == "folder" and not reference.startswith("/"):
        raise ConfigError(
            f"--envs {item}: {reference} is no absolute path",
            details=f"{environment} takes the folder of a Python environment: venv, uv or conda",
            hint=f"{name}={environment}:/opt/env",
        )


def chosen_reference(name: str | None, arms: tuple[Arm, ...]) -> str:
    """Return the arm that all others are compared with, by default the first."""
    if name is None:
        return arms[0].id
    ids = tuple(arm.id for arm in arms)
    if name not in ids:
        raise ConfigError(f"--reference {name} is not an arm of this run", hint=closest(name, ids))
    return name


def known_keys(table: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the keys that a configuration file, or a table in it, may hold, as spelt there."""
    return tuple(field.encode_name for field in msgspec.structs.fields(table))
