"""gVisor: Docker's containers under the runtime `runsc`, which is a kernel of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from envcompare.command import Command
from envcompare.config.arms import Traits
from envcompare.config.settings import Compression
from envcompare.environments import Check, Isolation, ask, unusable
from envcompare.environments.docker import ENGINE, Docker, prepared_image
from envcompare.errors import Problem
from envcompare.stack import Engine, Prepared, Request, Symptom, recognise
from envcompare.transport import Transport

_DOCKER = Docker()
_RUNTIME = ("--runtime", "runsc")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GVisor:
    """Runs the command as `docker` does, on the system calls of gVisor's kernel.

    That kernel tells no run-queue wait, so that a cell with such an arm is judged on wall time.
    """

    name: ClassVar[str] = "gvisor"
    traits: ClassVar[Traits] = replace(
        Docker.traits,
        aliases=("runsc",),
        is_default=False,
        counters="root",
        rung=None,
        fixed_options=(*(Docker.traits.fixed_options or ()), "--runtime"),
        # not the kernel itself, `exe`: its clock counts its work as that of the workload
        helpers=(*Docker.traits.helpers, "runsc-gofer"),
    )
    engine: ClassVar[Engine] = ENGINE

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return the `docker run` of `docker`, under another runtime."""
        return _DOCKER.wrap(command, replace(isolation, options=(*_RUNTIME, *isolation.options)))

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:
        """Return the options of `docker`, and the runtime."""
        options = (*_RUNTIME, *isolation.options)
        return _DOCKER.engine_options(replace(isolation, options=options))

    def check(self, transport: Transport) -> Check:
        """Say whether Docker is usable there, and knows the runtime."""
        check = _DOCKER.check(transport)
        if not check.is_usable:
            return check
        probe = Command(argv=("sh", "-c", _PROBE))
        result = ask(transport, probe, what="the Docker daemon", hint=ENGINE.silent_hint)
        if isinstance(result, Check):
            return result
        if result.exit_code == 3:
            return unusable(_MISSING, _MISSING_HINT, version=check.version)
        told = result.stdout.strip().removeprefix("runsc version ")
        return replace(check, version=f"{told or 'unknown'} in Docker {check.version}")

    def check_gpu(self, transport: Transport, driver: Check) -> Check:  # noqa: ARG002 — the host was asked
        """Say that GPUs are not given: nvproxy is for some drivers and not set up here."""
        if driver.gpu.way == "none":
            return driver
        return unusable(
            "gVisor reaches GPUs by nvproxy alone, which envcompare does not set up",
            "give --device cpu, or leave gvisor out",
        )

    def prepare(self, request: Request) -> Prepared:
        """Return what `docker` has, proven under this runtime."""
        return prepared_image(self, request)

    def hold(
        self, transport: Transport, isolation: Isolation, data: str, *, compression: Compression
    ) -> str:
        """Return what `docker` makes."""
        return _DOCKER.hold(transport, isolation, data, compression=compression)

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Say what the runtime or `docker run` complained about."""
        problem = _DOCKER.explain(exit_code, stderr)
        return problem and (recognise(_SYMPTOMS, stderr) or problem)

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Remove the containers as `docker` does."""
        return _DOCKER.sweep(transport, run_id, worker=worker)
