"""Training on several processes, each with a part of the batch: PyTorch's own data parallelism.

Run as a program, `ddp.py` runs the ranks of a further host: see `join`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple

import torch  # noqa: TID251  its home is workloads/
import torch.distributed  # noqa: TID251
from harness.facts.variables import scratch_folder
from harness.joining import (
    Meeting,
    SharedStore,
    Table,
    connect,
    interface_of,
    prove_peers,
    read_secret,
)
from harness.loading import ParameterError, load_class, require_ranges, resolve
from torch import nn  # noqa: TID251

# The program of each rank but the first. Its standard input is a socket: each line asks for a step,
# and its end ends the rank. On CPUs the rank answers each step with a byte.
_RANK = """
import json, os, sys
sys.path[:0] = [sys.argv[1]]
from ddp import SECRET, Rank, Team
secret = bytes.fromhex(os.environ.pop(SECRET))
rank = Rank(Team(**json.loads(sys.argv[2])), int(sys.argv[3]), secret)
for _ in sys.stdin:
    rank.train()
    if rank.is_awaited:
        os.write(0, b".")
"""
# Passed to each rank as a variable: unlike its command line, other users cannot read it.
SECRET = "ENVCOMPARE_TEAM_SECRET"  # noqa: S105  its name
# To connect the ranks, and for one to wait for another in a step.
_GROUP_LIMIT = timedelta(minutes=2)
_TEAM_BYTES = 1 << 16  # the longest description of a team
_MOST_SEED = 1 << 63
_MOST_CPUS = 1 << 16
_PAUSE_S = 0.2  # between tries to reach a generation that may not have begun
_PAUSE_AFTER_ERROR_S = 5.0


class Ddp:
    """Trains a network of the zoo on `ranks` processes that average their gradients in each step.

    They communicate by gloo on CPUs and by NCCL on GPUs, one GPU for each rank: over the loopback
    device, since containers have no network, or over the network of the hosts. `batch` is the batch
    of one rank. `parallel` gives each rank a copy of the model (`ddp`) or a part of all its
    parameters (`fsdp`).
    """

    BOTTLENECK: ClassVar[str] = "waiting for other processes and copying between them"
    SPREADS_RANKS: ClassVar[bool] = True  # on several hosts
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
        parts = _parts(self._ranks)
        require_gpus(device, len(parts[0]))
        self._folder = tempfile.TemporaryDirectory(dir=scratch_folder())
        team = Team(
            store=os.path.join(self._folder.name, "store"),
            interface="lo",
            device=device,
            params=self._params,
            seed=seed,
            threads=torch.get_num_threads(),
            cpus=own_cpus(),
            parts=parts,
        )
        self._hosts = len(parts)
        self._lines: list[socket.socket] = []
        self._joined: list[socket.socket] = []
        if len(parts) > 1:
            self._rank = self._gather(team, read_secret())
        else:
            secret = secrets.token_bytes(32)
            self._start_others(team, secret)
            self._rank = Rank(team, 0, secret)

    def _start_others(self, team: Team, secret: bytes) -> None:
        """Start the ranks of this host, except for the first."""
        self._others = []
        for rank in team.parts[0][1:]:
            line, end = socket.socketpair()
            self._lines.append(line)
            with end:
                self._others.append(start_rank(team, rank, end, secret))

    def _gather(self, team: Team, secret: bytes) -> Rank:
        """Wait for the other hosts, send them the team, start it and return the first rank.

        The connection to a host stays open while its ranks compute. Each of these ranks has a
        connection that carries a line for each step, and each rank but the first has one to the
        store.
        """
        others = range(1, len(team.parts))
        with contextlib.closing(Meeting(secret)) as meeting:
            team = team._replace(store="", interface=interface_of(meeting.address))
            self._joined = meeting.accept([host_name(host) for host in others])
            for host in self._joined:
                host.sendall(json.dumps(team._asdict()).encode() + b"\n")
            there = [f"rank {rank}" for host in others for rank in team.parts[host]]
            self._lines += meeting.accept(there)
            self._start_others(team, secret)
            table = Table()
            for connection in meeting.accept([f"store {r}" for r in range(1, self._ranks)]):
                table.serve(connection)
        return Rank(team, 0, secret, SharedStore(table.ask))

    def step(self) -> torch.Tensor:
        """Train all ranks on their parts of the batch; return the loss of the first.

        Raises RuntimeError if a rank has ended.
        """
        for line in self._lines:
            line.sendall(b"\n")
        loss = self._rank.train()
        if self._rank.is_awaited and not all(line.recv(1) for line in self._lines):
            raise RuntimeError("another rank has ended in a step")
        return loss

    def finish(self) -> dict[str, Any]:
        """End the other processes; return the number of ranks and the backend."""
        for line in self._lines:
            line.close()
        for connection in self._joined:
            connection.close()
        for other in self._others:
            other.wait()
        torch.distributed.destroy_process_group()
        self._folder.cleanup()
        results = {"ranks": self._ranks, "backend": self._rank.backend}
        # A text, since numbers are compared as results.
        return {**results, "hosts": str(self._hosts)} if self._hosts > 1 else results


class Team(NamedTuple):
    """What all ranks share, except for the network device of their host."""

    store: str  # the file by which they find each other; empty: the first rank has the store
    interface: str
    device: str
    params: dict[str, Any]
    seed: int
    threads: int
    cpus: list[int] | None  # to which they are bound
    parts: list[list[int]]  # the ranks of each host


class Rank:
    """One of the processes, with its own part of the batch."""

    def __init__(self, team: Team, number: int, secret: bytes, store: Any = None) -> None:  # noqa: ANN401
        if team.interface:
            names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
            os.environ.update(dict.fromkeys(names, team.interface))
        torch.set_num_threads(team.threads)
        params = team.params
        is_on_gpu = team.device == "cuda"
        # On CPUs an unfinished step would slow what is measured next. On GPUs waiting would keep
        # the first rank from launching ahead.
        self.is_awaited = not is_on_gpu
        self.backend = "nccl" if is_on_gpu else "gloo"
        self._store = store or _store(team, number, secret)
        _join_group(
            self.backend,
            store=self._store,
            rank=number,
            world_size=params["ranks"],
        )
        place = team.device
        if is_on_gpu:
            place = f"cuda:{next(part.index(number) for part in team.parts if number in part)}"
            torch.cuda.set_device(place)
        prove_peers(secret, place)
        torch.manual_seed(team.seed)  # the same weights everywhere
        kind: Any = load_class(params["model"])
        given = {name: params[name] for name in ("batch", "side", "hidden") if name in kind.PARAMS}
        self._work = kind(**{**kind.PARAMS, **given})
        model = self._work.model().to(place)
        is_sharded = params["parallel"] == "fsdp"
        self._model = _shard(model, place, secret) if is_sharded else _replicate(model, place)
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


def _parts(ranks: int) -> list[list[int]]:
    """Return the ranks of each host, in blocks; each host has at least one."""
    hosts = min(ranks, int(os.environ.get("GROUP_WORLD_SIZE", "1")))
    parts: list[list[int]] = [[] for _ in range(hosts)]
    for rank in range(ranks):
        parts[rank * hosts // ranks].append(rank)
    return parts


def own_cpus() -> list[int] | None:
    """Return the CPUs to which this process is bound; None if it may use all."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus if len(cpus) < (os.cpu_count() or 1) else None


