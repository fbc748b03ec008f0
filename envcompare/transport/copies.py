"""Copy a file to or from a host: resumed where a copy was cut, verified whole, then renamed.

Plain streams carry it: SFTP may be switched off, or be disturbed by a login shell that prints.
What has arrived waits beside the target under a name that holds the hash of the whole, so that
the next call goes on from there, and never with another content.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from typing_extensions import Self

from envcompare.command import Command
from envcompare.errors import CommandTimeoutError, TransportError
from envcompare.text import spoken
from envcompare.transport import (
    CONTENT_S,
    Drain,
    Process,
    Sink,
    Told,
    Transport,
    file_sha256,
    not_copied,
    run,
)

_CHUNK_BYTES = 1 << 18
ANY_SIZE = 1 << 62
# A smaller file is sent in one round trip, without asking what of it is there.
_SMALL_BYTES = 1 << 20
# A connection that breaks again without a byte in between is not tried any further.
_VAIN_ATTEMPTS = 2
_TAKE_S = 60.0
_ANSWER_BYTES = 100
_PAUSE_S = 1.0  # an sshd that restarts is back by then
# A copy in which nothing moves any more is given up. Before its first byte and after its last one
# a host may read and hash all of a file.
_STALL_S = 600.0
_HASHING_S = 3600.0
_TICK_S = 5.0

# $1 target, $2 part, $3 mode, $4 SHA-256, $5 size, $6 resume or whole, $7 a word nobody else has
#
# The part is locked by whoever writes it. A lock on a file that has another name by now is on what
# someone finished meanwhile. Where nothing can be locked, by lack of the program or of the file
# system (flock then ends with more than 1), each copy has a part of its own. Parts of earlier
# contents go when the file is whole.
_RECEIVE = r"""
size() { wc -c <"$1"; }
can_lock() { command -v flock >/dev/null; }
lock() {
  exec 9>>"$part" || exit
  flock -n 9 && [ "$part" -ef /proc/self/fd/9 ]
}
if [ -d "$1" ]; then echo "$1 is a folder" >&2; exit 1; fi
mkdir -p -- "$(dirname -- "$1")" || exit
part=$2.$7
if [ "$6" = resume ] && can_lock; then
  for attempt in 1 2 3 4 5; do
    part=$2
    lock && break
    said=$?
    part=$2.$7
    [ "$said" -eq 1 ] || { [ -s "$2" ] || rm -f -- "$2"; break; }
    sleep 1
  done
fi
if [ "$part" != "$2" ] && can_lock; then lock || :; fi
: >>"$part" || exit
if [ "$6" = resume ]; then
  if [ -f "$1" ] && [ "$(size "$1")" -eq "$5" ] &&
    [ "$(sha256sum <"$1")" = "$4  -" ] && chmod "$3" "$1"; then
    rm -f -- "$part"
    echo "$5"
    exit 0
  fi
  have=$(size "$part")
  if [ "$have" -gt "$5" ]; then : >"$part"; have=0; fi
  free=$(df -Pk -- "$part" | sed -n '$s/.* \([0-9][0-9]*\)  *[0-9]*%.*/\1/p')
  if [ -n "$free" ] && [ "$((free * 1024))" -lt "$(($5 - have))" ]; then
    [ "$have" -gt 0 ] || rm -f -- "$part"
    echo "No space left on device: $(($5 - have)) bytes to come, $((free * 1024)) free" >&2
    exit 1
  fi
  echo "$have"
fi
cat >>"$part" || { rm -f -- "$part"; exit 1; }
if [ "$(size "$part")" -ne "$5" ]; then
  [ "$part" = "$2" ] || rm -f -- "$part"
  exit 3
fi
if [ "$(sha256sum <"$part")" != "$4  -" ]; then rm -f -- "$part"; exit 4; fi
{ chmod "$3" "$part" && mv -f -- "$part" "$1"; } || { rm -f -- "$part"; exit 1; }
can_lock || exit 0
for old in "$1".part-*; do
  [ ! -e "$old" ] || flock -n "$old" rm -f -- "$old"
