"""Describe a difference: what differs, what it affects, and how to separate its effect."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from envcompare.fingerprint import (
    INSTALLED_PARTS,
    MEANINGS,
    Way,
    classify,
    fact,
)
from envcompare.fingerprint.evidence import (
    FingerprintPair,
    entries,
    entry_name,
    part_file,
    part_name,
)
from envcompare.run_folder.records import ArmRecord, FactDifference, FingerprintValue
from envcompare.text import first_few, visible_line

SEPARATE: Final = "To separate the causes: "  # precedes a remedy in a sentence
_DIGESTS: Final = frozenset(
    {"sha256", "flags", "git", "flags_sha256", "build_sha256", "libpython_sha256"}
)
_SHOWN_OF_DIGEST: Final = 12
_MOST_PARTS: Final = 2
_LONGEST: Final = 60  # of a value in a sentence
_STABILISED: Final = ("env.MALLOC_MMAP_THRESHOLD_", "env.MALLOC_TRIM_THRESHOLD_")
# Options that a remedy gives itself, and those that only doctor has.
_GIVEN: Final = ("--envs", "--stacks", "--reference", "--hosts", "--format")
_BY_HAND: Final[dict[Way, str]] = {
    "gpu": "give every arm the same GPU; `envcompare doctor` names what is missing",
    "code": "set it to the same value in the workload's code",
    "options": "give every arm the same options",
    "start": "start every arm without {}: check the image's `python3`, the engine and the login",
}
_SINGLE: Final = ("variable", "thread variable", "limit", "start", "options", "preload file")
"""How a fact can be made equal without another stack."""


def describe(difference: FactDifference) -> str:
    """Describe the difference in a few words: "cuDNN 9.1 → 9.5", "the build of Python"."""
    name = fact(difference.key).name
    if difference.key.rpartition(".")[2] in _DIGESTS:
        return name
    before, after = difference.reference, difference.value
    if difference.key == "cpu.affinity":
        return f"{name} {_spans(before)} → {_spans(after)}"
    if difference.key == INSTALLED_PARTS:
        return f"{name} ({_parts(entries(before) + entries(after))})"
    if isinstance(before, tuple) or isinstance(after, tuple):
        return f"{name} ({_changes(entries(before), entries(after))})"
    if fact(difference.key).is_whole:
        first, second = ("none" if one is None else str(one) for one in (before, after))
        return f"{name} ({visible_line(first)} → {visible_line(second)})"
    word = _size if difference.key.endswith((".bytes", "_bytes")) else _word
    return f"{name} {word(before)} → {word(after)}"


def value_text(key: str, value: FingerprintValue) -> str:
    """Describe the value of a fact: "0-3", "32768 MiB", "seven, eight and 2 more"."""
    if key == "cpu.affinity":
        return _spans(value)
    if key.rpartition(".")[2] in _DIGESTS:
        return _word(value)[:_SHOWN_OF_DIGEST]
    if isinstance(value, tuple):
        return visible_line(first_few([str(each) for each in value], most=3)) or "nothing more"
    return _size(value) if key.endswith((".bytes", "_bytes")) else _word(value)


def _parts(differing: tuple[str, ...]) -> str:
    """Name the first packages with their first file: "torch 2.13.0: torch/__init__.py"."""
    files: dict[str, dict[str, None]] = {}
    for entry in differing:
        file = part_file(entry)
        files.setdefault(part_name(entry), {}).update({file: None} if file else {})
    words = []
    for part, names in files.items():
        package = part.replace("==", " ")
        more = f" and {len(names) - 1} more files" if len(names) > 1 else ""
        words.append(f"{package}: {next(iter(names))}{more}" if names else package)
    return visible_line(first_few(words, most=_MOST_PARTS, between="; "))


def _changes(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    """Name the first three entries, with both versions if known."""
    versions = [dict(one.partition("==")[::2] for one in side) for side in (before, after)]
    names = list(dict.fromkeys(entry_name(one) for one in before + after))
    both = {name: (versions[0].get(name), versions[1].get(name)) for name in names}
    # The name is enough for what only one side has.
    words = [f"{name} {old} → {new}" if old and new else name for name, (old, new) in both.items()]
    return visible_line(first_few(words, most=3))


def _spans(value: FingerprintValue) -> str:
    if not isinstance(value, tuple):
        return _word(value)
    spans: list[list[str]] = []
    for before, cpu in zip((None, *value), value, strict=False):
        if isinstance(cpu, int) and before == cpu - 1 and spans:
            spans[-1] = [spans[-1][0], str(cpu)]
        else:
            spans.append([str(cpu)])
    return _word(",".join("-".join(span) for span in spans))


def _size(value: FingerprintValue) -> str:
    return f"{value / 2**20:.0f} MiB" if isinstance(value, int) else _word(value)


def _word(value: FingerprintValue) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    text = visible_line(str(value)) or "empty"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def worded_difference(pair: FingerprintPair, difference: FactDifference) -> FactDifference:
    """Return a difference with its sentence and remedy."""
    key, fact_class = difference.key, difference.fact_class
    purpose = fact(key).purpose
    remedy, sentence = "", MEANINGS[fact_class]
    if fact_class == "confounder":
        verb = "differ" if fact(key).is_plural else "differs"
        what = f"Besides the environment, {describe(difference)} {verb}."
        remedy = _remedy(pair, key)
        sentence = " ".join(filter(None, (what, difference.evidence, sentence)))
    elif fact_class == "varied" and purpose is not None:
        remedy = _given_remedy(pair, difference)
        sentence = f"{purpose.what}; {purpose.felt_by}."
    elif fact_class == "possible-influence":
        sentence = _possible(pair, difference)
        # No remedy makes a fact of another machine equal.
        if classify(key) != "host":
            is_single = fact(key).way in _SINGLE and difference.is_felt is not False
            remedy = _remedy(pair, key) if is_single else _given_remedy(pair, difference)
    return replace(difference, remedy=remedy, sentence=sentence)


def _given_remedy(pair: FingerprintPair, difference: FactDifference) -> str:
    """Return how to make equal what an environment or a line sets; empty if unknown."""
    purpose = fact(difference.key).purpose
    if purpose is None or difference.is_felt is False:
        return ""
    if pair.are_lines:
        commands = dict.fromkeys(arm.limit_command for arm in pair.context.arms or ())
        command = next(filter(None, commands), "")
        return f"`{command} {purpose.option}`" if command and purpose.option else ""
    return purpose.remedy


def _possible(pair: FingerprintPair, difference: FactDifference) -> str:
    """Return why a difference is only a possible influence, and what is known about it."""
    missing = pair.arms_with((difference.reference is None, difference.value is None))
    if missing and not fact(difference.key).is_absent:
        verb, they = ("were", "they") if fact(difference.key).is_plural else ("was", "it")
        name = fact(difference.key).name
        return f"{name} {verb} not measured in {missing[0]}, so {they} may differ."
    if difference.evidence:
        return f"{difference.evidence} This is only a possible influence."
    return MEANINGS["possible-influence"]


def other_options(command_line: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options of a run or doctor, except those that a remedy gives itself."""
    start = next((n for n, word in enumerate(command_line) if word in {"run", "doctor"}), None)
    return without_option(() if start is None else command_line[start + 1 :], *_GIVEN)


