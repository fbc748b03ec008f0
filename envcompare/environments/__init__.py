"""How a command is isolated on a host: the Environment seam and its registry."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from envcompare.command import Command
from envcompare.environments.diagnosis import Cause
from envcompare.transport import Transport

# By a CDI description, by the engine's own option, or by the driver's files themselves.
GpuWay = Literal["none", "cdi", "engine", "devices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A path of the host, shown at the same absolute path inside."""

    path: str
    is_read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """How a process in an environment reaches the NVIDIA GPUs of the host, and what they need."""

    way: GpuWay = "none"
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()  # of the devices, where the user is in them
    libraries: tuple[tuple[str, str], ...] = ()  # of the driver: name and path on the host
    variables: tuple[tuple[str, str], ...] = ()  # by which the user chose among the GPUs

    @property
    def beside_host_files(self) -> Gpu:
        """Return the way into a container that shows the host's files, the driver's among them.

        CDI and the NVIDIA toolkit write the container's loader cache anew, which there is the
        host's own and read-only.
        """
        return self if self.way == "none" else replace(self, way="devices", libraries=())


def new_worker_mark() -> str:
    """Return a mark by which everything that one start leaves on a host is found again."""
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """All that `wrap` needs beside the command itself."""

    run_id: str
    arm: str
    worker: str = field(default_factory=new_worker_mark)  # another one for each start
    reference: str = ""  # image ID or name, SIF path; empty for vm
    engine: str = ""  # the program that `check` found, where it has several names
    uid: int = 0
    gid: int = 0
    gpu: Gpu = Gpu()
    mounts: tuple[Mount, ...] = ()
    scratch: str = ""  # a writable folder of the host: HOME inside, and /tmp where that is needed
    capabilities: tuple[str, ...] = ()  # as Docker names them; only root has the use of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Whether an environment is usable on a host, and if not, why and what mends it."""

    is_usable: bool
    version: str | None = None
    reason: str = ""
    hint: str = ""
    engine: str = ""
    gpu: Gpu = Gpu()


class Environment(Protocol):
    """Wraps a command so that it runs isolated; pure but for the checks and `sweep`."""

    @property
    def name(self) -> str:
        """Name the environment as the user writes it."""
        ...

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return the command that runs `command` isolated; pure."""
        ...

    def check(self, transport: Transport) -> Check:
        """Say whether this environment is usable on the host, and if not why and the remedy."""
        ...

    def check_gpu(self, transport: Transport) -> Check:
        """Say whether a process in this environment can reach an NVIDIA GPU, and by which way."""
        ...

    def explain(self, exit_code: int, stderr: str) -> Cause | None:
        """Say why the environment itself could not start a command; None when it did start it."""
        ...

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """End and remove what a run has on the host; return how many things there were.

        With the mark of a worker only what was started with it. Raises StillRunningError where it
        cannot be shown within a minute that all of it has ended.
        """
        ...
