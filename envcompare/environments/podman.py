"""Podman without root: `podman run` around the command, on an image in the user's own store."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from envcompare.config import Compression, Traits
from envcompare.environments import (
    Check,
    Isolation,
    ask,
    judge_start,
    unusable,
    variables_inside,
)
from envcompare.environments.gpu import CDI_PROBE, gpu_way
from envcompare.environments.oci import (
    PLACES,
    held_in_layer,
    image_and_command,
    image_store,
    limits,
    remove_labelled,
    user_option,
    visibility_options,
)
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
from envcompare.stack.building import held_or_built
from envcompare.stack.storage import ImageStore
from envcompare.stack.venv import make_image
from envcompare.text import Command, spoken
from envcompare.transport import Transport

_FORMAT = (
    "{{.Version.Version}} {{.Host.OCIRuntime.Name}} {{.Store.GraphDriverName}} "
    "{{.Host.Security.Rootless}}"
)
_INFO = re.compile(r"(\d+)\.(\d+)(\S*) (\S+) (\S+) (true|false)")
# It warns of old cgroups at each start, on the workload's stderr.
_QUIET = (("PODMAN_IGNORE_CGROUPSV1_WARNING", "1"),)
# Starts a missing program in an empty root: only an engine that can make a container reports that
# the program is missing.
_PROBE = rf"""
command -v podman >/dev/null || exit 127
export PODMAN_IGNORE_CGROUPSV1_WARNING=1
podman info --format '{_FORMAT}' || exit 4
folder=$(mktemp -d) || exit 5
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/dev" "$folder/proc" "$folder/sys" "$folder/etc" "$folder/tmp" "$folder/run"
podman run --rm --network none --log-driver none --userns keep-id --rootfs "$folder" \
  /envcompare-probe
