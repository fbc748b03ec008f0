"""Compare two fingerprints fact by fact; pure, the facts come from the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from envcompare.fingerprint.classes import CLASS_ORDER, EXPLAINING, MEANINGS, classify
from envcompare.fingerprint.evidence import (
    LIBRARY_PATH,
    LIMITS,
    NO_PYTHON,
    Evidence,
    evidence_of,
    imported,
    interpreters,
    packages_evidence,
    parts_evidence,
    runs_python,
)
from envcompare.fingerprint.remedies import SEPARATE, has_own_remedy, remedy
from envcompare.fingerprint.sides import Pair, Sides
from envcompare.fingerprint.telling import is_computing, tellers, told_once
from envcompare.fingerprint.varied import varied_sentence
from envcompare.fingerprint.words import (
    CHANGED_FILES,
    INSTALLED_PARTS,
    describe,
    entries,
    entry_name,
    fact_name,
    is_plural,
    part_name,
    stem,
)
from envcompare.run_folder.records import FactDifference, FingerprintRecord, FingerprintValue

_OWN_FACTS: Final = frozenset({"torch", "torchvision", "numpy"})  # packages with facts of their own
_ABSENT: Final = ("env.", "allocator.", "gpu.", "cuda.")  # None is a value: not set, not there
LOADED: Final = ("loaded_libraries", "loaded_packages")
_INSTALLERS: Final = frozenset({"pip", "setuptools", "wheel", "distribute", "uv"})

_Values = tuple[FingerprintValue, FingerprintValue]
_Part = tuple[str, _Values, Evidence]
_Lists = tuple[list[str], list[str]]
_UNSEEN: Final = Evidence(
    is_felt=False,
    text="Seen in one arm alone: a command is looked at now and then, and what is brief escapes.",
)


def compare_fingerprints(
    reference: FingerprintRecord, other: FingerprintRecord, pair: Pair | None = None
) -> tuple[FactDifference, ...]:
    """Return the facts in which `other` differs from `reference`, confounders first.

    What `pair` knows of the two arms beside their facts is evidence, and shapes the remedy.
    """
    sides = Sides(reference=reference, other=other, pair=pair or Pair())
    keys = sorted(reference.facts.keys() | other.facts.keys())
    found = told_once(
        sides, [_difference(sides, part) for key in keys for part in _parts(sides, key)]
    )
    worded = [_worded(sides, one) for one in found]
    return tuple(sorted(worded, key=lambda one: (CLASS_ORDER.index(one.fact_class), one.key)))


def changed_software(
    before: FingerprintRecord, after: FingerprintRecord
) -> tuple[FactDifference, ...]:
    """Return the confounders in which an arm is not what an earlier fingerprint of it says."""
    found = compare_fingerprints(before, after)
    software = (one for one in found if one.fact_class == "confounder" and not one.part_of)
    return tuple(one for one in measured_alike(before, after, software) if not _is_chance(one))


def measured_alike(
    before: FingerprintRecord, after: FingerprintRecord, found: Iterable[FactDifference]
) -> tuple[FactDifference, ...]:
    """Return the differences but those that come of looking before any work, and after steps.

    What is loaded late stands only in the one that was taken after steps.
    """
    if before.taken == after.taken:
        return tuple(found)
    return tuple(
        one for one in found if one.key not in LOADED and None not in (one.reference, one.value)
    )


def _is_chance(one: FactDifference) -> bool:
    """Tell whether a list differs only in what was loaded by the moment of looking."""
    names = [{stem(entry) for entry in entries(side)} for side in (one.reference, one.value)]
    return one.key in LOADED and not names[0] & names[1]


def _parts(sides: Sides, key: str) -> Iterator[_Part]:
    """Give what differs of a fact: nothing, the fact, or the parts of a list of software."""
    before, after = sides.values(key)
    if before == after or key == CHANGED_FILES:
        return
    if before is None or after is None or key not in _LISTS:
        yield key, (before, after), evidence_of(sides, key)
    else:
        yield from _LISTS[key](sides, _lacking(before, after))


def _lacking(before: FingerprintValue, after: FingerprintValue) -> _Lists:
    """Return of each list only the entries the other side lacks."""
    mine, theirs = set(entries(before)), set(entries(after))
    return sorted(mine - theirs), sorted(theirs - mine)


def _packages(sides: Sides, pair: _Lists) -> Iterator[_Part]:
    """Give what is imported and what is not; torch and numpy have facts of their own."""
    told = {name for name in _OWN_FACTS if sides.differ((f"{name}.version",))}
    rest = [[one for one in side if entry_name(one) not in told] for side in pair]
    felt = tuple(tuple(one for one in side if _is_package_felt(sides, one)) for side in rest)
    others = tuple(
        tuple(one for one in side if one not in kept) for side, kept in zip(rest, felt, strict=True)
    )
    if any(felt):
        yield "packages", (felt[0], felt[1]), packages_evidence(sides, felt[0] + felt[1])
    if any(others):
        yield "packages.not_imported", (others[0], others[1]), _unused(sides)


def _is_package_felt(sides: Sides, entry: str) -> bool:
    if runs_python(sides) is False:
        return False
    seen = imported(sides, entry)
    return entry_name(entry) not in _INSTALLERS if seen is None else seen


def _unused(sides: Sides) -> Evidence:
    if runs_python(sides) is False:
        return NO_PYTHON
    if sides.pair.is_program or sides.names("loaded_packages") is None:
        return Evidence(is_felt=False, text="They install software and compute nothing.")
    return Evidence(is_felt=False, text="They were not imported by this workload.")


def _installed(sides: Sides, pair: _Lists) -> Iterator[_Part]:
    """Give the packages whose files differ though their version does not, and files of none.

    A package is told by the files that were found to differ, where somebody looked into it.
    """
    names = [{part_name(one) for one in side} for side in pair]
    told = {one for one in names[0] | names[1] if "==" not in one or one in names[0] & names[1]}
    changed = _lacking(*sides.values(CHANGED_FILES))
    looked_into = {part_name(one) for side in changed for one in side}
    first, second = (
        tuple(
            one
            for one in (*files, *(part for part in parts if part_name(part) not in looked_into))
            if part_name(one) in told
        )
        for files, parts in zip(changed, pair, strict=True)
    )
    if first or second:
        yield INSTALLED_PARTS, (first, second), parts_evidence(sides, first + second)


def _libraries(sides: Sides, pair: _Lists) -> Iterator[_Part]:
    """Give the loaded libraries that no other fact tells of; all of them where none is left."""
    first, second = (
        [one for one in side if not sides.differ(tellers(sides, one))] for side in pair
    )
    shown = (first, second) if first or second else pair
    if sides.is_watched:
        yield _watched("loaded_libraries", shown, what="The command loaded them in both arms.")
    else:
        yield _loaded(sides, shown)


def _loaded(sides: Sides, shown: _Lists) -> _Part:
    """Return the loaded libraries, those that compute before the others."""
    felt = {one for side in shown for one in side if is_computing(sides, one)}
    first, second = (tuple(sorted(side, key=lambda one: (one not in felt, one))) for side in shown)
    is_felt = bool(felt)
    text = "" if is_felt else "None of them computes."
    return "loaded_libraries", (first, second), Evidence(is_felt=is_felt, text=text)


def _programs(sides: Sides, pair: _Lists) -> Iterator[_Part]:
    """Give the programs that a command runs; the arm's Python has facts of its own."""
    own = interpreters(sides) if sides.differ(("python.sha256",)) else ()
    first, second = ([one for one in side if entry_name(one) not in own] for side in pair)
    if first or second:
        yield _watched("programs", (first, second), what="They are what the command runs.")


