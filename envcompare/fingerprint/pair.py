"""The two arms that are compared: their facts, and what is known of them beside these."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from envcompare.run_folder.records import ArmRecord, FingerprintRecord, FingerprintValue

_THREADS: Final = ("torch.threads", "threads.omp", "threads.mkl", "threads.openblas")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmsContext:
    """What is known of two arms beside their facts: how they were asked for, and how they ran."""

    arms: tuple[ArmRecord, ArmRecord] | None = None  # the reference first
    is_program: bool = False  # a plain command, which its launcher tells of
    throttled_ns: int | None = None  # of both while measuring; None: not measured
    peak_bytes: int | None = None  # the larger peak of memory; None: not measured
    options: tuple[str, ...] = ()  # of the command line, beside those that a remedy gives


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintPair:
    """The fingerprints of the reference and of an arm, and what is known beside them."""

    reference: FingerprintRecord
    other: FingerprintRecord
    context: ArmsContext = field(default_factory=ArmsContext)

    @property
    def records(self) -> tuple[FingerprintRecord, FingerprintRecord]:
        """Return both fingerprints, the reference's first."""
        return self.reference, self.other

    def values(self, key: str) -> tuple[FingerprintValue, FingerprintValue]:
        """Return a fact of both sides; None is not measured."""
        return self.reference.facts.get(key), self.other.facts.get(key)

    def differ(self, keys: Iterable[str]) -> str:
        """Return the first of these facts that was measured on both sides and differs."""
        for key in keys:
            before, after = self.values(key)
            if before is not None and after is not None and before != after:
                return key
        return ""

    def names(self, key: str) -> tuple[frozenset[str], frozenset[str]] | None:
        """Return the names in a list of software of both sides; None where one has no list."""
        before, after = self.values(key)
        if before is None or after is None:
            return None
        first, second = (
            frozenset(entry_name(one) for one in entries(side)) for side in (before, after)
        )
        return first, second

    @property
    def is_watched(self) -> bool:
        """Say whether these are programs, which were looked at a few times while they ran."""
        return None not in self.values("programs")

    def path(self, library: str) -> str:
        """Return where a loaded library lies in the one or the other arm; empty if not known."""
        both = (place for value in self.values("loaded_paths") for place in loaded_from(value))
        return next((path for name, path in both if name == library), "")

    def arms_with(self, has: tuple[bool, bool]) -> tuple[str, ...]:
        """Return the names of the arms for which it holds."""
        pairs = zip(self.records, has, strict=True)
        return tuple(record.arm for record, holds in pairs if holds)

    def threads(self) -> int:
        """Return how many threads compute, as far as the facts tell: at least one."""
        counts = [value for key in _THREADS for value in self.values(key)]
        return max((count for count in counts if isinstance(count, int)), default=1)


def entries(value: FingerprintValue) -> tuple[str, ...]:
    """Return the entries of a list of software; a single value is one entry."""
    if value is None:
        return ()
    return tuple(str(one) for one in value) if isinstance(value, tuple) else (str(value),)


def loaded_from(value: FingerprintValue) -> tuple[tuple[str, str], ...]:
    """Return name and path of each file in a list of "basename path"."""
    places = (entry.partition(" ") for entry in entries(value))
    return tuple((name, path) for name, _, path in places)


def entry_name(entry: str) -> str:
    """Return the name in "name==version" and in "basename digest"."""
    return entry.partition("==")[0].partition(" ")[0]


def stem(entry: str) -> str:
    """Return a library's name without its version: the map of a process shows no links."""
    return entry_name(entry).partition(".so")[0]


def part_name(entry: str) -> str:
    """Return the package, as name==version, or the file in "part digest" and "part file digest"."""
    return entry.partition(" ")[0]


def part_file(entry: str) -> str:
    """Return the file in "part file digest"; empty where a part is told as a whole."""
    part, _, rest = entry.partition(" ")
    file = rest.rpartition(" ")[0]
    return "" if file == part else file
