"""The costs of an environment outside the steps, and the numbers that commands print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from envcompare.analysis.model.comparison import (
    MemorySummary,
    PickedValue,
    RunComparison,
    StartupPart,
    StartupSummary,
)
from envcompare.report.blocks import (
    Block,
    Field,
    Heading,
    Line,
    Section,
    Segment,
    Span,
    Table,
    Words,
    grid_of,
    table_of,
    texts,
)
from envcompare.report.charts.times import PHASES, Parts, startup_groups, total_s
from envcompare.report.numbers import (
    NOT_MEASURED,
    NS,
    TimeScale,
    distinct_numbers,
    duration,
    margin_percent,
    size,
    three_digits,
)
from envcompare.report.wording.labels import (
    arms_in,
    cell_labels,
    compared_arms,
    has_programs,
    has_steps,
    reference_name,
)
from envcompare.report.wording.verdicts import estimate_line
from envcompare.run_folder.records import CONTROL_SUFFIX
from envcompare.text import counted

_WHOLE: Final[dict[str, str]] = {"real": "real", "user": "user", "sys": "sys"}
_MOST_DIVIDED: Final = 60
"""The most start-ups that are split into parts; more would fill the page."""
_MOST_TABLES: Final = 60
_MEMORY: Final[dict[str, str]] = {
    "max_rss_bytes": "peak RSS",
    "cgroup_peak_bytes": "cgroup peak",
    "cuda_allocated_peak_bytes": "CUDA allocated",
    "cuda_reserved_peak_bytes": "CUDA reserved",
}
_STARTUP: Final = "From the call of the engine to the end of the process; no step time includes it."
_NO_COUNTER: Final = (
    "Not measured: there was no such counter, or the container had served another cell."
)
_NO_STARTUP: Final = "Not measured: it was switched off, or no launch came to its end."
_NO_STARTUP_OF_PROGRAMS: Final = (
    "The start of a program's environment is the difference between real and wall time."
)


def startup_section(run: RunComparison) -> Section:
    """Return a table for each cell and page cache with a measured start-up."""
    why = _NO_STARTUP if has_steps(run) else _NO_STARTUP_OF_PROGRAMS
    tables = startup_tables(run)
    shown = tables[:_MOST_TABLES]
    blocks: tuple[Block, ...] = tuple(
        block for label, table in shown for block in (Heading(text=label), table)
    )
    left_out = f"comparison.json holds the start-up of {len(tables) - _MOST_TABLES} more cells."
    blocks += texts(left_out * (len(tables) > _MOST_TABLES))
    return Section(
        anchor="startup",
        title="Start-up",
        blocks=(Line(text=_STARTUP), *(blocks or texts(why))),
    )


def startup_tables(run: RunComparison) -> tuple[tuple[str, Table], ...]:
    """Return the label and table of each cell and page cache, in the order of the run."""
    groups = startup_groups(run)
    labels = cell_labels(run)
    before = accumulate((len(group) for group in groups.values()), initial=0)
    tables = []
    for count, ((cell, is_cold), group) in zip(before, groups.items(), strict=False):
        label = labels.get(cell, cell) + (", cold page cache" if is_cold else "")
        is_divided = count < _MOST_DIVIDED
        tables.append((label, _startup_table(run, group, label=label, is_divided=is_divided)))
    return tuple(tables)


def _arms_of(run: RunComparison, group: Sequence[StartupSummary]) -> tuple[str, ...]:
    """Return the planned arms of a cell, the reference first."""
    cell = next((cell for cell in run.cells if group and cell.id == group[0].cell), None)
    return arms_in(run, cell) if cell else (run.reference_arm, *compared_arms(run))


def _startup_table(
    run: RunComparison, group: Sequence[StartupSummary], *, label: str, is_divided: bool
) -> Table:
    """Return a column for each arm and a row for each part; only the total if not `is_divided`."""
    by_arm: dict[str, Parts] = {one.arm: {part.phase: part for part in one.parts} for one in group}
    arms = dict.fromkeys((*_arms_of(run, group), *by_arm))
    parts = [by_arm.get(arm, {}) for arm in arms]
    longest = max(map(total_s, parts), default=0.0)
    names = {**PHASES, **_WHOLE} if is_divided else {"real": _WHOLE["real"]}
    rows: list[tuple[Words, ...]]
    rows = [("all parts, to scale", *(_bar(table, longest) for table in parts))] * is_divided
    rows += [
        (_part_name(phase, name), *(_part(one.get(phase)) for one in parts))
        for phase, name in names.items()
        if any(phase in one for one in parts)
    ]
    return grid_of(
        f"Start-up of {label}",
        (("Part", "text"), *((arm, "number") for arm in arms)),
        rows,
        caption=_startup_note(run, group, is_divided=is_divided),
        style="fit",
    )


def _part_name(phase: str, name: str) -> Line:
    return Line(text=name, phase=phase if phase in PHASES else "")


def _bar(parts: Parts, longest: float) -> Line:
    stacked = [(phase, parts[phase].median_s) for phase in PHASES if phase in parts]
    return Line(segments=_segments(stacked, longest=longest))


def _segments(parts: Iterable[tuple[str, float]], *, longest: float) -> tuple[Segment, ...]:
    """Stack durations into one bar; `longest` fills the width."""
    stacked, start = [], 0.0
    for phase, seconds in parts:
        width = 100 * seconds / longest if longest > 0 else 0.0
        stacked.append(Segment(phase=phase, x=f"{start:.2f}", width=f"{width:.2f}"))
        start += width
    return tuple(stacked)


def _startup_note(run: RunComparison, group: Sequence[StartupSummary], *, is_divided: bool) -> str:
    first, launches = group[0], min(one.launches for one in group)
    what = "Median and range" if launches > 1 else "Times"
    cold = f" (cold: {first.cold_reason})" if first.cold_reason else ""
    return (
        f"{what} of {counted(launches, 'launch', 'launches')}; page cache {first.page_cache}{cold};"
        f" training: {counted(first.train_steps, 'step')}.{_difference_note(run, group)}"
        f"{'' if is_divided else ' comparison.json holds the parts.'}"
    )


def _difference_note(run: RunComparison, group: Sequence[StartupSummary]) -> str:
    pairs = [part.pairs for one in group for part in one.parts if part.difference_low_s is not None]
    if not pairs:
        return ""
    reference = reference_name(run, *(one.cell for one in group))
    over = f"over {counted(min(pairs), 'pair')}, with its 95 % interval"
    return f" Signed: mean difference to {reference} {over}."


def _part(part: StartupPart | None) -> Words:
    """Return the median of a part, with its difference from the reference or else its range."""
    if part is None:
        return NOT_MEASURED
    if difference := _difference(part):
        return Line(text=duration(part.median_s), below=(difference,))
    scale = TimeScale.of(NS * part.high_s)
    spread = f"{scale.digits(part.low_s)} to {scale.digits(part.high_s)} {scale.unit}"
    return Line(
        text=duration(part.median_s),
        after=(Span(text=spread, style="range"),) if part.low_s != part.high_s else (),
    )


def _difference(part: StartupPart) -> str:
    """Return "+1.42 s (+1.31 to +1.53 s)" in one unit, empty without an interval."""
    if part.difference_s is None or part.difference_low_s is None or part.difference_high_s is None:
        return ""
    low, high = part.difference_low_s, part.difference_high_s
    scale = TimeScale.of(NS * max(abs(low), abs(high)))
    mean, *ends = (scale.signed_digits(end) for end in (part.difference_s, low, high))
    return f"{mean} {scale.unit} ({' to '.join(ends)} {scale.unit})"


def memory_section(run: RunComparison, gpus: Sequence[str]) -> Section:
    """Return the peaks of memory, and the sentence about the GPUs of each host."""
    return Section(anchor="memory", title="Memory", blocks=(*_memory(run), *texts(*gpus)))


def _memory(run: RunComparison) -> tuple[Block, ...]:
    if not run.memory:
        what = (
            "generation ended" if has_steps(run) else "process used more memory than its launcher"
        )
        return texts(f"Not measured: no {what}.")
    table = _memory_table(run)
    has_gaps = any(NOT_MEASURED in row.cells for row in table.rows)
    gaps = _NO_COUNTER * has_gaps
    intro = (
        "The largest peak of any generation. That of a cgroup includes page cache: do not compare "
        f"it with {reference_name(run)}."
    )
    return (Line(text=intro), table, *texts(gaps, style="small"))


def _memory_table(run: RunComparison) -> Table:
    """Return the peaks of all cells and arms, without ratios."""
    labels = cell_labels(run)

    def peak(name: str, head: str) -> Field[MemorySummary]:
        return head, "number", lambda memory: size(getattr(memory, name))

    return table_of(
        "Table of memory peaks",
        (memory for memory in run.memory if not memory.arm.endswith(CONTROL_SUFFIX)),
        ("Workload", "name", lambda memory: labels.get(memory.cell, memory.cell)),
        ("Environment", "name", lambda memory: memory.arm),
        *(
            peak(name, head)
            for name, head in _MEMORY.items()
            if name == "max_rss_bytes" or any(getattr(one, name) is not None for one in run.memory)
        ),
        style="fit",
    )


def picked_section(run: RunComparison) -> Section | None:
    """Return the numbers read from the output of commands; None if none were requested."""
    if not run.picked:
        return None
    level = next((margin_percent(one.level) for one in run.picked), "")
    of_processes = (
        "Last match in the output of each process: median, range, and change against "
        f"{reference_name(run)} in the same round with its {level} interval, not widened. "
    ) * has_programs(run)
    of_generations = (
        "What `finish` of a workload returned in each generation: median and range. "
    ) * has_steps(run)
    intro = (
        f"{of_processes}{of_generations}Which way is better is not known, so no verdict is given."
    )
    return Section(
        anchor="picked",
        title=_picked_title(run),
        link="Further numbers" if has_steps(run) else "Printed numbers",
        blocks=(Line(text=intro), _picked_table(run)),
    )


def _picked_title(run: RunComparison) -> str:
    printed, returned = "the commands printed", "the workloads returned"
    said = (*(printed,) * has_programs(run), *(returned,) * has_steps(run))
    return f"Numbers {' or '.join(said)}"


def _picked_table(run: RunComparison) -> Table:
    labels = cell_labels(run)
    ordered = sorted(
        run.picked,
        key=lambda picked: (picked.cell, picked.name, picked.arm not in run.all_references),
    )
    shown = [one for one in ordered if not one.arm.endswith(CONTROL_SUFFIX)]
    programs = {cell.id for cell in run.cells if cell.is_program}
    is_paired = any(one.log_ratio is not None for one in run.picked)
    return table_of(
        _picked_title(run),
        shown,
        ("Workload", "name", lambda picked: labels.get(picked.cell, picked.cell)),
        ("Number", "name", lambda picked: picked.name),
        ("Environment", "name", lambda picked: picked.arm),
        (
            "Median",
            "number",
            lambda picked: _picked_median(picked, shown, is_of_program=picked.cell in programs),
        ),
        *((("Change", "number", lambda picked: _picked_change(picked, run)),) * is_paired),
    )


def _picked_median(picked: PickedValue, shown: list[PickedValue], *, is_of_program: bool) -> Line:
    number = (picked.cell, picked.name)
    others = (one.median for one in shown if (one.cell, one.name) == number)
    spread = "the same each time"
    if picked.low != picked.high:
        spread = f"{three_digits(picked.low)} to {three_digits(picked.high)}"
    words = ("process", "processes") if is_of_program else ("generation",)
    count = counted(picked.processes, *words)
    return Line(text=distinct_numbers(picked.median, *others)[0], below=(f"{spread}, {count}",))


def _picked_change(picked: PickedValue, run: RunComparison) -> Words:
    if picked.arm == run.reference_in(picked.cell):
        return "reference"
    if picked.log_ratio is None:
        return NOT_MEASURED
    return estimate_line(picked.log_ratio, picked.ratio_low, picked.ratio_high)
