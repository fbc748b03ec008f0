"""Summaries of the start-up pass and of memory peaks, by cell and arm."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from envcompare.analysis.model import MemorySummary, StartupPart, StartupSummary
from envcompare.records import Memory, Sample, Startup

_PHASES = (
    "engine", "import", "data", "build", "first_step", "train", "exit", "real", "user", "sys",
)  # fmt: skip


def startup_summaries(samples: Iterable[Sample]) -> tuple[StartupSummary, ...]:
    """Return one summary for each cell and arm; launches with a warm page cache where there are."""
    groups: dict[tuple[str, str], list[Startup]] = {}
    for sample in samples:
        if isinstance(sample, Startup) and sample.status == "ok":
            groups.setdefault((sample.cell, sample.arm), []).append(sample)
    return tuple(_startup(cell, arm, launches) for (cell, arm), launches in groups.items())


def _startup(cell: str, arm: str, launches: list[Startup]) -> StartupSummary:
    warm = [launch for launch in launches if launch.page_cache == "warm"] or launches
    return StartupSummary(
        cell=cell,
        arm=arm,
        launches=len(warm),
        train_steps=warm[0].train_steps,
        page_cache=warm[0].page_cache,
        parts=tuple(_part(phase, warm) for phase in _PHASES),
    )


def _part(phase: str, launches: list[Startup]) -> StartupPart:
    values = np.asarray([getattr(launch, f"{phase}_ns") for launch in launches]) / 1e9
    return StartupPart(
        phase=phase,  # type: ignore[arg-type]
        median_s=float(np.median(values)),
        low_s=float(values.min()),
        high_s=float(values.max()),
    )


def memory_summaries(samples: Iterable[Sample]) -> tuple[MemorySummary, ...]:
    """Return the largest peaks seen in any generation, for each cell and arm, in bytes."""
    groups: dict[tuple[str, str], list[Memory]] = {}
    for sample in samples:
        if isinstance(sample, Memory):
            groups.setdefault((sample.cell, sample.arm), []).append(sample)
    return tuple(
        MemorySummary(
            cell=cell,
            arm=arm,
            generations=len(found),
            max_rss_bytes=_peak(m.max_rss_bytes for m in found),
            cgroup_peak_bytes=_peak(m.cgroup_peak_bytes for m in found),
            cuda_allocated_peak_bytes=_peak(m.cuda_allocated_peak_bytes for m in found),
            cuda_reserved_peak_bytes=_peak(m.cuda_reserved_peak_bytes for m in found),
        )
        for (cell, arm), found in groups.items()
    )


def _peak(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
