"""The labels of what a run has in the store of an engine, and the removal of what carries them.

A container outlives its client, and an image has no process: neither is found as processes are.
"""

from __future__ import annotations

from envcompare.command import Command
from envcompare.environments import swept
from envcompare.transport import FOLDER_S, Transport

RUN_LABEL = "envcompare.run"
ARM_LABEL = "envcompare.arm"
WORKER_LABEL = "envcompare.worker"
# A container that removes itself is still listed for a moment. A daemon that is restarted does not
# answer for some seconds, and is asked once a second.
_REMOVE = r"""
label=$1 tries=$2 program=$3 removed=' ' rounds=0 failures=0
command -v "$program" >/dev/null || { echo 0; exit; }
while :; do
  ids=$("$program" ps --all --quiet --no-trunc --filter "label=$label") || {
    failures=$((failures + 1))
    [ "$failures" -lt "$tries" ] || exit 4
    sleep 1
    continue
  }
  [ -n "$ids" ] || break
  case $(printf %s "$ids" | tr -d '0-9a-f\n') in ?*) printf '%s\n' "$ids" >&2; exit 6 ;; esac
  [ "$rounds" -lt 100 ] || exit 5
  for id in $("$program" rm --force --volumes $ids); do
    case $removed in *" $id "*) ;; *) removed="$removed$id " ;; esac
  done
  rounds=$((rounds + 1))
  sleep 0.1 || sleep 1
done
set -- $removed
echo "$#"
"""
# What an image stands on is the user's, and stays also where it has no name.
_REMOVE_IMAGES = r"""
label=$1 program=$2
command -v "$program" >/dev/null || { echo 0; exit; }
images=$("$program" image ls --quiet --no-trunc --filter "label=$label") || exit
[ -z "$images" ] || "$program" image rm --force --no-prune $images >/dev/null || exit
echo 0
"""
_TRIES = 20
_TRIES_OF_WORKER = 60  # one that ran a moment ago: its daemon restarts, and will answer again


def remove_labelled(transport: Transport, program: str, *, run_id: str, worker: str) -> int:
    """Remove the containers of a run or a worker from an engine; return how many there were.

    The images that a run has put data into go with it. Raises as `swept`.
    """
    label = f"{WORKER_LABEL}={worker}" if worker else f"{RUN_LABEL}={run_id}"
    tries = _TRIES_OF_WORKER if worker else _TRIES
    count = swept(
        transport,
        Command(argv=("sh", "-c", _REMOVE, "sh", label, str(tries), program)),
        hint=f"see what {program} ps --all --filter label={label} says there",
        more_s=tries,
    )
    if not worker:
        swept(
            transport,
            Command(argv=("sh", "-c", _REMOVE_IMAGES, "sh", label, program)),
            hint=f"see what {program} image ls --filter label={label} says there",
            more_s=FOLDER_S,
        )
    return count