def without_option(words: tuple[str, ...], *names: str) -> tuple[str, ...]:
    """Return a command line without the named options, which take values, and those values."""
    left = iter(words)
    kept = []
    for word in left:
        name, equals, _ = word.partition("=")
        if name not in names:
            kept.append(word)
        elif not equals:
            next(left, None)
    return tuple(kept)


def _remedy(pair: FingerprintPair, key: str) -> str:
    match fact(key).way:
        case "threads" | "thread variable" if pair.are_lines:
            return _same_variable(pair, key)
        case "threads" | "thread variable" if pair.context.is_program:
            return "set the threads in the command, as in `--command 'env OMP_NUM_THREADS=1 …'`"
        case "threads" | "thread variable":
            return f"`{_command(pair, '--threads N')}` sets it in every arm"
        case "variable" | "limit" | "preload file" | None as way:
            return _REMEDIES[way](pair, key)
        case way:
            return _BY_HAND[way].format(fact(key).with_what)


def _same_variable(pair: FingerprintPair, key: str) -> str:
    name = fact(key).with_what
    if pair.are_lines:
        return f"set {name} to the same value in both lines: `{name}=VALUE`, or `-e {name}=VALUE`"
    if key in _STABILISED:
        return f"`{_command(pair, '--stabilise')}` sets {name} in every arm"
    same = f"set {name} to the same value in every arm"
    arms = pair.context.arms or ()
    if any(arm.reference for arm in arms) and (text := _against_usual_software(pair)):
        return f"{same}; {text}"
    if arms and all(arm.stack == "image" for arm in arms):
        return f"{same}: `ENV {name}=VALUE` in the images"
    return f"{same}: `export {name}=VALUE` in the login of vm, `ENV {name}=VALUE` in the image"


