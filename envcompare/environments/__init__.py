"""Environments: the seam that isolates a command on a host, and how to run commands in it.

Each environment is one file. Started processes carry marks, by which leftovers are swept.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

from envcompare.config import Compression, Place, Traits
from envcompare.errors import (
    CommandTimeoutError,
    EnvcompareError,
    OutputLimitError,
    Problem,
    StillRunningError,
)
from envcompare.stack import Engine, Mount, Prepared, Request
from envcompare.text import Command, CommandResult, spoken
from envcompare.transport import Transport, run

PATIENCE_S = 60.0
_RUN = "ENVCOMPARE_RUN"
SWEEP_S = 60.0
READS_ALL = "DAC_OVERRIDE"
"""The capability that root inside keeps: it can read all mounted files of any owner."""
UPPER = "upper"
"""The folder of a scratch that holds the upper layer of an overlay."""
GATE = "ENVCOMPARE_GATE"
"""The folder of the socket by which the program of a line waits for its turns."""
HELD = "/envcompare-data"
"""Where an image holds data; Docker and Podman also mount their tmpfs for data there."""
# An engine may be restarting, and answers again within this time.
_AWAY_S = 60.0
# The search looks for marks in the environment of each process, never in its arguments, or it would
# find itself. Descendants of a marked process may have dropped the marks, so they are killed too.
# They are remembered by number and start, since the kernel reuses numbers. A killed process may
# just have forked: look again until none is left.
# A `sleep` by POSIX knows no fractions of a second, hence the second one.
_KILL_MARKED = r"""
run=$1 environment=$2 worker=$3 me=$(id -u) seen=' ' rounds=0

is_marked() {
  marks=$(tr '\000' '\n' <"/proc/$1/environ") || return 1
  for mark in "RUN=$run" "ENVIRONMENT=$environment" ${worker:+"WORKER=$worker"}; do
    printf '%s\n' "$marks" | grep -qxF -e "ENVCOMPARE_$mark" || return 1
  done
}

is_mine() {
  while read -r key uid _; do
    [ "$key" != Uid: ] || break
  done <"/proc/$1/status"
  [ "$uid" = "$me" ]
}

processes() {
  for file in /proc/[0-9]*/stat; do
    read -r line <"$file" || continue
    pid=${line%% *}
    set -- ${line##*) }
    case $1 in Z | X) ;; *) printf '%s:%s:%s ' "$pid" "$2" "${20}" ;; esac
  done
}

# Entries of $table are pid:parent:start, those of $left and $seen pid:start.
take_seen() {
  for entry in $table; do
    case $seen in *" ${entry%%:*}:${entry##*:} "*) left="$left${entry%%:*}:${entry##*:} " ;; esac
  done
}

take_marked() {
  for file in $(grep -lF -e "ENVCOMPARE_RUN=$run" /proc/[0-9]*/environ); do
    pid=${file#/proc/} pid=${pid%/environ}
    case $left in *" $pid:"*) continue ;; esac
    [ "$pid" != "$$" ] && is_mine "$pid" && is_marked "$pid" || continue
    for entry in $table; do
      case $entry in "$pid":*) left="$left$pid:${entry##*:} " ;; esac
    done
  done
}

take_descendants() {
  grown=$left
  while [ -n "$grown" ]; do
    grown=
    for entry in $table; do
      pid=${entry%%:*} parent=${entry#*:} parent=${parent%%:*}
      case $left in *" $pid:"*) continue ;; esac
      case $left in *" $parent:"*) left="$left$pid:${entry##*:} " grown=1 ;; esac
    done
  done
}

is_same() {
  began=${1#*:}
  read -r line <"/proc/${1%:*}/stat" || return 1
  set -- ${line##*) }
  [ "${20}" = "$began" ]
}

while :; do
  left=' ' table=$(processes)
  take_seen
  take_marked
  [ "$left" = ' ' ] || take_descendants
  [ "$left" != ' ' ] || break
  for entry in $left; do
    [ "$rounds" -lt 50 ] || printf '%s %s\n' "${entry%:*}" "$(cat "/proc/${entry%:*}/comm")" >&3
    is_same "$entry" && kill -s KILL "${entry%:*}"
    case $seen in *" $entry "*) ;; *) seen="$seen$entry " ;; esac
  done
  [ "$rounds" -lt 50 ] || exit 3
  rounds=$((rounds + 1))
  sleep 0.1 || sleep 1
