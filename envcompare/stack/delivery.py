"""Bring an image to a host's engine: `docker save` into `docker load`, no registry and no file."""

from __future__ import annotations

from envcompare.command import Command
from envcompare.errors import StackError
from envcompare.stack import Progress, begin
from envcompare.stack.cache import ENGINE_ROOM_HINT, failure
from envcompare.stack.image import Image, look_up
from envcompare.stack.stream import moving, pipe
from envcompare.transport import Transport

# `docker save ID` leaves out the name, so that a stream that breaks never moves one. The ID comes
# last in what is said; an engine that keeps images in containerd has another one than those before.
_LOAD = r"""
said=$(docker load --quiet) || exit
echo "$said"
[ -z "$1" ] || docker tag "${said##* }" "$1"
"""


def deliver(transport: Transport, image: Image, *, local: Transport, progress: Progress) -> Image:
    """Return the image in the host's engine; sent from the local one when it is not there.

    Raises StackError when the stream breaks, or what arrived is another image.
    """
    there = look_up(transport, image.id)
    if there is None:
        size = f"{image.size_bytes / 1e6:.0f} MB"
        begin(progress, f"sending {image.name}, {size}, to {transport.name}")
        identity = _send(local, transport, image, progress=progress)
        there = look_up(transport, identity)
    if there is None or there.layers != image.layers:
        raise StackError(
            f"{transport.name} holds another image than was sent",
            details=f"{image.name} is {image.id} here and {there.id if there else 'missing'} there",
            hint=f"docker image rm {image.name} on {transport.name}, then run again",
        )
    return there


def _send(local: Transport, transport: Transport, image: Image, *, progress: Progress) -> str:
    """Stream the image into the host's engine and name it there; return its ID there."""
    load = ("sh", "-c", _LOAD, "sh", _given_name(image))
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
            room_hint=ENGINE_ROOM_HINT,
        )
    return "".join(piped.text.split()[-1:])


def _given_name(image: Image) -> str:
    """Return the name the image has here, as far as it is one that can be given there."""
    repository, _, tag = image.name.rpartition(":")
    is_name = image.name != image.id and "@" not in image.name
    return image.name if is_name and repository and "/" not in tag else ""
