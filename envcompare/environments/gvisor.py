"""gVisor: Docker's containers under the runtime `runsc`, which is its own kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from envcompare.config import Traits
from envcompare.environments import Check, ask, unusable
from envcompare.environments.oci import DOCKER_TRAITS, ENGINE, DockerEngine
from envcompare.errors import Problem
from envcompare.stack import Symptom, recognise
from envcompare.text import Command
from envcompare.transport import Transport

_PROBE = r"""
docker info --format '{{json .Runtimes}}' | grep -q '"runsc"' || exit 3
runsc --version 2>/dev/null | head -n 1
exit 0
"""
_MISSING = "the Docker daemon has no runtime runsc"
_MISSING_HINT = (
    "install gVisor (https://gvisor.dev/docs/user_guide/install/), then: sudo runsc install; "
    "sudo systemctl restart docker"
)
_SYMPTOMS = (
    Symptom(pattern=r"unknown or invalid runtime name: runsc", brief=_MISSING, hint=_MISSING_HINT),
    Symptom(
        pattern=r"cannot set up cgroup|cgroup[^\n]+(?:read-only|permission)",
        brief="runsc cannot make a cgroup here",
        hint="add --ignore-cgroups to the runtimeArgs of runsc in /etc/docker/daemon.json",
    ),
)


class GVisor(DockerEngine):
    """Runs the command as `docker` does, with gVisor's kernel for system calls.

    That kernel reports no run-queue wait, so cells with such an arm use wall time.
    """

    name: ClassVar[str] = "gvisor"
    traits: ClassVar[Traits] = replace(
        DOCKER_TRAITS,
        aliases=("runsc",),
        counters="root",
        fixed_options=(*(DOCKER_TRAITS.fixed_options or ()), "--runtime"),
        # not the kernel itself, `exe`: its CPU time includes the workload's
        helpers=(*DOCKER_TRAITS.helpers, "runsc-gofer"),
    )
    runtime: ClassVar[tuple[str, ...]] = ("--runtime", "runsc")

    def check(self, transport: Transport) -> Check:
        """Check whether Docker is usable, and has the runtime."""
        check = super().check(transport)
        if not check.is_usable:
            return check
        probe = Command(argv=("sh", "-c", _PROBE))
        result = ask(transport, probe, what="the Docker daemon", hint=ENGINE.silent_hint)
        if isinstance(result, Check):
            return result
        if result.exit_code == 3:
            return unusable(_MISSING, _MISSING_HINT, version=check.version)
        version = result.stdout.strip().removeprefix("runsc version ")
        return replace(check, version=f"{version or 'unknown'} in Docker {check.version}")

    def check_gpu(self, transport: Transport, driver: Check) -> Check:  # noqa: ARG002 — the host was asked
        """Refuse GPUs: nvproxy supports only some drivers and is not set up here."""
        if driver.gpu.way == "none":
            return driver
        return unusable(
            "gVisor reaches GPUs by nvproxy alone, which envcompare does not set up",
            "give --device cpu, or leave gvisor out",
        )

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Return the complaint of the runtime or of `docker run`."""
        problem = super().explain(exit_code, stderr)
        return problem and (recognise(_SYMPTOMS, stderr) or problem)
