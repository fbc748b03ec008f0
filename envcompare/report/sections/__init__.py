"""Links that sections share, and how this run was made.

The latter is its failures, its method, its commands, and links to its files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote

from envcompare.analysis.model import (
    CellSummary,
    Comparison,
    FailureRow,
    HostSummary,
    RunComparison,
)
from envcompare.report import (
    Block,
    Fold,
    Group,
    Heading,
    Items,
    Line,
    Link,
    Pairs,
    Section,
    Span,
    Table,
    Verbatim,
    Words,
    grid_of,
    linked,
    texts,
)
from envcompare.report.wording import NOT_MEASURED, cell_labels, duration, piece_word
from envcompare.report.wording.methodwords import IMPORTED, method_rules, sessions_text
from envcompare.report.wording.profilewords import is_timed
from envcompare.report.wording.verdicts import FIRST_CONTROLS, control_sentence, verdict
from envcompare.run_folder import cell_name, distinct_name
from envcompare.run_folder.records import Failure as RecordedFailure
from envcompare.text import LONGEST_REASON, counted, one_line, shell_text, shortened

_STOPS: Final = {
    "target": "narrow interval",
    "equivalent": "inside the margin",
    "decided": "difference found",
    "planned": "plan complete",
    "budget": "budget spent",
    "failure": "failure",
    "interrupted": "interrupted",
    "unknown": "not recorded",
}
_GLOSSARY: Final[dict[str, str]] = {
    "round": "a block of steps of every arm, in random order",
    "restart": "all arms started again",
    "typical step": "the lower quartile of a block (on a GPU the mean)",
    "net": "time without waits for a CPU that others held",
    "stretch": "wall time ÷ net time",
    "A/A control": "the reference measured a second time",
    "confounder": "another difference that can change the speed",
}
_LEAST_FOLDED: Final = 2  # files of a folder that is named instead
_DIGITS: Final = 12  # of a commit hash
_LONGEST_DETAILS: Final = 4000
_MOST_FILES: Final = 400  # a longer list is of no use
_MOST_RAW: Final = 12  # of one arm
_OF_FOLDERS: Final = {"logs": "log", "fingerprints": "fingerprint"}
_SAMPLES: Final = "samples.jsonl"
_NOT_RUN: Final = ("not run", "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """What failed or did not run: where, why, and its log if there is one."""

    where: str
    state: str  # "failed", "not run", "skipped"
    brief: str
    when: str = ""
    record: FailureRow | RecordedFailure | None = None


def link(name: str, files: tuple[str, ...], *, text: str = "") -> Link | None:
    """Return a link to a file next to the page, its bare name if missing, None without a name."""
    if not name:
        return None
    is_there = name in files and _is_inside(name)
    href = f"./{quote(name, errors='replace')}" if is_there else ""
    return Link(text=text or name, href=href)


def links(names: Sequence[str], files: tuple[str, ...]) -> tuple[Link, ...]:
    """Return a link for each file."""
    return tuple(made for name in names if (made := link(name, files)) is not None)


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def file_links(files: tuple[str, ...]) -> tuple[Link, ...]:
    """Return a link for each file next to the page, and for each folder with several files."""
    folders = Counter(name.partition("/")[0] for name in files if "/" in name)
    shown = tuple(name for name in files if folders[name.partition("/")[0]] < _LEAST_FOLDED)
    more = (
        Link(
            text=f"{counted(count, 'file')} in {name}",
            href=f"./{quote(name, errors='replace')}/" if _is_inside(name) else "",
        )
        for name, count in folders.items()
        if count >= _LEAST_FOLDED
    )
    return (*links(shown[:_MOST_FILES], files), *more)


def raw_files_line(
    comparison: Comparison, *, reference: str, files: tuple[str, ...], row: str
) -> Line:
    """Return links to the raw files of both arms of a comparison, and to its row."""
    groups = [("all samples", [_SAMPLES] * (_SAMPLES in files))]
    for arm in (reference, comparison.arm):
        starts = _starts(comparison, arm)
        names = [name for start in starts for name in files if name.startswith(start)]
        groups.append((arm, names[:_MOST_RAW]))
    parts: list[Span | Link] = []
    for what, names in groups:
        # the folder of a log or a fingerprint says what it is; other files have telling names
        paths = [(name, PurePosixPath(name)) for name in names]
        links = [
            link(name, files, text=_OF_FOLDERS.get(path.parts[0], path.name))
            for name, path in paths
        ]
        if links:
            shown = linked(one for one in links if one is not None)
            parts += [Span(text=f"{what}: "), *shown, Span(text=" · ")]
    start = (Span(text="Files: "),) if parts else ()
    to_row = Link(text="its row in All comparisons", href=f"#{row}")
    return Line(style="files", after=(*start, *parts, to_row))


def _starts(comparison: Comparison, arm: str) -> tuple[str, ...]:
    """Return the prefixes of an arm's file names in the run folder."""
    host, name = distinct_name(comparison.host), distinct_name(arm)
    cell = cell_name(comparison.cell)
    work = cell_name(comparison.cell.removeprefix(f"{comparison.host}/"))
    return (
        f"logs/{host}/{cell}/{name}.log",
        f"fingerprints/{host}/{name}/{work}.json",
        f"profiles/{cell}/{name}/",
    )


