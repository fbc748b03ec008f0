"""Make a SIF or a sandbox on a host from the very workload image, with the host's Apptainer."""

from __future__ import annotations

from dataclasses import dataclass

from envcompare.command import Command, CommandResult
from envcompare.config.settings import Compression
from envcompare.environments.diagnosis import is_full
from envcompare.environments.singularity import find_engine
from envcompare.errors import UnusableError
from envcompare.stack import Progress, begin
from envcompare.stack.cache import failure, require_room
from envcompare.stack.image import Image, find
from envcompare.stack.stream import moving, pipe
from envcompare.transport import Transport
from envcompare.transport.operations import CONTENT_S, shell

# Compression decides how long an import takes, so it is part of what is compared.
_BUILD_FLAGS: dict[Compression, tuple[str, ...]] = {
    "zstd": ("--mksquashfs-args", "-comp zstd -Xcompression-level 3"),
    "gzip": ("--mksquashfs-args", "-comp gzip"),
    "none": ("--mksquashfs-args", "-noI -noD -noF -noX"),
    "sandbox": ("--sandbox",),
}
# Layers, unpacked root and the SIF itself are on the disk at once.
_ROOM = 4

# The build takes its temporary files to the cache's disk and leaves none; the mark is written last.
# Whoever waited for the lock finds what the other made.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """A SIF to be made on a host: where it goes, and the engine's own words for making it."""

    transport: Transport
    target: str
    build: tuple[str, ...]

    def run(self, source: str) -> CommandResult:
        return shell(self.transport, _MAKE, self.target, source, *self.build, timeout_s=CONTENT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The SIF of an image that is wanted; every command on this machine goes over `local`."""

    image: Image
    compression: Compression
    local: Transport
    progress: Progress


def pack(transport: Transport, wanted: Wanted, target: str) -> str:
    """Make the SIF in a folder of the host that is there; return its SHA-256.

    The image is taken from the engine of the host, else from the one here. Raises StackError when
    there is no room, or Apptainer fails.
    """
    image, compression = wanted.image, wanted.compression
    engine = find_engine(transport)
    room = target.rpartition("/")[0]
    require_room(transport, room, needed_bytes=_ROOM * image.size_bytes, purpose="the SIF")
    begin(wanted.progress, f"making the SIF ({compression}) on {transport.name}")
    build = (engine, "-q", "build", "--force", *_BUILD_FLAGS[compression])
    making = _Making(transport=transport, target=target, build=build)
    holder = _holder(transport, image, wanted.local)
    return _make(making, image, holder=holder, progress=wanted.progress)


def _make(making: _Making, image: Image, *, holder: Transport, progress: Progress) -> str:
    """Make it from the host's own engine, else from an archive; return its digest.

    An Apptainer may not speak with an engine that is much newer, so the archive is tried as well.
    """
    transport = making.transport
    if holder is transport:
        result = making.run(f"docker-daemon:{image.id}")
        if result.succeeded or is_full(result.stderr):
            return _digest(transport, result)
    archive = f"{making.target}.tar"
    try:
        if holder is transport:
            _save(transport, image, archive=archive)
        else:
            _send(holder, transport, image, archive=archive, progress=progress)
        return _digest(transport, making.run(f"docker-archive:{archive}"))
    finally:
        shell(transport, 'rm -f -- "$1"', archive)


def _holder(transport: Transport, image: Image, local: Transport) -> Transport:
    """Return where the image is: the host itself, else this machine."""
    try:
        return transport if find(transport, image.id) else local
    except UnusableError:
        return local


def _save(transport: Transport, image: Image, *, archive: str) -> None:
    script = 'umask 077; docker save "$2" >"$1"'
    saved = shell(transport, script, archive, image.id, timeout_s=CONTENT_S)
    if not saved.succeeded:
        raise failure(transport, f"saving {image.name}", saved.stderr, hint="run it again")


def _send(
    holder: Transport, transport: Transport, image: Image, *, archive: str, progress: Progress
) -> None:
    begin(progress, f"sending {image.name}, {image.size_bytes / 1e6:.0f} MB, to {transport.name}")
    with moving(progress, image.name, image.size_bytes) as told:
        piped = pipe(
            (holder, Command(argv=("docker", "save", image.id))),
            (transport, Command(argv=("sh", "-c", 'umask 077; cat >"$1"', "sh", archive))),
            told=told,
        )
    if not piped.succeeded:
        raise failure(transport, f"sending {image.name}", piped.text, hint="run it again")


def _digest(transport: Transport, result: CommandResult) -> str:
    if result.succeeded:
        return result.stdout.strip()
    raise failure(
        transport,
        "making the SIF",
        result.stderr,
        hint="envcompare doctor says what is missing; old tools need --sif-compression gzip",
    )
