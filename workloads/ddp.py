"""Training on several processes, each with a part of the batch: PyTorch's own data parallelism.

As a program, `ddp.py`, it computes along for another host: see `join`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from typing import IO, Any, ClassVar, NamedTuple

import torch  # noqa: TID251  its home is workloads/
import torch.distributed  # noqa: TID251
from harness.loading import load_class
from harness.parameters import ParameterError, require_ranges, resolve
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
_JOIN_LIMIT_S = 45.0  # for a host whose processes have been started
_LIMIT = timedelta(seconds=_JOIN_LIMIT_S)
_TEAM_BYTES = 1 << 16  # at most, of what a host is told
_PAUSE_S = 0.2  # between tries to reach a generation that may not have begun
_PAUSE_AFTER_ERROR_S = 5.0
_GET_ADDRESS = 0x8915  # SIOCGIFADDR, netdevice(7)


class Ddp:
    """Trains a network of the zoo on `ranks` processes that average their gradients in each step.

    They talk by gloo on CPUs and by NCCL on GPUs, of which each rank has its own: over the loopback
    device, since containers have no network, or over that of the hosts on which they lie. `batch`
    is that of one rank. With `parallel` each rank has a copy of the model (`ddp`), or a part of all
    its parameters (`fsdp`).
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
        hosts = min(self._ranks, int(os.environ.get("GROUP_WORLD_SIZE", "1")))
        parts = [
            [rank for rank in range(self._ranks) if rank * hosts // self._ranks == host]
            for host in range(hosts)
        ]
        require_gpus(device, len(parts[0]))
        self._folder = tempfile.TemporaryDirectory(dir=os.environ.get("HOME"))
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
        self._hosts, store = hosts, None
        lines: list[IO[bytes]] = []
        self._joined: list[socket.socket] = []
        if hosts > 1:
            team, store, lines, self._joined = _gather(team)
        self._others = [start_rank(team, rank, subprocess.PIPE) for rank in parts[0][1:]]
        self._lines = [*lines, *(other.stdin for other in self._others if other.stdin)]
        self._rank = Rank(team, 0, store)

    def step(self) -> torch.Tensor:
        """Let all ranks train on their part of the batch; return the loss of the first."""
        for line in self._lines:
            line.write(b"\n")
            line.flush()
        return self._rank.train()

    def finish(self) -> dict[str, Any]:
        """End the other processes; return how many there were in all, and how they talked."""
        for line in self._lines:
            line.close()
        for connection in self._joined:
            connection.close()
        for other in self._others:
            other.wait()
        torch.distributed.destroy_process_group()
        self._folder.cleanup()
        told = {"ranks": self._ranks, "backend": self._rank.backend}
        # a text, since it is no result to be compared
        return {**told, "hosts": str(self._hosts)} if self._hosts > 1 else told


class Team(NamedTuple):
    """What all ranks have alike, but for the network device of their host."""

    store: str  # the file by which they find each other, or HOST:PORT
    interface: str
    device: str
    params: dict[str, Any]
    seed: int
    threads: int
    cpus: list[int] | None  # that they are bound to
    parts: list[list[int]]  # the ranks of each host


class Rank:
    """One of the processes, with a part of the batch of its own."""

    def __init__(self, team: Team, number: int, store: Any = None) -> None:  # noqa: ANN401
        if team.interface:
            names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
            os.environ.update(dict.fromkeys(names, team.interface))
        torch.set_num_threads(team.threads)
        params = team.params
        is_on_gpu = team.device == "cuda"
        self.backend = "nccl" if is_on_gpu else "gloo"
        torch.distributed.init_process_group(
            self.backend,
            store=store or _store(team),
            rank=number,
            world_size=params["ranks"],
        )
        place = team.device
        if is_on_gpu:
            place = f"cuda:{next(part.index(number) for part in team.parts if number in part)}"
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


def own_cpus() -> list[int] | None:
    """Return the CPUs that this process is bound to; None where it may use all."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus if len(cpus) < (os.cpu_count() or 1) else None


def require_gpus(device: str, ranks: int) -> None:
    """Raise RuntimeError where the ranks of a host have no GPU each."""
    if device == "cuda" and torch.cuda.device_count() < ranks:
        raise RuntimeError(
            f"{ranks} ranks need a GPU each, and there are {torch.cuda.device_count()}"
        )


def start_rank(team: Team, rank: int, lines: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
    """Start a rank in a process of its own, which takes a step for each of these lines."""
    here = os.path.dirname(os.path.abspath(__file__))
    told = json.dumps(team._asdict())
    return subprocess.Popen(
        (sys.executable, "-c", _RANK, here, told, str(rank)),
        stdin=lines,
        stdout=subprocess.DEVNULL,
    )


def _store(team: Team) -> Any:  # noqa: ANN401  PyTorch has no common type of stores
    host, colon, port = team.store.rpartition(":")
    if colon:
        return torch.distributed.TCPStore(host, int(port), wait_for_workers=False, timeout=_LIMIT)
    return torch.distributed.FileStore(team.store, team.params["ranks"])


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


def _gather(team: Team) -> tuple[Team, Any, list[IO[bytes]], list[socket.socket]]:
    """Wait for the other hosts and tell them of the team; return the lines of their ranks too.

    The connections of the hosts come last: each stays open for as long as its ranks compute.

    Each connection begins with a line that says, with the token of the run, for whom it is: a host,
    which is told of the team, or a rank, which gets a line for each step.
    """
    address = os.environ["MASTER_ADDR"]
    with _listening(address, int(os.environ["MASTER_PORT"])) as listener:
        store = torch.distributed.TCPStore(
            address, 0, is_master=True, wait_for_workers=False, timeout=_LIMIT
        )
        team = team._replace(store=f"{address}:{store.port}", interface=interface_of(address))
        hosts = _accepted(listener, [f"host {host}" for host in range(1, len(team.parts))])
        for host in hosts:
            host.sendall(json.dumps(team._asdict()).encode() + b"\n")
        ranks = _accepted(listener, [f"rank {rank}" for part in team.parts[1:] for rank in part])
    return team, store, [connection.makefile("wb") for connection in ranks], hosts


def _listening(address: str, port: int) -> socket.socket:
    try:
        return socket.create_server((address, port), backlog=64)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise RuntimeError(
            f"the ranks of other hosts cannot join at {address}, port {port}: {why}; does "
            "this environment have the network of its host?"
        ) from error


def _accepted(listener: socket.socket, wanted: list[str]) -> list[socket.socket]:
    """Return a connection for each of these names; raise RuntimeError where one does not come."""
    token, found = os.environ["ENVCOMPARE_TEAM"], dict[str, socket.socket]()
    deadline = time.monotonic() + _JOIN_LIMIT_S
    while missing := [name for name in wanted if name not in found]:
        listener.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            connection, _ = listener.accept()
            connection.settimeout(1)
            said = connection.recv(200).decode(errors="replace").rstrip("\n").partition(" ")
            connection.settimeout(None)
        except OSError as error:
            if time.monotonic() < deadline:
                continue
            raise RuntimeError(
                f"{missing[0]} did not join within {_JOIN_LIMIT_S:.0f} s: can its host reach "
                f"{os.environ['MASTER_ADDR']}? Its log in the run folder may say more"
            ) from error
        if said[0] == token and said[2] in missing:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found[said[2]] = connection
    return [found[name] for name in wanted]


def interface_of(address: str) -> str:
    """Return the network device of this host that has an IPv4 address; empty where none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                told = fcntl.ioctl(asked, _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(told[20:24]) == socket.gethostbyname(address):
                    return name
    return ""


def join() -> None:
    """Compute along for this host in one generation after another, until standard input ends."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    while True:
        try:
            with _connected(f"host {os.environ['GROUP_RANK']}") as leader:
                told = leader.makefile("rb").readline(_TEAM_BYTES)
                if told:
                    _serve(read_team(told), leader)
        except ConnectionRefusedError:
            pass  # no generation has begun
        except (OSError, RuntimeError) as error:
            sys.stderr.write(f"the ranks of this host cannot join: {error}\n")
            sys.stderr.flush()
            time.sleep(_PAUSE_AFTER_ERROR_S)
        time.sleep(_PAUSE_S)


def read_team(told: bytes) -> Team:
    """Return the team that a leader tells of; raise RuntimeError for what none of ours would tell.

    The leader has proved nothing, and another program may listen in its place: no parameter may
    name a file, whose code would run on this host, and no store may be one.
    """
    try:
        team = Team(**json.loads(told))
        params = resolve(Ddp.PARAMS, team.params)
        require_ranges(params, Ddp.RANGES)
        host, _, port = team.store.rpartition(":")
        ranks = [rank for part in team.parts for rank in part]
        is_sound = (
            (host, port.isdecimal()) == (os.environ["MASTER_ADDR"], True)
            and team.device in {"cpu", "cuda"}
            and sorted(ranks) == list(range(team.params["ranks"]))
        )
    except (AttributeError, KeyError, TypeError, ValueError, ParameterError) as error:
        raise RuntimeError(f"the first rank tells of no team of this workload: {error}") from error
    if not is_sound:
        raise RuntimeError("the first rank tells of another store, device or number of ranks")
    return team


def _serve(team: Team, leader: socket.socket) -> None:
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
        with _connected(f"rank {rank}") as lines:
            ranks.append(start_rank(team, rank, lines))
    for process in ranks:
        process.wait()


def _connected(name: str) -> socket.socket:
    """Connect to the first rank, and say for whom."""
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    connection = socket.create_connection(place, timeout=_JOIN_LIMIT_S)
    connection.settimeout(None)
    connection.sendall(f"{os.environ['ENVCOMPARE_TEAM']} {name}\n".encode())
    return connection


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)  # its ranks end with their connections


if __name__ == "__main__":
    join()