exit 0
"""
_STARTED = re.compile(r"envcompare-probe\W+(?:stat|no such file|executable file|.*not found)")
_FOLDERS = "printf '%s\\n' /etc/cdi /var/run/cdi |"  # where Podman looks for CDI descriptions
_NO_CDI = Problem(brief="Podman has no CDI description of the GPU", hint=MAKE_CDI)
_SYMPTOMS = (
    Symptom(
        pattern=r"cgroups in hybrid mode not supported",
        brief="its runtime crun does not run on a kernel with cgroups of both versions",
        hint='install runc, and write runtime = "runc" under [engine] in '
        "~/.config/containers/containers.conf",
    ),
    Symptom(
        pattern=r"newuidmap|newgidmap|insufficient (?:UIDs|GIDs)|no subuid ranges"
        r"|cannot find mappings|user namespace",
        brief="this user has no ranges of further user IDs, or may make no user namespaces",
        hint="sudo apt-get install uidmap; sudo usermod --add-subuids 100000-165535 "
        '--add-subgids 100000-165535 "$USER"; podman system migrate; see also '
        "sysctl user.max_user_namespaces",
    ),
    missing_image(pattern=r"(\S+): image not known"),
    missing_source(pattern=r"statfs ([^\n]+?): no such file or directory"),
    Symptom(
        pattern=r"stat nvidia\.com/gpu=all",
        brief="this Podman does not know CDI",
        hint="install Podman 4.1 or later",
    ),
    Symptom(pattern=r"unresolvable CDI devices [^\n]+", brief=_NO_CDI.brief, hint=_NO_CDI.hint),
    Symptom(
        pattern=DISK_FULL,
        brief="no space is left on the disk of its store",
        hint="podman system prune, or move the store (graphroot in storage.conf)",
    ),
    missing_program(
        pattern=r'exec: "?([^":\n]+)"?: (?:executable file not found|stat [^\n]+no such file)'
        r"|executable file `([^`]+)` not found"
    ),
)
ENGINE = Engine(
    program="podman",
    socket="",  # none is used
    symptoms=_SYMPTOMS,
    silent_hint="see what podman info says there, and podman system migrate",
    room_hint="podman image prune there, or move its store to another disk",
)
"""The store of the user who is logged in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Podman:
    """Runs the command in a fresh container of the user's own store, without root on the host."""

    name: ClassVar[str] = "podman"
    traits: ClassVar[Traits] = Traits(
        reference="image",
        has_client=True,
        has_network=False,
        counters="root",
        limit_command="podman run",
        programs=(ENGINE.program,),
        helpers=("conmon", "fuse-overlayfs"),
        places=PLACES,
    )
    engine: ClassVar[Engine] = ENGINE

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return a labelled `podman run` without network, logs or pulls, under the caller's ids.

        `--userns keep-id` gives the caller the same number inside and outside. The engine's process
        limit stays: kernels with cgroups of version 1 refuse a different one.
        """
        variables = (("USER", "envcompare"), *variables_inside(self.name, command, isolation))
        argv = (
            *(ENGINE.program, "run", "--interactive", "--rm", "--pull", "never"),
            # removal does not wait for a process that ignores signals
            *("--stop-timeout", "0"),
            *self.engine_options(isolation),
            *user_option(isolation),
            *visibility_options(command, isolation, variables),
            *image_and_command(command, isolation),
        )
        return Command(argv=argv, env=_QUIET)

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:
        """Return the options for network, logs and rights."""
        options = (*limits(isolation), ("--userns", "keep-id"))
        return tuple(word for option in options for word in option)

    def check(self, transport: Transport) -> Check:
        """Check whether this user, without root, can start a container, and with which runtime."""
        probe = Command(argv=("sh", "-c", _PROBE))
        result = ask(transport, probe, what="Podman", hint=ENGINE.silent_hint)
        if isinstance(result, Check):
            return result
        if result.exit_code == 127:
            return unusable(
                "podman is not installed", "Debian, Ubuntu: sudo apt-get install podman uidmap"
            )
        match = _INFO.match(result.stdout)
        if match is None:
            return Check(problem=_complaint(result.stderr or result.stdout))
        version = f"{match[1]}.{match[2]}{match[3]} ({match[4]}, {match[5]})"
        problem = None
        # This version brought `--pull never`.
        if (int(match[1]), int(match[2])) < (3, 4):
            brief = f"Podman {match[1]}.{match[2]} is too old"
            problem = Problem(brief=brief, hint="install Podman 3.4 or later")
        elif match[6] != "true":
            brief = "this user is root, and the environment podman is Podman without root"
            problem = Problem(brief=brief, hint="log in as an ordinary user")
        return judge_start(
            result.stderr, version, begun=_STARTED, complaint=_complaint, refused=problem
        )

    def check_gpu(self, transport: Transport, driver: Check) -> Check:
        """Check the driver, and how a container gets the GPUs."""
        if driver.gpu.way == "none":
            return driver
        probe = Command(argv=("sh", "-c", _FOLDERS + CDI_PROBE))
        result = ask(transport, probe, what="the host", hint="log in there and see why")
        if isinstance(result, Check):
            return result
        return gpu_way(result.stdout, driver, missing=_NO_CDI)

    def prepare(self, request: Request) -> Prepared:
        """Return an image of the user's store, sent there from the engine that builds images."""
        store = ImageStore(engine=ENGINE, transport=request.transport)
        if request.is_host_stack:
            return show_host(request, lambda layout: make_image(store, layout))
        local, progress = image_store(request.local), request.progress
        if request.reference:
            return user_software(self, request, _users_image(request, store))
        recipe = images.recipe(wheelhouse(request), base=request.options.base, local=local)
        on_host = image_store(request.transport)
        source, built = held_or_built(on_host, recipe, local=local, progress=progress)
        there = images.deliver(store, built, local=source, progress=progress)
        return with_proof(self, request, workload_software(there, name=built.name))

    def hold(
        self,
        transport: Transport,
        isolation: Isolation,
        data: str,
        *,
        compression: Compression,  # noqa: ARG002 — layers have none
    ) -> str:
        """Return the ID of the image with the data in a separate layer.

        Also raises StackError for a path that `podman cp` takes for a pattern.
        """
        if set(data) & set("*?[\\"):
            raise StackError(
                f"podman cannot put {spoken(data)} into an image",
                details="podman cp reads * ? [ and \\ in its path as a pattern",
                hint="name a path without them with --data",
            )
        owner = ("--userns", "keep-id", *user_option(isolation))
        store = ImageStore(engine=ENGINE, transport=transport)
        return held_in_layer(store, isolation, data, options=owner)

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Return the complaint of `podman run`, whose own exit codes are 125 to 127."""
        return _complaint(stderr) if exit_code in {125, 126, 127} else None

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Remove the containers of a run or a worker in any state, and wait until all are gone."""
        return remove_labelled(transport, (ENGINE.program,), run_id=run_id, worker=worker)


def _complaint(stderr: str) -> Problem:
    unknown = Problem(
        brief=f"podman could not start the container: {last_line(stderr)}",
        hint="run podman info on the host and fix what it reports",
    )
    return recognise(_SYMPTOMS, stderr) or unknown


def _users_image(request: Request, store: ImageStore) -> images.Image:
    """Find an image the user named: in the store of the host, else in the local building engine."""
    reference, local = request.reference, image_store(request.local)
    there = images.look_up(store, reference)
    if there is not None:
        return there
    here = None
    with suppress(UnusableError):
        here = images.find(local, reference)
    if here is not None:
        there = images.deliver(store, here, local=local, progress=request.progress)
        return replace(there, digest=here.digest)
    where = request.transport.name
    raise StackError(
        f"the image {reference} is not on {where}",
        hint=f"run podman pull {reference} on {where}, or build it here",
    )
