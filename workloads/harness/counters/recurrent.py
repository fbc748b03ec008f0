"""The FLOPs of recurrent layers that run as one operator, which FlopCounterMode counts as 0.

They are those of the matrix products a layer is made of, a multiplication and an addition each, as
FlopCounterMode counts them where the same layer runs as single products.
"""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: TID251  its home is workloads/

# RNN with relu, RNN with tanh, LSTM, GRU (cudnnRNNMode_t; ATen gives oneDNN the same numbers).
GATES = {0: 1, 1: 1, 2: 4, 3: 3}
WHOLE = ("_cudnn_rnn", "miopen_rnn")  # all layers and directions in one call
ONE = ("mkldnn_rnn_layer",)  # one layer in one direction
# Their products are counted by nobody: quantised weights, and what runs on Apple's GPUs.
UNKNOWN = ("quantized_lstm", "quantized_gru", "lstm_mps", "_lstm_mps")


class Shape(NamedTuple):
    """A stack of recurrent layers and its input."""

    rows: int  # time steps of all sequences: T·B, or the sum of the lengths of a packed sequence
    batch: int
    inputs: int
    hidden: int
    gates: int
    layers: int = 1
    directions: int = 1
    projected: int = 0  # width of the state after a projection; 0 without one


class Wanted(NamedTuple):
    """Which gradients a backward pass computes, in addition to those of inner states."""

    inputs: bool
    state: bool
    weights: bool


def forward_flops(shape: Shape) -> int:
    """Return 2·T·B·gates·H·(I + H) of each layer and direction; H is the projected width at last.

    A projection adds 2·T·B·H·P.
    """
    return sum(map(sum, _products(shape)))


def backward_flops(shape: Shape, wanted: Wanted) -> int:
    """Return twice the forward pass, without the gradients that are not wanted.

    Those of the states are needed from step to step; that of the first one is an input's.
    """
    total = forward_flops(shape) if wanted.weights else 0
    for number, (inputs, states, projection) in enumerate(_products(shape)):
        first_states = states * shape.batch // shape.rows
        total += inputs if wanted.inputs or number >= shape.directions else 0
        total += states - (0 if wanted.state else first_states)
        total += projection
    return total


def _products(shape: Shape) -> Iterator[tuple[int, int, int]]:
    """Yield the FLOPs of a layer and direction: on its inputs, on its states, of the projection."""
    gates, width = shape.gates * shape.hidden, shape.projected or shape.hidden
    for layer in range(shape.layers):
        inputs = shape.directions * width if layer else shape.inputs
        for _ in range(shape.directions):
            yield (
                2 * shape.rows * gates * inputs,
                2 * shape.rows * gates * width,
                2 * shape.rows * shape.hidden * shape.projected,
            )


class RecurrentCounter(TorchDispatchMode):  # type: ignore[misc]  # PyTorch has no types here
    """Adds up the fused recurrent operators that are called while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0  # of any operator
        self.flops: dict[str, int] = {}
        self.unknown: set[str] = set()

    def __torch_dispatch__(  # the signature is PyTorch's
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Count a call and let it run."""
        kwargs = kwargs or {}
        self.calls += 1
        name = func._schema.name.partition("::")[2]  # noqa: SLF001  as FlopCounterMode reads it
        kind = name.removesuffix("_backward")
        if kind in (*WHOLE, *ONE):
            named = dict(zip((a.name for a in func._schema.arguments), args))  # noqa: SLF001
            flops = _flops(name, kind, {**named, **kwargs})
            self.flops[f"aten.{name}"] = self.flops.get(f"aten.{name}", 0) + flops
        elif name in UNKNOWN:
            self.unknown.add(name)
        return func(*args, **kwargs)


def _flops(name: str, kind: str, given: dict[str, Any]) -> int:
    shape = _shape(kind, given)
    if name == kind:
        return forward_flops(shape)
    return backward_flops(shape, _wanted(kind, given))


def _shape(kind: str, given: dict[str, Any]) -> Shape:
    inputs = given["input"]
    state = given["hx"] if kind in WHOLE else given["hx_"]
    width = int(inputs.shape[-1])
    one = Shape(
        rows=inputs.numel() // width,
        batch=int(state.shape[-2]),
        inputs=width,
        hidden=int(given["hidden_size"]),
        gates=GATES[int(given["mode"])],
    )
    if kind in ONE:
        return one
    return one._replace(
        layers=int(given["num_layers"]),
        directions=2 if given["bidirectional"] else 1,
        projected=int(given.get("proj_size", 0)),
    )


def _wanted(kind: str, given: dict[str, Any]) -> Wanted:
    """Return which gradients are needed, by the mask of the call or else by its tensors."""
    if kind in WHOLE:
        inputs, state, _cell, weights = given["output_mask"]
        return Wanted(inputs, state, weights)
    weights = any(given[name].requires_grad for name in given if name.startswith("weight"))
    return Wanted(given["input"].requires_grad, given["hx_"].requires_grad, weights)
