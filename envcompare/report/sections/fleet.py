"""Many hosts on one page: what they say together, and a row for each, the odd ones first."""

from __future__ import annotations

from typing import Final

from envcompare.analysis.model.comparison import HostsEstimate, Outcome, RunComparison
from envcompare.report.format.blocks import Block, Column, Line, Row, Span, Table, Words
from envcompare.report.format.numbers import signed_interval, signed_percent, unsigned_percent
from envcompare.report.sections.comparisons import ComparedRow
from envcompare.report.sections.fields import table_of
from envcompare.report.wording.hostwords import odd_names, work_of
from envcompare.report.wording.verdicts import SYMBOLS, WORDS
from envcompare.text import visible

FEW_HOSTS: Final = 8  # up to here the matrix of the overview has a symbol for each
_MOST_ROWS: Final = 100
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


def over_hosts_blocks(run: RunComparison) -> tuple[Block, ...]:
    """Return what hosts say together, nothing where no two of them compared the same."""
    if not run.over_hosts:
        return ()
    table = table_of(
        "Over hosts",
        run.over_hosts,
        ("Workload", "name", work_of),
        ("Environment", "name", lambda estimate: visible(estimate.arm)),
        ("Over hosts", "text", _badge),
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


def _badge(estimate: HostsEstimate) -> Words:
    text = f"{SYMBOLS[estimate.outcome]} {WORDS[estimate.outcome]}"
    return Line(before=(Span(text=text, style=f"badge {estimate.outcome}"),))


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
            for host in ordered[:_MOST_ROWS]
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
    parts = [f"{hosts - _MOST_ROWS} more hosts"] * (hosts > _MOST_ROWS)
    parts += [f"{columns - _MOST_COLUMNS} more comparisons of each"] * (columns > _MOST_COLUMNS)
    return f"{' and '.join(parts)}: see All comparisons." if parts else ""
