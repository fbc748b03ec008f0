"""Tables of profiles: quantities side by side, ledgers of a step, kernels of two arms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from typing import Final

from msgspec.structs import replace as changed

from envcompare.analysis.model import RunComparison
from envcompare.analysis.model.profiling import (
    ArmProfiles,
    CellProfiles,
    DiffKind,
    GpuPart,
    KernelDiff,
    KernelDiffRow,
    Ledger,
    LedgerPart,
    QuantityRow,
)
from envcompare.report import (
    Block,
    Column,
    Fold,
    Items,
    Kind,
    Line,
    Row,
    Span,
    Table,
    Words,
    grid_of,
    signed_bar,
    table_of,
    texts,
)
from envcompare.report.wording import (
    NOT_MEASURED,
    NS,
    TimeScale,
    bytes_text,
    cell_labels,
    listed,
    number_text,
    paired_times,
    quantity_text,
    ratio_text,
    short_name,
    signed_interval,
    signed_percent,
)
from envcompare.report.wording.profilewords import (
    PEAKS,
    change_share,
    helper_sentence,
    in_words,
    is_power,
    is_timed,
    kernel_sentence,
    part_label,
    quantity_name,
    timing_sentences,
)
from envcompare.run_folder.profiles import RUN_KERNELS_ALONE, Dim
from envcompare.text import counted, one_line, visible, visible_line

_MOST_LEADING: Final = 12
_MOST_TABLES: Final = 2
_MOST_NAMES: Final = 40
_UNKNOWN: Final = "not known"
_IN_TWO_PARTS: Final = (
    "Kernels keep the GPU busy in traced steps; in the host part of a timed step the GPU waits for "
    "the host. Intervals hold at 95 % each; that of kernels is over the steps of one traced start: "
    "other starts may differ more."
)
# of an import, on the first screen: work and traffic, then times if there are any
_LEADING: Final = (
    "flops_fp64", "flops_fp32", "flops_fp16", "flops_tensor", "flops_model", "dram_read_sectors",
    "dram_write_sectors", "dram_sectors", "dram_read_bytes_per_s", "dram_write_bytes_per_s",
    "dram_bytes_per_s", "arithmetic_intensity", "occupancy", "kernel_time_ns", "busy_ns",
    "launch_gap_ns", "collective_share", "memcpy_htod_bytes", "memcpy_dtoh_bytes",
    "memset_bytes", "launch_count",
)  # fmt: skip
_ABSENT: Final = "absent"
_TOO_SMALL: Final = "too small to tell"  # kernels last as long as the step
_SHOWN_BOTH: Final = 3  # of the kernels in both arms, those that changed most
_KINDS: Final[dict[DiffKind, str]] = {
    "replaced": "⇄ replaced",
    "only-reference": "− only in {reference}",
    "only-arm": "+ only in {arm}",
    "both": "= in both",
}
Key = tuple[str, str, str, int | None, int | None, str]
Place = tuple[Key, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityCell:
    """A value of one arm: its text, its ratio to the reference, or the reason for a gap."""

    text: str
    is_measured: bool = True
    ratio: str = ""
    word: str = ""  # "equal", "differs"
    is_zero: bool = False
    note: str = ""  # the reason for a missing value or ratio, or another tool


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityLine:
    """One quantity over the arms, with the rule, tool and scope that apply to it."""

    quantity: str  # the name in the profiles; empty if the line is not a quantity
    name: str
    per: str  # "per step", "whole profile", or empty
    basis: str
    cells: tuple[QuantityCell, ...]
    is_of_rank: bool = False

    @property
    def is_zero(self) -> bool:
        """Say whether every arm that has a value has 0."""
        return all(cell.is_zero for cell in self.cells if cell.is_measured)

    @property
    def is_equal(self) -> bool:
        """Say whether all arms agree with the first, and the same value is printed for them."""
        first, *others = self.cells
        return bool(others) and all(
            cell.word == "equal" and cell.text == first.text for cell in others
        )

    @property
    def is_measured(self) -> bool:
        """Say whether any arm has a value."""
        return any(cell.is_measured for cell in self.cells)


def quantity_lines(profiles: CellProfiles, *, of_power: bool = False) -> tuple[QuantityLine, ...]:
    """Return the quantities of the work, or those of power and clocks."""
    return _measured(_lines(profiles, lambda row: is_power(row.name) is of_power))


def quantity_blocks(
    profiles: CellProfiles,
    *,
    label: str,
    of_power: bool = False,
    said: Container[tuple[str, str]] = (),
) -> tuple[Block, ...]:
    """Return a table for each way of counting, and what was not measured.

    Quantities that are equal in all arms share a sentence. Reasons in `said` are left out.
    """
    lines = quantity_lines(profiles, of_power=of_power)
    by_basis: dict[str, list[QuantityLine]] = {}
    for line in lines:
        if not (line.is_zero or line.is_equal):
            by_basis.setdefault(line.basis, []).append(line)
    tables = tuple(
        grid_of(
            f"{label}: {basis}" if basis else label,
            _columns(profiles, kind="property"),
            ((_named(line), *map(_cell_line, line.cells)) for line in of_basis),
            caption=basis if place else f"{basis}; ratios are to {profiles.reference}",
        )
        for place, (basis, of_basis) in enumerate(by_basis.items())
    )
    equal = [
        " ".join(filter(None, (line.name, line.cells[0].text, line.per)))
        for line in lines
        if line.is_equal and not line.is_zero
    ]
    zeros = [line.name for line in lines if line.is_zero]
    missing = unmeasured(profiles, of_power=of_power)
    items = (
        *((f"Equal in all: {listed(equal, most=_MOST_NAMES)}",) * bool(equal)),
        *((f"0 wherever measured: {listed(zeros, most=_MOST_NAMES)}",) * bool(zeros)),
        *(f"Not measured, {one[0]}: {one[1]}" for one in missing if one not in said),
    )
    return (*tables, *((Items(items=items, style="small"),) * bool(items)))


def _leading_lines(profiles: CellProfiles) -> tuple[QuantityLine, ...]:
    """Return the lines of the first screen: GPUs, builds, then the most important quantities.

    Quantities that are 0 in every arm are left out.
    """
    every = _measured(
        _lines(profiles, lambda row: row.unit != "ns" or row.tool not in RUN_KERNELS_ALONE)
    )
    lines = (line for line in every if line.quantity in _LEADING and not line.is_zero)
    chosen = sorted(lines, key=lambda line: (line.is_of_rank, _LEADING.index(line.quantity)))
    return (*fact_lines(profiles), *chosen[:_MOST_LEADING])


def fact_lines(profiles: CellProfiles) -> tuple[QuantityLine, ...]:
    """Return GPU and builds of each arm; empty if no arm used a GPU."""
    if not any(profile_pass.has_gpu_work for arm in profiles.arms for profile_pass in arm.passes):
        return ()
    named = {"GPU": [listed(arm.gpus, most=3) for arm in profiles.arms]}
    if any(arm.builds for arm in profiles.arms):
        built = [", ".join(arm.builds) or "none" for arm in profiles.arms]
        named["builds in kernel names"] = built
    return tuple(
        QuantityLine(
            quantity="",
            name=name,
            per="",
            basis="",
            cells=tuple(QuantityCell(text=visible_line(text) or _UNKNOWN) for text in texts),
        )
        for name, texts in named.items()
    )


def leading_tables(run: RunComparison) -> tuple[Table, ...]:
    """Return the quantities that an import counted in its first cells; empty for a timed run."""
    labels, shown = cell_labels(run), () if is_timed(run) else run.profiles[:_MOST_TABLES]
    tables = (
        _leading_table(profiles, label=labels.get(profiles.cell, profiles.cell))
        for profiles in shown
    )
    return tuple(table for table in tables if table.rows)


def gpu_tables(run: RunComparison) -> tuple[Table, ...]:
    """Return GPU and host time per step of each comparison; empty without a GPU."""
    labels = cell_labels(run)
    rows = [(cell, parts) for cell in run.profiles for parts in cell.gpu_parts]
    if not rows:
        return ()
    table = table_of(
        "Kernels and host part",
        rows,
        ("Environment", "name", lambda row: visible(row[1].arm)),
        ("Workload", "name", lambda row: labels.get(row[0].cell, row[0].cell)),
        ("Kernels", "number", lambda row: _gpu_change(row[1].kernels, steps=row[1].steps)),
        ("GPU busy", "figure", lambda row: _gpu_times(row[1].kernels)),
        ("Host part", "number", lambda row: _gpu_change(row[1].host)),
        ("GPU idle", "figure", lambda row: _gpu_times(row[1].host)),
        caption=_IN_TWO_PARTS,
    )
    return (table,)


def _gpu_change(part: GpuPart | None, *, steps: tuple[int, int] | None = None) -> Words:
    """Return a change with its interval below, or the reason for a gap."""
    if part is None:
        return _TOO_SMALL
    interval = signed_interval(part.low, part.high)
    few = f" from {counted(min(steps), 'traced step')}" if steps and part.low is None else ""
    return Line(strong=signed_percent(part.log_ratio), below=(f"{interval}{few}",))


def _gpu_times(part: GpuPart | None) -> str:
    return _TOO_SMALL if part is None else paired_times(part.reference_ns / NS, part.arm_ns / NS)


def _leading_table(profiles: CellProfiles, *, label: str) -> Table:
    ratios = f"; ratios are to {profiles.reference}" * (len(profiles.arms) > 1)
    return grid_of(
        f"Profiles of {label}",
        _columns(profiles),
        (
            (_named(line), *(_leading_cell(line, cell) for cell in line.cells))
            for line in _leading_lines(profiles)
        ),
        caption=f"{label}: what the profiles counted{ratios}",
        style="leading",
    )


def _leading_cell(line: QuantityLine, cell: QuantityCell) -> Line:
    is_number = bool(line.quantity and cell.is_measured)
    remarks = (cell.ratio, cell.note * cell.is_measured)
    return Line(
        strong=cell.text * is_number,
        text=cell.text * (not is_number),
        after=tuple(Span(text=text, style="small") for text in remarks if text),
    )


def _columns(profiles: CellProfiles, *, kind: Kind = "text") -> tuple[Column, ...]:
    arms = (Column(head=arm.arm, kind="number") for arm in profiles.arms)
    return (Column(head="Quantity", kind=kind, is_row_head=True), *arms)


def _named(line: QuantityLine) -> Line:
    per = (Span(text=line.per, style="small"),) if line.per else ()
    return Line(text=line.name, after=per)


def _cell_line(cell: QuantityCell) -> Line | str:
    if not cell.is_measured:
        return cell.text
    compared = f"{cell.ratio} {cell.word}".strip()
    return Line(strong=cell.text, below=(compared, cell.note))


def unmeasured(profiles: CellProfiles, *, of_power: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the quantities without a value as names and arms, grouped by reason."""
    arms = tuple(arm.arm for arm in profiles.arms)
    missing: dict[str, dict[str, dict[str, None]]] = {}
    for line in _lines(profiles, lambda row: is_power(row.name) is of_power):
        for arm, cell in zip(arms, line.cells, strict=True):
            if not cell.is_measured:
                missing.setdefault(cell.note, {}).setdefault(line.name, {})[arm] = None
    gaps = []
    for reason, by_name in missing.items():
        by_arms: dict[tuple[str, ...], list[str]] = {}
        for name, lacking in by_name.items():
            by_arms.setdefault(tuple(lacking), []).append(name)
        for of, names in by_arms.items():
            where = "" if of == arms else f" in {listed(of, most=6)}"
            gaps.append((f"{listed(names, most=20)}{where}", reason))
    return tuple(gaps)


