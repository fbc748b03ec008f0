"""The environments and the groups of hosts: properties that differ, all facts, identities, costs.

The page, the terminal and Markdown share the sentences.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from envcompare.analysis.model import (
    ArmSummary,
    GroupDifference,
    GroupEstimate,
    HostSummary,
    RunComparison,
)
from envcompare.fingerprint import CLASS_ORDER, MEANINGS, NOT_SET, fact
from envcompare.fingerprint.sentences import SEPARATE, describe
from envcompare.report import (
    Block,
    Column,
    Fold,
    Heading,
    Items,
    Line,
    PlainBlock,
    Section,
    Span,
    Table,
    Words,
    grid_of,
    table_of,
    texts,
)
from envcompare.report.wording import (
    NOT_MEASURED,
    group_work,
    listed,
    piece_word,
    signed_interval,
    signed_percent,
    size,
    time_text,
)
from envcompare.report.wording.causewords import (
    EFFECTS,
    MIXED,
    basis_texts,
    cost_text,
    difference_texts,
    estimate_sentence,
    group_names,
    groups_title,
    machine_differences,
    side_text,
    subject_text,
)
from envcompare.report.wording.headlines import compared_differences
from envcompare.report.wording.methodwords import MEANT_UNUSED, UNUSED
from envcompare.report.wording.verdicts import SYMBOLS, outcome_badge
from envcompare.run_folder.records import (
    CONTROL_SUFFIX,
    FactClass,
    FactDifference,
    FingerprintValue,
    HostGroup,
    Scalar,
)
from envcompare.text import assigned, counted, shortened, visible

_CLASS_WORDS: Final[dict[FactClass, str]] = {
    "confounder": "⚠ confounder",
    "possible-influence": "? possible influence",
    "host": "! differs on one host",
    "varied": "○ on purpose",
    "identity": "· identity",
}
_MACHINES_ALIKE: Final = "The machines do not differ in anything that envcompare records."
_SHOWN_ENTRIES: Final = 4
_MOST_HOSTS: Final = 8  # with more, hosts with the same differences share a group
_LONGEST_VALUE: Final = 160
_MOST_DIFFERENCES: Final = 12
_MOST_STATEMENTS: Final = 20
_NS: Final = 1e9
_MOST_SENTENCES: Final = 8
_MOST_ROWS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The facts that the arms of one host found, the reference first."""

    host: str
    arms: tuple[ArmSummary, ...]
    differences: tuple[FactDifference, ...]
    references: Mapping[str, str]  # of each arm
    equal_arms: frozenset[str] = frozenset()  # in every cell: nothing to explain


def hosts_facts(run: RunComparison) -> tuple[HostFacts, ...]:
    """Return the facts of each host, without the control, which equals the reference."""
    hosts: dict[str, list[ArmSummary]] = {}
    for arm in run.arms:
        if not arm.arm.endswith(CONTROL_SUFFIX):
            hosts.setdefault(arm.host, []).append(arm)
    return tuple(
        HostFacts(
            host=host,
            arms=tuple(sorted(arms, key=lambda arm: arm.arm not in run.all_references)),
            differences=tuple(
                difference for difference in compared_differences(run) if difference.host == host
            ),
            references={arm.arm: run.reference_of(arm.arm) for arm in arms},
            equal_arms=frozenset(arm.arm for arm in arms if _is_equal(run, host, arm.arm)),
        )
        for host, arms in hosts.items()
    )


def _is_equal(run: RunComparison, host: str, arm: str) -> bool:
    compared = (
        comparison
        for comparison in run.comparisons
        if (comparison.host, comparison.arm) == (host, arm)
    )
    return {comparison.outcome for comparison in compared} == {"equivalent"}


