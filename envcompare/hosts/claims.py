"""Track what each run owns on a host, and clean up after runs that died.

A run that owns something on a host holds a process there, which ends with the connection or the
client. The run's folder records the process's number and start time: the claim. If the process is
gone, everything marked with the run may be removed. Claims are in the cache of one login, so that
runs of other logins are never judged.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, cast

from envcompare.command import Command
from envcompare.environments.registry import ENVIRONMENTS
from envcompare.errors import StillRunningError, UnusableError
from envcompare.run_folder.disk import is_run_id
from envcompare.stack.storage import OPEN_FOLDERS
from envcompare.transport import FOLDER_S, Drain, Process, Transport, shell

State = Literal["live", "dead", "elsewhere", "unknown"]
"""Of a claim: elsewhere is on another host with the same home; unknown is a folder without one."""

_BEGIN_S = 30.0
_ANSWER_BYTES = 100
_LINE = re.compile(
    r"(live|dead|elsewhere|unknown) ([^/ ]+)/([^/ ]*) ([0-9]+) ([0-9]+) (\S+) ([a-z? ]*)"
)
_BOOT = "boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null) || boot=-"
_HOLD = rf"""
umask 077
folder=$1
mkdir -p -- "$folder" || exit
{_BOOT}
read -r line <"/proc/$$/stat" || exit
set -- ${{line##*) }}
printf '%s %s %s %s\n' "$$" "${{20}}" "$boot" "$(uname -n)" >"$folder/.owner.part" || exit
mv -f -- "$folder/.owner.part" "$folder/.owner" || exit
echo claimed
exec cat >/dev/null
"""
_IS_RUNNING = """is_running() {
  read -r line <"/proc/$1/stat" || return 1
  own=$2
  set -- ${line##*) }
  [ "${20}" = "$own" ]
}"""
_END = f'{_IS_RUNNING}; ! is_running "$1" "$2" 2>/dev/null || kill -s KILL "$1"'
_NOTE = 'umask 077; printf "%s " "$2" >>"$1/.environments"'
# What cannot be judged counts as dead after a week. Links are not followed: none is created here.
_SURVEY = rf"""
{_BOOT}
node=$(uname -n)
[ -d "$1/runs" ] && [ ! -L "$1/runs" ] && cd -- "$1/runs" || exit 0
is_old() {{ [ -n "$(find "./$1" -prune -mtime +6)" ]; }}
{_IS_RUNNING}
for run in *; do
  [ -d "$run" ] && [ ! -L "$run" ] || continue
  found=
  for owner in "$run"/*/.owner; do
    [ -f "$owner" ] && [ ! -L "$owner" ] || continue
    read -r pid start was at <"$owner" || continue
    used=$(cat -- "${{owner%.owner}}.environments")
    found=1 state=dead
    if [ "$at" != "$node" ]; then is_old "$owner" || state=elsewhere
    elif [ "$was" = "$boot" ] && is_running "$pid" "$start"; then state=live; fi
    printf '%s %s %s %s %s %s\n' "$state" "${{owner%/.owner}}" "$pid" "$start" "$at" "$used"
  done
  [ -z "$found" ] || continue
  state=unknown
  ! is_old "$run" || state=dead
  printf '%s %s/ 0 0 - ?\n' "$state" "$run"
done 2>/dev/null
"""
_NOT_THERE = 3
_KILLED = 137  # 128 + SIGKILL: the result is unknown
_REMOVE = (
    OPEN_FOLDERS
    + r"""
[ -d "$1/runs/$2" ] || exit 3
for link in "$1/runs/$2/.temporary" "$1/runs/$2"/*/.temporary; do
  folder=$(readlink -- "$link") && [ ! -L "$folder" ] && [ -O "$folder" ] || continue
  case $folder in /*/*"${2%%/*}") open_folders "$folder" 2>/dev/null; rm -rf -- "$folder" ;; esac
done
open_folders "$1/runs/$2" 2>/dev/null
rm -rf -- "$1/runs/$2" || exit 1
rmdir -- "$1/runs/${2%%/*}" 2>/dev/null || :
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run that has or had something on a host."""

    run_id: str
    state: State = "dead"
    host: str = ""  # the name of the host's folder; empty if the run's folder has none
    pid: int = 0  # of the process that holds it
    start: int = 0  # of that process, in clock ticks since the host booted
    node: str = ""  # the host's own name
    environments: tuple[str, ...] | None = None  # that it used, if known

    @property
    def is_live(self) -> bool:
        """Return whether a client is, or may be, using the run."""
        return self.state in {"live", "elsewhere"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What was removed from a host, and what could not be, in lines for the terminal."""

    removed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Return all lines."""
        return (*self.removed, *self.failed)


def hold(transport: Transport, folder: str) -> Process:
    """Claim the folder of a run for as long as the returned process lives.

    Raises UnusableError if the claim cannot be written.
    """
    process = transport.spawn(Command(argv=("sh", "-c", _HOLD, "sh", folder)))
    patience = threading.Timer(_BEGIN_S, process.kill)
    patience.start()
    said = Drain(process.stderr)
    is_held = process.stdout.readline(_ANSWER_BYTES).strip() == b"claimed"
    patience.cancel()
    if is_held:
        return process
    process.kill()
    why = said.last_line()
    raise UnusableError(
        f"{folder} cannot be made on {transport.name}",
        details=why or "no message",
        hint="set XDG_CACHE_HOME there to a writable folder",
    )


def refresh(folder: str) -> None:
    """Keep a claim of this machine fresh: another host can judge it only by its age."""
    with suppress(OSError):  # of a network file system
        os.utime(f"{folder}/.owner")


def note_use(transport: Transport, folder: str, environment: str) -> None:
    """Record in a claim that something will be started in an environment."""
    shell(transport, _NOTE, folder, environment)


def survey(transport: Transport, cache: str) -> tuple[Claim, ...]:
    """Return the runs that have a folder in the cache of a host, one for each name of the host.

    Raises UnusableError if the search was killed.
    """
    done = shell(transport, _SURVEY, cache)
    if done.exit_code == _KILLED:
        raise UnusableError(
            f"cannot see which runs use {cache} on {transport.name}",
            details="the search was killed",
            hint="run the same command again",
        )
    matches = (_LINE.fullmatch(line) for line in done.stdout.splitlines())
    return tuple(
        Claim(
            run_id=match[2],
            state=cast("State", match[1]),
            host=match[3],
            pid=int(match[4]),
            start=int(match[5]),
            node=match[6],
            environments=_known(match[7]),
        )
        for match in matches
        if match is not None and is_run_id(match[2])
    )


def end(transport: Transport, claim: Claim) -> bool:
    """End the process that holds a claim of a lost client; return whether it has ended."""
    return shell(transport, _END, str(claim.pid), str(claim.start)).succeeded


def refusal(claim: Claim, host: str) -> UnusableError:
    """Return the error for an action that would harm a live run."""
    where = f"process {claim.pid} on {claim.node}"
    return UnusableError(
        f"the run {claim.run_id} is still running on {host}",
        details=f"{where} holds its folder",
        hint=f"wait for it; if it hangs, end {where}",
    )


def remove_dead(transport: Transport, cache: str) -> Removal:
    """Remove what dead runs left on a host; return what there was."""
    known = survey(transport, cache)
    live = {claim.run_id for claim in known if claim.is_live}
    dead = [claim for claim in known if claim.state == "dead" and claim.run_id not in live]
    removals = [remove(transport, cache, claim) for claim in dead]
    return Removal(
        removed=tuple(text for removal in removals for text in removal.removed),
        failed=tuple(text for removal in removals for text in removal.failed),
    )


def remove(transport: Transport, cache: str, claim: Claim) -> Removal:
    """End the processes of a run on a host, and remove its folder; return what there was.

    The folder stays if not everything can be ended, so that a later search finds it again. Raises
    ValueError for an invalid ID, which could match something else.
    """
    if not is_run_id(claim.run_id):
        raise ValueError(f"{claim.run_id!r} is no ID of a run")
    removed: list[str] = []
    failed: list[str] = []
    for name in ENVIRONMENTS if claim.environments is None else claim.environments:
        try:
            count = ENVIRONMENTS[name].sweep(transport, claim.run_id)
        except StillRunningError as error:
            if claim.environments is not None:  # otherwise it may never have been used
                failed.append(f"{name}: {error.brief}: {error.details}")
        else:
            removed += [f"{name} ({count})"] * bool(count)
    if not failed:
        folder = f"{claim.run_id}/{claim.host}".rstrip("/")
        done = shell(transport, _REMOVE, cache, folder, timeout_s=FOLDER_S)
        removed += ["its folder"] * done.succeeded
        if not done.succeeded and done.exit_code != _NOT_THERE:
            failed.append(f"{cache}/runs/{claim.run_id} cannot be removed: {done.tail(1)}")
    text = f"removed what was left of the run {claim.run_id}: {', '.join(removed)}"
    return Removal(removed=(text,) if removed else (), failed=tuple(failed))


def _known(names: str) -> tuple[str, ...] | None:
    if names == "?":
        return None
    return tuple(name for name in ENVIRONMENTS if name in names.split())
