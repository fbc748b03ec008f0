"""The operation `profile`: k more steps of the live generation, seen by a profiler.

What is around the process finds the steps between marks; what is inside is a function of a module
that is imported for it alone. A profiler that is missing or fails gives a reason, never a failure:
what it would have seen is not measured.
"""

from __future__ import annotations

import importlib
import time
from typing import Any, Callable

from harness.failures import ProtocolError
from harness.torchparts import loaded_torch

RANGE = "envcompare"
Step = Callable[[], Any]
# Module, function, and whether it writes a file.
INSIDE = {
    "torch": ("torchtrace", "profile", True),
    "flops": ("flops", "count", False),
    "host": ("hostcounters", "count", False),
    "phases": ("marking", "mark", False),
}
KINDS = ("marks", *INSIDE)


def profile(step: Step, kind: str, k: int, out: str) -> dict[str, Any]:
    """Run k steps for one kind of profile; return the fields of the reply.

    `values` has the results in the profiler's form; `file`, `reason` and `hint` may be empty.
    Raises ProtocolError for an unknown kind.
    """
    if kind not in KINDS:
        raise ProtocolError(f"no kind of profile {kind!r}; there are {', '.join(KINDS)}")
    start_ns, has_failed = time.monotonic_ns(), False
    try:
        found = mark(step, k) if kind == "marks" else _inside(step, kind, k, out)
    except (Exception, SystemExit) as error:  # noqa: BLE001  the worker outlives its profilers
        lines = str(error).strip().splitlines()
        found = {"reason": type(error).__name__ + (f": {lines[0]}" if lines else "")}
        has_failed = True
    wall_ns = time.monotonic_ns() - start_ns
    said = {name: found.pop(name, None) or "" for name in ("file", "reason", "hint")}
    head = {"kind": kind, "k": k, "wall_ns": wall_ns, "has_failed": has_failed}
    return {**head, **said, "values": found}


def mark(step: Step, k: int) -> dict[str, Any]:
    """Run k steps between the marks that nsys and ncu look for.

    The range is of start and end and not of push and pop: those belong to one thread, and PyTorch
    launches the kernels of a backward pass from another. Without a GPU there is nothing to mark.
    """
    torch = loaded_torch()
    if torch is None or not torch.cuda.is_available():
        run(step, k)
        return {"reason": "no GPU is used: nothing was marked"}
    cuda = torch.cuda
    cuda.synchronize()
    cuda.profiler.start()
    started = cuda.nvtx.range_start(RANGE)
    run(step, k)
    cuda.synchronize()
    cuda.nvtx.range_end(started)
    cuda.profiler.stop()
    return {}


def run(step: Step, k: int) -> None:
    """Run k steps."""
    for _ in range(k):
        step()


def _inside(step: Step, kind: str, k: int, out: str) -> dict[str, Any]:
    module, function, has_file = INSIDE[kind]
    call = getattr(importlib.import_module(f"harness.counters.{module}"), function)
    found: dict[str, Any] = call(step, k, out) if has_file else call(step, k)
    return found
