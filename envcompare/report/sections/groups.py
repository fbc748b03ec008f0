"""Groups of hosts against each other: what differs between them, the times of each, and costs.

The sentences are for the page, the terminal and Markdown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from envcompare.analysis.model.comparison import RunComparison
from envcompare.analysis.model.machines import GroupDifference, GroupEstimate
from envcompare.fingerprint.facts import fact
from envcompare.fingerprint.sentences import value_text
from envcompare.report.blocks import (
    Block,
    Fold,
    Heading,
    Items,
    Line,
    PlainBlock,
    Section,
    Span,
    Table,
    Words,
    table_of,
)
from envcompare.report.numbers import (
    NOT_MEASURED,
    listed,
    margin_percent,
    signed_interval,
    signed_percent,
    time_text,
    unsigned_interval,
    unsigned_percent,
)
from envcompare.report.wording.labels import piece_word
from envcompare.report.wording.verdicts import SYMBOLS, WORDS, outcome_badge
from envcompare.run_folder.records import FingerprintValue, HostGroup
from envcompare.text import assigned, visible

_MACHINES_ALIKE: Final = "The machines do not differ in anything that envcompare records."
_MIXED: Final = " ⚠ confounded"
_MOST_HOSTS: Final = 4
_MOST_DIFFERENCES: Final = 12
_MOST_STATEMENTS: Final = 20
_UNPAIRED: Final = (
    "Times of different machines are compared here, measured at moments of their own. Nothing "
    "pairs them, so that a busy neighbor or a slow hour of one machine does not cancel."
)
_OVER_HOSTS: Final = (
    "The unit is the host: each interval comes from how hosts of a group differ, and holds for "
    "groups of hosts like these."
)
_NO_SPREAD: Final = (
    "One host of {} was measured, {}, and what is said is about that host. Its intervals hold for "
    "further hosts of {} only if those scatter no more than the hosts of the other group do, which "
    "nothing here shows."
)
_TWO_MACHINES: Final = (
    "One host of each group was measured, so that each interval comes from restarts. It is about "
    "the machines {} and {}, and says nothing about other hosts of {} and {}."
)
_LEFT_OUT: Final = (
    "These hosts have too few restarts to estimate their error, and were left out: {}."
)
_FAILED: Final = (
    "The A/A control failed on {}: what it gave by itself is not claimed as a difference of what "
    "environments cost."
)
_LEVEL: Final = (
    "The intervals of the times together err in 5 % of the runs at most, and so do those of what "
    "environments cost."
)
_EFFECTS: Final = (
    "How far the ratio of an environment to the one it is compared with differs between the groups."
)
_COSTS: Final = {"slower": "costs more", "faster": "costs less", "equivalent": "costs the same"}
_NS: Final = 1e9
_MOST_SENTENCES: Final = 8
_MOST_ROWS: Final = 20


def groups_section(run: RunComparison) -> Section | None:
    """Return what differs between the groups, their times, and what environments cost in each."""
    if not run.groups:
        return None
    machines = _machine_differences(run)
    differing = _differences(run, machines, "What differs between the groups")
    effects = _estimates_of(run, are_effects=True)
    return Section(
        anchor="groups",
        title=_groups_title(run),
        link="Groups",
        blocks=(
            Items(items=_group_names(run)),
            Heading(text="What differs between the groups"),
            differing if machines else Line(text=_MACHINES_ALIKE),
            *_software(run),
            Heading(text="Time of the same work"),
            *_sentences(run, _estimates_of(run, are_effects=False)),
            _folded(_times(run)),
            *(_effects(run) if effects else ()),
            Items(items=basis_texts(run)),
        ),
    )


def groups_blocks(run: RunComparison) -> Iterator[PlainBlock]:
    """Yield for terminal and Markdown what differs, how groups compare, and what that rests on."""
    if not run.groups:
        return
    differing = difference_texts(run)
    yield Line(strong=_groups_title(run))
    yield Items(items=_group_names(run))
    yield Line(text="What differs between the groups:" if differing else _MACHINES_ALIKE)
    if differing:
        yield Items(items=_first(differing))
    for estimate in run.group_estimates[:_MOST_STATEMENTS]:
        text = f"{SYMBOLS[estimate.outcome]} {_estimate_sentence(run, estimate)}"
        yield Line(text=text, style=estimate.outcome)
    if (left_out := len(run.group_estimates) - _MOST_STATEMENTS) > 0:
        yield Line(text=f"and {left_out} more in report.html")
    yield Items(items=basis_texts(run), style="note")


def _first(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first texts, and how many stand in the report alone."""
    more = len(texts) - _MOST_DIFFERENCES
    return texts if more <= 0 else (*texts[:-more], f"and {more} more in report.html")


