"""Measure on the nodes of a job of Slurm, which are hosts of the run.

They are waited for, called, and kept as long as the client lives. What Slurm says of a job starts
nothing and ends nothing by itself: nodes are there when they answer, and the job is over when none
does and it is not listed as living.
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

# A client that is gone before it has taken the nodes must not hold them until their time is over.
_PILOT: Final = """sleep {patience}
if [ -e {kept}"$SLURM_JOB_ID" ]; then exec sleep 2147483647; fi
echo "the nodes did not answer in time: nothing took them within {patience} s" >&2"""
# The step ends with the client, however that ends, and then the job with it.
_KEEP: Final = ': >"$1" || exit; echo kept; cat >/dev/null; exec scancel "$SLURM_JOB_ID"'
_NAMES: Final = 'printf "%s\\n" "$SLURMD_NODENAME"'
# What a job left as its last words, and what Slurm says of it
_WHY: Final = r"""
cat -- "$1"/*.stderr 2>/dev/null | tail -n 1
scontrol --oneliner show job "$2" 2>/dev/null | grep -o 'JobState=[A-Z_]* Reason=[^ ]*'
"""
_LONGEST_PAUSE_S: Final = 30.0
_TICK_S: Final = 0.2  # in which Ctrl-C is noticed
_SHARED_S: Final = 30.0  # a network file system may show a new file late
_ANSWER_S: Final = 60.0


@contextmanager
def granted(request: Request, hosts: tuple[HostSpec, ...]) -> Iterator[tuple[HostSpec, ...]]:
    """Give the hosts as nodes of a job, and the job back to the scheduler at the end.

    Raises UnusableError where it is not granted, and InterruptedRunError when the user stops
    meanwhile.
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

    Raises UnusableError where the job is gone, and InterruptedRunError when the user stops.
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

    Raises UnusableError where it cannot, TransportError where the node does not answer, and
    InterruptedRunError when the user stops meanwhile.
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
    if state is not None and state not in STARTED:  # it ended after the node gave its name
        raise _not_granted(job, request)
    if not said.text() and kept not in complaint:
        if ends:
            transport.require_alive("the step that keeps the job")
        raise TransportError(
            f"{node} of job {job.id} " + ("gave no answer" if ends else "did not answer in time"),
            details=complaint or "it gave its name just before",
            hint=f"see `scontrol show job {job.id}`, and start the run again",
        )
    raise UnusableError(
        f"{request.script_dir} is not shared between this machine and {node}",
        details=complaint or "what the node writes there is not seen here",
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
