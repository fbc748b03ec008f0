"""Shared parts of engines with Docker's command line: containers, options, labels, images.

`DockerEngine` is Docker's own engine, with any runtime. A container gets the GPUs by CDI, by
NVIDIA's hook, or as the driver's own files.
"""

import posixpath
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar

from envcompare.config import Compression, Place, Placing, Traits
from envcompare.environments import (
    HELD,
    READS_ALL,
    Check,
    Gpu,
    Isolation,
    ask,
    swept,
    unusable,
    variables_inside,
)
from envcompare.environments.gpu import CDI_PROBE, gpu_way
from envcompare.environments.software import (
    show_host,
    user_software,
    wheelhouse,
    with_proof,
    workload_software,
)
from envcompare.errors import Problem, StackError, UnusableError
from envcompare.gpu import MAKE_CDI
from envcompare.stack import (
    DISK_FULL,
    Engine,
    Prepared,
    Request,
    Symptom,
    last_line,
    missing_image,
    missing_program,
    missing_source,
    recognise,
)
from envcompare.stack import image as images
from envcompare.stack.building import build
from envcompare.stack.storage import ImageStore, bind, mount_options, retry_while_restarting
from envcompare.stack.venv import make_image
from envcompare.text import Command, CommandResult, spoken
from envcompare.transport import FOLDER_S, LOCAL, Transport

# A container outlives its client, and an image has no process: labels find both.
RUN_LABEL = "envcompare.run"
WORKER_LABEL = "envcompare.worker"
# A container that removes itself is still listed for a moment. A restarting daemon does not answer
# for some seconds, and is asked once a second.
_REMOVE = r"""
label=$1 tries=$2 removed=' ' rounds=0 failures=0
shift 2
command -v "$1" >/dev/null || { echo 0; exit; }
while :; do
  ids=$("$@" ps --all --quiet --no-trunc --filter "label=$label") || {
    failures=$((failures + 1))
    [ "$failures" -lt "$tries" ] || exit 4
    sleep 1
    continue
  }
  [ -n "$ids" ] || break
  case $(printf %s "$ids" | tr -d '0-9a-f\n') in ?*) printf '%s\n' "$ids" >&2; exit 6 ;; esac
  [ "$rounds" -lt 100 ] || exit 5
  for id in $("$@" rm --force --volumes $ids); do
    case $removed in *" $id "*) ;; *) removed="$removed$id " ;; esac
  done
  rounds=$((rounds + 1))
  sleep 0.1 || sleep 1
done
set -- $removed
echo "$#"
"""
# The layers below an image belong to the user; keep them even if they have no name.
_REMOVE_IMAGES = r"""
label=$1
shift
command -v "$1" >/dev/null || { echo 0; exit; }
images=$("$@" image ls --quiet --no-trunc --filter "label=$label") || exit
[ -z "$images" ] || "$@" image rm --force --no-prune $images >/dev/null || exit
echo 0
"""
_TRIES = 20
# The daemon of a worker was running a moment ago, so it will answer again.
_TRIES_OF_WORKER = 60
# This version brought `docker run --pull`.
_OLDEST = (20, 10)
_FORMAT = "{{.Client.Version}} {{.Server.Version}}"
_VERSIONS = re.compile(r"(\d+\.\d\S*) (\d+\.\d\S*)(?:\n|$)")
# No process inside gets more rights than its user has. A fork bomb hits the limit before the
# smallest kernel runs out of process numbers (32768). --threads takes half of the limit.
_FEW_RIGHTS = (("--cap-drop", "ALL"), ("--security-opt", "no-new-privileges"))
_FEW_PROCESSES = ("--pids-limit", "8192")
_READ_ONLY = (("--read-only",), ("--tmpfs", "/tmp:exec"), ("--tmpfs", "/var/tmp:exec"))  # noqa: S108 — inside
PLACES: dict[Place, Placing] = {
    "image": Placing(folder=HELD, is_held=True),
    "overlay": Placing(folder="/var/tmp/envcompare-data"),  # noqa: S108 — inside
    "tmpfs": Placing(folder=f"{HELD}/data"),
    "sif": Placing(refusal="it runs no SIF"),
}
"""The places of engines with Docker's command line: `/var/tmp` is in the container's layer."""
_TMPFS = ("--mount", f"type=tmpfs,destination={HELD},tmpfs-mode=1777")
_ADVICE = ("See 'docker", "Run 'docker")  # the client ends its complaints with one of these
_USAGE = "\nUsage:"  # after a complaint about an option

