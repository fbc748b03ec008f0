"""Bring an image to a host's engine: `docker save` into `docker load`, no registry and no file."""

from __future__ import annotations

from envcompare.command import Command
from envcompare.errors import StackError
from envcompare.stack import Progress, begin
from envcompare.stack.cache import failure
from envcompare.stack.image import Image, finding
from envcompare.stack.stream import moving, pipe
from envcompare.transport import Transport

# `docker save ID` leaves out the name, so that a stream that breaks never moves one.
_LOAD = 'docker load --quiet && { [ -z "$2" ] || docker tag "$1" "$2"; }'


def deliver(transport: Transport, image: Image, *, local: Transport, progress: Progress) -> Image:
    """Return the image in the host's engine; sent from the local one when it is not there.

    Raises StackError when the stream breaks, or what arrived is another image.
    """
    with finding(transport) as look:
        there = look(image.id)
        if there is None:
            size = f"{image.size_bytes / 1e6:.0f} MB"
            begin(progress, f"sending {image.name}, {size}, to {transport.name}")
            _send(local, transport, image, progress=progress)
            there = look(image.id)
    if there is None or there.layers != image.layers:
        raise StackError(
            f"{transport.name} holds another image than was sent",
            details=f"{image.name} is {image.id} here and {there.id if there else 'missing'} there",
            hint=f"docker image rm {image.name} on {transport.name}, then run again",
        )
    return there


def _send(local: Transport, transport: Transport, image: Image, *, progress: Progress) -> None:
    """Stream the image into the host's engine and name it there."""
    load = ("sh", "-c", _LOAD, "sh", image.id, _given_name(image))
    with moving(progress, image.name, image.size_bytes) as told:
        piped = pipe(
            (local, Command(argv=("docker", "save", image.id))),
            (transport, Command(argv=load)),
            told=told,
        )
    if not piped.succeeded:
        raise failure(
            transport,
            f"loading {image.name}",
            piped.text,
            hint="run it again; docker save and docker load by hand show what is wrong",
        )


def _given_name(image: Image) -> str:
    """Return the name the image has here, as far as it is one that can be given there."""
    repository, _, tag = image.name.rpartition(":")
    is_name = image.name != image.id and "@" not in image.name
    return image.name if is_name and repository and "/" not in tag else ""