def partly_measured(profiles: CellProfiles) -> tuple[tuple[str, str], ...]:
    """Return the quantities that only some arms have: names, arms without them, and the reason."""
    shown = {line.name for line in quantity_lines(profiles)}
    arms = tuple(
        changed(arm, quantities=tuple(row for row in arm.quantities if _name(row) in shown))
        for arm in profiles.arms
    )
    return unmeasured(changed(profiles, arms=arms))


def _measured(lines: Iterable[QuantityLine]) -> tuple[QuantityLine, ...]:
    """Return the lines for which at least one arm has a value; each reason appears once."""

    def without_reason(cell: QuantityCell) -> QuantityCell:
        return cell if cell.is_measured else replace(cell, note="")

    return tuple(
        replace(line, cells=tuple(map(without_reason, line.cells)))
        for line in lines
        if line.is_measured
    )


def _lines(
    profiles: CellProfiles, wanted: Callable[[QuantityRow], bool]
) -> tuple[QuantityLine, ...]:
    rows = [[row for row in arm.quantities if wanted(row)] for arm in profiles.arms]
    counts = [Counter(map(_key, arm_rows)) for arm_rows in rows]
    # several tools may report on one arm: compare a tool only with itself
    crowded = {key for count in counts for key, times in count.items() if times > 1}
    tables = [_table(arm_rows, crowded) for arm_rows in rows]
    keys = dict.fromkeys(key for table in tables for key in table)
    return tuple(
        _line([(arm, table.get(key)) for arm, table in zip(profiles.arms, tables, strict=True)])
        for key in keys
    )


