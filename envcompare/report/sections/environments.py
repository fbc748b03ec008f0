"""The environments: the properties that differ first, then all facts, then identities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model.comparison import ArmSummary, RunComparison
from envcompare.fingerprint.facts import (
    CLASS_ORDER,
    MEANINGS,
    NOT_SET,
    fact_name,
    missing_reason,
    purpose_of,
)
from envcompare.fingerprint.sentences import SEPARATE, describe
from envcompare.report.format.numbers import NOT_MEASURED, size
from envcompare.report.wording.headlines import compared_differences
from envcompare.run_folder.records import (
    CONTROL_SUFFIX,
    FactClass,
    FactDifference,
    FingerprintValue,
    Scalar,
)
from envcompare.text import counted, shortened

SAME: Final = "same"
_CLASS_WORDS: Final[dict[FactClass, str]] = {
    "confounder": "⚠ confounder",
    "possible-influence": "? possible influence",
    "host": "! differs on one host",
    "varied": "○ on purpose",
    "identity": "· identity",
}
_SHOWN_ENTRIES: Final = 4
_LONGEST_VALUE: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class FactRow:
    """One property over the arms of a host, the reference first."""

    key: str
    values: tuple[str, ...]
    fact_class: FactClass | None = None
    word: str = ""
    note: str = ""  # what was seen that tells whether it is felt, or which row tells of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What the differences of a class mean for the comparison, and what some of them mean."""

    fact_class: FactClass
    word: str
    count: str
    sentence: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """What the arms of one host found around themselves."""

    host: str
    arms: tuple[str, ...]
    stacks: tuple[str, ...]
    gpu: str
    meanings: tuple[Meaning, ...]
    differing: tuple[FactRow, ...]
    facts: tuple[FactRow, ...]


def host_views(run: RunComparison) -> tuple[HostView, ...]:
    """Return the facts of each host; the control is the reference and is left out."""
    hosts: dict[str, list[ArmSummary]] = {}
    for one in run.arms:
        if not one.arm.endswith(CONTROL_SUFFIX):
            hosts.setdefault(one.host, []).append(one)
    return tuple(_host_view(run, host, arms) for host, arms in hosts.items())


def fact_text(key: str, value: FingerprintValue) -> str:
    """Return a fact as the page prints it: short, with units, None with what it means."""
    if value is None:
        return _missing_text(key)
    if isinstance(value, tuple):
        return _list_text(key, value)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and key.endswith(("_bytes", ".bytes")):
        return size(value)
    if "sha256" in key.rpartition(".")[2]:
        return str(value)[:19]
    return shortened(str(value), most=_LONGEST_VALUE) or "empty"


def _missing_text(key: str) -> str:
    reason = missing_reason(key)
    if reason == NOT_SET:
        return NOT_SET
    return f"{NOT_MEASURED}: {reason}" if reason else NOT_MEASURED


def _host_view(run: RunComparison, host: str, arms: list[ArmSummary]) -> HostView:
    arms = sorted(arms, key=lambda one: one.arm != run.reference_arm)
    names = tuple(one.arm for one in arms)
    found: dict[str, dict[str, FactDifference]] = {}
    for one in compared_differences(run):
        if one.host == host:
            found.setdefault(one.key, {})[one.arm] = one
    rows = [_differing_row(key, by_arm, arms) for key, by_arm in found.items()]
    return HostView(
        host=host,
        arms=names,
        stacks=tuple(_stack(one) for one in arms),
        gpu=_gpu(host, arms),
        meanings=_meanings([one for by_arm in found.values() for one in by_arm.values()]),
        differing=tuple(sorted(rows, key=_class_rank)),
        facts=_all_rows(arms),
    )


def _class_rank(row: FactRow) -> tuple[int, str]:
    return (CLASS_ORDER.index(row.fact_class) if row.fact_class else len(CLASS_ORDER), row.key)


def _differing_row(key: str, by_arm: dict[str, FactDifference], arms: list[ArmSummary]) -> FactRow:
    found = list(by_arm.values())
    strongest = min((one.fact_class for one in found), key=CLASS_ORDER.index)
    values = [fact_text(key, found[0].reference)]
    for one in arms[1:]:
        unlike = by_arm.get(one.arm)
        alike = SAME if one.facts else NOT_MEASURED  # no worker answered in an arm without facts
        values.append(fact_text(key, unlike.value) if unlike else alike)
    return FactRow(
        key=key,
        fact_class=strongest,
        word=_CLASS_WORDS[strongest],
        note=_note(next(one for one in found if one.fact_class == strongest)),
        values=tuple(values),
    )


