"""A run folder as pandas frames: its tables, and every timed step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from envcompare.analysis.compare import compare_files
from envcompare.analysis.model import RunComparison
from envcompare.analysis.tables import (
    COMPARISONS,
    DIFFERENCES,
    QUANTITIES,
    SAMPLES,
    SCALING,
    Column,
    Kind,
    Row,
    comparison_table,
    difference_table,
    quantity_table,
    scaling_table,
)
from envcompare.analysis.timing.runfiles import RunFiles, read_files
from envcompare.errors import RunFolderError, plain
from envcompare.run_folder.records import Block, Measured, ProcessRun
from envcompare.run_folder.results import RunFolder
from envcompare.text import visible

_DTYPES: Final[dict[Kind, str]] = {
    "text": "string",
    "whole number": "Int64",
    "number": "float64",
    "yes or no": "boolean",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFrames:
    """A run folder as frames; docs/guide/python.md describes every column.

    Names end in the unit: `_s` is seconds. A ratio is time in the arm ÷ time in the reference, so
    that above 1 is slower.

    comparisons: a row for each comparison and metric, with its outcome, ratio and interval.
    samples:     a row for each timed step, or whole process of a plain command.
    differences: a row for each property in which an environment differs from the reference.
    quantities:  a row for each quantity that profiles or GPU readings tell of an environment.
    scaling:     a row for each environment and number of ranks, with speed-up and collectives.
    """

    comparisons: pd.DataFrame
    samples: pd.DataFrame
    differences: pd.DataFrame
    quantities: pd.DataFrame
    scaling: pd.DataFrame


def read_frames(path: Path) -> RunFrames:
    """Analyse a run folder, complete or not, and return it as frames; writes nothing.

    Raises RunFolderError if it cannot be read.
    """
    try:
        files = read_files(RunFolder.open(path))
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be read",
            details=plain(error, has_file=True),
            hint="check that you may read the folder and all files in it",
        ) from error
    run = compare_files(files)
    return RunFrames(
        comparisons=comparison_frame(run),
        samples=_sample_frame(files),
        differences=_frame(difference_table(run), DIFFERENCES),
        quantities=_frame(quantity_table(run), QUANTITIES),
        scaling=_frame(scaling_table(run), SCALING),
    )


def comparison_frame(run: RunComparison) -> pd.DataFrame:
    """Return the comparisons, with the columns COMPARISONS."""
    return _frame(comparison_table(run), COMPARISONS)


def _sample_frame(files: RunFiles) -> pd.DataFrame:
    """Return every timed step and process, with the columns SAMPLES.

    Texts have the category type, since a run may have millions of steps.
    """
    cells = {cell.id: cell for cell in files.run.cells}
    samples = [
        sample for sample in files.samples if isinstance(sample, Measured) and sample.cell in cells
    ]
    lengths = [1 if isinstance(sample, ProcessRun) else sample.k for sample in samples]
    of_sample = pd.DataFrame(
        {
            "run_id": _category([files.run.run_id] * len(samples)),
            "host": _category([cells[sample.cell].host for sample in samples]),
            "workload": _category([cells[sample.cell].workload for sample in samples]),
            "cell": _category([sample.cell for sample in samples]),
            "arm": _category([sample.arm for sample in samples]),
            **{
                name: pd.array([getattr(sample, name) for sample in samples], dtype="Int64")
                for name in ("restart", "generation", "round", "order")
            },
            "is_warmup": pd.array([sample.warmup for sample in samples], dtype="boolean"),
            "is_dropped": pd.array([sample.status != "ok" for sample in samples], dtype="boolean"),
        }
    )
    steps = of_sample.loc[of_sample.index.repeat(lengths)].reset_index(drop=True)
    times = {
        name: _seconds((_times_ns(sample, name) for sample in samples), lengths)
        for name in ("wall_s", "cpu_s", "gpu_s")
    }
    place = np.fromiter(chain.from_iterable(map(range, lengths)), dtype=np.int64)
    return steps.assign(step=pd.array(place, dtype="Int64"), **times)[list(SAMPLES)]


def _frame(rows: Sequence[Row], columns: Mapping[str, Column]) -> pd.DataFrame:
    """Return the rows of a table as a frame, with these columns and their types."""
    typed = {
        name: pd.array([row[name] for row in rows], dtype=_DTYPES[column.kind])
        for name, column in columns.items()
    }
    return pd.DataFrame(typed)


def _category(texts: Sequence[str]) -> pd.Categorical:
    names = {text: visible(text) for text in dict.fromkeys(texts)}
    return pd.Categorical([names[text] for text in texts])


def _times_ns(sample: Measured, name: str) -> Sequence[int] | None:
    """Return the per-step values of a sample; None if it has none."""
    if isinstance(sample, Block):
        return {"wall_s": sample.wall_ns, "cpu_s": sample.cpu_ns, "gpu_s": sample.gpu_ns}[name]
    user, system = sample.user_ns, sample.sys_ns
    cpu = None if user is None or system is None else (user + system,)
    return {"wall_s": (sample.wall_ns,), "cpu_s": cpu, "gpu_s": None}[name]


def _seconds(samples: Iterable[Sequence[int] | None], lengths: Sequence[int]) -> np.ndarray:
    """Return the times of all steps in seconds; NaN for blocks without per-step values."""
    filled = (
        times if times is not None and len(times) == length else (math.nan,) * length
        for times, length in zip(samples, lengths, strict=True)
    )
    return np.fromiter(chain.from_iterable(filled), dtype=np.float64) / 1e9