def _effects(run: RunComparison) -> tuple[Block, ...]:
    heading = Heading(text="What environments cost in each group")
    effects = _estimates_of(run, are_effects=True)[:_MOST_SENTENCES]
    sentences = (Line(text=_estimate_sentence(run, one)) for one in effects)
    return (heading, Line(text=_EFFECTS), *sentences, _folded(_costs(run)))


def _folded(table: Table) -> Block:
    """Return a table, behind its name where it would push the answer far down."""
    if len(table.rows) <= _MOST_ROWS:
        return table
    return Fold(summary=f"{table.label} ({len(table.rows)})", is_open=False, blocks=(table,))


def _sentences(run: RunComparison, estimates: tuple[GroupEstimate, ...]) -> tuple[Block, ...]:
    """Lead with the arm that all others are compared with."""
    leading = [one for one in estimates if one.arm in run.all_references]
    return tuple(
        Line(before=(outcome_badge(one.outcome),), text=_estimate_sentence(run, one))
        for one in leading[:_MOST_SENTENCES]
    )


def _differences(run: RunComparison, told: tuple[GroupDifference, ...], label: str) -> Table:
    first, *others = run.groups
    return table_of(
        label,
        told,
        ("Property", "name", lambda difference: fact(difference.key).name),
        (visible(first.name), "text", lambda difference: visible(_side_text(difference, first))),
        *(
            (visible(group.name), "text", lambda difference, group=group: _other(difference, group))
            for group in others
        ),
        ("Seen in", "text", lambda difference: visible(difference.arm)),
        ("On", "text", _reach),
    )


def _other(difference: GroupDifference, group: HostGroup) -> str:
    """Return the values of a group; a difference of another group says nothing of it."""
    return (
        visible(_side_text(difference, group)) if difference.group == group.name else "as the first"
    )


def _reach(difference: GroupDifference) -> str:
    return "all hosts of the groups" if difference.is_apart else "some hosts; others are alike"


def _software(run: RunComparison) -> tuple[Block, ...]:
    told = _software_differences(run)
    if not told:
        return ()
    is_open = any(one.fact_class == "confounder" for one in told)
    table = _differences(run, told, "Software that differs between the groups")
    mark = "⚠ Software and settings differ as well" if is_open else "Settings differ as well"
    return (Fold(summary=f"{mark} ({len(told)})", is_open=False, blocks=(table,)),)


def _names(run: RunComparison) -> tuple[str, str]:
    """Name the first group, and the other or the others."""
    first, *others = run.groups
    return visible(first.name), visible(others[0].name) if len(others) == 1 else "the other"


def _times(run: RunComparison) -> Table:
    (first, other), piece = _names(run), piece_word(run)
    return table_of(
        "Times of the groups",
        _estimates_of(run, are_effects=False),
        ("Workload", "name", work_of),
        ("Environment", "name", _subject),
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
        (f"Typical {piece}, {other}", "number", lambda estimate: _typical(estimate.values)),
        ("Unit", "text", _unit),
    )


def _costs(run: RunComparison) -> Table:
    first, other = _names(run)
    return table_of(
        "What environments cost in each group",
        _estimates_of(run, are_effects=True),
        ("Workload", "name", work_of),
        ("Environment", "name", _subject),
        (
            "Groups",
            "name",
            lambda estimate: visible(f"{estimate.reference_group} → {estimate.group}"),
        ),
        ("Verdict", "text", _cost_verdict),
        (f"Cost in {first}", "number", lambda estimate: _mean(estimate.reference_values)),
        (f"Cost in {other}", "number", lambda estimate: _mean(estimate.values)),
        ("Difference", "number", lambda estimate: signed_percent(estimate.log_ratio)),
        ("Interval", "text", _interval),
    )


def _verdict(estimate: GroupEstimate) -> Words:
    mixed = (Span(text=_MIXED),) if estimate.is_confounded else ()
    return Line(before=(outcome_badge(estimate.outcome),), after=mixed, text=estimate.why_not)