def _table(rows: Iterable[QuantityRow], crowded: Container[Key]) -> dict[Place, QuantityRow]:
    """Return rows by key; repeated keys, as with a second GPU, also get a position."""
    seen: Counter[Key] = Counter()
    table: dict[Place, QuantityRow] = {}
    for row in rows:
        key = _key(row, crowded)
        table[key, seen[key]] = row
        seen[key] += 1
    return table


def _key(row: QuantityRow, crowded: Container[Key] = ()) -> Key:
    """Return the key that a quantity shares with its counterpart in another arm."""
    key = (row.name, row.unit, row.kind, row.gpu, row.rank, "")
    return (*key[:5], row.tool or "") if key in crowded else key


def _line(pairs: list[tuple[ArmProfiles, QuantityRow | None]]) -> QuantityLine:
    rows = [row for _, row in pairs if row is not None]
    first = next((row for row in rows if row.value is not None), rows[0])
    values = [row for row in rows if row.value is not None]
    is_per_step = bool(values) and all(row.per_step is not None for row in values)
    whole = "whole profile" if values and first.rule == "sum" else ""
    per = "per step" if is_per_step else whole
    reasons = dict.fromkeys(in_words(one_line(row.reason)) for row in values if row.reason)
    sources = dict.fromkeys(row.source for row in rows if row.source)
    source = next(iter(sources), "") if len(sources) < 2 else ""
    return QuantityLine(
        quantity=first.name,
        name=_name(first),
        is_of_rank=first.rank is not None,
        per=per,
        basis=", ".join(filter(None, (first.rule, source, first.scope, "; ".join(reasons)))),
        cells=tuple(
            _cell(row, is_per_step=is_per_step, with_source=not source)
            if row is not None
            else _missing(_why_not(arm, first))
            for arm, row in pairs
        ),
    )


