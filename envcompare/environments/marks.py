"""The mark that every process of a run carries, and the search for processes left behind."""

from __future__ import annotations

from envcompare.command import Command
from envcompare.environments import Isolation
from envcompare.errors import CommandTimeoutError, StillRunningError
from envcompare.text import spoken
from envcompare.transport import Transport
from envcompare.transport.operations import run

RUN = "ENVCOMPARE_RUN"
ENVIRONMENT = "ENVCOMPARE_ENVIRONMENT"
ARM = "ENVCOMPARE_ARM"
WORKER = "ENVCOMPARE_WORKER"
SWEEP_S = 60.0

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


def marks(environment: str, isolation: Isolation) -> tuple[tuple[str, str], ...]:
    """Return the variables that every command of a run has in its environment."""
    return (
        (RUN, isolation.run_id),
        (ARM, isolation.arm),
        (ENVIRONMENT, environment),
        (WORKER, isolation.worker),
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
    return swept(transport, script, hint=f"look for {RUN}={run_id} in /proc/*/environ there")


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
