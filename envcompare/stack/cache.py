"""The cache folder, here and on hosts: private, checked for room, removed with its images."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envcompare.command import Command
from envcompare.environments.diagnosis import is_full
from envcompare.errors import CommandTimeoutError, StackError
from envcompare.stack.ownership import is_users_own
from envcompare.text import spoken
from envcompare.transport import Transport
from envcompare.transport.operations import (
    ANSWER_S,
    CONTENT_S,
    FOLDER_S,
    not_understood,
    read_json,
    run,
    shell,
)

LOCK_LABEL = "envcompare.lock"  # every image that envcompare builds carries it
PINNED = "envcompare-pinned"  # what a base image is called while something is built on it

_WHERE = 'printf "%s\\n" "${XDG_CACHE_HOME:-$HOME/.cache}/envcompare"'
# The folder may not be there yet: the disk is that of the first parent that is.
_FREE = 'dir=$1; while [ ! -e "$dir" ]; do dir=$(dirname -- "$dir"); done; df -Pk -- "$dir"'
# What forbids its owner to look into it is opened before it is looked into; no link is followed.
OPEN_FOLDERS = r"""
open_folders() { find "$1" -type d ! -perm -700 -exec chmod u+rwx {} \; ; }
"""
# A sandbox image may hold folders that its owner cannot write to. Where the cache is a link, link
# and folder are the user's, and what else lies in the folder may be as well.
_REMOVE = (
    OPEN_FOLDERS
    + """
