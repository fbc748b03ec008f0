"""The overview: workload × environment, a symbol for each host."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from envcompare.analysis.model.comparison import Outcome, RunComparison
from envcompare.report.format.numbers import signed_percent
from envcompare.report.sections.headlines import mean_log_ratio
from envcompare.report.sections.tables import Row
from envcompare.report.wording.verdicts import MOVED, WORDS, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewCell:
    """One workload in one environment, a symbol for each host and set of parameters."""

    outcome: Outcome | None
    number: str = ""
    word: str = ""
    symbols: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Workload × environment; a symbol for each host, or for each cell where no host is named."""

    arms: tuple[str, ...]
    hosts: tuple[str, ...]
    rows: tuple[tuple[str, tuple[OverviewCell, ...]], ...]


def overview(rows: tuple[Row, ...], run: RunComparison) -> Overview:
    """Return the matrix of workloads and environments."""
    compared = [row for row in rows if not row.is_control]
    workload_of = {one.cell: one.workload for one in run.comparisons}
    arms = tuple(dict.fromkeys(row.verdict.arm for row in compared))
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in compared:
        groups.setdefault((workload_of[row.verdict.cell_id], row.verdict.arm), []).append(row)
    workloads = dict.fromkeys(workload for workload, _ in groups)
    is_by_host = all(len({row.host for row in found}) == len(found) for found in groups.values())
    hosts = tuple(dict.fromkeys(row.host for row in compared)) if is_by_host else ()
    return Overview(
        arms=arms,
        hosts=hosts,
        rows=tuple(
            (
                workload,
                tuple(_overview_cell(groups.get((workload, arm), []), hosts) for arm in arms),
            )
            for workload in workloads
        ),
    )


def _overview_cell(rows: list[Row], hosts: tuple[str, ...]) -> OverviewCell:
    if not rows:
        return OverviewCell(outcome=None)
    verdicts = tuple(row.verdict for row in rows)
    mean = mean_log_ratio(verdicts)
    outcome, word = _summary(verdicts)
    return OverviewCell(
        outcome=outcome,
        number=signed_percent(mean) if mean is not None else "",
        word=word,
        symbols=_symbols(rows, hosts),
        href=f"#{rows[0].anchor}",
    )


def _summary(verdicts: tuple[Verdict, ...]) -> tuple[Outcome | None, str]:
    """Return what most of the cells are, the one way in which any moved first, and in how many."""
    counts = Counter(one.outcome for one in verdicts)
    moved = [outcome for outcome in MOVED if counts[outcome]]
    if len(moved) == len(MOVED):
        return None, "faster and slower"
    outcome = moved[0] if moved else counts.most_common(1)[0][0]
    word = WORDS[outcome]
    if counts[outcome] == len(verdicts):
        return outcome, word
    return outcome, f"{counts[outcome]} of {len(verdicts)} {word}"


def _symbols(rows: list[Row], hosts: tuple[str, ...]) -> str:
    """Return a symbol for each host in their order, a dot where nothing was planned on one."""
    found = [row.verdict.symbol + "⚠" * row.verdict.is_confounded for row in rows]
    if not hosts:
        return " ".join(found)
    on = dict(zip((row.host for row in rows), found, strict=True))
    return " ".join(on.get(host, "·") for host in hosts)
