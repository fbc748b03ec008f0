"""Small profiles made by hand, so that a test says only what matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from envcompare.analysis.model.profiling import KernelDiff
from envcompare.analysis.profiles.ledger import record_cautions, work_cautions
from envcompare.analysis.profiles.quantities import Rows
from envcompare.errors import Problem
from envcompare.run_folder.profiles import Kernel, Lack, Lacking, Profile, ProfileRecord

CELL = "local/cnn/default"
CONV = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_ffma_kernel_cudnn"
WINOGRAD = "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(Params)"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, "
    "at::detail::Array<char*, 2> >(int, at::native::AddFunctor<float>)"
)
MULTIPLY = ADD.replace("AddFunctor", "MulFunctor")
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(float*)"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def kernel(name: str, *, calls: int = 1, each_ns: float = 1_000.0, **changes: Any) -> Kernel:
    """Return a kernel whose launches take `each_ns` on average."""
    fields: dict[str, Any] = {"grid": (8, 1, 1), "block": (128, 1, 1), **changes}
    return Kernel(name=name, calls=calls, total_ns=calls * each_ns, **fields)


def launched(
    step: Sequence[Kernel], *, steps: int | None = 2, repeat: int | None = None, **changes: Any
) -> Profile:
    """Return a trace of the same launches in every step; equal kernels count as one."""
    distinct: list[Kernel] = []
    for one in step:
        if one not in distinct:
            distinct.append(one)
    round_ = [distinct.index(one) for one in step]
    times = repeat or steps or 1
    order = round_ * times
    kernels = tuple(
        replace(
            one,
            calls=round_.count(place) * times,
            total_ns=None if one.total_ns is None else one.total_ns * round_.count(place) * times,
            metrics={name: v * round_.count(place) * times for name, v in one.metrics.items()},
            first=round_.index(place),
        )
        for place, one in enumerate(distinct)
    )
    fields: dict[str, Any] = {"tool": "nsys", "version": "2024.5", "sequence": tuple(order)}
    return Profile(kernels=kernels, steps=steps, **{**fields, **changes})


def record(profile: Profile | None, *, arm: str = "vm", **changes: Any) -> ProfileRecord:
    """Return the record of a trace of an arm."""
    fields: dict[str, Any] = {
        "host": "local",
        "cell": CELL,
        "arm": arm,
        "kind": "nsys",
        "name": changes.get("kind", "nsys"),
        "steps": profile.steps if profile else None,
        "batch": 32,
        "profile": profile,
    }
    return ProfileRecord(**{**fields, **changes})


def lacking(reason: str, hint: str = "", *, why: Lack = "not-usable") -> Lacking:
    """Return why a profile is missing."""
    return Lacking(why=why, problem=Problem(brief=reason, hint=hint))


def said(
    by_arm: Mapping[str, Sequence[ProfileRecord]],
    *,
    codes: Mapping[str, str] | None = None,
    rows: Mapping[str, Rows] | None = None,
    diffs: Sequence[KernelDiff] = (),
    identified_arms: Sequence[str] = (),
) -> list[str]:
    """Return the cautions on the profiles of a cell; what is not given speaks against nothing."""
    return [
        *work_cautions(by_arm, codes or {}, rows or {}, diffs, reference="vm"),
        *record_cautions(by_arm, reference="vm", identified_arms=identified_arms, partial=()),
    ]