def failures_section(run: RunComparison, files: tuple[str, ...]) -> Section | None:
    """Return every failure of the run; None if nothing failed."""
    labels = cell_labels(run)
    reported = {(failure.cell, failure.arm) for failure in run.course.failures}
    failures = (
        *(_from_row(failure, labels) for failure in run.course.failures),
        *(
            _from_comparison(run, comparison, label=labels[comparison.cell])
            for comparison in run.comparisons
            if comparison.outcome in {"failed", "not-run"}
            and (comparison.cell, comparison.arm) not in reported
            and not comparison.is_skipped_size
        ),
        *_states(run),
    )
    if not failures:
        return None
    blocks = tuple(_failure_group(failure, files) for failure in failures)
    name = f"Failures ({len(failures)})"
    return Section(anchor="failures", title="Failures", link=name, blocks=blocks)


def _failure_group(failure: _Failure, files: tuple[str, ...]) -> Group:
    is_run, record = failure.state not in _NOT_RUN, failure.record
    style, symbol = ("failed", "✕") if is_run else ("not-run", "–")
    badge = Span(text=f"{symbol} {failure.state}", style=f"badge {style}")
    has_code = record is not None and record.exit_code is not None
    log = link(record.log, files) if record else None
    places = (
        f"phase {record.phase}" if record and record.phase else "",
        f"exit code {record.exit_code}" if record and has_code else "",
        failure.when,
        "log:" if log else "",
    )
    place = ", ".join(text for text in places if text)
    pairs = (
        ("error" if is_run else "reason", failure.brief or "no reason was recorded"),
        ("why", shortened(record.details, most=_LONGEST_DETAILS) if record else ""),
        ("try", one_line(record.hint, most=LONGEST_REASON) if record else ""),
    )
    subtitle = Line(text=place, style="small", after=(log,) if log else ())
    return Group(
        style="failure",
        blocks=(
            Heading(text=failure.where, badge=badge),
            *((subtitle,) if place else ()),
            Pairs(pairs=tuple(pair for pair in pairs if pair[1]), style="three-lines"),
        ),
    )


def _from_row(row: FailureRow, labels: dict[str, str]) -> _Failure:
    where = (row.arm, labels.get(row.cell, row.cell), f"host {row.host}" if row.host else "")
    return _Failure(
        where=", ".join(part for part in where if part) or "the run",
        state="failed",
        brief=one_line(row.brief, most=LONGEST_REASON),
        when=_moment(row.t),
        record=row,
    )


def _from_comparison(run: RunComparison, comparison: Comparison, *, label: str) -> _Failure:
    words = verdict(comparison, label=label, margin=run.settings.margin)
    where = f"{comparison.arm}, {words.cell}"
    return _Failure(where=where, state=words.word, brief=words.remark, record=comparison.failure)


def _states(run: RunComparison) -> Iterator[_Failure]:
    """Yield the arms and cells that failed and whose failure is not shown elsewhere."""
    failed = {(failure.host, failure.arm) for failure in run.course.failures}
    failed |= {
        (comparison.host, comparison.arm)
        for comparison in run.comparisons
        if comparison.failure is not None
    }
    for arm in run.arms:
        if arm.state != "ok" and (arm.host, arm.arm) not in failed:
            where = f"{arm.arm} on host {arm.host}"
            yield _Failure(where=where, state=arm.state, brief=arm.reason)
    failed_cells = {failure.cell for failure in run.course.failures} | {
        comparison.cell
        for comparison in run.comparisons
        if comparison.outcome in {"failed", "not-run"}
    }
    for cell in run.cells:
        if cell.state != "ok" and cell.id not in failed_cells:
            yield _Failure(where=cell.id, state=cell.state, brief=cell.reason)