_NO_GPU = "the engine has no NVIDIA runtime and no CDI description of the GPU"
_NO_GPU_HINT = (
    "install nvidia-container-toolkit and run: sudo nvidia-ctk runtime configure --runtime=docker; "
    "sudo systemctl restart docker"
)
# Images for NVIDIA's runtime look for the driver's libraries here as well.
_LIBRARIES = "/usr/local/nvidia/lib64"
# An engine without CDI, or with CDI switched off, names no folders.
_GPU_PROBE = rf"""
docker info --format '{{{{range .CDISpecDirs}}}}{{{{println .}}}}{{{{end}}}}' 2>/dev/null |
{CDI_PROBE}
if command -v nvidia-container-runtime-hook >/dev/null; then echo engine
elif docker info --format '{{{{json .Runtimes}}}}' | grep -q '"nvidia'; then echo engine
fi
exit 0
"""

SYMPTOMS = (
    Symptom(
        pattern=r"permission denied while trying to connect|connect: permission denied"
        r"|Connection aborted[^\n]+PermissionError",
        brief="permission denied on the engine's socket",
        hint='sudo usermod -aG docker "$USER", then log in again',
    ),
    Symptom(  # at an explicitly configured address
        pattern=r"(?:Cannot connect to the Docker daemon|failed to connect to the docker API) at "
        r"(?!unix:///var/run/docker\.sock)([^\s;]+?)[.;]?(?:\s|$)",
        brief="no Docker daemon answers at {match}",
        hint="start it, or correct DOCKER_HOST or the docker context there",
        passes=True,
    ),
    Symptom(
        pattern=r"Cannot connect to the Docker daemon|failed to connect to the docker API"
        r"|Connection aborted[^\n]+(?:Refused|NotFound|Disconnected)",  # the SDK's wording
        brief="the Docker daemon is not running",
        hint="sudo systemctl start docker",
        passes=True,
    ),
    Symptom(  # a client's message while its daemon stops or starts
        pattern=r"daemon is shutting down|error waiting for container: [^\n]*EOF"
        r"|error during connect: [^\n]+|Error response from daemon: [^\n]*"
        r"(?:containerd\.sock|connection refused|transport is closing|ttrpc: closed"
        r"|client connection is closing|error reading from server: EOF)",
        brief="the Docker daemon is restarting",
        hint="see what journalctl -u docker says there",
        passes=True,
    ),
    Symptom(
        pattern=r"(?:client version \S+ is too old|client version \S+ is too new)[^\n]*",
        brief="Docker client and daemon are incompatible: {match}",
        hint="install the same release of both",
    ),
    missing_image(
        pattern=r"Unable to find image '([^']+)' locally|No such image: (\S+?)\.?(?:\s|$)"
    ),
    missing_source(pattern=r"bind source path does not exist: ([^\n]+?)\.?(?:\n|$)"),
    Symptom(
        pattern=r"failed to fulfil mount request: open (\S+nvidia\S+|\S+libcuda\S+): no such file"
        r"|error gathering device information while adding custom device \"(/dev/nvidia[^\"]*)\"",
        brief="{match} is missing: a CDI description of the GPU is stale",
        hint=MAKE_CDI,
    ),
    Symptom(
        pattern=r'could not select device driver "[^"]*"|unresolvable CDI devices [^\n]+',
        brief=_NO_GPU,
        hint=_NO_GPU_HINT,
    ),
    Symptom(
        pattern=DISK_FULL,
        brief="no space is left on the engine's disk",
        hint="docker system prune, or move the engine's data root",
    ),
    missing_program(
        pattern=r'exec: "?([^":\n]+)"?: (?:executable file not found|stat [^\n]+no such file)'
    ),
)
ENGINE = Engine(
    program="docker",
    socket="/var/run/docker.sock",
    symptoms=SYMPTOMS,
    silent_hint="sudo systemctl restart docker, and see what journalctl -u docker says",
    room_hint="docker image prune there, or move the data root of the engine to another disk",
    reuses_layers=True,
)
"""Docker's own engine, which also builds the workload image on this machine."""

# After a process that had to be root, its files go to the caller, and its exit code stays.
_AS_ROOT = r"""
owner=$1 folder=$2
shift 2
"$@"
code=$?
chown -R "$owner" "$folder"
exit "$code"
"""


