"""What to know of the numbers of a profile, in sentences: one for each kind of note."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from envcompare.run_folder.profiles import Note, NoteKind
from envcompare.text import counted

_NOUNS: Final[Mapping[str, tuple[str, ...]]] = {
    "gpus": ("GPU",),
    "graphs": ("CUDA graph",),
    "launches": ("launch", "launches"),
    "processes": ("process", "processes"),
    "rows": ("row",),
}
"""Values that are counts, with what they count."""
_SENTENCES: Final[Mapping[NoteKind, str]] = {
    # Kineto
    "no-gpu-events": "no GPU data: the trace contains no kernel, copy or memset",
    "distributed": "from a distributed program: rank {rank} of {world_size}, backend {backend}",
    "times-of-counting": (
        "counters were collected kernel by kernel, which changes every time: no time is used"
    ),
    "metrics-without-sums": "left out because they have no sums: {metrics}",
    "counters-of-ranges": "some counters are of a whole range, not of one kernel",
    # Nsight Systems, and all traces
    "several-gpus": "{gpus} were used: span, busy time and gaps are given for each GPU",
    "marked-range": (
        "only what was launched inside the NVTX range {range} counts: {kept} of {kernels} kernels"
    ),
    "work-without-call": "{rows} of GPU work have no API call, so none of them counts",
    "newer-schema": "its schema is newer than {newest}, the newest that was tried: check the sums",
    "no-cuda-data": "no CUDA data: the export contains no kernel, copy or memset that counts",
    "calls-without-gpu": (
        "no CUDA data except API calls: the export contains no kernel, copy or memset that counts"
    ),
    "launches-without-kernel": (
        "{launches} have no kernel in the export: it was lost, or ran after its end"
    ),
    "whole-graphs": (
        "{graphs} were traced as a whole: their kernels are hidden; collect with "
        "--cuda-graph-trace=node"
    ),
    "untraced-graphs": (
        "CUDA graphs were launched and not traced: collect with --cuda-graph-trace=node"
    ),
    "unknown-launches": (
        "left out: {launches} named [Unknown], where the tool did not record which kernel ran"
    ),
    # Nsight Compute
    "metric-missing": "{metric} is missing in {launches}",
    "impossible-metrics": (
        "left out because the value is impossible and no quantity uses it: {metrics}"
    ),
    "no-time": "no time is used: counting SASS instructions changes it, in one case 146-fold",
    "unpatched-time": (
        "instructions were counted as well: the time is gpu__time_duration, which the memory "
        "counters of the same pass show to be of a replay that counted none"
    ),
    "controls-unknown": (
        "the file does not record cache and clock control: by default ncu empties the caches "
        "before each pass, so bytes of device memory are an upper bound, and locks the clock"
    ),
    "controls-off": (
        "caches and clocks were left to the program (--cache-control none, --clock-control none)"
    ),
    "launches-not-in-file": "{launches} are not in the file: filtered out, or lost",
    "uneven-rate": (
        "{metric} is left out: its launches differ, and the file does not record their times"
    ),
    # nvprof
    "cut-names": "some names end in $: nvprof cut them to the width of the terminal",
    "rounded-counts": (
        "large counts are rounded to five digits, as nvprof prints them in text; CSV is exact"
    ),
    "no-api-calls": (
        "no API calls, as --print-gpu-summary prints: if the log was cut off, only what took less "
        "than {percent} % of the GPU's time could be missing"
    ),
    "processes": "{processes} are added up",
    "events-left-out": "events are left out; only metrics are read",
    "unread-table": "not compared: {table}",
    "unread-rows": "not compared: {table} ({names})",
    "uneven-metric": (
        "line {line}: {metric} is left out of one kernel: its average does not fit its minimum and "
        "maximum"
    ),
    "metric-of-some": (
        "{metric} is left out of a kernel: one process or GPU counted it and another did not"
    ),
    "unended-line": "the last line has no line ending; its row passes every check and was read",
    # Of a run folder of schema 1
    "text": "{text}",
    # PyTorch in the worker
    "flops-of-operator": "{operator}: {flops} FLOP",
}


def note_sentences(notes: Iterable[Note]) -> tuple[str, ...]:
    """Return what notes say, a sentence for each."""
    return tuple(map(_sentence, notes))


def _sentence(note: Note) -> str:
    # A record that somebody edited may lack a value or hold another type.
    values: dict[str, int | float | str] = defaultdict(lambda: "?")
    for name, value in note.values.items():
        is_count = name in _NOUNS and isinstance(value, int)
        text = f"{value:.2g}" if isinstance(value, float) else value
        values[name] = counted(int(value), *_NOUNS[name]) if is_count else text
    return _SENTENCES[note.kind].format_map(values)
