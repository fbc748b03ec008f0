"""Bring software to a host: one command's output into another's input, wheels, images, files.

Nothing is compressed on the way: a core packs fewer bytes a second than a network of 1 Gbit/s
carries, and an engine unpacks slower than both.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from envcompare.command import Command
from envcompare.errors import StackError, TransportError
from envcompare.stack import Progress
from envcompare.stack.cache import host_cache
from envcompare.stack.diagnosis import failure, is_full
from envcompare.stack.engine import ImageStore
from envcompare.stack.image import Image, look_up
from envcompare.stack.wheelhouse import LOCK, SUMS, Wheelhouse
from envcompare.text import counted
from envcompare.transport import Process, Told, Transport
from envcompare.transport.operations import CONTENT_S, file_sha256, make_folder, shell
from envcompare.transport.streams import Drain

_CHUNK_BYTES = 1 << 16
# `docker save ID` leaves out the name, so that a stream that breaks never moves one. The ID comes
# last in what is said; an engine that keeps images in containerd has another one than those before.
_LOAD = r"""
said=$("$1" load --quiet) || exit
echo "$said"
[ -z "$2" ] || "$1" tag "${said##* }" "$2"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piped:
    """How both ends of a pipe ended: exit codes and what they said."""

    source_exit: int
    sink_exit: int
    text: str

    @property
    def succeeded(self) -> bool:
        """Tell whether both ended with 0."""
        return self.source_exit == 0 and self.sink_exit == 0


def pipe(
    source: tuple[Transport, Command], sink: tuple[Transport, Command], *, told: Told
) -> _Piped:
    """Run both commands, the second reading what the first writes; neither outlives a failure."""
    with contextlib.ExitStack() as killing:
        writer = source[0].spawn(source[1])
        killing.callback(writer.kill)
        reader = sink[0].spawn(sink[1])
        killing.callback(reader.kill)
        said = tuple(Drain(stream) for stream in (writer.stderr, reader.stderr, reader.stdout))
        writer.stdin.close()
        _copy(writer, reader, told)
        exits = (writer.wait(), reader.wait())
        killing.pop_all()
    for drain in said:
        drain.settle()
    text = "\n".join(drain.text() for drain in said)
    return _Piped(source_exit=exits[0], sink_exit=exits[1], text=text)


def put(transport: Transport, source: Path, target: str, *, sha256: str, told: Told) -> None:
    """Send a file of that hash to the host; raises StackError where it has no room."""
    try:
        transport.put(source, target, sha256=sha256, told=told)
    except TransportError as error:
        if is_full(error.details):
            what = f"sending {source.name}"
            raise failure(transport, what, error.details, hint=error.hint) from error
        raise


def deliver(store: ImageStore, image: Image, *, local: ImageStore, progress: Progress) -> Image:
    """Return the image in the host's engine; sent from the local one when it is not there.

    Raises StackError when the stream breaks, or what arrived is another image.
    """
    there = look_up(store, image.id)
    if there is None:
        size = f"{image.size_bytes / 1e6:.0f} MB"
        progress.begin(f"sending {image.name}, {size}, to {store.transport.name}")
        identity = _send(local, store, image, progress)
        there = look_up(store, identity)
    if there is None or there.layers != image.layers:
        raise StackError(
            f"{store.transport.name} has a different image from the one sent",
            details=f"{image.name} is {image.id} here and {there.id if there else 'missing'} there",
            hint=f"{store.engine.program} image rm {image.name} on {store.transport.name}, then "
            "run again",
        )
    return there


def _send(local: ImageStore, store: ImageStore, image: Image, progress: Progress) -> str:
    """Stream the image into the host's engine and name it there; return its ID there."""
    load = ("sh", "-c", _LOAD, "sh", store.engine.program, _given_name(image))
    with progress.moving(image.name, image.size_bytes) as told:
        piped = pipe(
            (local.transport, local.command("save", image.id)),
            (store.transport, Command(argv=load)),
            told=told,
        )
    if not piped.succeeded:
        client = store.engine.program
        raise failure(
            store.transport,
            f"loading {image.name}",
            piped.text,
            hint=f"run it again; {client} save and {client} load by hand show what is wrong",
            room_hint=store.engine.room_hint,
        )
    return "".join(piped.text.split()[-1:])


def _given_name(image: Image) -> str:
    """Return the name the image has here, as far as it is one that can be given there."""
    repository, _, tag = image.name.rpartition(":")
    is_name = image.name != image.id and "@" not in image.name
    return image.name if is_name and repository and "/" not in tag else ""


def ship(transport: Transport, wheelhouse: Wheelhouse, *, progress: Progress) -> str:
    """Bring the wheels that a host lacks to its cache; return the folder there."""
    folder = f"{host_cache(transport)}/{wheelhouse.key}/wheelhouse"
    missing = _missing(transport, wheelhouse, folder)
    if missing:
        make_folder(transport, folder)
        sizes = {name: (wheelhouse.folder / name).stat().st_size for name in missing}
        total = sum(sizes.values())
        what = f"{counted(len(missing), 'file')}, {total / 1e6:.0f} MB"
        progress.begin(f"sending {what}, to {transport.name}")
        with progress.moving("wheels", total) as told:
            before = 0
            for name, digest in missing.items():
                source, target = wheelhouse.folder / name, f"{folder}/{name}"
                put(transport, source, target, sha256=digest, told=_after(before, told))
                before += sizes[name]
    return folder


def _after(before_bytes: int, told: Told) -> Told:
    """Return what counts a file's bytes after those of the files before."""
    return lambda done_bytes: told(before_bytes + done_bytes)


def _missing(transport: Transport, wheelhouse: Wheelhouse, folder: str) -> dict[str, str]:
    """Return the files the host lacks, with their hashes."""
    names = [LOCK, SUMS, *(name for name, _ in wheelhouse.sums)]
    script = 'cd -- "$1" 2>/dev/null && shift && sha256sum -- "$@" 2>/dev/null; exit 0'
    lines = shell(transport, script, folder, *names, timeout_s=CONTENT_S).stdout.splitlines()
    there = {tuple(line.split("  ", 1)) for line in lines}
    here = {name: file_sha256(wheelhouse.folder / name) for name in (LOCK, SUMS)}
    here.update(wheelhouse.sums)
    return {name: digest for name, digest in here.items() if (digest, name) not in there}


def _copy(writer: Process, reader: Process, told: Told) -> None:
    sent = 0
    try:
        while chunk := writer.stdout.read(_CHUNK_BYTES):
            reader.stdin.write(chunk)
            sent += len(chunk)
            told(sent)
    except BrokenPipeError:
        writer.kill()  # the reader ended early, and its exit code says why
    finally:
        reader.stdin.close()
