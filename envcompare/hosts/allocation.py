"""Ask a scheduler for nodes, by Parsl's execution providers, and give them back at the end.

One job holds all nodes of a run, and all arms of their cells; `granting.py` measures on them. What
the scheduler says of its state starts nothing and ends nothing by itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from envcompare.command import Command
from envcompare.config.scheduling import (
    GRID_ENGINE,
    PATH,
    SLURM,
    Allocation,
    AllocationTable,
    clock,
    resources_of,
)
from envcompare.errors import ConfigError, InterruptedRunError, TransportError, UnusableError
from envcompare.hosts import claims
from envcompare.hosts.partitions import check_partition, check_queue
from envcompare.interrupt import Interruption
from envcompare.run_folder.records import Event, Scalar
from envcompare.stack.storage import local_cache
from envcompare.text import age_text
from envcompare.transport import Process, make_folder, make_new_folder, remove_folder, run
from envcompare.transport.jobs import GridEngineJob, SlurmJob
from envcompare.transport.local import LOCAL

if TYPE_CHECKING:
    from parsl.providers import GridEngineProvider, SlurmProvider
    from parsl.providers.cluster_provider import ClusterProvider

AnyJob = SlurmJob | GridEngineJob
_NAMES_OF: Final = {SLURM: "Slurm", GRID_ENGINE: "Grid Engine"}
_LISTS_OF: Final = {"Slurm": "squeue --me", "Grid Engine": "qstat"}
_LIMITS_OF: Final = {
    "Slurm": "`sinfo` and `sacctmgr show assoc`",
    "Grid Engine": "`qconf -sq QUEUE` and `qquota`",
}
_EXTRA: Final = "envcompare-bench[allocation]"
PATIENCE_S: Final = 300  # more than the longest pause, a roll call and the answer of the keeper
FIRST_PAUSE_S: Final = 1.0
_TICK_S: Final = 0.2  # in which Ctrl-C is noticed
_COMMAND_S: Final = 60  # of Parsl
_END_S: Final = 60.0
_SAY_EVERY_S: Final = 60.0
_MISSING_S: Final = 20.0  # a job may be listed late
_ASK_EVERY_S: Final = 10.0
_CLAIM: Final = "allocation"  # among the folders of hosts in that of a run
# What a job of Grid Engine gets of this process's variables: others may hold what is secret, which
# `qstat -j` would show, or name devices and folders of this machine alone.
_PASSED: Final = re.compile(
    "PATH|HOME|LANG|LC_[A-Z]+|TZ|XDG_(CACHE|CONFIG)_HOME|PYTHON(PATH|HOME|USERBASE|UNBUFFERED)|"
    "LD_(LIBRARY_PATH|PRELOAD)|CUDA_(HOME|PATH)|SSL_CERT_(FILE|DIR)|"
    "(APPTAINER|SINGULARITY)_(CACHEDIR|TMPDIR|CONFIGDIR|BIND|BINDPATH)|"
    "(OMP|MKL|OPENBLAS)_NUM_THREADS|ENVCOMPARE_[A-Z_]+|"
    "PIP_(INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|CONFIG_FILE)|(?i:(https?|all|no)_proxy)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a run asks for; `nodes` and `jobs` are those of earlier parts of it.

    `note_job` is called with the job once it is submitted.
    """

    allocation: Allocation
    run_id: str
    nodes: tuple[str, ...]
    jobs: tuple[AnyJob, ...]
    interruption: Interruption
    say: Callable[[str], None]
    note_job: Callable[[AnyJob], None]

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

    def job(self, number: str) -> AnyJob:
        """Return a job of this run by its number."""
        return _job(number, self.allocation.scheduler, self.lose)

    def lose(self, why: str) -> None:
        """Say that the job has ended too early, and end the run as interrupted."""
        self.say(f"the allocation has ended: {why}; the run ends as interrupted")
        if not self.interruption.is_requested:
            self.interruption.request()

    def keep_claim(self) -> None:
        """Let the claim look alive on other hosts, which cannot see the process that holds it."""
        claims.refresh(self.claim)

    def kept(self, job: str = "") -> str:
        """Return the file by which a job sees that this client has taken its nodes."""
        return f"{self.script_dir}/kept-{job}"


@contextmanager
def submitted(request: Request, pilot: Callable[[Request], str]) -> Iterator[AnyJob]:
    """Submit a job, which is given back at the end; `pilot` returns what it does.

    The folder of its script is there by then. Raises UnusableError where it is not accepted.
    """
    job, provider, claim = _submitted(request, pilot)
    try:
        request.note_job(job)
        request.say(f"asked {_called(job)} for {request.allocation.wish}: job {job.id}")
        yield job
    finally:
        _give_back(job, provider, request)
        claim.kill()


def _called(job: AnyJob) -> str:
    return _NAMES_OF[job.scheduler]