done
exit 0
"""
_SHORT, _CHANGED = 3, 4
_SEND = 'tail -c +"$2" -- "$1"'
# $2 bytes and no more: whoever wrote the file may still be at it
_SEND_WITH_SUM = (
    'head -c "$2" <"$1" && sum=$(head -c "$2" <"$1" | sha256sum) && echo "${sum%% *}" >&2'
)
# $1 the target, $2 a folder of the login's own, $3 and further the names below it, the file's last
#
# Below $2 others may write at any time, and look out for what is done there. A folder is entered by
# its own name alone: where a link led elsewhere, the path of what was entered tells. The file is
# renamed before it is looked at: no link is followed by that, nothing is opened, and where it then
# stands nobody can put another thing in its place.
_TAKE = r"""
target=$1
cd -P -- "$2" && here=$(pwd -P) || exit
shift 2
while [ "$#" -gt 1 ]; do
  [ -e "./$1" ] || [ -L "./$1" ] || exit 3
  entry=$(ls -ldn -- "./$1") || exit 3
  case $entry in d*) ;; -*) exit 3 ;; *) echo "$entry"; exit 0 ;; esac
  here=${here%/}/$1
  cd -P -- "./$1" || exit
  [ "$(pwd -P)" = "$here" ] || { echo link; exit 0; }
  shift
done
[ -e "./$1" ] || [ -L "./$1" ] || exit 3
mv -f -- "./$1" "$target" && ls -ldn -- "$target"
"""
_NOT_THERE = 3
_ARRIVED_CHANGED = "it arrived changed or not whole"


def put_file(
    transport: Transport, source: Path, target: str, *, sha256: str = "", told: Told | None = None
) -> None:
    """Copy a file to the host: written beside the target, compared by SHA-256, then renamed.

    `sha256` saves reading a file whose hash is known. What a cut copy left is gone on from, in
    this call as in a later one; where the whole turns out wrong it is sent once from its start.
    Raises CopyError, and CommandTimeoutError where nothing moves any more.
    """
    try:
        status = source.stat()
        sending = _Sending(
            transport=transport,
            source=source,
            target=target,
            sha256=sha256 or file_sha256(source),
            size_bytes=status.st_size,
            mode=f"{status.st_mode & 0o777:o}",
            told=told or _silent,
        )
        sending.send()
    except OSError as error:
        raise not_copied(str(source), f"{transport.name}:{target}", str(error)) from error


def get_file(  # noqa: PLR0913 - a copy, what it must be, and who is told
    transport: Transport,
    source: str,
    target: Path,
    *,
    sha256: str,
    most_bytes: int = ANY_SIZE,
    told: Told | None = None,
) -> None:
    """Copy the file with that hash from the host: written beside the target, then renamed.

    No more than `most_bytes` are taken. A copy that was cut is gone on from; where the whole turns
    out wrong it is fetched once again. Raises CopyError, and CommandTimeoutError where nothing has
    moved for ten minutes, or an hour before the first byte.
    """
    with (
        _local_errors(transport, source, target),
        _locked_part(target, sha256) as (part, file),
    ):
        for start in dict.fromkeys((file.seek(0, os.SEEK_END), 0)):
            file.truncate(start)
            file.seek(start)
            words = (source, str(start + 1))
            process = transport.spawn(Command(argv=("sh", "-c", _SEND, "sh", *words)))
            sink = _LimitedSink(file, limit_bytes=most_bytes - start)
            reached = _Reached(told or _silent, done_bytes=start)
            with StallWatch(f"the copy of {transport.name}:{source}", process) as watch:
                code, why = _drawn(process, sink, reached, watch)
            file.flush()
            if code != 0:
                if not file.tell():
                    part.unlink()
                raise not_copied(f"{transport.name}:{source}", str(target), why)
            if file_sha256(part) == sha256:
                part.replace(target)
                return
        part.unlink()
        raise not_copied(f"{transport.name}:{source}", str(target), _ARRIVED_CHANGED)


class StallWatch:
    """Kills the processes of a copy in which nothing moves any more; the copy then ends by itself.

    A context manager, left with CommandTimeoutError where it has killed them.
    """

    def __init__(self, what: str, *processes: Process) -> None:
        self._what = what
        self._processes = processes
        self._limit_s = _HASHING_S
        self._last_s = time.monotonic()
        self._is_over = threading.Event()
        self._killed_after_s = 0.0

    def note_progress(self) -> None:
        """Note that bytes went."""
        self._last_s, self._limit_s = time.monotonic(), _STALL_S

    def note_all_sent(self) -> None:
        """Note that no bytes follow: what is left is to read and hash the file."""
        self._last_s, self._limit_s = time.monotonic(), _HASHING_S

    def __enter__(self) -> Self:
        """Begin to watch."""
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching, and say where the copy was ended."""
        self._is_over.set()
        if self._killed_after_s:
            raise CommandTimeoutError(
                f"{self._what} stands still",
                details=f"nothing of it has moved for {self._killed_after_s / 60:g} min",
                hint="see whether the disk and the network there respond, then try again",
            )

    def _watch(self) -> None:
        while (left_s := self._last_s + self._limit_s - time.monotonic()) > 0:
            if self._is_over.wait(min(left_s, _TICK_S)):
                return
        self._killed_after_s = self._limit_s
        for process in self._processes:
            process.kill()


