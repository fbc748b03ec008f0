"""What envcompare stores on disks: the cache folder, and the room that software takes.

The cache folder, here and on hosts, is private and removed as a whole. Software is only made or
sent if each disk has the measured room for it.

The multiples are those of docs/benchmarks/building.md, rounded up. They refer to the packed and the
unpacked size of the wheels, which their directories give: wheels for a CPU unpack to four times
their size, and those with CUDA to less than twice.

An image in transfer and a SIF made from an archive were measured with all their copies on one disk.
The split of a transfer over two disks, and the size of a SIF made from the host's own engine, are
calculated from the copies that exist at the same time.

A wheelhouse is a folder with wheels, their lock, and the programs that install them.

A container engine stores images: its client, its socket and its `--mount` options are here too.
"""

from __future__ import annotations

import csv
import io
import os
import re
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar, runtime_checkable

from envcompare import bundled
from envcompare.config import Variant
from envcompare.errors import (
    CommandTimeoutError,
    Problem,
    StackError,
    TransportError,
    UnusableError,
)
from envcompare.stack import ROOM_HINT, Engine, Mount, failure, is_full, recognise
from envcompare.text import Command, CommandResult, spoken
from envcompare.transport import (
    CONTENT_S,
    OnProgress,
    Transport,
    file_sha256,
    not_understood,
    run,
    shell,
)
from envcompare.transport.copies import put_file

if TYPE_CHECKING:
    from docker import DockerClient  # noqa: TID251 - the type of the client

LOCK = "requirements.lock"
SUMS = "SHA256SUMS"
_CPYTHON = re.compile(r"-cp3(\d+)-cp3\1-")
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
StepName = Literal[
    "wheels", "sent wheels", "venv", "image", "sent image", "received image", "archive", "sif",
    "files",
]  # fmt: skip
_WHERE = 'printf "%s\\n" "${XDG_CACHE_HOME:-$HOME/.cache}/envcompare"'
_TEMPORARY = r"""
case $TMPDIR in
  /*) [ ! -d "$TMPDIR" ] || [ ! -w "$TMPDIR" ] || root=$TMPDIR ;;
esac
printf '%s\n' "${root:-/tmp}"
"""
# The folder may not exist yet: the disk is that of its first existing parent.
_FREE = 'dir=$1; while [ ! -e "$dir" ]; do dir=$(dirname -- "$dir"); done; df -Pk -- "$dir"'
# Folders closed to their owner get permissions before the search enters them; no link is followed.
OPEN_FOLDERS = r"""
open_folders() { find "$1" -type d ! -perm -700 -exec chmod u+rwx {} \; ; }
"""
# A sandbox image may hold folders that its owner cannot write to. If the cache is a link, link and
# folder are the user's, and so may be other content of the folder.
_REMOVE = (
    OPEN_FOLDERS
    + """
within() {
  for at in data proofs resolved roofs runs; do
    if [ -d "$at" ] && [ -r "$at" ] && [ ! -L "$at" ]; then ls -A -- "$at" | sed "s|^|$at/|"
    elif [ -e "$at" ] || [ -L "$at" ]; then echo "$at/"; fi
  done
  for at in data/*; do
    [ -e "$at/data" ] && continue
    held=$(ls -A -- "$at" 2>/dev/null | head -n 1)
    [ -z "$held" ] || printf '%s/%s\\n' "$at" "$held"
  done
}
[ -e "$1" ] || [ -L "$1" ] || { echo nothing; exit 0; }
folder=$(cd -P -- "$1" && pwd -P) || exit 1
if [ -L "$1" ]; then
  cd -- "$folder" && names=$(ls -A && within) || exit 1
  [ -n "$names" ] || { echo nothing; exit 0; }
  other=$(printf '%s\\n' "$names" | LC_ALL=C grep -Evx -- "$2" | head -n 1)
  [ -z "$other" ] || { echo "it is a link to $folder, where $other lies too" >&2; exit 1; }
fi
open_folders "$folder"
if [ -L "$1" ]; then rm -rf -- "$folder"/* "$folder"/.wheelhouse-*; else rm -rf -- "$folder"; fi
"""
)
# Names that users may also give to folders are ours only if the content matches.
_OUR_NAMES = (
    r"[0-9a-f]{32}|[0-9a-f]{64}|given-[0-9a-f]{32}|(seccomp|skeleton|workloads)-[0-9a-f]{12,64}(\.partial)?"
    r"|\.wheelhouse-[a-z0-9_]+|data|proofs|resolved|roofs|runs|data/[A-Za-z0-9_.-]+-(made|real)"
    r"|(noise\.json|(proofs|resolved|roofs)/[0-9a-f]{16,64}(\.json)?)(\.part.*)?"
    r"|runs/([0-9]{8}-[0-9]{6}-[0-9a-f]{4}|build-[0-9a-f]{8})"
)
_COMPILED_BYTES: Final = 250_000_000
"""The size of byte code and of small files' blocks, with CUDA and without."""
_WORDS: Final[dict[StepName, str]] = {
    "wheels": "wheels",
    "sent wheels": "wheels",
    "venv": "venv",
    "image": "image and what its build keeps",
    "sent image": "image on its way",
    "received image": "image",
    "archive": "archive of the image",
    "sif": "SIF",
    "files": "files of the image",
}


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

    def is_of_containerd(self) -> bool:
        """Return whether the engine keeps its images in containerd's store."""
        return "io.containerd." in self.ask("info", "--format", "{{.DriverStatus}}").stdout

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


