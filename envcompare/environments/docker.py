"""Docker: `docker run` around the command, and the engine's socket for the SDK."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envcompare.command import Command, CommandResult
from envcompare.environments import Check, Isolation, docker_gpu
from envcompare.environments.asking import ask
from envcompare.environments.diagnosis import DISK_FULL, Cause, Symptom, last_line, recognise
from envcompare.environments.marks import inside, swept
from envcompare.environments.mounts import all_binds
from envcompare.errors import UnusableError
from envcompare.text import spoken
from envcompare.transport import Transport

if TYPE_CHECKING:
    from docker import DockerClient  # noqa: TID251 - the type of the client

RUN_LABEL = "envcompare.run"
ARM_LABEL = "envcompare.arm"
WORKER_LABEL = "envcompare.worker"
_OLDEST = (20, 10)  # the first with `docker run --pull`
_FORMAT = "{{.Client.Version}} {{.Server.Version}}"
_VERSIONS = re.compile(r"(\d+\.\d\S*) (\d+\.\d\S*)(?:\n|$)")
_SOCKET = "/var/run/docker.sock"
# A container that removes itself is still listed for a moment. A daemon that is restarted does not
# answer for some seconds: 20 tries, one a second, leave the removal most of the time of a sweep.
_REMOVE = r"""
label=$1 removed=' ' rounds=0 failures=0
command -v docker >/dev/null || { echo 0; exit; }
while :; do
  ids=$(docker ps --all --quiet --no-trunc --filter "label=$label") || {
    failures=$((failures + 1))
    [ "$failures" -lt 20 ] || exit 4
    sleep 1
    continue
  }
  [ -n "$ids" ] || break
  case $(printf %s "$ids" | tr -d '0-9a-f\n') in ?*) printf '%s\n' "$ids" >&2; exit 6 ;; esac
  [ "$rounds" -lt 100 ] || exit 5
  for id in $(docker rm --force --volumes $ids); do
    case $removed in *" $id "*) ;; *) removed="$removed$id " ;; esac
  done
  rounds=$((rounds + 1))
  sleep 0.1 || sleep 1
done
set -- $removed
echo "$#"
"""
_ADVICE = ("See 'docker", "Run 'docker")  # the client ends its complaints with one of these

_SYMPTOMS = (
    Symptom(
        pattern=r"permission denied while trying to connect|connect: permission denied"
        r"|Connection aborted[^\n]+PermissionError",
        reason="permission denied on the engine's socket",
        hint='sudo usermod -aG docker "$USER", then log in again',
    ),
    Symptom(  # at another address than the usual one, which somebody named
        pattern=r"(?:Cannot connect to the Docker daemon|failed to connect to the docker API) at "
        r"(?!unix:///var/run/docker\.sock)([^\s;]+?)[.;]?(?:\s|$)",
        reason="no Docker daemon answers at {match}",
        hint="start it, or correct DOCKER_HOST or the docker context there, which names it",
    ),
    Symptom(
        pattern=r"Cannot connect to the Docker daemon|failed to connect to the docker API"
        r"|Connection aborted[^\n]+(?:Refused|NotFound|Disconnected)",  # as the SDK says it
        reason="the Docker daemon is not running",
        hint="sudo systemctl start docker",
    ),
    Symptom(
        pattern=r"(?:client version \S+ is too old|client version \S+ is too new)[^\n]*",
        reason="Docker client and daemon do not fit: {match}",
        hint="bring both to the same release",
    ),
    Symptom(
        pattern=r"Unable to find image '([^']+)' locally|No such image: (\S+?)\.?(?:\s|$)",
        reason="the image {match} is not on the host",
        hint="run envcompare build, or load the image there with docker load",
    ),
    Symptom(
        pattern=r"bind source path does not exist: ([^\n]+?)\.?(?:\n|$)",
        reason="{match} does not exist on the host",
        hint="create it there, or correct the path",
    ),
    Symptom(
        pattern=r'could not select device driver "[^"]*"|unresolvable CDI devices [^\n]+',
        reason=docker_gpu.NO_GPU,
        hint=docker_gpu.NO_GPU_HINT,
    ),
    Symptom(
        pattern=DISK_FULL,
        reason="no space is left on the engine's disk",
        hint="docker system prune, or move the engine's data root",
    ),
    Symptom(
        pattern=r'exec: "?([^":\n]+)"?: (?:executable file not found|stat [^\n]+no such file)',
        reason="{match} is not in the image",
        hint="name an image that holds it",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Docker:
    """Runs the command in a fresh container of an image that the engine holds."""

    name: str = "docker"

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return a labelled `docker run` without network, logs or pulls, under the caller's ids.

        No init process is added: the worker ends with its stdin, and a killed one is reaped by it.
        """
        # An id without a passwd entry has no name, and getpass.getuser() would fail.
        variables = (("USER", "envcompare"), *inside(self.name, command, isolation))
        argv = (
            *("docker", "run", "--interactive", "--rm", "--pull", "never"),
            *("--network", "none", "--log-driver", "none"),
            *("--label", f"{RUN_LABEL}={isolation.run_id}"),
            *("--label", f"{ARM_LABEL}={isolation.arm}"),
            *("--label", f"{WORKER_LABEL}={isolation.worker}"),
            *_rights(isolation),
            *("--workdir", command.cwd or isolation.scratch or "/"),
            *all_binds(isolation),
            *docker_gpu.options(isolation.gpu),
            *(word for name, value in variables for word in ("--env", f"{name}={value}")),
            *("--entrypoint", "", isolation.reference),
            *command.argv,
        )
        return Command(argv=argv)

    def check(self, transport: Transport) -> Check:
        """Say whether client and daemon answer, are recent enough, and run as root there."""
        result = ask_client(transport, "version", "--format", _FORMAT)
        if isinstance(result, Check):
            return result
        if not result.succeeded:
            return _unusable(result)
        said = _VERSIONS.match(result.stdout)
        if said is None:
            return Check(
                is_usable=False,
                reason=f"cannot read Docker's versions; it printed: {spoken(result.stdout)}",
                hint=f"docker version --format '{_FORMAT}' there should print two versions and "
                "nothing else",
            )
        client, server = said.groups()
        if min(_numbers(client), _numbers(server)) < _OLDEST:
            return Check(
                is_usable=False,
                version=server,
                reason=f"Docker {client} (client) and {server} (daemon) are too old",
                hint="install Docker 20.10 or later",
            )
        return _check_security(transport, server)

    def check_gpu(self, transport: Transport) -> Check:
        """Say whether the driver works, and by which way the engine gives a container a GPU."""
        return docker_gpu.check(transport)

    def explain(self, exit_code: int, stderr: str) -> Cause | None:
        """Say what `docker run` complained about; 125 to 127 are its own exit codes."""
        if exit_code not in {125, 126, 127}:
            return None
        if symptom := recognise(_SYMPTOMS, stderr):
            return symptom
        what = "container" if exit_code == 125 else "program"
        said = last_line(stderr, without=_ADVICE)
        return Cause(reason=f"docker could not start the {what}: {said}")

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Remove the containers of a run or a worker in any state, and wait until all are gone.

        The client is asked that started them: killing it does not stop a container.
        """
        label = f"{WORKER_LABEL}={worker}" if worker else f"{RUN_LABEL}={run_id}"
        hint = f"see what docker ps --all --filter label={label} says there"
        return swept(transport, Command(argv=("sh", "-c", _REMOVE, "sh", label)), hint=hint)


def ask_client(transport: Transport, *words: str) -> CommandResult | Check:
    """Return what the host's docker client said, or that its daemon did not answer in time."""
    hint = "sudo systemctl restart docker, and see what journalctl -u docker says"
    command = Command(argv=("docker", *words))
    return ask(transport, command, what="the Docker daemon", hint=hint)