def _name(row: QuantityRow) -> str:
    places = (("rank", row.rank), ("GPU", row.gpu))
    where = ", ".join(f"{word} {number}" for word, number in places if number is not None)
    is_alone = row.name == "kernel_time_ns" and row.tool in RUN_KERNELS_ALONE
    name = f"{quantity_name(row.name)}, each run alone" if is_alone else quantity_name(row.name)
    return name + (f" ({where})" if where else "")


def _cell(row: QuantityRow, *, is_per_step: bool, with_source: bool) -> QuantityCell:
    if row.value is None:
        return _missing(in_words(one_line(row.reason)))
    value = row.per_step if is_per_step else row.value
    is_peak = row.name in PEAKS
    is_compared = row.agreement in {"equal", "differs"}
    why = why_no_ratio(row.unlike, page=row.page, rule=row.rule)
    return QuantityCell(
        text=bytes_text(value) if is_peak else quantity_text(value, row.unit),
        ratio=ratio_text(row.ratio) if row.agreement != "reference" else "",
        word=row.agreement if is_compared else "",
        is_zero=not value,
        note="; ".join(filter(None, (row.source if with_source else "", why))),
    )


def _missing(reason: str) -> QuantityCell:
    return QuantityCell(text=NOT_MEASURED, is_measured=False, note=reason)