class _LimitedSink:
    """A file that takes no more than a number of bytes, whatever a host sends."""

    def __init__(self, file: BinaryIO, *, limit_bytes: int) -> None:
        self._file = file
        self._left = limit_bytes

    def write(self, data: bytes, /) -> int:
        """Write; raises OSError for what is beyond the limit."""
        self._left -= len(data)
        if self._left < 0:
            raise OSError(errno.EFBIG, "the host sent more than the file had")
        return self._file.write(data)


class FileType(Enum):
    """What stands under a name, by the letter that `ls -l` has for it."""

    REGULAR = "-"
    FOLDER = "d"
    LINK = "l"
    PIPE = "p"
    SOCKET = "s"
    BLOCK_DEVICE = "b"
    CHARACTER_DEVICE = "c"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file on a host where others cannot write; `fetch` copies a plain one."""

    path: str
    type: FileType
    names: int = 1  # that it has; a second one may be where others can write
    size_bytes: int = 0

    @property
    def name(self) -> str:
        """Return its name alone."""
        return self.path.rpartition("/")[2]

    @property
    def is_plain(self) -> bool:
        """Tell whether this is a regular file without another name."""
        return self.type is FileType.REGULAR and self.names == 1


def take(
    transport: Transport, folder: str, *, names: tuple[str, ...], target: str
) -> RemoteFile | None:
    """Move what stands below a folder that others write to, to a target that they cannot reach.

    Nothing of it is opened and no link is followed, whoever changes what at the same time. `folder`
    is the login's own by its name, and on the file system of `target`; the names lead from there to
    the file. None where there is nothing. Raises CopyError where it cannot be moved.
    """
    argv = ("sh", "-c", _TAKE, "sh", target, folder, *names)
    result = run(transport, Command(argv=argv), timeout_s=_TAKE_S)
    if result.exit_code == _NOT_THERE:
        return None
    if not result.succeeded:
        raise not_copied("/".join((f"{transport.name}:{folder}", *names)), target, result.tail(1))
    return _listed(target, result.stdout)


def look(transport: Transport, path: str) -> RemoteFile | None:
    """Return what stands under a path that others cannot write to; None where nothing does."""
    argv = ("ls", "-ldn", "--", path)
    result = run(transport, Command(argv=argv), timeout_s=_TAKE_S)
    return _listed(path, result.stdout) if result.succeeded else None


def _listed(path: str, line: str) -> RemoteFile:
    """Return what `ls -ldn` says: mode, names, two owners and, of a file, its size."""
    try:
        mode, *words = line.split(maxsplit=5)
        kind = FileType(mode[0])
        if kind is not FileType.REGULAR:
            return RemoteFile(path=path, type=kind)
        return RemoteFile(path=path, type=kind, names=int(words[0]), size_bytes=int(words[3]))
    except (ValueError, IndexError) as error:
        raise not_copied(path, "here", f"the host reported: {spoken(line)}") from error


def fetch(transport: Transport, taken: RemoteFile, target: Path) -> None:
    """Copy a plain file that was taken from the host, of the size that it had then.

    Raises CopyError where it cannot be read, and where its content changes on the way.
    """
    assert taken.is_plain
    part = target.with_name(f"{target.name}.part-{secrets.token_hex(4)}")
    origin = f"{transport.name}:{taken.path}"
    command = ("sh", "-c", _SEND_WITH_SUM, "sh", taken.path, str(taken.size_bytes))
    with _local_errors(transport, taken.path, target):
        try:
            part.touch(mode=0o600, exist_ok=False)  # it may become a file of the run folder
            with part.open("wb") as file:
                sink = _LimitedSink(file, limit_bytes=taken.size_bytes)
                result = run(transport, Command(argv=command), sink=sink, timeout_s=CONTENT_S)
            if not result.succeeded:
                raise not_copied(origin, str(target), result.tail(1))
            if file_sha256(part) != "".join(result.stderr.split()[-1:]):
                raise not_copied(origin, str(target), _ARRIVED_CHANGED)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def _local_errors(transport: Transport, source: str, target: Path) -> Iterator[None]:
    """Make the folder of a target, and say of what goes wrong on this machine that it did."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise not_copied(f"{transport.name}:{source}", str(target), str(error)) from error


