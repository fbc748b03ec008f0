"""Ask a scheduler for nodes, by Parsl's execution providers, and give them back in every case.

One job holds all nodes of a run, and all arms of their cells; it only waits while steps of it are
measured. What the scheduler says of its state starts nothing and ends nothing by itself: nodes are
there when they answer, and the job is over when none does and it is not listed as living.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envcompare.command import Command
from envcompare.config.scheduling import PATH, Allocation, Gres, offered_gres
from envcompare.config.settings import AllocationTable, closest
from envcompare.errors import (
    CommandTimeoutError,
    ConfigError,
    InterruptedRunError,
    TransportError,
    UnusableError,
)
from envcompare.interrupt import Interruption
from envcompare.stack.cache import local_cache
from envcompare.text import age_text, counted
from envcompare.transport import Process, make_folder, remove_folder, run, shell
from envcompare.transport.hosts import HostSpec
from envcompare.transport.local import LOCAL
from envcompare.transport.srun import SlurmJob, SrunTransport

if TYPE_CHECKING:
    from parsl.providers import SlurmProvider

_EXTRA: Final = "envcompare-bench[allocation]"
# A client that is gone before it has taken the nodes must not hold them until their time is over.
_PILOT: Final = "sleep {patience}; if [ -e {kept} ]; then exec sleep 2147483647; fi"
# The step ends with the client, however that ends, and then the job with it.
_KEEP: Final = ': >"$1" || exit; echo kept; cat >/dev/null; exec scancel "$SLURM_JOB_ID"'
_NAMES: Final = 'printf "%s\\n" "$SLURMD_NODENAME"'
_WHY: Final = r"""
cat -- "$1"/*.stderr 2>/dev/null | tail -n 1
scontrol --oneliner show job "$2" 2>/dev/null | grep -o 'JobState=[A-Z_]* Reason=[^ ]*'
:
"""
_PATIENCE_S: Final = 90
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_TICK_S: Final = 0.2  # in which Ctrl-C is noticed
_SAY_EVERY_S: Final = 60.0
_MISSING_S: Final = 20.0  # a job may be listed late
_SHARED_S: Final = 30.0  # a network file system may show a new file late
_END_S: Final = 60.0
_ANSWER_BYTES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a run asks for; `nodes` are those that an earlier part of it was measured on."""

    allocation: Allocation
    run_id: str
    nodes: tuple[str, ...]
    interruption: Interruption
    say: Callable[[str], None]

    @property
    def leftovers(self) -> str:
        """Return the folder of the run in the cache that the nodes share with this machine."""
        return _folder(self.run_id)

    @property
    def script_dir(self) -> str:
        """Return the folder of the job's script and its output."""
        table = self.allocation.request
        chosen = table.script_dir if table else None
        return f"{chosen}/envcompare-{self.run_id}" if chosen else f"{self.leftovers}/allocation"

    @property
    def kept(self) -> str:
        """Return the file by which the job sees that this client has taken its nodes."""
        return f"{self.script_dir}/kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of a cluster: the longest time, and what each of its nodes has."""

    name: str
    is_default: bool
    limit: str  # as Slurm writes it
    nodes: tuple[tuple[Gres, ...], ...]

    @property
    def limit_s(self) -> float:
        """Return the longest time of a job; [DAYS-][HH:]MM:SS, or a word where there is none."""
        days, _, clock = self.limit.rpartition("-")
        parts = clock.split(":")
        if not all(part.isdecimal() for part in (*parts, days or "0")):
            return math.inf
        hours, minutes, seconds = (0, 0, *map(int, parts))[-3:]
        return float(int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds)

    @property
    def offer(self) -> str:
        """Say what it has: "2 nodes, up to gpu:a100:4 each"."""
        most = max(self.nodes, key=lambda node: sum(gres.count for gres in node))
        each = f", up to {','.join(map(str, most))} each" if most else ", without GRES"
        return counted(len(self.nodes), "node") + each

    def has_room(self, allocation: Allocation) -> bool:
        """Tell whether so many of its nodes have what is asked for."""
        wanted = allocation.gres
        fitting = [
            node for node in self.nodes if all(any(g.holds(w) for g in node) for w in wanted)
        ]
        return len(fitting) >= allocation.nodes


@contextmanager
def granted(request: Request, hosts: tuple[HostSpec, ...]) -> Iterator[tuple[HostSpec, ...]]:
    """Give the hosts as nodes of a job, and the job back to the scheduler at the end.

    Raises UnusableError where it is not granted, and InterruptedRunError when the user stops
    meanwhile.
    """
    if request.allocation.job:
        job = SlurmJob(id=request.allocation.job, on_loss=_on_loss(request))
        yield _placed(hosts, job, _roll_call(job, len(hosts)), request)
        return
    make_folder(LOCAL, request.script_dir)
    provider = _provider(request)
    job = SlurmJob(id=_submitted(provider, request), on_loss=_on_loss(request))
    keeper: Process | None = None
    try:
        nodes = _await_nodes(job, provider, request)
        keeper = _keep(job, nodes[0], request)
        yield _placed(hosts, job, nodes, request)
    finally:
        _end_keeper(keeper)
        _give_back(job, provider, request)


def partitions() -> tuple[Partition, ...]:
    """Return the partitions of the cluster that this machine is a login node of.

    Raises UnusableError where there is none.
    """
    argv = ("sinfo", "--noheader", "--Node", "--format=%P|%l|%G")
    listing = run(LOCAL, Command(argv=argv))
    lines = [line.split("|", 2) for line in listing.stdout.splitlines() if line.count("|") > 1]
    if not (listing.succeeded and lines):
        raise UnusableError(
            "Slurm does not answer on this machine",
            details=listing.tail(1) or "it lists no partition",
            hint="run envcompare on a login node of the cluster, where `sinfo` lists partitions",
        )
    limits = {name: limit for name, limit, _ in lines}
    return tuple(
        Partition(
            name=name.rstrip("*"),
            is_default=name.endswith("*"),
            limit=limit,
            nodes=tuple(offered_gres(gres) for each, _, gres in lines if each == name),
        )
        for name, limit in limits.items()
    )


def check_available(allocation: Allocation) -> None:
    """Refuse what the cluster does not have, before anything is submitted.

    Raises ConfigError for an unknown partition, for a time that it does not allow, and for nodes
    or GPUs that it does not have; UnusableError where Parsl or Slurm is missing.
    """
    table = allocation.request
    if table is None:
        return
    _require_parsl()
    if not (table.script_dir or PATH.fullmatch(str(local_cache()))):
        raise ConfigError(
            f"the path {local_cache()} holds characters that the job's script cannot",
            hint="name another folder that the nodes share with the key script-dir",
        )
    partition = _chosen(table.partition)
    if allocation.time_s > partition.limit_s:
        raise ConfigError(
            f"--allocation time={table.time} is longer than the partition allows",
            details=f"a job in {partition.name} may last {partition.limit}",
            hint="ask for less time, or for another partition; `sinfo -o '%R %l'` lists limits",
        )
    if not partition.has_room(allocation):
        raise ConfigError(
            f"--allocation: the partition {partition.name} does not have {_wish(table)}",
            details=f"it has {partition.offer}",
            hint="ask for fewer nodes or GPUs, or for another partition; `sinfo -o '%R %D %G'` "
            "lists them",
        )


def _chosen(name: str | None) -> Partition:
    known = partitions()
    for partition in known:
        if partition.name == name or (name is None and partition.is_default):
            return partition
    names = tuple(partition.name for partition in known)
    if name is None:
        raise ConfigError("--allocation names no partition", hint=f"known: {', '.join(names)}")
    raise ConfigError(f"--allocation: unknown partition `{name}`", hint=closest(name, names))


def forget(run_id: str, job: str) -> None:
    """Remove what a run whose client was killed left in the cache that the nodes share.

    Raises UnusableError while its job is there: it ends with its client.
    """
    if SlurmJob(id=job, on_loss=lambda _: None).is_listed():
        raise UnusableError(
            f"the run {run_id} may still be measuring: its job {job} is there",
            details="the job ends by itself when its client does",
            hint=f"wait, or end it with: scancel {job}",
        )
    remove_folder(LOCAL, _folder(run_id))


def _folder(run_id: str) -> str:
    return str(local_cache() / "runs" / run_id)


def _wish(table: AllocationTable) -> str:
    of_each = f" with gres={table.gres}" if table.gres else ""
    return f"{table.nodes} nodes{of_each}" if table.nodes > 1 else f"a node{of_each}"


def _require_parsl() -> None:
    try:
        import parsl.providers  # noqa: F401, PLC0415 — slow to import, and optional
    except ImportError as error:
        raise UnusableError(
            "--allocation needs Parsl, which is not installed",
            details=str(error),
            hint=f"pip install '{_EXTRA}'",
        ) from error


def _provider(request: Request) -> SlurmProvider:
    """Return Parsl's provider for the request; the user chooses whether nodes are shared."""
    from parsl.launchers import SimpleLauncher  # noqa: PLC0415 — slow to import, and optional
    from parsl.providers import SlurmProvider  # noqa: PLC0415

    table = _table(request)
    options = {"no-requeue": "", "gres": table.gres, "nodelist": ",".join(request.nodes) or None}
    lines = [
        f"#SBATCH --{name}" + f"={value}" * bool(value)
        for name, value in options.items()
        if value is not None
    ]
    minutes = int(-(-request.allocation.time_s // 60))
    provider = SlurmProvider(
        partition=table.partition,
        account=table.account,
        qos=table.qos,
        constraint=table.constraint,
        nodes_per_block=table.nodes,
        cores_per_node=table.cpus,
        mem_per_node=table.mem_gb,
        walltime=f"{minutes // 60:02}:{minutes % 60:02}:00",
        scheduler_options="\n".join(lines),
        exclusive=table.exclusive,
        launcher=SimpleLauncher(),
        cmd_timeout=60,
    )
    provider.script_dir = request.script_dir
    return provider


def _submitted(provider: SlurmProvider, request: Request) -> str:
    from parsl.providers.errors import SubmitException  # noqa: PLC0415 — as above

    pilot = _PILOT.format(patience=_PATIENCE_S, kept=shlex.quote(request.kept))
    try:
        job = str(provider.submit(pilot, 1, job_name="envcompare"))
    except SubmitException as error:
        remove_folder(LOCAL, request.script_dir)
        raise UnusableError(
            "Slurm does not accept the job",
            details=(error.stderr or error.stdout or str(error)).strip().splitlines()[-1],
            hint="change what --allocation asks for; `sinfo` and `sacctmgr show assoc` list limits",
        ) from error
    request.say(f"asked Slurm for {_wish(_table(request))}: job {job}")
    return job


def _table(request: Request) -> AllocationTable:
    assert request.allocation.request is not None
    return request.allocation.request


def _await_nodes(job: SlurmJob, provider: SlurmProvider, request: Request) -> tuple[str, ...]:
    """Wait in the queue until all nodes answer, and return their names.

    Raises UnusableError where the job is gone, and InterruptedRunError when the user stops.
    """
    began = said = time.monotonic()
    pause_s = _FIRST_PAUSE_S
    while True:
        _pause(request, pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        status = provider.status([job.id])[0]
        if status.state.name not in {"PENDING", "HELD"}:  # one that was missing once is COMPLETED
            with suppress(TransportError, CommandTimeoutError):
                return _roll_call(job, request.allocation.nodes)
        now = time.monotonic()
        if (status.terminal or now - began > _MISSING_S) and _is_gone(job):
            raise _not_granted(job, request)
        if now - said > _SAY_EVERY_S:
            said = now
            request.say(f"job {job.id} waits in the queue, for {age_text(now - began)} so far")


def _is_gone(job: SlurmJob) -> bool:
    """Tell whether Slurm answers, and does not list the job."""
    try:
        return not job.is_listed()
    except TransportError:
        return False


def _pause(request: Request, pause_s: float) -> None:
    until = time.monotonic() + pause_s
    while time.monotonic() < until:
        if request.interruption.is_requested:
            raise InterruptedRunError(
                "the run was interrupted before it had its nodes",
                details="the job was taken back; nothing was measured in this part of the run",
                hint="start the run again, or continue it with --resume",
            )
        time.sleep(_TICK_S)


def _not_granted(job: SlurmJob, request: Request) -> UnusableError:
    said = shell(LOCAL, _WHY, request.script_dir, job.id).stdout.split("\n")
    return UnusableError(
        f"job {job.id} ended before its nodes could be used",
        details="; ".join(line.strip() for line in said if line.strip())
        or "Slurm does not know it any more, and it left no message",
        hint=f"if nobody cancelled it, check that {request.script_dir} is on a file system that "
        "the nodes share, or choose one with the key script-dir",
    )


def _roll_call(job: SlurmJob, count: int) -> tuple[str, ...]:
    """Return the names of the nodes of a job as each of them says; raises TransportError."""
    answer = run(LOCAL, job.step("/bin/sh", "-c", _NAMES, nodes=count))
    names = sorted(answer.stdout.split())
    if not answer.succeeded or len(names) != count:
        raise TransportError(
            f"of {count} nodes of job {job.id}, {len(names)} answer",
            details=answer.tail(1) or "the others gave no message",
            hint=f"see `scontrol show job {job.id}`",
        )
    return tuple(names)


def _keep(job: SlurmJob, node: str, request: Request) -> Process:
    """Let the job live as long as this client does; raises UnusableError where it cannot."""
    keeper = SrunTransport(node, job, node).spawn(
        Command(argv=("/bin/sh", "-c", _KEEP, "sh", request.kept))
    )
    said = keeper.stdout.readline(_ANSWER_BYTES)
    until = time.monotonic() + _SHARED_S
    while said and not Path(request.kept).exists():
        if time.monotonic() > until:
            said = b""
        time.sleep(_TICK_S)
    if said:
        return keeper
    keeper.kill()
    if _is_gone(job):
        raise _not_granted(job, request)
    raise UnusableError(
        f"{request.script_dir} is not shared between this machine and {node}",
        details="what the node writes there is not seen here",
        hint="name a folder on a file system that all of them share with the key script-dir",
    )


def _placed(
    hosts: tuple[HostSpec, ...], job: SlurmJob, nodes: tuple[str, ...], request: Request
) -> tuple[HostSpec, ...]:
    """Return the hosts of the plan as nodes, each as before where the run was begun before.

    Raises ConfigError where the job has other nodes than that run: a cell is of one machine.
    """
    if request.nodes and set(request.nodes) != set(nodes):
        before = ",".join(request.nodes)
        raise ConfigError(
            f"job {job.id} has other nodes than the run was begun on",
            details=f"the run was begun on {before}, and the job has {','.join(nodes)}",
            hint=f"ask for the same nodes, with --nodelist={before}, or start a new run",
        )
    pairs = tuple(zip(hosts, request.nodes or nodes, strict=True))
    request.say(", ".join(f"{host.label} is {node}" for host, node in pairs) + f" of job {job.id}")
    return tuple(replace(host, job=job, node=node) for host, node in pairs)


def _on_loss(request: Request) -> Callable[[str], None]:
    def act(why: str) -> None:
        request.say(f"the allocation has ended: {why}; the run ends as interrupted")
        if not request.interruption.is_requested:
            request.interruption.request()

    return act


def _end_keeper(keeper: Process | None) -> None:
    """Let the step end that keeps the job, and the job by it: a second way beside `scancel`."""
    if keeper is not None:
        with suppress(OSError):
            keeper.stdin.close()


def _give_back(job: SlurmJob, provider: SlurmProvider, request: Request) -> None:
    """Cancel the job, wait until it is gone, and remove what is left of the run in the cache."""
    until = time.monotonic() + _END_S
    provider.cancel([job.id])
    while not (is_gone := _is_gone(job)) and time.monotonic() < until:
        time.sleep(_FIRST_PAUSE_S)
    if not is_gone:
        request.say(f"job {job.id} may still hold its nodes; cancel it with: scancel {job.id}")
        return
    for folder in (request.script_dir, request.leftovers):
        remove_folder(LOCAL, folder)