def _same_preload(pair: FingerprintPair, key: str) -> str:
    name, (before, after) = fact(key).name, pair.values(key)
    arms = pair.arms_with((before is not None, after is not None))
    lines = f"the lines that {arms[0]} has" if len(arms) == 1 else "the same lines"
    return f"write {lines} to {name} in every arm, or leave it empty in every arm"


def _same_limit(pair: FingerprintPair, key: str) -> str:
    what = fact(key).with_what
    flag = {"quota": "--cpus", "memory limit": "--memory"}.get(what, "--cpuset-cpus")
    commands = dict.fromkeys(arm.limit_command for arm in pair.context.arms or ())
    how = "".join(f"`{command} {flag}`, or " for command in commands if command)
    return (
        f"give every arm the same {what}: it comes from {how}the control group of the engine or "
        "the login"
        + ", or from `taskset` around its Python" * (key == "cpu.affinity")
        + (
            "; or run no more threads than CPUs: `OPENBLAS_NUM_THREADS=1` or `OMP_NUM_THREADS=1`, "
            "or `--cpuset-cpus`"
        )
        * (what == "quota")
    )


def _software(pair: FingerprintPair, key: str) -> str:
    """Return the command that separates software from environment, and how to make both equal."""
    if key == "packages.outside":
        return "install them in every arm, or unset their PYTHONPATH"
    arms = pair.context.arms
    if pair.are_lines:
        return ""
    if arms and arms[0].environment == arms[1].environment and arms[0].stack == arms[1].stack:
        return "compare images that differ only in this"
    if arms and (text := _against_usual_software(pair)):
        return text
    if key.startswith("site_packages."):
        return "remove the changed venv, image or SIF; `envcompare build` builds it again"
    split = f"`{_command(pair, '--stacks image,host')}`"
    return f"{split} measures how much is the software{_made_same(pair, key)}"


_REMEDIES: Final[dict[Way | None, Callable[[FingerprintPair, str], str]]] = {
    "variable": _same_variable,
    "limit": _same_limit,
    "preload file": _same_preload,
    None: _software,
}


def _against_usual_software(pair: FingerprintPair) -> str:
    """Return how to measure the user's image against the usual software; empty if it is."""
    arms = pair.context.arms or ()
    references = [arm for arm in arms if arm.reference]
    if not references or len({arm.environment for arm in arms}) == 1:
        return ""
    named = references[-1]
    rest = tuple(_arm_text(arm) for arm in arms if arm is not named)
    envs = dict.fromkeys((*rest, named.environment, _arm_text(named)))
    command = _envcompare(pair, ",".join(envs))
    return f"`{command}` measures {named.environment} with envcompare's own software as well"


def _made_same(pair: FingerprintPair, key: str) -> str:
    arms = pair.context.arms
    may_be_plain = not arms or any(arm.is_plain is not False for arm in arms)
    if key.startswith("python.") and may_be_plain:
        return "; `--vm-python PATH` gives vm the interpreter of the image, if the host has it"
    if key.startswith("libc.") or key == "loaded_libraries":
        return "; `--base-image IMAGE` builds the image on the host's own distribution"
    if key.startswith("python."):
        return "; `--base-image IMAGE` builds the image on another interpreter"
    return "; `envcompare build` makes every arm from the same wheels"


def _command(pair: FingerprintPair, flags: str) -> str:
    arms = pair.context.arms
    if arms is None:
        return f"envcompare run {flags}"
    is_split = "--stacks" in flags
    envs = dict.fromkeys(arm.environment if is_split else _arm_text(arm) for arm in arms)
    return f"{_envcompare(pair, ','.join(envs), replaced=flags.split(maxsplit=1)[0])} {flags}"


def _envcompare(pair: FingerprintPair, envs: str, *, replaced: str = "") -> str:
    """Return the command of the run with these arms, without the option `replaced`."""
    label = pair.other.host
    host = dict(pair.context.hosts).get(label, label)
    where = f" --hosts {shlex.quote(host)}" if host not in {"", "local"} else ""
    words = pair.context.options
    if replaced == "--threads":
        words = without_option(words, replaced)
    rest = "".join(f" {shlex.quote(word)}" for word in words)
    return f"envcompare run{where} --envs {shlex.quote(envs)}{rest}"


def _arm_text(arm: ArmRecord) -> str:
    if arm.reference:
        return f"{arm.id}={arm.environment}:{arm.reference}"
    return arm.environment if arm.stack != "host" else f"{arm.environment}@{arm.stack}"
