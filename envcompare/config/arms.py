"""The arms of an experiment, read from how a user writes them, and which is the reference."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

from envcompare.errors import ConfigError
from envcompare.run_folder.records import Scalar
from envcompare.text import closest, listed

_ARM_ID = re.compile(r"[a-z0-9-]+")
_STACKS = ("image", "host")
LADDER = "ladder"
"""The word of `--envs` for arms of which each adds one thing to the arm below."""

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
"""Who may read a GPU's counters in an environment where the driver restricts them: a login that is
an administrator, root of the host alone, or whoever may use the engine, which grants the right."""
SoftwareKind = Literal["venv", "image", "sif"]
Compression = Literal["zstd", "gzip", "none", "sandbox"]
Variant = Literal["auto", "cpu", "cuda", "cu130", "cu128", "cu126"]
Place = Literal["bind", "image", "overlay", "tmpfs", "sif"]
PLACES: tuple[Place, ...] = get_args(Place)
IN_IMAGE: frozenset[Place] = frozenset({"image", "sif"})
"""Places that are in the image of an arm: all data are at one path there, and can only be read."""


class Placing(NamedTuple):
    """How an environment has data at a place, or why it cannot.

    They lie in `folder` inside, where `{run}` and `{arm}` stand for the names of both; without one
    they stay in the folder of the host. What is not `is_held` by the image is copied by the worker.
    `private` is the folder around it that is made for this login alone, beside those of others.
    """

    folder: str = ""
    is_held: bool = False
    refusal: str = ""
    private: str = ""


class Rung(NamedTuple):
    """The place of an environment on the ladder, from the plain process up, and what it adds."""

    place: int
    adds: str
    arm: str = ""  # the name of its arm; empty where the usual one is as short


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is special to an environment, for those that plan, profile and explain."""

    aliases: tuple[str, ...] = ()  # other names that a user may write
    reference: Literal["none", "image", "file"] = "none"  # what of the user's own it can run
    is_default: bool = False  # compared where --envs is not given
    is_isolated: bool = True  # from the host, by anything at all
    is_daemons: bool = False  # a daemon starts it, not the login: no job of a scheduler holds it
    has_client: bool = False  # of an engine: stdin passes through it, and it stays busy for a while
    software: Literal["image", "venv"] = "image"  # of the stack `image`; a venv is the host's
    has_network: bool = True
    counters: CounterAccess = "login"
    limit_command: str = ""  # whose options limit CPUs and memory, as in `docker run`
    fixed_options: tuple[str, ...] | None = None  # of it, no user's choice; None: none is taken
    short_switches: tuple[str, ...] = ()  # further short options of it that take no value
    programs: tuple[str, ...] = ()  # of which one starts it; empty where that tells nothing
    helpers: tuple[str, ...] = ()  # processes that work for it beside the worker, by /proc/PID/comm
    rung: Rung | None = None  # of the ladder, on the host's own files
    places: Mapping[Place, Placing] = field(default_factory=dict)  # of data, beside `bind`
    temporary: str = ""  # folder of a run (`{run}`) in the login's TMPDIR, where that is seen

    def placing(self, place: Place) -> Placing:
        """Return how data lie at a place; every environment shows a folder of the host."""
        usual = Placing() if place == "bind" else Placing(refusal=f"it has no place `{place}`")
        return self.places.get(place, usual)

    @property
    def made_as(self) -> SoftwareKind:
        """Return as what the software of the stack `image` is made for it."""
        if self.software == "venv":
            return "venv"
        return "sif" if self.reference == "file" else "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One environment × stack, and where values are compared, the one of the parameter.

    `reference` is an image or SIF the user named.
    """

    id: str
    environment: str
    traits: Traits = Traits()
    stack: str = "image"
    reference: str = ""
    options: tuple[str, ...] = ()  # the user's, of the command that starts it
    parameters: tuple[tuple[str, Scalar], ...] = ()  # beside those of the cell
    rung: str = ""  # what it adds as a rung of the ladder; empty where it is none
    within: str = ""  # the arm of `--envs` whose values are compared, where it has several


def expand_stacks(items: tuple[str, ...], stacks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arms with each plain environment in every stack, stack after stack.

    What names its stack or its image itself stays as it is, and stands once.
    """
    plain = tuple(item for item in items if item != LADDER and not set("@:=") & set(item))
    ends = {stack: "" if stack == "image" else f"@{stack}" for stack in stacks}
    first = tuple(f"{item}{ends[stacks[0]]}" if item in plain else item for item in items)
    return (*first, *(f"{item}{ends[stack]}" for stack in stacks[1:] for item in plain))


