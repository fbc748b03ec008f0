"""Span and busy time of a profile: of its GPU, or of each of several, which are never merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from envcompare.profile_files.activity import DeviceTimes
from envcompare.run_folder.profiles import Device, Quantity, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The times a profile can state as one number, and what it says of several GPUs."""

    span_ns: float | None = None
    busy_ns: float | None = None
    kernel_busy_ns: float | None = None
    launch_gap_ns: float | None = None
    quantities: tuple[Quantity, ...] = ()
    notes: tuple[str, ...] = ()


def over_devices(times: tuple[DeviceTimes, ...], *, source: str) -> Whole:
    """Return the times of one GPU; of several, quantities for each and no number for all."""
    if not times:
        return Whole()
    if len(times) > 1:
        note = f"{len(times)} GPUs were used: span, busy time and gaps are told for each alone"
        quantities = tuple(one for each in times for one in _quantities(each, source))
        return Whole(quantities=quantities, notes=(note,))
    (one,) = times
    return Whole(
        span_ns=float(one.span_ns),
        busy_ns=float(one.busy_ns),
        kernel_busy_ns=float(one.kernel_busy_ns),
        launch_gap_ns=float(one.span_ns - one.busy_ns),
    )


def used_devices(known: Mapping[int, Device], used: Iterable[int]) -> tuple[Device, ...]:
    """Return the GPUs that did something; where none did, all that are known."""
    numbers = sorted(used) or sorted(known)
    return tuple(known.get(number, Device(name=f"GPU {number}")) for number in numbers)


def _quantities(times: DeviceTimes, source: str) -> tuple[Quantity, ...]:
    values: tuple[tuple[str, int, Rule], ...] = (
        ("span_ns", times.span_ns, "difference"),
        ("busy_ns", times.busy_ns, "union"),
        ("kernel_busy_ns", times.kernel_busy_ns, "union"),
        ("launch_gap_ns", times.span_ns - times.busy_ns, "difference"),
    )
    return tuple(
        Quantity(
            name=name,
            value=float(value),
            unit="ns",
            rule=rule,
            source=source,
            scope=f"GPU {times.device}",
            gpu=times.device,
        )
        for name, value, rule in values
    )
