"""Which Docker client here can build with BuildKit; the classic builder is the way out."""

from __future__ import annotations

import os
import re
from pathlib import Path

from envcompare.command import Command
from envcompare.transport import Transport
from envcompare.transport.operations import run

# The engine's own builder, whatever the user chose as default, and no attestations.
_VARIABLES = (
    ("DOCKER_BUILDKIT", "1"),
    ("BUILDX_BUILDER", "default"),
    ("BUILDX_NO_DEFAULT_ATTESTATIONS", "1"),
)


def buildkit(local: Transport, argv: tuple[str, ...]) -> Command | None:
    """Return `docker argv…` for the first client on PATH that has BuildKit; None without one.

    Clients before 23 hold it in themselves, later ones need the plugin buildx.
    """
    for folder in os.get_exec_path():
        docker = Path(folder) / "docker"
        if docker.is_file() and os.access(docker, os.X_OK) and _has_buildkit(local, str(docker)):
            return Command(argv=(str(docker), *argv), env=_VARIABLES)
    return None


def _has_buildkit(local: Transport, docker: str) -> bool:
    if run(local, Command(argv=(docker, "buildx", "version"))).succeeded:
        return True
    version = run(local, Command(argv=(docker, "version", "--format", "{{.Client.Version}}")))
    numbers = re.match(r"(\d+)\.(\d+)", version.stdout)
    return numbers is not None and (18, 9) <= (int(numbers[1]), int(numbers[2])) < (23, 0)
