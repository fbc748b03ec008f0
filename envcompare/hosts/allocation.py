"""Request nodes from Slurm through Parsl's execution provider, measure there, and release them.

One job holds all nodes of a run and all arms of their cells. The nodes are hosts of the run: they
are contacted, and kept while the client lives. The job state that Slurm reports never starts or
ends anything by itself: nodes are ready when they answer, and the job is over when none answers and
Slurm does not list it as alive. Partitions, with their nodes and limits, are read on a login node.
"""

from __future__ import annotations

import math
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envcompare.config.scheduling import PATH, Allocation, Gres, offered_gres
from envcompare.config.settings import AllocationTable
from envcompare.errors import (
    CommandTimeoutError,
    ConfigError,
    InterruptedRunError,
    Interruption,
    TransportError,
    UnusableError,
)
from envcompare.hosts import keeper
from envcompare.run_folder.records import Event
from envcompare.stack.storage import local_cache
from envcompare.text import Command, age_text, closest, counted
from envcompare.transport import (
    LOCAL,
    Drain,
    Process,
    make_folder,
    make_new_folder,
    remove_folder,
    run,
    shell,
)
from envcompare.transport.hosts import (
    STARTED,
    HostSpec,
    InterruptibleTransport,
    SlurmJob,
    SrunTransport,
)

if TYPE_CHECKING:
    from parsl.providers.cluster_provider import ClusterProvider
# More than the longest pause, a roll call and the answer of the keeper take together.
PATIENCE_S: Final = 300
_FIRST_PAUSE_S: Final = 1.0
_TICK_S: Final = 0.2  # how often Ctrl-C is checked
_COMMAND_S: Final = 60  # of Parsl
_END_S: Final = 60.0
_SAY_EVERY_S: Final = 60.0
# Slurm may list a job late.
_MISSING_S: Final = 20.0
_CLAIM: Final = "allocation"  # next to the folders of hosts in that of a run
# A client that dies before taking the nodes must not hold them until the time limit.
_PILOT: Final = """sleep {patience}
if [ -e {kept}"$SLURM_JOB_ID" ]; then exec sleep 2147483647; fi
echo "the nodes did not answer in time: nothing took them within {patience} s" >&2"""
# The step ends with the client, however that ends, and then the job with it.
_KEEP: Final = ': >"$1" || exit; echo kept; cat >/dev/null; exec scancel "$SLURM_JOB_ID"'
_NAMES: Final = 'printf "%s\\n" "$SLURMD_NODENAME"'
# The last message of the job, and its state in Slurm.
_WHY: Final = r"""
cat -- "$1"/*.stderr 2>/dev/null | tail -n 1
scontrol --oneliner show job "$2" 2>/dev/null | grep -o 'JobState=[A-Z_]* Reason=[^ ]*'
"""
_LONGEST_PAUSE_S: Final = 30.0
# A network file system may show a new file late.
_SHARED_S: Final = 30.0
_ANSWER_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of a cluster: its time limit, and what each of its nodes has."""

    name: str
    is_default: bool
    limit: str  # as Slurm prints it: [DAYS-][HH:]MM:SS, or a word if there is no limit
    nodes: tuple[tuple[Gres, ...], ...]

    @property
    def limit_s(self) -> float:
        """Return the longest time of a job."""
        days, _, clock = self.limit.rpartition("-")
        parts = clock.split(":")
        if not all(part.isdecimal() for part in (*parts, days or "0")):
            return math.inf
        hours, minutes, seconds = (0, 0, *map(int, parts))[-3:]
        return float(int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds)

    @property
    def offer(self) -> str:
        """Describe the nodes: "2 nodes, up to gpu:a100:4 each"."""
        most = max(self.nodes, key=lambda node: sum(gres.count for gres in node))
        each = f", up to {','.join(map(str, most))} each" if most else ", without GRES"
        return counted(len(self.nodes), "node") + each

    def has_room(self, allocation: Allocation) -> bool:
        """Return whether enough nodes have the requested resources."""
        wanted = allocation.gres
        fitting = [node for node in self.nodes if wanted is None or wanted.is_met_by(node)]
        return len(fitting) >= allocation.nodes


def partitions() -> tuple[Partition, ...]:
    """Return the partitions of the cluster that this machine is a login node of.

    Raises UnusableError if there is none.
    """
    argv = ("sinfo", "--noheader", "--Node", "--format=%P|%l|%G")
    listing = run(LOCAL, Command(argv=argv))
    lines = [line.split("|", 2) for line in listing.stdout.splitlines() if line.count("|") > 1]
    if not (listing.succeeded and lines):
        raise UnusableError(
            "Slurm does not answer on this machine",
            details=listing.tail(1) or "it lists no partition",
            hint="run envcompare on a login node of the cluster",
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


def _check_partition(allocation: Allocation, table: AllocationTable) -> None:
    """Refuse what the partition does not have; raises as `allocation.check_available`."""
    partition = _chosen(table.partition)
    if allocation.time_s > partition.limit_s:
        raise ConfigError(
            f"--allocation time={table.time} is longer than the partition allows",
            details=f"a job in {partition.name} may last {partition.limit}",
            hint="request less time, or another partition (`sinfo -o '%R %l'`)",
        )
    if not partition.has_room(allocation):
        raise ConfigError(
            f"--allocation: the partition {partition.name} does not have {allocation.wish}",
            details=f"it has {partition.offer}",
            hint="request fewer nodes or GPUs, or another partition (`sinfo -o '%R %D %G'`)",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a run requests; `nodes` and `jobs` are those of its earlier parts.

    `note_job` is called with the job once it is submitted.
    """

    allocation: Allocation
    run_id: str
    nodes: tuple[str, ...]
    jobs: tuple[SlurmJob, ...]
    interruption: Interruption
    say: Callable[[str], None]
    note_job: Callable[[SlurmJob], None]

    @property
    def leftovers(self) -> str:
        """Return the folder of the run in the cache that the nodes share with this machine."""
        return _folder(self.run_id)

    @property
    def script_dir(self) -> str:
        """Return the folder of the job's script and its output."""
        table = self.allocation.request
        chosen = table.script_dir if table else None
        return f"{chosen}/envcompare-{self.run_id}" if chosen else self.claim

    @property
    def claim(self) -> str:
        """Return the folder whose claim keeps a `clean` away while this client lives."""
        return f"{self.leftovers}/{_CLAIM}"

    def job(self, number: str) -> SlurmJob:
        """Return a job of this run by its number."""
        return SlurmJob(id=number, on_loss=self.lose)

    def lose(self, why: str) -> None:
        """Report that the job ended too early, and end the run as interrupted."""
        self.say(f"the allocation has ended: {why}; the run ends as interrupted")
        if not self.interruption.is_requested:
            self.interruption.request()

    def kept(self, job: str = "") -> str:
        """Return the file that shows a job that this client has taken its nodes."""
        return f"{self.script_dir}/kept-{job}"


