"""Bubblewrap: namespaces around a process and nothing else, on a folder of files, without root."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from envcompare.command import Command
from envcompare.config.arms import Placing, Rung, Traits
from envcompare.environments import (
    Check,
    Gpu,
    Isolation,
    ask,
    judge_start,
    kill_marked,
    marks,
    unusable,
    variables_inside,
)
from envcompare.environments.charliecloud import PATH, files_of_workloads, of_given_files
from envcompare.environments.software import proven
from envcompare.environments.vm import show_host
from envcompare.errors import Problem, StackError
from envcompare.stack import (
    USER_NAMESPACES,
    Mount,
    Prepared,
    Request,
    Symptom,
    last_line,
    recognise,
)
from envcompare.stack.host import Layout
from envcompare.text import spoken
from envcompare.transport import Transport, shell

HOST = "/"  # as the folder of an image: nothing but what is mounted, which is the host's own
START = (
    "bwrap",
    *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
    *("--die-with-parent", "--clearenv", "--cap-drop", "ALL"),
)
"""The program, and the options that every start has."""
# What an image has at its top; what it lacks is left out. Mount points are made beside it.
_TOPS = ("bin", "etc", "lib", "lib32", "lib64", "libx32", "opt", "sbin", "srv", "usr", "var")
_LIBRARIES = "/nvidia/lib"
_PROBE = r"""
command -v bwrap >/dev/null || exit 127
bwrap --version || exit 4
"$@" --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp /envcompare-probe
exit 0
"""
# Prints the entries of a folder that are links to outside of it.
_OPEN = r"""
folder=$(readlink -f -- "$1") && shift || exit 0
for name in "$@"; do
  [ -e "$folder/$name" ] || [ -L "$folder/$name" ] || continue
  case $(readlink -f -- "$folder/$name") in "$folder"/*) ;; *) echo "/$name" ;; esac
done
"""
STARTED = re.compile(r"execvp /envcompare-probe: No such file")
_VERSION = re.compile(r"bubblewrap (\d+\.\d+\S*)")
_SYMPTOMS = (
    Symptom(
        pattern=r"No permissions to creat\S* (?:a )?new namespace|user namespace|uid map",
        brief="no unprivileged user namespaces",
        hint=USER_NAMESPACES,
    ),
    Symptom(
        pattern=r"Can't mount proc|Can't mount devpts",
        brief="this container or VM does not allow mounting /proc in a namespace",
        hint="run on the host itself, or leave bubblewrap out",
    ),
    Symptom(
        pattern=r"Can't find source path ([^\n]+?)/(?:usr|\.): No such file",
        brief="the image {match} is not on the host",
        hint="run envcompare build, or unpack an image there",
    ),
    Symptom(
        pattern=r"Can't find source path ([^\n]+?): No such file",
        brief="{match} does not exist on the host",
        hint="create it there, or correct the path",
    ),
    Symptom(
        pattern=r"Can't (?:mkdir|create file at) ([^\n]+?): Read-only",
        brief="{match} cannot be shown, since the image has a folder above it and not that one",
        hint="use a folder below /home, /data, /mnt or /tmp, or leave bubblewrap out",
    ),
    Symptom(
        pattern=r"Can't chdir to ([^\n]+?): No such file",
        brief="the working directory {match} is not in the container",
        hint="mount it, or choose another",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """Runs the command in namespaces of its own: users, mounts, processes, IPC, network, host name.

    It has no cgroup, no seccomp filter and no overlay, so that it shows what namespaces alone cost.
    """

    name: ClassVar[str] = "bubblewrap"
    traits: ClassVar[Traits] = Traits(
        aliases=("bwrap",),
        reference="file",
        has_network=False,
        counters="root",
        rung=Rung(2, "namespaces", "namespaces"),
        places={
            "image": Placing(refusal="its image is a folder of the disk, as the place `bind` is"),
            "overlay": Placing(refusal="it lays no overlay over the files"),
            "tmpfs": Placing(folder="/dev/shm/envcompare-data"),  # noqa: S108 — inside
            "sif": Placing(refusal="it runs no SIF"),
        },
    )
    engine: ClassVar[None] = None

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return a `bwrap` that shows the mounts and the files of the image, and takes no variable.

        The root is a tmpfs, in which mount points are made. Variables are set by `env` inside, so
        that a missing program ends with 127.
        """
        return start(self.name, command, isolation)

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:  # noqa: ARG002 — all alike
        """Return the namespaces."""
        return START[1:]

    def check(self, transport: Transport) -> Check:
        """Say whether this user can start a program in namespaces."""
        hint = "start any program by hand there with bwrap, and see where it waits"
        probe = Command(argv=("sh", "-c", _PROBE, "sh", *START))
        result = ask(transport, probe, what="bwrap", hint=hint)
        if isinstance(result, Check):
            return result
        if result.exit_code == 127:
            return unusable("bwrap is not installed", "install the package bubblewrap")
        told = _VERSION.match(result.stdout)
        if told is None:
            return unusable(
                f"cannot read the version of bubblewrap; it printed: {spoken(result.stdout)}",
                "bwrap --version there should print a version and nothing else",
            )
        return judge_start(result.stderr, told[1], begun=STARTED, complaint=_complaint)

    def check_gpu(self, transport: Transport, driver: Check) -> Check:  # noqa: ARG002 — the host was asked
        """Say whether the driver works; its devices and libraries are shown as they are."""
        return driver

    def prepare(self, request: Request) -> Prepared:
        """Return the files of the workload image, a folder of the user's, or the host's own."""
        if request.is_host_stack:
            return _of_host(request)
        if request.reference:
            _require_closed(request.transport, request.reference)
            return of_given_files(self, request)
        prepared = files_of_workloads(request)
        _require_closed(request.transport, prepared.reference)
        return proven(self, request, prepared)

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Say what `bwrap` complained about; it ends with 1."""
        return _complaint(stderr) if exit_code == 1 and stderr.startswith("bwrap: ") else None

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Kill what a run or a worker left; its namespaces and mounts end with it."""
        return kill_marked(transport, self.name, run_id=run_id, worker=worker)


def start(
    name: str,
    command: Command,
    isolation: Isolation,
    *,
    options: tuple[str, ...] = (),
    is_overlay: bool = False,
) -> Command:
    """Return the `bwrap` of an environment of that name, with further options.

    As an overlay the files of the image are the root, and what is written goes to a tmpfs.
    """
    inside = variables_inside(name, command, isolation)
    variables = (PATH, ("USER", "envcompare"), *inside, *_search(inside, isolation.gpu))
    argv = (
        *START,
        *options,
        *_root(isolation.reference, is_overlay=is_overlay),
        *(("--bind", isolation.scratch, "/tmp") if isolation.scratch else ()),  # noqa: S108
        *(
            word
            for mount in isolation.mounts
            for word in ("--ro-bind" if mount.is_read_only else "--bind", mount.path, mount.path)
        ),
        *(("--bind", isolation.scratch, isolation.scratch) if isolation.scratch else ()),
        *_gpu_options(isolation.gpu),
        *("--chdir", command.cwd or isolation.scratch or "/", "env"),
        *(f"{name}={value}" for name, value in variables),
        *command.argv,
    )
    return Command(argv=argv, env=marks(name, isolation))


def _of_host(request: Request) -> Prepared:
    """Return the host's interpreter; what is a link there, such as /bin, is shown as a folder."""
    links: list[str] = []

    def make_root(layout: Layout) -> str:
        links.extend(path for path, _ in layout.links)
        return HOST

    prepared = show_host(request, make_root)
    return replace(prepared, mounts=(*prepared.mounts, *(Mount(path=path) for path in links)))


def _complaint(stderr: str) -> Problem:
    unknown = Problem(brief=f"bwrap could not start the process: {last_line(stderr)}")
    return recognise(_SYMPTOMS, stderr) or unknown


def _root(folder: str, *, is_overlay: bool) -> tuple[str, ...]:
    """Return the options for what is there beside the mounts: files of an image and the kernel."""
    kernel = ("--dev", "/dev", "--proc", "/proc", "--ro-bind", "/sys", "/sys")
    if is_overlay:
        # by its end a complaint tells an image from what is mounted
        return ("--overlay-src", f"{folder}/.", "--tmp-overlay", "/", *kernel)
    empty = ("--tmpfs", "/root", "--tmpfs", "/tmp")  # noqa: S108 - inside
    if folder == HOST:
        return (*kernel, *empty)
    tops = (
        word
        for top in _TOPS
        if top != "usr"
        for word in ("--ro-bind-try", f"{folder}/{top}", f"/{top}")
    )
    return ("--ro-bind", f"{folder}/usr", "/usr", *tops, *kernel, *empty)


def _require_closed(transport: Transport, folder: str) -> None:
    """Raise StackError where a link at the top of an image leads out of it.

    bwrap follows it on the host, and would show what lies there.
    """
    said = shell(transport, _OPEN, folder, *_TOPS).stdout.strip()
    if said:
        raise StackError(
            f"bubblewrap cannot show the image on {transport.name}",
            details=f"{said} leads out of it",
            hint="make the link a relative one in the image, or leave bubblewrap out",
        )


def _search(variables: tuple[tuple[str, str], ...], reached: Gpu) -> tuple[tuple[str, str], ...]:
    """Return where the loader finds the driver's libraries, before where it looked otherwise."""
    if not reached.libraries:
        return ()
    others = dict(variables).get("LD_LIBRARY_PATH", "")
    return (("LD_LIBRARY_PATH", ":".join(filter(None, (_LIBRARIES, others)))),)


def _gpu_options(reached: Gpu) -> tuple[str, ...]:
    if reached.way == "none":
        return ()
    devices = (word for path in reached.devices for word in ("--dev-bind", path, path))
    binds = (
        word
        for name, path in reached.libraries
        for word in ("--ro-bind", path, f"{_LIBRARIES}/{name}")
    )
    return (*devices, *binds)
