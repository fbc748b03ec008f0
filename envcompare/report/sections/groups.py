"""Groups of hosts compared: their differences, their times, and the costs of environments.

The page, the terminal and Markdown share the sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from envcompare.analysis.model.comparison import RunComparison
from envcompare.analysis.model.machines import GroupDifference, GroupEstimate
from envcompare.fingerprint.facts import fact
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
    signed_interval,
    signed_percent,
    time_text,
)
from envcompare.report.wording.groupwords import (
    EFFECTS,
    MACHINES_ALIKE,
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
from envcompare.report.wording.labels import group_work, piece_word
from envcompare.report.wording.verdicts import SYMBOLS, outcome_badge
from envcompare.run_folder.records import HostGroup
from envcompare.text import visible

_MOST_DIFFERENCES: Final = 12
_MOST_STATEMENTS: Final = 20
_NS: Final = 1e9
_MOST_SENTENCES: Final = 8
_MOST_ROWS: Final = 20


def groups_section(run: RunComparison) -> Section | None:
    """Return the differences between groups, their times, and the costs of environments in each."""
    if not run.groups:
        return None
    machines = machine_differences(run)
    differing = _differences(run, machines, "What differs between the groups")
    effects = _estimates_of(run, are_effects=True)
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
            *_sentences(run, _estimates_of(run, are_effects=False)),
            _folded(_times(run)),
            *(_effects(run) if effects else ()),
            Items(items=basis_texts(run)),
        ),
    )


def groups_blocks(run: RunComparison) -> Iterator[PlainBlock]:
    """Yield for terminal and Markdown the differences, the estimates and their basis."""
    if not run.groups:
        return
    differing = difference_texts(run)
    yield Line(strong=groups_title(run))
    yield Items(items=group_names(run))
    yield Line(text="What differs between the groups:" if differing else MACHINES_ALIKE)
    if differing:
        yield Items(items=_first(differing))
    for estimate in run.group_estimates[:_MOST_STATEMENTS]:
        text = f"{SYMBOLS[estimate.outcome]} {estimate_sentence(run, estimate)}"
        yield Line(text=text, style=estimate.outcome)
    if (left_out := len(run.group_estimates) - _MOST_STATEMENTS) > 0:
        yield Line(text=f"and {left_out} more in report.html")
    yield Items(items=basis_texts(run), style="note")


def _first(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first texts, and the number that only the report shows."""
    more = len(texts) - _MOST_DIFFERENCES
    return texts if more <= 0 else (*texts[:-more], f"and {more} more in report.html")


def _effects(run: RunComparison) -> tuple[Block, ...]:
    heading = Heading(text="What environments cost in each group")
    effects = _estimates_of(run, are_effects=True)[:_MOST_SENTENCES]
    sentences = (Line(text=estimate_sentence(run, one)) for one in effects)
    return (heading, Line(text=EFFECTS), *sentences, _folded(_costs(run)))


def _folded(table: Table) -> Block:
    """Return a table, inside a fold if it would push the answer far down."""
    if len(table.rows) <= _MOST_ROWS:
        return table
    return Fold(summary=f"{table.label} ({len(table.rows)})", is_open=False, blocks=(table,))


def _sentences(run: RunComparison, estimates: tuple[GroupEstimate, ...]) -> tuple[Block, ...]:
    """Start with the arm that all others are compared with."""
    leading = [one for one in estimates if one.arm in run.all_references]
    return tuple(
        Line(before=(outcome_badge(one.outcome),), text=estimate_sentence(run, one))
        for one in leading[:_MOST_SENTENCES]
    )


def _differences(run: RunComparison, rows: tuple[GroupDifference, ...], label: str) -> Table:
    first, *others = run.groups
    return table_of(
        label,
        rows,
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
    """Return the values of a group, "as the first" if the difference concerns another group."""
    return (
        visible(side_text(difference, group)) if difference.group == group.name else "as the first"
    )


def _reach(difference: GroupDifference) -> str:
    return "all hosts of the groups" if difference.is_apart else "some hosts; others are alike"


def _software(run: RunComparison) -> tuple[Block, ...]:
    differences = _software_differences(run)
    if not differences:
        return ()
    is_open = any(one.fact_class == "confounder" for one in differences)
    table = _differences(run, differences, "Software that differs between the groups")
    mark = "⚠ Software and settings differ as well" if is_open else "Settings differ as well"
    return (Fold(summary=f"{mark} ({len(differences)})", is_open=False, blocks=(table,)),)


def _names(run: RunComparison) -> tuple[str, str]:
    """Name the first group, and the other group or groups."""
    first, *others = run.groups
    return visible(first.name), visible(others[0].name) if len(others) == 1 else "the other"


def _times(run: RunComparison) -> Table:
    (first, other), piece = _names(run), piece_word(run)
    return table_of(
        "Times of the groups",
        _estimates_of(run, are_effects=False),
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
        (f"Typical {piece}, {other}", "number", lambda estimate: _typical(estimate.values)),
        ("Unit", "text", _unit),
    )


def _costs(run: RunComparison) -> Table:
    first, other = _names(run)
    return table_of(
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


def _verdict(estimate: GroupEstimate) -> Words:
    mixed = (Span(text=MIXED),) if estimate.is_confounded else ()
    return Line(before=(outcome_badge(estimate.outcome),), after=mixed, text=estimate.why_not)


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


def _software_differences(run: RunComparison) -> tuple[GroupDifference, ...]:
    """Return the differences that are not of the machines, confounders first."""
    return tuple(one for one in run.group_differences if one.fact_class != "host")


def _estimates_of(run: RunComparison, *, are_effects: bool) -> tuple[GroupEstimate, ...]:
    """Return the estimates of times, or those of environment costs."""
    return tuple(one for one in run.group_estimates if bool(one.against) == are_effects)
