"""Files of profilers to import, and imports of them into runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builders import CELL, blocks, run_record
from htmltree import parse

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.importing import Import
from envcompare.report.page import render
from envcompare.run_folder.records import Event
from envcompare.run_folder.results import RunFolder

NVPROF = """\
==1234== NVPROF is profiling process 1234, command: python train.py
==1234== Profiling application: python train.py
==1234== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   60.00%  6.0000ms        10  600.00us  590.00us  610.00us  {kernel}
                   40.00%  4.0000ms        20  200.00us  190.00us  210.00us  [CUDA memcpy HtoD]
      API calls:  100.00%  20.000ms        10  2.0000ms  1.0000ms  3.0000ms  cudaLaunchKernel
"""
WINOGRAD = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
FPROP = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nhwc_tilesize128x64x16"


def log(folder: Path, name: str, kernel: str = WINOGRAD) -> Path:
    """Write a log of nvprof."""
    path = folder / name
    path.write_text(NVPROF.format(kernel=kernel), encoding="utf-8")
    return path


def trace(folder: Path, name: str, rank: int = 0) -> Path:
    """Write a trace of torch.profiler."""
    path = folder / name
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1.0,
         "dur": 2.0 + rank}
    ]  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    return path


def request(tmp_path: Path, *files: Path, **changes: Any) -> Import:
    """Return the import of a log of nvprof as `vm` into a new run."""
    fields: dict[str, Any] = {"tool": "nvprof", "arm": "vm", "out": tmp_path / "results"}
    return Import(files=files, **{**fields, **changes})


def two_arms(tmp_path: Path, *, kernel: str = FPROP, **changes: Any) -> RunFolder:
    """Import a log as vm and one as docker."""
    first = request(tmp_path, log(tmp_path, "vm.log"), **changes).run()
    second = request(
        tmp_path, log(tmp_path, "docker.log", kernel), arm="docker", into=first.folder.path,
        **changes,
    )  # fmt: skip
    return second.run().folder


def measured(tmp_path: Path, **changes: Any) -> RunFolder:
    """Write a run that timed vm, docker and the control."""
    folder = RunFolder.create(tmp_path / "results", run_record(**changes))
    for arm in ("vm", "docker"):
        folder.append_event(Event(t=1.0, what="arm-ready", host="local", arm=arm))
    for sample in blocks({"vm": 1.0, "docker": 1.1, "vm~control": 1.0}):
        folder.append_sample(sample)
    folder.append_event(Event(t=2.0, what="cell-ended", host="local", cell=CELL, state="ok"))
    folder.append_event(Event(t=3.0, what="run-ended"))
    folder.close()
    return folder


def imported(folder: Path, tool: str, **files: Path | tuple[Path, ...]) -> RunComparison:
    """Import the files of each environment, the first of them as the reference."""
    made: RunFolder | None = None
    for arm, paths in files.items():
        several = paths if isinstance(paths, tuple) else (paths,)
        into = made.path if made else None
        made = request(folder, *several, tool=tool, arm=arm, into=into).run().folder
    assert made is not None
    return compared(made)


def answer(run: RunComparison) -> str:
    """Return all that stands in the answer of the page."""
    return parse(render(run)).find("answer").text


def files_of(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder but the lock, which tells when it was last held."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def compared(folder: RunFolder) -> RunComparison:
    """Analyse a run folder that was just written."""
    return compare_run(RunFolder.open(folder.path))
