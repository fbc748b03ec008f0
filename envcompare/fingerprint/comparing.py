"""Compare fingerprints fact by fact, and the identities of hosts and arms on resumption.

Comparing is pure, since workers collect the facts. Differences with one cause are reported as one:
the first of a group represents the others. Identities are recorded as events before the first
measurement. The first record of each counts; accepted later ones are kept with it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from envcompare.errors import ConfigError
from envcompare.fingerprint import (
    CHANGED_FILES,
    CLASS_ORDER,
    EXPLAINING,
    GIVEN_IMAGE,
    GIVEN_OPTIONS,
    INSTALLED,
    INSTALLED_PARTS,
    INTERPOSED,
    LOADED,
    MODULES,
    OVERWRITTEN,
    OWN_PACKAGES,
    PACKAGE_FOLDERS,
    START_FILES,
    THROTTLED,
    classify,
    fact,
    facts_of_library,
    is_first,
    is_without_effect,
)
from envcompare.fingerprint.evidence import (
    NO_PYTHON,
    ArmsContext,
    Evidence,
    FingerprintPair,
    entries,
    entry_name,
    evidence_of,
    imported,
    interpreters,
    modules_evidence,
    packages_evidence,
    part_name,
    parts_evidence,
    runs_python,
    stem,
)
from envcompare.fingerprint.sentences import worded_difference
from envcompare.run_folder.records import (
    ArmRecord,
    Event,
    FactClass,
    FactDifference,
    Failure,
    FingerprintRecord,
    FingerprintValue,
    IdentityChange,
    Scalar,
)
from envcompare.text import masked

_INSTALLERS: Final = frozenset({"pip", "setuptools", "wheel", "distribute", "uv"})

_Values = tuple[FingerprintValue, FingerprintValue]
_Part = tuple[str, _Values, Evidence]
_Lists = tuple[list[str], list[str]]
_FELT_LIBRARIES: Final = (
    "libc.", "libm.", "ld-linux", "libpython", "libtorch", "libc10", "libgomp", "libiomp", "libomp",
    "libmkl", "libopenblas", "libscipy_openblas", "libblas", "liblapack", "libcu", "libnv",
    "libnccl", "_multiarray_umath", "libjemalloc", "libtcmalloc", "libmimalloc",
)  # fmt: skip
_INSTALLED_FILE: Final = re.compile(r"/(?:site|dist)-packages/(\w+)")
_REPORTED_WITH_OTHERS: Final = frozenset({CHANGED_FILES, PACKAGE_FOLDERS, THROTTLED})
Identity = dict[str, Scalar]
Place = tuple[str, str]
"""A host, and an arm on it; the arm is empty for the host itself."""
BOOT: Final = "boot.id"
"""The one property that may change: a reboot with other software also changes other properties."""
_GO_ON: Final = "start a new run, or continue with --allow-mismatch"


def compare_fingerprints(
    reference: FingerprintRecord, other: FingerprintRecord, context: ArmsContext | None = None
) -> tuple[FactDifference, ...]:
    """Return the facts in which `other` differs from `reference`, confounders first.

    `context` adds evidence and shapes the remedy. Arms that compare values of a parameter, or
    images, stacks or options of one environment, have no confounders: other differences may follow
    from the compared one.
    """
    pair = FingerprintPair(reference=reference, other=other, context=context or ArmsContext())
    keys = sorted(reference.facts.keys() | other.facts.keys())
    parts = (*_given(pair), *(part for key in keys for part in _parts(pair, key)))
    differences = [_difference(pair, part) for part in parts]
    arms = pair.context.arms
    if pair.are_lines or (arms is not None and _compare_something_else(*arms)):
        differences = [
            replace(each, fact_class="possible-influence")
            if each.fact_class == "confounder"
            else each
            for each in differences
        ]
    classes = {each.key: each.fact_class for each in differences}
    worded = [worded_difference(pair, _following(pair, each, classes)) for each in differences]

    def place(each: FactDifference) -> tuple[int, bool, str]:
        return CLASS_ORDER.index(each.fact_class), not is_first(each.key), each.key

    return tuple(sorted(worded, key=place))


def _given(pair: FingerprintPair) -> Iterator[_Part]:
    """Yield what the command line asks for in one of the arms: its options and image."""
    arms = pair.context.arms
    if arms is None:
        return
    options = tuple(masked(shlex.join(arm.options)) or None for arm in arms)
    # a run may compare images of one environment, and the image is part of a line
    is_same = pair.is_one_environment or pair.are_lines
    images = tuple(None if is_same else arm.reference or None for arm in arms)
    for key, (before, after) in ((GIVEN_OPTIONS, options), (GIVEN_IMAGE, images)):
        if before != after:
            yield key, (before, after), Evidence()


def _compare_something_else(first: ArmRecord, second: ArmRecord) -> bool:
    if first.parameters != second.parameters:
        return True
    asked = [(arm.reference, arm.stack, arm.options) for arm in (first, second)]
    return first.environment == second.environment and asked[0] != asked[1]


def is_overwritten(difference: FactDifference) -> bool:
    """Return whether envcompare replaced the differing values by its own in every arm."""
    return difference.key in OVERWRITTEN and difference.is_felt is False


def each_once(by_cell: dict[str, tuple[FactDifference, ...]]) -> tuple[FactDifference, ...]:
    """Return the differences of all cells, each once, with its most serious class."""
    every = [one for found in by_cell.values() for one in found]
    ordered = sorted(every, key=lambda difference: -CLASS_ORDER.index(difference.fact_class))
    strongest = {(one.host, one.arm, one.key): one for one in ordered}
    places = dict.fromkeys((one.host, one.arm, one.key) for one in every)
    return tuple(strongest[place] for place in places)


def changed_software(
    before: FingerprintRecord, after: FingerprintRecord
) -> tuple[FactDifference, ...]:
    """Return the confounders in which an arm no longer matches its earlier fingerprint."""
    differences = compare_fingerprints(before, after)
    software = (
        difference
        for difference in differences
        if difference.fact_class == "confounder" and not difference.part_of
    )
    return tuple(
        difference
        for difference in measured_alike(before, after, software)
        if not _is_chance(difference)
    )


def measured_alike(
    before: FingerprintRecord, after: FingerprintRecord, differences: Iterable[FactDifference]
) -> tuple[FactDifference, ...]:
    """Leave out differences caused by taking one fingerprint before any work, one after steps.

    Lazily loaded files appear only in the fingerprint taken after steps.
    """
    if before.taken == after.taken:
        return tuple(differences)
    return tuple(
        difference
        for difference in differences
        if difference.key not in LOADED and None not in (difference.reference, difference.value)
    )


def _is_chance(difference: FactDifference) -> bool:
    """Return whether a list differs only in what was loaded when it was inspected."""
    before, after = (
        set(map(stem, entries(side))) for side in (difference.reference, difference.value)
    )
    return difference.key in LOADED and not before & after


def _parts(pair: FingerprintPair, key: str) -> Iterator[_Part]:
    """Yield how a fact differs: nothing, the fact, or the parts of a list of software."""
    before, after = pair.values(key)
    if before == after or key in _REPORTED_WITH_OTHERS:
        return
    # Either nothing is replaced, or the arm could not look.
    if key == INTERPOSED and not (before or after):
        return
    if before is None or after is None or key not in _LISTS:
        yield key, (before, after), evidence_of(pair, key)
    else:
        yield from _LISTS[key](pair, _lacking(before, after))


def _lacking(before: FingerprintValue, after: FingerprintValue) -> _Lists:
    """Return of each list only the entries that the other lacks."""
    mine, theirs = set(entries(before)), set(entries(after))
    return sorted(mine - theirs), sorted(theirs - mine)


def _packages(pair: FingerprintPair, lists: _Lists) -> Iterator[_Part]:
    """Yield imported and unimported packages; torch and numpy have their own facts."""
    reported = {name for name in OWN_PACKAGES if pair.differ((f"{name}.version",))}
    rest = [[one for one in side if entry_name(one) not in reported] for side in lists]
    felt = tuple(tuple(one for one in side if _is_package_felt(pair, one)) for side in rest)
    others = tuple(
        tuple(one for one in side if one not in kept) for side, kept in zip(rest, felt, strict=True)
    )
    if any(felt):
        yield "packages", (felt[0], felt[1]), packages_evidence(pair, felt[0] + felt[1])
    if any(others):
        yield "packages.not_imported", (others[0], others[1]), _unused(pair)


def _is_package_felt(pair: FingerprintPair, entry: str) -> bool:
    if runs_python(pair) is False:
        return False
    seen = imported(pair, entry)
    return entry_name(entry) not in _INSTALLERS if seen is None else seen


def _unused(pair: FingerprintPair) -> Evidence:
    if runs_python(pair) is False:
        return NO_PYTHON
    if pair.context.is_program or pair.names("loaded_packages") is None:
        return Evidence(is_felt=False, text="They only install software.")
    return Evidence(is_felt=False, text="This workload did not import them.")


def _installed(pair: FingerprintPair, lists: _Lists) -> Iterator[_Part]:
    """Yield packages whose files differ although the version does not, and files of no package.

    A package is reported by its differing files if these are known.
    """
    names = [{part_name(one) for one in side} for side in lists]
    reported = {one for one in names[0] | names[1] if "==" not in one or one in names[0] & names[1]}
    changed = _lacking(*pair.values(CHANGED_FILES))
    looked_into = {part_name(one) for side in changed for one in side}
    first, second = (
        tuple(
            one
            for one in (*files, *(part for part in parts if part_name(part) not in looked_into))
            if part_name(one) in reported
        )
        for files, parts in zip(changed, lists, strict=True)
    )
    if first or second:
        yield INSTALLED_PARTS, (first, second), parts_evidence(pair, first + second)


def _modules(pair: FingerprintPair, lists: _Lists) -> Iterator[_Part]:
    """Yield modules with different content; if none, modules that only one arm imported."""
    common = {entry_name(one) for one in lists[0]} & {entry_name(one) for one in lists[1]}
    first, second = (
        tuple(one for one in side if not common or entry_name(one) in common) for side in lists
    )
    yield MODULES, (first, second), modules_evidence(pair, is_in_both=bool(common))


def _libraries(pair: FingerprintPair, lists: _Lists) -> Iterator[_Part]:
    """Yield the loaded libraries that no other fact covers; all of them if none is left.

    Those that compute come first.
    """
    key = "loaded_libraries"
    rest = [
        [one for one in side if not pair.differ(_facts_of_library(pair, one))] for side in lists
    ]
    shown = (rest[0], rest[1]) if any(rest) else lists
    if pair.is_watched:
        yield _watched(pair, key, shown, what="The command loaded them in both arms.")
        return
    felt = {entry for side in shown for entry in side if _is_computing(pair, entry)}
    first, second = (
        tuple(sorted(side, key=lambda entry: (entry not in felt, entry))) for side in shown
    )
    unknown = Evidence(text="The workload loaded them; how much it uses them was not measured.")
    yield key, (first, second), Evidence(is_felt=True) if felt else unknown


def _programs(pair: FingerprintPair, lists: _Lists) -> Iterator[_Part]:
    """Yield the programs that a command runs; the Python of an arm has its own facts."""
    named = interpreters(pair) if pair.differ(("python.sha256",)) else ()
    first, second = ([one for one in side if entry_name(one) not in named] for side in lists)
    if first or second:
        yield _watched(pair, "programs", (first, second), what="The command runs them.")


def _start_files(_pair: FingerprintPair, lists: _Lists) -> Iterator[_Part]:
    """Yield the files that Python runs at each start; how long they take is not known."""
    if any(lists):
        values = tuple(lists[0]), tuple(lists[1])
        yield START_FILES, values, Evidence(text="Python runs them at every start.")


def _watched(pair: FingerprintPair, key: str, lists: _Lists, *, what: str) -> _Part:
    """Return entries whose name is in both arms: only these can be different builds.

    Of lines, the others follow: a library may serve in place of one by another name.
    """
    common = {stem(one) for one in lists[0]} & {stem(one) for one in lists[1]}
    kept = [[one for one in side if stem(one) in common] for side in lists]
    if pair.are_lines:
        kept = [sorted(side, key=lambda one: stem(one) not in common) for side in lists]
    first, second = map(tuple, kept)
    if common:
        return key, (first, second), Evidence(is_felt=True, text=what)
    unseen = Evidence(text="Seen in only one arm: a command is inspected only now and then.")
    return key, (tuple(lists[0]), tuple(lists[1])), unseen


_LISTS: Final[dict[str, Callable[[FingerprintPair, _Lists], Iterator[_Part]]]] = {
    "packages": _packages,
    INSTALLED_PARTS: _installed,
    MODULES: _modules,
    "loaded_libraries": _libraries,
    "programs": _programs,
    START_FILES: _start_files,
}
"""Lists of software, reported by their differing entries."""


def _difference(pair: FingerprintPair, part: _Part) -> FactDifference:
    key, values, evidence = part
    fact_class = classify(key)
    # Where a fact cannot be absent, None means that it was not measured.
    is_unknown = None in values and fact(key).is_absent is not True
    if fact_class == "confounder" and (is_unknown or evidence.is_felt is False):
        fact_class = "possible-influence"
    elif fact(key).is_limit and evidence.is_felt:
        fact_class = "confounder"
    elif fact_class == "host" and pair.is_captured:
        fact_class = "possible-influence"
    elif fact(key).seen_by == "library path" and evidence.is_felt is False:
        fact_class = "varied"
    elif (
        fact_class == "varied"
        and (pair.is_one_environment or pair.are_lines)
        and not is_without_effect(key)
    ):
        purpose = fact(key).purpose
        text = f"{purpose.felt_by[0].upper()}{purpose.felt_by[1:]}." if purpose else ""
        fact_class, evidence = "possible-influence", Evidence(text=text)
    if fact_class not in EXPLAINING:
        evidence = Evidence()
    return FactDifference(
        host=pair.other.host,
        arm=pair.other.arm,
        key=key,
        reference=values[0],
        value=values[1],
        fact_class=fact_class,
        evidence=evidence.text,
        is_felt=evidence.is_felt,
    )


def _is_computing(pair: FingerprintPair, entry: str) -> bool:
    """Return whether a library computes, judging by its name or package."""
    name = entry_name(entry)
    if name in pair.interposers or entry.startswith(_FELT_LIBRARIES):
        return True
    return _INSTALLED_FILE.search(pair.path(name)) is not None


def _facts_of_library(pair: FingerprintPair, entry: str) -> tuple[str, ...]:
    """Return the facts that reveal another build of a library, by its path and name."""
    name = entry_name(entry)
    if name in pair.interposers:
        return (INTERPOSED,)
    path = pair.path(name)
    package = _INSTALLED_FILE.search(path)
    return facts_of_library(
        entry, package[1] if package else "", is_of_python="/lib-dynload/" in path
    )


def _following(
    pair: FingerprintPair, difference: FactDifference, classes: dict[str, FactClass]
) -> FactDifference:
    """Return a difference, with the key of the one that represents it."""
    key, group = difference.key, fact(difference.key).group
    leader = _leader_of_libraries(pair, difference, classes)
    if not leader:
        before = group[: group.index(key)] if group else ()
        leader = next(
            (one for one in before if classes.get(one) in {"confounder", classes[key]}), ""
        )
    if leader:
        return replace(difference, part_of=leader)
    if group == INSTALLED and INSTALLED_PARTS in classes:
        return replace(difference, part_of=INSTALLED_PARTS, fact_class=classes[INSTALLED_PARTS])
    is_explained = group == INSTALLED and "packages.not_imported" in classes
    if is_explained and difference.fact_class == "confounder":
        text = "Packages differ that this workload does not import; that may be the only cause."
        return replace(difference, fact_class="possible-influence", evidence=text)
    return difference


def _leader_of_libraries(
    pair: FingerprintPair, difference: FactDifference, classes: dict[str, FactClass]
) -> str:
    """Return the first fact that represents loaded libraries, if facts cover all of them."""
    if difference.key != "loaded_libraries":
        return ""
    both = entries(difference.reference) + entries(difference.value)
    enough = {"confounder", difference.fact_class}
    leaders = [
        next((key for key in _facts_of_library(pair, entry) if classes.get(key) in enough), "")
        for entry in both
        if _is_computing(pair, entry)
    ]
    return leaders[0] if leaders and all(leaders) else ""


class DataIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies data; for prepared data only the hash."""

    hash: str
    modified: str | None = None
    changed: str | None = None
    files: str | None = None

    def facts(self) -> Identity:
        """Return it as recorded in an event, without unknown values."""
        times = {"modified": self.modified, "changed": self.changed, "files": self.files}
        return {"data": self.hash, **{f"data.{key}": one for key, one in times.items() if one}}


