"""Run in an environment: marks on all that starts, its end, the sweep of the rest."""

from __future__ import annotations

from collections.abc import Callable

from envcompare.command import Command, CommandResult
from envcompare.environments import Check, Environment, Isolation, unusable
from envcompare.errors import (
    CommandTimeoutError,
    EnvcompareError,
    OutputLimitError,
    StillRunningError,
)
from envcompare.text import spoken
from envcompare.transport import Transport
from envcompare.transport.operations import run

PATIENCE_S = 60.0
_RUN = "ENVCOMPARE_RUN"
_ENVIRONMENT = "ENVCOMPARE_ENVIRONMENT"
_ARM = "ENVCOMPARE_ARM"
_WORKER = "ENVCOMPARE_WORKER"
SWEEP_S = 60.0
_KILLED = 137  # 128 + SIGKILL, of the client of an engine: what it started may go on

# The marks are looked for in the environment of each process, never in its arguments, so that the
# search does not find itself. What a marked process started may have dropped them: its descendants
# go with it, and are remembered by number and start, since a number alone may be given anew. A
# killed process may just have forked: look again until none is left.
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

while :; do
  left=' ' table=$(processes)
  take_seen
  take_marked
  [ "$left" = ' ' ] || take_descendants
  [ "$left" != ' ' ] || break
  for entry in $left; do
    [ "$rounds" -lt 50 ] || printf '%s %s\n' "${entry%:*}" "$(cat "/proc/${entry%:*}/comm")" >&3
    kill -s KILL "${entry%:*}"
    case $seen in *" $entry "*) ;; *) seen="$seen$entry " ;; esac
  done
  [ "$rounds" -lt 50 ] || exit 3
  rounds=$((rounds + 1))
  sleep 0.1 || sleep 1
done 3>&2 2>/dev/null
set -- $seen
echo "$#"
"""


def run_inside(
    transport: Transport,
    command: Command,
    *,
    where: Environment,
    isolation: Isolation,
    timeout_s: float,
) -> CommandResult:
    """Run a command in an environment to its end; what is given up does not go on inside.

    Raises as `run_wrapped` does.
    """
    # an interruptible one kills all that is started after the user has insisted on an end
    return run_wrapped(
        transport,
        where.wrap(command, isolation),
        end=lambda: where.sweep(transport.bare, isolation.run_id, worker=isolation.worker),
        timeout_s=timeout_s,
    )


def run_wrapped(
    transport: Transport, wrapped: Command, *, end: Callable[[], object], timeout_s: float
) -> CommandResult:
    """Run what an environment is around; where it was killed, `end` ends what goes on inside.

    Raises CommandTimeoutError after `timeout_s`, and StillRunningError where what was given up on a
    host that answers cannot be ended. Whatever else stopped it is raised as it came.
    """
    try:
        result = run(transport, wrapped, timeout_s=timeout_s)
    except BaseException as error:
        _end_after(error, end)
        raise
    if result.exit_code == _KILLED:
        end()
    return result


def _end_after(error: BaseException, end: Callable[[], object]) -> None:
    try:
        end()
    except EnvcompareError as left:
        if isinstance(error, CommandTimeoutError | OutputLimitError):
            details = f"{error.brief}; {left.details}"
            raise StillRunningError(left.brief, details=details, hint=left.hint) from error
        error.add_note(left.brief)


def ask(
    transport: Transport, command: Command, *, what: str, hint: str, times: float = 1
) -> CommandResult | Check:
    """Return what the command said, or that `what` is unusable when no answer comes in time.

    The host itself may be well, so this is not the loss of it.
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


def inside(environment: str, command: Command, isolation: Isolation) -> tuple[tuple[str, str], ...]:
    """Return all variables of a command in a container: marks, home, choice of GPUs, its own."""
    home = (("HOME", isolation.scratch),) if isolation.scratch else ()
    return (*marks(environment, isolation), *home, *isolation.gpu.variables, *command.env)


def kill_marked(transport: Transport, environment: str, *, run_id: str, worker: str) -> int:
    """Kill the processes of this user that carry the marks, and what they started.

    Returns how many there were when all are gone. Raises StillRunningError where they are not.
    """
    script = Command(argv=("sh", "-c", _KILL_MARKED, "sh", run_id, environment, worker))
    return swept(transport, script, hint=f"look for {_RUN}={run_id} in /proc/*/environ there")


def swept(transport: Transport, script: Command, *, hint: str) -> int:
    """Return the number that a script of a sweep ends with when nothing is left.

    Raises StillRunningError where it fails, does not end or says something else.
    """
    brief = f"cannot confirm that everything the run started on {transport.name} has ended"
    try:
        result = run(transport, script, timeout_s=SWEEP_S)
    except CommandTimeoutError as error:
        details = f"{error.brief}; {error.details}"
        raise StillRunningError(brief, details=details, hint=hint) from error
    count = result.stdout.partition("\n")[0]
    if result.succeeded and count.isdecimal():
        return int(count)
    said = spoken(result.tail(5))
    raise StillRunningError(brief, details=f"{said} (exit {result.exit_code})", hint=hint)
