"""The mark that every process of a run carries, and the search for processes left behind."""

from __future__ import annotations

from envcompare.command import Command
from envcompare.environments import Isolation
from envcompare.errors import UnusableError
from envcompare.transport import Transport
from envcompare.transport.operations import run

RUN = "ENVCOMPARE_RUN"
ENVIRONMENT = "ENVCOMPARE_ENVIRONMENT"
ARM = "ENVCOMPARE_ARM"

# The marks are looked for in the environment of each process, never in its arguments, so that the
# search does not find itself. A killed process may just have forked: look again until none is left.
_KILL_MARKED = r"""
run=$1 environment=$2 me=$(id -u) killed=' ' rounds=0

carries_marks() {
  marks=$(tr '\000' '\n' <"/proc/$1/environ") &&
    printf '%s\n' "$marks" | grep -qxF -e "ENVCOMPARE_RUN=$run" &&
    printf '%s\n' "$marks" | grep -qxF -e "ENVCOMPARE_ENVIRONMENT=$environment"
}

is_mine() {
  while read -r key uid _; do
    [ "$key" != Uid: ] || break
  done <"/proc/$1/status"
  [ "$uid" = "$me" ]
}

while [ "$rounds" -lt 30 ]; do
  left=
  for file in $(grep -lF -e "ENVCOMPARE_RUN=$run" /proc/[0-9]*/environ); do
    pid=${file#/proc/} pid=${pid%/environ}
    [ "$pid" != "$$" ] && is_mine "$pid" && carries_marks "$pid" || continue
    kill -s KILL "$pid" && left=$pid
    case $killed in *" $pid "*) ;; *) killed="$killed$pid " ;; esac
  done 2>/dev/null
  [ -n "$left" ] || break
  rounds=$((rounds + 1))
  sleep 0.1 2>/dev/null || sleep 1
done
set -- $killed
printf %s "$#"
"""


def marks(environment: str, isolation: Isolation) -> tuple[tuple[str, str], ...]:
    """Return the variables that every command of a run has in its environment."""
    return ((RUN, isolation.run_id), (ARM, isolation.arm), (ENVIRONMENT, environment))


def inside(environment: str, command: Command, isolation: Isolation) -> tuple[tuple[str, str], ...]:
    """Return all variables of a command in a container: marks, home, choice of GPUs, its own."""
    home = (("HOME", isolation.scratch),) if isolation.scratch else ()
    return (*marks(environment, isolation), *home, *isolation.gpu.variables, *command.env)


def kill_marked(transport: Transport, environment: str, run_id: str) -> int:
    """Kill the processes of this user that carry the run's mark; return how many there were."""
    argv = ("sh", "-c", _KILL_MARKED, "sh", run_id, environment)
    result = run(transport, Command(argv=argv), timeout_s=60)
    if not result.succeeded:
        raise UnusableError(
            f"cannot look for processes that were left on {transport.name}",
            details=f"{result.tail(1)} (exit {result.exit_code})",
            hint=f"look for {RUN}={run_id} in /proc/*/environ there",
        )
    return int(result.stdout)
