"""SIF files and sandboxes: made on a host from the very workload image, checked before use."""

from __future__ import annotations

from dataclasses import dataclass

from envcompare.command import Command, CommandResult
from envcompare.config import Compression
from envcompare.environments.singularity import find_engine
from envcompare.errors import StackError, UnusableError
from envcompare.stack import Progress
from envcompare.stack.cache import failure, host_cache, make_folder, require_room, shell
from envcompare.stack.image import Image, find
from envcompare.stack.stream import moving, pipe
from envcompare.transport import Transport

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
_SUM = r"""
[ -e "$1" ] || exit 3
[ ! -d "$1" ] || { echo sandbox; exit; }
sha256sum <"$1" | cut -d ' ' -f 1
"""
_HEADER = 'head -c 128 -- "$1" | od -An -v -tx1 && wc -c <"$1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Sif:
    """An image file (or sandbox folder) on a host; a sandbox has no digest."""

    path: str
    sha256: str
    compression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """A SIF to be made on a host: where it goes, and the engine's own words for making it."""

    transport: Transport
    target: str
    build: tuple[str, ...]

    def run(self, source: str) -> CommandResult:
        return shell(self.transport, _MAKE, self.target, source, *self.build)


def make(
    transport: Transport,
    image: Image,
    *,
    compression: Compression,
    local: Transport,
    progress: Progress,
) -> Sif:
    """Return the SIF made from that very image on the host; made when it is not there and whole."""
    engine = find_engine(transport)
    folder = f"{host_cache(transport)}/{image.key}"
    ending = "sandbox" if compression == "sandbox" else "sif"
    target = f"{folder}/{compression}.{ending}"
    script = f'[ "$(cat "$1.sha256")" = "$({_SUM.strip()})" ] && cat "$1.sha256"'
    there = shell(transport, script, target)
    if there.succeeded:
        return Sif(path=target, sha256=there.stdout.strip(), compression=compression)
    needed = _ROOM * image.size_bytes
    make_folder(transport, folder)
    require_room(transport, folder, needed_bytes=needed, purpose="the SIF")
    progress(f"making the SIF ({compression}) on {transport.name}")
    build = (engine, "-q", "build", "--force", *_BUILD_FLAGS[compression])
    making = _Making(transport=transport, target=target, build=build)
    holder = _holder(transport, image, local)
    digest = _make(making, image, holder=holder, progress=progress)
    return Sif(path=target, sha256=digest, compression=compression)


def inspect(transport: Transport, path: str) -> Sif:
    """Return a SIF the user named; raises StackError when it is missing or cut short."""
    there = shell(transport, _SUM, path)
    if there.exit_code == 3 or "denied" in there.stderr:
        raise StackError(
            f"{path} is not on {transport.name}" if there.exit_code == 3 else f"cannot read {path}",
            details=there.tail(1) or "there is no such file or folder",
            hint=f"copy it there, for example: scp IMAGE.sif {transport.name}:{path}",
        )
    digest = there.stdout.strip()
    if digest != "sandbox":
        _check_length(transport, path)
    return Sif(path=path, sha256=digest, compression="as given")


def promised_bytes(header: bytes) -> int | None:
    """Return the length a SIF's header promises; None when it is no SIF header.

    Layout of the SIF global header: 32 bytes of launch script, the magic word, and at offsets
    112 and 120 the start and length of the data as little-endian 64-bit numbers.
    """
    if len(header) < 128 or header[32:41] != b"SIF_MAGIC":
        return None
    return int.from_bytes(header[112:120], "little") + int.from_bytes(header[120:128], "little")


def _check_length(transport: Transport, path: str) -> None:
    words = shell(transport, _HEADER, path).stdout.split()
    header, length = bytes.fromhex("".join(words[:-1])), int(words[-1])
    promised = promised_bytes(header)
    if promised is not None and length < promised:
        raise StackError(
            f"{path} on {transport.name} is cut short",
            details=f"it has {length} bytes, its header promises {promised}",
            hint="copy it again and compare sha256sum",
        )


def _make(making: _Making, image: Image, *, holder: Transport, progress: Progress) -> str:
    """Make the SIF from the host's own engine, else from an archive; return its digest.

    An Apptainer may not speak with an engine that is much newer, so the archive is tried as well.
    """
    transport = making.transport
    if holder is transport:
        result = making.run(f"docker-daemon:{image.id}")
        if result.succeeded or "no space left" in result.stderr:
            return _digest(transport, result)
    archive = f"{making.target}.tar"
    try:
        _save(holder, transport, image, archive=archive, progress=progress)
        return _digest(transport, making.run(f"docker-archive:{archive}"))
    finally:
        shell(transport, 'rm -f -- "$1"', archive)


def _holder(transport: Transport, image: Image, local: Transport) -> Transport:
    """Return where the image is: the host itself, else this machine."""
    try:
        return transport if find(transport, image.id) else local
    except UnusableError:
        return local


def _save(
    holder: Transport, transport: Transport, image: Image, *, archive: str, progress: Progress
) -> None:
    progress(f"sending {image.name}, {image.size_bytes / 1e6:.0f} MB, to {transport.name}")
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
