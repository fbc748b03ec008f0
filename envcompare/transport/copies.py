"""Copy a file to or from a host: resumed after a cut, verified by hash, then renamed.

The data goes over plain streams: SFTP may be switched off, or a login shell that prints may break
it. A partial file waits next to the target, and its name holds the hash of the whole file: the next
call resumes it, and never with other content.
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

from envcompare.errors import CommandTimeoutError, TransportError, plain
from envcompare.text import Command, spoken
from envcompare.transport import (
    CONTENT_S,
    Drain,
    OnProgress,
    Process,
    Sink,
    Transport,
    file_sha256,
    not_copied,
    run,
)

_CHUNK_BYTES = 1 << 18
ANY_SIZE = 1 << 62
_TAKE_S = 60.0
# A stalled copy is given up. Before the first byte and after the last, the host may be hashing the
# whole file.
_STALL_S = 600.0
_HASHING_S = 3600.0
_TICK_S = 5.0

# $1 target, $2 part, $3 mode, $4 SHA-256, $5 size, $6 resume or whole, $7 a word nobody else has
#
# The writer locks the part. If the locked file has another name by now, another copy has finished
# it. Where locking is impossible (no flock program, or the file system refuses, and flock then
# exits with more than 1), each copy writes its own part. Parts of earlier contents are removed when
# the file is complete.
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
    code=$?
    part=$2.$7
    [ "$code" -eq 1 ] || { [ -s "$2" ] || rm -f -- "$2"; break; }
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
_CHANGED = 4  # the exit code of _RECEIVE for a file with another hash
# $2 bytes and no more: the file may still be growing
_SEND_WITH_SUM = (
    'head -c "$2" <"$1" && sum=$(head -c "$2" <"$1" | sha256sum) && echo "${sum%% *}" >&2'
)
# $1 the target, $2 a folder that belongs to the login, $3 and on: the names below it, file last
#
# Others may write below $2 at any time. Each folder is entered by its own name, and the path after
# entering reveals a link. The file is renamed before it is examined: a rename follows no link and
# opens nothing, and at the new place nobody can replace it.
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
_ARRIVED_CHANGED = "it arrived changed or not whole"


def put_file(
    transport: Transport,
    source: Path,
    target: str,
    *,
    sha256: str = "",
    on_progress: OnProgress | None = None,
) -> None:
    """Copy a file to the host: write it next to the target, compare its SHA-256, then rename it.

    Pass `sha256` if the hash is known, to save reading the file. Resumes a copy that was cut, in
    this call or an earlier one; if the result has the wrong hash, sends the whole file once more.
    Raises CopyError, and CommandTimeoutError when the copy stalls.
    """
    try:
        status = source.stat()
        _Sending(
            transport=transport,
            source=source,
            target=target,
            sha256=sha256 or file_sha256(source),
            size_bytes=status.st_size,
            mode=f"{status.st_mode & 0o777:o}",
            on_progress=on_progress or (lambda _bytes: None),
        ).send()
    except OSError as error:
        raise not_copied(
            str(source), f"{transport.name}:{target}", plain(error, has_file=True)
        ) from error


def get_file(  # noqa: PLR0913 - a copy, what it must be, and its callback
    transport: Transport,
    source: str,
    target: Path,
    *,
    sha256: str,
    most_bytes: int = ANY_SIZE,
    on_progress: OnProgress | None = None,
) -> None:
    """Copy the file with this hash from the host: write it next to the target, then rename it.

    Takes `most_bytes` at most. Resumes a copy that was cut; if the result has the wrong hash,
    fetches the whole file once more. Raises CopyError, and CommandTimeoutError after ten minutes
    without progress, or an hour without a first byte.
    """
    with (
        _local_errors(transport, source, target),
        _locked_part(target, sha256) as (part, file),
    ):
        # If the resumed file has the wrong hash, it is fetched once more from its start.
        for start in dict.fromkeys((file.seek(0, os.SEEK_END), 0)):
            file.truncate(start)
            file.seek(start)
            # tail counts bytes from 1 (tail(1)).
            words = ("tail", "-c", f"+{start + 1}", "--", source)
            process = transport.spawn(Command(argv=words))
            sink = _LimitedSink(file, limit_bytes=most_bytes - start)
            reached = _Reached(on_progress or (lambda _bytes: None), done_bytes=start)
            with StallWatch(f"the copy of {transport.name}:{source}", process) as watch:
                code, why = _receive(process, sink, reached, watch)
            file.flush()
            if code != 0:
                # A later call could not resume an empty part.
                if not file.tell():
                    part.unlink()
                raise not_copied(f"{transport.name}:{source}", str(target), why)
            if file_sha256(part) == sha256:
                part.replace(target)
                return
        part.unlink()
        raise not_copied(f"{transport.name}:{source}", str(target), _ARRIVED_CHANGED)


class StallWatch:
    """Context manager that kills the processes of a stalled copy.

    Raises CommandTimeoutError on exit if it killed them.
    """

    def __init__(self, what: str, *processes: Process) -> None:
        self._what = what
        self._processes = processes
        self._limit_s = _HASHING_S
        self._last_s = time.monotonic()
        self._is_over = threading.Event()
        self._killed_after_s = 0.0

    def note_progress(self) -> None:
        """Note that bytes were transferred."""
        self._last_s, self._limit_s = time.monotonic(), _STALL_S

    def note_all_sent(self) -> None:
        """Note that all bytes were sent; the host still has to hash the file."""
        self._last_s, self._limit_s = time.monotonic(), _HASHING_S

    def __enter__(self) -> Self:
        """Start watching."""
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching; raises CommandTimeoutError if the copy was killed."""
        self._is_over.set()
        if self._killed_after_s:
            raise CommandTimeoutError(
                f"{self._what} has stalled",
                details=f"no data has moved for {self._killed_after_s / 60:g} min",
                hint="check that the disk and the network there respond, then try again",
            )

    def _watch(self) -> None:
        while (left_s := self._last_s + self._limit_s - time.monotonic()) > 0:
            # In short ticks, because the first byte shortens the limit from an hour to ten minutes.
            if self._is_over.wait(min(left_s, _TICK_S)):
                return
        self._killed_after_s = self._limit_s
        for process in self._processes:
            process.kill()