def require_gpus(device: str, ranks: int) -> None:
    """Raise RuntimeError if this host has fewer GPUs than ranks."""
    if device == "cuda" and torch.cuda.device_count() < ranks:
        raise RuntimeError(
            f"{ranks} ranks need a GPU each, and there are {torch.cuda.device_count()}"
        )


def start_rank(
    team: Team, rank: int, lines: socket.socket, secret: bytes
) -> subprocess.Popen[bytes]:
    """Start a rank in a new process; it trains one step for each line that it receives."""
    here = os.path.dirname(os.path.abspath(__file__))
    description = json.dumps(team._asdict())
    return subprocess.Popen(
        (sys.executable, "-c", _RANK, here, description, str(rank)),
        env={**os.environ, SECRET: secret.hex()},
        stdin=lines.fileno(),
        stdout=subprocess.DEVNULL,
    )


def host_name(number: int) -> str:
    """Return the name by which a host of the team joins."""
    return f"host {os.environ['ENVCOMPARE_TEAM_HOSTS'].split(',')[number]}"


def _store(team: Team, rank: int, secret: bytes) -> Any:  # noqa: ANN401
    if team.store:
        return torch.distributed.FileStore(team.store, team.params["ranks"])
    return SharedStore.joined(rank, secret)


def _join_group(backend: str, **given: Any) -> None:  # noqa: ANN401
    try:
        torch.distributed.init_process_group(backend, timeout=_GROUP_LIMIT, **given)
    except RuntimeError as error:
        raise RuntimeError(
            f"the ranks could not connect to each other: {str(error).splitlines()[0]}. Between "
            "hosts a firewall must let pass TCP to ports above 32767, in both directions"
        ) from error


