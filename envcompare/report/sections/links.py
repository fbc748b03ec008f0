"""Links to files beside the report, and failures with the way to their logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote

from envcompare.analysis.model.comparison import Comparison, FailureRow, RunComparison
from envcompare.report.format.blocks import (
    Block,
    Group,
    Heading,
    Line,
    Link,
    Pairs,
    Section,
    Span,
    linked,
    texts,
)
from envcompare.report.wording.labels import cell_labels
from envcompare.report.wording.verdicts import verdict
from envcompare.run_folder.disk import cell_name, distinct_name
from envcompare.text import counted, one_line, shortened

_LONGEST_DETAILS: Final = 4000
_MOST_FILES: Final = 400  # that a list is still of use for
_MOST_RAW: Final = 12  # of one arm; all are listed with the files of the run
_SAMPLES: Final = "samples.jsonl"
_NOT_RUN: Final = ("not run", "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failure in three sentences, with its place and its log."""

    where: str
    state: str  # "failed", "not run", "skipped"
    when: str = ""
    phase: str = ""
    exit_code: int | None = None
    brief: str = ""
    details: str = ""
    hint: str = ""
    log: str = ""


def link(name: str, files: tuple[str, ...], *, text: str = "") -> Link | None:
    """Return a link to a file that lies beside the page, else its bare name, None for no name."""
    if not name:
        return None
    is_there = name in files and _is_inside(name)
    href = f"./{quote(name, errors='replace')}" if is_there else ""
    return Link(text=text or name, href=href)


def links(names: Sequence[str], files: tuple[str, ...]) -> tuple[Link, ...]:
    """Return a link to each of several files."""
    return tuple(made for name in names if (made := link(name, files)) is not None)


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def file_links(files: tuple[str, ...]) -> tuple[Link, ...]:
    """Return a link for each file beside the page; of folders with many it says how many."""
    if len(files) <= _MOST_FILES:
        return links(files, files)
    folders = Counter(name.partition("/")[0] for name in files if "/" in name)
    shown = tuple(name for name in files if "/" not in name)[:_MOST_FILES]
    more = (Link(text=f"{counted(count, 'file')} in {name}") for name, count in folders.items())
    return (*links(shown, files), *more)


def raw_files_line(
    comparison: Comparison, *, reference: str, files: tuple[str, ...], row: str
) -> Line:
    """Return links to what was written about both arms of a comparison, and to its row."""
    groups = [("all samples", [_SAMPLES] * (_SAMPLES in files))]
    for arm in (reference, comparison.arm):
        starts = _starts(comparison, arm)
        names = [name for start in starts for name in files if name.startswith(start)]
        groups.append((arm, names[:_MOST_RAW]))
    parts: list[Span | Link] = []
    for what, names in groups:
        links = [link(name, files, text=_short(PurePosixPath(name))) for name in names]
        if links:
            shown = linked(one for one in links if one is not None)
            parts += [Span(text=f"{what}: "), *shown, Span(text=" · ")]
    start = (Span(text="Files: "),) if parts else ()
    to_row = Link(text="its row in All comparisons", href=f"#{row}")
    return Line(style="files", after=(*start, *parts, to_row))


def _short(path: PurePosixPath) -> str:
    """Return what a file is where its folder tells that, else its name."""
    return {"logs": "log", "fingerprints": "fingerprint"}.get(path.parts[0], path.name)


def _starts(comparison: Comparison, arm: str) -> tuple[str, ...]:
    """Return how the names of an arm's files begin, as the run folder lays them out."""
    host, name = distinct_name(comparison.host), distinct_name(arm)
    cell = cell_name(comparison.cell)
    work = cell_name(comparison.cell.removeprefix(f"{comparison.host}/"))
    return (
        f"logs/{host}/{cell}/{name}.log",
        f"fingerprints/{host}/{name}/{work}.json",
        f"profiles/{cell}/{name}/",
    )


