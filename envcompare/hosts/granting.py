"""Nodes of Slurm as hosts of a run: waited for, called, and kept as long as the client lives.

What Slurm says of a job starts nothing and ends nothing by itself: nodes are there when they
answer, and the job is over when none does and it is not listed as living.
"""

from __future__ import annotations

import platform
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from envcompare.command import Command
from envcompare.errors import (
    CommandTimeoutError,
    ConfigError,
    TransportError,
    UnusableError,
)
from envcompare.hosts.allocation import (
    FIRST_PAUSE_S,
    PATIENCE_S,
    AnyJob,
    Request,
    check_stop,
    pause,
    state_of,
    submitted,
)
from envcompare.text import age_text
from envcompare.transport import Drain, Process, run, shell
from envcompare.transport.hosts import HostSpec, InterruptibleTransport
from envcompare.transport.jobs import STARTED, GridEngineJob, SlurmJob, SrunTransport
from envcompare.transport.local import LOCAL

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
_LONGEST_PAUSE_S: Final = 30.0
_TICK_S: Final = 0.2  # in which Ctrl-C is noticed
_SAY_EVERY_S: Final = 60.0
_MISSING_S: Final = 20.0  # a job may be listed late
_SHARED_S: Final = 30.0  # a network file system may show a new file late
_ANSWER_S: Final = 60.0


@contextmanager
def granted(request: Request, hosts: tuple[HostSpec, ...]) -> Iterator[tuple[HostSpec, ...]]:
    """Give the hosts as nodes of a job, and the job back to the scheduler at the end.

    Raises UnusableError where it is not granted, and InterruptedRunError when the user stops
    meanwhile.
    """
    if request.allocation.job:
        yield _placed(hosts, *_around(request, len(hosts)), request)
        return
    keeper: Process | None = None
    with submitted(request, _slurm_pilot) as job:
        assert isinstance(job, SlurmJob)
        try:
            nodes = _await_nodes(job, request)
            keeper = _keep(job, nodes[0], request)
            yield _placed(hosts, job, nodes, request)
        finally:
            _end_keeper(keeper)


def _around(request: Request, count: int) -> tuple[AnyJob, tuple[str, ...]]:
    """Return the job that this process runs in, and its nodes."""
    job = request.job(request.allocation.job)
    if isinstance(job, GridEngineJob):
        return job, (platform.node(),)
    return job, _roll_call(job, count, request)


def _slurm_pilot(request: Request) -> str:
    return _PILOT.format(patience=PATIENCE_S, kept=shlex.quote(request.kept()))


def _await_nodes(job: SlurmJob, request: Request) -> tuple[str, ...]:
    """Wait in the queue until all nodes answer, and return their names.

    Raises UnusableError where the job is gone, and InterruptedRunError when the user stops.
    """
    began = said = time.monotonic()
    pause_s, was_listed = FIRST_PAUSE_S, False
    while True:
        pause(request, pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        state = state_of(job)
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


def _comes_true(condition: Callable[[], bool], request: Request, within_s: float) -> bool:
    """Tell whether it comes true in time; raises InterruptedRunError when the user stops."""
    until = time.monotonic() + within_s
    while not (is_true := condition()) and time.monotonic() < until:
        pause(request, _TICK_S)
    return is_true


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
    check_stop(request)  # what was killed while it was asked has said nothing
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
    if state_of(job) == "":
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
    hosts: tuple[HostSpec, ...], job: AnyJob, nodes: tuple[str, ...], request: Request
) -> tuple[HostSpec, ...]:
    """Return the hosts of the plan as nodes, each as before where the run was begun before.

    Raises ConfigError where the job has other nodes than that run: a cell is of one machine.
    """
    if request.nodes and set(request.nodes) != set(nodes):
        before = ",".join(request.nodes)
        raise ConfigError(
            f"job {job.id} has other nodes than the run was begun on",
            details=f"the run was begun on {before}, and the job has {','.join(nodes)}",
            hint="ask for the same nodes, or start a new run",
        )
    pairs = tuple(zip(hosts, request.nodes or nodes, strict=True))
    request.say(", ".join(f"{host.label} is {node}" for host, node in pairs) + f" of job {job.id}")
    return tuple(replace(host, job=job, node=node) for host, node in pairs)


def _end_keeper(keeper: Process | None) -> None:
    """Let the step end that keeps the job, and the job by it: a second way beside `scancel`."""
    if keeper is not None:
        with suppress(OSError):
            keeper.stdin.close()