def environments_section(hosts: tuple[HostFacts, ...]) -> Section:
    """Return the properties of the environments of each host, differences first."""
    intro = "What the worker found in each environment."
    answered = any(arm.facts for facts in hosts for arm in facts.arms)
    groups = _alike(hosts)
    blocks = tuple(
        block for group in groups[:_MOST_HOSTS] for block in _host_blocks(group[0], group[1:])
    )
    rest = [facts.host for group in groups[_MOST_HOSTS:] for facts in group]
    left_out = f"To keep the page small, the properties of {listed(rest)} are in comparison.json."
    return Section(
        anchor="environments",
        title="Environments",
        blocks=(
            Line(text=intro),
            *(blocks if answered else texts("Not measured: no worker answered.")),
            *texts(left_out * bool(rest and answered)),
        ),
    )


def _alike(hosts: tuple[HostFacts, ...]) -> list[tuple[HostFacts, ...]]:
    """Group hosts whose environments differ in the same way; few hosts stay separate."""
    if len(hosts) <= _MOST_HOSTS:
        return [(facts,) for facts in hosts]
    groups: dict[tuple[object, ...], list[HostFacts]] = {}
    for facts in hosts:
        states = tuple((arm.arm, arm.state, bool(arm.facts)) for arm in facts.arms)
        differing_keys = tuple(
            sorted(
                (difference.arm, difference.key, difference.fact_class)
                for difference in facts.differences
            )
        )
        groups.setdefault((states, differing_keys), []).append(facts)
    return [tuple(group) for group in groups.values()]


def _host_blocks(facts: HostFacts, alike: tuple[HostFacts, ...]) -> tuple[Block, ...]:
    count = len({key for table in _facts_by_arm(facts) for key in table})
    names = listed([one.host for one in alike])
    others = f"Other properties of {facts.host}"
    same = f"The same properties differ on {names}, whose values are in comparison.json."
    return (
        Heading(text=f"Host {facts.host}" + f" and {len(alike)} more" * bool(alike)),
        *texts(same * bool(alike)),
        Items(items=meanings(facts.differences, equal=facts.equal_arms), style="meanings"),
        differences_table(facts, of=count),
        *(Fold(summary=others, blocks=tuple(_other_blocks(facts))),) * bool(count),
    )


def differences_table(facts: HostFacts, *, of: int) -> Table:
    """Return a row for each property that differs, possible confounders first."""
    by_key: dict[str, dict[str, FactDifference]] = {}
    for difference in facts.differences:
        by_key.setdefault(difference.key, {})[difference.arm] = difference
    strongest = [min(by_arm.values(), key=_rank) for by_arm in by_key.values()]
    rows = tuple(
        _differing_row(difference, by_key[difference.key], facts)
        for difference in sorted(
            strongest, key=lambda difference: (_rank(difference), difference.key)
        )
    )
    return grid_of(
        f"Properties that differ on {facts.host}",
        (
            Column(head="Property", kind="property", is_row_head=True),
            Column(head="Class"),
            *(Column(head=arm.arm, kind="value", note=_stack(arm)) for arm in facts.arms),
        ),
        rows or ((_without_rows(facts),),),
        caption=f"{len(rows)} of {of} properties differ" * bool(rows or not _silent(facts)),
    )


def _silent(facts: HostFacts) -> list[str]:
    """Return the arms in which no worker answered."""
    return [arm.arm for arm in facts.arms if not arm.facts]


def _without_rows(facts: HostFacts) -> str:
    """State that nothing differs, or of which arms that is not known."""
    silent = _silent(facts)
    if not silent:
        return "Nothing differs."
    if _compared(facts):
        return f"Nothing differs where a worker answered; none did in {listed(silent)}."
    return f"What differs is not known: no worker answered in {listed(silent)}."


def _facts_by_arm(facts: HostFacts) -> list[dict[str, FingerprintValue]]:
    """Return all facts of each arm, with its identity under descriptive names."""
    return [
        {**{f"identity.{key}": value for key, value in arm.identity.items()}, **arm.facts}
        for arm in facts.arms
    ]


