"""Draw the page: one HTML file with its style and script inside, which loads nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from importlib.resources import files as package_files
from typing import Final

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: TID251 — its home
from markupsafe import Markup, escape

from envcompare.analysis.model import RunComparison
from envcompare.report import Section, shared_axis
from envcompare.report.charts import ChartBudget
from envcompare.report.exports import answer
from envcompare.report.sections import failures_section, method_section, reproduce_section
from envcompare.report.sections.answer import answer_section, overview_section
from envcompare.report.sections.charted import (
    ladder_section,
    memory_section,
    picked_section,
    roofline_section,
    startup_section,
    sweeps_section,
)
from envcompare.report.sections.comparisons import comparison_rows, comparisons_section
from envcompare.report.sections.environments import (
    environments_section,
    gpu_sentence,
    groups_section,
    hosts_facts,
)
from envcompare.report.sections.profilefolds import power_section
from envcompare.report.sections.proofs import proof_section
from envcompare.report.sections.scaling import batches_section, scaling_section, training_section
from envcompare.report.sections.why import Sheet, fold_anchors, unexplained_cells, why_section
from envcompare.report.summary import warnings
from envcompare.report.wording import FIGURE, compared_arms, listed
from envcompare.report.wording.causewords import threads_text
from envcompare.report.wording.headlines import headlines
from envcompare.report.wording.methodwords import device_sentences
from envcompare.report.wording.profilewords import is_timed
from envcompare.text import counted, one_line, visible

_MOST_HOSTS = 3  # named at the top of the page
_CODE: Final = re.compile(r"`([^`]+)`")
_WHOLE: Final = re.compile(rf"{FIGURE.pattern}|(?<![\w-])--[a-z][a-z-]*[a-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The template's data: the head of the page, and its sections in order."""

    title: str
    run_id: str
    meta: tuple[str, ...]
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]


def page(run: RunComparison, files: tuple[str, ...]) -> Page:
    """Turn a comparison into the data of its page; `files` are the files next to it."""
    charts = ChartBudget()
    sections = _sections(run, files, charts)
    lacking = (f"Charts are left out: {charts.why_none}.",) * bool(charts.why_none)
    return Page(
        title=one_line(run.title) or _default_title(run),
        run_id=run.run_id,
        meta=_meta(run),
        warnings=(*warnings(run), *lacking),
        sections=sections,
    )


def _sections(
    run: RunComparison, files: tuple[str, ...], charts: ChartBudget
) -> tuple[Section, ...]:
    """Return the sections of the page; only those of profiles if nothing was timed."""
    axis = shared_axis(run.comparisons, margin=run.settings.margin)
    rows, hosts = comparison_rows(run, axis), hosts_facts(run)
    folds, cells = fold_anchors(rows), unexplained_cells(run, rows)
    # charts are drawn in this order, until the budget is used up
    ladder = ladder_section(run, charts)
    sweeps = sweeps_section(run, charts)
    roofline = roofline_section(run, tuple(cell.profiles for cell in cells), charts)
    why = why_section(run, rows, cells, Sheet(axis=axis, charts=charts, files=files))
    answer = answer_section(run, headlines(run), rows, axis, folds=folds)
    power, method = power_section(cells), method_section(run)
    ends = (method, reproduce_section(run, files))
    if not is_timed(run):
        untimed = (answer, why, roofline, sweeps, power, *ends)
        return tuple(section for section in untimed if section)
    every = (
        groups_section(run),
        answer,
        overview_section(run, rows),
        ladder,
        proof_section(run),
        why,
        comparisons_section(run, rows, axis, folds=folds, files=files),
        scaling_section(run),
        batches_section(run),
        training_section(run),
        picked_section(run),
        roofline,
        sweeps,
        startup_section(run),
        memory_section(run, tuple(map(gpu_sentence, run.hosts))),
        power,
        environments_section(hosts),
        failures_section(run, files),
        *ends,
    )
    return tuple(section for section in every if section)


def _default_title(run: RunComparison) -> str:
    arms = listed((*run.all_references, *compared_arms(run)), most=5)
    if not is_timed(run):
        return f"What do the profiles of {arms} say?"
    groups = [group.name for group in run.between_hosts.groups]
    where = f", on {listed(groups)}" if groups else ""
    return f"How fast is the same work in {arms}{where}?"


def _meta(run: RunComparison) -> tuple[str, ...]:
    if not is_timed(run):
        profiles = sum(len(arm.passes) for profile in run.profiles for arm in profile.arms)
        imported = f"{counted(profiles, 'profile')} imported"
        return _moment(run.created), imported, f"envcompare {run.tool_version}"
    hosts = list(dict.fromkeys(cell.host for cell in run.cells))
    workloads = {cell.workload for cell in run.cells}
    environments = counted(len((*run.all_references, *compared_arms(run))), "environment")
    named = f" ({listed(hosts)})" * (len(hosts) <= _MOST_HOSTS)
    where = f"{counted(len(hosts), 'host')}{named}"
    return (
        _moment(run.created),
        f"{environments} × {counted(len(workloads), 'workload')} on {where}",
        f"{_pieces(run)} measured",
        *device_sentences(run),
        *filter(None, (threads_text(run),)),
        f"envcompare {run.tool_version}",
    )


def _pieces(run: RunComparison) -> str:
    steps = sum(cell.steps for cell in run.cells)
    processes = sum(cell.processes for cell in run.cells)
    parts = [counted(steps, "step")] * bool(steps or not processes)
    parts += [counted(processes, "process", "processes")] * bool(processes)
    return " and ".join(parts)


def _moment(created: str) -> str:
    try:
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))  # Python 3.10 parses no Z
        return f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError):
        return created


def render(comparison: RunComparison, *, files: tuple[str, ...] = ()) -> str:
    """Return the report as HTML; it may link to `files`, the names next to the page."""
    style, script = _bundled("report.css"), _bundled("report.js")
    return (
        _templates()
        .get_template("report.html.j2")
        .render(
            page=page(comparison, files),
            answer=msgspec.to_builtins(answer(comparison)),
            style=Markup(style),  # noqa: S704 — our own file
            script=Markup(script),  # noqa: S704 — our own file
            # only this style and this script
            policy=(
                f"default-src 'none'; style-src 'sha256-{_digest(style)}'; "
                f"script-src 'sha256-{_digest(script)}'; base-uri 'none'; form-action 'none'"
            ),
        )
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("envcompare.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"figures": _figures, "attributes": _attributes}
    return templates


@cache
def _bundled(name: str) -> str:
    path = package_files("envcompare.report") / "templates" / name
    return path.read_text(encoding="utf-8")


def _printed(value: object) -> object:
    return visible(value) if type(value) is str else value


def _figures(text: str) -> Markup:
    """Keep options and numbers with units on one line, and set backquoted text as code."""
    safe = _WHOLE.sub(r'<span class="nw">\g<0></span>', str(escape(visible(text))))
    return Markup(_CODE.sub(r"<code>\1</code>", safe))  # noqa: S704 — escaped above


def _attributes(pairs: tuple[tuple[str, str], ...]) -> Markup:
    made = (f' {escape(name)}="{escape(visible(value))}"' for name, value in pairs)
    return Markup("".join(made))  # noqa: S704 — escaped above