def chosen_stacks(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the stacks of `--stacks`, each once; raises ConfigError for one that is none."""
    stacks = tuple(dict.fromkeys(listed(given)))
    if not stacks:
        raise ConfigError("--stacks names no stack", hint="for example --stacks image,host")
    for stack in stacks:
        if stack not in _STACKS:
            raise ConfigError(f"unknown stack `{stack}` in --stacks", hint=closest(stack, _STACKS))
    return stacks


def parse_places(text: str | None) -> tuple[Place, ...]:
    """Parse `data=PLACE[,PLACE…]`; empty where nothing was asked for.

    Raises ConfigError for what is no place, or named twice.
    """
    if text is None:
        return ()
    kind, _, named = text.partition("=")
    names = listed(named)
    if kind != "data" or not names:
        raise ConfigError(
            f"--place {text} is not understood",
            details="the form is data=PLACE[,PLACE…]",
            hint="for example --place data=bind,tmpfs",
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
                details="the reference is automatically measured a second time, as the control",
                hint="give each arm its own name, as in old=docker:app:1,new=docker:app:2",
            )
        seen.add(arm.id)
    return arms


def with_options(arms: tuple[Arm, ...], items: tuple[str, ...]) -> tuple[Arm, ...]:
    """Return the arms with the options `[ARM=]--OPTION …` of the command that starts a container.

    Those without the name of an arm are for every arm that takes options. Raises ConfigError for an
    arm that takes none, and for what is no option or not the user's to choose.
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
                f"--docker-options {item}: no arm of this run takes these options",
                details=f"arms that are started by docker run: {able}",
                hint="for example --docker-options 'docker=--cap-add SYS_NICE'",
            )
        words = _option_words(item, text)
        for each in ids:
            _refuse_fixed(item, words, traits[each])
            by_arm[each] = (*by_arm.get(each, ()), *words)
    return tuple(replace(arm, options=by_arm.get(arm.id, ())) for arm in arms)


def on_network(arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
    """Return the arms with the network of the host, where a container has none unless asked for.

    Raises ConfigError for an arm that cannot be given one.
    """
    without = [
        arm.id for arm in arms if not arm.traits.has_network and arm.traits.fixed_options is None
    ]
    if without:
        raise ConfigError(
            f"--rendezvous: {', '.join(without)} cannot reach another host",
            details="its processes are started without a network",
            hint="leave it out of --envs: vm, docker and singularity have one, for example",
        )
    return tuple(
        arm
        if arm.traits.has_network or _NETWORK & {word.partition("=")[0] for word in arm.options}
        else replace(arm, options=(*arm.options, "--network", "host"))
        for arm in arms
    )


def with_values(arms: tuple[Arm, ...], name: str, values: tuple[Scalar, ...]) -> tuple[Arm, ...]:
    """Return each arm once for each value of a parameter, named as in `vm-bf16` or `vm-hidden-64`.

    Raises ConfigError where two of them get the same name.
    """
    made: dict[str, Arm] = {}
    for arm, value in itertools.product(arms, values):
        identity = f"{arm.id}-{_value_word(name, value)}"
        if identity in made:
            raise ConfigError(
                f"two values of {name} would both be called {identity}",
                details="arms are named by lowercase letters, digits and hyphens",
                hint="leave one of them out, or compare them in a run of their own",
            )
        within = arm.id if len(arms) > 1 else ""
        # its values are compared with each other, and no rung with the one below
        made[identity] = replace(
            arm, id=identity, parameters=((name, value),), within=within, rung=""
        )
    return tuple(made.values())


def _value_word(name: str, value: Scalar) -> str:
    """Return a value as a part of an arm's name: numbers behind the parameter, signs as words."""
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
            details="the form is [ARM=]--OPTION [VALUE] …",
            hint="for example --docker-options '--shm-size 1g'",
        )
    return words


