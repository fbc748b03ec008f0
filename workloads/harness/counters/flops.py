"""Model FLOPs: those of the operations that a step asks of PyTorch."""

from __future__ import annotations

from typing import Any, Callable

from harness.compiling import compiled_graphs, uncompiled
from harness.torchparts import loaded_torch

NO_TORCH = "the workload does not use PyTorch"
NO_CALLS = "no operator of PyTorch was called (a CUDA graph, or compiled code, calls none)"
NO_MODE = "this PyTorch ({version}) cannot count FLOPs: it has no FlopCounterMode (2.1 has)"
NO_STANCE = "this PyTorch ({version}) cannot run a compiled model uncompiled, to count it (2.6 can)"


def count(step: Callable[[], Any], k: int) -> dict[str, Any]:
    """Run k steps and return the FLOPs of all of them, and of each operator.

    Matrix products, convolutions and attention count, as in FlopCounterMode, and the fused
    recurrent layers, which it leaves out. A compiled model is counted as it is without `compile`,
    since its code calls few operators. `flops` is None where nothing was counted; `reason` says
    why, or what the count lacks.
    """
    torch = loaded_torch()
    if torch is None:
        return _nothing(NO_TORCH)
    try:
        from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415, TID251
    except ImportError:
        return _nothing(NO_MODE.format(version=torch.__version__))
    if compiled_graphs() and not hasattr(torch.compiler, "set_stance"):
        return _nothing(NO_STANCE.format(version=torch.__version__))
    from harness.counters.recurrent import RecurrentCounter  # noqa: PLC0415  it needs PyTorch

    # The one entered last is called first: it takes compound operators apart for the other.
    with uncompiled(), RecurrentCounter() as fused, FlopCounterMode(display=False) as plain:
        for _ in range(k):
            step()
    if not fused.calls:
        return _nothing(NO_CALLS)
    by_op = {str(op): int(flops) for op, flops in plain.get_flop_counts().get("Global", {}).items()}
    by_op.update(fused.flops)
    lacking = ", ".join(sorted(fused.unknown))
    reason = f"not counted: {lacking}" if lacking else ""
    return {"flops": sum(by_op.values()), "by_op": by_op, "reason": reason}


def _nothing(reason: str) -> dict[str, Any]:
    return {"flops": None, "by_op": {}, "reason": reason}
