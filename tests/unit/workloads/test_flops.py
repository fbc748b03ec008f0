"""Model FLOPs against formulas by hand, and fused layers against the products they are made of."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
WORKLOADS = HERE.parents[2] / "workloads"
Ask = Callable[[dict[str, Any]], dict[str, Any]]
PLAIN: dict[str, Any] = {
    "layer": "LSTM", "inputs": 4, "hidden": 6, "options": {}, "lengths": [5, 5, 5],
    "packed": False, "grad": True, "wanted": False, "weights": True, "fused": True, "k": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def ask(torch_interpreter: str) -> Iterator[Ask]:
    """Count cases in one process that has PyTorch."""
    argv = [torch_interpreter, str(HERE / "flopcases.py")]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:

        def asked(case: dict[str, Any]) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(case) + "\n")
            found: dict[str, Any] = json.loads(process.stdout.readline())
            return found

        yield asked
        assert process.stdin is not None
        process.stdin.close()


def in_torch(interpreter: str, program: str) -> Any:
    """Return what a program prints as JSON under PyTorch, beside the workloads."""
    head = f"import sys; sys.path.insert(0, {str(WORKLOADS)!r})\n"
    argv = [interpreter, "-B", "-W", "ignore", "-c", head + program]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.torch
def test_lstm_on_the_cpu_counts_its_matrix_products(ask: Ask) -> None:
    """2·T·B·gates·H·(I + H), which FlopCounterMode alone takes for nothing."""
    case = {**PLAIN, "inputs": 20, "hidden": 40, "lengths": [100] * 64, "grad": False}
    found = ask(case)
    assert found["by_op"] == {"aten.mkldnn_rnn_layer": 2 * 100 * 64 * 4 * 40 * (20 + 40)}
    assert found["flops"] == 122_880_000


@pytest.mark.torch
def test_backward_counts_twice_where_every_gradient_is_wanted(torch_interpreter: str) -> None:
    """Each product of the forward pass has two in the backward pass, one for each factor."""
    found = in_torch(
        torch_interpreter,
        """
import json, torch
from harness.counters import flops
layer, inputs = torch.nn.LSTM(4, 6), torch.randn(5, 3, 4, requires_grad=True)
state = tuple(torch.zeros(1, 3, 6, requires_grad=True) for _ in range(2))
print(json.dumps(flops.count(lambda: layer(inputs, state)[0].sum().backward(), 2)["by_op"]))
""",
    )
    forward = 2 * (2 * 5 * 3 * 4 * 6 * (4 + 6))
    expected = {"aten.mkldnn_rnn_layer": forward, "aten.mkldnn_rnn_layer_backward": 2 * forward}
    assert expected == found


@pytest.mark.torch
@given(
    layer=st.sampled_from(["LSTM", "GRU", "RNN"]),
    inputs=st.integers(1, 9),
    hidden=st.integers(2, 9),
    layers=st.integers(1, 3),
    projected=st.integers(0, 8),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    switches=st.tuples(*[st.booleans()] * 6),
)
@settings(max_examples=60, deadline=None)
def test_fused_layer_counts_what_it_counts_taken_apart(
    *,
    ask: Ask,
    layer: str,
    inputs: int,
    hidden: int,
    layers: int,
    projected: int,
    lengths: list[int],
    switches: tuple[bool, ...],
) -> None:
    """With oneDNN a layer is one operator, without it single products: the FLOPs are the same."""
    both, packed, grad, wanted, weights, batch_first = switches
    options = {"num_layers": layers, "bidirectional": both, "batch_first": batch_first}
    if layer == "LSTM" and projected < hidden:
        options["proj_size"] = projected
    case = {
        "layer": layer, "inputs": inputs, "hidden": hidden, "options": options,
        "lengths": lengths if packed else [max(lengths)] * len(lengths), "packed": packed,
        "grad": grad and (wanted or weights), "wanted": wanted, "weights": weights, "k": 2,
    }  # fmt: skip
    apart = ask({**case, "fused": False})
    assert set(apart["by_op"]) <= {"aten.mm", "aten.addmm", "aten.bmm"}
    assert ask({**case, "fused": True})["flops"] == apart["flops"]


@pytest.mark.torch
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(
    ("name", "mode", "projected"),
    [("RNN", 1, 0), ("LSTM", 2, 0), ("LSTM", 2, 3), ("GRU", 3, 0)],
)
def test_call_of_cudnn_counts_what_the_same_layer_counts_on_the_cpu(
    *, ask: Ask, layers: int, directions: int, name: str, mode: int, projected: int
) -> None:
    """One call of cuDNN holds all layers and directions; its arguments alone are looked at."""
    options = {"num_layers": layers, "bidirectional": directions == 2}
    if projected:
        options["proj_size"] = projected
    apart = ask({**PLAIN, "layer": name, "options": options, "fused": False})
    numbers = {"mode": mode, "projected": projected, "layers": layers, "directions": directions}
    found = ask({**PLAIN, **numbers})
    assert set(found) == {"aten._cudnn_rnn", "aten._cudnn_rnn_backward"}
    assert sum(found.values()) == apart["flops"]


@pytest.mark.torch
def test_training_step_of_the_cnn_counts_its_convolutions_and_layers(
    torch_interpreter: str,
) -> None:
    """Two FLOPs for each multiplication; backward twice, but for the gradient of the images."""
    found = in_torch(
        torch_interpreter,
        """
import json, torch, cnn
from harness.counters import flops
work = cnn.Cnn(**{**cnn.Cnn.PARAMS, "subset": 64})
work._train = (torch.zeros(64, 28, 28, dtype=torch.uint8), torch.zeros(64, dtype=torch.int64))
work._batches = cnn.Batches(work._train, 64)
work.setup(1, "cpu")
print(json.dumps([flops.count(work.step, k)["flops"] for k in (1, 3)]))
""",
    )
    first = 2 * 64 * 26 * 26 * 32 * 9 * 1
    rest = 2 * 64 * (24 * 24 * 64 * 9 * 32 + 9216 * 128 + 128 * 10)
    assert first + rest == 1_535_033_344
    assert found == [2 * first + 3 * rest, 3 * (2 * first + 3 * rest)]
    assert found[0] == 4_580_179_968


@pytest.mark.torch
def test_step_without_an_operator_is_not_counted_as_0(torch_interpreter: str) -> None:
    """A replayed graph calls no operator: nothing was measured, and that is said."""
    found = in_torch(
        torch_interpreter,
        "import json, torch\nfrom harness.counters import flops\n"
        "print(json.dumps(flops.count(int, 3)))",
    )
    assert found["flops"] is None
    assert "no operator of PyTorch was called" in found["reason"]


def test_workload_without_torch_has_a_reason() -> None:
    """Nothing is imported for it."""
    from harness.counters import flops

    assert flops.count(int, 3) == {
        "flops": None, "by_op": {}, "reason": "the workload does not use PyTorch"
    }  # fmt: skip