def failures_section(
    run: RunComparison, failures: Sequence[Failure], files: tuple[str, ...]
) -> Section:
    """Return every failure of the run; that there is none is said too."""
    blocks: tuple[Block, ...] = tuple(_failure_group(one, files) for one in failures)
    if not blocks:
        planned = ", and everything that was planned was run" * run.is_complete
        blocks = texts(f"Nothing failed{planned}.")
    name = f"Failures ({len(failures)})"
    return Section(anchor="failures", title="Failures", link=name, blocks=blocks)


def _failure_group(failure: Failure, files: tuple[str, ...]) -> Group:
    is_run = failure.state not in _NOT_RUN
    style, symbol = ("failed", "✕") if is_run else ("not-run", "–")
    badge = Span(text=f"{symbol} {failure.state}", style=f"badge {style}")
    code = "" if failure.exit_code is None else f"exit code {failure.exit_code}"
    phase = f"phase {failure.phase}" if failure.phase else ""
    log = link(failure.log, files)
    place = ", ".join(text for text in (phase, code, failure.when, "log:" if log else "") if text)
    pairs = (
        ("error" if is_run else "reason", failure.brief or "no reason was recorded"),
        ("why", failure.details),
        ("try", failure.hint),
    )
    told = Line(text=place, style="small", after=(log,) if log else ())
    return Group(
        style="failure",
        blocks=(
            Heading(text=failure.where, badge=badge),
            *((told,) if place else ()),
            Pairs(pairs=tuple(pair for pair in pairs if pair[1]), style="three-lines"),
        ),
    )


def failures_of(run: RunComparison) -> tuple[Failure, ...]:
    """Return every failure of the run, and each comparison without a value that has none."""
    labels = cell_labels(run)
    told = {(one.cell, one.arm) for one in run.failures}
    return (
        *(_from_row(one, labels) for one in run.failures),
        *(
            _from_comparison(run, one, label=labels[one.cell])
            for one in run.comparisons
            if one.outcome in {"failed", "not-run"} and (one.cell, one.arm) not in told
        ),
        *_states(run),
    )


def _from_row(row: FailureRow, labels: dict[str, str]) -> Failure:
    where = (row.arm, labels.get(row.cell, row.cell), f"host {row.host}" if row.host else "")
    return Failure(
        where=", ".join(part for part in where if part) or "the run",
        state="failed",
        when=_moment(row.t),
        phase=row.phase,
        exit_code=row.exit_code,
        brief=one_line(row.brief, most=600),
        details=shortened(row.details, most=_LONGEST_DETAILS),
        hint=one_line(row.hint, most=600),
        log=row.log,
    )


def _from_comparison(run: RunComparison, comparison: Comparison, *, label: str) -> Failure:
    words, failure = verdict(comparison, label=label, margin=run.margin), comparison.failure
    return Failure(
        where=f"{comparison.arm}, {words.cell}",
        state=words.word,
        phase=failure.phase if failure else "",
        exit_code=failure.exit_code if failure else None,
        brief=words.remark,
        details=shortened(failure.details, most=_LONGEST_DETAILS) if failure else "",
        hint=one_line(failure.hint) if failure else "",
        log=failure.log if failure else "",
    )


def _states(run: RunComparison) -> Iterator[Failure]:
    """Yield the arms and cells that did not end well and whose failure stands nowhere else."""
    failed = {(one.host, one.arm) for one in run.failures}
    for arm in run.arms:
        if arm.state != "ok" and (arm.host, arm.arm) not in failed:
            where = f"{arm.arm} on host {arm.host}"
            yield Failure(where=where, state=arm.state, brief=arm.reason)
    told = {one.cell for one in run.failures} | {
        one.cell for one in run.comparisons if one.outcome in {"failed", "not-run"}
    }
    for cell in run.cells:
        if cell.state != "ok" and cell.id not in told:
            yield Failure(where=cell.id, state=cell.state, brief=cell.reason)


def _moment(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return ""
