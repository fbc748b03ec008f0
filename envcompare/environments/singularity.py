"""Apptainer and SingularityCE: `exec` on a SIF file or a sandbox folder, without privileges."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from envcompare.config import Compression, Placing, Traits
from envcompare.environments import (
    HELD,
    READS_ALL,
    UPPER,
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
from envcompare.environments.software import PYTHON, show_host, started, wheelhouse, with_proof
from envcompare.errors import Problem, StackError, UnusableError
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
    sif,
)
from envcompare.stack import image as images
from envcompare.stack.building import held_or_built
from envcompare.stack.storage import ImageStore, bind, mount_options
from envcompare.stack.venv import make_root
from envcompare.text import Command, spoken
from envcompare.transport import LOCAL, Transport, not_understood, run

# SingularityCE 3.9 brought `--mount`, and every Apptainer has it.
_OLDEST = (3, 9)
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
# Packs an empty root into a SIF and runs a missing program: only a host that can mount an image and
# make namespaces reports that the program is missing.
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
        brief="it cannot mount images as this user (root without all capabilities)",
        hint="run as an ordinary user",
    ),
    Symptom(
        pattern=r"failed to open /dev/fuse|fuse: device not found",
        brief="this user cannot open /dev/fuse",
        hint="sudo modprobe fuse && sudo chmod 666 /dev/fuse",
    ),
    Symptom(
        pattern=r"user namespace|mount namespace requires privileges|setuid|newuidmap"
        r"|failed to create container process",
        brief="no unprivileged user namespaces, and no setuid installation",
        hint=USER_NAMESPACES,
    ),
    Symptom(
        pattern=r"mksquashfs[^\n]*(?:not found|no such file)",
        brief="mksquashfs is missing",
        hint="install squashfs-tools",
    ),
    CACHE_FULL,
    missing_source(pattern=r"mount source (\S+) doesn't exist"),
    missing_image(
        pattern=r"(?:could not open image|failed to retrieve path for) (\S+?): "
        r"[^\n]*no such file or directory"
    ),
    Symptom(
        pattern=r"image format not recognized|trying to read the squashfs image"
        r"|squashfuse_ll exited|while loading (?:container|SIF)|not a valid SIF"
        r"|can't find a valid|no such partition|unknown file system",
        brief="the image is damaged or truncated",
        hint="copy it again and compare sha256sum, or build it again",
    ),
    missing_folder(pattern=r"failed to set working directory: chdir ([^:\n]+)"),
    missing_program(
        pattern=r'"([^"\n]+)": executable file not found|stat (\S+): no such file or directory'
    ),
)


def find_engine(transport: Transport) -> str:
    """Return the name of the program on the host, apptainer or singularity.

    Raises UnusableError if it has neither.
    """
    result = run(transport, Command(argv=("sh", "-c", _FIND)))
    if not result.succeeded:
        raise UnusableError(
            f"singularity is not usable on {transport.name}", details=_MISSING, hint=_MISSING_HINT
        )
    engine = result.stdout.partition("\n")[0]
    if engine not in _ENGINES:
        hint = "command -v apptainer there should print only a path"
        raise not_understood(transport, "the container engine", result.stdout, hint=hint)
    return engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Singularity:
    """Runs the command in an image file that sees only the mounts of the host."""

    name: ClassVar[str] = "singularity"
    traits: ClassVar[Traits] = Traits(
        aliases=("apptainer",),
        reference="file",
        software="sif",
        is_default=True,
        counters="root",
        programs=_ENGINES,
        helpers=("squashfuse_ll", "squashfuse", "fuse-overlayfs", "fuse2fs"),
        places={
            "image": Placing(folder=HELD, is_held=True),
            "overlay": Placing(folder=HELD),
            "tmpfs": Placing(folder="/dev/shm/envcompare-data"),  # noqa: S108 — inside
            "sif": Placing(folder=HELD, is_held=True),
        },
    )
    engine: ClassVar[None] = None

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return an `exec` that shows only the mounts and takes nothing from the caller's shell.

        `env` sets the variables inside: the engine's own `--env` splits values at commas, lets a
        shell evaluate them, and refuses HOME. The scratch folder is also mounted at /tmp, since the
        one of `--containall` holds 64 MB.
        """
        variables = variables_inside(self.name, command, isolation)
        is_overlay = isolation.place == "overlay"
        scratch = bind(isolation.scratch, target="/tmp", is_read_only=False)  # noqa: S108 - inside
        argv = (
            *(isolation.engine or "apptainer", "-q", "exec"),
            *self.engine_options(isolation),
            *("--pwd", command.cwd or isolation.scratch or "/"),
            *(("--mount", scratch) if isolation.scratch else ()),
            *(("--overlay", f"{isolation.scratch}/{UPPER}") if is_overlay else ()),
            *mount_options(isolation.mounts, isolation.scratch),
            *_gpu_options(isolation.gpu),
            isolation.reference,
            "env",
            *(f"{name}={value}" for name, value in variables),
            *command.argv,
        )
        return Command(argv=argv, env=marks(self.name, isolation))

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:
        """Return the options that isolate the container, and drop what only root has.

        For other users the engine drops all capabilities and allows no new ones, and the image is
        always read-only. Only root could limit the number of processes there.
        """
        separate = ("--containall", "--no-home", "--cleanenv")
        if isolation.uid and not isolation.capabilities:
            return separate
        kept = ",".join(f"CAP_{name}" for name in (*isolation.capabilities, READS_ALL))
        return (*separate, "--no-privs", "--add-caps", kept)

    def check(self, transport: Transport) -> Check:
        """Check whether this user can make and start an image, and with which program."""
        hint = "build and start any image there by hand, and see where it waits"
        probe = Command(argv=("sh", "-c", _PROBE))
        result = ask(transport, probe, what="Apptainer", hint=hint, times=2)
        if isinstance(result, Check):
            return result
        if result.exit_code == 3:
            return unusable(_MISSING, _MISSING_HINT)
        engine = result.stdout.partition("\n")[0]
        if engine not in _ENGINES:
            output = spoken(result.stdout + result.stderr)
            return unusable(
                f"cannot tell which engine is installed; the host printed: {output}",
                "command -v apptainer there should print only a path",
            )
        match = _VERSION.search(result.stdout)
        old = None
        if match and match[1] != "apptainer" and (int(match[2]), int(match[3])) < _OLDEST:
            hint = "install Apptainer, or SingularityCE 3.9 or later"
            old = Problem(brief=f"{match[0]} is too old", hint=hint)
        version = match[0] if match else None
        check = judge_start(
            result.stderr, version, begun=_STARTED, complaint=_complaint, refused=old
        )
        slow = Problem(brief="every start unpacks the image first", hint="install squashfuse")
        unpacks = check.is_usable and "temporary sandbox" in result.stderr
        return replace(check, engine=engine, caution=slow if unpacks else None)

    def check_gpu(self, transport: Transport, driver: Check) -> Check:  # noqa: ARG002 — the host was asked
        """Check the driver; `--nv` itself gives no message without one."""
        is_there = driver.gpu.way != "none"
        return replace(driver, gpu=replace(driver.gpu, way="engine")) if is_there else driver

    def prepare(self, request: Request) -> Prepared:
        """Return a SIF of the workload image, the user's SIF, or an empty root as a folder."""
        transport = request.transport
        if request.is_host_stack:
            return show_host(request, lambda layout: make_root(transport, layout))
        program = find_engine(transport)
        if request.reference:
            return self._given(request, program)
        store, local = _image_stores(request)
        recipe = images.recipe(wheelhouse(request), base=request.options.base, local=local)
        _, built = held_or_built(store, recipe, local=local, progress=request.progress)
        made = make_sif(request, built, program=program)
        prepared = Prepared(
            interpreter=images.PYTHON,
            reference=made.path,
            engine=program,
            fixed_by=_hash_of(made),
            identity=(*built.identity, *_sif_identity(made)),
            facts=(*built.facts, *_sif_facts(made)),
            software=(*built.software, *_sif_facts(made)),
            meant=built.tree,
        )
        return with_proof(self, request, prepared)

    def _given(self, request: Request, program: str) -> Prepared:
        transport, reference = request.transport, request.reference
        if "://" in reference:
            raise StackError(
                f"{reference} is not a file",
                hint=f"run on {transport.name}: {program} pull image.sif {reference}",
            )
        given = sif.given(transport, reference, local=request.local, progress=request.progress)
        prepared = Prepared(
            interpreter=PYTHON,
            reference=given.path,
            engine=program,
            fixed_by=_hash_of(given),
            facts=_sif_facts(given),
            software=_sif_facts(given),
        )
        identity = (*_sif_identity(given), *_origin(transport, given.path))
        return with_proof(self, request, started(self, request, prepared, identity))

    def hold(
        self, transport: Transport, isolation: Isolation, data: str, *, compression: Compression
    ) -> str:
        """Return the path of a SIF with the software and the data, compressed in the same way."""
        if compression == "sandbox":
            raise StackError(
                "a sandbox holds no data of a run, since later runs use it",
                hint="use --place data=bind, or another --sif-compression",
            )
        target = f"{isolation.scratch}/{UPPER}/held-{isolation.worker}.sif"
        source = (isolation.reference, data, HELD)
        program = isolation.engine
        return sif.with_data(transport, target, source, program=program, compression=compression)

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Return the engine's complaint: it ends with 255, or 1 before it has started."""
        if exit_code not in {1, 255} or not re.search(r"FATAL|ERROR\s*:", stderr):
            return None
        if symptom := recognise(_SYMPTOMS, stderr):
            return symptom
        return Problem(brief=f"singularity could not start the container: {last_line(stderr)}")

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Kill the leftovers of a run or a worker: engine, image server and workload."""
        return kill_marked(transport, self.name, run_id=run_id, worker=worker)


def make_sif(request: Request, image: images.Image, *, program: str) -> sif.Sif:
    """Return the SIF of an image on the request's host, made by that program there or here."""
    store, local = _image_stores(request)
    wanted = sif.Wanted(
        image=image,
        compression=request.options.sif_compression,
        local=local,
        progress=request.progress,
        program=program,
        find_program_here=lambda: Singularity().check(request.local).engine,
        is_for_others=request.is_for_others,
    )
    return sif.make(store, wanted)