def _replicate(model: nn.Module, place: str) -> nn.Module:
    """Give each rank a copy of the model; gradients are averaged during the backward pass."""
    ids = [place] if place.startswith("cuda") else None
    return nn.parallel.DistributedDataParallel(model, device_ids=ids)


def _shard(model: nn.Module, place: str, secret: bytes) -> nn.Module:
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
    if mesh.get_group() is not torch.distributed.group.WORLD:
        prove_peers(secret, place, mesh.get_group())
    for layer in model.children():
        if next(layer.parameters(), None) is not None:
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def join() -> None:
    """Run the ranks of this host, generation after generation, until standard input ends."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    secret = read_secret()
    while True:
        try:
            with connect(host_name(int(os.environ["GROUP_RANK"])), secret) as leader:
                line = leader.makefile("rb").readline(_TEAM_BYTES)
                if line:
                    _serve(read_team(line), leader, secret)
        except ConnectionRefusedError:
            pass  # no generation has begun
        except (OSError, RuntimeError) as error:
            sys.stderr.write(f"the ranks of this host cannot join: {error}\n")
            sys.stderr.flush()
            time.sleep(_PAUSE_AFTER_ERROR_S)
        time.sleep(_PAUSE_S)


def read_team(line: bytes) -> Team:
    """Return the team that the first rank describes; raise RuntimeError if it is invalid.

    The first rank has proved the secret of the run, but its parameters are checked too: none may
    name a file, whose code would run on this host, and the store must not be a file.
    """
    try:
        team = Team(**json.loads(line))
        params = resolve(Ddp.PARAMS, team.params)
        require_ranges(params, Ddp.RANGES)
        is_sound = (
            team.store == ""
            and team.device in {"cpu", "cuda"}
            and team.parts == _parts(team.params["ranks"])
            and _are_whole([team.seed], 0, _MOST_SEED)
            and _are_whole([team.threads], 1, _MOST_CPUS)
            and (team.cpus is None or (bool(team.cpus) and _are_whole(team.cpus, 0, _MOST_CPUS)))
        )
    except (AttributeError, KeyError, TypeError, ValueError, ParameterError) as error:
        raise RuntimeError(f"the first rank sent an invalid team: {error}") from error
    if not is_sound:
        raise RuntimeError(
            "the first rank sent an invalid team: its store, device, ranks, seed, threads or CPUs "
            "are out of range"
        )
    return team


def _are_whole(values: list[int], least: int, most: int) -> bool:
    return all(type(value) is int and least <= value <= most for value in values)


def _serve(team: Team, leader: socket.socket, secret: bytes) -> None:
    """Run the ranks of this host until they end, with the CPUs and threads of the others."""
    if team.cpus is not None:
        os.sched_setaffinity(0, team.cpus)
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(team.threads)))
    address = leader.getsockname()[0]
    team = team._replace(interface=interface_of(address))
    own = team.parts[int(os.environ["GROUP_RANK"])]
    require_gpus(team.device, len(own))
    ranks = []
    for rank in own:
        with connect(f"rank {rank}", secret) as lines:
            ranks.append(start_rank(team, rank, lines, secret))
    for process in ranks:
        process.wait()


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)  # its ranks end with their connections


if __name__ == "__main__":
    join()