done 3>&2 2>/dev/null
set -- $seen
echo "$#"
"""
# By a CDI description, by the engine's own option, or by the driver's files.
GpuWay = Literal["none", "cdi", "engine", "devices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """How a process in an environment reaches the host's NVIDIA GPUs, and what they need."""

    way: GpuWay = "none"
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()  # of the devices, if the user is a member
    libraries: tuple[tuple[str, str], ...] = ()  # of the driver: name and path on the host
    variables: tuple[tuple[str, str], ...] = ()  # by which the user chose among the GPUs

    @property
    def with_host_files(self) -> Gpu:
        """Return the way into a container that shows the host's files, including the driver's.

        CDI and the NVIDIA toolkit are excluded: they rewrite the loader cache, which is the host's
        and read-only there.
        """
        return self if self.way == "none" else replace(self, way="devices", libraries=())


def new_worker_mark() -> str:
    """Return a mark that identifies everything a single start leaves on a host."""
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The inputs of `wrap` in addition to the command."""

    run_id: str
    arm: str
    worker: str = field(default_factory=new_worker_mark)  # unique for each start
    reference: str = ""  # image ID or name, SIF path; empty for vm
    engine: str = ""  # the program that `check` found, if it has several names
    uid: int = 0
    gid: int = 0
    gpu: Gpu = Gpu()
    mounts: tuple[Mount, ...] = ()
    scratch: str = ""  # a writable folder of the host: HOME inside, and /tmp if needed
    temporary: str = ""  # its TMPDIR on the host; empty for the usual one inside
    capabilities: tuple[str, ...] = ()  # in Docker's notation; only root can use them
    options: tuple[str, ...] = ()  # from the user, for the engine's command
    layers: tuple[tuple[str, str], ...] = ()  # as in `Prepared`
    place: Place | None = None  # of the data, if requested
    is_timed: bool = False  # timed starts get the file system of a user's own start


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of a check on a host: a problem with its remedy, or none."""

    problem: Problem | None = None  # of something unusable
    version: str | None = None
    caution: Problem | None = None  # of something usable that could be better
    engine: str = ""
    gpu: Gpu = Gpu()

    @property
    def is_usable(self) -> bool:
        """Tell whether there is no problem."""
        return self.problem is None

    @property
    def reason(self) -> str:
        """Return what is wrong, or could be better."""
        problem = self.problem or self.caution
        return problem.brief if problem else ""

    @property
    def hint(self) -> str:
        """Return what to try."""
        problem = self.problem or self.caution
        return problem.hint if problem else ""


def unusable(brief: str, hint: str = "", *, version: str | None = None) -> Check:
    """Return the check of something unusable, with its remedy."""
    return Check(problem=Problem(brief=brief, hint=hint), version=version)


def judge_start(
    stderr: str,
    version: str | None,
    *,
    begun: re.Pattern[str],
    complaint: Callable[[str], Problem],
    refused: Problem | None = None,
) -> Check:
    """Return whether an engine got as far as missing a program that does not exist.

    `begun` matches its message on the missing program; `complaint` reads all other messages. A
    `refused` problem comes first.
    """
    problem = refused or (None if begun.search(stderr) else complaint(stderr))
    return Check(problem=problem, version=version)


class Environment(Protocol):
    """Isolates a command; everything specific to an environment is in its own file."""

    @property
    def name(self) -> str:
        """Return the name in the user's configuration."""
        ...

    @property
    def traits(self) -> Traits:
        """Return the properties for planning, profiling and remedies."""
        ...

    @property
    def engine(self) -> Engine | None:
        """Return the engine that stores its images; None if its software is in the cache."""
        ...

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return the command that runs `command` isolated; pure."""
        ...

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:
        """Return the options that make a start differ from the engine's defaults; pure.

        It includes options for rights, network and logs, but not for users, files, devices or
        marks.
        """
        ...

    def check(self, transport: Transport) -> Check:
        """Check whether this environment is usable on the host; if not, give reason and remedy."""
        ...

    def check_gpu(self, transport: Transport, driver: Check) -> Check:
        """Check whether a process in this environment can reach an NVIDIA GPU, and how.

        `driver` is the result of `gpu.find`, which runs once for all environments.
        """
        ...

    def prepare(self, request: Request) -> Prepared:
        """Return the software of an arm, made if needed, with the proof of its content.

        Raises UnusableError if the host lacks an interpreter or an engine, and StackError if the
        software cannot be made, found or sent.
        """
        ...

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Return why the environment failed to start a command; None if it started it."""
        ...

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """End and remove a run's leftovers on the host; return their number.

        With a worker's mark, only those of that worker. Raises StillRunningError if not all of them
        are known to have ended within minutes.
        """
        ...


