"""Images that a test makes of a few files, by the engine of a host."""

from __future__ import annotations

import io
import tarfile

from envcompare.command import Command
from envcompare.transport import Transport
from envcompare.transport.operations import run


def build_image(host: Transport, name: str, content: dict[str, bytes]) -> str:
    """Build an image on a host from a Dockerfile and what it copies; return its name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, data in content.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    argv = ("docker", "build", "--network=none", "--tag", name, "-")
    done = run(host, Command(argv=argv), stdin=packed.getvalue())
    assert done.succeeded, done.tail(5)
    return name