within() {
  for one in data proofs resolved roofs runs; do
    if [ -d "$one" ] && [ -r "$one" ] && [ ! -L "$one" ]; then ls -A -- "$one" | sed "s|^|$one/|"
    elif [ -e "$one" ] || [ -L "$one" ]; then echo "$one/"; fi
  done
  for one in data/*; do
    [ -e "$one/data" ] && continue
    held=$(ls -A -- "$one" 2>/dev/null | head -n 1)
    [ -z "$held" ] || printf '%s/%s\\n' "$one" "$held"
  done
}
[ -e "$1" ] || [ -L "$1" ] || { echo nothing; exit 0; }
folder=$(cd -P -- "$1" && pwd -P) || exit 1
if [ -L "$1" ]; then
  cd -- "$folder" && names=$(ls -A && within) || exit 1
  [ -n "$names" ] || { echo nothing; exit 0; }
  other=$(printf '%s\\n' "$names" | LC_ALL=C grep -Evx -- "$2" | head -n 1)
  [ -z "$other" ] || { echo "it is a link to $folder, where $other lies too" >&2; exit 1; }
fi
open_folders "$folder"
if [ -L "$1" ]; then rm -rf -- "$folder"/* "$folder"/.wheelhouse-*; else rm -rf -- "$folder"; fi
"""
)
# Names that people give their folders as well are ours by what is in them.
_OUR_NAMES = (
    r"[0-9a-f]{32}|[0-9a-f]{64}|given-[0-9a-f]{32}|(skeleton|workloads)-[0-9a-f]{12,64}(\.partial)?"
    r"|\.wheelhouse-[a-z0-9_]+|data|proofs|resolved|roofs|runs|data/[A-Za-z0-9_.-]+-(made|real)"
    r"|(proofs|resolved|roofs)/[0-9a-f]{16,64}(\.json)?(\.part.*)?"
    r"|runs/([0-9]{8}-[0-9]{6}-[0-9a-f]{4}|build-[0-9a-f]{8})"
)
_NAME = "{{.Repository}}:{{.Tag}}"
_BUILT_UPON = "has dependent child images"
_IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}")
_NO_PROGRAM = 127


def local_cache() -> Path:
    """Return the cache folder of this machine."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "envcompare"


def host_cache(transport: Transport) -> str:
    """Return the cache folder of the host; it need not exist."""
    said = shell(transport, _WHERE).stdout
    path = said.partition("\n")[0]
    if not path.startswith("/") or not path.isprintable():
        hint = "HOME or XDG_CACHE_HOME there must name a folder by its absolute path"
        raise not_understood(transport, "the cache folder", said, hint=hint)
    return path


def free_bytes(transport: Transport, path: str) -> int | None:
    """Return the room on the disk of `path`; None where `df` does not say."""
    lines = shell(transport, _FREE, path).stdout.splitlines()
    words = lines[-1].split() if lines else []
    numbers = [int(word) for word in words if word.isdecimal()]
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
ENGINE_ROOM_HINT = "docker image prune there, or move the data root of the engine to another disk"


def failure(
    transport: Transport, what: str, text: str, *, hint: str, room_hint: str = ROOM_HINT
) -> StackError:
    """Return the error for a step that failed; a full disk is said as such."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if full := [line for line in lines if is_full(line)]:
        return StackError(
            f"{what} failed on {transport.name}: its disk is full", details=full[-1], hint=room_hint
        )
    said = [line for line in lines if line.startswith(("ERROR", "FATAL", "error"))] or lines
    return StackError(
        f"{what} failed on {transport.name}",
        details=said[-1] if said else "it gave no message",
        hint=hint,
    )


def remove_cache(transport: Transport) -> bool:
    """Remove the cache folder from the host; tell whether there was something to remove.

    A folder that it is a link to is emptied. Raises StackError when something of the cache stays,
    and before all else where the folder behind a link holds what is not of the cache.
    """
    path = host_cache(transport)
    result = shell(transport, _REMOVE, path, _OUR_NAMES, timeout_s=CONTENT_S)
    if not result.succeeded:
        raise StackError(
            f"cannot remove {path} on {transport.name}",
            details=result.tail(1),
            hint="remove by hand what is of envcompare there",
        )
    return not result.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """How many of our images went from an engine, and the names of those a user built on."""

    count: int = 0
    kept: tuple[str, ...] = ()
    unseen: str = ""  # why the engine could not be asked which it has


def remove_images(transport: Transport, *, label: str = LOCK_LABEL) -> Removed:
    """Remove our images with that label from the host's engine.

    What a user built on them stays, and so does what that stands on. There are none where the host
    has no docker. Raises StackError when the engine keeps one for another reason.
    """
    ours, unseen = _ours(transport, label)
    if not ours:
        return Removed(unseen=unseen)
    remove = Command(argv=("docker", "image", "rm", "--force", *ours))
    result = run(transport, remove, timeout_s=FOLDER_S)
    left = _ours(transport, label)[0].keys() & ours.keys()
    refusals = [line for line in result.stderr.splitlines() if line and _BUILT_UPON not in line]
    if left and refusals:
        raise StackError(
            f"cannot remove the workload images on {transport.name}",
            details=refusals[0],
            hint="stop the containers that use them, then run envcompare clean again",
        )
    return Removed(count=len(ours) - len(left), kept=tuple(sorted(ours[one] for one in left)))


def remove_pins(transport: Transport) -> None:
    """Take from base images the names that a build gave them and was killed before it ended."""
    ask = ("docker", "image", "ls", "--filter", f"reference={PINNED}", "--format", _NAME)
    with suppress(CommandTimeoutError):
        listed = run(transport, Command(argv=ask), timeout_s=ANSWER_S).stdout.split()
        names = [name for name in listed if name.startswith(f"{PINNED}:") and name.isprintable()]
        if names:
            run(transport, Command(argv=("docker", "image", "rm", "--no-prune", *names)))


def _ours(transport: Transport, label: str) -> tuple[dict[str, str], str]:
    """Return ID and name of each image with that label, but for those that were built on ours.

    The second part says why a docker that is there could not tell.
    """
    ask = ("docker", "image", "ls", "--quiet", "--no-trunc", "--filter", f"label={label}")
    inspect = ("docker", "image", "inspect")
    try:
        listed = run(transport, Command(argv=ask), timeout_s=ANSWER_S)
        if not listed.succeeded:
            return {}, "" if listed.exit_code == _NO_PROGRAM else listed.tail(1)
        ids = dict.fromkeys(listed.stdout.split())
        if not ids:
            return {}, ""
        if not all(map(_IMAGE_ID.fullmatch, ids)):
            return {}, f"docker image ls said: {spoken(listed.stdout)}"
        asked = run(transport, Command(argv=(*inspect, *ids)), timeout_s=ANSWER_S)
    except CommandTimeoutError:
        return {}, f"no answer within {ANSWER_S:g} s"
    try:
        shown = read_json(asked.stdout or "[]", list[Any])
        found = [facts for facts in shown if not is_users_own(facts)]
        return {facts["Id"]: (facts.get("RepoTags") or [facts["Id"]])[0] for facts in found}, ""
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}, f"docker image inspect said: {spoken(asked.stdout)}"


def gigabytes(*sizes_bytes: int) -> tuple[str, ...]:
    """Return sizes with as many digits as tell them apart."""
    texts: tuple[str, ...] = ()
    for digits in range(1, 10):
        texts = tuple(f"{size / 1e9:.{digits}f} GB" for size in sizes_bytes)
        if len(set(texts)) == len(set(sizes_bytes)):
            break
    return texts