class _LimitedSink:
    """A file that refuses more than a number of bytes."""

    def __init__(self, file: BinaryIO, *, limit_bytes: int) -> None:
        self._file = file
        self._left = limit_bytes

    def write(self, data: bytes, /) -> int:
        """Write; raises OSError beyond the limit."""
        self._left -= len(data)
        if self._left < 0:
            raise OSError(errno.EFBIG, "the host sent more than the file had")
        return self._file.write(data)


class FileType(Enum):
    """The type of a directory entry, by its letter in `ls -l`."""

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
    names: int = 1  # hard links; another one may be where others can write
    size_bytes: int = 0

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def is_plain(self) -> bool:
        """Tell whether this is a regular file without another name."""
        return self.type is FileType.REGULAR and self.names == 1


def take(
    transport: Transport, folder: str, *, names: tuple[str, ...], target: str
) -> RemoteFile | None:
    """Move a file out of a folder that others write to, to a target that they cannot reach.

    Opens nothing and follows no link, even while others change the folder. `folder` belongs to the
    login and is on the file system of `target`; `names` is the path from there to the file. Returns
    None if there is no such file. Raises CopyError if it cannot be moved.
    """
    argv = ("sh", "-c", _TAKE, "sh", target, folder, *names)
    result = run(transport, Command(argv=argv), timeout_s=_TAKE_S)
    if result.exit_code == 3:
        return None
    if not result.succeeded:
        raise not_copied("/".join((f"{transport.name}:{folder}", *names)), target, result.tail(1))
    return _listed(target, result.stdout)


def look(transport: Transport, path: str) -> RemoteFile | None:
    """Return the file at a path that others cannot write to; None if there is none."""
    argv = ("ls", "-ldn", "--", path)
    result = run(transport, Command(argv=argv), timeout_s=_TAKE_S)
    return _listed(path, result.stdout) if result.succeeded else None


def _listed(path: str, line: str) -> RemoteFile:
    # mode, links, owner, group and, for a file, its size
    try:
        mode, *words = line.split(maxsplit=5)
        kind = FileType(mode[0])
        if kind is not FileType.REGULAR:
            return RemoteFile(path=path, type=kind)
        return RemoteFile(path=path, type=kind, names=int(words[0]), size_bytes=int(words[3]))
    except (ValueError, IndexError) as error:
        raise not_copied(path, "here", f"the host reported: {spoken(line)}") from error