def _cost_verdict(estimate: GroupEstimate) -> str:
    mixed = _MIXED * estimate.is_confounded
    words = _COSTS.get(estimate.outcome, WORDS[estimate.outcome])
    return f"{SYMBOLS[estimate.outcome]} {words}{mixed}"


def _interval(estimate: GroupEstimate) -> str:
    return "" if estimate.log_ratio is None else signed_interval(estimate.low, estimate.high)


def _unit(estimate: GroupEstimate) -> str:
    return f"{estimate.unit}s" if estimate.log_ratio is not None else ""


def _typical(seconds: Mapping[str, float]) -> str:
    """Return the geometric mean over hosts."""
    if not seconds:
        return NOT_MEASURED
    mean = sum(math.log(each) for each in seconds.values()) / len(seconds)
    return time_text(_NS * math.exp(mean))


def _mean(ratios: Mapping[str, float]) -> str:
    return signed_percent(sum(ratios.values()) / len(ratios) if ratios else None)


def _groups_title(run: RunComparison) -> str:
    """Return "Two groups of machines: metal and cloud"."""
    count = {2: "Two", 3: "Three", 4: "Four"}.get(len(run.groups), str(len(run.groups)))
    names = listed([group.name for group in run.groups], most=_MOST_HOSTS)
    return visible(f"{count} groups of machines: {names}")


def _group_names(run: RunComparison) -> tuple[str, ...]:
    """Name each group with its hosts."""
    return tuple(
        visible(f"{group.name}: {listed(group.hosts, most=_MOST_HOSTS)}") for group in run.groups
    )


def _group(run: RunComparison, name: str) -> HostGroup:
    return next(group for group in run.groups if group.name == name)


def difference_texts(run: RunComparison) -> tuple[str, ...]:
    """Say what differs between the machines of the groups."""
    machines = _machine_differences(run)
    return tuple(f"{fact(one.key).name}: {_values_text(run, one)}" for one in machines)


def _machine_differences(run: RunComparison) -> tuple[GroupDifference, ...]:
    """Return the properties of the machines in which groups differ.

    Those that part all hosts come first, and within them the long list of mitigations last.
    """
    machines = (one for one in run.group_differences if one.fact_class == "host")

    def rank(difference: GroupDifference) -> tuple[bool, bool]:
        return not difference.is_apart, difference.key.startswith("vulnerabilities.")

    return tuple(sorted(machines, key=rank))


def _software_differences(run: RunComparison) -> tuple[GroupDifference, ...]:
    """Return what differs beside the machines, the confounders first."""
    return tuple(one for one in run.group_differences if one.fact_class != "host")


def _values_text(run: RunComparison, difference: GroupDifference) -> str:
    """Return the values of both groups: "AMD EPYC in metal, Intel Xeon in cloud"."""
    names = difference.reference_group, difference.group
    return visible(
        "; ".join(f"{_side_text(difference, _group(run, name))} in {name}" for name in names)
    )


def _side_text(difference: GroupDifference, group: HostGroup) -> str:
    """Return the values of a group, each with its hosts where they are several."""
    hosts: dict[str, list[str]] = {}
    for host in group.hosts:
        if host in difference.values:
            hosts.setdefault(_value(difference.key, difference.values[host]), []).append(host)
    if len(hosts) == 1:
        return next(iter(hosts))
    told = (f"{value} on {listed(names, most=_MOST_HOSTS)}" for value, names in hosts.items())
    return ", ".join(told)


def _value(key: str, value: FingerprintValue) -> str:
    return "not known" if value is None else value_text(key, value)


def work_of(estimate: GroupEstimate) -> str:
    """Name the workload of an estimate with its parameters."""
    within = f"in {estimate.within}" if estimate.within else ""
    return visible(
        " ".join(filter(None, (estimate.workload, within, *assigned(estimate.parameters))))
    )


def _subject(estimate: GroupEstimate) -> str:
    """Name what is compared: an arm, or what it costs against another."""
    return visible(
        f"{estimate.arm} against {estimate.against}" if estimate.against else estimate.arm
    )


def _estimate_sentence(run: RunComparison, estimate: GroupEstimate) -> str:
    """Return "cnn in vm: cloud is 8.4 % slower than metal (8.0 to 8.7 %)."."""
    work = work_of(estimate)
    lead = f"{work}, {_subject(estimate)}" if estimate.against else f"{work} in {estimate.arm}"
    return visible(f"{lead}: {_claim(run, estimate)}{_MIXED * estimate.is_confounded}.")