def _moment(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return ""


_MOST_CONTROLS: Final = 40


def method_section(run: RunComparison) -> Section:
    """Return the rules of the design, the course of each cell, and the glossary."""
    if not is_timed(run):
        return Section(anchor="method", title="Method", blocks=(Items(items=IMPORTED),))
    labels = cell_labels(run)
    cells = run.cells[:_MOST_CONTROLS]
    controls = [control_sentence(cell, label=labels[cell.id], run=run) for cell in cells]
    if len(run.cells) > _MOST_CONTROLS:
        more = len(run.cells) - _MOST_CONTROLS
        controls.append(f"{more} more A/A controls are in All comparisons.")
    glossary = Fold(
        summary="Glossary", style="print", blocks=(Pairs(pairs=tuple(_GLOSSARY.items())),)
    )
    return Section(
        anchor="method",
        title="Method",
        blocks=(
            Pairs(pairs=method_rules(run)),
            *((Items(items=tuple(controls)),) * (len(run.cells) > FIRST_CONTROLS)),
            cells_table(run),
            glossary,
        ),
    )


def cells_table(run: RunComparison) -> Table:
    """Return the course of each cell, and a line below the table for remarks."""
    labels = cell_labels(run)
    heads = (
        "state", "verdict on", "steps per block", "restarts", "generations", "rounds", "dropped",
        piece_word(run, is_plural=True), "measured", "elapsed", "stopped by",
    )  # fmt: skip
    return grid_of(
        "What happened in each cell",
        (("Cell", "name"), *((head, "text") for head in heads)),
        (row for cell in run.cells for row in _cell_rows(cell, labels[cell.id])),
    )


def _cell_rows(cell: CellSummary, label: str) -> Iterator[tuple[Words, ...]]:
    pieces = cell.processes or cell.steps
    counts = (cell.restarts, cell.generations, cell.rounds, cell.dropped_rounds, pieces)
    yield (
        label,
        cell.state,
        cell.metric,
        NOT_MEASURED if cell.steps_per_block is None else str(cell.steps_per_block),
        *map(str, counts),
        duration(cell.measured_s),
        duration(cell.elapsed_s),
        _STOPS[cell.stopped_by],
    )
    # a column shows what stopped a cell that ended well
    reason = "" if cell.state == "ok" else cell.reason
    why = f": {cell.generation_reason}" if cell.generation_reason else ""
    started = f"generations by {cell.generation}{why}" if cell.generation else ""
    notes = (reason, cell.metric_reason, started, *cell.cautions)
    text = "; ".join(one_line(note) for note in notes if note)
    if text:
        yield (Line(below=(f"{label}: {text}",)),)


def reproduce_section(run: RunComparison, files: tuple[str, ...]) -> Section:
    """Return the commands and settings of the run, and the files next to the page."""
    commands = tuple(
        filter(None, dict.fromkeys((shell_text(run.settings.command_line), *run.imports)))
    )
    configuration = shortened(run.settings.configuration, most=20_000)
    resolved = Fold(summary="Configuration, resolved", blocks=(Verbatim(text=configuration),))
    return Section(
        anchor="reproduce",
        title="Reproduce",
        blocks=(
            *(Verbatim(text="\n".join(commands)),) * bool(commands),
            Pairs(pairs=_settings(run)),
            *(resolved,) * bool(configuration),
            Heading(text="Files"),
            *_files(run, files),
        ),
    )


def _files(run: RunComparison, files: tuple[str, ...]) -> Iterator[Block]:
    has_raw = any(state.raw for cell in run.profiles for arm in cell.arms for state in arm.passes)
    if has_raw:
        yield from texts(
            "Raw files of profilers name the host and the command line.", style="small"
        )
    items = tuple(Line(after=(link,)) for link in file_links(files))
    if not items:
        yield from texts("The raw samples are in the run folder of this page.")
        return
    yield Items(items=items)


def _settings(run: RunComparison) -> tuple[tuple[str, str], ...]:
    made = (
        ("run", run.run_id),
        ("created", run.created),
        ("envcompare", _tool(run)),
    )
    if not is_timed(run):
        return made
    return (
        *made,
        *((f"host {host.host}", text) for host in run.hosts if (text := _machine(host))),
        ("seed", str(run.settings.seed)),
        ("preset", run.settings.preset),
        (
            "threads",
            "as each arm has them" if run.settings.threads is None else str(run.settings.threads),
        ),
        ("allocator and hash seed", "fixed" if run.settings.stabilise else "as they are"),
        ("restarts planned", f"at least {run.settings.min_restarts}"),
        ("budget per cell", duration(run.settings.budget_s)),
        *((("sessions", sessions_text(run)),) if run.settings.planned_sessions > 1 else ()),
        ("whole run", duration(run.course.duration_s)),
    )


def _tool(run: RunComparison) -> str:
    """Return the version of envcompare, with its commit if known."""
    commit, _, modified = run.tool_commit.partition(" ")
    if not commit:
        return run.tool_version
    state = f", {modified}" if modified else ""
    return f"{run.tool_version} (commit {commit[:_DIGITS]}{state})"


def _machine(host: HostSummary) -> str:
    """Return the processor of a host with stepping and microcode, and its kernel."""
    parts = (
        host.processor,
        host.cpu_family,
        f"microcode {host.microcode}" if host.microcode else "",
        f"Linux {host.kernel}" if host.kernel else "",
    )
    return "; ".join(one_line(part) for part in parts if part)
