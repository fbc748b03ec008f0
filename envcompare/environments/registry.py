"""The environments by name."""

from __future__ import annotations

import difflib
from collections import ChainMap

from envcompare.config import Traits
from envcompare.environments import Environment
from envcompare.environments.bubblewrap import RUNGS, Bubblewrap
from envcompare.environments.charliecloud import Charliecloud
from envcompare.environments.docker import Docker
from envcompare.environments.gvisor import GVisor
from envcompare.environments.line import CLIENTS, CapturedLine, EngineLine, Line
from envcompare.environments.podman import Podman
from envcompare.environments.singularity import Singularity
from envcompare.environments.vm import Vm
from envcompare.errors import ConfigError

IMAGE_BUILDER = Docker()
"""The environment whose engine builds the workload image on this machine."""
_ALL: tuple[Environment, ...] = (
    *(Vm(), IMAGE_BUILDER, Singularity()),
    *(Podman(), Charliecloud(), Bubblewrap(), *RUNGS, GVisor()),
)
ENVIRONMENTS = {where.name: where for where in _ALL}
_LINES: tuple[Environment, ...] = (Line(), CapturedLine(), *map(EngineLine.of, CLIENTS))
ALL_ENVIRONMENTS = ChainMap({where.name: where for where in _LINES}, ENVIRONMENTS)
"""All environments, including the kinds of command line."""


def environment(name: str) -> Environment:
    """Return the environment of that name or alias; raises ConfigError that lists the names."""
    for where in ALL_ENVIRONMENTS.values():
        if name in {where.name, *where.traits.aliases}:
            return where
    aliases = (alias for where in ENVIRONMENTS.values() for alias in where.traits.aliases)
    close = difflib.get_close_matches(name, (*ENVIRONMENTS, *aliases), n=1)
    raise ConfigError(
        f"there is no environment {name!r}",
        details=f"the environments are {', '.join(ENVIRONMENTS)}",
        hint=f"did you mean {close[0]!r}?" if close else "name one of these with --envs",
    )


def all_traits() -> dict[str, Traits]:
    """Return the traits of each environment and kind of line, for parsing `--envs`."""
    return {name: where.traits for name, where in ALL_ENVIRONMENTS.items()}