def why_no_ratio(unlike: str, *, page: str, rule: str) -> str:
    """Return why a number is not comparable with the reference's; empty if it is."""
    kinds = {
        "tool": "another tool",
        "page": f"from the {page} page",
        "rule": f"averaged differently ({rule})",
        "ranks": "other ranks",
    }
    return f"no ratio: {kinds[unlike]}" if unlike else ""


def _why_not(arm: ArmProfiles, like: QuantityRow) -> str:
    """Return why the pass for a quantity is missing in an arm, or that it lacks the quantity."""
    same = [state for state in arm.passes if state.kind == like.kind]
    missing = [
        state.lacks.problem.reason for state in same if state.state == "missing" and state.lacks
    ]
    if missing:
        return one_line(missing[0])
    return "no profile of it says so" if same else "no such profile was taken"


def differences_of(
    profiles: CellProfiles | None, arm: str
) -> tuple[Ledger | None, KernelDiff | None]:
    """Return the ledger and the kernels of an arm, each None if unknown."""
    ledgers, diffs = (profiles.ledgers, profiles.kernel_diffs) if profiles else ((), ())
    return (
        next((ledger for ledger in ledgers if ledger.arm == arm), None),
        next((diff for diff in diffs if diff.arm == arm), None),
    )


def ledger_blocks(ledger: Ledger, *, reference: str, label: str) -> tuple[Block, ...]:
    """Return the ledger as a table in one unit, with its remarks."""
    rule = f"{ledger.rule} Source: {ledger.source}.".strip()
    helpers = (helper_sentence(ledger, reference=reference),) * bool(ledger.helpers)
    notes = (rule, *helpers, *timing_sentences(ledger), *ledger.notes)
    return _ledger_table(ledger, reference=reference, label=label), Items(
        items=notes, style="small"
    )


def _ledger_table(ledger: Ledger, *, reference: str, label: str) -> Table:
    """Return a row for each part, and the total below."""
    scale = TimeScale.of(max(ledger.reference_ns, ledger.arm_ns))
    changes = [abs(part.change_ns) for part in ledger.parts]
    largest = float(max((*changes, abs(ledger.change_ns)), default=0))

    def row(name: str, of: LedgerPart | Ledger, share: float | None) -> Row:
        bar = Line(change=signed_bar(of.change_ns, largest=largest))
        moved = Line(strong=scale.signed(of.change_ns))
        numbers = (scale.number(of.reference_ns), scale.number(of.arm_ns), moved)
        return Row(cells=(name, *numbers, bar, change_share(share)))

    return Table(
        label=f"Difference ledger of {ledger.arm} in {label}",
        caption=f"The whole is {ledger.whole}, in {scale.unit}; the parts add up to it",
        style="fit",
        columns=(
            Column(head="Part", is_row_head=True),
            *(Column(head=visible(head), kind="number") for head in (reference, ledger.arm)),
            Column(head="Change", kind="number"),
            Column(kind="bar"),
            Column(head="Share", kind="number"),
        ),
        rows=tuple(row(part_label(part.part), part, part.share) for part in ledger.parts),
        foot=(row("whole", ledger, 1.0 if ledger.change_ns else None),),
    )


