"""Links to files beside the report, and failures with the way to their logs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote

from envcompare.analysis.model.comparison import FailureRow, RunComparison
from envcompare.report.wording.labels import cell_labels
from envcompare.report.wording.verdicts import verdict
from envcompare.text import counted, one_line, shortened

_LONGEST_DETAILS: Final = 4000
_MOST_FILES: Final = 400  # that a list is still of use for


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A file by name; `href` is empty where it does not lie beside the page."""

    text: str
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureView:
    """One failure in three sentences, with its place and its log."""

    where: str
    state: str  # "failed" or "not run"
    when: str = ""
    phase: str = ""
    exit_code: str = ""
    brief: str = ""
    details: str = ""
    hint: str = ""
    log: Link | None = None


def link(name: str, files: tuple[str, ...]) -> Link | None:
    """Return a link to a file that lies beside the page, else its bare name, None for no name."""
    if not name:
        return None
    is_there = name in files and _is_inside(name)
    return Link(text=name, href=f"./{quote(name, errors='replace')}" if is_there else "")


def file_links(files: tuple[str, ...]) -> tuple[Link, ...]:
    """Return a link for each file beside the page; of folders with many it says how many."""
    if len(files) <= _MOST_FILES:
        return _linked(files, files)
    folders = Counter(name.partition("/")[0] for name in files if "/" in name)
    shown = tuple(name for name in files if "/" not in name)[:_MOST_FILES]
    more = (Link(text=f"{counted(count, 'file')} in {name}") for name, count in folders.items())
    return (*_linked(shown, files), *more)


def _linked(names: tuple[str, ...], files: tuple[str, ...]) -> tuple[Link, ...]:
    return tuple(found for name in names if (found := link(name, files)) is not None)


def failure_views(run: RunComparison, files: tuple[str, ...]) -> tuple[FailureView, ...]:
    """Return every failure of the run, and each comparison without a value that has none."""
    labels = cell_labels(run)
    found = [_from_row(one, labels, files) for one in run.failures]
    told = {(one.cell, one.arm) for one in run.failures}
    for one in run.comparisons:
        if one.outcome in {"failed", "not-run"} and (one.cell, one.arm) not in told:
            words = verdict(one, label=labels[one.cell], margin=run.margin)
            found.append(
                FailureView(
                    where=f"{one.arm}, {words.cell}",
                    state=words.word,
                    phase=one.failure.phase if one.failure else "",
                    exit_code=_code(one.failure.exit_code if one.failure else None),
                    brief=words.remark,
                    details=shortened(one.failure.details, most=_LONGEST_DETAILS)
                    if one.failure
                    else "",
                    hint=one_line(one.failure.hint) if one.failure else "",
                    log=link(one.failure.log, files) if one.failure else None,
                )
            )
    return tuple(found + _states(run))


def _from_row(one: FailureRow, labels: dict[str, str], files: tuple[str, ...]) -> FailureView:
    where = (one.arm, labels.get(one.cell, one.cell), f"host {one.host}" if one.host else "")
    return FailureView(
        where=", ".join(part for part in where if part) or "the run",
        state="failed",
        when=_moment(one.t),
        phase=one.phase,
        exit_code=_code(one.exit_code),
        brief=one_line(one.brief, most=600),
        details=shortened(one.details, most=_LONGEST_DETAILS),
        hint=one_line(one.hint, most=600),
        log=link(one.log, files),
    )


def _states(run: RunComparison) -> list[FailureView]:
    """Return the cells and arms that did not end well and whose failure stands nowhere else."""
    failed = {(one.host, one.arm) for one in run.failures}
    arms = [
        FailureView(where=f"{one.arm} on host {one.host}", state=one.state, brief=one.reason)
        for one in run.arms
        if one.state != "ok" and (one.host, one.arm) not in failed
    ]
    told = {one.cell for one in run.failures} | {
        one.cell for one in run.comparisons if one.outcome in {"failed", "not-run"}
    }
    cells = [
        FailureView(where=one.id, state=one.state, brief=one.reason)
        for one in run.cells
        if one.state != "ok" and one.id not in told
    ]
    return arms + cells


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _code(code: int | None) -> str:
    return "" if code is None else str(code)


def _moment(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return ""
