"""Several hosts: what they say together, a row for each, and groups of them against each other.

Of groups it says first what differs between them, then times and costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from envcompare.analysis.model.comparison import Outcome, RunComparison
from envcompare.analysis.model.machines import GroupDifference, GroupEstimate, HostsEstimate
from envcompare.fingerprint.facts import fact
from envcompare.report.format.blocks import (
    Block,
    Column,
    Fold,
    Heading,
    Items,
    Line,
    Row,
    Section,
    Span,
    Table,
    Words,
    table_of,
)
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    signed_interval,
    signed_percent,
    time_text,
    unsigned_percent,
)
from envcompare.report.sections.comparisons import ComparedRow
from envcompare.report.wording.groupwords import (
    MACHINES_ALIKE,
    MIXED,
    basis_texts,
    estimate_sentence,
    estimates_of,
    group_names,
    groups_title,
    machine_differences,
    side_text,
    software_differences,
    subject,
    work_of,
)
from envcompare.report.wording.hostwords import odd_names
from envcompare.report.wording.hostwords import work_of as hosts_work
from envcompare.report.wording.labels import piece_word
from envcompare.report.wording.verdicts import SYMBOLS, WORDS
from envcompare.run_folder.records import HostGroup
from envcompare.text import visible

_EFFECTS: Final = (
    "How far the ratio of an environment to the one it is compared with differs between the groups."
)
_COSTS: Final = {"slower": "costs more", "faster": "costs less", "equivalent": "costs the same"}
_NS: Final = 1e9
_MOST_SENTENCES: Final = 8
_MOST_ROWS: Final = 20
FEW_HOSTS: Final = 8  # up to here the matrix of the overview has a symbol for each
_MOST_HOSTS: Final = 100
_MOST_COLUMNS: Final = 8
# what needs a look first
_ORDER: Final[tuple[Outcome, ...]] = (
    "failed",
    "not-run",
    "slower",
    "faster",
    "inconclusive",
    "equivalent",
)
_TOGETHER: Final = (
    "Each host compares for itself. A statement over hosts takes the host as a random effect: its "
    "interval is for the mean of hosts like these and widens with the spread between them."
)


def groups_section(run: RunComparison) -> Section | None:
    """Return what differs between the groups, their times, and what environments cost in each."""
    if not run.groups:
        return None
    machines = machine_differences(run)
    differing = _differences(run, machines, "What differs between the groups")
    effects = estimates_of(run, are_effects=True)
    return Section(
        anchor="groups",
        title=groups_title(run),
        link="Groups",
        blocks=(
            Items(items=group_names(run)),
            Heading(text="What differs between the groups"),
            differing if machines else Line(text=MACHINES_ALIKE),
            *_software(run),
            Heading(text="Time of the same work"),
            *_sentences(run, estimates_of(run, are_effects=False)),
            _folded(_times(run)),
            *(_effects(run) if effects else ()),
            Items(items=basis_texts(run)),
        ),
    )


def _effects(run: RunComparison) -> tuple[Block, ...]:
    heading = Heading(text="What environments cost in each group")
    effects = estimates_of(run, are_effects=True)[:_MOST_SENTENCES]
    sentences = (Line(text=estimate_sentence(run, one)) for one in effects)
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
        Line(before=(_badge(one),), text=estimate_sentence(run, one))
        for one in leading[:_MOST_SENTENCES]
    )


def _badge(estimate: GroupEstimate | HostsEstimate) -> Span:
    text = f"{SYMBOLS[estimate.outcome]} {WORDS[estimate.outcome]}"
    return Span(text=text, style=f"badge {estimate.outcome}")


def _differences(run: RunComparison, told: tuple[GroupDifference, ...], label: str) -> Table:
    first, *others = run.groups
    return table_of(
        label,
        told,
        ("Property", "name", lambda difference: fact(difference.key).name),
        (visible(first.name), "text", lambda difference: visible(side_text(difference, first))),
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
        visible(side_text(difference, group)) if difference.group == group.name else "as the first"
    )


def _reach(difference: GroupDifference) -> str:
    return "all hosts of the groups" if difference.is_apart else "some hosts; others are alike"


def _software(run: RunComparison) -> tuple[Block, ...]:
    told = software_differences(run)
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
        estimates_of(run, are_effects=False),
        ("Workload", "name", work_of),
        ("Environment", "name", subject),
        (
            "Groups",
            "name",
            lambda estimate: visible(f"{estimate.group} ÷ {estimate.reference_group}"),
        ),
        ("Verdict", "text", _verdict),
        ("Change", "number", _change),
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
        estimates_of(run, are_effects=True),
        ("Workload", "name", work_of),
        ("Environment", "name", subject),
        (
            "Groups",
            "name",
            lambda estimate: visible(f"{estimate.reference_group} → {estimate.group}"),
        ),
        ("Verdict", "text", _cost_verdict),
        (f"Cost in {first}", "number", lambda estimate: _mean(estimate.reference_values)),
        (f"Cost in {other}", "number", lambda estimate: _mean(estimate.values)),
        ("Difference", "number", _change),
        ("Interval", "text", _interval),
    )


def _verdict(estimate: GroupEstimate) -> Words:
    mixed = (Span(text=MIXED),) if estimate.is_confounded else ()
    return Line(before=(_badge(estimate),), after=mixed, text=estimate.why_not)


def _cost_verdict(estimate: GroupEstimate) -> str:
    mixed = MIXED * estimate.is_confounded
    words = _COSTS.get(estimate.outcome, WORDS[estimate.outcome])
    return f"{SYMBOLS[estimate.outcome]} {words}{mixed}"


def _change(estimate: GroupEstimate) -> str:
    return NOT_MEASURED if estimate.log_ratio is None else signed_percent(estimate.log_ratio)


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
    return signed_percent(sum(ratios.values()) / len(ratios)) if ratios else NOT_MEASURED


def over_hosts_blocks(run: RunComparison) -> tuple[Block, ...]:
    """Return what hosts say together, nothing where no two of them compared the same."""
    if not run.over_hosts:
        return ()
    table = table_of(
        "Over hosts",
        run.over_hosts,
        ("Workload", "name", hosts_work),
        ("Environment", "name", lambda estimate: visible(estimate.arm)),
        ("Over hosts", "text", lambda estimate: Line(before=(_badge(estimate),))),
        ("Mean change", "number", lambda estimate: signed_percent(estimate.log_ratio)),
        ("Interval", "text", lambda estimate: signed_interval(estimate.low, estimate.high)),
        ("Spread of hosts", "number", lambda estimate: f"±{unsigned_percent(estimate.tau)}"),
        ("Hosts", "number", _hosts),
        ("Far from the others", "text", odd_names),
    )
    return (Line(text=_TOGETHER), table)


def _hosts(estimate: HostsEstimate) -> str:
    return (
        visible(f"{estimate.hosts} of {estimate.group}") if estimate.group else str(estimate.hosts)
    )


def host_blocks(run: RunComparison, rows: list[ComparedRow]) -> tuple[Block, ...]:
    """Return the table of hosts where they are too many for the matrix."""
    by_host: dict[str, dict[tuple[str, str], ComparedRow]] = {}
    for row in rows:
        by_host.setdefault(row.comparison.host, {})[row.comparison.arm, row.work] = row
    if len(by_host) <= FEW_HOSTS:
        return ()
    columns = tuple(dict.fromkeys(place for cells in by_host.values() for place in cells))
    odd = {host for one in run.over_hosts for host in one.odd_hosts}
    ordered = sorted(by_host, key=lambda host: _urgency(host in odd, list(by_host[host].values())))
    shown = columns[:_MOST_COLUMNS]
    table = Table(
        label="Hosts",
        caption=_left_out(len(by_host), len(columns)),
        style="fit",
        columns=(
            Column(head="Host", kind="name", is_row_head=True),
            *(Column(head=arm, note=work, kind="text") for arm, work in shown),
        ),
        rows=tuple(
            Row(
                cells=(
                    f"{visible(host)} (far from the others)" if host in odd else visible(host),
                    *(_cell(by_host[host].get(place)) for place in shown),
                )
            )
            for host in ordered[:_MOST_HOSTS]
        ),
    )
    intro = "A row for each host: those far from the others first, then by verdict and size."
    return (Line(text=intro), table)


def _urgency(is_odd: bool, rows: list[ComparedRow]) -> tuple[bool, int, float]:  # noqa: FBT001
    first = min(_ORDER.index(row.verdict.outcome) for row in rows)
    return not is_odd, first, -max(row.size for row in rows)


def _cell(row: ComparedRow | None) -> Words:
    if row is None:
        return "–"
    words = row.verdict
    text = signed_percent(words.log_ratio) if words.log_ratio is not None else words.claim
    mixed = " ⚠" * words.is_confounded
    return Line(text=f"{words.symbol} {text}{mixed}", href=f"#{row.anchor}", style=words.outcome)


def _left_out(hosts: int, columns: int) -> str:
    parts = [f"{hosts - _MOST_HOSTS} more hosts"] * (hosts > _MOST_HOSTS)
    parts += [f"{columns - _MOST_COLUMNS} more comparisons of each"] * (columns > _MOST_COLUMNS)
    return f"{' and '.join(parts)}: see All comparisons." if parts else ""
