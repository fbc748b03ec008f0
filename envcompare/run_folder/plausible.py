"""Which numbers of a profile cannot be, whoever wrote them: a tool, a worker or an editor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from envcompare.run_folder.profiles import (
    ApiCall,
    Copy,
    Kernel,
    Operator,
    Profile,
    ProfileRecord,
    Roofs,
)

# Tools print sums of rounded numbers.
_ROUNDING: Final = 1e-3
_MOST: Final = 1e30  # far above all that was ever counted, far below what sums cannot hold


def impossible(profile: Profile) -> Iterator[str]:
    """Say which numbers of a profile cannot be: negative, endless, a least above a most."""
    yield from _counted(profile)
    yield from _whole(profile)
    called: tuple[Kernel | Copy | ApiCall, ...] = (
        *profile.kernels,
        *profile.copies,
        *profile.api_calls,
    )
    for one in called:
        yield from _calls(one)
    for kernel in profile.kernels:
        told = {**kernel.metrics, "place of the first launch": kernel.first}
        yield from _numbers(told, f"kernel {kernel.name}")
    for operator in profile.operators:
        yield from _operator(operator, is_exact=profile.tool != "torch")


def impossible_record(record: ProfileRecord) -> Iterator[str]:
    """Say which numbers of a record, or of the profile in it, cannot be."""
    yield from _at_least_one({"steps": record.steps})
    yield from _numbers({"samples in a step": record.batch}, "the record")
    if record.profile is not None:
        yield from impossible(record.profile)


def impossible_roofs(roofs: Roofs) -> Iterator[str]:
    """Say which roofs of a device cannot be."""
    yield from _numbers({"bytes per second": roofs.bytes_per_s}, roofs.device)
    yield from _numbers(roofs.flops_per_s, roofs.device)


def _counted(profile: Profile) -> Iterator[str]:
    yield from _at_least_one({"steps": profile.steps})
    for place in profile.sequence:
        if not 0 <= place < len(profile.kernels):
            yield f"the order of launches names kernel {place} of {len(profile.kernels)}"


def _at_least_one(counts: dict[str, int | None]) -> Iterator[str]:
    for name, count in counts.items():
        if count is not None and not 1 <= count <= _MOST:
            yield f"{name}: {_shown(count)}"


def _whole(profile: Profile) -> Iterator[str]:
    whole = {
        "time of kernels": profile.kernel_busy_ns,
        "busy time": profile.busy_ns,
        "span": profile.span_ns,
    }
    yield from _numbers({"idle time": profile.launch_gap_ns}, "the GPU")
    yield from _numbers(whole, "the GPU", is_rising=True)
    for one in profile.quantities:
        yield from _numbers({one.name: one.value}, "the profile")


def _calls(one: Kernel | Copy | ApiCall) -> Iterator[str]:
    what = one.kind if isinstance(one, Copy) else one.name
    yield from _at_least_one({f"{what}: calls": one.calls})
    if isinstance(one, Copy):
        yield from _numbers({"bytes": one.total_bytes}, what)
    times = {"shortest": one.min_ns, "longest": one.max_ns, "total": one.total_ns}
    yield from _numbers(times, what, is_rising=True)


def _operator(one: Operator, *, is_exact: bool) -> Iterator[str]:
    """Look at an operator; PyTorch's own sums go below 0 where operators overlap."""
    what = f"operator {one.name}"
    yield from _at_least_one({f"{what}: calls": one.calls})
    times = {"self time": one.self_cpu_ns, "time": one.cpu_ns}
    device = {"self time on the GPU": one.self_device_ns, "time on the GPU": one.device_ns}
    if is_exact:
        yield from _numbers(times, what, is_rising=True)
    for name, value in {**times, **device}.items():
        if value is not None and not abs(value) <= _MOST:
            yield f"{what}: {name} is {_shown(value)}"


def _numbers(
    values: Mapping[str, float | None], what: str, *, is_rising: bool = False
) -> Iterator[str]:
    known = [(name, value) for name, value in values.items() if value is not None]
    for name, value in known:
        if not 0 <= value <= _MOST:
            yield f"{what}: {name} is {_shown(value)}"
    for (name, value), (larger, limit) in pairwise(known):
        if is_rising and value > limit * (1 + _ROUNDING) + 1:
            yield f"{what}: {name} is {value:g} and {larger} {limit:g}"


def _shown(value: float) -> str:
    """Return a number as text; a whole one may be too large for that."""
    return f"{value:g}" if abs(value) < 1e300 else f"{'-' * (value < 0)}endless"
