"""Charliecloud: `ch-run` on a folder with the files of an image, without privileges."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from envcompare.command import Command
from envcompare.config.arms import Traits
from envcompare.environments import (
    Check,
    Isolation,
    ask,
    kill_marked,
    marks,
    unusable,
    variables_inside,
)
from envcompare.environments.docker import image_store
from envcompare.environments.software import PYTHON, proven, started, wheelhouse
from envcompare.environments.vm import show_host
from envcompare.errors import ConfigError, Problem, StackError
from envcompare.stack import Prepared, Request, room
from envcompare.stack import image as images
from envcompare.stack.building import build
from envcompare.stack.cache import host_cache
from envcompare.stack.diagnosis import DISK_FULL, Symptom, failure, last_line, recognise
from envcompare.stack.engine import ImageStore
from envcompare.stack.host import make_root
from envcompare.text import spoken
from envcompare.transport import (
    CONTENT_S,
    Transport,
    make_folder,
    not_understood,
    read_json,
    shell,
)

_OLDEST = (0, 33)  # the first with `--write-fake`
# A program that is not there is missed only where namespaces and the overlay could be made.
_PROBE = r"""
command -v ch-run >/dev/null || exit 127
ch-run --version || exit 4
folder=$(mktemp -d) || exit 5
trap 'rm -rf "$folder"' EXIT
cd "$folder" && mkdir dev etc proc sys tmp usr usr/bin var
: >etc/passwd >etc/group >etc/hosts >etc/resolv.conf
ch-run -W "$folder" -- /envcompare-probe
exit 0
"""
_STARTED = re.compile(r"can't execve\(2\): /envcompare-probe")
_VERSION = re.compile(r"(\d+)\.(\d+)\S*")
# The first word is what is done. The container that is needed to export files never starts, devices
# are the host's own, and what fails before a pipe is noticed by the file it leaves.
_FILES = r"""
export_files() {
  id=$("$1" create --label "envcompare.run=$3" "$2" true) || return
  "$1" export "$id"
  code=$?
  "$1" rm --volumes "$id" >/dev/null
  return "$code"
}

unpack() {
  chmod -R u+rwX "$1.partial" 2>/dev/null
  rm -rf "$1.partial" && mkdir "$1.partial" &&
    tar -x -C "$1.partial" --no-same-owner --exclude 'dev/*' && chmod -R u+rwX "$1.partial"
}

both() {
  rm -f "$4.failed"
  { export_files "$1" "$2" "$3" || : >"$4.failed"; } | unpack "$4" || return
  [ ! -e "$4.failed" ] || { rm -f "$4.failed"; return 1; }
}