def _claim(run: RunComparison, estimate: GroupEstimate) -> str:
    """Say how the group compares with the first one."""
    if estimate.log_ratio is None:
        return f"not compared: {estimate.why_not}"
    if estimate.against:
        return _effect_claim(run, estimate)
    return _time_claim(run, estimate)


def _sides(estimate: GroupEstimate) -> tuple[str, str]:
    """Name both sides, the first group last: what is known of one host is said of that alone."""
    sides = (estimate.group, estimate.values), (estimate.reference_group, estimate.reference_values)
    there, here = (
        f"{next(iter(hosts))} of {group}" if len(hosts) == 1 else group for group, hosts in sides
    )
    return there, here


def _time_claim(run: RunComparison, estimate: GroupEstimate) -> str:
    size = estimate.log_ratio or 0.0
    there, here = _sides(estimate)
    figures = unsigned_interval(estimate.low, estimate.high)
    match estimate.outcome:
        case "slower":
            said = f"{unsigned_percent(size)} slower than {here} ({figures})"
        case "faster":
            said = f"faster: {unsigned_percent(size)} less time than {here} ({figures})"
        case _:
            said = _undecided(run, estimate, here)
    return f"{there} is {said}"


def _signed(estimate: GroupEstimate) -> str:
    ends = signed_interval(estimate.low, estimate.high)
    return f"{signed_percent(estimate.log_ratio or 0.0)}, {ends}"


def _undecided(run: RunComparison, estimate: GroupEstimate, here: str) -> str:
    interval = _signed(estimate)
    if estimate.outcome == "equivalent":
        return f"equivalent to {here} within ±{margin_percent(run.margin)} ({interval})"
    return f"not shown to be slower or faster than {here}: inconclusive ({interval})"


def _effect_claim(run: RunComparison, estimate: GroupEstimate) -> str:
    figures = _signed(estimate)
    counts = len(estimate.values), len(estimate.reference_values)
    there, here = (
        f"{'on' if count == 1 else 'in'} {side}"
        for side, count in zip(_sides(estimate), counts, strict=True)
    )
    match estimate.outcome:
        case "slower":
            return f"{estimate.arm} costs more {there} than {here} ({figures})"
        case "faster":
            return f"{estimate.arm} costs less {there} than {here} ({figures})"
        case "equivalent":
            return f"the same {there} as {here} within ±{margin_percent(run.margin)} ({figures})"
        case _:
            return f"not shown to cost more or less {there} than {here}: inconclusive ({figures})"


def basis_texts(run: RunComparison) -> tuple[str, ...]:
    """Say what the intervals rest on and what they are not about."""
    known = [one for one in run.group_estimates if one.log_ratio is not None]
    of_two = dict.fromkeys(
        (*one.reference_values, *one.values, one.reference_group, one.group)
        for one in known
        if one.unit == "restart"
    )
    over_hosts = [one for one in known if one.unit == "host"]
    single = dict.fromkeys(
        (name, next(iter(values)), name)
        for one in over_hosts
        for name, values in ((one.reference_group, one.reference_values), (one.group, one.values))
        if len(values) == 1
    )
    said = [_UNPAIRED, *(_TWO_MACHINES.format(*pair) for pair in of_two)]
    said += [_OVER_HOSTS] * bool(over_hosts)
    said += (_NO_SPREAD.format(*each) for each in single)
    left_out = dict.fromkeys(host for one in known for host in one.left_out)
    if left_out:
        said.append(_LEFT_OUT.format(listed(tuple(left_out), most=_MOST_HOSTS)))
    failed = dict.fromkeys(host for one in run.group_estimates for host in one.failed_controls)
    if failed:
        said.append(_FAILED.format(listed(tuple(failed), most=_MOST_HOSTS)))
    confounded = dict.fromkeys(one.arm for one in run.group_estimates if one.is_confounded)
    if confounded:
        said.append(
            f"⚠ Besides the machines, software or a limit differs between the groups in "
            f"{listed(tuple(confounded))}: the data cannot separate their effects."
        )
    return tuple(map(visible, (*said, _LEVEL)))


def _estimates_of(run: RunComparison, *, are_effects: bool) -> tuple[GroupEstimate, ...]:
    """Return the estimates of times, or of what environments cost."""
    return tuple(one for one in run.group_estimates if bool(one.against) == are_effects)