def local_cache() -> Path:
    """Return the cache folder of this machine."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "envcompare"


def host_cache(transport: Transport) -> str:
    """Return the cache folder of the host; it need not exist."""
    output = shell(transport, _WHERE).stdout
    path = output.partition("\n")[0]
    if not path.startswith("/") or not path.isprintable():
        hint = "HOME or XDG_CACHE_HOME there must name a folder by its absolute path"
        raise not_understood(transport, "the cache folder", output, hint=hint)
    return path


def host_temporary(transport: Transport) -> str:
    """Return the login's TMPDIR on a host, or /tmp if that is not a writable folder."""
    return shell(transport, _TEMPORARY).stdout.partition("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Disk:
    """The file system of a path: its mount point and free space; empty if unknown."""

    mounted_on: str = ""
    free_bytes: int | None = None


def _disk_of(transport: Transport, path: str) -> _Disk:
    lines = shell(transport, _FREE, path).stdout.splitlines()
    # The mount point comes last, and may contain blanks.
    words = lines[-1].split(maxsplit=5) if lines else []
    numbers = [int(word) for word in words if word.isdecimal()]
    if len(numbers) < 3:
        return _Disk()
    return _Disk(mounted_on=words[-1], free_bytes=numbers[2] * 1024)


def put(
    transport: Transport, source: Path, target: str, *, sha256: str, on_progress: OnProgress
) -> None:
    """Send a file of that hash to the host; raises StackError without room for it."""
    try:
        put_file(transport, source, target, sha256=sha256, on_progress=on_progress)
    except TransportError as error:
        if is_full(error.details):
            what = f"sending {source.name}"
            raise failure(transport, what, error.details, hint=error.hint) from error
        raise


def remove_cache(transport: Transport) -> bool:
    """Remove the cache folder from the host; tell whether there was anything to remove.

    If it is a link, its target is emptied. Raises StackError if part of the cache remains, and,
    before removing anything, if a link's target has other content.
    """
    path = host_cache(transport)
    result = shell(transport, _REMOVE, path, _OUR_NAMES, timeout_s=CONTENT_S)
    if not result.succeeded:
        raise StackError(
            f"cannot remove {path} on {transport.name}",
            details=result.tail(1),
            hint="remove envcompare's files there by hand",
        )
    return not result.stdout


def _gigabytes(*sizes_bytes: int) -> tuple[str, ...]:
    """Return sizes with enough digits to distinguish them."""
    texts: tuple[str, ...] = ()
    for digits in range(1, 10):
        texts = tuple(f"{size / 1e9:.{digits}f} GB" for size in sizes_bytes)
        if len(set(texts)) == len(set(sizes_bytes)):
            break
    return texts


# What a step leaves on a disk and its peak use there: each as a multiple of the packed wheels, and
# one of the unpacked wheels.
_KEPT: Final[dict[StepName, tuple[float, float]]] = {
    "wheels": (1.02, 0),
    "sent wheels": (1.02, 0),
    "venv": (0, 1.1),
    "image": (2, 2.25),
    "sent image": (0, 0),
    "received image": (0, 1.1),
    "archive": (0, 1.1),  # until the SIF is made from it
    "sif": (0, 0.6),
    "files": (0, 1.1),
}
_PEAK: Final[dict[StepName, tuple[float, float]]] = {
    "wheels": (2, 0),
    "sent wheels": (1.02, 0),
    "venv": (0, 1.1),
    "image": (2, 2.3),
    "sent image": (0, 1.1),
    "received image": (0, 2.2),
    "archive": (0, 1.1),
    "sif": (0, 2.8),
    "files": (0, 1.1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """The size of wheels, as they are and unpacked."""

    packed_bytes: int
    unpacked_bytes: int

    def kept_bytes(self, step: StepName) -> int:
        """Return the bytes that a step leaves on its disk."""
        return self._times(_KEPT[step])

    def peak_bytes(self, step: StepName) -> int:
        """Return the peak use of a step on its disk."""
        return self._times(_PEAK[step])

    def _times(self, multiples: tuple[float, float]) -> int:
        packed, installed = multiples
        installed_bytes = self.unpacked_bytes + _COMPILED_BYTES if self.unpacked_bytes else 0
        return round(packed * self.packed_bytes + installed * installed_bytes)


_CPU: Final = Amount(packed_bytes=240_000_000, unpacked_bytes=850_000_000)
_CUDA: Final = Amount(packed_bytes=4_200_000_000, unpacked_bytes=7_300_000_000)


def expected(variant: Variant) -> Amount:
    """Return the size of a variant's wheels before resolving them.

    With CUDA, only the variant for CUDA 12.8 was measured; the others are assumed to be as large.
    """
    return _CPU if variant == "cpu" else _CUDA


def of_image(size_bytes: int) -> Amount:
    """Return the amount for the steps after the build, from the size of an image."""
    return Amount(packed_bytes=0, unpacked_bytes=max(1, size_bytes - _COMPILED_BYTES))


def of_files(transport: Transport, path: str) -> Amount:
    """Return the amount for steps that put a folder or file of a host into an image."""
    fields = shell(transport, 'du -skH -- "$1"', path, timeout_s=CONTENT_S).stdout.split()
    return of_image(1024 * int(fields[0]) if fields and fields[0].isdecimal() else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheelhouse:
    """A folder with wheels, their lock and their sums; the key is the hash of the lock."""

    key: str
    folder: Path
    sums: tuple[tuple[str, str], ...]  # (file name, SHA-256)

    @property
    def size_bytes(self) -> int:
        """Return the size of all wheels."""
        return sum((self.folder / name).stat().st_size for name, _ in self.sums)

    @property
    def python(self) -> str:
        """Return the Python minor version of the wheels; empty if any Python can use them."""
        tags = (_CPYTHON.search(name) for name, _ in self.sums)
        return next((f"3.{tag[1]}" for tag in tags if tag), "")

    @property
    def amount(self) -> Amount:
        """Return the size of all wheels, as they are and unpacked."""
        unpacked = sum(_unpacked_bytes(self.folder / name) for name, _ in self.sums)
        return Amount(packed_bytes=self.size_bytes, unpacked_bytes=unpacked)


def _unpacked_bytes(wheel: Path) -> int:
    """Return the unpacked size of a wheel; 0 if unreadable."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (OSError, zipfile.BadZipFile):
        # `check_whole` reports it.
        return 0


def check_whole(wheelhouse: Wheelhouse) -> None:
    """Raise StackError if a wheel differs from the lock."""
    for name, digest in wheelhouse.sums:
        path = wheelhouse.folder / name
        if not path.is_file() or file_sha256(path) != digest:
            raise StackError(
                f"the wheel {name} is damaged",
                details=f"{path} does not have the SHA-256 in its lock",
                hint=f"rm -r {wheelhouse.folder}, then run again: it is filled again",
            )


def steps() -> dict[str, str]:
    """Return the programs that install the wheels and report the result, by name."""
    containers, workloads = bundled.root() / "containers", bundled.workloads()
    paths = (
        containers / "install.sh",
        containers / "library.py",
        workloads / "harness" / "tree.py",
    )
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A step that needs room on the disk of a path."""

    step: StepName
    transport: Transport
    path: str
    what: str = "the cache"  # the contents on this disk
    hint: str = ROOM_HINT


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRoom:
    """The free space of a disk, and what the steps on it need."""

    transport: Transport
    path: str  # on it, from the first step
    what: str
    free_bytes: int | None  # None if unknown
    needed_bytes: int
    parts: tuple[str, ...]
    hint: str

    @property
    def is_enough(self) -> bool:
        """Tell whether the known space is sufficient."""
        return self.free_bytes is None or self.free_bytes >= self.needed_bytes

    @property
    def problem(self) -> Problem:
        """Describe the needed and the free space."""
        needed, free = _gigabytes(self.needed_bytes, self.free_bytes or 0)
        return Problem(
            brief=f"{self.path} needs {needed}, {free} are free ({', '.join(self.parts)})",
            hint=self.hint,
        )


def survey(needs: Iterable[Need], amount: Amount) -> tuple[DiskRoom, ...]:
    """Return for each disk what the steps need there.

    It is the sum of what they leave, plus the largest temporary use: steps run one after another.
    """
    by_disk: defaultdict[tuple[str, str], list[Need]] = defaultdict(list)
    free: dict[tuple[str, str], int | None] = {}
    # Several steps use one folder, so each disk is asked for only once.
    disks: dict[tuple[str, str], _Disk] = {}
    for need in needs:
        place = (need.transport.name, need.path)
        disk = disks[place] = disks.get(place) or _disk_of(need.transport, need.path)
        at = (need.transport.name, disk.mounted_on or need.path)
        by_disk[at].append(need)
        free[at] = disk.free_bytes
    return tuple(_disk(tuple(needs), free[at], amount) for at, needs in by_disk.items())


def require(needs: Iterable[Need], amount: Amount, *, purpose: str) -> None:
    """Raise StackError if a disk has less room than the steps on it need."""
    for disk in survey(needs, amount):
        if not disk.is_enough:
            raise StackError(
                f"no room on {disk.transport.name} for {purpose}",
                details=disk.problem.brief,
                hint=disk.hint,
            )


def image_needs(store: ImageStore, *steps: StepName) -> tuple[Need, ...]:
    """Return the needs on the disk of an engine's images; empty if the disk is unknown."""
    root = store.data_root()
    return tuple(
        Need(
            step=step,
            transport=store.transport,
            path=root,
            what=f"the images of {store.engine.program}",
            hint=store.engine.room_hint,
        )
        for step in steps
        if root
    )


def _disk(needs: tuple[Need, ...], free_bytes: int | None, amount: Amount) -> DiskRoom:
    kept = {need.step: amount.kept_bytes(need.step) for need in needs}
    more = [amount.peak_bytes(step) - left for step, left in kept.items()]
    parts = tuple(f"{_WORDS[step]} {left / 1e9:.1f} GB" for step, left in kept.items() if left)
    if most := max(0, *more):
        parts += (f"for a while {most / 1e9:.1f} GB",)
    return DiskRoom(
        transport=needs[0].transport,
        path=needs[0].path,
        what=needs[0].what,
        free_bytes=free_bytes,
        needed_bytes=sum(kept.values()) + most,
        parts=parts,
        hint=needs[0].hint,
    )
