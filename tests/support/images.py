"""Images that a test makes of a few files, by the engine of a host."""

from __future__ import annotations

import io
import tarfile

from envcompare.environments.oci import image_store
from envcompare.text import Command
from envcompare.transport import LOCAL, Transport, run


def build_image(host: Transport, name: str, content: dict[str, bytes]) -> str:
    """Build an image on a host from a Dockerfile and what it copies; return its name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, data in content.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    argv = ("build", "--network=none", "--tag", name, "-")
    # The first client on this machine's PATH may be one without BuildKit.
    command = image_store(host).buildkit(*argv) if host is LOCAL else None
    command = command or Command(argv=("docker", *argv))
    done = run(host, command, stdin=packed.getvalue())
    assert done.succeeded, done.tail(5)
    return name
