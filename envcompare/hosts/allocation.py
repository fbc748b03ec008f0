"""Request nodes from Slurm through Parsl's execution provider, and release them at the end.

One job holds all nodes of a run and all arms of their cells; `granting.py` measures on them. The
job state that Slurm reports never starts or ends anything by itself.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from envcompare.command import Command
from envcompare.config.scheduling import PATH, Allocation
from envcompare.errors import ConfigError, InterruptedRunError, TransportError, UnusableError
from envcompare.hosts import claims
from envcompare.hosts.partitions import check_partition
from envcompare.interrupt import Interruption
from envcompare.run_folder.records import Event
from envcompare.stack.storage import local_cache
from envcompare.text import age_text
from envcompare.transport import Process, make_folder, make_new_folder, remove_folder, run
from envcompare.transport.jobs import SlurmJob
from envcompare.transport.local import LOCAL

if TYPE_CHECKING:
    from parsl.providers.cluster_provider import ClusterProvider

_EXTRA: Final = "envcompare-bench[allocation]"
PATIENCE_S: Final = 300  # more than the longest pause, a roll call and the answer of the keeper
FIRST_PAUSE_S: Final = 1.0
_TICK_S: Final = 0.2  # how often Ctrl-C is checked
_COMMAND_S: Final = 60  # of Parsl
_END_S: Final = 60.0
_SAY_EVERY_S: Final = 60.0
_MISSING_S: Final = 20.0  # Slurm may list a job late
_CLAIM: Final = "allocation"  # next to the folders of hosts in that of a run


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

    def keep_claim(self) -> None:
        """Keep the claim fresh for other hosts, which cannot see the process that holds it."""
        claims.refresh(self.claim)

    def kept(self, job: str = "") -> str:
        """Return the file that shows a job that this client has taken its nodes."""
        return f"{self.script_dir}/kept-{job}"


@contextmanager
def submitted(request: Request, pilot: str) -> Iterator[SlurmJob]:
    """Submit a job that runs `pilot`, and cancel it at the end.

    Raises UnusableError if Slurm does not accept it.
    """
    job, provider, claim = _submitted(request, pilot)
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
    _require_parsl()
    if not (table.script_dir or PATH.fullmatch(str(local_cache()))):
        raise ConfigError(
            f"the job's script cannot use the path {local_cache()}",
            hint="give a path of letters, digits and _.:@+- with script-dir",
        )
    check_partition(allocation, table)


def jobs_of(events: Iterable[Event]) -> tuple[SlurmJob, ...]:
    """Return the jobs that a run submitted or was measured in."""
    named = (e.values for e in events if e.what in {"submitted", "allocated"})
    numbers = dict.fromkeys(str(each.get("job", "")) for each in named)
    return tuple(SlurmJob(id=number, on_loss=lambda _: None) for number in numbers)


def forget(run_id: str, jobs: tuple[SlurmJob, ...]) -> None:
    """Cancel the jobs of a run whose client was killed, and remove its files from the cache.

    Raises UnusableError while its client lives, or if a job remains.
    """
    for claim in claims.survey(LOCAL, str(local_cache())):
        if (claim.run_id, claim.host, claim.state) == (run_id, _CLAIM, "live"):
            raise claims.refusal(claim, "this machine")
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


def _require_parsl() -> None:
    try:
        import parsl.providers  # noqa: F401, PLC0415 — slow to import, and optional
    except ImportError as error:
        raise UnusableError(
            "--allocation needs Parsl, which is not installed",
            details=str(error),
            hint=f"pip install '{_EXTRA}'",
        ) from error


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


def _submitted(request: Request, pilot: str) -> tuple[SlurmJob, ClusterProvider, Process]:
    """Return the job, its provider, and the claim; clean up if that fails."""
    _cancel_left(request.run_id, request.jobs)
    claim = _claimed(request)
    try:
        provider, number = _asked(request, pilot)
    except BaseException:
        _remove_folders(request)
        claim.kill()
        raise
    return request.job(number), provider, claim


def _claimed(request: Request) -> Process:
    """Create the folders again and claim them: `clean` would remove those of a queued run."""
    if request.script_dir == request.claim:
        make_folder(LOCAL, request.leftovers)
    make_new_folder(LOCAL, request.script_dir)
    return claims.hold(LOCAL, request.claim)


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
            request.say(f"job {self.job.id} has been in the queue for {waited}")


def _has_ended(job: SlurmJob) -> bool:
    """Wait until Slurm no longer lists the job; False if that takes too long."""
    until = time.monotonic() + _END_S
    while not (is_gone := state_of(job) == "") and time.monotonic() < until:
        time.sleep(FIRST_PAUSE_S)
    return is_gone


def pause(request: Request, pause_s: float) -> None:
    """Wait for `pause_s`; raises InterruptedRunError if the user stops."""
    request.keep_claim()
    until = time.monotonic() + pause_s
    while time.monotonic() < until:
        check_stop(request)
        time.sleep(_TICK_S)


def check_stop(request: Request) -> None:
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
