"""Charliecloud: `ch-run` on a folder with the files of an image, without privileges.

An engine makes the image; its files are unpacked into a folder of the host's cache.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from envcompare.config import Placing, Traits
from envcompare.environments import (
    Check,
    Isolation,
    ask,
    judge_start,
    kill_marked,
    marks,
    unusable,
    variables_inside,
)
from envcompare.environments.rootfs import PATH, files_of_workloads, of_given_files
from envcompare.environments.software import show_host, with_proof
from envcompare.errors import ConfigError, Problem
from envcompare.stack import (
    CACHE_FULL,
    USER_NAMESPACES,
    Prepared,
    Request,
    Symptom,
    last_line,
    missing_folder,
    missing_image,
    missing_program,
    missing_source,
    recognise,
)
from envcompare.stack.venv import make_root
from envcompare.text import Command, spoken
from envcompare.transport import Transport

# Only a start with namespaces and the overlay gets as far as missing the program.
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
# Versions before 0.39 always end with 1 (ch-run(1), "Exit status").
_EXIT_CODES = {1, 31, 49, 84, 87}
_SYMPTOMS = (
    Symptom(
        pattern=r"can't init user\+mount namespaces|user namespace|unshare",
        brief="no unprivileged user namespaces",
        hint=USER_NAMESPACES,
    ),
    Symptom(
        pattern=r"overlay",
        brief="the kernel lets no ordinary user mount an overlay",
        hint="it needs Linux 5.11 or later",
    ),
    missing_source(pattern=r"can't bind: source not found: ([^\n]+?) \(ch"),
    missing_image(pattern=r"can't stat: ([^\n]+?): No such file"),
    missing_folder(pattern=r"can't cd to ([^\n:]+)"),
    missing_program(pattern=r"can't execve\(2\): ([^\n:]+)"),
    CACHE_FULL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charliecloud:
    """Runs the command in a folder of an image's files, with a tmpfs over it.

    Network, processes and devices are the host's. Mounts of the host are writable with the user's
    rights, since `ch-run` has no read-only mounts.
    """

    name: ClassVar[str] = "charliecloud"
    traits: ClassVar[Traits] = Traits(
        reference="file",
        software="files",
        counters="root",
        programs=("ch-run",),
        places={
            "image": Placing(refusal="its image is a folder of the disk, as the place `bind` is"),
            "overlay": Placing(folder="/var/tmp/envcompare-data"),  # noqa: S108 — inside
            "tmpfs": Placing(folder="/tmp/envcompare-data"),  # noqa: S108 — inside
            "sif": Placing(refusal="it runs no SIF"),
        },
    )
    engine: ClassVar[None] = None

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return a `ch-run` that takes no variable of the login and keeps /tmp to itself.

        Raises ConfigError for a path with a colon, which `--bind` would split.
        """
        variables = (PATH, *variables_inside(self.name, command, isolation))
        paths = (*(mount.path for mount in isolation.mounts), isolation.scratch)
        for path in paths:
            if ":" in path:
                raise ConfigError(
                    f"charliecloud cannot show {path}",
                    details="ch-run splits the paths of --bind at colons",
                    hint="rename it",
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
        """Return the options that hide the host's variables and /tmp, and create mount points."""
        return ("--write-fake", "--private-tmp", "--unset-env=*")

    def check(self, transport: Transport) -> Check:
        """Check whether this user can start a program in a folder."""
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
        output = (result.stdout + result.stderr).strip()
        match = _VERSION.match(output)
        if match is None:
            return unusable(
                f"cannot read Charliecloud's version; it printed: {spoken(output)}",
                "ch-run --version there should print only a version",
            )
        old = None
        # This version brought `--write-fake`.
        if (int(match[1]), int(match[2])) < (0, 33):
            brief = f"Charliecloud {match[0]} is too old"
            old = Problem(brief=brief, hint="install 0.33 or later")
        return judge_start(
            result.stderr, match[0], begun=_STARTED, complaint=_complaint, refused=old
        )

    def check_gpu(self, transport: Transport, driver: Check) -> Check:  # noqa: ARG002 — the host was asked
        """Refuse GPUs, for which `ch-fromhost` would change the image."""
        if driver.gpu.way == "none":
            return driver
        return unusable(
            "charliecloud needs ch-fromhost for GPUs, which changes the image",
            "give --device cpu, or leave charliecloud out",
        )

    def prepare(self, request: Request) -> Prepared:
        """Return the files of the workload image, a user's folder, or an empty root."""
        transport = request.transport
        if request.is_host_stack:
            return show_host(request, lambda layout: make_root(transport, layout))
        if request.reference:
            return of_given_files(self, request)
        return with_proof(self, request, files_of_workloads(request))

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Return the complaint of `ch-run`, whose exit codes differ between versions."""
        is_its_own = exit_code in _EXIT_CODES and "ch-run[" in stderr
        return _complaint(stderr) if is_its_own else None

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Kill the leftovers of a run or a worker; its namespaces and mounts end with it."""
        return kill_marked(transport, self.name, run_id=run_id, worker=worker)


def _complaint(stderr: str) -> Problem:
    unknown = Problem(brief=f"ch-run could not start the container: {last_line(stderr)}")
    return recognise(_SYMPTOMS, stderr) or unknown