def _other_blocks(facts: HostFacts) -> Iterator[Block]:
    """Yield the properties that all arms share, and those that only some have."""
    answered = tuple(arm for arm in facts.arms if arm.facts)
    whose, head = f"all environments of {facts.host}", "All environments"
    if len(answered) < len(facts.arms):
        whose = f"the environments of {facts.host} that answered"
        head = "Environments that answered"
    tables = _facts_by_arm(replace(facts, arms=answered))
    differing = {difference.key for difference in facts.differences}
    keys = sorted({key for table in tables for key in table} - differing)
    known = [key for key in keys if any(table.get(key) is not None for table in tables)]
    shared = [key for key in known if len({table.get(key) for table in tables}) == 1]
    yield grid_of(
        f"Properties that {whose} share",
        (("Property", "property"), (head, "value")),
        ((key, fact_text(key, tables[0][key])) for key in shared),
    )
    others = [key for key in known if key not in shared]
    if others:
        yield grid_of(
            f"Other properties that environments of {facts.host} do not share",
            (("Property", "property"), *((arm.arm, "value") for arm in answered)),
            (
                (key, *(fact_text(key, table[key]) if key in table else "" for table in tables))
                for key in others
            ),
        )
    if unknown := len(keys) - len(known):
        unmeasured = counted(unknown, "property", "properties")
        yield Line(text=f"{unmeasured} could not be measured here.", style="small")


def fact_text(key: str, value: FingerprintValue) -> str:
    """Return a fact as the page prints it: short, with its unit, and with the meaning of None."""
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
    reason = fact(key).missing
    if reason == NOT_SET:
        return NOT_SET
    return f"{NOT_MEASURED}: {reason}" if reason else NOT_MEASURED


def _list_text(key: str, value: tuple[Scalar, ...]) -> str:
    """Return the first entries and their total number; six digits of a library's digest."""
    if key == "loaded_paths":
        return counted(len(value), "path")
    words = [str(one) for one in value[:_SHOWN_ENTRIES]]
    if key == "loaded_libraries":
        words = [f"{name} {digest[:6]}" for name, _, digest in (w.partition(" ") for w in words)]
    text = shortened(", ".join(words), most=2 * _LONGEST_VALUE) or "none"
    if len(value) <= _SHOWN_ENTRIES:
        return text
    return f"{counted(len(value), 'entry', 'entries')}: {text}, …"


def _rank(difference: FactDifference) -> int:
    return CLASS_ORDER.index(difference.fact_class)


def _differing_row(
    strongest: FactDifference, by_arm: dict[str, FactDifference], facts: HostFacts
) -> tuple[Words, ...]:
    """Return one property that differs, with its strongest class over all arms."""
    key, fact_class = strongest.key, strongest.fact_class
    values = (_differing_value(key, arm, by_arm, facts) for arm in facts.arms)
    note = f"explained with {fact(strongest.part_of).name}" if strongest.part_of else ""
    return key, Line(before=(_badge(fact_class),), below=(note or strongest.evidence,)), *values


def _differing_value(
    key: str, arm: ArmSummary, by_arm: dict[str, FactDifference], facts: HostFacts
) -> Words:
    """Return the value of an arm, or `same` if its own reference has the same value."""
    if arm.arm in by_arm:
        return fact_text(key, by_arm[arm.arm].value)
    for name, difference in by_arm.items():
        if facts.references.get(name) == arm.arm:
            return fact_text(key, difference.reference)
    if not arm.facts:  # no worker answered there
        return NOT_MEASURED
    if arm in _compared(facts):
        reference = facts.references[arm.arm]
        is_first = reference == facts.arms[0].arm
        return Line(text="same" if is_first else f"same as {reference}", style="same")
    return fact_text(key, arm.facts[key]) if key in arm.facts else ""


def _compared(facts: HostFacts) -> tuple[ArmSummary, ...]:
    """Return the arms that answered, as their references did."""
    answered = {arm.arm for arm in facts.arms if arm.facts}
    return tuple(
        arm
        for arm in facts.arms
        if arm.arm in answered and facts.references.get(arm.arm) in answered - {arm.arm}
    )


def _badge(fact_class: FactClass) -> Span:
    return Span(text=_CLASS_WORDS[fact_class], style=f"badge {fact_class}")


