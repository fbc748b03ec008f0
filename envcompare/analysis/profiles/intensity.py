"""Arithmetic intensity where FLOPs and bytes were counted in two passes over the same launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from envcompare.gpu.tensorcores import UNCOUNTED_TENSORS, ran_uncounted
from envcompare.run_folder.profiles import Dim, Profile, Quantity
from envcompare.text import counted

NAME: Final = "arithmetic_intensity"
_FLOPS: Final = ("flops_fp64", "flops_fp32", "flops_fp16", "flops_tensor")
_BYTES: Final = "dram_bytes"


def joined_intensity(profiles: Sequence[Profile]) -> Quantity | None:
    """Return FLOPs per byte of device memory over two profiles; None where they do not belong.

    They do where one tool saw the same kernels in the same shapes, each as often. There is no
    value where tensor cores were used and not counted.
    """
    moved = next((one for one in profiles if _values(one).get(_BYTES)), None)
    computed = next((one for one in profiles if _values(one).keys() & set(_FLOPS)), None)
    if moved is None or computed is None or moved is computed or moved.tool != computed.tool:
        return None
    launches = _launches(moved)
    if launches != _launches(computed):
        return None
    total = counted(sum(launches.values()), "launch", "launches")
    flops = {name: value for name, value in _values(computed).items() if name in _FLOPS}
    lacking = [name for name in _FLOPS if name not in flops]
    found = Quantity(
        name=NAME,
        value=sum(flops.values()) / _values(moved)[_BYTES],
        unit="FLOP/B",
        rule="ratio of sums",
        source=f"{moved.tool} {moved.version}".strip(),
        scope=f"device memory, two passes over {total}",
        reason=f"without {', '.join(lacking)}, which are not counted" if lacking else "",
    )
    if "flops_tensor" in flops or not any(map(ran_uncounted, (*moved.kernels, *computed.kernels))):
        return found
    return replace(found, value=None, status="missing", reason=UNCOUNTED_TENSORS)


def _values(profile: Profile) -> dict[str, float]:
    return {one.name: one.value for one in profile.quantities if one.value is not None}


def _launches(profile: Profile) -> dict[tuple[str, Dim | None, Dim | None], int]:
    return {(one.name, one.grid, one.block): one.calls for one in profile.kernels}
