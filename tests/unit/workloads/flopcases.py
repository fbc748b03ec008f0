"""Counts FLOPs under PyTorch for the tests: a case a line on stdin, the answer a line on stdout."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "workloads"))
sys.dont_write_bytecode = True

import torch  # noqa: E402, TID251
from harness.counters import flops  # noqa: E402  found on the path just above
from harness.counters.recurrent import RecurrentCounter  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence  # noqa: E402, TID251


def layer_step(case: dict[str, Any]) -> Any:
    """Return a step of a recurrent layer, with the gradients that the case asks for."""
    cls = getattr(torch.nn, case["layer"])
    layer = cls(case["inputs"], case["hidden"], **case["options"])
    layer.requires_grad_(case["weights"])
    lengths = sorted(case["lengths"], reverse=True)
    batch_first = case["options"].get("batch_first", False)
    sizes = (lengths[0], len(lengths))[:: -1 if batch_first else 1]
    inputs = torch.randn(*sizes, case["inputs"], requires_grad=case["grad"] and case["wanted"])

    def step() -> None:
        given = inputs
        if case["packed"]:
            given = pack_padded_sequence(inputs, lengths, batch_first=batch_first)
        with torch.set_grad_enabled(case["grad"]):
            found = layer(given)[0]
        found = found.data if case["packed"] else found
        if case["grad"]:
            found.sum().backward()

    return step


def cudnn(case: dict[str, Any]) -> dict[str, Any]:
    """Count a call of cuDNN forward and back, made with tensors that hold nothing."""

    def new(*sizes: int) -> torch.Tensor:
        return torch.empty(*sizes, device="meta")

    steps, batch, hidden, projected = 5, 3, case["hidden"], case["projected"]
    states = case["layers"] * case["directions"]
    given = (new(steps, batch, case["inputs"]), [new(1)], 4, new(1))
    first = (new(states, batch, projected or hidden), new(states, batch, hidden))
    width = case["directions"] * (projected or hidden)
    back = (new(steps, batch, width), new(steps, batch, width), None, None)
    numbers = (case["mode"], hidden, projected, case["layers"])
    tail = (*numbers, False, 0.0, True, case["directions"] == 2, [], None)
    # Nothing computes it without a GPU: what is counted is the call.
    with RecurrentCounter() as counter:
        with contextlib.suppress(NotImplementedError, RuntimeError):
            torch.ops.aten._cudnn_rnn(*given, *first, *tail)
        with contextlib.suppress(NotImplementedError, RuntimeError):
            masks = [False, False, False, True]
            torch.ops.aten._cudnn_rnn_backward(*given, *first, *back, *tail, new(1), masks)
    return counter.flops


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Count the case as cuDNN runs it, with the fused operators of oneDNN, or without."""
    if "mode" in case:
        return cudnn(case)
    with torch.backends.mkldnn.flags(enabled=case["fused"]):
        return flops.count(layer_step(case), case["k"])


def main() -> None:
    """Answer until the input ends."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
