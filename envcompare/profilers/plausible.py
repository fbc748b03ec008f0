"""The last look at a profile, whoever wrote the file: no number in it may be impossible."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from envcompare.profilers.refusing import refusal
from envcompare.profiles import ApiCall, Copy, Kernel, Profile

# Tools print sums of rounded numbers.
_ROUNDING = 1e-3


def refuse_impossible(profile: Profile) -> None:
    """Raise ProfileError for a number that is negative or infinite, or a least above a most."""
    why = next(_impossible(profile), None)
    if why is not None:
        raise refusal(", ".join(profile.files), why=why)


def _impossible(profile: Profile) -> Iterator[str]:
    called: tuple[Kernel | Copy | ApiCall, ...] = (
        *profile.kernels,
        *profile.copies,
        *profile.api_calls,
    )
    for one in called:
        yield from _calls(one)
    for kernel in profile.kernels:
        yield from _numbers(kernel.metrics, f"kernel {kernel.name}")
    for operator in profile.operators:
        times = {"self time": operator.self_cpu_ns, "time": operator.cpu_ns}
        yield from _numbers(times, f"operator {operator.name}", is_rising=True)
    whole = {
        "time of kernels": profile.kernel_busy_ns,
        "busy time": profile.busy_ns,
        "span": profile.span_ns,
    }
    yield from _numbers(whole, "the GPU", is_rising=True)
    yield from _numbers({one.name: one.value for one in profile.quantities}, "the profile")


def _calls(one: Kernel | Copy | ApiCall) -> Iterator[str]:
    what = one.kind if isinstance(one, Copy) else one.name
    if one.calls < 1:
        yield f"{what}: {one.calls} calls"
    times = {"shortest": one.min_ns, "longest": one.max_ns, "total": one.total_ns}
    yield from _numbers(times, what, is_rising=True)


def _numbers(
    values: dict[str, float | None] | dict[str, float], what: str, *, is_rising: bool = False
) -> Iterator[str]:
    known = [(name, value) for name, value in values.items() if value is not None]
    for name, value in known:
        if not math.isfinite(value) or value < 0:
            yield f"{what}: {name} is {value:g}"
    for (name, value), (larger, limit) in pairwise(known):
        if is_rising and value > limit * (1 + _ROUNDING) + 1:
            yield f"{what}: {name} is {value:g} and {larger} {limit:g}"