DOCKER_TRAITS = Traits(
    reference="image",
    is_daemons=True,
    has_client=True,
    has_network=False,
    counters="granted",
    limit_command="docker run",
    fixed_options=(
        *("-a", "--attach", "--cidfile", "-d", "--detach", "--entrypoint", "-i"),
        *("--interactive", "--name", "--platform", "--pull", "--restart", "--rm"),
        *("-t", "--tty"),
    ),
    short_switches=("-P", "-q"),
    helpers=("dockerd", "containerd", "containerd-shim"),
    places=PLACES,
)
"""The traits of all environments with Docker's own engine."""


class DockerEngine:
    """Runs the command in a fresh container from an image in Docker's engine.

    Each environment has its own name, traits and runtime options.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]
    runtime: ClassVar[tuple[str, ...]] = ()
    engine: ClassVar[Engine] = ENGINE

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return a labelled `docker run` without network, logs or pulls, under the caller's ids.

        It has minimal rights, unless the user's own options, which come later, grant more. It has
        no init process: the worker ends with its stdin, and docker reaps a killed one. With a
        capability it is root inside, and returns its files in the scratch to the caller.
        """
        # An id without a passwd entry has no name, and getpass.getuser() would fail.
        variables = (("USER", "envcompare"), *variables_inside(self.name, command, isolation))
        argv = (
            *(ENGINE.program, "run", "--interactive", "--rm", "--pull", "never"),
            *_own_options(isolation),
            *user_option(isolation),
            *visibility_options(command, isolation, variables),
            *self.runtime,
            *isolation.options,
            *image_and_command(command, isolation),
        )
        return Command(argv=argv)

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:
        """Return the options for network, logs and rights, the runtime, and those of the user."""
        return (*_own_options(isolation), *self.runtime, *isolation.options)

    def check(self, transport: Transport) -> Check:
        """Check whether client and daemon answer, are recent enough, and run as root there."""
        result = _ask(transport, "version", "--format", _FORMAT)
        if isinstance(result, Check):
            return result
        if result.exit_code == 127:
            return unusable(
                "docker is not installed",
                "install Docker Engine (Debian, Ubuntu: sudo apt-get install docker.io)",
            )
        if not result.succeeded:
            unknown = Problem(
                brief=last_line(result.stderr),
                hint="run docker version on the host and fix what it reports",
            )
            return Check(problem=recognise(SYMPTOMS, result.stderr) or unknown)
        match = _VERSIONS.match(result.stdout)
        if match is None:
            return unusable(
                f"cannot read Docker's versions; it printed: {spoken(result.stdout)}",
                f"docker version --format '{_FORMAT}' there should print only two versions",
            )
        client, server = match.groups()
        if min(_numbers(client), _numbers(server)) < _OLDEST:
            return unusable(
                f"Docker {client} (client) and {server} (daemon) are too old",
                "install Docker 20.10 or later",
                version=server,
            )
        return _check_security(transport, server)

    def check_gpu(self, transport: Transport, driver: Check) -> Check:
        """Check the driver, and how the engine gives a container the GPUs."""
        if driver.gpu.way == "none":
            return driver
        probe = Command(argv=("sh", "-c", _GPU_PROBE))
        result = ask(transport, probe, what="the Docker daemon", hint=ENGINE.silent_hint)
        if isinstance(result, Check):
            return result
        missing = Problem(brief=_NO_GPU, hint=_NO_GPU_HINT)
        return gpu_way(result.stdout, driver, missing=missing)

    def prepare(self, request: Request) -> Prepared:
        """Return an image of the host's engine: the workload image, the user's, or a skeleton."""
        store = image_store(request.transport)
        if request.is_host_stack:
            return show_host(request, lambda layout: make_image(store, layout))
        local, progress = image_store(request.local), request.progress
        if request.reference:
            image = _users_image(request, store, local)
            there = images.deliver(store, image, local=local, progress=progress)
            given = replace(there, digest=image.digest)  # of the name that was given
            return user_software(self, request, given)
        recipe = images.recipe(wheelhouse(request), base=request.options.base, local=local)
        built = images.find_built(store, recipe) or build(recipe, local=local, progress=progress)
        there = images.deliver(store, built, local=local, progress=progress)
        return with_proof(self, request, workload_software(there, name=built.name))

    def hold(
        self,
        transport: Transport,
        isolation: Isolation,
        data: str,
        *,
        compression: Compression,  # noqa: ARG002 — layers have none
    ) -> str:
        """Return the ID of the image with the data in a separate layer."""
        return held_in_layer(image_store(transport), isolation, data)

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Return the complaint of `docker run`, whose own exit codes are 125 to 127."""
        if exit_code not in {125, 126, 127}:
            return None
        if symptom := recognise(SYMPTOMS, stderr):
            return symptom
        what = "container" if exit_code == 125 else "program"
        message = last_line(stderr.partition(_USAGE)[0], without=_ADVICE)
        return Problem(brief=f"docker could not start the {what}: {message}")

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Remove the containers of a run or a worker in any state, and wait until all are gone.

        It asks the client that started them, since killing the client does not stop a container.
        """
        return remove_labelled(transport, (ENGINE.program,), run_id=run_id, worker=worker)


