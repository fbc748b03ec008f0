"""Bytes and sectors of device memory and of the L2 cache, how fast, and how often the cache hits.

A sector is 32 bytes ("aligned 32 byte-chunk of memory", Nsight Compute's documentation; nvprof's
`dram_read_transactions` are the same).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from envcompare.gpu.chips import is_lacking
from envcompare.profile_files.derive.facts import Facts, Total
from envcompare.run_folder.profiles import Kernel, Quantity

SECTOR_BYTES: Final = 32
NS: Final = 1e9  # of a second
_MOST_UNRATED: Final = 0.01  # of the bytes: a few launches may move some in one replay alone
_ROUNDING: Final = 1e-6  # of what scaled units print with six decimals
_UNSPLIT: Final = "this GPU counts reads and writes of device memory together"


def memory_quantities(facts: Facts) -> list[Quantity]:
    """Return the traffic of device memory and L2, each in bytes and in sectors."""
    found: list[Quantity] = []
    if facts.has(("dram__",)):
        read, written = _traffic(facts, "_read"), _traffic(facts, "_write")
        both = _both(_traffic(facts, ""), read, written)
        found += _pair(facts, "dram_read", read) + _pair(facts, "dram_write", written)
        found += [*_pair(facts, "dram", both), *_speeds(facts)]
    if facts.has(("lts__",)):
        size, sectors = facts.total("lts__t_bytes.sum"), facts.total("lts__t_sectors.sum")
        found += [*_pair(facts, "l2", _completed(size, sectors)), _hit_rate(facts)]
    return found


def _traffic(facts: Facts, way: str) -> tuple[Total, Total]:
    """Return bytes and sectors of one way, each from the other where only one was collected."""
    name = f"dram__bytes{way}"
    if way and is_lacking(name, facts.chip):
        return Total(reason=_UNSPLIT), Total(reason=_UNSPLIT)
    return _completed(facts.total(f"{name}.sum"), facts.total(f"dram__sectors{way}.sum"))


def _completed(size: Total, sectors: Total) -> tuple[Total, Total]:
    if size.value is None and sectors.value is not None:
        return Total(value=sectors.value * SECTOR_BYTES), sectors
    if sectors.value is None and size.value is not None:
        return size, Total(value=size.value / SECTOR_BYTES)
    return size, sectors


def _both(
    told: tuple[Total, Total], read: tuple[Total, Total], written: tuple[Total, Total]
) -> tuple[Total, Total]:
    """Return the traffic both ways, from reads and writes where it was not collected itself."""
    if told[0].value is not None:
        return told
    (size_in, sectors_in), (size_out, sectors_out) = read, written
    if size_in.value is None or size_out.value is None:
        return told
    sectors = (sectors_in.value or 0.0) + (sectors_out.value or 0.0)
    return Total(value=size_in.value + size_out.value), Total(value=sectors)


def _pair(facts: Facts, stem: str, traffic: tuple[Total, Total]) -> list[Quantity]:
    size, sectors = traffic
    found = [
        facts.summed(f"{stem}_bytes", size, "B"),
        facts.summed(f"{stem}_sectors", sectors, "transactions of 32 B"),
    ]
    if size.value is None or sectors.value is None:
        return found
    expected = sectors.value * SECTOR_BYTES
    if abs(size.value - expected) <= _ROUNDING * max(size.value, expected):
        return found
    why = f"{size.value:,.0f} bytes contradict {sectors.value:,.0f} sectors of 32 bytes"
    return [msgspec.structs.replace(one, value=None, status="refused", reason=why) for one in found]


def _speeds(facts: Facts) -> list[Quantity]:
    """Return bytes per second of kernel time; none where neither times nor rates were collected."""
    both = ("",) if "dram__bytes.sum" in facts.names else ("_read", "_write")
    ways = (("dram_read", ("_read",)), ("dram_write", ("_write",)), ("dram", both))
    return [one for stem, of in ways for one in _speed(facts, f"{stem}_bytes_per_s", of)]


def _speed(facts: Facts, name: str, ways: Sequence[str]) -> list[Quantity]:
    """Return Σ bytes ÷ Σ time: of the kernels' own time, else of their bytes ÷ their rate.

    What moved nothing has no rate, and counts for nothing in it.
    """
    sizes = [_moved(kernel, ways) for kernel in facts.profile.kernels]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or not sum(known):
        return []
    if facts.kernel_ns and facts.profile.tool != "nvprof":
        return [facts.ok(name, NS * sum(known) / facts.kernel_ns, "B/s", "ratio of sums")]
    timed = [
        (size, _seconds(kernel, ways))
        for size, kernel in zip(known, facts.profile.kernels, strict=True)
        if size
    ]
    seconds = [time for _, time in timed if time]
    if not seconds:
        return []
    rated = sum(size for size, time in timed if time)
    count = len(timed) - len(seconds)
    lacking = f"{count} of {len(timed)} kernels {'has' if count == 1 else 'have'} no rate"
    share = f"{100 - 100 * rated / sum(known):.3g} % of the bytes"
    why = f"{lacking}; {'it' if count == 1 else 'they'} moved {share}"
    if rated < (1 - _MOST_UNRATED) * sum(known):
        return [facts.missing(name, "B/s", "time-weighted", why)]
    reason = "each kernel counts with the mean rate of its launches"
    reason += f"; {why}" if len(seconds) < len(timed) else ""
    return [facts.ok(name, rated / sum(seconds), "B/s", "time-weighted", reason=reason)]


def _moved(kernel: Kernel, ways: Sequence[str]) -> float | None:
    """Return the bytes of a kernel in these ways; None where one was not counted."""
    total = 0.0
    for way in ways:
        size = kernel.metrics.get(f"dram__bytes{way}.sum")
        sectors = kernel.metrics.get(f"dram__sectors{way}.sum")
        if size is None and sectors is None:
            return None
        total += size if size is not None else SECTOR_BYTES * (sectors or 0.0)
    return total


def _seconds(kernel: Kernel, ways: Sequence[str]) -> float | None:
    """Return the time that bytes and rate of a kernel imply, by another way where these lack it."""
    for own in (ways, ("_read",), ("_write",)):
        size = _moved(kernel, own)
        rates = [kernel.metrics.get(f"dram__bytes{way}.sum.per_second") for way in own]
        rate = sum(one or 0.0 for one in rates)
        if size and rate and None not in rates:
            return size / rate
    return None


def _hit_rate(facts: Facts) -> Quantity:
    """Return the share of L2 sectors that hit: of sums where both were counted."""
    hits, sectors = facts.total("lts__t_sectors_lookup_hit.sum"), facts.total("lts__t_sectors.sum")
    if hits.value is not None and sectors.value:
        return facts.ok("l2_hit_rate", 100 * hits.value / sectors.value, "%", "ratio of sums")
    rate = facts.mean("lts__t_sector_hit_rate.pct")
    if rate.value is None:
        return facts.missing("l2_hit_rate", "%", "time-weighted", rate.reason)
    return facts.ok("l2_hit_rate", rate.value, "%", "time-weighted")