"$@"
"""
_EXIT_CODES = {1, 31, 49, 84, 87}  # in versions before 0.39 always 1 (ch-run(1), "Exit status")
_KEEP = 'rm -rf "$1" && mv "$1.partial" "$1"'
_VARIABLES = "{{json .Config.Env}}"
# As Docker gives it to an image that sets none; one that is set comes after it.
_PATH = ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
_SYMPTOMS = (
    Symptom(
        pattern=r"can't init user\+mount namespaces|user namespace|unshare",
        brief="no unprivileged user namespaces",
        hint="sudo sysctl -w user.max_user_namespaces=15000 (and, where they exist, "
        "kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0)",
    ),
    Symptom(
        pattern=r"overlay",
        brief="the kernel lets no ordinary user mount an overlay",
        hint="it needs Linux 5.11 or later",
    ),
    Symptom(
        pattern=r"can't bind: source not found: ([^\n]+?) \(ch",
        brief="{match} does not exist on the host",
        hint="create it there, or correct the path",
    ),
    Symptom(
        pattern=r"can't stat: ([^\n]+?): No such file",
        brief="the image {match} is not on the host",
        hint="run envcompare build, or unpack the image there with ch-convert",
    ),
    Symptom(
        pattern=r"can't cd to ([^\n:]+)",
        brief="the working directory {match} is not in the container",
        hint="mount it, or choose another",
    ),
    Symptom(
        pattern=r"can't execve\(2\): ([^\n:]+)",
        brief="{match} is not in the image",
        hint="name an image that contains it",
    ),
    Symptom(
        pattern=DISK_FULL,
        brief="no space is left on the disk",
        hint="free some space, or set XDG_CACHE_HOME to another disk; "
        "envcompare clean removes the cache",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charliecloud:
    """Runs the command in a folder of an image's files, with a tmpfs laid over it.

    Network, processes and devices are the host's. What is shown of the host can be written to as
    far as the user may: `ch-run` has no read-only mounts.
    """

    name: ClassVar[str] = "charliecloud"
    traits: ClassVar[Traits] = Traits(reference="file", counters="root")
    engine: ClassVar[None] = None

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return a `ch-run` that takes no variable of the login and keeps /tmp to itself.

        Raises ConfigError for a path with a colon, which `--bind` would split.
        """
        variables = (_PATH, *variables_inside(self.name, command, isolation))
        paths = (*(mount.path for mount in isolation.mounts), isolation.scratch)
        for path in paths:
            if ":" in path:
                raise ConfigError(
                    f"charliecloud cannot show {path}",
                    details="ch-run splits the paths of --bind at colons",
                    hint="rename it, or leave charliecloud out",
                )
        argv = (
            "ch-run",
            *self.engine_options(isolation),
            *("--cd", command.cwd or isolation.scratch or "/"),
            *(word for path in dict.fromkeys(paths) if path for word in ("--bind", path)),
            *(isolation.reference, "--", "env"),
            *(f"{name}={value}" for name, value in variables),
            *command.argv,
        )
        return Command(argv=argv, env=marks(self.name, isolation))

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:  # noqa: ARG002 — all alike
        """Return what keeps variables and /tmp of the host out, and lets mount points be made."""
        return ("--write-fake", "--private-tmp", "--unset-env=*")

    def check(self, transport: Transport) -> Check:
        """Say whether this user can start a program in a folder."""
        hint = "start any program by hand there with ch-run, and see where it waits"
        probe = Command(argv=("sh", "-c", _PROBE))
        result = ask(transport, probe, what="ch-run", hint=hint)
        if isinstance(result, Check):
            return result
        if result.exit_code == 127:
            return unusable(
                "ch-run is not installed",
                "install Charliecloud (Debian, Ubuntu: sudo apt-get install charliecloud-runtime)",
            )
        said = (result.stdout + result.stderr).strip()
        told = _VERSION.match(said)
        if told is None:
            return unusable(
                f"cannot read Charliecloud's version; it printed: {spoken(said)}",
                "ch-run --version there should print a version and nothing else",
            )
        if (int(told[1]), int(told[2])) < _OLDEST:
            return unusable(
                f"Charliecloud {told[0]} is too old", "install 0.33 or later", version=told[0]
            )
        if _STARTED.search(result.stderr) is None:
            return Check(problem=_complaint(result.stderr), version=told[0])
        return Check(version=told[0])

    def check_gpu(self, transport: Transport, driver: Check) -> Check:  # noqa: ARG002 — the host was asked
        """Say that GPUs are not given: `ch-fromhost` would change the image for it."""
        if driver.gpu.way == "none":
            return driver
        return unusable(
            "charliecloud gets the driver's files by ch-fromhost, which changes the image: "
            "envcompare does not do that",
            "give --device cpu, or leave charliecloud out",
        )

    def prepare(self, request: Request) -> Prepared:
        """Return the files of the workload image, a folder of the user's, or an empty root."""
        transport = request.transport
        if request.is_host_stack:
            return show_host(request, lambda layout: make_root(transport, layout))
        if request.reference:
            return self._given(request)
        local = image_store(request.local)
        recipe = images.recipe(wheelhouse(request), base=request.options.base, local=local)
        store = image_store(transport)
        built = images.find_held(store, recipe)
        if built is None:
            store, built = local, build(recipe, local=local, progress=request.progress)
        prepared = Prepared(
            interpreter=images.PYTHON,
            reference=_unpacked(request, store, built),
            fixed_by=built.id,
            identity=(*built.identity, ("image.name", built.name)),
            facts=built.facts,
            software=built.software,
            meant=built.tree,
            variables=_variables(store, built),
        )
        return proven(self, request, prepared)

    def _given(self, request: Request) -> Prepared:
        """Return a folder or a SquashFS file that the user named."""
        path, where = request.reference, request.transport.name
        if not shell(request.transport, '[ -e "$1" ]', path).succeeded:
            raise StackError(
                f"{path} is not on {where}",
                details="there is no such file or folder",
                hint=f"unpack the image there, for example: ch-convert -i tar image.tar {path}",
            )
        prepared = Prepared(interpreter=PYTHON, reference=path)
        return proven(self, request, started(self, request, prepared, (("image.name", path),)))

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Say what `ch-run` complained about; its exit codes differ between versions."""
        is_its_own = exit_code in _EXIT_CODES and "ch-run[" in stderr
        return _complaint(stderr) if is_its_own else None

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Kill what a run or a worker left; its namespaces and mounts end with it."""
        return kill_marked(transport, self.name, run_id=run_id, worker=worker)


def _complaint(stderr: str) -> Problem:
    unknown = Problem(brief=f"ch-run could not start the container: {last_line(stderr)}")
    return recognise(_SYMPTOMS, stderr) or unknown


def _unpacked(request: Request, store: ImageStore, image: images.Image) -> str:
    """Return the folder of the host's cache with the files of an image; unpacked where it is not.

    They come from the engine there, or from the one here.
    """
    transport = request.transport
    parent = f"{host_cache(transport)}/{image.key}"
    folder = f"{parent}/files"
    if shell(transport, '[ -d "$1" ]', folder).succeeded:
        return folder
    needs = (room.Need(step="sif", transport=transport, path=parent),)
    room.require(needs, room.of_image(image.size_bytes), purpose=image.name)
    request.progress.begin(f"unpacking {image.name} on {transport.name}")
    make_folder(transport, parent)
    export = (store.engine.program, image.id, request.run_id or "prepare")
    if store.transport is transport:
        done: Any = shell(transport, _FILES, "both", *export, folder, timeout_s=CONTENT_S)
    else:
        with request.progress.moving(image.name, image.size_bytes) as told:
            done = images.pipe(
                (store.transport, _on("export_files", *export)),
                (transport, _on("unpack", folder)),
                told=told,
            )
    if not done.succeeded or not shell(transport, _KEEP, folder, timeout_s=CONTENT_S).succeeded:
        what = f"unpacking {image.name}"
        raise failure(transport, what, done.stderr, hint="run it again; check the disk")
    return folder


def _on(*words: str) -> Command:
    return Command(argv=("sh", "-c", _FILES, "sh", *words))


def _variables(store: ImageStore, image: images.Image) -> tuple[tuple[str, str], ...]:
    """Return the variables that an image sets, which its files do not tell."""
    said = store.ask("image", "inspect", "--format", _VARIABLES, image.id).stdout
    try:
        given = read_json(said, list[str]) if said.strip() != "null" else []
    except ValueError as error:
        hint = f"run {store.engine.program} image inspect {image.id} there"
        raise not_understood(store.transport, "an image's variables", said, hint=hint) from error
    pairs = (text.partition("=") for text in given)
    return tuple((name, value) for name, _, value in pairs)
