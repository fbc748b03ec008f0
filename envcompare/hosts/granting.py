"""Measure on the nodes of a Slurm job, which are hosts of the run.

Wait for the nodes, contact them, and keep them while the client lives. The job state that Slurm
reports decides nothing by itself: nodes are ready when they answer, and the job is over when none
answers and Slurm does not list it as alive.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from envcompare.command import Command
from envcompare.errors import CommandTimeoutError, ConfigError, TransportError, UnusableError
from envcompare.hosts.allocation import (
    FIRST_PAUSE_S,
    PATIENCE_S,
    Request,
    Watch,
    check_stop,
    pause,
    state_of,
    submitted,
)
from envcompare.transport import Drain, Process, run, shell
from envcompare.transport.hosts import HostSpec, InterruptibleTransport
from envcompare.transport.jobs import STARTED, SlurmJob, SrunTransport
from envcompare.transport.local import LOCAL

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
_TICK_S: Final = 0.2  # how often Ctrl-C is checked
_SHARED_S: Final = 30.0  # a network file system may show a new file late
_ANSWER_S: Final = 60.0


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
            _end_keeper(keeper)


def _await_nodes(job: SlurmJob, request: Request) -> tuple[str, ...]:
    """Wait in the queue until all nodes answer, and return their names.

    Raises UnusableError if the job is gone, and InterruptedRunError if the user stops.
    """
    watch, pause_s = Watch(job), FIRST_PAUSE_S
    while True:
        pause(request, pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        state = watch.ask()
        if state in STARTED:
            with suppress(TransportError, CommandTimeoutError):
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
    check_stop(request)  # a command killed by the user has no answer
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
    if state is not None and state not in STARTED:  # it ended after the node answered
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


def _end_keeper(keeper: Process | None) -> None:
    """End the step that keeps the job, and so the job: a second way in addition to `scancel`."""
    if keeper is not None:
        with suppress(OSError):
            keeper.stdin.close()