def kernel_blocks(diff: KernelDiff, *, reference: str, label: str, most: int) -> tuple[Block, ...]:
    """Return the kernels that differ, and separately those in both that changed least."""
    changed = [row for row in diff.rows if row.kind != "both"]
    both = [row for row in diff.rows if row.kind == "both"]
    shown = 0 if diff.identical_kernel_set or diff.launch_factor else _SHOWN_BOTH
    differing = (*changed[:most], *both[:shown])
    rest = both[shown : shown + most]
    source = Span(text=f"{diff.source}. {diff.scaling}".strip(), style="small")
    blocks: list[Block] = [
        Line(text=kernel_sentence(diff, reference=reference), after=(source,)),
        *texts(*(f"⚠ {text}" for text in diff.cautions), style="small"),
    ]
    if differing:
        name = f"Kernels that differ, {diff.arm}, {label}"
        blocks.append(_kernel_table(diff, differing, reference=reference, label=name))
    if rest:
        name = f"Kernels in both, {diff.arm}, {label}"
        table = _kernel_table(diff, rest, reference=reference, label=name)
        blocks.append(Fold(summary=f"{counted(len(rest), 'kernel')} in both", blocks=(table,)))
    return tuple(blocks)


def _kernel_table(
    diff: KernelDiff, rows: Iterable[KernelDiffRow], *, reference: str, label: str
) -> Table:
    """Return these rows of a difference, on the scale of all its rows."""
    times = [ns for row in diff.rows for ns in (row.reference_ns, row.arm_ns) if ns is not None]
    scale = TimeScale.of(max(times, default=0.0))
    largest = max((abs(change) for row in diff.rows if (change := _change(row))), default=0.0)
    per = "per step" if diff.is_per_step else "in the profile"

    def kind(row: KernelDiffRow) -> Line:
        style = "badge" if row.kind == "both" else "badge moved"
        word = _KINDS[row.kind].format(reference=reference, arm=diff.arm)
        rule = f"by {row.rule}" if row.rule and row.kind == "replaced" else ""
        return Line(before=(Span(text=word, style=style),), below=(rule,))

    def time(row: KernelDiffRow, ns: float | None, absent: DiffKind) -> str:
        return scale.number(ns) if row.kind != absent or row.is_rest else _ABSENT

    def moved(row: KernelDiffRow) -> Line:
        ns = _change(row)
        return Line(strong=NOT_MEASURED if ns is None else scale.signed(ns))

    def bar(row: KernelDiffRow) -> Line:
        ns = _change(row)
        return Line(change=None if ns is None else signed_bar(ns, largest=largest))

    return table_of(
        label,
        rows,
        ("Kind", "text", kind),
        ("Kernel", "kernel", lambda row: Line(codes=_names(row), below=(_shape(row),))),
        (visible(reference), "number", lambda row: time(row, row.reference_ns, "only-arm")),
        (visible(diff.arm), "number", lambda row: time(row, row.arm_ns, "only-reference")),
        ("Change", "number", moved),
        ("", "bar", bar),
        (
            "Launches",
            "figure",
            lambda row: f"{number_text(row.reference_launches)} → {number_text(row.arm_launches)}",
        ),
        caption=f"Time {per} in {scale.unit}, launches {per}",
        named=1,
    )


def _change(row: KernelDiffRow) -> float | None:
    """Return the change of time; a kernel missing on one side counts as 0 there."""
    ends = (row.reference_ns, row.arm_ns)
    if ends == (None, None) or (row.kind in {"both", "replaced"} and None in ends):
        return None
    return (ends[1] or 0.0) - (ends[0] or 0.0)


def _names(row: KernelDiffRow) -> tuple[str, ...]:
    if row.is_rest:
        return (f"all {row.rows_cut} others together",)
    names = dict.fromkeys((row.reference_name, row.arm_name))
    return tuple(short_name(name) for name in names if name)


def _shape(row: KernelDiffRow) -> str:
    """Return grid and block, of both sides if they differ, and the operator."""
    before = _launch(row.reference_grid, row.reference_block)
    after = _launch(row.arm_grid, row.arm_block)
    shapes = " → ".join(dict.fromkeys(text for text in (before, after) if text))
    return ", ".join(text for text in (shapes, visible_line(row.op)) if text)


def _launch(grid: Dim | None, block: Dim | None) -> str:
    sizes = ("×".join(map(str, size)) for size in (grid, block) if size is not None)
    return " ".join(f"({size})" for size in sizes)
