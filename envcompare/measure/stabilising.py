"""`--stabilise`: one allocator policy and one hash seed in every arm of a restart.

glibc gives freed memory back above two thresholds that adapt to what a process happened to free
first (mallopt(3)); two processes of one program then differ in page faults for their whole life.
Fixed thresholds end the adapting. Where the C library is another, the variables do nothing.
"""

from __future__ import annotations

from envcompare.config.plan import derive_seed

Variables = tuple[tuple[str, str], ...]
"""Environment variables that a worker is started with."""

MMAP_THRESHOLD_BYTES = 32 << 20  # the most glibc takes (DEFAULT_MMAP_THRESHOLD_MAX on 64 bits)
TRIM_THRESHOLD_BYTES = 1 << 30


def stable_variables(seed: int, cell: str, restart: int) -> Variables:
    """Return what fixes the allocator, and a hash seed that all arms of a restart share.

    The hash seed is drawn anew for each restart, so that no result rests on one order of a set.
    """
    hash_seed = derive_seed(seed, "hash seed", cell, restart) % 2**32
    return (
        ("MALLOC_MMAP_THRESHOLD_", str(MMAP_THRESHOLD_BYTES)),
        ("MALLOC_TRIM_THRESHOLD_", str(TRIM_THRESHOLD_BYTES)),
        ("PYTHONHASHSEED", str(hash_seed)),
    )
