"""Traces of torch.profiler made by hand, so that a test says only what matters."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
THREAD, BACKWARD = 100, 101
DEVICE = {
    "id": 0, "name": "NVIDIA A100-SXM4-40GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108,
}  # fmt: skip


def event(category: str, name: str, start: float, lasts: float, **args: object) -> Event:
    """Return a complete event; times are microseconds."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": THREAD, "ts": start,
        "dur": lasts, "args": args,
    }  # fmt: skip


def operator(
    name: str, start: float, lasts: float, *, thread: int = THREAD, **args: object
) -> Event:
    """Return an operator."""
    return {**event("cpu_op", name, start, lasts, **args), "tid": thread}


def launch(correlation: int, start: float, *, thread: int = THREAD, lasts: float = 5) -> Event:
    """Return the call that launches a kernel."""
    made = event("cuda_runtime", "cudaLaunchKernel", start, lasts, correlation=correlation)
    return {**made, "tid": thread}


def kernel(name: str, start: float, lasts: float, **args: object) -> Event:
    """Return a kernel; `args` stand over those of a plain one."""
    plain: dict[str, object] = {
        "device": 0, "context": 1, "stream": 7, "grid": [8, 1, 1], "block": [128, 1, 1],
    }  # fmt: skip
    return event("kernel", name, start, lasts, **{**plain, **args})


def copy(name: str, start: float, lasts: float, size: int, **args: object) -> Event:
    """Return a copy or a memset."""
    category = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
    return event(category, name, start, lasts, **{"device": 0, "stream": 7, "bytes": size, **args})


def write(path: Path, events: list[Event], **head: object) -> Path:
    """Write a trace, packed where the name says so."""
    content = {
        "schemaVersion": 1, "deviceProperties": [DEVICE], **head, "traceEvents": events,
        "traceName": path.name,
    }  # fmt: skip
    data = json.dumps(content, indent=1).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def step(number: int = 0, *, at: float = 0.0) -> list[Event]:
    """Return one step of a small program, 1000 µs long."""
    first = number * 10 + 1
    names = ("volta_sgemm_128x64_nn", "void at::native::add<float>(float*)")
    return [
        event("user_annotation", f"ProfilerStep#{number}", at, 900.5),
        operator("aten::linear", at + 10, 100, **{"External id": first}),
        operator("aten::addmm", at + 20.125, 80, **{"External id": first + 1}),
        launch(first, at + 30),
        kernel(names[0], at + 200, 50.25, correlation=first, **{"External id": first + 1}),
        operator("aten::add", at + 150, 30, **{"External id": first + 2}),
        launch(first + 1, at + 160),
        kernel(names[1], at + 260, 20, correlation=first + 1, **{"External id": first + 2}),
        copy("Memcpy HtoD (Pageable -> Device)", at + 100, 40, 4096, correlation=first + 2),
        copy("Memset (Device)", at + 290, 2.5, 64, correlation=first + 3),
    ]
