"""What a profiler inside the worker has answered, and the trace it wrote, as one profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from envcompare.profile_files import hostcounters, torchtables
from envcompare.profile_files.reading import read
from envcompare.run_folder.profiles import Profile

Inside = Literal["host", "flops", "torch"]
WITH_FILE: frozenset[Inside] = frozenset({"torch"})
"""Kinds whose worker writes a file beside its answer."""
_NEEDED: dict[Inside, str] = {"host": "counters", "flops": "flops", "torch": "operators"}


def profile_of(
    kind: Inside, values: dict[str, Any], *, steps: int, reason: str, trace: Path | None
) -> Profile | None:
    """Return the profile in the answer of a worker; None where it has found nothing.

    `trace` is that of torch.profiler where a GPU was used, `reason` what the answer lacks. Raises
    ProfileError where the answer or the trace cannot be trusted.
    """
    if values.get(_NEEDED[kind]) is None:
        return None
    if kind == "host":
        return hostcounters.profile(values, steps=steps)
    if kind == "flops":
        return torchtables.model_flops(values, steps=steps, reason=reason)
    table = torchtables.operators(values, steps=steps, file=trace.name if trace else "")
    return with_kernels(table, read("kineto", (trace,))) if trace else table


def hint_of(kind: Inside, values: dict[str, Any]) -> str:
    """Return what would mend the part of an answer that is missing, once it was read."""
    return "; ".join(hostcounters.hints(values)) if kind == "host" else ""


def with_kernels(table: Profile, traced: Profile) -> Profile:
    """Return what a trace tells of the GPU with the table of operators, which tells it whole."""
    return msgspec.structs.replace(
        traced,
        version=table.version or traced.version,
        operators=table.operators,
        steps=table.steps,
        files=table.files,
    )