def _image_stores(request: Request) -> tuple[ImageStore, ImageStore]:
    """Return the stores of the engine that builds images, on the host and here."""
    there = ImageStore(engine=request.builder, transport=request.transport)
    return there, replace(there, transport=request.local)


def _hash_of(made: sif.Sif) -> str:
    """Return the hash of the file; empty for a sandbox, which has none."""
    return "" if made.sha256 == "sandbox" else made.sha256


def _sif_facts(made: sif.Sif) -> tuple[tuple[str, str], ...]:
    return (("sif.sha256", made.sha256),) if _hash_of(made) else ()


def _sif_identity(made: sif.Sif) -> tuple[tuple[str, str], ...]:
    return (("sif", made.path), ("sif.sha256", made.sha256), ("sif.compression", made.compression))


def _origin(transport: Transport, path: str) -> tuple[tuple[str, str], ...]:
    """Return a local SIF's source and the version of its reader, if known."""
    if transport.name != LOCAL.name or not _has_reader():
        return ()
    from spython.utils import get_singularity_version  # noqa: PLC0415, TID251 - loaded on demand

    version = str(get_singularity_version()).strip()
    facts = (("sif.from", origin(Path(path))), ("sif.reader", version))
    return tuple((name, value) for name, value in facts if value)


def origin(sif: Path) -> str | None:
    """Return the image a SIF was made from, as its builder recorded it."""
    if not _has_reader():
        return None
    from spython.main import Client  # noqa: PLC0415, TID251 - loaded on demand

    # A failed call returns a dict with `message` and `return_code` instead of the SIF's facts.
    facts: Any = Client.inspect(str(sif))
    labels = facts.get("attributes", {}).get("labels") if isinstance(facts, dict) else None
    name = (labels or {}).get("org.label-schema.usage.singularity.deffile.from")
    return None if name is None else str(name)


def _has_reader() -> bool:
    """Tell whether spython can work: it only knows the name `singularity`."""
    return shutil.which("singularity") is not None


def _gpu_options(reached: Gpu) -> tuple[str, ...]:
    if reached.way != "devices":
        return () if reached.way == "none" else ("--nv",)
    binds = (bind(path, is_read_only=False) for path in reached.devices)
    return tuple(word for value in binds for word in ("--mount", value))


def _complaint(stderr: str) -> Problem:
    hint = "run any image by hand and fix what it reports"
    return recognise(_SYMPTOMS, stderr) or Problem(brief=last_line(stderr), hint=hint)
