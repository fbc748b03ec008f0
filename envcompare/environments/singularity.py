"""Apptainer and SingularityCE: `exec` on a SIF file or a sandbox folder, without privileges."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from envcompare.command import Command
from envcompare.environments import Check, Gpu, Isolation, gpu
from envcompare.environments.asking import ask
from envcompare.environments.diagnosis import DISK_FULL, Cause, Symptom, last_line, recognise
from envcompare.environments.marks import inside, kill_marked, marks
from envcompare.environments.mounts import all_binds, bind
from envcompare.errors import UnusableError
from envcompare.text import spoken
from envcompare.transport import Transport
from envcompare.transport.operations import not_understood, run

_OLDEST = (3, 9)  # SingularityCE 3.9 brought `--mount`; every Apptainer has it
_ENGINES = ("apptainer", "singularity")
_VERSION = re.compile(r"(apptainer|singularity\S*) version (\d+)\.(\d+)\S*")

_FIND = r"""
for engine in apptainer singularity; do
  command -v "$engine" >/dev/null && break
  engine=
done
[ -n "$engine" ] || exit 3
printf '%s\n' "$engine"
"""
# Packs an empty root into a SIF and runs a program that is not there: only a host that can mount
# an image and make namespaces gets as far as missing it.
_PROBE = rf"""{_FIND}
"$engine" --version || exit 4
folder=$(mktemp -d) || exit 5
trap 'rm -rf "$folder"' EXIT
cd "$folder" && mkdir root root/dev root/proc root/sys root/etc root/tmp root/var root/var/tmp
: >root/etc/passwd >root/etc/group
export APPTAINER_TMPDIR="$folder" APPTAINER_CACHEDIR="$folder"
export SINGULARITY_TMPDIR="$folder" SINGULARITY_CACHEDIR="$folder"
"$engine" build probe.sif root >&2 || exit 6
"$engine" exec --containall --no-home --cleanenv --pwd / probe.sif /envcompare-probe
exit 0
"""
_MISSING = "neither apptainer nor singularity is installed"
_MISSING_HINT = "install Apptainer (https://apptainer.org/docs/admin/latest/installation.html)"
_STARTED = re.compile(r"envcompare-probe\W+(?:no such file|executable file not found)")

_SYMPTOMS = (
    Symptom(
        pattern=r"Requesting capability set|could not open /dev/loop|failed to attach loop device",
        reason="it cannot mount images as this user (root without all capabilities)",
        hint="run as an ordinary user",
    ),
    Symptom(
        pattern=r"failed to open /dev/fuse|fuse: device not found",
        reason="this user cannot open /dev/fuse",
        hint="sudo modprobe fuse && sudo chmod 666 /dev/fuse",
    ),
    Symptom(
        pattern=r"user namespace|mount namespace requires privileges|setuid|newuidmap"
        r"|failed to create container process",
        reason="no unprivileged user namespaces, and no setuid installation",
        hint="sudo sysctl -w user.max_user_namespaces=15000 (and, where they exist, "
        "kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0)",
    ),
    Symptom(
        pattern=r"mksquashfs[^\n]*(?:not found|no such file)",
        reason="mksquashfs is missing",
        hint="install squashfs-tools",
    ),
    Symptom(
        pattern=DISK_FULL,
        reason="no space is left on the disk",
        hint="free some, or set XDG_CACHE_HOME to another disk; envcompare clean removes the cache",
    ),
    Symptom(
        pattern=r"mount source (\S+) doesn't exist",
        reason="{match} does not exist on the host",
        hint="create it there, or correct the path",
    ),
    Symptom(
        pattern=r"(?:could not open image|failed to retrieve path for) (\S+?): "
        r"[^\n]*no such file or directory",
        reason="the image {match} is not on the host",
        hint="run envcompare build, or copy the SIF there",
    ),
    Symptom(
        pattern=r"image format not recognized|trying to read the squashfs image"
        r"|squashfuse_ll exited|while loading (?:container|SIF)|not a valid SIF"
        r"|can't find a valid|no such partition|unknown file system",
        reason="the image is damaged or cut short",
        hint="copy it again and compare sha256sum, or build it again",
    ),
    Symptom(
        pattern=r"failed to set working directory: chdir ([^:\n]+)",
        reason="the working directory {match} is not in the container",
        hint="mount it, or choose another",
    ),
    Symptom(
        pattern=r'"([^"\n]+)": executable file not found|stat (\S+): no such file or directory',
        reason="{match} is not in the image",
        hint="name an image that holds it",
    ),
)


def find_engine(transport: Transport) -> str:
    """Return the name of the program on the host, apptainer or singularity.

    Raises UnusableError when it has neither.
    """
    result = run(transport, Command(argv=("sh", "-c", _FIND)))
    if not result.succeeded:
        raise UnusableError(
            f"singularity is not usable on {transport.name}", details=_MISSING, hint=_MISSING_HINT
        )
    engine = result.stdout.partition("\n")[0]
    if engine not in _ENGINES:
        hint = "command -v apptainer there should print a path and nothing else"
        raise not_understood(transport, "the container engine", result.stdout, hint=hint)
    return engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Singularity:
    """Runs the command in an image file, with nothing of the host but the mounts."""

    name: str = "singularity"

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return an `exec` that shows the mounts alone and takes nothing from the caller's shell.

        Variables are set by `env` inside: the engine's own `--env` splits values at commas, lets a
        shell evaluate them, and refuses HOME. The scratch folder stands at /tmp too, since the one
        of `--containall` holds 64 MB.
        """
        variables = inside(self.name, command, isolation)
        scratch = bind(isolation.scratch, target="/tmp", is_read_only=False)  # noqa: S108 - inside
        argv = (
            *(isolation.engine or "apptainer", "-q", "exec"),
            *("--containall", "--no-home", "--cleanenv"),
            *("--pwd", command.cwd or isolation.scratch or "/"),
            *(("--mount", scratch) if isolation.scratch else ()),
            *all_binds(isolation),
            *_gpu_options(isolation.gpu),
            *(w for name in isolation.capabilities for w in ("--add-caps", f"CAP_{name}")),
            isolation.reference,
            "env",
            *(f"{name}={value}" for name, value in variables),
            *command.argv,
        )
        return Command(argv=argv, env=marks(self.name, isolation))

    def check(self, transport: Transport) -> Check:
        """Say whether an image can be made and started by this user, and by which program."""
        hint = "build and start any image there by hand, and see where it waits"
        probe = Command(argv=("sh", "-c", _PROBE))
        result = ask(transport, probe, what="Apptainer", hint=hint, times=2)
        if isinstance(result, Check):
            return result
        if result.exit_code == 3:
            return Check(is_usable=False, reason=_MISSING, hint=_MISSING_HINT)
        engine = result.stdout.partition("\n")[0]
        if engine not in _ENGINES:
            said = spoken(result.stdout + result.stderr)
            return Check(
                is_usable=False,
                reason=f"cannot tell which engine is installed; the host printed: {said}",
                hint="command -v apptainer there should print a path and nothing else",
            )
        version = _VERSION.search(result.stdout)
        if version and version[1] != "apptainer" and _numbers(version) < _OLDEST:
            return Check(
                is_usable=False,
                version=version[0],
                reason=f"{version[0]} is too old",
                hint="install Apptainer, or SingularityCE 3.9 or later",
            )
        check = Check(is_usable=True, version=version[0] if version else None, engine=engine)
        return _check_start(check, result.stderr)

    def check_gpu(self, transport: Transport) -> Check:
        """Say whether the driver works; `--nv` itself is silent where there is none."""
        found = gpu.find(transport)
        is_there = found.gpu.way != "none"
        return replace(found, gpu=replace(found.gpu, way="engine")) if is_there else found

    def explain(self, exit_code: int, stderr: str) -> Cause | None:
        """Say what the engine complained about: it ends with 255, or 1 before it has begun."""
        if exit_code not in {1, 255} or not re.search(r"FATAL|ERROR\s*:", stderr):
            return None
        if symptom := recognise(_SYMPTOMS, stderr):
            return symptom
        return Cause(reason=f"singularity could not start the container: {last_line(stderr)}")

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Kill what a run or a worker left: the engine, what serves its image, and the workload."""
        return kill_marked(transport, self.name, run_id=run_id, worker=worker)


def _gpu_options(found: Gpu) -> tuple[str, ...]:
    if found.way != "devices":
        return () if found.way == "none" else ("--nv",)
    binds = (bind(path, is_read_only=False) for path in found.devices)
    return tuple(word for value in binds for word in ("--mount", value))


def _numbers(version: re.Match[str]) -> tuple[int, int]:
    return int(version[2]), int(version[3])


def _check_start(check: Check, stderr: str) -> Check:
    """Judge what the probe wrote: an image that lacks the probe was mounted and entered."""
    if not _STARTED.search(stderr):
        symptom = recognise(_SYMPTOMS, stderr)
        return Check(
            is_usable=False,
            version=check.version,
            reason=symptom.reason if symptom else last_line(stderr),
            hint=symptom.hint if symptom else "run any image by hand and mend what it says",
        )
    if "temporary sandbox" in stderr:
        return Check(
            is_usable=True,
            version=check.version,
            engine=check.engine,
            reason="every start unpacks the image first",
            hint="install squashfuse",
        )
    return check
