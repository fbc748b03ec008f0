"""Small files of Nsight Compute in the columns of its versions, written for one test each."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

HEAD = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
        "Block Size", "Grid Size", "Device", "CC")  # fmt: skip
TIME = "gpu__time_duration.sum"
BYTES = "dram__bytes.sum"
DATA = Path(__file__).parents[1] / "data" / "profiles"


def row(cells: Sequence[object]) -> str:
    """Return a line of CSV as ncu writes it, every cell in quotes."""
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(cells)
    return text.getvalue()


def launch(number: int, *values: object, name: str = "k(int)", capability: str = "8.0") -> str:
    """Return the row of a launch on the raw page, or the start of its rows in the details."""
    head = (number, 1, "train", "127.0.0.1", name, 1, 7, "(32, 1, 1)", "(4, 1, 1)", 0, capability)
    return row((*head, *values))


def raw(metrics: dict[str, str], *launches: str) -> str:
    """Return a raw page: metrics with their units, then the rows of the launches."""
    units = row([""] * len(HEAD) + list(metrics.values()))
    return row((*HEAD, *metrics)) + units + "".join(launches)


def details(*rows: tuple[int, str, str, str]) -> str:
    """Return a details page of launches, metrics, units and values."""
    header = row((*HEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value"))
    section = "Command line profiler metrics"
    return header + "".join(launch(n, section, metric, unit, v) for n, metric, unit, v in rows)


def refusing_program(path: Path, said: str) -> None:
    """Write a program that says this and fails: a newer report needs a version of the future."""
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit 1\n".replace("cat", "/bin/cat"))
    path.chmod(0o755)