def meanings(
    differences: Iterable[FactDifference], *, equal: Collection[str] = ()
) -> tuple[Line, ...]:
    """Return the meaning of each class, with a line per confounder and intended difference.

    Intended differences of an arm that is equivalent everywhere are only in the table.
    """
    ordered = sorted(differences, key=_rank)
    return tuple(
        _meaning(fact_class, list(group), equal=equal)
        for fact_class, group in groupby(ordered, key=lambda difference: difference.fact_class)
    )


def _meaning(
    fact_class: FactClass, differences: list[FactDifference], *, equal: Collection[str]
) -> Line:
    count = counted(len({one.key for one in differences}), "property", "properties")
    explained = {
        "confounder": differences,
        "varied": [one for one in differences if one.arm not in equal],
    }
    lines: dict[str, dict[str, list[str]]] = {}  # differences, by their text and arm
    for difference in explained.get(fact_class, []):
        if not difference.part_of:
            what = shortened(describe(difference), most=80)
            by_arm = lines.setdefault(_said(difference), {})
            by_arm.setdefault(difference.arm, []).append(what)
    return Line(
        text=f"{count}: {MEANINGS[fact_class]}",
        before=(_badge(fact_class),),
        items=tuple(f"{_arms_text(by_arm)}. {text}".rstrip() for text, by_arm in lines.items()),
    )


def _arms_text(by_arm: dict[str, list[str]]) -> str:
    """Return "docker, podman: seccomp 0 → 2; singularity: …"."""
    arms: dict[str, list[str]] = {}
    for arm, what in by_arm.items():
        arms.setdefault(", ".join(what), []).append(arm)
    return "; ".join(f"{', '.join(of)}: {what}" for what, of in arms.items())


def _said(difference: FactDifference) -> str:
    if difference.fact_class == "varied":
        text = difference.sentence if fact(difference.key).purpose else ""
        return f"{text} {SEPARATE}{difference.remedy}." if difference.remedy else text
    how = f"{SEPARATE}{difference.remedy}." if difference.remedy else ""
    return f"{difference.evidence} {how}".strip()


def _stack(arm: ArmSummary) -> str:
    stack = "" if arm.stack == "line" else f"stack {arm.stack}"
    parts = (arm.environment, stack, arm.reference, *assigned(arm.parameters))
    text = ", ".join(filter(None, parts))
    runs, started = arm.facts.get("python.executable"), arm.identity.get("started_as")
    if started and runs:
        text += f", started as {started}, which runs {runs}"
    return text if arm.state == "ok" else f"{text}; {arm.state}"


def gpu_sentence(host: HostSummary) -> str:
    """Name the GPUs of a host, and say whether it has any as far as that was seen."""
    lacking = "GPU time, memory and energy are not measured."
    is_on_gpu = any(device != "cpu" for device in host.devices.values())
    if host.gpus or is_on_gpu:
        return f"GPU on {host.host}: {', '.join(host.gpus) or 'its name is not known'}."
    if host.unused_gpus:
        unused = f"{UNUSED if host.devices else MEANT_UNUSED} (--device cpu)"
        return f"The GPU of {host.host} ({host.unused_gpus}) {unused}: {lacking}"
    if host.devices:
        return f"No GPU was found on {host.host}: {lacking}"
    return f"Whether a GPU was used on {host.host} is not known: {lacking}"