def _watched(key: str, pair: _Lists, *, what: str) -> _Part:
    """Return what has its name in both arms: of that alone another build was seen."""
    common = {stem(one) for one in pair[0]} & {stem(one) for one in pair[1]}
    first, second = (tuple(one for one in side if stem(one) in common) for side in pair)
    if common:
        return key, (first, second), Evidence(is_felt=True, text=what)
    return key, (tuple(pair[0]), tuple(pair[1])), _UNSEEN


_LISTS: Final[dict[str, Callable[[Sides, _Lists], Iterator[_Part]]]] = {
    "packages": _packages,
    INSTALLED_PARTS: _installed,
    "loaded_libraries": _libraries,
    "programs": _programs,
}
"""Lists of software, of which only the entries that differ are told."""


def _difference(sides: Sides, part: _Part) -> FactDifference:
    key, values, evidence = part
    fact_class = classify(key)
    if fact_class == "confounder" and not _can_confound(key, values, evidence):
        fact_class = "possible-influence"
    elif key in LIMITS and evidence.is_felt:
        fact_class = "confounder"
    elif key == LIBRARY_PATH and evidence.is_felt is False:
        fact_class = "varied"
    return FactDifference(
        host=sides.other.host,
        arm=sides.other.arm,
        key=key,
        reference=values[0],
        value=values[1],
        fact_class=fact_class,
        evidence=evidence.text if fact_class in EXPLAINING else "",
        is_felt=evidence.is_felt if fact_class in EXPLAINING else None,
    )


def _can_confound(key: str, values: _Values, evidence: Evidence) -> bool:
    """Say whether the difference is known (None is not measured) and can be felt."""
    if evidence.is_felt is False:
        return False
    return None not in values or key.startswith(_ABSENT)


def _worded(sides: Sides, one: FactDifference) -> FactDifference:
    match one.fact_class:
        case "confounder":
            how = remedy(sides, one.key)
            return replace(one, remedy=how, sentence=f"{_confounded(one)} {SEPARATE}{how}")
        case "varied":
            text, how = varied_sentence(one.key)
            sentence = f"{text} {SEPARATE}{how}" if how else text
            return replace(one, remedy=how, sentence=sentence)
        case "possible-influence":
            how = remedy(sides, one.key) if has_own_remedy(one.key) else ""
            return replace(one, remedy=how, sentence=_possible(sides, one))
        case _:
            return replace(one, sentence=MEANINGS[one.fact_class])


def _confounded(one: FactDifference) -> str:
    verb = "differ" if is_plural(one) else "differs"
    parts = (
        f"Besides the environment, {describe(one)} {verb}.",
        one.evidence,
        MEANINGS["confounder"],
    )
    return " ".join(part for part in parts if part)


def _possible(sides: Sides, one: FactDifference) -> str:
    """Say of a possible influence why it is no more, and what is known of it."""
    missing = [
        record.arm
        for record, value in zip(sides.records, (one.reference, one.value), strict=True)
        if value is None
    ]
    if missing and not one.key.startswith(_ABSENT):
        verb, they = ("were", "they") if is_plural(one) else ("was", "it")
        return (
            f"{fact_name(one.key)} {verb} not measured in {missing[0]}: {they} may differ or not."
        )
    if one.evidence:
        return f"{one.evidence} A possible influence, and no more than that."
    return MEANINGS["possible-influence"]
