"""What is built on top of any transport: run to the end, and copy a folder."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from envcompare.command import Command, CommandResult
from envcompare.errors import CommandTimeoutError, CopyError, StackError, UnusableError
from envcompare.text import spoken
from envcompare.transport import Transport
from envcompare.transport.exchange import Exchange

_MAKE = 'umask 077 && mkdir -p -- "$1" && chmod 700 -- "$1"'

_T = TypeVar("_T")
# What stands under the name goes, were it a link; a folder that is there already is never taken.
_MAKE_NEW = 'umask 077 && rm -rf -- "$1" && mkdir -- "$1"'
# A question that takes longer is one whose host hangs; folders may lie on a slow file system.
ANSWER_S = 60.0
FOLDER_S = 300.0
# Reading, copying or making content: it takes as long as there is content, and is not to hang.
CONTENT_S = 7200.0
_UNPACK = 'mkdir -p -- "$1" && cd -- "$1" && exec tar -xof -'


def run(
    transport: Transport, command: Command, *, stdin: bytes = b"", timeout_s: float = ANSWER_S
) -> CommandResult:
    """Run the command to its end and return its exit code and both streams as text.

    Raises CommandTimeoutError after `timeout_s`, when the command and its children are killed.
    """
    return Exchange(
        transport, command, feed=lambda stream: _write(stream, stdin), timeout_s=timeout_s
    ).result()


def make_new_folder(transport: Transport, path: str) -> None:
    """Make an empty folder of the login's own in one that is there, and that others may write to.

    What has that name is removed, and no link of theirs is followed. Raises StackError where it
    cannot be made.
    """
    result = run(transport, Command(argv=("sh", "-c", _MAKE_NEW, "sh", path)), timeout_s=FOLDER_S)
    if not result.succeeded:
        raise StackError(
            f"cannot make {path} on {transport.name}",
            details=result.tail(1),
            hint="check that the disk there has room, and that the folder around it can be written",
        )


def remove_folder(transport: Transport, path: str) -> None:
    """Remove a folder of the host with what is in it; what cannot be removed stays."""
    run(transport, Command(argv=("rm", "-rf", "--", path)), timeout_s=FOLDER_S)


def put_tree(transport: Transport, source: Path, target: str) -> None:
    """Copy the files of a folder into the folder `target` of the host, without byte code.

    What is in `target` already and not in `source` stays.
    """
    goal = f"{transport.name}:{target}"
    if not source.is_dir():
        raise not_copied(str(source), goal, "it is not a folder")
    command = Command(argv=("sh", "-c", _UNPACK, "sh", target))
    try:
        result = Exchange(
            transport, command, feed=lambda stream: _pack(source, stream), timeout_s=CONTENT_S
        ).result()
    except OSError as error:
        raise not_copied(str(source), goal, str(error)) from error
    if not result.succeeded:
        raise not_copied(str(source), goal, result.tail(1))


def not_understood(transport: Transport, what: str, said: str, *, hint: str) -> UnusableError:
    """Return the error for what a host says in another form than it should."""
    return UnusableError(
        f"cannot read {what} from {transport.name}'s answer",
        details=f"the host printed: {spoken(said)}",
        hint=hint,
    )


def read_json(said: str | bytes, kind: type[_T]) -> _T:
    """Return what a host or an arm wrote as JSON; raises msgspec.DecodeError, whatever is wrong.

    msgspec itself lets other errors through for text that is not UTF-8, and for deep nesting.
    """
    try:
        return msgspec.json.decode(said, type=kind)
    except (UnicodeError, RecursionError, OverflowError) as error:
        raise msgspec.DecodeError(f"JSON cannot be read: {error}") from error


def not_copied(source: str, target: str, why: str) -> CopyError:
    """Return the error of a copy that failed; the hint says what to look at."""
    return CopyError(
        f"cannot copy {source} to {target}",
        details=why,
        hint="check that it can be read, and that the disk there has room and allows writing",
    )


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(stream: BinaryIO, data: bytes) -> None:
    if data:
        stream.write(data)


def _pack(source: Path, stream: BinaryIO) -> None:
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(source.iterdir()):
            archive.add(path, arcname=path.name, filter=_without_byte_code)


def _without_byte_code(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(member.name).name == "__pycache__" else member


def shell(
    transport: Transport, script: str, *words: str, timeout_s: float = ANSWER_S
) -> CommandResult:
    """Run a fixed script of POSIX sh on the host; the words are its arguments.

    Raises CommandTimeoutError, which quotes the script, where the host has not carried it out by
    `timeout_s`.
    """
    try:
        return run(transport, Command(argv=("sh", "-c", script, "sh", *words)), timeout_s=timeout_s)
    except CommandTimeoutError as error:
        raise CommandTimeoutError(
            f"{transport.name} did not answer within {timeout_s:g} s",
            details=f"it was asked: {spoken(' '.join((script, *words)))}; {error.details}",
            hint="run that there by hand; a program, a device or a file system, such as a network "
            "share whose server is gone, does not respond",
        ) from error


def make_folder(transport: Transport, path: str) -> None:
    """Make a folder of the cache, readable by its owner alone."""
    result = shell(transport, _MAKE, path, timeout_s=FOLDER_S)
    if not result.succeeded:
        raise StackError(
            f"cannot make {path} on {transport.name}",
            details=result.tail(1),
            hint="set XDG_CACHE_HOME there to a folder that can be written",
        )
