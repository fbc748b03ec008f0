"""What a client holds on a host: its lock, and a claim for each run.

Lock: one client at a time measures or cleans there, whatever its login. A process on the host holds
an flock on an empty file while the connection lives. The arguments of that process name the holder,
so that nothing is written to a file that others may have created, and nothing is left when client
or connection die.

Claim: a run that owns something on a host holds a process there, which ends with the connection or
the client. The run's folder records the process's number and start time. If the process is gone,
everything marked with the run may be removed. Claims are in the cache of one login, so that runs of
other logins are never judged.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Literal, cast

from envcompare.environments import Environment
from envcompare.errors import (
    CommandTimeoutError,
    HostHeldError,
    Interruption,
    StillRunningError,
    TransportError,
    UnusableError,
)
from envcompare.run_folder import is_run_id
from envcompare.stack.storage import OPEN_FOLDERS
from envcompare.text import Command, age_text, spoken
from envcompare.transport import FOLDER_S, Drain, Process, Transport, shell
from envcompare.transport.hosts import HostSpec

Purpose = Literal["run", "clean"]

_BEGIN_S: Final = 30.0
# A client that was just killed needs a moment to disappear.
_GRACE_S: Final = 2.0
# The connection of a killed part of this run may last some seconds longer.
_SAME_RUN_GRACE_S: Final = 10.0
_PAUSE_S: Final = 1.0
_TICK_S: Final = 0.2  # how often Ctrl-C is checked
_SAY_EVERY_S: Final = 60.0
_END_S: Final = 5.0
_ANSWER_BYTES: Final = 4096
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LINE: Final = re.compile(
    r"(?P<pid>[0-9]+) (?P<login>\S+) (?P<since>[0-9]+) (?P<purpose>run|clean) "
    r"(?P<run_id>[A-Za-z0-9._-]+) (?P<label>[A-Za-z0-9._-]+) (?P<client>[A-Za-z0-9._-]+) "
    r"(?P<client_pid>[0-9]+)"
)
_FILE = "file=${ENVCOMPARE_LOCK_FOLDER:-/tmp}/envcompare-measuring.lock"
# What may lock what is open as 9, and the exit code by which each says that it is held.
_LOCKING = r"""if command -v flock >/dev/null 2>&1; then held=1; flock -n "$how" 9 9<&9
elif command -v python3 >/dev/null 2>&1; then held=75; python3 -c '
import fcntl, sys
kind = fcntl.LOCK_SH if sys.argv[1] == "-s" else fcntl.LOCK_EX
try:
    fcntl.flock(9, kind | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(75)
except OSError:
    sys.exit(2)
' "$how" 9<&9"""
# Another user may have created anything there: no link is followed and nothing is opened for
# writing, which fs.protected_regular refuses for files of others. O_EXCL (set -C) follows no link.
# A shell may close descriptors above 2 for its children, unless they are named.
# If the file was replaced before it was locked, the lock keeps nobody away: it counts as held, and
# is tried again.
_TAKE = rf"""
{_FILE}
umask 022
no() {{ printf 'no\t%s\n' "$1"; exit 0; }}
[ -e "$file" ] || [ -L "$file" ] || (set -C; : >"$file") 2>/dev/null
[ ! -L "$file" ] || no "$file is a link"
[ -e "$file" ] || no "$file cannot be made"
[ -f "$file" ] || no "$file is not a regular file"
[ -r "$file" ] || no "$file cannot be read by this login"
exec 9<"$file" || exit
how=-x
{_LOCKING}
else no "it has neither flock nor python3"; fi
case $? in
  0) ;;
  "$held") echo held; exit 0 ;;
  1 | 126 | 127) no "its program that locks files cannot be started" ;;
  *) no "its file system refuses to lock $file" ;;
esac
[ ! -e "/proc/$$/fd/9" ] || [ "/proc/$$/fd/9" -ef "$file" ] || {{ echo held; exit 0; }}
id=$(stat -Lc %d:%i -- "$file")
exec sh -c 'printf "locked\t%s\n" "$$"; while read -r line; do :; done' envcompare-host-lock \
  "$id" "$(date +%s)" "$@" 9<&9
"""
# The brackets keep the search from matching itself. A host sees the processes of its containers,
# but their file is a different one.
_ASK = rf"""
{_FILE}
id=$(stat -Lc %d:%i -- "$file")
printf '%s\n%s\n' "$file" "$(date +%s)"
for line in $(grep -lszx 'envcompare-host-loc[k]' /proc/[0-9]*/cmdline); do
  pid=${{line#/proc/}} pid=${{pid%/cmdline}}
  said=$(tr '\000' '\n' <"$line" | sed '1,/^envcompare-host-loc[k]$/d' | tr '\n' ' ')
  [ "${{said%% *}}" = "$id" ] || continue
  printf '%s %s %s\n' "$pid" "$(stat -c %U "/proc/$pid")" "${{said#* }}"
done 2>/dev/null
exit 0
"""
# Shared, and only for a moment: a client that comes then tries again.
_IS_HELD = rf"""
{_FILE}
[ -f "$file" ] && [ ! -L "$file" ] && [ -r "$file" ] && exec 9<"$file" || exit 0
how=-s
{_LOCKING}
else exit 0; fi 2>/dev/null
[ "$?" != "$held" ] || printf '%s\n' "$file"
"""
_IS_LOST = rf"""
{_FILE}
[ -e "/proc/$1/fd/9" ] && [ ! "/proc/$1/fd/9" -ef "$file" ]
"""
# By now the number may belong to another process.
_END = r"""
grep -qszx 'envcompare-host-loc[k]' "/proc/$1/cmdline" || exit 0
kill -s KILL -- "$1" || exit
tries=0
while [ -e "/proc/$1/fd/9" ] && [ "$tries" -lt 50 ]; do tries=$((tries + 1)); sleep 0.1; done
:
"""


_KEEPERS: Final[set[str]] = set()
"""The keepers that this client ever started, by process number on their hosts."""
_BROKEN: Final = (
    "the lock of the host was broken: if another client measured at the same time, measure again"
)
State = Literal["live", "dead", "elsewhere", "unknown"]
"""Of a claim: elsewhere is on another host with the same home; unknown is a folder without one."""
_CLAIM_LINE = re.compile(
    r"(live|dead|elsewhere|unknown) ([^/ ]+)/([^/ ]*) ([0-9]+) ([0-9]+) (\S+) ([a-z0-9? -]*)"
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
_END_CLAIM = f'{_IS_RUNNING}; ! is_running "$1" "$2" 2>/dev/null || kill -s KILL "$1"'
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
# 128 + SIGKILL: of a command that was killed, the result is not known.
_KILLED = 137
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
class Holder:
    """The holder of a host, from the arguments of a process there."""

    pid: int
    login: str
    age_s: float
    purpose: Purpose
    run_id: str
    label: str  # of the host, chosen by its client
    client: str  # the name of the client's machine
    client_pid: int

    @property
    def sentence(self) -> str:
        """Describe the holder, where it was started, and how long it has held the host."""
        what = f"the run {self.run_id}" if self.purpose == "run" else "`envcompare clean`"
        return (
            f"{what}, started by process {self.client_pid} on {self.client} with the login "
            f"{self.login}, has held it for {age_text(self.age_s)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """A client that requests a host, and its name for the host."""

    host: str
    purpose: Purpose
    run_id: str
    address: str = ""  # for --hosts, if the name is none

    @classmethod
    def of(cls, host: HostSpec, purpose: Purpose, run_id: str) -> Asker:
        """Name a host of the plan; a node of a job is reached by its own name."""
        address = host.node or str(host)
        return cls(host=host.label, purpose=purpose, run_id=run_id, address=address)

    @property
    def words(self) -> tuple[str, ...]:
        """Return what others see of it."""
        here = (platform.node() or "unknown", str(os.getpid()))
        return tuple(_safe(word) for word in (self.purpose, self.run_id, self.host, *here))

    def is_this_client(self, holder: Holder) -> bool:
        """Return whether a holder is this process at the same run, judging by its arguments.

        Anybody on the host can imitate them, but not the number of a process that it started.
        """
        _, run_id, _, client, pid = self.words
        there = (holder.run_id, holder.client, str(holder.client_pid))
        return there == (run_id, client, pid) and str(holder.pid) in _KEEPERS

    def is_same(self, holder: Holder) -> bool:
        """Return whether a holder is this client's, of this very host."""
        return self.is_this_client(holder) and holder.label == _safe(self.host)


@dataclass(slots=True, kw_only=True)
class HostLock:
    """A locked host; without a keeper it is not locked, and `why_not` says why."""

    keeper: Process | None = None
    pid: str = ""  # of the keeper, on the host
    transport: Transport | None = None  # to the host
    why_not: str = ""
    is_shared: bool = False  # held by this client under another name of the same host

    def loss(self) -> str:
        """Return how the lock was lost: somebody ended its keeper, or removed its file.

        Empty if it is held, or if the connection is lost.
        """
        if self.keeper is None or self.transport is None:
            return ""
        try:
            self.keeper.wait(0)
        except CommandTimeoutError:
            # What tidies /tmp may remove the file of the lock, and another client then locks a new
            # one.
            # A host that does not answer has not shown that the locked file was replaced.
            with suppress(CommandTimeoutError, TransportError):
                return _BROKEN if shell(self.transport, _IS_LOST, self.pid).succeeded else ""
            return ""
        except TransportError:
            return ""
        return _BROKEN

    @property
    def doubt(self) -> str:
        """Return why another client may measure at the same time; empty if none can."""
        if not self.why_not:
            return ""
        return (
            f"the host cannot be locked ({self.why_not}): make sure that no other client measures "
            "there, or set ENVCOMPARE_LOCK_FOLDER there to another folder"
        )

    def release(self) -> None:
        """Free the host; safe to repeat, and after the connection has ended."""
        if self.keeper is not None:
            with suppress(OSError, TransportError):
                # The keeper ends by itself at the end of its input if the connection is alive.
                self.keeper.stdin.close()
            try:
                self.keeper.wait(_END_S)
            except UnusableError:
                self.keeper.kill()
            self.keeper = None


def take(
    transport: Transport,
    asker: Asker,
    *,
    wait_s: float,
    interruption: Interruption,
    say: Callable[[str], None],
) -> HostLock:
    """Lock a host, waiting for its holder; a host that cannot be locked says why.

    Raises HostHeldError, naming the holder, if the host is still held after `wait_s`, and
    InterruptedRunError if the user stops.
    """
    begun, said, unseen = time.monotonic(), float("-inf"), 0
    while True:
        lock = _try(transport.bare, asker)
        if lock is not None:
            return lock
        holder, file = _holder(transport)
        if holder is not None and asker.is_this_client(holder):
            return HostLock(is_shared=True)
        unseen = unseen + 1 if holder is None else 0
        # It may be changing hands: look again in a moment.
        if unseen == 1:
            _pause(interruption)
            continue
        waited_s = time.monotonic() - begun
        is_same_run = holder is not None and holder.run_id == _safe(asker.run_id)
        if waited_s >= max(wait_s, _SAME_RUN_GRACE_S if is_same_run else _GRACE_S):
            raise _refusal(asker, holder, file)
        if wait_s and time.monotonic() - said >= _SAY_EVERY_S:
            said = time.monotonic()
            say(f"waiting for the host ({age_text(waited_s)}): {_who(holder, file)}")
        _pause(interruption)


@contextmanager
def held(
    transport: Transport,
    asker: Asker,
    *,
    wait_s: float,
    interruption: Interruption,
    say: Callable[[str], None],
) -> Iterator[None]:
    """Keep a host locked inside the block, and report if it cannot be; raises as `take`."""
    lock = take(transport, asker, wait_s=wait_s, interruption=interruption, say=say)
    if lock.doubt:
        say(lock.doubt)
    try:
        yield
    finally:
        lock.release()


def holder_of(transport: Transport) -> Holder | None:
    """Return the holder of a host, if this login can see it."""
    return _holder(transport)[0]


def unknown_holder(transport: Transport) -> str:
    """Return what is known of a holder that names itself to nobody; empty if none holds the host.

    It is another program, or hidden from this login.
    """
    file = shell(transport, _IS_HELD).stdout.strip()
    return _who(None, file) if file else ""


def end(transport: Transport, holder: Holder) -> None:
    """End the process that holds a host; raises UnusableError if this login may not."""
    done = shell(transport, _END, str(holder.pid))
    if not done.succeeded:
        raise UnusableError(
            f"this login cannot break the lock of {transport.name}",
            details=f"{holder.sentence}; {done.tail(1)}",
            hint=f"log in there as {holder.login} or root: kill {holder.pid}",
        )


def end_lost(transport: Transport, asker: Asker) -> None:
    """End this client's own holder on a host whose connection was lost."""
    holder = holder_of(transport)
    if holder is not None and asker.is_same(holder):
        end(transport, holder)


def _refusal(asker: Asker, holder: Holder | None, file: str) -> HostHeldError:
    wait = "wait for it with --wait, or --wait=SECONDS"
    if holder is None:
        return HostHeldError(
            f"{asker.host} is in use",
            details=_who(holder, file),
            hint=f"{wait}; `sudo fuser -v {shlex.quote(file)}` on the host names the process",
        )
    what = "run" if holder.purpose == "run" else "`envcompare clean`"
    address = asker.address or asker.host
    break_it = f"envcompare clean --hosts {shlex.quote(address)} --break-lock"
    return HostHeldError(
        f"{asker.host} is in use by another {what}",
        details=holder.sentence,
        hint=f"{wait}; if it hangs, free the host with `{break_it}`, or `kill {holder.pid}` there",
    )


def _who(holder: Holder | None, file: str) -> str:
    return (
        holder.sentence
        if holder
        else f"another program, or a process that this login cannot see, has locked {file}"
    )


def _try(transport: Transport, asker: Asker) -> HostLock | None:
    """Lock a host; None where another process holds it."""
    process = transport.spawn(Command(argv=("sh", "-c", _TAKE, "sh", *asker.words)))
    answer, complaint = _first_line(process)
    state, _, value = answer.partition("\t")
    if state == "locked":
        lock = HostLock(keeper=process, pid=value, transport=transport)
        _KEEPERS.add(lock.pid)
        return lock
    try:
        code = process.wait(_END_S)
    finally:
        process.kill()
    if state == "held":
        return None
    why = value if state == "no" else ""
    message = spoken(complaint.last_line())
    return HostLock(why_not=why or f"the attempt ended with exit code {code} and said: {message}")


def _first_line(process: Process) -> tuple[str, Drain]:
    # `readline` has no time limit, so a host that does not answer is left by killing the process.
    patience = threading.Timer(_BEGIN_S, process.kill)
    patience.start()
    complaint = Drain(process.stderr)
    answer = process.stdout.readline(_ANSWER_BYTES).decode(errors="replace").strip()
    patience.cancel()
    return answer, complaint


def _holder(transport: Transport) -> tuple[Holder | None, str]:
    lines = shell(transport, _ASK).stdout.splitlines()
    if len(lines) < 2 or not lines[1].isdecimal():
        return None, "its lock"
    matches = (_LINE.fullmatch(line.strip()) for line in lines[2:])
    match = next(filter(None, matches), None)
    if match is None:
        return None, lines[0]
    holder = Holder(
        pid=int(match["pid"]),
        login=match["login"],
        age_s=float(max(0, int(lines[1]) - int(match["since"]))),
        purpose="run" if match["purpose"] == "run" else "clean",
        run_id=match["run_id"],
        label=match["label"],
        client=match["client"],
        client_pid=int(match["client_pid"]),
    )
    return holder, lines[0]


def _pause(interruption: Interruption) -> None:
    until = time.monotonic() + _PAUSE_S
    while time.monotonic() < until:
        interruption.check()
        time.sleep(_TICK_S)


def _safe(word: str) -> str:
    """Return a word that every login may see, without characters that a terminal interprets."""
    return _UNSAFE.sub("_", word)[:100] or "unknown"


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
    answer, complaint = _first_line(process)
    if answer == "claimed":
        return process
    process.kill()
    raise UnusableError(
        f"{folder} cannot be made on {transport.name}",
        details=complaint.last_line() or "no message",
        hint="set XDG_CACHE_HOME there to a writable folder",
    )


def refresh(folder: str) -> None:
    """Keep a claim of this machine fresh: another host can judge it only by its age."""
    with suppress(OSError):
        # A network file system may refuse this.
        os.utime(f"{folder}/.owner")


def note_use(transport: Transport, folder: str, environment: str) -> None:
    """Record in a claim that something will be started in an environment."""
    shell(transport, _NOTE, folder, environment)


def survey(transport: Transport, cache: str) -> tuple[Claim, ...]:
    """Return the runs that have a folder in the cache of a host, one for each name of the host.

    Raises UnusableError if the search was killed.
    """
    done = shell(transport, _SURVEY, cache)
    # Nothing may be removed from a host if it is not known who is there.
    if done.exit_code == _KILLED:
        raise UnusableError(
            f"cannot see which runs use {cache} on {transport.name}",
            details="the search was killed",
            hint="run the same command again",
        )
    matches = (_CLAIM_LINE.fullmatch(line) for line in done.stdout.splitlines())
    return tuple(
        Claim(
            run_id=match[2],
            state=cast("State", match[1]),
            host=match[3],
            pid=int(match[4]),
            start=int(match[5]),
            node=match[6],
            environments=None if match[7] == "?" else tuple(dict.fromkeys(match[7].split())),
        )
        for match in matches
        if match is not None and is_run_id(match[2])
    )


def end_claim(transport: Transport, claim: Claim) -> bool:
    """End the process that holds a claim of a lost client; return whether it has ended."""
    return shell(transport, _END_CLAIM, str(claim.pid), str(claim.start)).succeeded


def refusal(claim: Claim, host: str) -> UnusableError:
    """Return the error for an action that would harm a live run."""
    return UnusableError(
        f"the run {claim.run_id} is still running on {host}",
        hint=f"wait for it; if it hangs, end process {claim.pid} on {claim.node}",
    )


def remove_dead(
    transport: Transport, cache: str, *, environments: Mapping[str, Environment]
) -> Removal:
    """Remove what dead runs left on a host; return what there was."""
    known = survey(transport, cache)
    live = {claim.run_id for claim in known if claim.is_live}
    # A sweep goes by the ID of the run, so it would end what a live claim of that ID has started.
    dead = [claim for claim in known if claim.state == "dead" and claim.run_id not in live]
    removals = [remove(transport, cache, claim, environments=environments) for claim in dead]
    return Removal(
        removed=tuple(text for removal in removals for text in removal.removed),
        failed=tuple(text for removal in removals for text in removal.failed),
    )


def remove(
    transport: Transport, cache: str, claim: Claim, *, environments: Mapping[str, Environment]
) -> Removal:
    """End the processes of a run on a host, and remove its folder; return what there was.

    Sweeps those of the given environments that it used, or all if these are not known.
    The folder stays if not everything can be ended, so that a later search finds it again. Raises
    ValueError for an invalid ID, which could match something else.
    """
    if not is_run_id(claim.run_id):
        raise ValueError(f"{claim.run_id!r} is no ID of a run")
    removed: list[str] = []
    failed: list[str] = []
    for name, where in environments.items():
        if claim.environments is not None and name not in claim.environments:
            continue
        try:
            count = where.sweep(transport, claim.run_id)
        except StillRunningError as error:
            # Where it is not known what a run has used, it may never have used this environment.
            if claim.environments is not None:
                failed.append(f"{name}: {error.brief}: {error.details}")
        else:
            removed += [f"{name} ({count})"] * bool(count)
    if not failed:
        folder = f"{claim.run_id}/{claim.host}".rstrip("/")
        done = shell(transport, _REMOVE, cache, folder, timeout_s=FOLDER_S)
        removed += ["its folder in the host's cache"] * done.succeeded
        if not done.succeeded and done.exit_code != _NOT_THERE:
            failed.append(f"{cache}/runs/{claim.run_id} cannot be removed: {done.tail(1)}")
    text = f"removed what was left of the run {claim.run_id}: {', '.join(removed)}"
    return Removal(removed=(text,) if removed else (), failed=tuple(failed))
