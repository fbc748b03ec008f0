"""Short names of cells, texts on one line, and hidden characters made visible."""

from __future__ import annotations

import unicodedata
from collections import Counter
from typing import Final

from envcompare.analysis.model import CellSummary, Comparison, RunComparison
from envcompare.records import Scalar

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """Return the text with control, bidi and invisible characters written as ⟨U+202E⟩.

    New lines and tabs stay. A lone surrogate, which no file can hold, is written out as well.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"⟨U+{ord(char):04X}⟩"
        if unicodedata.category(char) in _HIDDEN and char not in "\n\t"
        else char
        for char in text
    )


def one_line(text: str, *, most: int = 240) -> str:
    """Return the first line that is not empty, shortened to `most` characters."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return shortened(" ".join(first.split()), most=most)


def cause_line(text: str, *, brief: str) -> str:
    """Return the line of a log or traceback that tells the cause: the last one with words.

    Empty where the brief says it already.
    """
    lines = (line.strip() for line in reversed(text.splitlines()))
    last = next((line for line in lines if any(char.isalnum() for char in line)), "")
    return "" if last in brief else one_line(last)


def shortened(text: str, *, most: int) -> str:
    """Return at most `most` characters and, where more stood there, how many."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text)} characters)"


def cell_labels(comparison: RunComparison) -> dict[str, str]:
    """Name each cell by its workload, and by host and parameters where those differ."""
    cells: dict[str, CellSummary | Comparison] = {one.cell: one for one in comparison.comparisons}
    cells.update({one.id: one for one in comparison.cells})
    many_hosts = len({cell.host for cell in cells.values()}) > 1
    varied = _varied_parameters(list(cells.values()))
    labels = {}
    for key, cell in cells.items():
        words = [cell.workload]
        words += [f"{name}={value}" for name, value in sorted(cell.parameters.items())
                  if (cell.workload, name) in varied]  # fmt: skip
        words += [f"on {cell.host}"] * many_hosts
        labels[key] = " ".join(words)
    twice = {label for label, times in Counter(labels.values()).items() if times > 1}
    return {key: key if label in twice else label for key, label in labels.items()}


def _varied_parameters(cells: list[CellSummary | Comparison]) -> set[tuple[str, str]]:
    seen: dict[tuple[str, str], set[Scalar]] = {}
    for cell in cells:
        for name, value in cell.parameters.items():
            seen.setdefault((cell.workload, name), set()).add(value)
    return {key for key, values in seen.items() if len(values) > 1}
