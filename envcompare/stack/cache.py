"""The cache folder, here and on hosts: private, checked for room, and removed as a whole."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from envcompare.errors import StackError, TransportError
from envcompare.stack.diagnosis import failure, is_full
from envcompare.transport import CONTENT_S, Told, Transport, not_understood, shell
from envcompare.transport.copies import put_file

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
  for at in data proofs resolved roofs runs; do
    if [ -d "$at" ] && [ -r "$at" ] && [ ! -L "$at" ]; then ls -A -- "$at" | sed "s|^|$at/|"
    elif [ -e "$at" ] || [ -L "$at" ]; then echo "$at/"; fi
  done
  for at in data/*; do
    [ -e "$at/data" ] && continue
    held=$(ls -A -- "$at" 2>/dev/null | head -n 1)
    [ -z "$held" ] || printf '%s/%s\\n' "$at" "$held"
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
    r"[0-9a-f]{32}|[0-9a-f]{64}|given-[0-9a-f]{32}|(seccomp|skeleton|workloads)-[0-9a-f]{12,64}(\.partial)?"
    r"|\.wheelhouse-[a-z0-9_]+|data|proofs|resolved|roofs|runs|data/[A-Za-z0-9_.-]+-(made|real)"
    r"|(proofs|resolved|roofs)/[0-9a-f]{16,64}(\.json)?(\.part.*)?"
    r"|runs/([0-9]{8}-[0-9]{6}-[0-9a-f]{4}|build-[0-9a-f]{8})"
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The file system of a path: where it is mounted and what is free; empty where not known."""

    mounted_on: str = ""
    free_bytes: int | None = None


def disk_of(transport: Transport, path: str) -> Disk:
    """Return the disk of `path`, as far as `df` says."""
    lines = shell(transport, _FREE, path).stdout.splitlines()
    words = lines[-1].split(maxsplit=5) if lines else []
    numbers = [int(word) for word in words if word.isdecimal()]
    if len(numbers) < 3:
        return Disk()
    return Disk(mounted_on=words[-1], free_bytes=numbers[2] * 1024)


def put(transport: Transport, source: Path, target: str, *, sha256: str, told: Told) -> None:
    """Send a file of that hash to the host; raises StackError where it has no room."""
    try:
        put_file(transport, source, target, sha256=sha256, told=told)
    except TransportError as error:
        if is_full(error.details):
            what = f"sending {source.name}"
            raise failure(transport, what, error.details, hint=error.hint) from error
        raise


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
            hint="remove envcompare's files there by hand",
        )
    return not result.stdout


def gigabytes(*sizes_bytes: int) -> tuple[str, ...]:
    """Return sizes with as many digits as tell them apart."""
    texts: tuple[str, ...] = ()
    for digits in range(1, 10):
        texts = tuple(f"{size / 1e9:.{digits}f} GB" for size in sizes_bytes)
        if len(set(texts)) == len(set(sizes_bytes)):
            break
    return texts