def held_in_layer(
    store: ImageStore, isolation: Isolation, data: str, *, options: tuple[str, ...] = ()
) -> str:
    """Return the ID of an image with data in a layer, which is removed with the run.

    `options` make the data the caller's. Raises StackError.
    """
    labels = (
        *("--label", f"{RUN_LABEL}={isolation.run_id}"),
        *("--label", f"{WORKER_LABEL}={isolation.worker}"),
    )
    return images.with_data(store, isolation.reference, data, target=HELD, options=labels + options)


def visibility_options(
    command: Command, isolation: Isolation, variables: tuple[tuple[str, str], ...]
) -> tuple[str, ...]:
    """Return the `run` options for what a container sees: folders, GPUs and variables."""
    return (
        *("--workdir", command.cwd or isolation.scratch or "/"),
        *mount_options(isolation.mounts, isolation.scratch),
        *(_TMPFS if isolation.place == "tmpfs" else ()),
        *_gpu_options(isolation.gpu),
        *(word for name, value in variables for word in ("--env", f"{name}={value}")),
    )


def image_and_command(command: Command, isolation: Isolation) -> tuple[str, ...]:
    """Return the end of `run`: labels, image, and the started command.

    A command that is root inside has a wrapper, which returns the scratch to the caller.
    """
    closing: tuple[str, ...] = ()
    if isolation.capabilities and isolation.scratch:
        owner = f"{isolation.uid}:{isolation.gid}"
        closing = ("sh", "-c", _AS_ROOT, "sh", owner, isolation.scratch)
    return (
        # with repeated labels the engine takes the last; the sweep relies on these
        *("--label", f"{RUN_LABEL}={isolation.run_id}"),
        *("--label", f"envcompare.arm={isolation.arm}"),
        *("--label", f"{WORKER_LABEL}={isolation.worker}"),
        *("--entrypoint", "", isolation.reference),
        *closing,
        *command.argv,
    )


def image_store(transport: Transport) -> ImageStore:
    """Return the images that Docker keeps on a host."""
    return ImageStore(engine=ENGINE, transport=transport)


def _ask(transport: Transport, *words: str) -> CommandResult | Check:
    """Return the result of the host's docker client, or the check of a silent daemon."""
    command = image_store(transport).command(*words)
    question = partial(ask, transport, command, what="the Docker daemon", hint=ENGINE.silent_hint)
    return retry_while_restarting(ENGINE, transport, question)


def user_option(isolation: Isolation) -> tuple[str, ...]:
    """Return the option for the user inside: the caller, or root if a capability is needed.

    A process that is not started as root does not get what `--cap-add` allows.
    """
    return "--user", "0:0" if isolation.capabilities else f"{isolation.uid}:{isolation.gid}"


def _own_options(isolation: Isolation) -> tuple[str, ...]:
    """Return the options for network, logs and rights that the user does not override."""
    options = limits(isolation, more=(_FEW_PROCESSES,))
    kept = (option for option in options if not _is_overruled(option, isolation.options))
    return tuple(word for option in kept for word in option)


def limits(
    isolation: Isolation, *, more: tuple[tuple[str, ...], ...] = ()
) -> tuple[tuple[str, ...], ...]:
    """Return the options that leave a container no network, no log and few rights.

    `more` are those of an engine.
    """
    # root with a capability returns its files in the scratch folder to the caller
    needed = isolation.capabilities and (*isolation.capabilities, "CHOWN")
    is_root = isolation.uid == 0 or bool(needed)
    # A timed command may write where it could in a container that a user starts. CDI and the NVIDIA
    # toolkit rewrite the image's loader cache.
    is_written = (
        isolation.is_timed
        or isolation.place == "overlay"
        or isolation.gpu.way not in {"none", "devices"}
    )
    return (
        *(("--network", "none"), ("--log-driver", "none")),
        *_FEW_RIGHTS,
        *more,
        *(("--cap-add", name) for name in (*needed, *((READS_ALL,) if is_root else ()))),
        *(() if is_written else _READ_ONLY),
    )