def check_available(allocation: Allocation | None) -> None:
    """Refuse what the cluster does not have, before anything is submitted.

    Raises ConfigError for an unknown partition or queue, for a time that it does not allow, and for
    nodes, GPUs or slots that it does not have; UnusableError where Parsl or the scheduler is
    missing.
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
    check = check_queue if allocation.scheduler == GRID_ENGINE else check_partition
    check(allocation, table)


def jobs_of(events: Iterable[Event]) -> tuple[AnyJob, ...]:
    """Return the jobs that a run asked for or was measured in."""
    named = (e.values for e in events if e.what in {"submitted", "allocated"})
    pairs = ((str(each.get("job", "")), each.get("scheduler")) for each in named)
    return tuple(_job(number, scheduler) for number, scheduler in dict.fromkeys(pairs))


def forget(run_id: str, jobs: tuple[AnyJob, ...]) -> None:
    """Cancel the jobs of a run whose client was killed, and remove what it left in the cache.

    Raises UnusableError while its client lives, and where a job of it stays.
    """
    for claim in claims.survey(LOCAL, str(local_cache())):
        if (claim.run_id, claim.host, claim.state) == (run_id, _CLAIM, "live"):
            raise claims.refusal(claim, "this machine")
    _cancel_left(run_id, jobs)
    _require_gone(run_id, jobs)
    remove_folder(LOCAL, _folder(run_id))


def _require_gone(run_id: str, jobs: tuple[AnyJob, ...]) -> None:
    """Raise UnusableError where a job of a run is listed."""
    for job in jobs:
        if job.state():
            raise UnusableError(
                f"the run {run_id} may still be measuring: its job {job.id} is there",
                details="envcompare did not submit it, or it does not end",
                hint=f"wait, or end it with: {' '.join(job.ending)}",
            )


def _cancel_left(run_id: str, jobs: tuple[AnyJob, ...]) -> None:
    """Cancel jobs that a client which was killed left, by their name too, and await their end.

    Raises TransportError where the scheduler does not answer.
    """
    for job in jobs:
        if job.state(name=_job_name(run_id)):
            run(LOCAL, Command(argv=job.ending))
            _has_ended(job)


def _job(number: str, scheduler: Scalar, on_loss: Callable[[str], None] = lambda _: None) -> AnyJob:
    if scheduler == GRID_ENGINE:
        return GridEngineJob(id=number)
    return SlurmJob(id=number, on_loss=on_loss)


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
    """Return Parsl's provider for the request."""
    if request.allocation.scheduler == GRID_ENGINE:
        return _grid_engine(request)
    return _slurm(request)


def _grid_engine(request: Request) -> GridEngineProvider:
    """Return the provider for a job on one node, which begins where this process is.

    It is refused rather than left waiting for what no queue has (-w e), and never begins a second
    time (-r n). Variables are passed by their names (-v), so that the script holds no value.
    """
    from parsl.launchers import SimpleLauncher  # noqa: PLC0415 — slow to import, and optional
    from parsl.providers import GridEngineProvider  # noqa: PLC0415

    table = _table(request)
    wanted = {"hostname": "".join(request.nodes), **resources_of(table.resources or "")}
    options = [f"-v {','.join(_passed(os.environ))}"]
    options += [f"-l {name}={value}" for name, value in wanted.items() if value]
    options += [f"-pe {table.pe} {table.slots or 1}"] if table.pe else []
    options += [f"-P {table.project}"] if table.project else []
    provider = GridEngineProvider(
        queue=table.queue,
        walltime=clock(request.allocation.time_s),
        scheduler_options="\n".join(f"#$ {option}" for option in ("-r n", "-w e", *options)),
        launcher=SimpleLauncher(),
        cmd_timeout=_COMMAND_S,
    )
    provider.script_dir = request.script_dir
    return provider


def _passed(variables: Mapping[str, str]) -> list[str]:
    """Return the names of variables that a job gets: none with a login in an address."""
    return [
        name
        for name, value in variables.items()
        if _PASSED.fullmatch(name) and not ("://" in value and "@" in value)
    ]


def _slurm(request: Request) -> SlurmProvider:
    """Return the provider for nodes of Slurm; the user chooses whether they are shared."""
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


def _submitted(
    request: Request, pilot: Callable[[Request], str]
) -> tuple[AnyJob, ClusterProvider, Process]:
    """Return the job, who submitted it, and the claim; where that fails nothing of it is left."""
    _cancel_left(request.run_id, request.jobs)
    if request.allocation.is_fetched:  # its client may come back to life and use the same folders
        _require_gone(request.run_id, request.jobs)
    claim = _claimed(request)
    try:
        provider, number = _asked(request, pilot(request))
    except BaseException:
        _remove_folders(request)
        claim.kill()
        raise
    return request.job(number), provider, claim


def _claimed(request: Request) -> Process:
    """Make the folders anew, and claim them: `clean` would remove those of a run in the queue."""
    if request.script_dir == request.claim:
        make_folder(LOCAL, request.leftovers)
    make_new_folder(LOCAL, request.script_dir)
    return claims.hold(LOCAL, request.claim)