@contextmanager
def connect(transport: Transport) -> Iterator[DockerClient]:
    """Give a client of the host's engine over its forwarded socket.

    Raises UnusableError when the engine cannot be reached, refuses, or stops answering.
    """
    import docker  # noqa: PLC0415, TID251 - loads slowly, and only stack needs it
    from requests.exceptions import RequestException  # noqa: PLC0415 - what the SDK lets through

    try:
        with transport.forward_unix(_socket(transport)) as path:
            client = docker.DockerClient(base_url=f"unix://{path}", timeout=600)
            try:
                yield client
            finally:
                client.close()
    except (docker.errors.DockerException, RequestException) as error:
        symptom = recognise(_SYMPTOMS, str(error))
        raise UnusableError(
            f"docker on {transport.name} refused a request",
            details=symptom.reason if symptom else str(error),
            hint=symptom.hint if symptom else "run envcompare doctor",
        ) from error


def _rights(isolation: Isolation) -> tuple[str, ...]:
    """Return the user inside: the caller, or root where a capability is needed.

    A process that is not started as root does not get what `--cap-add` allows.
    """
    if not isolation.capabilities:
        return "--user", f"{isolation.uid}:{isolation.gid}"
    added = (word for name in isolation.capabilities for word in ("--cap-add", name))
    return "--user", "0:0", "--security-opt", "no-new-privileges", *added


def _socket(transport: Transport) -> str:
    endpoint = "{{.Endpoints.docker.Host}}"
    result = ask_client(transport, "context", "inspect", "--format", endpoint)
    if isinstance(result, Check):
        raise UnusableError(
            f"docker on {transport.name} cannot be used", details=result.reason, hint=result.hint
        )
    scheme, _, path = result.stdout.strip().partition("://")
    if not result.succeeded or not scheme:
        return _SOCKET
    if scheme != "unix":
        raise UnusableError(
            f"docker on {transport.name} does not listen on a UNIX socket",
            details=f"its current context is {spoken(result.stdout)}",
            hint="name the host of that engine with --hosts, or run: docker context use default",
        )
    return path


def _unusable(result: CommandResult) -> Check:
    if result.exit_code == 127:
        return Check(
            is_usable=False,
            reason="docker is not installed",
            hint="install Docker Engine (Debian, Ubuntu: sudo apt-get install docker.io)",
        )
    symptom = recognise(_SYMPTOMS, result.stderr)
    return Check(
        is_usable=False,
        reason=symptom.reason if symptom else last_line(result.stderr),
        hint=symptom.hint if symptom else "run docker version on the host and mend what it says",
    )


def _check_security(transport: Transport, version: str) -> Check:
    result = ask_client(transport, "info", "--format", "{{json .SecurityOptions}}")
    if isinstance(result, Check):
        return result
    for mode in ("rootless", "userns"):
        if f"name={mode}" in result.stdout:
            return Check(
                is_usable=False,
                version=version,
                reason=f"in {mode} mode the results would belong to another user",
                hint="use the host's system-wide Docker without user remapping",
            )
    return Check(is_usable=True, version=version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
