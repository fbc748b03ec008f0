"""A workload that the C library's allocator has a part in: large buffers, made and dropped."""

from __future__ import annotations

import zlib

SIZES = (3_000_000, 3_000_000, 1_500_000, 600_000)  # together above glibc's first trim threshold
READS = 8  # what is computed on them, so that their making is not all there is


class Buffers:
    """Makes buffers of the sizes of a small training step, sums them, and gives them back."""

    batch = 1

    def setup(self, seed: int, device: str) -> None:
        """Hold nothing: every step is the same."""

    def step(self) -> float:
        """Return the same number in every arm."""
        buffers = [bytearray(size) for size in SIZES]
        for buffer in buffers:
            buffer[::4096] = b"\x01" * len(range(0, len(buffer), 4096))
        found = sum(zlib.crc32(buffer) for _ in range(READS) for buffer in buffers)
        return float(found % 1_000_003)
