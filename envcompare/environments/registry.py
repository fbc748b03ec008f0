"""The environments by name; importing this is cheap."""

from __future__ import annotations

import difflib

from envcompare.config.arms import ALIASES
from envcompare.environments import Environment
from envcompare.environments.docker import Docker
from envcompare.environments.singularity import Singularity
from envcompare.environments.vm import Vm
from envcompare.errors import ConfigError

ENVIRONMENTS: dict[str, Environment] = {
    "vm": Vm(),
    "docker": Docker(),
    "singularity": Singularity(),
}


def environment(name: str) -> Environment:
    """Return the environment of that name or alias; raises ConfigError that lists the names."""
    found = ENVIRONMENTS.get(ALIASES.get(name, name))
    if found is None:
        close = difflib.get_close_matches(name, (*ENVIRONMENTS, *ALIASES), n=1)
        raise ConfigError(
            f"there is no environment {name!r}",
            details=f"the environments are {', '.join(ENVIRONMENTS)}",
            hint=f"did you mean {close[0]!r}?" if close else "name one of these with --envs",
        )
    return found
