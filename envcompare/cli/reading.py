"""The subcommands that read files: report, import, list, compare, combine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envcompare.cli.options import IMPORT, PATH, command_line, taking
from envcompare.console import Display, is_terminal, print_bytes, print_lines
from envcompare.errors import ConfigError
from envcompare.files import irregular
from envcompare.run_folder import replace_file, write_error
from envcompare.text import counted

if TYPE_CHECKING:
    from envcompare.analysis.model import RunComparison
    from envcompare.analysis.two_runs import Gate, GatedRun, RunChange
    from envcompare.report import PlainBlock
    from envcompare.run_folder.results import RunFolder

# Files without which a run folder is lost.
_OWN = ("run.json", "samples.jsonl", "events.jsonl", "fingerprints", "logs", "profiles")


@click.command()
@click.argument("run_folder", type=PATH, metavar="RUN")
@click.option("--open", "is_opened", is_flag=True, help="Open the page in the browser.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md", "json", "csv", "parquet"]),
    default="html",
    show_default=True,
    help="html is written to the run folder; all other formats go to stdout.",
)
@click.option(
    "--output", type=PATH, metavar="FILE", help="Write to this file instead of the run folder."
)
@click.option(
    "--columns",
    type=click.Choice(["main", "all"]),
    help="csv: main has eight columns, and a row for each comparison.  [default: main]  json: main "
    "has verdicts, reasons and the proof.  [default: all]",
)
@click.option(
    "--figures",
    type=PATH,
    metavar="DIR",
    help="Write every chart as SVG, PNG and PDF, with captions and a paragraph of methods.",
)
@click.option(
    "--width",
    type=click.FloatRange(min=20, max=1000),
    metavar="MM",
    help="Width of the figures in millimetres.",
)
@click.pass_obj
def report(display: Display, /, run_folder: Path, figures: Path | None, **asked: Any) -> None:
    """Redraw the report of a run folder; needs no torch, no Docker and no SSH.

    \b
    envcompare report results/RUN                                 the page, in the run folder
    envcompare report results/RUN --output page.html              the page elsewhere
    envcompare report results/RUN --format md                     for a pull request
    envcompare report results/RUN --format csv --columns all      a row for each number
    envcompare report results/RUN --format json --columns main    the answer, for a program
    envcompare report results/RUN --figures figures/              every chart, for a paper

    A page outside the run folder has no links to files in it.
    """
    from envcompare.run_folder.results import RunFolder

    folder = RunFolder.open(run_folder)
    form, output, is_opened = asked["form"], asked["output"], asked["is_opened"]
    if asked["width"] is not None and figures is None:
        raise ConfigError("--width is for --figures", hint="add --figures DIR, or leave it out")
    _check(form, output, figures, columns=asked["columns"], is_opened=is_opened)
    if form == "html":
        comparison = _page(folder, output, is_opened=is_opened)
    else:
        comparison = _data(folder, form, output, columns=asked["columns"])
    if figures is not None:
        _draw(comparison, figures, display, width_mm=asked["width"])


def _check(
    form: str,
    output: Path | None,
    figures: Path | None,
    *,
    columns: str | None,
    is_opened: bool,
) -> None:
    if columns is not None and form not in {"csv", "json"}:
        raise ConfigError(f"--columns is for csv and json, not for {form}", hint="leave it out")
    if is_opened and form != "html":
        raise ConfigError(f"--open is for the page, not for {form}", hint="leave one of them out")
    if output is not None:
        _check_output(output)
    elif form == "parquet" and is_terminal():
        raise ConfigError(
            f"{form} is binary and is not written to a terminal",
            hint=f"add --output FILE.{form}, or `> FILE.{form}`",
        )
    if figures is not None:
        from envcompare.report.exports import check_folder

        check_folder(figures)
        if _is_part(_real_path(figures)):
            brief = f"--figures {str(figures)!r} is a part of a run"
            raise ConfigError(brief, hint="name another folder")
    if form == "parquet":
        from envcompare.report.exports import check_parquet

        check_parquet()


def _check_output(output: Path) -> None:
    folder, why = output.parent, ""
    if output.is_dir():
        why, hint = "is a folder", "name a file in it"
    elif not folder.is_dir():
        why = f"cannot be written: there is no folder {folder}"
        hint = f"mkdir -p {shlex.quote(str(folder))}"
    elif not (irregular(output) or os.access(folder, os.W_OK)):
        why = f"cannot be written: no permission for {folder}"
        hint = "name a file in a folder that you can write to"
    elif _is_part(_real_path(output)):
        why, hint = "would replace a part of a run", "choose another name or folder"
    if why:
        raise ConfigError(f"--output {str(output)!r} {why}", hint=hint)


def _put(content: bytes, output: Path | None) -> None:
    """Write to the file, or to stdout if none is named.

    Raises RunFolderError if writing fails; an existing file then stays as it was.
    """
    if output is None:
        print_bytes(content)
        return
    try:
        if irregular(output):
            # A pipe or a device must not be replaced by a file.
            output.write_bytes(content)
        else:
            replace_file(_real_path(output), content)
    except OSError as error:
        raise write_error(output, error, option="--output") from error


def _real_path(path: Path) -> Path:
    """Return the resolved path; links that form a loop stay as they are."""
    return Path(os.path.realpath(path))


def _is_part(output: Path) -> bool:
    """Return whether a file is an essential part of the run folder that contains it."""
    return any(
        output.relative_to(folder).parts[0] in _OWN and (folder / "run.json").is_file()
        for folder in output.parents
    )


def _page(folder: RunFolder, output: Path | None, *, is_opened: bool) -> RunComparison:
    """Draw the page, by default in the run folder, and print where it is."""
    from envcompare.cli.conclusion import conclude, show_summary

    if output is None:
        comparison, path = conclude(folder)
    else:
        from envcompare.analysis.compare import compare_run
        from envcompare.report.page import render

        comparison, path = compare_run(folder), output
        is_in_run = _real_path(output).parent == _real_path(folder.path)
        names = tuple(name for name in folder.file_names() if is_in_run and name != output.name)
        _put(render(comparison, files=names).encode(), output)
    show_summary(comparison, path)
    if is_opened and click.launch(str(path)):
        print_lines(["the page was not opened: no program to open it was found"])
    return comparison


def _data(
    folder: RunFolder, form: str, output: Path | None, *, columns: str | None
) -> RunComparison:
    """Write a run in a format other than a page; its folder stays unchanged."""
    from envcompare.analysis.compare import compare_run

    comparison = compare_run(folder)
    if form == "json":
        from envcompare.report.exports import answer
        from envcompare.run_folder.results import json_bytes

        content = json_bytes(answer(comparison) if columns == "main" else comparison)
    elif form == "md":
        from envcompare.report import markdown
        from envcompare.report.summary import summary

        content = f"{markdown(summary(comparison))}\n".encode()
    else:
        from envcompare.report.exports import csv_text, parquet_bytes

        content = (
            parquet_bytes(comparison)
            if form == "parquet"
            else csv_text(comparison, is_whole=columns == "all").encode()
        )
    _put(content, output)
    return comparison


def _draw(
    comparison: RunComparison, figures: Path, display: Display, *, width_mm: float | None
) -> None:
    """Write the charts; messages go to stderr, since stdout may hold a table."""
    from envcompare.report.charts.rendering import ChartsError
    from envcompare.report.exports import captions_of, charts_of, left_out_sentence, write_figures

    charts = charts_of(comparison)
    try:
        captions = captions_of(comparison, charts)
        written = write_figures(charts, figures, captions=captions, width_mm=width_mm)
    except ChartsError as error:
        display.say(f"figures are left out: {error.details}")
        return
    display.say(f"{counted(len(written), 'file')} of figures in {figures}")
    if left_out := left_out_sentence(charts):
        display.say(left_out)


@click.command(name="import")
@taking(IMPORT)
@click.pass_obj
def import_(display: Display, /, **values: Any) -> None:
    """Import profiler files of any origin into a run folder and compare them; nothing is timed.

    \b
    envcompare import nsys --env vm vm.sqlite            makes a run folder and prints its name
    envcompare import nsys --env docker docker.sqlite --into results/RUN
    envcompare import ncu --env docker dram.csv flops.csv --into results/RUN --steps 20
    envcompare import nvprof --env vm old.log            kineto takes trace.json and .json.gz

    Each call adds the files of one environment; the environment named first is the reference.
    Several ncu or nvprof files in one call are passes over the same launches; each nsys or kineto
    file, such as one per rank, is a separate profile. The files must cover the same work in each
    environment; if they cover different numbers of steps, give the number of each with --steps.
    """
    from envcompare.cli.conclusion import conclude, show_summary
    from envcompare.importing import Import
    from envcompare.run_folder import locked

    done = Import(**values, command_line=command_line()).run()
    for line in done.lines:
        display.say(line)
    # Without the lock, this report could replace that of a later import.
    with locked(done.folder.path, by="import"):
        comparison, report = conclude(done.folder)
    show_summary(comparison, report)
    if done.is_alone:
        into = shlex.quote(str(done.folder.path))
        print_lines([f"next: envcompare import {values['tool']} --env NAME --into {into} FILE…"])


@click.command(name="list")
def list_() -> None:
    """List the bundled workloads with their parameters, the studies, and the environments."""
    from envcompare import bundled
    from envcompare.config import LADDER
    from envcompare.config.workloads import catalogue
    from envcompare.environments.registry import ENVIRONMENTS

    lines = ["workloads:"]
    for info in catalogue().values():
        bottleneck = f" Most of its time: {info.bottleneck}." if info.bottleneck else ""
        lines.append(f"  {info.name}: {info.summary}{bottleneck}")
        parameters = ", ".join(f"{name}={value}" for name, value in info.parameters.items())
        lines.append(f"      --set {info.name}.…: {parameters}")
    lines.append("  --command 'PROGRAM ARG …': any program, timed as a whole process")
    lines.append("studies, for --study:")
    for name, path in bundled.studies().items():
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        lines.append(f"  {name}: {first.removeprefix('# ')}")
    lines += ["environments:", *(f"  {name}" for name in ENVIRONMENTS)]
    lines.append(f"  {LADDER}: six arms, from a plain process up, each adding one thing")
    print_lines(lines)


def _formats(*more: str, help_: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    choices = click.Choice(["text", "md", "json", *more])
    return click.option(
        "--format", "form", type=choices, default="text", show_default=True, help=help_
    )


@click.command()
@click.argument("runs", nargs=-1, type=PATH, metavar="RUN [RUN]")
@click.option(
    "--fail-on",
    "texts",
    multiple=True,
    metavar="GATE",
    help="Exit 1 if one applies: slower:2%, unproven:2%, faster:2%, inconclusive, confounded, "
    "failed.",
)
@_formats(
    *("junit", "github"),
    help_="md is meant for a pull-request comment. junit and github need --fail-on: JUnit XML, and "
    "annotations of GitHub Actions.",
)
@click.option(
    "--allow-mismatch",
    is_flag=True,
    help="Compare two runs even if their reference, code or settings differ.",
)
def compare(
    runs: tuple[Path, ...], *, texts: tuple[str, ...], form: str, allow_mismatch: bool
) -> None:
    """Check a run against gates, or show how the ratios of two runs differ; write nothing.

    \b
    envcompare compare results/RUN --fail-on unproven:2%  exit 1 unless shown to be less than 2 %
    envcompare compare results/BEFORE results/AFTER       did docker ÷ vm change in between?

    slower:2% applies if the whole interval lies beyond 2 %, slower alone if that is the verdict.
    unproven:2% applies unless the whole intervals lie below 2 %: use it if an upgrade must prove
    that it costs nothing. An inconclusive comparison passes slower:2%.
    With two runs, gates judge the change of each ratio to the reference, never a time, because
    conditions change from run to run. Exit 3 or 4 if a gate could not judge everything, for
    example what only BEFORE contains, or if a run is incomplete.
    """
    from envcompare.analysis.two_runs import parse_gates

    gates = parse_gates(texts)
    if form in {"junit", "github"} and not gates:
        raise ConfigError(
            f"--format {form} reports gates, and none is given",
            hint="for example --fail-on unproven:2%,failed",
        )
    if not 1 <= len(runs) <= 2:
        raise ConfigError(
            f"compare takes one run or two, not {len(runs)}",
            hint="envcompare compare RUN, or envcompare compare BEFORE AFTER",
        )
    if len(runs) == 2:
        sys.exit(_compare_two(runs[0], runs[1], gates, form=form, allow_mismatch=allow_mismatch))
    if allow_mismatch:
        hint = "name a second run, or omit the option"
        raise ConfigError("--allow-mismatch is for two runs", hint=hint)
    sys.exit(_judge_one(runs[0], gates, form=form))


def _judge_one(path: Path, gates: tuple[Gate, ...], *, form: str) -> int:
    from envcompare.analysis.compare import compare_run
    from envcompare.analysis.two_runs import GatedRun, claims_of_run, gates_exit_code, judge_gates
    from envcompare.report.summary import summary
    from envcompare.report.wording import cell_labels
    from envcompare.report.wording.changewords import gate_blocks, worded_gates
    from envcompare.run_folder.results import RunFolder

    run = compare_run(RunFolder.open(path))
    claims = claims_of_run(run)
    if gates and not claims:
        raise ConfigError(
            f"--fail-on has nothing to judge in {run.run_id}",
            hint="name a run of `envcompare run` with at least two environments",
        )
    results = judge_gates(gates, claims)
    code = gates_exit_code(results, claims, is_complete=run.course.is_complete)
    results = worded_gates(results, cell_labels(run), run.reference_arm, references=run.references)
    gated = GatedRun(comparison=run, gates=results, exit_code=code)
    found = gate_blocks(results, run) if gates else ()
    _show_judged(summary(run), found, gated, form=form, name=run.run_id)
    return code


def _show_judged(
    details: tuple[PlainBlock, ...],
    found: tuple[PlainBlock, ...],
    judged: GatedRun | RunChange,
    *,
    form: str,
    name: str,
) -> None:
    """Print what was compared and what gates found: on paper first, in a terminal last."""
    from envcompare.cli.conclusion import show_result
    from envcompare.report.gates import answer, comment, github_lines, junit

    first = (answer(judged.gates, judged.exit_code), *found)
    match form:
        case "junit":
            print_bytes(junit(judged.gates, judged.exit_code, name=name))
        case "github":
            print_bytes(github_lines(judged.gates, judged.exit_code).encode())
        case "md" if judged.gates:
            print_bytes(comment(first, details).encode())
        case _:
            last = (*found, first[0]) if judged.gates else ()
            show_result((*details, *last), judged, form=form)


def _compare_two(
    before: Path, after: Path, gates: tuple[Gate, ...], *, form: str, allow_mismatch: bool
) -> int:
    import msgspec

    from envcompare.analysis.two_runs import claims_of_change, gates_exit_code, judge_gates
    from envcompare.analysis.two_runs.changes import compare_runs, read_run
    from envcompare.report.wording import cell_labels
    from envcompare.report.wording.changewords import change_blocks, gate_blocks, worded
    from envcompare.run_folder.results import RunFolder

    first, second = (read_run(RunFolder.open(path)) for path in (before, after))
    change = compare_runs(first, second, allow_mismatch=allow_mismatch)
    claims = claims_of_change(change)
    results = judge_gates(gates, claims)
    is_complete = change.before.is_complete and change.after.is_complete
    code = gates_exit_code(results, claims, is_complete=is_complete)
    labels = cell_labels(second.comparison)
    said = worded(msgspec.structs.replace(change, gates=results, exit_code=code), labels)
    found = gate_blocks(said.gates, said.before, said.after) if gates else ()
    _show_judged(change_blocks(said, labels), found, said, form=form, name=said.after.run_id)
    return code


@click.command()
@click.argument("runs", nargs=-1, type=PATH, metavar="RUN RUN…")
@_formats(help_="md is meant for a pull-request comment.")
@click.option(
    "--allow-mismatch",
    is_flag=True,
    help="Combine runs even if their reference, code or settings differ.",
)
def combine(runs: tuple[Path, ...], *, form: str, allow_mismatch: bool) -> None:
    """Pool runs of several days or hosts, and show how far they differ; write nothing.

    \b
    envcompare combine results/MONDAY results/TUESDAY results/FRIDAY
    envcompare combine results/*/ --format json > combined.json

    The interval of one run holds for its host and time. That of combined runs is for hosts like
    these, or for other days on the same host.
    """
    from envcompare.analysis.two_runs.combining import combine_runs, read_combinable
    from envcompare.cli.conclusion import show_result
    from envcompare.report.wording.changewords import combined_blocks, worded_runs
    from envcompare.run_folder.results import RunFolder

    read = [read_combinable(RunFolder.open(path)) for path in runs]
    combined = worded_runs(combine_runs(read, allow_mismatch=allow_mismatch))
    show_result(combined_blocks(combined), combined, form=form)


COMMANDS = (report, import_, list_, compare, combine)
