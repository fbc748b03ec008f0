"""Bring an image to a host's engine: `docker save` into `docker load`, no registry and no file."""

from __future__ import annotations

from envcompare.command import Command
from envcompare.environments.docker import connect
from envcompare.errors import StackError
from envcompare.stack import Progress
from envcompare.stack.cache import failure
from envcompare.stack.image import Image, find
from envcompare.stack.stream import moving, pipe
from envcompare.transport import Transport


def deliver(transport: Transport, image: Image, *, local: Transport, progress: Progress) -> Image:
    """Return the image in the host's engine; sent from the local one when it is not there.

    Raises StackError when the stream breaks, or what arrived is another image.
    """
    there = find(transport, image.id)
    if there is None:
        progress(f"sending {image.name}, {image.size_bytes / 1e6:.0f} MB, to {transport.name}")
        there = _send(local, transport, image, progress=progress)
    if there is None or there.layers != image.layers:
        raise StackError(
            f"{transport.name} holds another image than was sent",
            details=f"{image.name} is {image.id} here and {there.id if there else 'missing'} there",
            hint=f"docker image rm {image.name} on {transport.name}, then run again",
        )
    return there


def _send(
    local: Transport, transport: Transport, image: Image, *, progress: Progress
) -> Image | None:
    """Stream the image into the host's engine and name it there; return what arrived."""
    with moving(progress, image.name, image.size_bytes) as told:
        piped = pipe(
            (local, Command(argv=("docker", "save", image.id))),
            (transport, Command(argv=("docker", "load", "--quiet"))),
            told=told,
        )
    if not piped.succeeded:
        raise failure(
            transport,
            f"loading {image.name}",
            piped.text,
            hint="run it again; docker save and docker load by hand show what is wrong",
        )
    there = find(transport, image.id)
    repository, _, tag = image.name.rpartition(":")
    is_name = image.name != image.id and "@" not in image.name
    if there and is_name and repository and "/" not in tag:
        with connect(transport) as client:
            client.api.tag(image.id, repository, tag)
        return find(transport, image.id)
    return there
