"""PyTorch's own profiler over k steps: its trace in a file, its operators as a table."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Iterable

from harness.counters.flops import NO_TORCH
from harness.torchparts import device_in_use, loaded_torch, wait_for_device

WAIT, WARM_UP = 1, 2  # steps before the k: the first steps that it sees pay for its own start
MOST = 200  # operators in the table; what they leave is added up in one row
REST = "(all others)"
NAME_LIMIT = 500


def profile(step: Callable[[], Any], k: int, out: str) -> dict[str, Any]:
    """Run a few steps and then k seen by torch.profiler; return the table of operators.

    The trace goes to `out`, gzipped where that ends in .gz, unless it is empty. Times are ns, sizes
    bytes, None where there is no GPU to spend them on.
    """
    torch = loaded_torch()
    if torch is None:
        return {"reason": NO_TORCH}
    has_gpu = device_in_use() == "cuda"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the profiler, about itself
        seen = _profiled(torch, step, k, has_gpu=has_gpu)
        if out:
            seen.export_chrome_trace(out)
        rows = [row(average, has_gpu=has_gpu) for average in seen.key_averages() if _is_op(average)]
    return {
        "version": str(torch.__version__),
        "steps_before": WAIT + WARM_UP,
        "operators": largest(rows),
        "file": out,
    }


def _profiled(torch: Any, step: Callable[[], Any], k: int, *, has_gpu: bool) -> Any:  # noqa: ANN401
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU, kinds.CUDA] if has_gpu else [kinds.CPU]
    schedule = torch.profiler.schedule(wait=WAIT, warmup=WARM_UP, active=k, repeat=1)
    device = "cuda" if has_gpu else "cpu"
    with torch.profiler.profile(
        activities=activities, schedule=schedule, record_shapes=True, profile_memory=True
    ) as seen:
        for number in range(1, WAIT + WARM_UP + k + 1):
            step()
            if number in {WAIT + WARM_UP, WAIT + WARM_UP + k}:
                wait_for_device(device)  # the GPU is idle where the k steps begin and end
            seen.step()
    return seen


def _is_op(average: Any) -> bool:  # noqa: ANN401  PyTorch has no types here
    """Return whether a row belongs to the host: kernels have separate rows."""
    return str(average.device_type).endswith("CPU")


def row(average: Any, *, has_gpu: bool) -> dict[str, Any]:  # noqa: ANN401
    """Return one row of key_averages(), whose times are µs; before torch 2.3 devices were CUDA."""

    def device(name: str) -> float | None:
        if not has_gpu:
            return None
        value = getattr(average, name.format("device"), None)
        return value if value is not None else getattr(average, name.format("cuda"), None)

    return {
        "name": str(average.key)[:NAME_LIMIT],
        "calls": int(average.count),
        "self_cpu_ns": _ns(average.self_cpu_time_total),
        "cpu_ns": _ns(average.cpu_time_total),
        "self_device_ns": _ns(device("self_{}_time_total")),
        "device_ns": _ns(device("{}_time_total")),
        "self_cpu_bytes": int(average.self_cpu_memory_usage),
        "self_device_bytes": _whole(device("self_{}_memory_usage")),
    }


def largest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that take most time by themselves, and one for all others.

    A total of the others would count what they call twice: theirs is the sum of their own times.
    """
    ordered = sorted(rows, key=lambda one: -max(one["self_cpu_ns"], one["self_device_ns"] or 0))
    kept, others = ordered[:MOST], ordered[MOST:]
    return [*kept, _added(others)] if others else kept


def _added(rows: list[dict[str, Any]]) -> dict[str, Any]:
    def total(name: str) -> Any:  # noqa: ANN401
        values = [one[name] for one in rows]
        return None if None in values else sum(values)

    added = {name: total(name) for name in rows[0] if name != "name"}
    added.update(name=REST, cpu_ns=added["self_cpu_ns"], device_ns=added["self_device_ns"])
    return added


def _ns(microseconds: float | None) -> float | None:
    return None if microseconds is None else round(microseconds * 1000, 3)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