def _silent(_done_bytes: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sending:
    """A file on its way to a host."""

    transport: Transport
    source: Path
    target: str
    sha256: str
    size_bytes: int
    mode: str
    told: Told

    @property
    def may_resume(self) -> bool:
        return self.size_bytes >= _SMALL_BYTES

    def send(self) -> None:
        """Send the file, from where the host has it; again while a cut one gets further."""
        best, vain, was_changed = 0, 0, False
        while True:
            reached = _Reached(self.told)
            try:
                code, why = self._attempt(reached)
            except TransportError:
                vain = 0 if reached.done_bytes > best else vain + 1
                best = max(best, reached.done_bytes)
                if not self.may_resume or vain == _VAIN_ATTEMPTS:
                    raise
                time.sleep(_PAUSE_S)
                continue
            if code == 0:
                return
            if code != _CHANGED or reached.start_bytes == 0 or was_changed:
                why = why or _ARRIVED_CHANGED
                goal = f"{self.transport.name}:{self.target}"
                raise not_copied(str(self.source), goal, why)
            was_changed = True

    def _attempt(self, reached: _Reached) -> tuple[int, str]:
        """Send once; return the exit code there and what was said."""
        part = f"{self.target}.part-{self.sha256[:16]}"
        way = "resume" if self.may_resume else "whole"
        words = (self.target, part, self.mode, self.sha256, str(self.size_bytes), way)
        argv = ("sh", "-c", _RECEIVE, "sh", *words, secrets.token_hex(4))
        process = self.transport.spawn(Command(argv=argv))
        said = Drain(process.stderr)
        copy = f"the copy of {self.source} to {self.transport.name}:{self.target}"
        with StallWatch(copy, process) as watch:
            try:
                self._pour(process, reached, watch)
                watch.note_all_sent()
                code = process.wait()
            except BaseException:
                process.kill()
                raise
        return code, said.last_line()

    def _pour(self, process: Process, reached: _Reached, watch: StallWatch) -> None:
        """Write what the host lacks; one that refuses or stops reading says why when it ends."""
        with self.source.open("rb") as file, process.stdin as stream:
            if self.may_resume:
                there = process.stdout.readline(_ANSWER_BYTES).strip()
                if not there.isdigit():
                    return
                watch.note_progress()
                reached.further(int(there))
                reached.start_bytes = file.seek(int(there))
            with contextlib.suppress(BrokenPipeError):
                while chunk := file.read(_CHUNK_BYTES):
                    stream.write(chunk)
                    watch.note_progress()
                    reached.further(len(chunk))


@dataclass(slots=True)
class _Reached:
    """How far a copy is."""

    told: Told
    start_bytes: int = 0
    done_bytes: int = 0

    def further(self, count: int) -> None:
        """Count bytes that went, or are there already."""
        self.done_bytes += count
        self.told(self.done_bytes)


@contextlib.contextmanager
def _locked_part(target: Path, sha256: str) -> Iterator[tuple[Path, BinaryIO]]:
    """Open the part of that content; one of its own where another process writes that."""
    part = target.with_name(f"{target.name}.part-{sha256[:16]}")
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(part.open("ab"))
        if not _is_locked(part, file):
            part = part.with_name(f"{part.name}.{secrets.token_hex(4)}")
            stack.callback(part.unlink, missing_ok=True)
            file = stack.enter_context(part.open("ab"))
        yield part, file


def _is_locked(part: Path, file: BinaryIO) -> bool:
    """Lock a part; False where another has it, or finished it, or nothing can be locked there."""
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), part.stat())
    return False


def _drawn(process: Process, sink: Sink, reached: _Reached, watch: StallWatch) -> tuple[int, str]:
    """Hand on what a command writes; return its exit code and what it said."""
    said = Drain(process.stderr)
    try:
        process.stdin.close()
        while chunk := process.stdout.read(_CHUNK_BYTES):
            sink.write(chunk)
            watch.note_progress()
            reached.further(len(chunk))
        return process.wait(), said.last_line()
    except BaseException:
        Drain(process.stdout)  # sshd does not tell of an end before all that was written is read
        process.kill()
        raise
