"""The work of each kernel of an arm: FLOPs and bytes by counters, time by a trace, joined.

Counters disturb time and a trace counts nothing, so that each comes from a pass of its own. They
are joined kernel by kernel as means of a launch, so that all three are of the same launches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from envcompare.analysis.profiles.profilechoice import (
    choose,
    has_kernels,
    is_trace,
    profile_of,
    usable,
)
from envcompare.gpu.kernelnames import identity
from envcompare.gpu.tensorcores import ran_uncounted
from envcompare.run_folder.profiles import Dim, Kernel, ProfileRecord

BYTES: Final = "dram_bytes"
_FLOPS: Final[tuple[str, ...]] = ("flops_fp64", "flops_fp32", "flops_fp16")
_TENSOR: Final = "flops_tensor"

Key = tuple[str, Dim | None, Dim | None]
Records = Sequence[ProfileRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What all launches of one kernel in a profile did; flops by precision, fp32 or tensor_bf16."""

    name: str
    calls: int
    time_ns: float
    flops: dict[str, float]
    bytes: float | None


@dataclass(slots=True)
class _Counted:
    """Launches that were counted, and sums over them."""

    calls: int = 0
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    lacking: set[str] = field(default_factory=set)

    def take(self, kernel: Kernel) -> None:
        values = _sums(kernel)
        for name in self.sums.keys() - values.keys() if self.calls else ():
            self.lacking.add(name)
        for name, value in values.items():
            if self.calls and name not in self.sums:
                self.lacking.add(name)
            self.sums[name] += value
        self.calls += kernel.calls

    def mean(self, name: str) -> float | None:
        """Return a sum per launch; None where a launch lacks it."""
        if name not in self.sums or name in self.lacking or not self.calls:
            return None
        return self.sums[name] / self.calls


def kernel_work(records: Records) -> tuple[tuple[Work, ...], str]:
    """Return the work of the kernels of an arm, longest first, and what is missing, as a sentence.

    A kernel of the trace that no counters saw has no FLOPs: it is left out and said.
    """
    trace = choose(records, lambda one: is_trace(one) and has_kernels(one))
    if trace is None:
        return (), _why(records, ("nsys",), "no profile holds the time of kernels")
    counters = [one for one in usable(records) if _counts_flops(one)]
    if not counters:
        return (), _why(records, ("ncu-flops",), "no profile holds the FLOPs of kernels")
    traffic = [one for one in usable(records) if _counts_bytes(one)]
    flops, moved = _tables(counters), _tables(traffic)
    kernels = profile_of(trace).kernels
    made = [_work(kernel, _find(flops, kernel), _find(moved, kernel)) for kernel in kernels]
    found = sorted((one for one in made if one), key=lambda one: -one.time_ns)
    return tuple(found), _uncounted(found, kernels, has_bytes=bool(traffic), records=records)


def _counts_flops(record: ProfileRecord) -> bool:
    return record.profile is not None and any(_flops(one) for one in record.profile.kernels)


def _counts_bytes(record: ProfileRecord) -> bool:
    return record.profile is not None and any(
        BYTES in one.metrics for one in record.profile.kernels
    )


def _sums(kernel: Kernel) -> dict[str, float]:
    """Return FLOPs by precision and bytes, of all launches of a kernel."""
    found = {name.removeprefix("flops_"): value for name, value in _flops(kernel).items()}
    if BYTES in kernel.metrics:
        found[BYTES] = kernel.metrics[BYTES]
    return found


def _flops(kernel: Kernel) -> dict[str, float]:
    """Return FLOPs under the names of quantities; the sum over tensor types only where alone."""
    found = {name: kernel.metrics[name] for name in _FLOPS if name in kernel.metrics}
    types = {n: v for n, v in kernel.metrics.items() if _is_tensor_type(n)}
    if not types and kernel.metrics.get(_TENSOR):
        types = {_TENSOR: kernel.metrics[_TENSOR]}
    return {**found, **types}


def _is_tensor_type(name: str) -> bool:
    # integer operations are no FLOPs
    return name.startswith(f"{_TENSOR}_") and not name.startswith(f"{_TENSOR}_int")


Tables = tuple[dict[Key, _Counted], dict[str, _Counted]]


def _tables(records: Iterable[ProfileRecord]) -> Tables:
    """Return what was counted by name and shape, and by name alone."""
    shaped: defaultdict[Key, _Counted] = defaultdict(_Counted)
    named: defaultdict[str, _Counted] = defaultdict(_Counted)
    for record in records:
        own = {_key(kernel) for kernel in profile_of(record).kernels}
        # one profile is enough: a second of the same launches would count them twice
        fresh = own - shaped.keys()
        for kernel in profile_of(record).kernels:
            if _key(kernel) in fresh and not (_flops(kernel) and ran_uncounted(kernel)):
                shaped[_key(kernel)].take(kernel)
                named[identity(kernel.name)].take(kernel)
    return dict(shaped), dict(named)


def _key(kernel: Kernel) -> Key:
    return identity(kernel.name), kernel.grid, kernel.block


def _find(tables: Tables, kernel: Kernel) -> _Counted | None:
    """Return what was counted of a kernel, by name alone where a tool does not tell the shape."""
    shaped, named = tables
    found = shaped.get(_key(kernel))
    if found is not None:
        return found
    name = identity(kernel.name)
    shapes = [key for key in shaped if key[0] == name] if name in named else []
    is_shapeless = kernel.grid is None or any(key[1] is None for key in shapes)
    return named.get(name) if is_shapeless else None


def _work(kernel: Kernel, flops: _Counted | None, moved: _Counted | None) -> Work | None:
    if flops is None or not kernel.total_ns:
        return None
    each = {name: flops.mean(name) for name in flops.sums if name != BYTES}
    if None in each.values():
        return None
    bytes_each = moved.mean(BYTES) if moved else None
    return Work(
        name=kernel.name,
        calls=kernel.calls,
        time_ns=kernel.total_ns,
        flops={name: value * kernel.calls for name, value in each.items() if value},
        bytes=None if bytes_each is None else bytes_each * kernel.calls,
    )


def _uncounted(
    found: Sequence[Work], kernels: Sequence[Kernel], *, has_bytes: bool, records: Records
) -> str:
    """Say what share of the kernel time is not in the points, and whether bytes are known."""
    total = sum(kernel.total_ns or 0.0 for kernel in kernels)
    share = 1 - sum(one.time_ns for one in found) / total if total else 0.0
    texts = []
    if share > 1e-6:
        texts.append(f"{100 * share:.2g} % of its kernel time is in kernels without counters")
    if not has_bytes:
        texts.append(_why(records, ("ncu-memory",), "the bytes of device memory were not counted"))
    return "; ".join(texts)


def _why(records: Records, kinds: tuple[str, ...], otherwise: str) -> str:
    """Return what the pass that would tell it says of itself."""
    missing = (one for one in records if one.kind in kinds and one.state == "missing")
    return next((f"{otherwise}: {one.reason}" for one in missing if one.reason), otherwise)
