"""What room the software takes on each disk, as it was measured, and whether it is there.

The multiples are those of docs/benchmarks/building.md, rounded up. They are of the wheels as they
are and of what they hold installed, which their directories tell: what is installed is four times
the wheels for a CPU, and less than twice those with CUDA.

An image on its way and a SIF made from an archive were measured with all their copies on one disk.
How an image on its way divides over two disks, and what a SIF takes that is made from the host's
own engine, is reckoned from the copies that exist at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from envcompare.config.settings import Variant
from envcompare.errors import Problem, StackError
from envcompare.stack.cache import Disk, disk_of, gigabytes
from envcompare.stack.diagnosis import ROOM_HINT
from envcompare.stack.engine import ImageStore
from envcompare.transport import CONTENT_S, Transport, shell

StepName = Literal[
    "wheels", "sent wheels", "venv", "image", "sent image", "received image", "archive", "sif"
]


@dataclass(frozen=True, slots=True)
class _Multiple:
    """What a step leaves on a disk and what it takes at most, by what the wheels hold."""

    packed: float = 0  # left, of the wheels as they are
    installed: float = 0  # left, of what they hold
    packed_at_most: float = 0
    installed_at_most: float = 0


_MULTIPLES: Final[dict[StepName, _Multiple]] = {
    "wheels": _Multiple(packed=1.02, packed_at_most=2),
    "sent wheels": _Multiple(packed=1.02, packed_at_most=1.02),
    "venv": _Multiple(installed=1.1, installed_at_most=1.1),
    "image": _Multiple(packed=2, installed=2.25, packed_at_most=2, installed_at_most=2.3),
    "sent image": _Multiple(installed_at_most=1.1),
    "received image": _Multiple(installed=1.1, installed_at_most=2.2),
    "archive": _Multiple(installed=1.1, installed_at_most=1.1),  # until the SIF is made of it
    "sif": _Multiple(installed=0.6, installed_at_most=2.8),
}
_COMPILED_BYTES: Final = 250_000_000
"""What byte code and the blocks of small files add, with CUDA and without."""

WORDS: Final[dict[StepName, str]] = {
    "wheels": "wheels",
    "sent wheels": "wheels",
    "venv": "venv",
    "image": "image and what its build keeps",
    "sent image": "image on its way",
    "received image": "image",
    "archive": "archive of the image",
    "sif": "SIF",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """The size of wheels, as they are and unpacked."""

    packed_bytes: int
    unpacked_bytes: int

    def kept_bytes(self, step: StepName) -> int:
        """Return what a step leaves on its disk."""
        by = _MULTIPLES[step]
        return round(by.packed * self.packed_bytes + by.installed * self._installed_bytes)

    def peak_bytes(self, step: StepName) -> int:
        """Return what a step takes on its disk at most."""
        by = _MULTIPLES[step]
        packed = by.packed_at_most * self.packed_bytes
        return round(packed + by.installed_at_most * self._installed_bytes)

    @property
    def _installed_bytes(self) -> int:
        return self.unpacked_bytes + _COMPILED_BYTES if self.unpacked_bytes else 0


_CPU: Final = Amount(packed_bytes=240_000_000, unpacked_bytes=850_000_000)
_CUDA: Final = Amount(packed_bytes=4_200_000_000, unpacked_bytes=7_300_000_000)


def expected(variant: Variant) -> Amount:
    """Return the size of a variant's wheels before they are asked for.

    Of those with CUDA the one for CUDA 12.8 was measured, and the others are taken to be as large.
    """
    return _CPU if variant == "cpu" else _CUDA


def of_image(size_bytes: int) -> Amount:
    """Return what the steps after the build reckon with; of an image only its size is known."""
    return Amount(packed_bytes=0, unpacked_bytes=max(1, size_bytes - _COMPILED_BYTES))


def of_files(transport: Transport, path: str) -> Amount:
    """Return what the steps reckon with that put a folder or file of a host into an image."""
    said = shell(transport, 'du -skH -- "$1"', path, timeout_s=CONTENT_S).stdout.split()
    return of_image(1024 * int(said[0]) if said and said[0].isdecimal() else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A step that needs room on the disk of a path."""

    step: StepName
    transport: Transport
    path: str
    what: str = "the cache"  # that is on this disk
    hint: str = ROOM_HINT


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRoom:
    """What a disk has free, and what the steps on it need."""

    transport: Transport
    path: str  # on it, that of the first step
    what: str
    free_bytes: int | None  # where it is known
    needed_bytes: int
    parts: tuple[str, ...]
    hint: str

    @property
    def is_enough(self) -> bool:
        """Tell whether nothing is known to be lacking."""
        return self.free_bytes is None or self.free_bytes >= self.needed_bytes

    @property
    def problem(self) -> Problem:
        """Say what is needed and what is free."""
        needed, free = gigabytes(self.needed_bytes, self.free_bytes or 0)
        return Problem(
            brief=f"{self.path} needs {needed}, {free} are free ({', '.join(self.parts)})",
            hint=self.hint,
        )


def survey(needs: Iterable[Need], amount: Amount) -> tuple[DiskRoom, ...]:
    """Return for each disk what the steps need there.

    That is all that they leave, and the most that one takes for a while: steps are made one after
    another.
    """
    by_disk: defaultdict[tuple[str, str], list[Need]] = defaultdict(list)
    free: dict[tuple[str, str], int | None] = {}
    asked: dict[tuple[str, str], Disk] = {}  # several steps take room in one folder
    for need in needs:
        place = (need.transport.name, need.path)
        disk = asked[place] = asked.get(place) or disk_of(need.transport, need.path)
        at = (need.transport.name, disk.mounted_on or need.path)
        by_disk[at].append(need)
        free[at] = disk.free_bytes
    return tuple(_disk(tuple(needs), free[at], amount) for at, needs in by_disk.items())


def require(needs: Iterable[Need], amount: Amount, *, purpose: str) -> None:
    """Raise StackError where a disk has less room than the steps on it need."""
    for disk in survey(needs, amount):
        if not disk.is_enough:
            raise StackError(
                f"no room on {disk.transport.name} for {purpose}",
                details=disk.problem.brief,
                hint=disk.hint,
            )


def image_needs(store: ImageStore, *steps: StepName) -> tuple[Need, ...]:
    """Return what steps need where an engine keeps its images; nothing where that is not known."""
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
    parts = tuple(f"{WORDS[step]} {left / 1e9:.1f} GB" for step, left in kept.items() if left)
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
