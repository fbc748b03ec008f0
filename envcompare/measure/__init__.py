"""The passes that measure a cell, and what each of them tells a worker and starts it with."""

from __future__ import annotations

import msgspec

from envcompare.config.plan import derive_seed
from envcompare.measure.replies import LaunchSpec
from envcompare.run_folder.records import FingerprintValue, Scalar

# What glibc frees goes back above two thresholds, which adapt to what a process happened to free
# first (mallopt(3)); two processes of one program then differ in page faults for their whole life.
# Fixed ones end the adapting. Where the C library is another, the variables do nothing.
_MMAP_THRESHOLD_BYTES = 32 << 20  # the most glibc takes (DEFAULT_MMAP_THRESHOLD_MAX on 64 bits)
_TRIM_THRESHOLD_BYTES = 1 << 30

Values = dict[str, Scalar]
Facts = dict[str, FingerprintValue]
Variables = tuple[tuple[str, str], ...]
"""Environment variables that a worker is started with."""


def with_parameters(spec: LaunchSpec, values: Values) -> LaunchSpec:
    """Return the spec with an arm's own values of parameters."""
    return msgspec.structs.replace(spec, params={**spec.params, **values})


def stable_variables(seed: int, host: str, restart: int) -> Variables:
    """Return what fixes the allocator, and a hash seed that all arms of a restart share.

    Each restart draws a new hash seed, so no result depends on one order of a set.
    """
    hash_seed = derive_seed(seed, "hash seed", host, restart) % 2**32
    return (
        ("MALLOC_MMAP_THRESHOLD_", str(_MMAP_THRESHOLD_BYTES)),
        ("MALLOC_TRIM_THRESHOLD_", str(_TRIM_THRESHOLD_BYTES)),
        ("PYTHONHASHSEED", str(hash_seed)),
    )
