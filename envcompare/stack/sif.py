"""SIF files and sandboxes: found, or made once from the workload image, sent, and checked."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from envcompare.config import Compression
from envcompare.errors import StackError, UnusableError
from envcompare.stack import Progress, failure, is_full, storage
from envcompare.stack.image import Image, find, pipe
from envcompare.stack.storage import ImageStore, host_cache, local_cache, put
from envcompare.text import Command, CommandResult
from envcompare.transport import CONTENT_S, LOCAL, Transport, make_folder, not_understood, shell
from envcompare.transport.copies import ANY_SIZE, get_file

_SUM = r"""
[ -e "$1" ] || exit 3
[ ! -d "$1" ] || { echo sandbox; exit; }
sha256sum <"$1" | cut -d ' ' -f 1
"""
_WHOLE = f'[ "$(cat "$1.sha256")" = "$({_SUM.strip()})" ] && cat "$1.sha256"'
_NOTE = 'umask 022; echo "$2" >"$1.sum.$$" && mv -f -- "$1.sum.$$" "$1.sha256"'
# Compression affects the time of imports, so it is part of the comparison.
_BUILD_FLAGS: dict[Compression, tuple[str, ...]] = {
    "zstd": ("--mksquashfs-args", "-comp zstd -Xcompression-level 3"),
    "gzip": ("--mksquashfs-args", "-comp gzip"),
    "none": ("--mksquashfs-args", "-noI -noD -noF -noX"),
    "sandbox": ("--sandbox",),
}
# The build keeps its temporary files on the cache's disk and removes them; it writes the mark last.
# A process that waited for the lock finds the finished file.
_MAKE = r"""
target=$1 source=$2
shift 2
digest() { if [ -d "$1" ]; then echo sandbox; else sha256sum <"$1" | cut -d ' ' -f 1; fi; }
work=$target.partial
umask 022
exec 9>"$target.lock"
! command -v flock >/dev/null || flock 9
if [ -s "$target.sha256" ] && [ "$(cat "$target.sha256")" = "$(digest "$target")" ]; then
  exec cat "$target.sha256"
