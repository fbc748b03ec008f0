"""A program that measures the bounds of a device: bytes to and from its memory, FLOP by precision.

Bandwidth by copy and triad on arrays that no cache holds, arithmetic by matrix products of random
numbers, since zeros draw less power and run faster. Of several repetitions the best counts, and how
far the others are from it tells whether something else was at work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from functools import partial
from typing import Any, Callable, Iterator, NamedTuple

GIB = 1 << 30
BUDGET_S = 10.0  # of all measurements together, the last one may overrun it
WARM_UP_S = 0.2  # clocks rise under load
REPETITIONS = 20
CPU_SIZES, GPU_SIZES = (512, 1024, 2048, 4096), (2048, 4096, 8192, 16384)
CACHES = 4  # times the largest cache, that an array is at least
SHARE = 8  # of the free memory, that an array is at most
PAGE = 4096
DOUBLE_TENSORS = ((8, 0), (9, 0), (10, 0))  # A100, H100 and B200 multiply in FP64 on tensor cores
SCALE = 3.0
Run = Callable[[], Any]
Timer = Callable[[Run], float]


class Rate(NamedTuple):
    """The rate in a second, and how much longer than the best the median run took."""

    value: float
    spread: float


def main(arguments: list[str]) -> int:
    """Measure what was asked for and write one line of JSON to stdout."""
    sink = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no part of the answer
    asked = _parse(arguments)
    import torch  # noqa: PLC0415, TID251  after stdout is out of the way; its home is workloads/

    from harness.pinning import pin  # noqa: PLC0415

    pin([int(cpu) for cpu in asked.cpus.split(",")] if asked.cpus else None)
    if asked.threads:
        torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    found = {"torch": str(torch.__version__), **measure(torch, asked.device, asked.seconds)}
    os.write(sink, json.dumps(found).encode() + b"\n")
    return 0


def measure(torch: Any, device: str, seconds: float) -> dict[str, Any]:  # noqa: ANN401
    """Return the bandwidth and the rate of each precision within about so many seconds."""
    timer = gpu_timer(torch) if device == "cuda" else seconds_of
    memory = CudaMemory(torch) if device == "cuda" else HostMemory()
    plan = [*kinds(torch, device)]
    share_s = seconds / (len(plan) + 1)
    bandwidth = bytes_per_s(torch, device, memory, timer, share_s)
    sizes = GPU_SIZES if device == "cuda" else CPU_SIZES
    rates: dict[str, Rate] = {}
    for name, dtype, settings in plan:
        settings()
        rate = flops_per_s(torch, (device, dtype), sizes, timer, share_s)
        if rate is not None:
            rates[name] = rate
    found = [*rates.values(), *([bandwidth] if bandwidth else [])]
    return {
        **memory.device(),
        "bytes_per_s": bandwidth.value if bandwidth else None,
        "flops_per_s": {name: rate.value for name, rate in rates.items()},
        "spread": max((rate.spread for rate in found), default=None),
    }


def kinds(torch: Any, device: str) -> Iterator[tuple[str, Any, Run]]:  # noqa: ANN401
    """Yield the precisions a device computes in: name, type of number, and what selects it.

    A product runs on tensor cores wherever there are some for its type: its roof is theirs.
    """

    def tf32(*, is_on: bool) -> Run:
        return lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", is_on)

    off = tf32(is_on=False)
    if device != "cuda":
        yield "fp64", torch.float64, off
        yield "fp32", torch.float32, off
        return
    capability = torch.cuda.get_device_capability()
    yield "tensor_fp64" if capability in DOUBLE_TENSORS else "fp64", torch.float64, off
    yield "fp32", torch.float32, off
    yield "tensor_fp16" if capability >= (7, 0) else "fp16", torch.float16, off
    if capability >= (8, 0):
        yield "tensor_tf32", torch.float32, tf32(is_on=True)
        yield "tensor_bf16", torch.bfloat16, off


def bytes_per_s(
    torch: Any,  # noqa: ANN401
    device: str,
    memory: Any,  # noqa: ANN401
    timer: Timer,
    seconds: float,
) -> Rate | None:
    """Return the best rate of a copy (two arrays) and a triad (three), as STREAM counts them."""
    size: int | None = memory.array_bytes()
    if size is None:
        return None
    first, second = (torch.rand(size // 4, device=device) for _ in range(2))
    third = torch.empty_like(first)
    copied = best(lambda: third.copy_(first), timer, seconds / 2, 2.0 * size)
    added = best(
        lambda: torch.add(first, second, alpha=SCALE, out=third), timer, seconds / 2, 3.0 * size
    )
    return max(copied, added)


def flops_per_s(
    torch: Any,  # noqa: ANN401
    where: tuple[str, Any],
    sizes: tuple[int, ...],
    timer: Timer,
    seconds: float,
) -> Rate | None:
    """Return the best rate over products of growing matrices, as far as time and memory allow."""
    device, dtype = where
    until_s = time.monotonic() + seconds
    found: list[Rate] = []
    once_s = 0.0
    for number, size in enumerate(sizes):
        if number and (WARM_UP_S + 8 * 3 * once_s) > until_s - time.monotonic():
            break  # a product of twice the size takes eight times as long
        try:
            # drawn in the type itself: doubles of drawn singles would be zeros in half their bits
            left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
            out = torch.empty_like(left)
            left_s = (until_s - time.monotonic()) / (len(sizes) - number)
            product = partial(torch.mm, left, right, out=out)
            found.append(best(product, timer, left_s, 2.0 * size**3))
        except RuntimeError:  # out of memory, or a type that this device does not multiply
            break
        once_s = 2.0 * size**3 / found[-1].value
    return max(found, default=None)


def best(run: Run, timer: Timer, seconds: float, amount: float) -> Rate:
    """Return the rate of the shortest of several runs, each of which moves or computes `amount`.

    A warm-up goes before, whose runs count where nothing was faster; one is run in any case.
    """
    until_s = time.monotonic() + seconds
    warm_s = min(until_s, time.monotonic() + WARM_UP_S)
    warm = [timer(run)]
    while time.monotonic() < warm_s:
        warm.append(timer(run))
    times = []
    for _ in range(REPETITIONS):
        if time.monotonic() >= until_s:
            break
        times.append(timer(run))
    shortest = min(warm + times)
    spread = statistics.median(times) / shortest - 1 if times else 0.0
    return Rate(amount / shortest, spread)


def seconds_of(run: Run) -> float:
    """Return how long a run takes on the CPU."""
    start_ns = time.perf_counter_ns()
    run()
    return max(1, time.perf_counter_ns() - start_ns) / 1e9


def gpu_timer(torch: Any) -> Timer:  # noqa: ANN401
    """Return what times a run between two events of the GPU."""

    def timed(run: Run) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return max(1e-6, float(start.elapsed_time(end)) / 1e3)

    return timed


class CudaMemory:
    """The memory of the GPU in use, and what the GPU is."""

    def __init__(self, torch: Any) -> None:  # noqa: ANN401
        self._cuda = torch.cuda
        self._card = torch.cuda.get_device_properties(torch.cuda.current_device())

    def array_bytes(self) -> int | None:
        """Return 1 GiB, more where the L2 cache is large, less where memory is scarce."""
        free, _ = self._cuda.mem_get_info()
        least = CACHES * getattr(self._card, "L2_cache_size", 0)
        return fitting(max(GIB, least), free=free, least=least)

    def device(self) -> dict[str, Any]:
        """Return its name and UUID, and the clocks it may reach."""
        from harness.facts.torchfacts import gpu  # noqa: PLC0415

        facts = gpu("cuda")
        names = ("clock_sm_mhz_max", "clock_memory_mhz_max", "clock_sm_mhz_application")
        clocks = [f"{name} {facts[f'gpu.{name}']}" for name in names if facts.get(f"gpu.{name}")]
        return {
            "device": str(self._card.name),
            "uuid": facts.get("gpu.uuid") or "",
            "driver": facts.get("gpu.driver") or "",
            "clocks": ", ".join(clocks).replace("_", " "),
        }


class HostMemory:
    """The memory of the machine, and what its processor is."""

    def array_bytes(self) -> int | None:
        """Return four times the largest cache, at least 256 MiB, less where memory is scarce."""
        least = CACHES * max(_caches(), default=0)
        return fitting(max(GIB // 4, least), free=_free_bytes(), least=least)

    def device(self) -> dict[str, Any]:
        """Return the model of the processor."""
        from harness.facts.machine import machine  # noqa: PLC0415

        return {"device": machine().get("cpu.model") or "CPU", "clocks": ""}


def fitting(wanted: int, *, free: int, least: int) -> int | None:
    """Return the bytes of an array; None where what is free would fit into the caches."""
    size = min(-(-wanted // PAGE), free // SHARE // PAGE) * PAGE
    return size if size >= max(least, PAGE) else None


def _caches() -> list[int]:
    """Return the sizes of the caches that the first CPU has or shares."""
    from harness.facts.cgroups import read_text  # noqa: PLC0415

    folder, sizes = "/sys/devices/system/cpu/cpu0/cache", []
    for number in range(8):
        text = (read_text(f"{folder}/index{number}/size") or "").rstrip("K")
        if text.isdigit():
            sizes.append(int(text) * 1024)
    return sizes


def _free_bytes() -> int:
    """Return the memory that is available on the machine and in every control group above."""
    from harness.facts.cgroups import limits, read_text  # noqa: PLC0415

    lines = (read_text("/proc/meminfo") or "").splitlines()
    free = next((int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line), 0)
    limit = limits()["cgroup.memory_limit_bytes"]
    return min(free, limit) if isinstance(limit, int) else free


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="roofs.py")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--cpus", default="")
    parser.add_argument("--seconds", type=float, default=BUDGET_S)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # `harness` is imported from the folder of the workloads, not from that of this file
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.exit(main(sys.argv[1:]))