@contextmanager
def submitted(request: Request, pilot: str) -> Iterator[SlurmJob]:
    """Submit a job that runs `pilot`, and cancel it at the end.

    Raises UnusableError if Slurm does not accept it.
    """
    _cancel_left(request.run_id, request.jobs)
    claim = _claimed(request)
    try:
        provider, number = _asked(request, pilot)
    except BaseException:
        _remove_folders(request)
        claim.kill()
        raise
    job = request.job(number)
    try:
        request.note_job(job)
        request.say(f"requested {request.allocation.wish} from Slurm: job {job.id}")
        yield job
    finally:
        _give_back(job, provider, request)
        claim.kill()


def check_available(allocation: Allocation | None) -> None:
    """Refuse what the cluster does not have, before anything is submitted.

    Raises ConfigError for an unknown partition, too long a time, and missing nodes or GPUs;
    UnusableError if Parsl or Slurm is missing.
    """
    table = allocation.request if allocation else None
    if allocation is None or table is None:
        return
    try:
        import parsl.providers  # noqa: F401, PLC0415 — slow to import, and optional
    except ImportError as error:
        raise UnusableError(
            "--allocation needs Parsl, which is not installed",
            details=str(error),
            hint="pip install '.[allocation]' in a clone of envcompare",
        ) from error
    if not (table.script_dir or PATH.fullmatch(str(local_cache()))):
        raise ConfigError(
            f"the job's script cannot use the path {local_cache()}",
            hint="give a path of letters, digits and _.:@+- with script-dir",
        )
    _check_partition(allocation, table)


