"""Ask a scheduler for nodes, by Parsl's execution providers, and give them back in every case.

One job holds all nodes of a run, and all arms of their cells; it only waits while steps of it are
measured. What the scheduler says of its state starts nothing and ends nothing by itself: nodes are
there when they answer, and the job is over when none does and it is not listed as living.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envcompare.command import Command
from envcompare.config.scheduling import PATH, Allocation
from envcompare.config.settings import AllocationTable
from envcompare.errors import (
    CommandTimeoutError,
    ConfigError,
    InterruptedRunError,
    TransportError,
    UnusableError,
)
from envcompare.hosts import claims
from envcompare.hosts.partitions import check_partition
from envcompare.interrupt import Interruption
from envcompare.run_folder.records import Event
from envcompare.stack.cache import local_cache
from envcompare.text import age_text
from envcompare.transport import (
    Process,
    make_folder,
    make_new_folder,
    remove_folder,
    run,
    shell,
)
from envcompare.transport.hosts import HostSpec, InterruptibleTransport
from envcompare.transport.local import LOCAL
from envcompare.transport.srun import STARTED, SlurmJob, SrunTransport
from envcompare.transport.streams import Drain

if TYPE_CHECKING:
    from parsl.providers import SlurmProvider

_EXTRA: Final = "envcompare-bench[allocation]"
# A client that is gone before it has taken the nodes must not hold them until their time is over.
_PILOT: Final = """sleep {patience}
if [ -e {kept}"$SLURM_JOB_ID" ]; then exec sleep 2147483647; fi
echo "the nodes did not answer in time: nothing took them within {patience} s" >&2"""
# The step ends with the client, however that ends, and then the job with it.
_KEEP: Final = ': >"$1" || exit; echo kept; cat >/dev/null; exec scancel "$SLURM_JOB_ID"'
_NAMES: Final = 'printf "%s\\n" "$SLURMD_NODENAME"'
_WHY: Final = r"""
cat -- "$1"/*.stderr 2>/dev/null | tail -n 1
scontrol --oneliner show job "$2" 2>/dev/null | grep -o 'JobState=[A-Z_]* Reason=[^ ]*'
:
"""
_PATIENCE_S: Final = 300  # more than the longest pause, a roll call and the answer of the keeper
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_TICK_S: Final = 0.2  # in which Ctrl-C is noticed
_SAY_EVERY_S: Final = 60.0
_MISSING_S: Final = 20.0  # a job may be listed late
_SHARED_S: Final = 30.0  # a network file system may show a new file late
_ANSWER_S: Final = 60.0
_COMMAND_S: Final = 60  # of Parsl
_END_S: Final = 60.0
_CLAIM: Final = "allocation"  # among the folders of hosts in that of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a run asks for; `nodes` and `jobs` are those of earlier parts of it.

    `note_job` is called with the number of the job once it is submitted.
    """

    allocation: Allocation
    run_id: str
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]
    interruption: Interruption
    say: Callable[[str], None]
    note_job: Callable[[str], None]

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
        """Return the folder whose claim keeps a `clean` away as long as this client lives."""
        return f"{self.leftovers}/{_CLAIM}"

    def kept(self, job: str = "") -> str:
        """Return the file by which a job sees that this client has taken its nodes."""
        return f"{self.script_dir}/kept-{job}"


@contextmanager
def granted(request: Request, hosts: tuple[HostSpec, ...]) -> Iterator[tuple[HostSpec, ...]]:
    """Give the hosts as nodes of a job, and the job back to the scheduler at the end.

    Raises UnusableError where it is not granted, and InterruptedRunError when the user stops
    meanwhile.
    """
    if request.allocation.job:
        job = SlurmJob(id=request.allocation.job, on_loss=_on_loss(request))
        yield _placed(hosts, job, _roll_call(job, len(hosts), request), request)
        return
    job, provider, claim = _submitted(request)
    keeper: Process | None = None
    try:
        request.note_job(job.id)
        request.say(f"asked Slurm for {request.allocation.wish}: job {job.id}")
        nodes = _await_nodes(job, request)
        keeper = _keep(job, nodes[0], request)
        yield _placed(hosts, job, nodes, request)
    finally:
        _end_keeper(keeper)
        _give_back(job, provider, request)
        claim.kill()


def check_available(allocation: Allocation | None) -> None:
    """Refuse what the cluster does not have, before anything is submitted.

    Raises ConfigError for an unknown partition, for a time that it does not allow, and for nodes
    or GPUs that it does not have; UnusableError where Parsl or Slurm is missing.
    """
    table = allocation.request if allocation else None
    if allocation is None or table is None:
        return
    _require_parsl()
    if not (table.script_dir or PATH.fullmatch(str(local_cache()))):
        raise ConfigError(
            f"the path {local_cache()} holds characters that the job's script cannot",
            hint="name another folder that the nodes share with the key script-dir",
        )
    check_partition(allocation, table)


def jobs_of(events: Iterable[Event]) -> tuple[str, ...]:
    """Return the jobs that a run asked for or was measured in."""
    jobs = (str(e.values.get("job", "")) for e in events if e.what in {"submitted", "allocated"})
    return tuple(dict.fromkeys(jobs))


def forget(run_id: str, jobs: tuple[str, ...]) -> None:
    """Cancel the jobs of a run whose client was killed, and remove what it left in the cache.

    Raises UnusableError while its client lives, and where a job of it stays.
    """
    for claim in claims.survey(LOCAL, str(local_cache())):
        if (claim.run_id, claim.host, claim.state) == (run_id, _CLAIM, "live"):
            raise claims.refusal(claim, "this machine")
    _cancel_left(run_id, jobs)
    for job in map(_job, jobs):
        if job.state():
            raise UnusableError(
                f"the run {run_id} may still be measuring: its job {job.id} is there",
                details="envcompare did not submit it, or it does not end",
                hint=f"wait, or end it with: scancel {job.id}",
            )
    remove_folder(LOCAL, _folder(run_id))


def _cancel_left(run_id: str, jobs: tuple[str, ...]) -> None:
    """Cancel jobs that a client which was killed left, by their name too, and await their end.

    Raises TransportError where Slurm does not answer.
    """
    for job in map(_job, jobs):
        if job.state(name=_job_name(run_id)):
            run(LOCAL, Command(argv=("scancel", job.id)))
            _has_ended(job)


def _job(number: str) -> SlurmJob:
    return SlurmJob(id=number, on_loss=lambda _: None)


def _job_name(run_id: str) -> str:
    return f"envcompare-{run_id}"


def _folder(run_id: str) -> str:
    return str(local_cache() / "runs" / run_id)


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
        cmd_timeout=_COMMAND_S,
    )
    provider.script_dir = request.script_dir
    return provider


def _submitted(request: Request) -> tuple[SlurmJob, SlurmProvider, Process]:
    """Return the job, who submitted it, and the claim; where that fails nothing of it is left."""
    _cancel_left(request.run_id, request.jobs)
    claim = _claimed(request)
    try:
        provider, number = _asked(request)
    except BaseException:
        _remove_folders(request)
        claim.kill()
        raise
    return SlurmJob(id=number, on_loss=_on_loss(request)), provider, claim


def _claimed(request: Request) -> Process:
    """Make the folders anew, and claim them: `clean` would remove those of a run in the queue."""
    if request.script_dir == request.claim:
        make_folder(LOCAL, request.leftovers)
    make_new_folder(LOCAL, request.script_dir)
    return claims.hold(LOCAL, request.claim)


def _asked(request: Request) -> tuple[SlurmProvider, str]:
    """Submit the job by a provider, and return both; raises UnusableError where Slurm does not."""
    from parsl.providers.errors import SubmitException  # noqa: PLC0415 — as above

    pilot = _PILOT.format(patience=_PATIENCE_S, kept=shlex.quote(request.kept()))
    try:
        provider = _provider(request)
        return provider, str(provider.submit(pilot, 1, job_name=_job_name(request.run_id)))
    except SubmitException as error:
        raise UnusableError(
            "Slurm does not accept the job",
            details=(error.stderr or error.stdout or str(error)).strip().splitlines()[-1],
            hint="change what --allocation asks for; `sinfo` and `sacctmgr show assoc` list limits",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UnusableError(
            "Slurm does not answer",
            details=f"`{error.cmd}` did not end within {error.timeout:g} s",
            hint="try again later, and look at `squeue --me`: a job that was submitted all the "
            f"same ends by itself within {_PATIENCE_S} s of its start",
        ) from error


def _table(request: Request) -> AllocationTable:
    assert request.allocation.request is not None
    return request.allocation.request


def _await_nodes(job: SlurmJob, request: Request) -> tuple[str, ...]:
    """Wait in the queue until all nodes answer, and return their names.

    Raises UnusableError where the job is gone, and InterruptedRunError when the user stops.
    """
    began = said = time.monotonic()
    pause_s, was_listed = _FIRST_PAUSE_S, False
    while True:
        _pause(request, pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        state = _state(job)
        was_listed = was_listed or bool(state)
        if state in STARTED:
            with suppress(TransportError, CommandTimeoutError):
                return _roll_call(job, request.allocation.nodes, request)
        now = time.monotonic()
        if state == "" and (was_listed or now - began > _MISSING_S):
            raise _not_granted(job, request)
        if now - said > _SAY_EVERY_S:
            said = now
            request.say(f"job {job.id} waits in the queue, for {age_text(now - began)} so far")


def _state(job: SlurmJob) -> str | None:
    """Return the state of the job, empty where it is gone; None where Slurm does not answer."""
    try:
        return job.state()
    except TransportError:
        return None


def _has_ended(job: SlurmJob) -> bool:
    """Wait until Slurm does not list the job any more; False where that takes too long."""
    until = time.monotonic() + _END_S
    while not (is_gone := _state(job) == "") and time.monotonic() < until:
        time.sleep(_FIRST_PAUSE_S)
    return is_gone


def _comes_true(condition: Callable[[], bool], request: Request, within_s: float) -> bool:
    """Tell whether it comes true in time; raises InterruptedRunError when the user stops."""
    until = time.monotonic() + within_s
    while not (is_true := condition()) and time.monotonic() < until:
        _pause(request, _TICK_S)
    return is_true


def _pause(request: Request, pause_s: float) -> None:
    until = time.monotonic() + pause_s
    while time.monotonic() < until:
        _check(request)
        time.sleep(_TICK_S)


def _check(request: Request) -> None:
    if request.interruption.is_requested:
        what = "" if request.allocation.job else "the job was taken back; "
        raise InterruptedRunError(
            "the run was interrupted before it had its nodes",
            details=f"{what}nothing was measured in this part of the run",
            hint="start the run again, or continue it with --resume",
        )


def _not_granted(job: SlurmJob, request: Request) -> UnusableError:
    said = shell(LOCAL, _WHY, request.script_dir, job.id).stdout.split("\n")
    return UnusableError(
        f"job {job.id} ended before its nodes could be used",
        details="; ".join(line.strip() for line in said if line.strip())
        or "Slurm does not know it any more, and it left no message",
        hint=f"if nobody cancelled it, check that {request.script_dir} is on a file system that "
        "the nodes share, or choose one with the key script-dir",
    )


def _roll_call(job: SlurmJob, count: int, request: Request) -> tuple[str, ...]:
    """Return the names of the nodes of a job as each of them says.

    Raises TransportError where not all answer, CommandTimeoutError where that takes too long, and
    InterruptedRunError when the user stops meanwhile.
    """
    asked = InterruptibleTransport(LOCAL, request.interruption, ends_at_once=True)
    answer = run(asked, job.step("/bin/sh", "-c", _NAMES, nodes=count))
    _check(request)  # what was killed while it was asked has said nothing
    names = sorted(answer.stdout.split())
    if not answer.succeeded or len(names) != count:
        raise TransportError(
            f"of {count} nodes of job {job.id}, {len(names)} answer",
            details=answer.tail(1) or "the others gave no message",
            hint=f"see `scontrol show job {job.id}`",
        )
    return tuple(names)


def _keep(job: SlurmJob, node: str, request: Request) -> Process:
    """Let the job live as long as this client does.

    Raises UnusableError where it cannot, and InterruptedRunError when the user stops meanwhile.
    """
    kept = request.kept(job.id)
    step = Command(argv=("/bin/sh", "-c", _KEEP, "sh", kept))
    keeper = SrunTransport(node, job, node).spawn(step)
    said = Drain(keeper.stdout)
    try:
        answers = _comes_true(lambda: bool(said.text() or not said.is_alive()), request, _ANSWER_S)
        if said.text() and _comes_true(Path(kept).exists, request, _SHARED_S):
            return keeper
    except BaseException:
        keeper.kill()
        raise
    keeper.kill()
    if _state(job) == "":
        raise _not_granted(job, request)
    if not answers:
        raise TransportError(
            f"{node} of job {job.id} did not answer within {_ANSWER_S:g} s",
            details="it gave its name just before",
            hint=f"see `scontrol show job {job.id}`, and start the run again",
        )
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
    with suppress(subprocess.TimeoutExpired):
        provider.cancel([job.id])
    if _has_ended(job):
        _remove_folders(request)
    else:
        request.say(f"job {job.id} may still hold its nodes; cancel it with: scancel {job.id}")


def _remove_folders(request: Request) -> None:
    for folder in (request.script_dir, request.leftovers):
        remove_folder(LOCAL, folder)
