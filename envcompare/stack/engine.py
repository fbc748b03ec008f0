"""A container engine that stores images: its client, its socket, and its `--mount` options."""

from __future__ import annotations

import csv
import io
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, runtime_checkable

from envcompare.command import Command, CommandResult
from envcompare.errors import CommandTimeoutError, Problem, UnusableError
from envcompare.stack import Engine, Mount, recognise
from envcompare.text import spoken
from envcompare.transport import Transport, run, shell

if TYPE_CHECKING:
    from docker import DockerClient  # noqa: TID251 - the type of the client

ANSWER_S: Final = 60.0  # for a client to pass on its daemon's answer
# The engine's own builder, whatever the user chose as default, and no attestations.
_VARIABLES = (
    ("DOCKER_BUILDKIT", "1"),
    ("BUILDX_BUILDER", "default"),
    ("BUILDX_NO_DEFAULT_ATTESTATIONS", "1"),
)
# Name, folder and storage driver of the daemon, a line each.
_ROOT: Final = "{{.Name}}\n{{.DockerRootDir}}\n{{.DriverStatus}}"
_CONTAINERD_ROOT: Final = "/var/lib/containerd"
AWAY_S: Final = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
_T = TypeVar("_T")
# Engines that have answered, by program and host: only these are known to come back.
_ANSWERED: set[tuple[str, str]] = set()


@runtime_checkable
class _Answer(Protocol):
    """The result of a client's command."""

    @property
    def succeeded(self) -> bool:
        """Tell whether it succeeded."""
        ...

    @property
    def stderr(self) -> str:
        """Return its error output."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageStore:
    """The images that an engine stores on a host."""

    engine: Engine
    transport: Transport

    @property
    def is_on(self) -> str:
        """Name engine and host, as in `docker on gpu01`."""
        return f"{self.engine.program} on {self.transport.name}"

    def command(self, *words: str) -> Command:
        """Return the command that runs the engine's client."""
        return Command(argv=(self.engine.program, *words))

    def run(self, *words: str, timeout_s: float = ANSWER_S) -> CommandResult:
        """Run the engine's client to its end, whatever its exit code.

        It is repeated while the engine restarts, so the command must be safe to repeat.
        """
        ask = partial(run, self.transport, self.command(*words), timeout_s=timeout_s)
        return retry_while_restarting(self.engine, self.transport, ask)

    def data_root(self) -> str:
        """Return the host's folder with the images; empty if unknown.

        An engine that uses containerd stores them in containerd's folder. One reached over a
        network stores them on another machine.
        """
        script = 'uname -n && exec "$@"'
        words = (self.engine.program, "info", "--format", _ROOT)
        try:
            output = shell(self.transport, script, *words, timeout_s=ANSWER_S).stdout
        except CommandTimeoutError:
            return ""
        host, name, root, kinds = (*output.splitlines(), "", "", "", "")[:4]
        if host != name or not root.startswith("/"):
            return ""
        return _CONTAINERD_ROOT if "io.containerd." in kinds else root

    def ask(self, *words: str) -> CommandResult:
        """Run the engine's client; raises UnusableError if its daemon does not answer in time."""
        try:
            return self.run(*words, timeout_s=ANSWER_S)
        except CommandTimeoutError as error:
            daemon = f"the {self.engine.program.capitalize()} daemon"
            raise UnusableError(
                f"{self.is_on} cannot be used",
                details=f"{daemon} did not answer within {ANSWER_S:g} s",
                hint=self.engine.silent_hint,
            ) from error

    @contextmanager
    def connect(self) -> Iterator[DockerClient]:
        """Yield a client of the engine over its forwarded socket.

        Raises UnusableError if the engine cannot be reached, refuses, or stops answering.
        """
        import docker  # noqa: PLC0415, TID251 - loads slowly, and only here
        from requests.exceptions import RequestException  # noqa: PLC0415 - the SDK lets it through

        try:
            with self.transport.forward_unix(self._socket()) as path:
                client = docker.DockerClient(base_url=f"unix://{path}", timeout=600)
                try:
                    yield client
                finally:
                    client.close()
        except (docker.errors.DockerException, RequestException) as error:
            unknown = Problem(brief=str(error), hint="run envcompare doctor")
            problem = recognise(self.engine.symptoms, str(error)) or unknown
            raise UnusableError(
                f"{self.is_on} refused a request", details=problem.brief, hint=problem.hint
            ) from error

    def _socket(self) -> str:
        result = self.ask("context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
        scheme, _, path = result.stdout.strip().partition("://")
        if not result.succeeded or not scheme:
            return self.engine.socket
        if scheme != "unix":
            program = self.engine.program
            raise UnusableError(
                f"{self.is_on} does not listen on a UNIX socket",
                details=f"its current context is {spoken(result.stdout)}",
                hint=f"name the host of that engine with --hosts, or run: {program} context use "
                "default",
            )
        return path

    def buildkit(self, *words: str) -> Command | None:
        """Return the command for the first client on PATH with BuildKit; None without one.

        Clients before 23 include it, later ones need the plugin buildx.
        """
        for folder in os.get_exec_path():
            client = Path(folder) / self.engine.program
            if client.is_file() and os.access(client, os.X_OK) and self._has_buildkit(str(client)):
                return Command(argv=(str(client), *words), env=_VARIABLES)
        return None

    def _has_buildkit(self, client: str) -> bool:
        if run(self.transport, Command(argv=(client, "buildx", "version"))).succeeded:
            return True
        ask = Command(argv=(client, "version", "--format", "{{.Client.Version}}"))
        numbers = re.match(r"(\d+)\.(\d+)", run(self.transport, ask).stdout)
        return numbers is not None and (18, 9) <= (int(numbers[1]), int(numbers[2])) < (23, 0)


def retry_while_restarting(engine: Engine, transport: Transport, ask: Callable[[], _T]) -> _T:
    """Call `ask`, and retry with growing pauses while the engine's daemon restarts.

    An engine that has never answered is asked once: it is probably not running.
    """
    key = engine.program, transport.name
    until, pause_s = time.monotonic() + AWAY_S, _FIRST_PAUSE_S
    while _is_away(engine, answer := ask()):
        if key not in _ANSWERED or time.monotonic() + pause_s > until:
            return answer
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    _ANSWERED.add(key)
    return answer


def _is_away(engine: Engine, answer: object) -> bool:
    """Tell whether a client failed only because its daemon is stopping or starting."""
    if not isinstance(answer, _Answer) or answer.succeeded:
        return False
    problem = recognise(engine.symptoms, answer.stderr)
    return problem is not None and problem.passes


def bind(path: str, *, target: str = "", is_read_only: bool = True) -> str:
    """Return a `--mount` value that Docker, Podman and Apptainer all accept.

    It is one CSV record, so commas, colons and quotes stay in the path. The source must exist: with
    `--mount`, engines refuse a missing source instead of creating it.
    """
    fields = ["type=bind", f"source={path}", f"destination={target or path}"]
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([*fields, *(["ro"] if is_read_only else [])])
    return text.getvalue()


def mount_options(mounts: tuple[Mount, ...], scratch: str) -> tuple[str, ...]:
    """Return `--mount` options for every mount and the scratch folder, each at its own path."""
    binds = [bind(mount.path, is_read_only=mount.is_read_only) for mount in mounts]
    if scratch:
        binds.append(bind(scratch, is_read_only=False))
    return tuple(word for value in binds for word in ("--mount", value))