def groups_section(run: RunComparison) -> Section | None:
    """Return the differences between groups, their times, and the costs of environments in each."""
    if not run.between_hosts.groups:
        return None
    machines = machine_differences(run)
    differing = _differences(run, machines, "What differs between the groups")
    effects = _estimates_of(run, are_effects=True)
    times = _estimates_of(run, are_effects=False)
    # The arms that all others are compared with; the table has every arm.
    leading = [one for one in times if one.arm in run.all_references]
    (first, other), piece = _names(run), piece_word(run)
    return Section(
        anchor="groups",
        title=groups_title(run),
        link="Groups",
        blocks=(
            Items(items=group_names(run)),
            Heading(text="What differs between the groups"),
            *(differing,) * bool(machines),
            *texts(_without_differences(run)),
            *_software(run),
            Heading(text="Time of the same work"),
            *(
                Line(before=(outcome_badge(one.outcome),), text=estimate_sentence(run, one))
                for one in leading[:_MOST_SENTENCES]
            ),
            _folded(
                table_of(
                    "Times of the groups",
                    times,
                    ("Workload", "name", group_work),
                    ("Environment", "name", subject_text),
                    (
                        "Groups",
                        "name",
                        lambda estimate: visible(f"{estimate.group} ÷ {estimate.reference_group}"),
                    ),
                    ("Verdict", "text", _verdict),
                    ("Change", "number", lambda estimate: signed_percent(estimate.log_ratio)),
                    ("Interval", "text", _interval),
                    (
                        f"Typical {piece}, {first}",
                        "number",
                        lambda estimate: _typical(estimate.reference_values),
                    ),
                    (
                        f"Typical {piece}, {other}",
                        "number",
                        lambda estimate: _typical(estimate.values),
                    ),
                    ("Unit", "text", _unit),
                )
            ),
            *(_effects(run) if effects else ()),
            Items(items=basis_texts(run)),
        ),
    )


def _without_differences(run: RunComparison) -> str:
    """State that the machines are alike, or of which groups it is not known; otherwise empty."""
    unknown, first = _unknown_groups(run), run.between_hosts.groups[0].name
    if not unknown:
        return _MACHINES_ALIKE * (not machine_differences(run))
    return visible(
        f"How the machines of {listed(unknown)} differ from those of {first} is not known: in no "
        "environment did a worker answer in both groups."
    )


def _unknown_groups(run: RunComparison) -> list[str]:
    """Return the groups that have no environment in which a worker answered there and in the first.

    Nothing can be compared then.
    """
    first, *others = run.between_hosts.groups

    def answered(group: HostGroup) -> set[str]:
        return {
            arm.arm
            for arm in run.arms
            if arm.facts and arm.host in group.hosts and not arm.arm.endswith(CONTROL_SUFFIX)
        }

    return [group.name for group in others if answered(first).isdisjoint(answered(group))]


def _unit(estimate: GroupEstimate) -> str:
    return "" if estimate.log_ratio is None else f"{estimate.unit}s"


def groups_blocks(run: RunComparison) -> Iterator[PlainBlock]:
    """Yield for terminal and Markdown the differences, the estimates and their basis."""
    if not run.between_hosts.groups:
        return
    differing = difference_texts(run)
    yield Line(strong=groups_title(run))
    yield Items(items=group_names(run))
    if differing:
        yield Line(text="What differs between the groups:")
        more = len(differing) - _MOST_DIFFERENCES
        rest = (f"and {more} more in report.html",) * (more > 0)
        yield Items(items=(*differing[:_MOST_DIFFERENCES], *rest))
    yield from texts(_without_differences(run))
    for estimate in run.between_hosts.group_estimates[:_MOST_STATEMENTS]:
        text = f"{SYMBOLS[estimate.outcome]} {estimate_sentence(run, estimate)}"
        yield Line(text=text, style=estimate.outcome)
    if (left_out := len(run.between_hosts.group_estimates) - _MOST_STATEMENTS) > 0:
        yield Line(text=f"and {left_out} more in report.html")
    yield Items(items=basis_texts(run), style="note")


