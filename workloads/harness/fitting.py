"""What fits into memory, with a new process for each try; as a program: the largest batch.

The program tries the sizes it is given until one does not fit, then searches between the last two.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import resource
import signal
import struct
import sys
from typing import Any, Callable

# Messages of PyTorch, and of oneDNN if it cannot allocate memory for a convolution.
_NO_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|bad_alloc"
    r"|ALLOC_FAILED|could not create a (?:primitive|memory)",
    re.IGNORECASE,
)
_KIB = r":\s+([0-9]+) kB"
FITS, TOO_MUCH, BROKEN = 0, 3, 4  # how a try ends
SHARE = 1 / 32  # precision of the result, as a share of the batch: large tries take long
STEPS = 2  # in a try: an optimizer allocates its state in the first step


def largest(fits: Callable[[int], bool], low: int, most: int, *, share: float = 0.0) -> int:
    """Return the largest count up to `most` that fits; `low` must fit.

    The smallest count that failed is larger by 1, or by less than `share` of it.
    """
    high = 2 * low
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > max(1, share * high):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def in_own_process(work: Callable[[], None], *, may_break: bool = False) -> int:
    """Return how the work ended: `FITS`, or `TOO_MUCH` also if the kernel killed it for memory.

    Raises RuntimeError if it ended for another reason, such as a signal. With `may_break` it
    returns `BROKEN` instead, and the reason is on stderr.
    """
    child = os.fork()
    if not child:
        os._exit(_outcome(work))
    status = os.waitpid(child, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL:
        return TOO_MUCH
    if code in {FITS, TOO_MUCH}:
        return code
    if not may_break:
        raise RuntimeError(f"a try ended with {code}, for another reason than memory")
    if code < 0:
        sys.stderr.write(f"a try was ended by {signal.Signals(-code).name}\n")
        sys.stderr.flush()
    return BROKEN


def _outcome(work: Callable[[], None]) -> int:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 — nothing of the parent's may run in a child
        if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
            return TOO_MUCH
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        return BROKEN
    return FITS


def limit_private(limit: int) -> None:
    """Limit this process to so many bytes of private memory beyond what it has now."""
    most = _bytes_in("self/status", "VmData") + limit
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def be_killed_first() -> None:
    """Make the kernel end this try first when the host or its container runs out of memory."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _bytes_in(file: str, name: str) -> int:
    """Return a size from a file of /proc; 0 if it is missing."""
    with open(f"/proc/{file}", encoding="ascii") as stream:
        found = re.search(name + _KIB, stream.read())
    return int(found[1]) << 10 if found else 0


class Tries:
    """Tries batches of a workload; keeps how each ended and its share of the memory."""

    def __init__(self, asked: dict[str, Any], kind: type, device: str) -> None:
        self._asked, self._kind, self._device = asked, kind, device
        self.memory_mib: int = asked["memory_mib"][device]  # 0 is all of a GPU
        self._used = mmap.mmap(-1, 16)  # peak and total bytes, written by the child
        self._free_bytes = _bytes_in("meminfo", "MemAvailable")
        self.ends: dict[int, int] = {}
        self.shares: dict[int, float] = {}  # of the memory of the GPU or the host, by batch

    def fits(self, batch: int) -> bool:
        """Return whether a batch of this size can be trained."""
        if batch not in self.ends:
            self._used[:] = struct.pack("<QQ", 0, 1)
            self.ends[batch] = in_own_process(lambda: self._train(batch), may_break=True)
            used, whole = struct.unpack("<QQ", self._used)
            self.shares[batch] = used / whole
        return self.ends[batch] == FITS

    def _train(self, batch: int) -> None:
        """Train within the limit; a failed allocation raises."""
        from harness import torchparts  # noqa: PLC0415  see above
        from harness.loading import Workload  # noqa: PLC0415

        torchparts.limit_threads(self._asked["threads"])
        be_killed_first()
        limit = self.memory_mib << 20
        if self._device == "cpu":
            limit_private(limit)
        elif limit:
            limit_gpu(limit, 0)
        work = Workload(self._kind, {**self._asked["params"], "batch": batch})
        if self._device == "cuda" and work.processes > 1:
            raise ValueError("a search on a GPU sees the first rank alone: set ranks=1")
        work.load(self._asked["data"])
        trained = work.fresh()
        trained.setup(1, self._device)
        for _ in range(STEPS):
            trained.step()
        torchparts.wait_for_device(self._device)
        if self._device == "cuda":
            free, whole = sys.modules["torch"].cuda.mem_get_info()
            self._used[:] = struct.pack("<QQ", whole - free, whole)
        else:
            peak = _bytes_in("self/status", "VmHWM")
            self._used[:] = struct.pack("<QQ", peak, self._free_bytes or 1 << 62)
        if hasattr(trained, "finish"):
            trained.finish()  # ends the processes that it started


def limit_gpu(limit: int, place: int) -> None:
    """Limit PyTorch to so many bytes of a GPU."""
    cuda = sys.modules["torch"].cuda
    whole = cuda.get_device_properties(place).total_memory
    cuda.set_per_process_memory_fraction(min(1.0, limit / whole), place)


def find(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the largest batch that fits, what limits it, and the largest measurable size.

    A size is measurable if it fits once for each concurrent arm: all arms are alive while they take
    turns. On a CPU the limit applies to each process, and all share the free memory of the host.
    """
    from harness import torchparts  # noqa: PLC0415  see above
    from harness.loading import load_class  # noqa: PLC0415
    from harness.places import in_fork  # noqa: PLC0415

    kind = load_class(asked["workload"])
    torchparts.import_what_optimizers_need()
    if asked["threads"] is not None:
        torchparts.limit_threads(1)  # no pool of threads before a fork
    device = in_fork(lambda: {"device": torchparts.choose_device(asked["device"])})["device"]
    tries, sizes = Tries(asked, kind, device), asked["sizes"]
    if not tries.fits(sizes[0]):
        return {"largest": 0, "measurable": 0, **_limits(tries, device)}
    most = largest(tries.fits, sizes[0], sizes[-1], share=SHARE)
    fitting = [size for size in sizes if size <= most and tries.fits(size)]
    concurrent = [size for size in fitting if tries.shares[size] * asked["beside"] <= 1]
    measurable = concurrent[-1] if concurrent else 0
    return {"largest": most, "measurable": measurable, **_limits(tries, device)}


def _limits(tries: Tries, device: str) -> dict[str, Any]:
    """Return the smallest batch that does not fit, None if all do, and the reason."""
    beyond = min((size for size, end in tries.ends.items() if end != FITS), default=None)
    limits = {FITS: "cap", TOO_MUCH: "memory", BROKEN: "workload"}
    limit = limits[FITS if beyond is None else tries.ends[beyond]]
    return {
        "beyond": beyond,
        "limited_by": limit,
        "tries": len(tries.ends),
        "device": device,
        "memory_mib": tries.memory_mib,
    }


def main(arguments: list[str]) -> int:
    """Search for what the argument asks for, and write one line of JSON to stdout."""
    sink = os.dup(1)
    os.dup2(2, 1)  # output of a workload must not mix with the answer
    asked: dict[str, Any] = json.loads(arguments[0])
    from harness.greeting import settle_process  # noqa: PLC0415  after stdout is out of the way

    settle_process(asked["threads"], asked["cpus"])
    os.write(sink, json.dumps(find(asked)).encode() + b"\n")
    return 0


if __name__ == "__main__":
    # `harness` is imported from the folder of the workloads, not from that of this file
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.exit(main(sys.argv[1:]))