fi
discard() {
  for path in "$@"; do
    [ ! -d "$path" ] || find "$path" -type d ! -perm -700 -exec chmod u+rwx {} +
    rm -rf "$path"
  done
}
trap 'discard "$work"' EXIT
trap 'exit 129' HUP INT TERM
discard "$work" "$target" "$target.sha256"
mkdir -p "$work/tmp"
export APPTAINER_TMPDIR="$work/tmp" APPTAINER_CACHEDIR="$work/tmp"
export SINGULARITY_TMPDIR="$work/tmp" SINGULARITY_CACHEDIR="$work/tmp"
"$@" "$work/image" "$source" >&2 || exit
mv "$work/image" "$target" || exit
digest "$target" >"$work/sum" && mv "$work/sum" "$target.sha256" && cat "$target.sha256"
"""
_HEADER = 'head -c 128 -- "$1" | od -An -v -tx1 && wc -c <"$1"'
# $1: the new SIF; $2: the image; $3: the data; $4: their path inside; the rest: the build command.
# A definition file cannot quote a path, so it names a link, which the engine follows. A file
# goes into a folder, where it keeps its name.
_HOLD = r"""
umask 022
target=$1 image=$2 data=$3 inside=$4
shift 4
mkdir -p "${target%/*}/tmp" || exit
cd -- "${target%/*}" || exit
source=${target##*/}.data
trap 'rm -rf -- "$source"' EXIT
if [ -d "$data" ]; then ln -s -- "$data" "$source"
else mkdir -- "$source" && ln -s -- "$data" "$source/${data##*/}"; fi || exit
export APPTAINER_TMPDIR="${target%/*}/tmp" APPTAINER_CACHEDIR="${target%/*}/tmp"
export SINGULARITY_TMPDIR="$APPTAINER_TMPDIR" SINGULARITY_CACHEDIR="$APPTAINER_TMPDIR"
printf 'Bootstrap: localimage\nFrom: %s\n%%files\n  %s %s\n' \
  "$image" "$source" "$inside" >"$target.def"
"$@" "$target" "$target.def"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sif:
    """An image file (or sandbox folder) on a host; a sandbox has no digest."""

    path: str
    sha256: str
    compression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The SIF of an image to make on a host, and the programs that can make it."""

    image: Image
    compression: Compression
    local: ImageStore  # the engine here, which has the image if the host's lacks it
    progress: Progress
    program: str  # of the host
    find_program_here: Callable[[], str]  # empty if none here can pack and mount a SIF
    is_for_others: bool  # other hosts may need it while this host is measured


_TURNS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def make(store: ImageStore, wanted: Wanted) -> Sif:
    """Return the SIF of exactly that image on the store's host, complete.

    If possible all hosts get the same file: it stays on this machine, made here, or fetched at once
    from the first of several hosts. Otherwise the host makes its own.
    """
    transport = store.transport
    target = f"{host_cache(transport)}/{_key(wanted)}"
    digest = _whole(transport, target)
    if not digest:
        make_folder(transport, target.rpartition("/")[0])
        digest = _send_or_make(store, wanted, target)
    return Sif(path=target, sha256=digest, compression=wanted.compression)


def with_data(
    transport: Transport,
    target: str,
    source: tuple[str, str, str],
    *,
    program: str,
    compression: Compression,
) -> str:
    """Make a SIF that contains a folder of the host, and return its path, the target.

    The source is another SIF, the folder, and its path inside. Raises StackError, before making it
    if there is no room for the data.
    """
    need = storage.Need(step="sif", transport=transport, path=target.rpartition("/")[0])
    storage.require((need,), storage.of_files(transport, source[1]), purpose="a SIF with the data")
    build = (program, "-q", "build", "--force", *_BUILD_FLAGS[compression])
    result = shell(transport, _HOLD, target, *source, *build, timeout_s=CONTENT_S)
    if not result.succeeded:
        hint = "run it again, or leave out --place data=image,sif"
        raise failure(transport, "making a SIF with the data", result.stderr, hint=hint)
    return target


def given(transport: Transport, path: str, *, local: Transport, progress: Progress) -> Sif:
    """Return a SIF the user named: the host's own, else the one on this machine, sent there."""
    here = Path(path).expanduser()
    if transport.name == LOCAL.name:
        return inspect(transport, str(here))
    if shell(transport, '[ -e "$1" ]', path).succeeded or not here.is_file():
        return inspect(transport, path)
    sif = inspect(local, str(here))
    target = f"{host_cache(transport)}/given-{sif.sha256[:32]}/{here.name}"
    if _whole(transport, target) != sif.sha256:
        make_folder(transport, target.rpartition("/")[0])
        _send(transport, sif, target, progress=progress)
    return inspect(transport, target)


def inspect(transport: Transport, path: str) -> Sif:
    """Return a SIF the user named; raises StackError if it is missing or cut short."""
    there = shell(transport, _SUM, path, timeout_s=CONTENT_S)
    if there.exit_code == 3 or "denied" in there.stderr:
        raise StackError(
            f"{path} is not on {transport.name}" if there.exit_code == 3 else f"cannot read {path}",
            details=there.tail(1),
            hint="give the path of a SIF that you may read there, or of one on this machine",
        )
    digest = there.stdout.strip()
    if digest != "sandbox":
        _check_length(transport, path)
    return Sif(path=path, sha256=digest, compression="as given")


def promised_bytes(header: bytes) -> int | None:
    """Return the length in a SIF's header; None if it is not a SIF header.

    Layout of the SIF global header: 32 bytes of launch script, the magic word, and at offsets 112
    and 120 the start and length of the data as little-endian 64-bit numbers.
    """
    if len(header) < 128 or header[32:41] != b"SIF_MAGIC":
        return None
    return int.from_bytes(header[112:120], "little") + int.from_bytes(header[120:128], "little")


def _check_length(transport: Transport, path: str) -> None:
    output = shell(transport, _HEADER, path).stdout
    try:
        *words, size = output.split()
        header, length = bytes.fromhex("".join(words)), int(size)
    except ValueError as error:
        hint = "od and wc there must print only numbers"
        raise not_understood(transport, f"the header of {path}", output, hint=hint) from error
    promised = promised_bytes(header)
    if promised is not None and length < promised:
        raise StackError(
            f"{path} on {transport.name} is truncated",
            details=f"it has {length} bytes, its header promises {promised}",
            hint="copy it again and compare sha256sum",
        )


def _key(wanted: Wanted) -> str:
    """Return the relative path of a SIF, the same in every cache."""
    ending = "sandbox" if wanted.compression == "sandbox" else "sif"
    return f"{wanted.image.key}/{wanted.compression}.{ending}"


def _send_or_make(store: ImageStore, wanted: Wanted, target: str) -> str:
    transport = store.transport
    # A sandbox is a folder, and made where it is used.
    if wanted.compression == "sandbox":
        return _pack(store, wanted, target, program=wanted.program)
    is_here = transport.name == LOCAL.name
    # Hosts take turns, so that the others find the file that the first one has made.
    with _TURNS[_key(wanted)]:
        # The same file everywhere is a stronger proof than one made on each host.
        kept = None if is_here else _kept_here(transport, wanted)
        if kept is None:
            digest = _pack(store, wanted, target, program=wanted.program)
            if wanted.is_for_others and not is_here:
                _keep_here(transport, wanted, target, digest)
            return digest
    _send(transport, kept, target, progress=wanted.progress)
    return kept.sha256


def _whole(transport: Transport, path: str) -> str:
    """Return the hash of a SIF that is unchanged since its hash was noted; empty otherwise."""
    there = shell(transport, _WHOLE, path, timeout_s=CONTENT_S)
    return there.stdout.strip() if there.succeeded else ""


def _kept_here(transport: Transport, wanted: Wanted) -> Sif | None:
    """Return the SIF in the cache of this machine, made here if possible.

    Failures here are ignored, since the host may still make it itself.
    """
    local, path = wanted.local.transport, local_cache() / _key(wanted)
    digest = _whole(local, str(path))
    try:
        is_image_here = not digest and _holds(wanted.local, wanted.image)
        if is_image_here and (program := wanted.find_program_here()):
            make_folder(local, str(path.parent))
            digest = _pack(wanted.local, wanted, str(path), program=program)
    except UnusableError as error:
        wanted.progress.say(f"{error.brief}; it is made on {transport.name}")
    return Sif(path=str(path), sha256=digest, compression=wanted.compression) if digest else None


def _keep_here(transport: Transport, wanted: Wanted, made: str, digest: str) -> None:
    """Fetch a SIF that a host made, before measuring; after a failure others make their own."""
    path = local_cache() / _key(wanted)
    count = shell(transport, 'wc -c <"$1"', made).stdout.strip()
    size_bytes = int(count) if count.isdecimal() else 0
    wanted.progress.begin(f"fetching the SIF, {size_bytes / 1e6:.0f} MB, from {transport.name}")
    try:
        make_folder(wanted.local.transport, str(path.parent))
        with wanted.progress.moving(path.name, size_bytes) as on_progress:
            most = size_bytes or ANY_SIZE
            get_file(transport, made, path, sha256=digest, most_bytes=most, on_progress=on_progress)
        shell(wanted.local.transport, _NOTE, str(path), digest)
    except UnusableError as error:
        wanted.progress.say(f"{error.brief}; other hosts make their own")


def _send(transport: Transport, sif: Sif, target: str, *, progress: Progress) -> None:
    source = Path(sif.path)
    size_bytes = source.stat().st_size
    progress.begin(f"sending {source.name}, {size_bytes / 1e6:.0f} MB, to {transport.name}")
    with progress.moving(source.name, size_bytes) as on_progress:
        put(transport, source, target, sha256=sif.sha256, on_progress=on_progress)
    shell(transport, _NOTE, target, sif.sha256)


def _pack(store: ImageStore, wanted: Wanted, target: str, *, program: str) -> str:
    """Make the SIF in an existing folder of the host; return its SHA-256.

    The image comes from the engine of the host, else from the one here. Raises StackError if there
    is no room, or the program fails.
    """
    image, compression, transport = wanted.image, wanted.compression, store.transport
    folder = target.rpartition("/")[0]
    is_there = _holds(store, image)
    steps: tuple[storage.StepName, ...] = ("sif",) if is_there else ("sif", "archive")
    needs = tuple(storage.Need(step=step, transport=transport, path=folder) for step in steps)
    storage.require(needs, storage.of_image(image.size_bytes), purpose="the SIF")
    wanted.progress.begin(f"making the SIF ({compression}) on {transport.name}")
    build = (program, "-q", "build", "--force", *_BUILD_FLAGS[compression])

    def make_from(source: str) -> CommandResult:
        return shell(transport, _MAKE, target, source, *build, timeout_s=CONTENT_S)

    if is_there:
        # its client may be too old for the engine, so the archive is tried as well
        result = make_from(f"docker-daemon:{image.id}")
        # Where the disk is full, an archive would fail as well: it needs even more room.
        if result.succeeded or is_full(result.stderr):
            return _digest(transport, result)
    archive, holder = f"{target}.tar", store if is_there else wanted.local
    try:
        if holder.transport is transport:
            _save(holder, image, archive=archive)
        else:
            _send_image(holder, transport, wanted, archive=archive)
        return _digest(transport, make_from(f"docker-archive:{archive}"))
    finally:
        shell(transport, 'rm -f -- "$1"', archive)


def _holds(store: ImageStore, image: Image) -> bool:
    try:
        return find(store, image.id) is not None
    except UnusableError:
        return False


def _save(store: ImageStore, image: Image, *, archive: str) -> None:
    script, program = 'umask 077; "$3" save "$2" >"$1"', store.engine.program
    transport = store.transport
    saved = shell(transport, script, archive, image.id, program, timeout_s=CONTENT_S)
    if not saved.succeeded:
        raise failure(transport, f"saving {image.name}", saved.stderr, hint="run it again")


def _send_image(holder: ImageStore, transport: Transport, wanted: Wanted, *, archive: str) -> None:
    image, size = wanted.image, f"{wanted.image.size_bytes / 1e6:.0f} MB"
    wanted.progress.begin(f"sending {image.name}, {size}, to {transport.name}")
    with wanted.progress.moving(image.name, image.size_bytes) as on_progress:
        piped = pipe(
            (holder.transport, holder.command("save", image.id)),
            (transport, Command(argv=("sh", "-c", 'umask 077; cat >"$1"', "sh", archive))),
            on_progress=on_progress,
        )
    if not piped.succeeded:
        raise failure(transport, f"sending {image.name}", piped.stderr, hint="run it again")


def _digest(transport: Transport, result: CommandResult) -> str:
    if result.succeeded:
        return result.stdout.strip()
    raise failure(
        transport,
        "making the SIF",
        result.stderr,
        hint="envcompare doctor says what is missing; old tools need --sif-compression gzip",
    )