def jobs_of(events: Iterable[Event]) -> tuple[SlurmJob, ...]:
    """Return the jobs that a run submitted or was measured in."""
    named = (e.values for e in events if e.what in {"submitted", "allocated"})
    numbers = dict.fromkeys(str(each.get("job", "")) for each in named)
    return tuple(SlurmJob(id=number, on_loss=lambda _: None) for number in numbers)


def forget(run_id: str, jobs: tuple[SlurmJob, ...]) -> None:
    """Cancel the jobs of a run whose client was killed, and remove its files from the cache.

    Raises UnusableError while its client lives, or if a job remains.
    """
    for claim in keeper.survey(LOCAL, str(local_cache())):
        if (claim.run_id, claim.host, claim.state) == (run_id, _CLAIM, "live"):
            raise keeper.refusal(claim, "this machine")
    _cancel_left(run_id, jobs)
    for job in jobs:
        if job.state():
            raise UnusableError(
                f"the run {run_id} may still be measuring in job {job.id}",
                hint=f"wait, or end it with: {' '.join(job.ending)}",
            )
    remove_folder(LOCAL, _folder(run_id))


def _cancel_left(run_id: str, jobs: tuple[SlurmJob, ...]) -> None:
    """Cancel jobs of a killed client, found by their name too, and wait for their end.

    Raises TransportError if Slurm does not answer.
    """
    for job in jobs:
        if job.state(name=_job_name(run_id)):
            run(LOCAL, Command(argv=job.ending))
            _has_ended(job)


def _job_name(run_id: str) -> str:
    return f"envcompare-{run_id}"


def _folder(run_id: str) -> str:
    return str(local_cache() / "runs" / run_id)


def _provider(request: Request) -> ClusterProvider:
    """Return Parsl's provider for the request; the user chooses whether nodes are shared.

    Providers of other schedulers would be chosen here, by the request's `scheduler`.
    """
    from parsl.launchers import SimpleLauncher  # noqa: PLC0415 — slow to import, and optional
    from parsl.providers import SlurmProvider  # noqa: PLC0415

    table = request.allocation.request
    assert table is not None
    options = {"no-requeue": "", "gres": table.gres, "nodelist": ",".join(request.nodes) or None}
    lines = [
        f"#SBATCH --{name}" + f"={value}" * bool(value)
        for name, value in options.items()
        if value is not None
    ]
    # The resolution of a time limit is a minute, and Slurm rounds seconds up too (sbatch(1)).
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
        cmd_timeout=_COMMAND_S,
    )
    provider.script_dir = request.script_dir
    return provider


def _claimed(request: Request) -> Process:
    """Create the folders again and claim them: `clean` would remove those of a queued run."""
    if request.script_dir == request.claim:
        make_folder(LOCAL, request.leftovers)
    make_new_folder(LOCAL, request.script_dir)
    return keeper.hold(LOCAL, request.claim)


def _asked(request: Request, pilot: str) -> tuple[ClusterProvider, str]:
    """Submit the job through a provider, and return both; raises UnusableError on failure."""
    from parsl.providers.errors import SubmitException  # noqa: PLC0415 — as above

    try:
        provider = _provider(request)
        return provider, str(provider.submit(pilot, 1, job_name=_job_name(request.run_id)))
    except SubmitException as error:
        said = (error.stderr or error.stdout or str(error)).split("\n")
        lines = [line.strip() for line in said if line.strip()]
        raise UnusableError(
            "Slurm does not accept the job",
            details=lines[-1] if lines else "no message",
            hint="change --allocation; `sinfo` and `sacctmgr show assoc` list limits",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UnusableError(
            "Slurm does not answer",
            details=f"`{error.cmd}` did not end within {error.timeout:g} s",
            hint="try again later; a submitted job (`squeue --me`) ends by itself "
            f"within {PATIENCE_S} s of its start",
        ) from error


def state_of(job: SlurmJob) -> str | None:
    """Return the state of a job, empty if it is gone; None if Slurm does not answer."""
    try:
        return job.state()
    except TransportError:
        return None


@dataclass(slots=True)
class Watch:
    """What Slurm reports about a job in the queue."""

    job: SlurmJob
    began: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)
    state: str | None = None  # the last known; None if Slurm did not answer
    was_listed: bool = False

    def ask(self) -> str | None:
        """Return the state, empty if the job is not listed; None if Slurm does not answer."""
        self.state = state_of(self.job)
        self.was_listed = self.was_listed or bool(self.state)
        return self.state

    @property
    def is_gone(self) -> bool:
        """Return whether the job is no longer listed, or never was."""
        is_late = time.monotonic() - self.began > _MISSING_S
        return self.state == "" and (self.was_listed or is_late)

    def tell(self, request: Request) -> None:
        """Report now and then that the job is waiting."""
        now = time.monotonic()
        if now - self.said > _SAY_EVERY_S:
            self.said = now
            waited = age_text(now - self.began)
            what = "has been in the queue for"
            if self.state in STARTED:
                what = "has nodes that do not answer yet, after"
            request.say(f"job {self.job.id} {what} {waited}")


