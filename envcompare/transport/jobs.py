"""Slurm jobs: their state, and commands on their nodes.

A command runs on a node as a step of the job, started by `srun`. srun forwards output by whole
lines, and an unfinished line when the command ends.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from envcompare.command import Command
from envcompare.errors import CommandTimeoutError, TransportError, UnusableError
from envcompare.transport import Transport, run
from envcompare.transport.local import LOCAL, LocalProcess

# srun writes its own messages to stderr, so the command's stderr goes to descriptor 3. `exec`
# replaces the shell, so that signals reach srun and its exit code is that of the step.
_APART = ("/bin/sh", "-c", 'exec 3>&2 2>/dev/null; exec "$@"', "sh")
_STDERR = "--error=/proc/self/fd/3"
# The shell stays as the parent, because srun's 128 + n could also mean that the step was killed.
_LAUNCH = ("/bin/sh", "-c", '"$@"; exit "$?"', "sh")
_FAILED = 112  # the exit code of srun when it fails itself (SLURM_EXIT_ERROR)
_LIST = ("squeue", "--me", "--noheader", "--format=%A|%T|%j")  # number, state, name
_PROBE_S = 60.0
_KILL_S = 10.0
# A job in a state of STARTED has its nodes, or will get them back (JOB STATE CODES of squeue).
_WAITING = frozenset({"CONFIGURING", "PENDING"})
STARTED = frozenset({
    "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED",
})  # fmt: skip


@dataclass(slots=True, eq=False)
class SlurmJob:
    """A job whose nodes are measured; `on_loss` is called once, with the reason it ended early."""

    id: str
    on_loss: Callable[[str], None]
    loss: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def ending(self) -> tuple[str, ...]:
        """Return the command that cancels the job."""
        return ("scancel", self.id)

    def lose(self, why: str) -> None:
        """Record that the job has ended; the first call also calls `on_loss`."""
        with self._lock:
            is_news = not self.loss
            self.loss = self.loss or why
        if is_news:
            self.on_loss(why)

    def step(self, *argv: str, nodes: int = 1, node: str = "") -> Command:
        """Return a command that runs `argv` as a step, one process per node, next to other steps.

        Without options for CPUs, memory and GPUs, a step can use all that the job has on the node.
        """
        where = (f"--nodelist={node}",) if node else ()
        count = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
        how = ("--overlap", "--quiet", "--mpi=none", "--cpu-bind=none")
        options = (f"--jobid={self.id}", *how, *count, *where)
        return Command(argv=("srun", *options, *argv), env=(("SLURM_EXIT_ERROR", str(_FAILED)),))

    def state(self, *, name: str = "") -> str:
        """Return the job's state in Slurm's list, empty if it is not listed.

        A job that is not listed has released its nodes; a listed one may still have lost them. With
        a name, only a job whose name starts with it counts. Raises TransportError when Slurm does
        not answer.
        """
        silence = f"Slurm does not report the state of job {self.id}"
        hint = "check `squeue --me` on this machine; a run can be resumed"
        try:
            listing = run(LOCAL, Command(argv=_LIST))
        except CommandTimeoutError as error:
            raise TransportError(silence, details=error.brief, hint=hint) from error
        if not listing.succeeded:
            raise TransportError(silence, details=listing.tail(1), hint=hint)
        for line in listing.stdout.splitlines():
            number, _, rest = line.partition("|")
            state, _, full_name = rest.partition("|")
            if number == self.id and full_name.startswith(name):
                return state
        return ""


class _StepProcess:
    """A command on a node, controlled through the `srun` process on this machine."""

    def __init__(self, process: LocalProcess, *, brief: str, transport: SrunTransport) -> None:
        self._process = process
        self._brief = brief
        self._transport = transport
        self._is_killed = False
        self.stdin = process.stdin
        self.stdout = process.stdout
        self.stderr = process.stderr

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code, 128 + n after signal n.

        Raises TransportError when the node does not answer: the code is then not the command's.
        """
        try:
            code = self._process.wait(timeout_s)
        except CommandTimeoutError as error:
            where = self._transport.name
            raise CommandTimeoutError(
                f"{self._brief} did not end within {timeout_s:g} s on {where}"
            ) from error
        if code and not self._is_killed:
            self._transport.require_alive(self._brief)
        if code == _FAILED and not self._is_killed:
            raise TransportError(
                f"srun cannot start {self._brief} on {self._transport.name}",
                details="other commands still start there",
                hint="resume the run; if it happens again, read slurmctld's log of the job",
            )
        return code

    def kill(self) -> None:
        """Let Slurm kill all processes of the step; safe to repeat."""
        if self._is_killed:
            return
        self._is_killed = True
        self._process.signal(signal.SIGTERM)  # srun then kills the step
        with suppress(CommandTimeoutError):
            self._process.wait(_KILL_S)
        self._process.kill()


class SrunTransport:
    """Carries commands and files to one node of a job."""

    def __init__(self, name: str, job: SlurmJob, node: str) -> None:
        self._name = name
        self._job = job
        self._node = node

    @property
    def name(self) -> str:
        """Return the host's name in the plan."""
        return self._name

    @property
    def bare(self) -> Transport:
        """Return the transport itself: interruption does not reach it."""
        return self

    def spawn(self, command: Command) -> _StepProcess:
        """Start the command on the node; a missing program ends with exit code 127.

        Raises TransportError if the job has ended.
        """
        if self._job.loss:
            raise self._lost(self._job.loss, "nothing")
        step = self._job.step(_STDERR, *_LAUNCH, *command.flat(), node=self._node)
        started = LOCAL.spawn(step, launch=_APART)
        return _StepProcess(started, brief=" ".join(command.argv[:2]), transport=self)

    def require_alive(self, brief: str) -> None:
        """Raise TransportError unless the node still runs commands.

        Runs a step as the test; asks Slurm whether the job is over only if that fails.
        """
        try:
            done = run(LOCAL, self._job.step("true", node=self._node), timeout_s=_PROBE_S)
        except CommandTimeoutError as error:
            raise self._lost("the node does not answer", brief) from error
        if done.succeeded:
            return
        why = done.tail(1) or "srun gave no message"
        if self._job.state() not in STARTED | _WAITING:
            self._job.lose(why)
        raise self._lost(why, brief)

    def forward_unix(self, path: str) -> AbstractContextManager[Path]:
        """Raise UnusableError: srun forwards no sockets, and daemons run outside the job."""
        raise UnusableError(
            f"the socket {path} of {self._name} cannot be reached from here",
            details="srun forwards no socket",
            hint="choose environments without a daemon, such as --envs vm,singularity",
        )

    def close(self) -> None:
        """Do nothing: each command has its own connection."""

    def _lost(self, why: str, what: str) -> TransportError:
        return TransportError(
            f"the node {self._node} of job {self._job.id} ({self._name}) was lost",
            details=f"while {what} ran: {why}",
            hint="resume the run, which asks for a new allocation",
        )
