"""How a command is isolated on a host: the Environment seam, and how a command runs in any of them.

Each environment is one file. What is started carries marks, by which the rest is swept.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

from envcompare.command import Command, CommandResult
from envcompare.config.arms import Compression, Place, Traits
from envcompare.errors import (
    CommandTimeoutError,
    EnvcompareError,
    OutputLimitError,
    Problem,
    StillRunningError,
)
from envcompare.stack import Engine, Mount, Prepared, Request
from envcompare.text import spoken
from envcompare.transport import Transport, run

PATIENCE_S = 60.0
_RUN = "ENVCOMPARE_RUN"
_ENVIRONMENT = "ENVCOMPARE_ENVIRONMENT"
_ARM = "ENVCOMPARE_ARM"
_WORKER = "ENVCOMPARE_WORKER"
SWEEP_S = 60.0
READS_ALL = "DAC_OVERRIDE"
"""The capability that root inside keeps: it can read all mounted files, whoever owns them."""
UPPER = "upper"
"""The folder of a scratch where an environment keeps what is written to its overlay."""
HELD = "/envcompare-data"
"""Where an image holds data; where Docker and Podman mount a tmpfs for them, too."""
_AWAY_S = 60.0  # an engine may restart
# The marks are looked for in the environment of each process, never in its arguments, so that the
# search does not find itself. Descendants of a marked process may have dropped the marks, so they
# are killed too. They are remembered by number and start, since the kernel reuses numbers. A killed
# process may just have forked: look again until none is left.
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
# By a CDI description, by the engine's own option, or by the driver's files themselves.
GpuWay = Literal["none", "cdi", "engine", "devices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """How a process in an environment reaches the NVIDIA GPUs of the host, and what they need."""

    way: GpuWay = "none"
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()  # of the devices, where the user is in them
    libraries: tuple[tuple[str, str], ...] = ()  # of the driver: name and path on the host
    variables: tuple[tuple[str, str], ...] = ()  # by which the user chose among the GPUs

    @property
    def with_host_files(self) -> Gpu:
        """Return the way into a container that shows the host's files, including the driver's.

        Not by CDI or the NVIDIA toolkit: they rewrite the loader cache, which is the host's and
        read-only there.
        """
        return self if self.way == "none" else replace(self, way="devices", libraries=())


def new_worker_mark() -> str:
    """Return a mark by which everything that one start leaves on a host is found again."""
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """All that `wrap` needs in addition to the command."""

    run_id: str
    arm: str
    worker: str = field(default_factory=new_worker_mark)  # another one for each start
    reference: str = ""  # image ID or name, SIF path; empty for vm
    engine: str = ""  # the program that `check` found, where it has several names
    uid: int = 0
    gid: int = 0
    gpu: Gpu = Gpu()
    mounts: tuple[Mount, ...] = ()
    scratch: str = ""  # a writable folder of the host: HOME inside, and /tmp where that is needed
    temporary: str = ""  # its TMPDIR on the host; empty where that is what is usual inside
    capabilities: tuple[str, ...] = ()  # as Docker names them; only root has the use of them
    options: tuple[str, ...] = ()  # of the engine's command, that the user has given
    layers: tuple[tuple[str, str], ...] = ()  # as `Prepared` names them
    place: Place | None = None  # of the data, where it was asked for
    is_timed: bool = False  # what is timed gets the file system that a user's own start has


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Whether something is usable on a host; where it is not, the problem with its remedy."""

    problem: Problem | None = None  # of what is not usable
    version: str | None = None
    caution: Problem | None = None  # of what is usable, and could be better
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
    """Return whether an engine could start a program that is not there, which it then missed.

    `begun` matches what it says of that; `complaint` reads everything else that it says. What it is
    `refused` for comes first.
    """
    if refused is not None:
        return Check(problem=refused, version=version)
    problem = None if begun.search(stderr) else complaint(stderr)
    return Check(problem=problem, version=version)