def _effects(run: RunComparison) -> tuple[Block, ...]:
    heading = Heading(text="What environments cost in each group")
    effects = _estimates_of(run, are_effects=True)[:_MOST_SENTENCES]
    sentences = (Line(text=estimate_sentence(run, effect)) for effect in effects)
    first, other = _names(run)
    return (
        heading,
        Line(text=EFFECTS),
        *sentences,
        _folded(
            table_of(
                "What environments cost in each group",
                _estimates_of(run, are_effects=True),
                ("Workload", "name", group_work),
                ("Environment", "name", subject_text),
                (
                    "Groups",
                    "name",
                    lambda estimate: visible(f"{estimate.reference_group} → {estimate.group}"),
                ),
                ("Verdict", "text", cost_text),
                (f"Cost in {first}", "number", lambda estimate: _mean(estimate.reference_values)),
                (f"Cost in {other}", "number", lambda estimate: _mean(estimate.values)),
                ("Difference", "number", lambda estimate: signed_percent(estimate.log_ratio)),
                ("Interval", "text", _interval),
            )
        ),
    )


def _folded(table: Table) -> Block:
    """Return a table, inside a fold if it would push the answer far down."""
    if len(table.rows) <= _MOST_ROWS:
        return table
    return Fold(summary=f"{table.label} ({len(table.rows)})", is_open=False, blocks=(table,))


def _differences(run: RunComparison, rows: tuple[GroupDifference, ...], label: str) -> Table:
    first, *others = run.between_hosts.groups
    return table_of(
        label,
        rows,
        ("Property", "name", lambda difference: fact(difference.key).name),
        (visible(first.name), "text", lambda difference: visible(side_text(difference, first))),
        *(
            (
                visible(group.name),
                "text",
                lambda difference, group=group: visible(_of_group(difference, group, rows, run)),
            )
            for group in others
        ),
        ("Seen in", "text", lambda difference: visible(difference.arm)),
        (
            "On",
            "text",
            lambda difference: (
                "all hosts of the groups" if difference.is_apart else "some hosts; others are alike"
            ),
        ),
    )


def _of_group(
    difference: GroupDifference,
    group: HostGroup,
    rows: tuple[GroupDifference, ...],
    run: RunComparison,
) -> str:
    """Return what one group has in the row of a property in which some group differs."""
    is_host = difference.fact_class == "host"
    for row in rows:
        is_same = row.key == difference.key and (is_host or row.arm == difference.arm)
        if is_same and row.group == group.name:
            return side_text(row, group)
    is_known = any(
        arm.facts and arm.host in group.hosts and (is_host or arm.arm == difference.arm)
        for arm in run.arms
    )
    return "as the first" if is_known else "not known"


def _software(run: RunComparison) -> tuple[Block, ...]:
    differences = tuple(
        difference
        for difference in run.between_hosts.group_differences
        if difference.fact_class != "host"
    )
    if not differences:
        return ()
    is_open = any(difference.fact_class == "confounder" for difference in differences)
    table = _differences(run, differences, "Software that differs between the groups")
    mark = "⚠ Software and settings differ as well" if is_open else "Settings differ as well"
    return (Fold(summary=f"{mark} ({len(differences)})", is_open=False, blocks=(table,)),)


def _names(run: RunComparison) -> tuple[str, str]:
    """Name the first group, and the other group or groups."""
    first, *others = run.between_hosts.groups
    return visible(first.name), visible(others[0].name) if len(others) == 1 else "the other"


def _verdict(estimate: GroupEstimate) -> Words:
    mixed = (Span(text=MIXED),) if estimate.is_confounded else ()
    return Line(before=(outcome_badge(estimate.outcome),), after=mixed, text=estimate.why_not)


def _interval(estimate: GroupEstimate) -> str:
    return "" if estimate.log_ratio is None else signed_interval(estimate.low, estimate.high)


def _typical(seconds: Mapping[str, float]) -> str:
    """Return the geometric mean over hosts."""
    if not seconds:
        return NOT_MEASURED
    mean = sum(math.log(each) for each in seconds.values()) / len(seconds)
    return time_text(_NS * math.exp(mean))


def _mean(ratios: Mapping[str, float]) -> str:
    return signed_percent(sum(ratios.values()) / len(ratios) if ratios else None)


def _estimates_of(run: RunComparison, *, are_effects: bool) -> tuple[GroupEstimate, ...]:
    return tuple(
        estimate
        for estimate in run.between_hosts.group_estimates
        if bool(estimate.against) == are_effects
    )