def fetch(transport: Transport, taken: RemoteFile, target: Path) -> None:
    """Copy a plain file that `take` or `look` returned, up to the size it had then.

    Raises CopyError if it cannot be read, or if its content changes on the way.
    """
    assert taken.is_plain
    part = target.with_name(f"{target.name}.part-{secrets.token_hex(4)}")
    origin = f"{transport.name}:{taken.path}"
    command = ("sh", "-c", _SEND_WITH_SUM, "sh", taken.path, str(taken.size_bytes))
    with _local_errors(transport, taken.path, target):
        try:
            # Private from the beginning, since it may become a file of the run folder.
            part.touch(mode=0o600, exist_ok=False)
            with part.open("wb") as file:
                sink = _LimitedSink(file, limit_bytes=taken.size_bytes)
                result = run(transport, Command(argv=command), sink=sink, timeout_s=CONTENT_S)
            if not result.succeeded:
                raise not_copied(origin, str(target), result.tail(1))
            # The sum is the last word, in case a login shell printed something before.
            if file_sha256(part) != "".join(result.stderr.split()[-1:]):
                raise not_copied(origin, str(target), _ARRIVED_CHANGED)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def _local_errors(transport: Transport, source: str, target: Path) -> Iterator[None]:
    """Make the target's folder; turn an OSError of this machine into a CopyError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise not_copied(
            f"{transport.name}:{source}", str(target), plain(error, has_file=True)
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sending:
    """A file on its way to a host."""

    transport: Transport
    source: Path
    target: str
    sha256: str
    size_bytes: int
    mode: str
    on_progress: OnProgress

    @property
    def may_resume(self) -> bool:
        # a smaller file is sent in one round trip, without asking how much the host has
        return self.size_bytes >= 1 << 20

    def send(self) -> None:
        """Send what the host lacks; retry as long as each attempt gets further."""
        best, vain, was_changed = 0, 0, False
        while True:
            reached = _Reached(self.on_progress)
            try:
                code, why = self._attempt(reached)
            except TransportError:
                vain = 0 if reached.done_bytes > best else vain + 1
                best = max(best, reached.done_bytes)
                if not self.may_resume or vain == 2:
                    raise
                # This is long enough for an sshd to restart.
                time.sleep(1)
                continue
            if code == 0:
                return
            if code != _CHANGED or reached.start_bytes == 0 or was_changed:
                goal = f"{self.transport.name}:{self.target}"
                raise not_copied(str(self.source), goal, why or _ARRIVED_CHANGED)
            was_changed = True

    def _attempt(self, reached: _Reached) -> tuple[int, str]:
        part = f"{self.target}.part-{self.sha256[:16]}"
        way = "resume" if self.may_resume else "whole"
        words = (self.target, part, self.mode, self.sha256, str(self.size_bytes), way)
        argv = ("sh", "-c", _RECEIVE, "sh", *words, secrets.token_hex(4))
        process = self.transport.spawn(Command(argv=argv))
        stderr = Drain(process.stderr)
        copy = f"the copy of {self.source} to {self.transport.name}:{self.target}"
        with StallWatch(copy, process) as watch:
            try:
                self._pour(process, reached, watch)
                watch.note_all_sent()
                code = process.wait()
            except BaseException:
                process.kill()
                raise
        return code, stderr.last_line()

    def _pour(self, process: Process, reached: _Reached, watch: StallWatch) -> None:
        """Write what the host lacks; a host that stops reading explains itself when it exits."""
        with self.source.open("rb") as file, process.stdin as stream:
            if self.may_resume:
                there = process.stdout.readline(100).strip()
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
    """How far a copy has got."""

    on_progress: OnProgress
    start_bytes: int = 0
    done_bytes: int = 0

    def further(self, count: int) -> None:
        """Count bytes that were transferred, or that were there already."""
        self.done_bytes += count
        self.on_progress(self.done_bytes)


@contextlib.contextmanager
def _locked_part(target: Path, sha256: str) -> Iterator[tuple[Path, BinaryIO]]:
    """Open the partial file of this content; a new one if another process is writing it."""
    part = target.with_name(f"{target.name}.part-{sha256[:16]}")
    with contextlib.ExitStack() as stack:
        # Opening to append truncates nothing that another process may be writing.
        file = stack.enter_context(part.open("ab"))
        if not _is_locked(part, file):
            part = part.with_name(f"{part.name}.{secrets.token_hex(4)}")
            stack.callback(part.unlink, missing_ok=True)
            file = stack.enter_context(part.open("ab"))
        yield part, file


def _is_locked(part: Path, file: BinaryIO) -> bool:
    """Lock a part; False if another process has it or finished it, or if locking fails."""
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another copy may have finished and renamed the part between opening and locking it.
        return os.path.samestat(os.fstat(file.fileno()), part.stat())
    return False


def _receive(process: Process, sink: Sink, reached: _Reached, watch: StallWatch) -> tuple[int, str]:
    stderr = Drain(process.stderr)
    try:
        process.stdin.close()
        while chunk := process.stdout.read(_CHUNK_BYTES):
            sink.write(chunk)
            watch.note_progress()
            reached.further(len(chunk))
        return process.wait(), stderr.last_line()
    except BaseException:
        # sshd reports no exit before all output was read.
        Drain(process.stdout)
        process.kill()
        raise
