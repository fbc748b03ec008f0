"""Training on several processes, each with a part of the batch: PyTorch's own data parallelism."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any, ClassVar, NamedTuple

import torch  # noqa: TID251  its home is workloads/
import torch.distributed  # noqa: TID251
from harness.loading import load_class
from torch import nn  # noqa: TID251

# A rank beside the first. A line of standard input is a step, the end of it the end.
_RANK = """
import json, sys
sys.path[:0] = [sys.argv[1]]
from ddp import Rank, Team
rank = Rank(Team(**json.loads(sys.argv[2])), int(sys.argv[3]))
for _ in sys.stdin:
    rank.train()
"""


class Ddp:
    """Trains a network of the zoo on `ranks` processes that average their gradients in each step.

    They talk by gloo on CPUs and by NCCL on GPUs, of which each rank has its own, over the loopback
    device, since containers have no network. `batch` is that of one rank. With `parallel` each rank
    has a copy of the model (`ddp`), or a part of all its parameters (`fsdp`).
    """

    BOTTLENECK: ClassVar[str] = "waiting for other processes and copying between them"
    PARAMS: ClassVar[dict[str, Any]] = {
        "ranks": 2,
        "parallel": "ddp",
        "model": "mlp",
        "batch": 16,
        "side": 64,
        "hidden": 512,
        "lr": 0.01,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "ranks": (1, 64),
        "parallel": ("ddp", "fsdp"),
        "model": ("mlp", "alexnet", "vgg16", "resnet18", "resnet50"),
        "batch": (2, None),
        "side": (32, None),
        "hidden": (1, None),
        "lr": (0, None),
    }

    def __init__(self, **params: Any) -> None:  # noqa: ANN401  checked against PARAMS and RANGES
        self._params, self._ranks = params, params["ranks"]
        self.batch = params["ranks"] * params["batch"]
        self.processes = params["ranks"]

    def setup(self, seed: int, device: str) -> None:
        """Start the other processes, and join them."""
        if device == "cuda" and torch.cuda.device_count() < self._ranks:
            raise RuntimeError(
                f"{self._ranks} ranks need a GPU each, and there are {torch.cuda.device_count()}"
            )
        self._folder = tempfile.TemporaryDirectory(dir=os.environ.get("HOME"))
        team = Team(
            store=os.path.join(self._folder.name, "store"),
            device=device,
            params=self._params,
            seed=seed,
            threads=torch.get_num_threads(),
        )
        told = json.dumps(team._asdict())
        here = os.path.dirname(os.path.abspath(__file__))
        self._others = [
            subprocess.Popen(
                (sys.executable, "-c", _RANK, here, told, str(number)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
            )
            for number in range(1, self._ranks)
        ]
        self._rank = Rank(team, 0)

    def step(self) -> torch.Tensor:
        """Let all ranks train on their part of the batch; return the loss of the first."""
        for other in self._others:
            assert other.stdin is not None
            other.stdin.write(b"\n")
            other.stdin.flush()
        return self._rank.train()

    def finish(self) -> dict[str, Any]:
        """End the other processes; return how many there were in all, and how they talked."""
        for other in self._others:
            other.communicate()
        torch.distributed.destroy_process_group()
        self._folder.cleanup()
        return {"ranks": self._ranks, "backend": self._rank.backend}


class Team(NamedTuple):
    """What all ranks have alike."""

    store: str  # the file by which they find each other
    device: str
    params: dict[str, Any]
    seed: int
    threads: int


class Rank:
    """One of the processes, with a part of the batch of its own."""

    def __init__(self, team: Team, number: int) -> None:
        os.environ.update({"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"})
        torch.set_num_threads(team.threads)
        params = team.params
        is_on_gpu = team.device == "cuda"
        self.backend = "nccl" if is_on_gpu else "gloo"
        torch.distributed.init_process_group(
            self.backend,
            store=torch.distributed.FileStore(team.store, params["ranks"]),
            rank=number,
            world_size=params["ranks"],
        )
        place = f"cuda:{number}" if is_on_gpu else team.device
        if is_on_gpu:
            torch.cuda.set_device(place)
        torch.manual_seed(team.seed)  # the same weights everywhere
        kind: Any = load_class(params["model"])
        given = {name: params[name] for name in ("batch", "side", "hidden") if name in kind.PARAMS}
        self._work = kind(**{**kind.PARAMS, **given})
        spread = _shard if params["parallel"] == "fsdp" else _replicate
        self._model = spread(self._work.model().to(place), place)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=params["lr"])
        torch.manual_seed(team.seed + 1 + number)
        self._inputs, self._targets = (part.to(place) for part in self._work.data())

    def train(self) -> torch.Tensor:
        """Train on this rank's part of the batch and return its loss."""
        self._optimizer.zero_grad()
        loss: torch.Tensor = self._work.loss(self._model(self._inputs), self._targets)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


def _replicate(model: nn.Module, place: str) -> nn.Module:
    """Give each rank a copy of the model; gradients are averaged while others are computed."""
    ids = [place] if place.startswith("cuda") else None
    return nn.parallel.DistributedDataParallel(model, device_ids=ids)


def _shard(model: nn.Module, place: str) -> nn.Module:
    """Give each rank a part of every parameter; a layer is gathered while it computes."""
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415, TID251
    except ImportError as error:
        raise RuntimeError(
            f"parallel=fsdp needs PyTorch 2.6 or newer; this is {torch.__version__}"
        ) from error
    mesh = torch.distributed.device_mesh.init_device_mesh(
        place.partition(":")[0], (torch.distributed.get_world_size(),)
    )
    for layer in model.children():
        if next(layer.parameters(), None) is not None:
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)
