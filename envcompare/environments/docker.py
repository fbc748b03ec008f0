"""Docker: `docker run` around the command, with an image in the host's engine."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from envcompare.config import Rung, Traits
from envcompare.environments.oci import DOCKER_TRAITS, DockerEngine


class Docker(DockerEngine):
    """Runs the command in a container under the engine's default runtime."""

    name: ClassVar[str] = "docker"
    traits: ClassVar[Traits] = replace(DOCKER_TRAITS, is_default=True, rung=Rung(6, "docker"))