def _has_ended(job: SlurmJob) -> bool:
    """Wait until Slurm no longer lists the job; False if that takes too long."""
    until = time.monotonic() + _END_S
    while not (is_gone := state_of(job) == "") and time.monotonic() < until:
        time.sleep(_FIRST_PAUSE_S)
    return is_gone


def pause(request: Request, pause_s: float) -> None:
    """Wait for `pause_s`; raises InterruptedRunError if the user stops."""
    # A host that shares the cache can judge the claim only by its age.
    keeper.refresh(request.claim)
    until = time.monotonic() + pause_s
    while time.monotonic() < until:
        _check_stop(request)
        time.sleep(_TICK_S)


def _check_stop(request: Request) -> None:
    """Raise InterruptedRunError if the user stops before anything is measured."""
    if request.interruption.is_requested:
        what = "" if request.allocation.job else "the job was cancelled; "
        raise InterruptedRunError(
            "the run was interrupted before it had nodes",
            details=f"{what}this part of the run measured nothing",
            hint="start the run again, or continue it with --resume",
        )


def _give_back(job: SlurmJob, provider: ClusterProvider, request: Request) -> None:
    """Cancel the job, wait until it is gone, and remove the run's files from the cache."""
    # Whether the job is gone is asked next, so that no answer to the cancellation is needed.
    with suppress(subprocess.TimeoutExpired):
        provider.cancel([job.id])
    if _has_ended(job):
        _remove_folders(request)
    else:
        command = " ".join(job.ending)
        request.say(f"job {job.id} may still hold its nodes; cancel it with: {command}")


def _remove_folders(request: Request) -> None:
    for folder in (request.script_dir, request.leftovers):
        remove_folder(LOCAL, folder)


@contextmanager
def granted(request: Request, hosts: tuple[HostSpec, ...]) -> Iterator[tuple[HostSpec, ...]]:
    """Yield the hosts as nodes of a job, and return the job to the scheduler at the end.

    Raises UnusableError if it is not granted, and InterruptedRunError if the user stops.
    """
    if request.allocation.job:
        around = request.job(request.allocation.job)
        yield _placed(hosts, around, _roll_call(around, len(hosts), request), request)
        return
    keeper: Process | None = None
    pilot = _PILOT.format(patience=PATIENCE_S, kept=shlex.quote(request.kept()))
    with submitted(request, pilot) as job:
        try:
            nodes = _await_nodes(job, request)
            keeper = _keep(job, nodes[0], request)
            yield _placed(hosts, job, nodes, request)
        finally:
            if keeper is not None:
                # The job ends with its keeper, in addition to `scancel`.
                with suppress(OSError):
                    keeper.stdin.close()


