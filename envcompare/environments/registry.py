"""The environments by name, and those that are looked for on a host and not compared.

The latter, Kata Containers and Firecracker, start a small virtual machine by KVM, which needs
hardware virtualisation that few rented machines pass on. Nothing here starts one.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from envcompare.command import Command
from envcompare.config.arms import Traits
from envcompare.environments import Check, Environment, ask
from envcompare.environments.bubblewrap import Bubblewrap
from envcompare.environments.charliecloud import Charliecloud
from envcompare.environments.docker import Docker
from envcompare.environments.gvisor import GVisor
from envcompare.environments.podman import Podman
from envcompare.environments.rungs import RUNGS
from envcompare.environments.singularity import Singularity
from envcompare.environments.vm import Vm
from envcompare.errors import ConfigError, Problem
from envcompare.transport import Transport

_REFUSAL = "it starts virtual machines by KVM, with which envcompare has not been tested"
# $@: the names of a program, any of which will do, and the name of Docker's runtime, or "".
_PROBE = r"""
runtime=$1
shift
[ -c /dev/kvm ] || echo 'missing /dev/kvm (no hardware virtualisation is passed on)'
[ ! -c /dev/kvm ] || [ -w /dev/kvm ] || echo 'missing the right to /dev/kvm (group kvm)'
for program; do
  path=$(command -v "$program") && break
done
if [ -n "$path" ]; then
  printf 'version %s\n' "$("$path" --version 2>/dev/null | head -n 1)"
else
  echo "missing the program $1"
fi
[ -z "$runtime" ] || docker info --format '{{json .Runtimes}}' 2>/dev/null | grep -q "$runtime" ||
  echo "missing the runtime $runtime in Docker"
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MicroVm:
    """An environment that a host may have, and `--envs` refuses."""

    name: str
    programs: tuple[str, ...]
    runtime: str = ""  # of Docker, by which a container is started in it
    hint: str

    @property
    def traits(self) -> Traits:
        """Return why it cannot be compared."""
        return Traits(refusal=_REFUSAL)

    def check(self, transport: Transport) -> Check:
        """Say what a host lacks for it; where nothing is missing, that it is not compared."""
        probe = Command(argv=("sh", "-c", _PROBE, "sh", self.runtime, *self.programs))
        result = ask(transport, probe, what="the host", hint="log in there and see why")
        if isinstance(result, Check):
            return result
        lines = [line.partition(" ") for line in result.stdout.splitlines()]
        missing = [rest for word, _, rest in lines if word == "missing"]
        version = next((rest for word, _, rest in lines if word == "version"), None)
        if missing:
            brief = f"not there: {'; '.join(missing)}"
            return Check(problem=Problem(brief=brief, hint=self.hint), version=version)
        problem = Problem(brief=f"installed, but not compared: {_REFUSAL}", hint=self.hint)
        return Check(problem=problem, version=version)


DETECTED = (
    _MicroVm(
        name="kata",
        programs=("kata-runtime", "containerd-shim-kata-v2"),
        runtime="kata",
        hint="nothing to do: --envs does not take kata",
    ),
    _MicroVm(
        name="firecracker",
        programs=("firecracker",),
        hint="nothing to do: --envs does not take firecracker",
    ),
)
"""What doctor tells of, in its order."""
IMAGE_BUILDER = Docker()
"""The environment whose engine builds the workload image on this machine."""
_ALL: tuple[Environment, ...] = (
    *(Vm(), IMAGE_BUILDER, Singularity()),
    *(Podman(), Charliecloud(), Bubblewrap(), *RUNGS, GVisor()),
)
ENVIRONMENTS = {where.name: where for where in _ALL}


def environment(name: str) -> Environment:
    """Return the environment of that name or alias; raises ConfigError that lists the names."""
    for where in ENVIRONMENTS.values():
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
    """Return what is special to each environment, those refused too, for parsing `--envs`."""
    refused = {where.name: where.traits for where in DETECTED}
    return {name: where.traits for name, where in ENVIRONMENTS.items()} | refused
