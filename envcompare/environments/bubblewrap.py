"""Bubblewrap: namespaces around a process and nothing else, on a folder of files, without root."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from envcompare.command import Command
from envcompare.config.arms import Traits
from envcompare.environments import (
    Check,
    Gpu,
    Isolation,
    ask,
    kill_marked,
    marks,
    unusable,
    variables_inside,
)
from envcompare.environments.charliecloud import PATH, files_of_workloads, of_given_files
from envcompare.environments.software import proven
from envcompare.environments.vm import show_host
from envcompare.errors import Problem
from envcompare.stack import Prepared, Request
from envcompare.stack.diagnosis import Symptom, last_line, recognise
from envcompare.text import spoken
from envcompare.transport import Transport

HOST = "/"  # as the folder of an image: the host's own files
_NAMESPACES = (
    *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
    *("--die-with-parent", "--clearenv"),
)
# What an image has at its top; what it lacks is left out. Mount points are made beside it.
_TOPS = ("bin", "etc", "lib", "lib32", "lib64", "libx32", "opt", "root", "sbin", "srv", "var")
# On the host's own files, homes and temporary files stay out, and mount points are made in them.
_HIDDEN = ("/home", "/root", "/run", "/tmp")  # noqa: S108 - inside
_LIBRARIES = "/nvidia/lib"
_PROBE = r"""
command -v bwrap >/dev/null || exit 127
bwrap --version || exit 4
bwrap --unshare-user --unshare-ipc --unshare-pid --unshare-net --unshare-uts --die-with-parent \
  --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp /envcompare-probe
exit 0
"""
_STARTED = re.compile(r"execvp /envcompare-probe: No such file")
_VERSION = re.compile(r"bubblewrap (\d+\.\d+\S*)")
_SYMPTOMS = (
    Symptom(
        pattern=r"No permissions to creat\S* (?:a )?new namespace|user namespace|uid map",
        brief="no unprivileged user namespaces",
        hint="sudo sysctl -w user.max_user_namespaces=15000 (and, where they exist, "
        "kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0)",
    ),
    Symptom(
        pattern=r"Can't mount proc|Can't mount devpts",
        brief="this container or VM forbids to mount /proc in a namespace",
        hint="run on the host itself, or leave bubblewrap out",
    ),
    Symptom(
        pattern=r"Can't find source path ([^\n]+?)/usr: No such file",
        brief="the image {match} is not on the host",
        hint="run envcompare build, or unpack an image there",
    ),
    Symptom(
        pattern=r"Can't find source path ([^\n]+?): No such file",
        brief="{match} does not exist on the host",
        hint="create it there, or correct the path",
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
        aliases=("bwrap",), reference="file", has_network=False, counters="root"
    )
    engine: ClassVar[None] = None

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return a `bwrap` that shows the mounts and the files of the image, and takes no variable.

        The root is a tmpfs, in which mount points are made. Variables are set by `env` inside, so
        that a missing program ends with 127.
        """
        search = (("LD_LIBRARY_PATH", _LIBRARIES),) if isolation.gpu.libraries else ()
        variables = (PATH, *search, *variables_inside(self.name, command, isolation))
        argv = (
            "bwrap",
            *self.engine_options(isolation),
            *_root(isolation.reference),
            *(("--bind", isolation.scratch, "/tmp") if isolation.scratch else ()),  # noqa: S108
            *(
                word
                for mount in isolation.mounts
                for word in (
                    "--ro-bind" if mount.is_read_only else "--bind",
                    mount.path,
                    mount.path,
                )
            ),
            *(("--bind", isolation.scratch, isolation.scratch) if isolation.scratch else ()),
            *_gpu_options(isolation.gpu),
            *("--chdir", command.cwd or isolation.scratch or "/", "env"),
            *(f"{name}={value}" for name, value in variables),
            *command.argv,
        )
        return Command(argv=argv, env=marks(self.name, isolation))

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:  # noqa: ARG002 — all alike
        """Return the namespaces."""
        return _NAMESPACES

    def check(self, transport: Transport) -> Check:
        """Say whether this user can start a program in namespaces."""
        hint = "start any program by hand there with bwrap, and see where it waits"
        probe = Command(argv=("sh", "-c", _PROBE))
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
        if _STARTED.search(result.stderr) is None:
            return Check(problem=_complaint(result.stderr), version=told[1])
        return Check(version=told[1])

    def check_gpu(self, transport: Transport, driver: Check) -> Check:  # noqa: ARG002 — the host was asked
        """Say whether the driver works; its devices and libraries are shown as they are."""
        return driver

    def prepare(self, request: Request) -> Prepared:
        """Return the files of the workload image, a folder of the user's, or the host's own."""
        if request.is_host_stack:
            return show_host(request, lambda _layout: HOST)
        if request.reference:
            return of_given_files(self, request)
        return proven(self, request, files_of_workloads(request))

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Say what `bwrap` complained about; it ends with 1."""
        return _complaint(stderr) if exit_code == 1 and stderr.startswith("bwrap: ") else None

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Kill what a run or a worker left; its namespaces and mounts end with it."""
        return kill_marked(transport, self.name, run_id=run_id, worker=worker)


def _complaint(stderr: str) -> Problem:
    unknown = Problem(brief=f"bwrap could not start the process: {last_line(stderr)}")
    return recognise(_SYMPTOMS, stderr) or unknown


def _root(folder: str) -> tuple[str, ...]:
    """Return the options that show the files of an image, or those of the host, read-only."""
    kernel = ("--dev", "/dev", "--proc", "/proc", "--ro-bind", "/sys", "/sys")
    if folder == HOST:
        hidden = (word for path in _HIDDEN for word in ("--tmpfs", path))
        return ("--ro-bind", "/", "/", *kernel, *hidden)
    tops = (word for top in _TOPS for word in ("--ro-bind-try", f"{folder}/{top}", f"/{top}"))
    return ("--ro-bind", f"{folder}/usr", "/usr", *tops, *kernel, "--tmpfs", "/tmp")  # noqa: S108 - inside


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