def _await_nodes(job: SlurmJob, request: Request) -> tuple[str, ...]:
    """Wait in the queue until all nodes answer, and return their names.

    Raises UnusableError if the job is gone, and InterruptedRunError if the user stops.
    """
    watch, pause_s = Watch(job), _FIRST_PAUSE_S
    while True:
        pause(request, pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        state = watch.ask()
        if state in STARTED:
            with suppress(TransportError, CommandTimeoutError):
                # Slurm may list the job as running before all of its nodes answer.
                return _roll_call(job, request.allocation.nodes, request)
        if watch.is_gone:
            raise _not_granted(job, request)
        watch.tell(request)


def _comes_true(condition: Callable[[], bool], request: Request, within_s: float) -> bool:
    """Return whether the condition holds in time; raises InterruptedRunError if the user stops."""
    until = time.monotonic() + within_s
    while not (is_true := condition()) and time.monotonic() < until:
        pause(request, _TICK_S)
    return is_true


def _not_granted(job: SlurmJob, request: Request) -> UnusableError:
    said = shell(LOCAL, _WHY, request.script_dir, job.id).stdout.split("\n")
    return UnusableError(
        f"job {job.id} ended before its nodes could be used",
        details="; ".join(line.strip() for line in said if line.strip())
        or "Slurm no longer lists it, and it left no message",
        hint=f"check that all nodes share {request.script_dir}, or set script-dir",
    )


def _roll_call(job: SlurmJob, count: int, request: Request) -> tuple[str, ...]:
    """Return the names of a job's nodes, as each node reports its own.

    Raises TransportError if not all answer, CommandTimeoutError if that takes too long, and
    InterruptedRunError if the user stops.
    """
    asked = InterruptibleTransport(LOCAL, request.interruption, ends_at_once=True)
    answer = run(asked, job.step("/bin/sh", "-c", _NAMES, nodes=count))
    # A command that the user has killed has no answer.
    _check_stop(request)
    names = sorted(answer.stdout.split())
    if not answer.succeeded or len(names) != count:
        raise TransportError(
            f"{len(names)} of {count} nodes of job {job.id} answer",
            details=answer.tail(1) or "no message",
            hint=f"see `scontrol show job {job.id}`",
        )
    return tuple(names)


def _keep(job: SlurmJob, node: str, request: Request) -> Process:
    """Keep the job alive as long as this client.

    Raises UnusableError if that fails, TransportError if the node does not answer, and
    InterruptedRunError if the user stops.
    """
    kept = request.kept(job.id)
    step = Command(argv=("/bin/sh", "-c", _KEEP, "sh", kept))
    transport = SrunTransport(node, job, node)
    keeper = transport.spawn(step)
    said, errors = Drain(keeper.stdout), Drain(keeper.stderr)
    try:
        ends = _comes_true(lambda: bool(said.text() or not said.is_alive()), request, _ANSWER_S)
        if said.text() and _comes_true(Path(kept).exists, request, _SHARED_S):
            return keeper
    except BaseException:
        keeper.kill()
        raise
    keeper.kill()
    state, complaint = state_of(job), errors.last_line()
    # The job ended after the node had answered.
    if state is not None and state not in STARTED:
        raise _not_granted(job, request)
    if not said.text() and kept not in complaint:
        if ends:
            transport.require_alive("the step that keeps the job")
        raise TransportError(
            f"{node} of job {job.id} " + ("gave no answer" if ends else "did not answer in time"),
            details=complaint or "no message",
            hint=f"see `scontrol show job {job.id}`, and start the run again",
        )
    raise UnusableError(
        f"{request.script_dir} is not shared between this machine and {node}",
        details=complaint or "files that the node writes there are not visible here",
        hint="set script-dir to a shared folder",
    )


def _placed(
    hosts: tuple[HostSpec, ...], job: SlurmJob, nodes: tuple[str, ...], request: Request
) -> tuple[HostSpec, ...]:
    """Return the hosts of the plan as nodes; a resumed run keeps its assignment.

    Raises ConfigError if the job has other nodes: a cell belongs to one machine.
    """
    if request.nodes and set(request.nodes) != set(nodes):
        before = ",".join(request.nodes)
        raise ConfigError(
            f"job {job.id} has other nodes than the run",
            details=f"the run began on {before}, and the job has {','.join(nodes)}",
            hint="request the same nodes, or start a new run",
        )
    pairs = tuple(zip(hosts, request.nodes or nodes, strict=True))
    request.say(", ".join(f"{host.label} is {node}" for host, node in pairs) + f" of job {job.id}")
    return tuple(replace(host, job=job, node=node) for host, node in pairs)