def _refuse_fixed(item: str, words: tuple[str, ...], traits: Traits) -> None:
    fixed = traits.fixed_options or ()
    for word in words:
        name = word.partition("=")[0]
        if any(each in fixed for each in _separated(name, traits.short_switches)):
            raise ConfigError(
                f"--docker-options {item}: {name} cannot be chosen",
                details="envcompare sets it to start, reach and remove its workers",
                hint=f"leave {name} out",
            )


def _separated(name: str, switches: tuple[str, ...]) -> Iterator[str]:
    """Yield the options of a word: short ones may stand together, until one takes the rest."""
    if not re.fullmatch(r"-[A-Za-z]+", name):
        yield name
        return
    for letter in name[1:]:
        yield f"-{letter}"
        if f"-{letter}" not in switches:
            return


def check_image(name: str, *, flag: str) -> None:
    """Raise ConfigError for what can be the name or the ID of no image."""
    if not _IMAGE.fullmatch(name):
        raise ConfigError(
            f"{flag}: `{name}` is not a valid image name",
            details="a name has lowercase letters and digits, as in [HOST[:PORT]/]NAME[:TAG]",
            hint="`docker images` lists the available names",
        )


def _ladder(environments: Mapping[str, Traits]) -> tuple[Arm, ...]:
    """Return the rungs from the plain process up, all of them with the host's own files."""
    rungs = sorted((its.rung, name) for name, its in environments.items() if its.rung)
    return tuple(
        replace(_arm(f"{rung.arm and f'{rung.arm}='}{name}@host", environments), rung=rung.adds)
        for rung, name in rungs
    )


def _arm(item: str, environments: Mapping[str, Traits]) -> Arm:
    name, equals, rest = item.partition("=")
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
            f"--envs {item}: an image cannot be named for the stack host",
            details="there a container shows the host's own files",
            hint=f"use {environment}@host, or {name or 'mine'}={environment}:{reference}",
        )
    if colon and not reference:
        raise ConfigError(f"--envs {item} names no image after the colon", hint="docker:app:1")
    if reference:
        _check_reference(item, name, environment, reference, environments)
    identity = name or (f"{environment}-{stack}" if stack == "host" else environment)
    if not _ARM_ID.fullmatch(identity):
        raise ConfigError(
            f"the arm name `{identity}` is not usable",
            details="arm names are used in file names: lowercase letters, digits and hyphens",
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
    """Return the environment of that name or alias; raises ConfigError where there is none."""
    aliases = {alias: known for known, its in environments.items() for alias in its.aliases}
    environment = aliases.get(name, name)
    if environment not in environments:
        raise ConfigError(
            f"unknown environment `{environment}` in --envs {item}",
            hint=closest(environment, (*environments, LADDER)),
        )
    return environment


def _check_reference(
    item: str, name: str, environment: str, reference: str, environments: Mapping[str, Traits]
) -> None:
    """Refuse an image that no arm is named for, or that the environment cannot run."""
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


def chosen_reference(name: str | None, arms: tuple[Arm, ...]) -> str:
    """Return the arm that all are compared with, the first unless named."""
    if name is None:
        return arms[0].id
    ids = tuple(arm.id for arm in arms)
    if name not in ids:
        raise ConfigError(f"--reference {name} is not an arm of this run", hint=closest(name, ids))
    return name