def _note(one: FactDifference) -> str:
    return f"told with {fact_name(one.part_of)}" if one.part_of else one.evidence


def _meanings(found: list[FactDifference]) -> tuple[Meaning, ...]:
    """Return what each class means, with a line for each confounder and each thing on purpose."""
    keys: dict[FactClass, dict[str, None]] = {}
    for one in sorted(found, key=lambda one: CLASS_ORDER.index(one.fact_class)):
        keys.setdefault(one.fact_class, {})[one.key] = None
    return tuple(
        Meaning(
            fact_class=fact_class,
            word=_CLASS_WORDS[fact_class],
            count=counted(len(named), "property", "properties"),
            sentence=MEANINGS[fact_class],
            lines=_lines(found, fact_class),
        )
        for fact_class, named in keys.items()
    )


def _lines(found: list[FactDifference], fact_class: FactClass) -> tuple[str, ...]:
    """Return "docker: seccomp 0 → 2. Docker filters …": what differs, who feels it, what to do."""
    if fact_class not in {"confounder", "varied"}:
        return ()
    told = [one for one in found if one.fact_class == fact_class and not one.part_of]
    lines: dict[tuple[str, str], list[str]] = {}  # what differs, by arm and what is said of it
    for one in told:
        lines.setdefault((one.arm, _told(one)), []).append(shortened(describe(one), most=80))
    arms: dict[tuple[str, str], list[str]] = {}
    for (arm, text), what in lines.items():
        arms.setdefault((", ".join(what), text), []).append(arm)
    return tuple(f"{', '.join(by)}: {what}. {text}".rstrip() for (what, text), by in arms.items())


def _told(one: FactDifference) -> str:
    if one.fact_class == "varied":
        text = one.sentence if purpose_of(one.key) else ""
        return f"{text} {SEPARATE}{one.remedy}." if one.remedy else text
    how = f"{SEPARATE}{one.remedy}." if one.remedy else ""
    return f"{one.evidence} {how}".strip()


def _all_rows(arms: list[ArmSummary]) -> tuple[FactRow, ...]:
    tables = [{**{f"identity.{key}": value for key, value in one.identity.items()}, **one.facts}
              for one in arms]  # fmt: skip
    keys = dict.fromkeys(key for table in tables for key in sorted(table))
    rows = []
    for key in keys:
        first = tables[0].get(key)
        values = [fact_text(key, first)]
        values += [
            SAME if table.get(key) == first else fact_text(key, table.get(key))
            for table in tables[1:]
        ]
        rows.append(FactRow(key=key, values=tuple(values)))
    return tuple(rows)


def _stack(one: ArmSummary) -> str:
    text = f"{one.environment}, stack {one.stack}"
    if one.reference:
        text += f", {one.reference}"
    runs, started = one.facts.get("python.executable"), one.identity.get("started_as")
    if started and runs:
        text += f", started as {started}, which runs {runs}"
    return text if one.state == "ok" else f"{text}; {one.state}"


def _gpu(host: str, arms: list[ArmSummary]) -> str:
    names = list(dict.fromkeys(str(one.facts["gpu.name"]) for one in arms
                               if one.facts.get("gpu.name") is not None))  # fmt: skip
    if not names:
        return f"No GPU was found on {host}: time, memory and energy of one are not measured."
    return f"GPU on {host}: {', '.join(names)}."


def _list_text(key: str, value: tuple[Scalar, ...]) -> str:
    """Return the first entries and how many there are; of a library's digest six digits."""
    if key == "loaded_paths":
        return counted(len(value), "path")
    words = [str(one) for one in value[:_SHOWN_ENTRIES]]
    if key == "loaded_libraries":
        words = [f"{name} {digest[:6]}" for name, _, digest in (w.partition(" ") for w in words)]
    text = shortened(", ".join(words), most=2 * _LONGEST_VALUE) or "none"
    if len(value) <= _SHOWN_ENTRIES:
        return text
    return f"{counted(len(value), 'entry', 'entries')}: {text}, …"