def changes(
    before: Mapping[str, Scalar], after: Mapping[str, Scalar], *, host: str, arm: str
) -> tuple[IdentityChange, ...]:
    """Return the properties that differ; None means unknown."""
    return tuple(
        IdentityChange(host=host, arm=arm, key=key, before=before.get(key), after=after.get(key))
        for key in (*before, *(key for key in after if key not in before))
        if before.get(key) != after.get(key)
    )


def first_identities(events: Iterable[Event]) -> dict[Place, Identity]:
    """Return what each host and each arm was when it was first prepared."""
    identities: dict[Place, Identity] = {}
    for event in events:
        if event.what == "identity":
            identities.setdefault((event.host, event.arm), dict(event.values))
    return identities


def noted_changes(events: tuple[Event, ...]) -> tuple[IdentityChange, ...]:
    """Return the changes that a resumed run accepted, each once."""
    first = first_identities(events)
    noted = (
        change
        for event in events
        if event.what == "identity"
        for change in changes(
            first[event.host, event.arm], event.values, host=event.host, arm=event.arm
        )
    )
    return tuple(dict.fromkeys(noted))


def refused(noted: Iterable[IdentityChange]) -> tuple[IdentityChange, ...]:
    """Return the changes with which a run is not resumed."""
    return tuple(change for change in noted if change.key != BOOT)


