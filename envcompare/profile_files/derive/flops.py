"""Floating-point operations: of the CUDA cores by precision, and of the tensor cores by type.

CUDA cores: an addition or multiplication of a thread is 1, a fused multiply-add 2 (NVIDIA's table
of nvprof metrics; the roofline sections of Nsight Compute do the same). Tensor cores: on Volta 512
for each instruction of the pipe (Yang, Kurth and Williams, doi 10.1002/cpe.5547); from then on
only the counters of operations, since an instruction does far more.
"""

from __future__ import annotations

import re
from typing import Final

from envcompare.gpu.chips import tensor_totals
from envcompare.profile_files.derive.facts import Facts, Total
from envcompare.run_folder.profiles import Quantity

_VOLTA_FLOPS: Final = 512  # HMMA.884: 8 · 8 · 4 multiply-adds
_PIPE: Final = "sm__inst_executed_pipe_tensor.sum"
_PATH: Final = re.compile(
    r"sm__ops_path_tensor_src_(?!.*(?:_op_|_sparsity_|_realtime))(\w+?)(?:_dst_\w+)?\.sum"
)
ALL_FLOPS: Final = ("flops_fp64", "flops_fp32", "flops_fp16", "flops_tensor")
"""The quantities that together hold every floating-point operation once."""

_CORES: Final = (
    "smsp__sass_thread_inst_executed_op_",
    "sm__sass_thread_inst_executed_op_",
    "flop_",
)
_TENSORS: Final = ("sm__inst_executed_pipe_t", "sm__ops_path_tensor_")
_KINDS: Final = (("fp64", "d", "dp"), ("fp32", "f", "sp"), ("fp16", "h", "hp"))
_WEIGHTS: Final = (("add", 1), ("mul", 1), ("fma", 2))
_PACKED: Final = (("fadd2", 2), ("fmul2", 2), ("ffma2", 4))
_ON_TURING: Final = "fp16_bf16_tf32"  # Turing's one counter for results in FP32; it has FP16 alone
_FP16_FLAG: Final = "packed half instructions may do twice what is counted: this is not settled"


def flop_quantities(facts: Facts) -> list[Quantity]:
    """Return the operations by precision, then those of the tensor cores, in all and by type."""
    cores = [_of_cores(facts, *kind) for kind in _KINDS] if facts.has(_CORES) else []
    return [*cores, *(_of_tensors(facts) if facts.has(_TENSORS) else [])]


def _of_cores(facts: Facts, precision: str, letter: str, old: str) -> Quantity:
    name = f"flops_{precision}"
    if facts.profile.tool == "nvprof":
        told = facts.total(f"flop_count_{old}")
    else:
        told = _weighted(facts, [(f"{letter}{kind}", weight) for kind, weight in _WEIGHTS])
    if precision == "fp32":
        told = _with_packed(facts, told)
    flag = _FP16_FLAG if precision == "fp16" and told.value else ""
    return facts.summed(name, told, "FLOP", reason=flag)


def _weighted(facts: Facts, parts: list[tuple[str, int]]) -> Total:
    """Return the weighted sum of instructions; one kind that was not counted makes it unknown."""
    total = 0.0
    for kind, weight in parts:
        stem = f"sass_thread_inst_executed_op_{kind}_pred_on.sum"
        count = facts.first_total((f"smsp__{stem}", f"sm__{stem}"))
        if count.value is None:
            return count
        total += weight * count.value
    return Total(value=total)


def _with_packed(facts: Facts, plain: Total) -> Total:
    """Add the packed FP32 instructions of GB100, without which its count would be too low."""
    is_there = any(f"_op_{kind}_pred_on" in name for kind, _ in _PACKED for name in facts.names)
    if plain.value is None or not (is_there or facts.chip == "gb100"):
        return plain
    packed = _weighted(facts, list(_PACKED))
    if packed.value is None:
        return Total(reason=f"packed FP32 instructions do not count in it: {packed.reason}")
    return Total(value=plain.value + packed.value)


def _of_tensors(facts: Facts) -> list[Quantity]:
    if facts.chip == "gv100":
        return _on_volta(facts)
    names = tensor_totals(facts.chip) or _disjoint(facts.names)
    by_type: dict[str, list[str]] = {}
    for name in names:
        found = _PATH.fullmatch(name)
        if found:
            kind = "fp16" if found[1] == _ON_TURING else found[1]
            by_type.setdefault(kind, []).append(name)
    totals = {kind: _summed(facts, members) for kind, members in by_type.items()}
    collected = {kind: one for kind, one in totals.items() if one.value is not None}
    each = [
        facts.summed(f"flops_tensor_{kind}", one, _unit(kind)) for kind, one in collected.items()
    ]
    floats = {kind: one for kind, one in totals.items() if _unit(kind) == "FLOP"}
    return [facts.summed("flops_tensor", _all_types(facts, floats), "FLOP"), *each]


def _on_volta(facts: Facts) -> list[Quantity]:
    """Return the operations of Volta's tensor cores, which take FP16 alone."""
    count = facts.total(_PIPE)
    if count.value is not None:
        count = Total(value=_VOLTA_FLOPS * count.value)
    else:
        paths = _summed(facts, list(tensor_totals("gv100")))
        count = paths if paths.value is not None else count
    found = [facts.summed("flops_tensor", count, "FLOP")]
    return [*found, facts.summed("flops_tensor_fp16", count, "FLOP")] if count.value else found


def _summed(facts: Facts, names: list[str]) -> Total:
    totals = [facts.total(name) for name in names]
    lacking = next((one for one in totals if one.value is None), None)
    return lacking or Total(value=sum(one.value or 0.0 for one in totals))


def _all_types(facts: Facts, floats: dict[str, Total]) -> Total:
    """Return the sum over the types, known where each was counted or the pipe was never used."""
    if floats and all(one.value is not None for one in floats.values()):
        return Total(value=sum(one.value or 0.0 for one in floats.values()))
    if facts.total(_PIPE).value == 0 and facts.chip != "gb100":
        return Total(value=0.0)
    if not any(name.startswith("sm__ops_path_tensor_") for name in facts.names):
        return Total(reason="instructions of the tensor pipe tell its operations on Volta alone")
    lacking = next((one for one in floats.values() if one.value is None), None)
    return lacking or Total(reason="operations of the tensor cores were not collected")


def _disjoint(names: frozenset[str]) -> tuple[str, ...]:
    """Return the counters of a chip without a table, none that is a part of another."""
    paths = {name for name in names if _PATH.fullmatch(name)}
    wholes = {name.removesuffix(".sum") for name in paths}
    return tuple(
        sorted(name for name in paths if not any(name.startswith(f"{one}_dst_") for one in wholes))
    )


def _unit(kind: str) -> str:
    return "OP" if kind.startswith("int") else "FLOP"
