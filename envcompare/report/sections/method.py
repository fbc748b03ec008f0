"""How this run was measured, what its words mean, and what runs it again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from envcompare.analysis.model.comparison import CellSummary, RunComparison
from envcompare.command import shell_text
from envcompare.report.format.blocks import (
    Block,
    Column,
    Fold,
    Heading,
    Items,
    Line,
    Pairs,
    Row,
    Section,
    Table,
    Verbatim,
    texts,
)
from envcompare.report.format.numbers import NOT_MEASURED, duration
from envcompare.report.sections.links import file_links
from envcompare.report.wording.labels import cell_labels, has_steps, piece_word, piece_words
from envcompare.report.wording.methodwords import method_sentences
from envcompare.report.wording.profilewords import is_timed
from envcompare.report.wording.verdicts import control_sentence
from envcompare.text import one_line, shortened

_STOPS: Final = {
    "target": "the interval was narrow enough",
    "equivalent": "the interval lay inside the margin",
    "decided": "the confidence sequence excluded 0",
    "budget": "the budget was spent",
    "failure": "a failure",
    "interrupted": "the run was interrupted",
    "unknown": "not recorded",
}
_GLOSSARY: Final[dict[str, str]] = {
    "environment": (
        "how a process is isolated on a host, such as vm (a plain process), docker or singularity"
    ),
    "stack": (
        "the software the process sees; where stacks differ, a difference is not the "
        "environment's alone"
    ),
    "arm": "one environment with its stack, taking part in a comparison",
    "cell": "a workload with its parameters on a host; inside it all arms are compared",
    "block, round": "steps run without a pause; one block of every arm in random order",
    "generation": (
        "the time between two fresh starts of the workers: the unit of replication, unless "
        "restarts differ more"
    ),
    "restart": (
        "all arms started anew by their engines, for a few generations: the unit where restarts "
        "differ more than those"
    ),
    "net": "wall time without the wait for a CPU that other processes held",
    "stretch": "wall time ÷ net time: how much waiting stretched the clock",
    "A/A control": (
        "the reference measured a second time under another label: shows what the run cannot see"
    ),
    "confounder": (
        "software or a setting that differs besides the environment and can change the speed by "
        "itself"
    ),
}
_RATIO: Final = (
    "A ratio is the time of a {piece} in the arm ÷ the time in the reference: above 1 is slower "
    "and is drawn to the right."
)
_TURNS: Final = (
    "All arms take turns in short blocks, in a fresh random order each round, so that a "
    "neighbour's load meets all of them alike."
)
_OUTCOMES: Final = (
    "Equivalent: the whole interval lies inside the margin. Slower or faster: it lies on one side "
    "of 0. Anything else is inconclusive."
)
_FILES_SHOWN: Final = 12


def method_section(run: RunComparison) -> Section:
    """Return the design with the numbers of this run, what happened in each cell, and words."""
    if not is_timed(run):
        told: tuple[Block, ...] = (Items(items=method_sentences(run)),)
        return Section(anchor="method", title="Method", blocks=told)
    labels = cell_labels(run)
    controls = (control_sentence(one, label=labels[one.id], run=run) for one in run.cells)
    design = (
        _RATIO.format(piece=piece_word(run)),
        *(_TURNS,) * has_steps(run),
        *method_sentences(run),
        _OUTCOMES,
        *controls,
    )
    glossary = Fold(
        summary="Glossary", style="print", blocks=(Pairs(pairs=tuple(_GLOSSARY.items())),)
    )
    blocks = (Items(items=design), cells_table(run), glossary)
    return Section(anchor="method", title="Method", blocks=blocks)


def cells_table(run: RunComparison) -> Table:
    """Return what happened in each cell, and a line below it where there is more to say."""
    labels = cell_labels(run)
    heads = (
        "state", "verdict on", "steps per block", "restarts", "generations", "rounds", "dropped",
        piece_words(run), "measured", "elapsed", "stopped by",
    )  # fmt: skip
    return Table(
        label="What happened in each cell",
        columns=(
            Column(head="Cell", kind="name", is_row_head=True),
            *(Column(head=head) for head in heads),
        ),
        rows=tuple(row for cell in run.cells for row in _cell_rows(cell, labels[cell.id])),
    )


def _cell_rows(cell: CellSummary, label: str) -> Iterator[Row]:
    pieces = cell.processes or cell.steps
    counts = (cell.restarts, cell.generations, cell.rounds, cell.dropped_rounds, pieces)
    yield Row(
        cells=(
            label,
            cell.state,
            cell.metric,
            NOT_MEASURED if cell.steps_per_block is None else str(cell.steps_per_block),
            *(str(count) for count in counts),
            duration(cell.measured_s),
            duration(cell.elapsed_s),
            _STOPS[cell.stopped_by],
        )
    )
    # what stopped a cell that ended well has a column
    reason = "" if cell.state == "ok" else cell.reason
    notes = (reason, cell.metric_reason, _generation(cell), *cell.cautions)
    told = "; ".join(one_line(text) for text in notes if text)
    if told:
        yield Row(cells=(Line(below=(f"{label}: {told}",)),))


def _generation(cell: CellSummary) -> str:
    """Return how generations began and why so; empty where there were none."""
    if not cell.generation:
        return ""
    why = f": {cell.generation_reason}" if cell.generation_reason else ""
    return f"generations by {cell.generation}{why}"


def reproduce_section(run: RunComparison, files: tuple[str, ...]) -> Section:
    """Return the commands and settings of the run, and the files beside the page."""
    commands = tuple(filter(None, dict.fromkeys((shell_text(run.command_line), *run.imports))))
    configuration = shortened(run.configuration, most=20_000)
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
    has_raw = any(one.raw for cell in run.profiles for arm in cell.arms for one in arm.passes)
    if has_raw:
        yield from texts(
            "Raw files of profilers name the host and the command line.", style="small"
        )
    items = tuple(Line(after=(link,)) for link in file_links(files))
    if not items:
        yield from texts("The raw samples lie in the run folder that this page was drawn from.")
        return
    yield Items(items=items[:_FILES_SHOWN])
    if rest := items[_FILES_SHOWN:]:
        yield Fold(summary=f"{len(rest)} more files", blocks=(Items(items=rest),))


def _settings(run: RunComparison) -> tuple[tuple[str, str], ...]:
    made = (
        ("run", run.run_id),
        ("created", run.created),
        ("envcompare", run.tool_version),
    )
    if not is_timed(run):
        return made
    return (
        *made,
        ("seed", str(run.seed)),
        ("preset", run.preset),
        ("threads", str(run.threads)),
        ("allocator and hash seed", "fixed" if run.stabilise else "as they are"),
        ("restarts planned", f"at least {run.min_restarts}"),
        ("budget per cell", duration(run.budget_s)),
        ("whole run", duration(run.duration_s)),
    )
