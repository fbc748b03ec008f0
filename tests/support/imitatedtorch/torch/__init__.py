"""The calls of PyTorch that a worker makes, as on a host with a GPU; nothing is computed here.

It imitates what matters to forks: CUDA that was started in a process cannot be used in a fork of
it. Every process that starts or asks CUDA is written to the file that IMITATED_CUDA names.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "0+imitated"
version = SimpleNamespace(cuda="12.8")
_state = {"started_in": 0, "asked_in": 0}


def _note(what: str) -> None:
    with Path(os.environ["IMITATED_CUDA"]).open("a", encoding="utf-8") as log:
        log.write(f"{what} {os.getpid()}\n")


def _start() -> None:
    for key in ("started_in", "asked_in"):
        if _state[key] not in {0, os.getpid()}:
            raise RuntimeError("CUDA error: initialization error")
    _state["started_in"] = os.getpid()
    _note("start")


def _is_available() -> bool:
    _note("ask")
    if os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") != "1":
        if _state["asked_in"] not in {0, os.getpid()}:
            return False
        _state["asked_in"] = os.getpid()
    return os.environ.get("IMITATED_GPUS", "1") != "0"


def _init() -> None:
    if refusal := os.environ.get("IMITATED_REFUSAL"):
        raise RuntimeError(refusal)
    _start()


class Event:
    """A mark on a stream."""

    def __init__(self, **_: Any) -> None:
        _start()

    def record(self) -> None:
        """Do nothing."""

    def elapsed_time(self, _other: Event) -> float:
        """Return a made-up time, in ms."""
        return 1.0


cuda = SimpleNamespace(
    is_available=_is_available,
    init=_init,
    is_initialized=lambda: _state["started_in"] == os.getpid(),
    synchronize=_start,
    get_device_name=lambda: "imitated GPU",
    get_device_capability=lambda: (7, 5),
    get_arch_list=lambda: os.environ.get("IMITATED_ARCHS", "sm_70 sm_75 sm_80").split(),
    reset_peak_memory_stats=lambda: None,
    max_memory_allocated=lambda: 0,
    max_memory_reserved=lambda: 0,
    empty_cache=lambda: None,
    Event=Event,
)


class _Tensor:
    def __init__(self, count: int, device: str) -> None:
        if device == "cuda":
            _start()
        self.count, self.grad = count, None

    def sum(self) -> float:
        return float(os.environ.get("IMITATED_SUM", str(self.count)))


def zeros(count: int, device: str = "cpu") -> _Tensor:
    """Return a tensor of this many zeros."""
    return _Tensor(count, device)


ones = zeros
nn = SimpleNamespace(Parameter=lambda tensor: tensor)
optim = SimpleNamespace(SGD=lambda *_, **__: SimpleNamespace(step=lambda: None))


def set_num_threads(_threads: int) -> None:
    """Do nothing."""


def manual_seed(_seed: int) -> None:
    """Do nothing."""