class Environment(Protocol):
    """Isolates a command; everything specific to an environment is in its own file."""

    @property
    def name(self) -> str:
        """Name the environment as the user writes it."""
        ...

    @property
    def traits(self) -> Traits:
        """Tell what planning, profiling and remedies need to know of it."""
        ...

    @property
    def engine(self) -> Engine | None:
        """Return the engine that keeps its images; None where its software is in the cache."""
        ...

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return the command that runs `command` isolated; pure."""
        ...

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:
        """Return the options that make a start differ from the engine's defaults; pure.

        Those for rights, network and logs, not those that name a user, a file, a device or a mark.
        """
        ...

    def check(self, transport: Transport) -> Check:
        """Say whether this environment is usable on the host, and if not why and the remedy."""
        ...

    def check_gpu(self, transport: Transport, driver: Check) -> Check:
        """Say whether a process in this environment can reach an NVIDIA GPU, and by which way.

        `driver` is what `gpu.find` says of the host, which is asked once for all environments.
        """
        ...

    def prepare(self, request: Request) -> Prepared:
        """Return the software of an arm, made if needed, with the proof of what it is.

        Raises UnusableError when the host lacks an interpreter or an engine, and StackError when
        the software cannot be made, found or sent.
        """
        ...

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Say why the environment itself could not start a command; None when it did start it."""
        ...

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """End and remove what a run has on the host; return how many things there were.

        With the mark of a worker only what was started with it. Raises StillRunningError where it
        cannot be shown within minutes that all of it has ended.
        """
        ...


@runtime_checkable
class HoldsData(Protocol):
    """An environment whose images can hold data."""

    def hold(
        self, transport: Transport, isolation: Isolation, data: str, *, compression: Compression
    ) -> str:
        """Return the reference of an image with a folder of the host in it, at its own place.

        It is removed with the run. Raises StackError where it cannot be made.
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
    """Run a command in an environment to its end; nothing that it started goes on inside.

    Raises as `run_wrapped` does.
    """

    # an interruptible one kills all that is started after the user has insisted on an end
    def end() -> int:
        return where.sweep(transport.bare, isolation.run_id, worker=isolation.worker)

    until = time.monotonic() + _AWAY_S
    while True:
        result = run_wrapped(
            transport, where.wrap(command, isolation), end=end, timeout_s=timeout_s
        )
        problem = None if result.succeeded else where.explain(result.exit_code, result.stderr)
        if problem is None or not problem.passes or time.monotonic() > until:
            return result


def run_wrapped(
    transport: Transport, wrapped: Command, *, end: Callable[[], object], timeout_s: float
) -> CommandResult:
    """Run what an environment is around; `end` ends what it left behind, however it ended.

    Raises CommandTimeoutError after `timeout_s`, and StillRunningError where what goes on on a host
    that answers cannot be ended. Whatever else stopped it is raised as it came.
    """
    try:
        result = run(transport, wrapped, timeout_s=timeout_s)
    except BaseException as error:
        _end_after(error, end)
        raise
    end()
    return result


def _end_after(error: BaseException, end: Callable[[], object]) -> None:
    try:
        end()
    except EnvcompareError as left:
        if isinstance(error, CommandTimeoutError | OutputLimitError):
            details = f"{error.brief}; {left.details}"
            raise StillRunningError(left.brief, details=details, hint=left.hint) from error
        vars(error).setdefault("__notes__", []).append(left.brief)  # add_note, from Python 3.11 on


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
    """Return that `what` is unusable, since it gave no answer in time."""
    return unusable(f"{what} did not answer within {limit_s:g} s", hint)


def marks(environment: str, isolation: Isolation) -> tuple[tuple[str, str], ...]:
    """Return the variables that every command of a run has in its environment."""
    return (
        (_RUN, isolation.run_id),
        (_ARM, isolation.arm),
        (_ENVIRONMENT, environment),
        (_WORKER, isolation.worker),
    )


def variables_inside(
    environment: str, command: Command, isolation: Isolation
) -> tuple[tuple[str, str], ...]:
    """Return all variables of a command in a container: its own, marks, home, choice of GPUs.

    Of two with one name the last counts: what an image sets hides nothing from a sweep.
    """
    home = (("HOME", isolation.scratch),) if isolation.scratch else ()
    return (*command.env, *marks(environment, isolation), *home, *isolation.gpu.variables)


def kill_marked(transport: Transport, environment: str, *, run_id: str, worker: str) -> int:
    """Kill the processes of this user that carry the marks, and what they started.

    Returns how many there were when all are gone. Raises StillRunningError where they are not.
    """
    script = Command(argv=("sh", "-c", _KILL_MARKED, "sh", run_id, environment, worker))
    return swept(transport, script, hint=f"look for {_RUN}={run_id} in /proc/*/environ there")


def swept(transport: Transport, script: Command, *, hint: str, more_s: float = 0.0) -> int:
    """Return the number that a script of a sweep ends with when nothing is left.

    It has a minute and `more_s`. Raises StillRunningError where it fails, does not end or says
    something else.
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
