"""The cache folder, here and on hosts: made private, checked for room, removed on request."""

from __future__ import annotations

import json
import os
from pathlib import Path

from envcompare.command import Command, CommandResult
from envcompare.errors import CommandTimeoutError, StackError
from envcompare.stack.ownership import is_built_on_ours
from envcompare.transport import Transport
from envcompare.transport.operations import run

LOCK_LABEL = "envcompare.lock"  # every image that envcompare builds carries it

_WHERE = 'printf %s "${XDG_CACHE_HOME:-$HOME/.cache}/envcompare"'
_MAKE = 'umask 077 && mkdir -p -- "$1" && chmod 700 -- "$1"'
# The folder may not be there yet: the disk is that of the first parent that is.
_FREE = 'dir=$1; while [ ! -e "$dir" ]; do dir=$(dirname -- "$dir"); done; df -Pk -- "$dir"'
# A sandbox image may hold folders that its owner cannot write to, and the cache may be a link.
_REMOVE = """
[ -e "$1" ] || [ -L "$1" ] || exit 0
folder=$(cd -P -- "$1" && pwd -P) || exit 1
find "$folder" -type d ! -perm -700 -exec chmod u+rwx {} +
rm -rf -- "$folder" && rm -rf -- "$1"
"""
_ANSWER_S = 60.0


def local_cache() -> Path:
    """Return the cache folder of this machine."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "envcompare"


def host_cache(transport: Transport) -> str:
    """Return the cache folder of the host; it need not exist."""
    return shell(transport, _WHERE).stdout


def shell(transport: Transport, script: str, *words: str) -> CommandResult:
    """Run a fixed script of POSIX sh on the host; the words are its arguments."""
    return run(transport, Command(argv=("sh", "-c", script, "sh", *words)))


def make_folder(transport: Transport, path: str) -> None:
    """Make a folder of the cache, readable by its owner alone."""
    result = shell(transport, _MAKE, path)
    if not result.succeeded:
        raise StackError(
            f"cannot make {path} on {transport.name}",
            details=result.tail(1),
            hint="set XDG_CACHE_HOME there to a folder that can be written",
        )


def free_bytes(transport: Transport, path: str) -> int | None:
    """Return the room on the disk of `path`; None where `df` does not say."""
    lines = shell(transport, _FREE, path).stdout.splitlines()
    words = lines[-1].split() if lines else []
    numbers = [int(word) for word in words if word.isdigit()]
    return numbers[2] * 1024 if len(numbers) >= 3 else None


def require_room(transport: Transport, path: str, *, needed_bytes: int, purpose: str) -> None:
    """Raise StackError when the disk of `path` has less room than `purpose` needs."""
    free = free_bytes(transport, path)
    if free is not None and free < needed_bytes:
        needed, there = gigabytes(needed_bytes, free)
        raise StackError(
            f"no room on {transport.name} for {purpose}",
            details=f"{path} needs {needed}, {there} are free",
            hint=ROOM_HINT,
        )


ROOM_HINT = (
    "free some space, set XDG_CACHE_HOME there to another disk, or remove the cache "
    "with envcompare clean"
)


def failure(transport: Transport, what: str, text: str, *, hint: str) -> StackError:
    """Return the error for a step that failed; a full disk is said as such."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    full = [line for line in lines if "no space left on device" in line.lower()]
    if full:
        return StackError(
            f"{what} failed on {transport.name}: its disk is full", details=full[-1], hint=ROOM_HINT
        )
    said = [line for line in lines if line.startswith(("ERROR", "FATAL", "error"))] or lines
    return StackError(
        f"{what} failed on {transport.name}",
        details=said[-1] if said else "it gave no message",
        hint=hint,
    )


def clean(transport: Transport) -> int:
    """Remove what envcompare made on the host: its cache folder, and its images from the engine.

    Returns the number of images; raises StackError when something cannot be removed.
    """
    path = host_cache(transport)
    result = shell(transport, _REMOVE, path)
    if not result.succeeded:
        raise StackError(
            f"cannot remove {path} on {transport.name}",
            details=result.tail(1),
            hint="remove it by hand",
        )
    return remove_images(transport)


def remove_images(transport: Transport, *, label: str = LOCK_LABEL) -> int:
    """Remove our images with that label from the host's engine; return how many there were.

    What a user built on them stays. There are none where no engine answers. Raises StackError when
    the engine keeps one.
    """
    ask = ("docker", "image", "ls", "--quiet", "--no-trunc", "--filter", f"label={label}")
    try:
        listed = run(transport, Command(argv=ask), timeout_s=_ANSWER_S)
    except CommandTimeoutError:
        return 0
    ids = _ours(transport, listed.stdout.split()) if listed.succeeded else ()
    if not ids:
        return 0
    result = run(transport, Command(argv=("docker", "image", "rm", "--force", *ids)))
    if not result.succeeded:
        raise StackError(
            f"cannot remove the workload images on {transport.name}",
            details=result.tail(1),
            hint="stop the containers and remove your own images that use them, then run "
            "envcompare clean again",
        )
    return len(ids)


def _ours(transport: Transport, ids: list[str]) -> tuple[str, ...]:
    """Return the IDs, each once, but for those of images that were built on ours."""
    if not ids:
        return ()
    asked = run(transport, Command(argv=("docker", "image", "inspect", *dict.fromkeys(ids))))
    found = json.loads(asked.stdout or "[]")
    return tuple(facts["Id"] for facts in found if not is_built_on_ours(facts))


def gigabytes(*sizes_bytes: int) -> tuple[str, ...]:
    """Return sizes with as many digits as tell them apart."""
    texts: tuple[str, ...] = ()
    for digits in range(1, 10):
        texts = tuple(f"{size / 1e9:.{digits}f} GB" for size in sizes_bytes)
        if len(set(texts)) == len(set(sizes_bytes)):
            break
    return texts