def _asked(request: Request, pilot: str) -> tuple[ClusterProvider, str]:
    """Submit the job by a provider, and return both; raises UnusableError where that fails."""
    from parsl.providers.errors import SubmitException  # noqa: PLC0415 — as above

    scheduler = _NAMES_OF[request.allocation.scheduler]
    try:
        provider = _provider(request)
        said = _recorded(provider)
        number = str(provider.submit(pilot, 1, job_name=_job_name(request.run_id)))
    except SubmitException as error:
        raise _refused(scheduler, error.stderr or error.stdout or str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise UnusableError(
            f"{scheduler} does not answer",
            details=f"`{error.cmd}` did not end within {error.timeout:g} s",
            hint=f"try again later, and list your jobs with `{_LISTS_OF[scheduler]}`: one that was "
            f"submitted all the same ends by itself within {PATIENCE_S} s of its start",
        ) from error
    if not number.isdecimal():
        raise _refused(scheduler, "\n".join(said))
    return provider, number


def _recorded(provider: ClusterProvider) -> list[str]:
    """Have what the commands of a provider print kept in the list that is returned.

    Parsl's provider for Grid Engine returns None where `qsub` refuses a job, and logs why.
    """
    said: list[str] = []
    execute = provider.execute_wait

    def executed(*words: Any, **options: Any) -> tuple[int, str, str]:  # noqa: ANN401 — Parsl's
        result: tuple[int, str, str] = execute(*words, **options)
        said.extend(result[1:])
        return result

    provider.execute_wait = executed
    return said


def _refused(scheduler: str, said: str) -> UnusableError:
    lines = [line for line in said.splitlines() if line.strip() not in {"", "Exiting."}]
    return UnusableError(
        f"{scheduler} does not accept the job",
        details=lines[-1].strip() if lines else "it gave no message",
        hint=f"change what --allocation asks for; {_LIMITS_OF[scheduler]} list limits",
    )


def _table(request: Request) -> AllocationTable:
    assert request.allocation.request is not None
    return request.allocation.request


def state_of(job: AnyJob) -> str | None:
    """Return the state of a job, empty where it is gone; None where its scheduler is silent."""
    try:
        return job.state()
    except TransportError:
        return None


@dataclass(slots=True)
class Watch:
    """What the scheduler lists of a job, asked now and then."""

    job: AnyJob
    began: float = field(default_factory=time.monotonic)
    asked: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)
    state: str | None = None  # until it is known
    was_listed: bool = False
    since: float = 0.0  # of this state

    def look(self) -> None:
        """Ask for the state, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self.asked >= min(_ASK_EVERY_S, (now - self.began) / 2):
            self.ask()

    def ask(self) -> str | None:
        """Return the state, empty where the job is not listed; None where nobody answers."""
        self.asked = time.monotonic()
        state = state_of(self.job)
        if state is not None and state != self.state:
            self.state, self.since = state, self.asked
        self.was_listed = self.was_listed or bool(state)
        return state

    def lasts_s(self, state: str) -> float:
        """Return for how long the job has had a state, 0 where it has another."""
        return time.monotonic() - self.since if self.state == state else 0.0

    @property
    def is_gone(self) -> bool:
        """Tell whether the job is listed no more, or never came."""
        is_late = time.monotonic() - self.began > _MISSING_S
        return self.state == "" and (self.was_listed or is_late)

    def tell(self, request: Request) -> None:
        """Say now and then that the job waits."""
        now = time.monotonic()
        if now - self.said > _SAY_EVERY_S:
            self.said = now
            waited = age_text(now - self.began)
            request.say(f"job {self.job.id} waits in the queue, for {waited} so far")


def _has_ended(job: AnyJob) -> bool:
    """Wait until the scheduler does not list the job any more; False where that takes too long."""
    until = time.monotonic() + _END_S
    while not (is_gone := state_of(job) == "") and time.monotonic() < until:
        time.sleep(FIRST_PAUSE_S)
    return is_gone


def pause(request: Request, pause_s: float) -> None:
    """Wait for so long; raises InterruptedRunError when the user stops before there are nodes."""
    request.keep_claim()
    until = time.monotonic() + pause_s
    while time.monotonic() < until:
        check_stop(request)
        time.sleep(_TICK_S)


def check_stop(request: Request) -> None:
    """Raise InterruptedRunError when the user stops before anything is measured."""
    if request.interruption.is_requested:
        what = "" if request.allocation.job else "the job was taken back; "
        raise InterruptedRunError(
            "the run was interrupted before it had its nodes",
            details=f"{what}nothing was measured in this part of the run",
            hint="start the run again, or continue it with --resume",
        )


def _give_back(job: AnyJob, provider: ClusterProvider, request: Request) -> None:
    """Cancel the job, wait until it is gone, and remove what is left of the run in the cache."""
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