@runtime_checkable
class HoldsData(Protocol):
    """An environment whose images can hold data."""

    def hold(
        self, transport: Transport, isolation: Isolation, data: str, *, compression: Compression
    ) -> str:
        """Return the reference of an image that contains a folder of the host, at its own place.

        It is removed with the run. Raises StackError if it cannot be made.
        """
        ...


def run_inside(
    transport: Transport,
    command: Command,
    *,
    where: Environment,
    isolation: Isolation,
    timeout_s: float,
) -> CommandResult:
    """Run a command in an environment to its end, and kill all that it started inside.

    Raises as `run_wrapped` does.
    """

    # an interruptible transport kills everything started after a second request to stop
    def end() -> int:
        return where.sweep(transport.bare, isolation.run_id, worker=isolation.worker)

    until = time.monotonic() + _AWAY_S
    while True:
        result = run_wrapped(
            transport, where.wrap(command, isolation), end=end, timeout_s=timeout_s
        )
        # An engine may have restarted. Nothing of this try is left by now, so another one is safe.
        problem = None if result.succeeded else where.explain(result.exit_code, result.stderr)
        if problem is None or not problem.passes or time.monotonic() > until:
            return result


def run_wrapped(
    transport: Transport, wrapped: Command, *, end: Callable[[], object], timeout_s: float
) -> CommandResult:
    """Run a wrapped command; `end` kills its leftovers, even after a normal exit.

    Raises CommandTimeoutError after `timeout_s`, and StillRunningError if leftovers on a reachable
    host cannot be killed. Other errors are raised unchanged.
    """
    try:
        result = run(transport, wrapped, timeout_s=timeout_s)
    except BaseException as error:
        try:
            end()
        except EnvcompareError as left:
            if isinstance(error, CommandTimeoutError | OutputLimitError):
                details = f"{error.brief}; {left.details}"
                raise StillRunningError(left.brief, details=details, hint=left.hint) from error
            # `add_note` exists from Python 3.11 on.
            vars(error).setdefault("__notes__", []).append(left.brief)
        raise
    end()
    return result


def ask(
    transport: Transport, command: Command, *, what: str, hint: str, times: float = 1
) -> CommandResult | Check:
    """Return the command's result, or the check of an unusable `what` after the time limit.

    A missing answer does not mean that the host is lost.
    """
    limit_s = PATIENCE_S * times
    try:
        return run(transport, command, timeout_s=limit_s)
    except CommandTimeoutError:
        return silent(what, hint=hint, limit_s=limit_s)


def silent(what: str, *, hint: str, limit_s: float = PATIENCE_S) -> Check:
    """Return the check of a `what` that gave no answer in time."""
    return unusable(f"{what} did not answer within {limit_s:g} s", hint)


def marks(environment: str, isolation: Isolation) -> tuple[tuple[str, str], ...]:
    """Return the variables that every command of a run has in its environment."""
    return (
        (_RUN, isolation.run_id),
        ("ENVCOMPARE_ARM", isolation.arm),
        ("ENVCOMPARE_ENVIRONMENT", environment),
        ("ENVCOMPARE_WORKER", isolation.worker),
    )


def variables_inside(
    environment: str, command: Command, isolation: Isolation
) -> tuple[tuple[str, str], ...]:
    """Return all variables of a command in a container: its own, marks, home, choice of GPUs.

    If a name is repeated the last one counts, so an image's variables cannot hide it from a sweep.
    """
    home = (("HOME", isolation.scratch),) if isolation.scratch else ()
    return (*command.env, *marks(environment, isolation), *home, *isolation.gpu.variables)


def kill_marked(transport: Transport, environment: str, *, run_id: str, worker: str) -> int:
    """Kill this user's marked processes, and what they started.

    Returns their number once all are gone. Raises StillRunningError if some remain.
    """
    script = Command(argv=("sh", "-c", _KILL_MARKED, "sh", run_id, environment, worker))
    return swept(transport, script, hint=f"look for {_RUN}={run_id} in /proc/*/environ there")


def swept(transport: Transport, script: Command, *, hint: str, more_s: float = 0.0) -> int:
    """Return the number that a sweep script prints once nothing is left.

    It has a minute and `more_s`. Raises StillRunningError if it fails, hangs or prints something
    else.
    """
    brief = f"cannot confirm that everything the run started on {transport.name} has ended"
    try:
        result = run(transport, script, timeout_s=SWEEP_S + more_s)
    except CommandTimeoutError as error:
        details = f"{error.brief}; {error.details}"
        raise StillRunningError(brief, details=details, hint=hint) from error
    count = result.stdout.partition("\n")[0]
    if result.succeeded and count.isdecimal():
        return int(count)
    details = f"{spoken(result.tail(5))} (exit {result.exit_code})"
    raise StillRunningError(brief, details=details, hint=hint)