def subject(change: IdentityChange) -> str:
    """Return the host, or the arm and its host, that changed."""
    return f"{change.arm} on {change.host}" if change.arm else change.host


def is_unverified(change: IdentityChange) -> bool:
    """Tell whether one of the values is not known: it may have changed or not."""
    return None in (change.before, change.after)


def change_text(change: IdentityChange) -> str:
    """Return a change with both values: "the kernel was 6.1, now 6.2"."""
    verb = "were" if fact(change.key).is_plural else "was"
    return f"{fact(change.key).name} {verb} {_value(change.before)}, now {_value(change.after)}"


def resumed_text(change: IdentityChange) -> str:
    """Return the message on a change that a resumed run accepts."""
    if change.key == BOOT:
        return f"{change.host} was restarted since the run began"
    verb = "cannot be verified" if is_unverified(change) else "changed since the run began"
    return (
        f"{subject(change)} {verb}: {change_text(change)}; continuing because of --allow-mismatch"
    )


def refusal(folder: Path, noted: tuple[IdentityChange, ...]) -> ConfigError:
    """Return the error for a run whose hosts or arms are not, or may not be, what they were."""
    changed = tuple(change for change in noted if not is_unverified(change))
    first = (changed or noted)[0]
    what = f"{fact(first.key).name} of {subject(first)}"
    if changed:
        how = "changed since it was started"
        remedy = _remedies(changed)
    else:
        how = "cannot be verified"
        remedy = f"make it readable on {first.host} and resume again"
    return ConfigError(
        f"{folder} cannot be resumed: {what} {how}",
        details="; ".join(f"{subject(change)}: {change_text(change)}" for change in noted),
        hint=f"{remedy}, {_GO_ON}",
    )


def ended(arm: str, noted: tuple[IdentityChange, ...]) -> Failure:
    """Return why an arm of a cell ends: only inside it could be seen that it changed."""
    return Failure(
        phase="checksum",
        brief=f"{arm} changed since the run began: {change_text(noted[0])}",
        details="; ".join(change_text(change) for change in noted),
        hint=f"{_remedies(noted)}, {_GO_ON}",
    )


def _remedies(changed: tuple[IdentityChange, ...]) -> str:
    texts = (fact(each.key).restore.format(before=each.before) for each in changed)
    return " and ".join(dict.fromkeys(filter(None, texts))) or "restore what changed"


def _value(value: Scalar) -> str:
    return "not known" if value is None else str(value)
