"""How a command is isolated on a host: the Environment seam; each environment is one file."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from envcompare.command import Command
from envcompare.config.arms import Traits
from envcompare.errors import Problem
from envcompare.stack import Mount, Prepared, Request
from envcompare.stack.engine import Engine
from envcompare.transport import Transport

# By a CDI description, by the engine's own option, or by the driver's files themselves.
GpuWay = Literal["none", "cdi", "engine", "devices"]


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
    """Whether something is usable on a host; where it is not, the problem with its remedy."""

    problem: Problem | None = None  # of what is not usable
    version: str | None = None
    caution: Problem | None = None  # of what is usable, and could be better
    engine: str = ""
    gpu: Gpu = Gpu()

    @property
    def is_usable(self) -> bool:
        """Tell whether there is no problem."""
        return self.problem is None

    @property
    def reason(self) -> str:
        """Return what is wrong, or could be better."""
        said = self.problem or self.caution
        return said.brief if said else ""

    @property
    def hint(self) -> str:
        """Return what to try."""
        said = self.problem or self.caution
        return said.hint if said else ""


def unusable(brief: str, hint: str = "", *, version: str | None = None) -> Check:
    """Return that something is not usable, and what mends it."""
    return Check(problem=Problem(brief=brief, hint=hint), version=version)


class Environment(Protocol):
    """Isolates a command; all that is special to an environment stands in its file."""

    @property
    def name(self) -> str:
        """Name the environment as the user writes it."""
        ...

    @property
    def traits(self) -> Traits:
        """Tell what planning, profiling and remedies need to know of it."""
        ...

    @property
    def engine(self) -> Engine | None:
        """Return the engine that keeps its images; None where its software is in the cache."""
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

    def prepare(self, request: Request) -> Prepared:
        """Return the software of an arm, made if needed, with the proof of what it is.

        Raises UnusableError when the host lacks an interpreter or an engine, and StackError when
        the software cannot be made, found or sent.
        """
        ...

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Say why the environment itself could not start a command; None when it did start it."""
        ...

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """End and remove what a run has on the host; return how many things there were.

        With the mark of a worker only what was started with it. Raises StillRunningError where it
        cannot be shown within a minute that all of it has ended.
        """
        ...