def _is_overruled(option: tuple[str, ...], given: tuple[str, ...]) -> bool:
    """Say whether a user's option replaces an option of envcompare.

    For most options the engine takes the last one. It refuses two networks, or two mounts at one
    path, and `--privileged` does not undo everything before it.
    """
    options = (word.partition("=") for word in given if word.startswith("-"))
    # a Boolean that is set to false is not given
    names = {name for name, _, value in options if value.lower() not in {"false", "0", "f"}}
    match option:
        case ("--network", _):
            return bool(names & {"--network", "--net"})
        case ("--cap-drop", _) | ("--security-opt", _) | ("--read-only",):
            return "--privileged" in names
        case ("--tmpfs", value):
            return value.partition(":")[0] in _mounted(given)
    return False


def _mounted(options: tuple[str, ...]) -> set[str]:
    """Return the paths in the container at which the options mount something."""
    paths = []
    for word, following in zip(options, (*options[1:], ""), strict=False):
        name, is_joined, joined = word.partition("=")
        value = joined if is_joined else following
        if word.startswith("-v") and name != "-v":
            name, value = "-v", word[2:]
        if name in {"-v", "--volume"}:
            host, is_bind, inside = value.partition(":")
            paths.append((inside if is_bind else host).partition(":")[0])
        elif name == "--tmpfs":
            paths.append(value.partition(":")[0])
        elif name == "--mount":
            fields = (field.partition("=") for field in value.split(","))
            paths += [to for key, _, to in fields if key in {"dst", "destination", "target"}]
    return {posixpath.normpath(path) for path in paths if path}


def _gpu_options(reached: Gpu) -> tuple[str, ...]:
    """Return the options of `docker run` that give a container the GPUs.

    A container has none of the user's groups, and some hosts restrict the GPUs to one group.
    """
    groups = tuple(word for group in reached.groups for word in ("--group-add", group))
    if reached.way == "cdi":
        return (*groups, "--device", "nvidia.com/gpu=all")
    if reached.way == "engine":
        return (*groups, "--gpus", "all")
    devices = (word for path in reached.devices for word in ("--device", path))
    binds = (bind(path, target=f"{_LIBRARIES}/{name}") for name, path in reached.libraries)
    mounts = (word for value in binds for word in ("--mount", value))
    # The image's own loader cache does not know them.
    search = ("--env", f"LD_LIBRARY_PATH={_LIBRARIES}") if reached.libraries else ()
    return (*groups, *devices, *mounts, *search)


def _users_image(request: Request, store: ImageStore, local: ImageStore) -> images.Image:
    """Find an image the user named: on the host, else in the local engine."""
    reference, host = request.reference, store.transport.name
    there, here = images.find(store, reference), None
    if host != LOCAL.name:
        with suppress(UnusableError):
            here = images.find(local, reference)
    if there and here and there.id != here.id:
        ids = f"{here.key[:12]} here and {there.key[:12]} on {host}"
        remedy = f"docker image rm {reference} there first"
        request.progress.say(
            f"{reference} is {ids}: the one there is taken; for the one from here, {remedy}"
        )
    image = there or here
    if image is None:
        raise StackError(
            f"the image {reference} is not on {host}",
            hint=f"run docker pull {reference} on {host}, or build it here",
        )
    return image


def _check_security(transport: Transport, version: str) -> Check:
    result = _ask(transport, "info", "--format", "{{json .SecurityOptions}}")
    if isinstance(result, Check):
        return result
    for mode in ("rootless", "userns"):
        if f"name={mode}" in result.stdout:
            return unusable(
                f"in {mode} mode the results would belong to another user",
                "use the host's system-wide Docker without user remapping",
                version=version,
            )
    return Check(version=version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def remove_labelled(
    transport: Transport, client: tuple[str, ...], *, run_id: str, worker: str
) -> int:
    """Remove the containers of a run or a worker from an engine; return their number.

    Also removes the images with the run's data. Raises as `swept`.
    """
    label = f"{WORKER_LABEL}={worker}" if worker else f"{RUN_LABEL}={run_id}"
    tries = _TRIES_OF_WORKER if worker else _TRIES
    count = swept(
        transport,
        Command(argv=("sh", "-c", _REMOVE, "sh", label, str(tries), *client)),
        hint=f"see what {' '.join(client)} ps --all --filter label={label} says there",
        more_s=tries,
    )
    # An image with data serves all workers of a run, so it is removed only with the run.
    if not worker:
        swept(
            transport,
            Command(argv=("sh", "-c", _REMOVE_IMAGES, "sh", label, *client)),
            hint=f"see what {' '.join(client)} image ls --filter label={label} says there",
            more_s=FOLDER_S,
        )
    return count
