"""The two arms that are compared, and whether a workload there can feel a difference.

What it was seen to load, to use and to need tells that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from envcompare.fingerprint.facts import INSTALLED_PARTS, Library, Sign, fact
from envcompare.run_folder.records import ArmRecord, FingerprintRecord, FingerprintValue
from envcompare.text import first_few

_ENGINE_LIBRARIES: Final = "/.singularity.d/libs"  # Apptainer puts the driver's there, for --nv
# Names and values that glibc's loader takes (elf/dl-tunables.list); it ignores all others.
_TUNABLE: Final = re.compile(
    r"glibc\.(?:cpu\.\w+=[^:]+|(?:elision|gmon|malloc|mem|pthread|rtld)\.\w+=-?\d\w*)"
)
# What `site` runs as Python starts; of a .pth file at least the lines that begin with import.
_RUN_ALWAYS: Final = re.compile(r"(?:sitecustomize|usercustomize)\.py|[^/]+\.pth")
_ENOUGH: Final = 1.25  # a peak this far below a limit is not held back by it
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
        both = (place for value in self.values("loaded_paths") for place in _loaded_from(value))
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


def _loaded_from(value: FingerprintValue) -> tuple[tuple[str, str], ...]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Whether a difference is felt (None: it cannot be known), and the sentence that says why."""

    is_felt: bool | None = None
    text: str = ""


_ALWAYS: Final[dict[Sign | None, Evidence]] = {
    "compiler": Evidence(is_felt=True, text="The kernels of torch.compile are compiled by it."),
    "every program": Evidence(is_felt=True, text="Every program loads it."),
    "outside": Evidence(is_felt=True, text="No proof of a stack covers what is imported so."),
    "priority": Evidence(text="It matters only where other processes compete for the same CPUs."),
}
NO_PYTHON: Final = Evidence(is_felt=False, text="The command was not seen to run Python.")


def evidence_of(pair: FingerprintPair, key: str) -> Evidence:
    """Return what was seen of a workload that tells whether it feels a difference in a fact."""
    sign = fact(key).seen_by
    if not fact(key).is_limit and (unseen := _of_a_command(pair, key)):
        return unseen
    if isinstance(sign, Library):
        verb = "seen to be loaded" if pair.is_watched else "loaded"
        return _used(sign.name, _having(pair, "loaded_libraries", sign.files), verb=verb)
    if sign in _READERS:
        return _READERS[sign](pair, key)
    return _ALWAYS.get(sign, Evidence())


def _of_a_command(pair: FingerprintPair, key: str) -> Evidence | None:
    """Return what a command's own processes lack to tell of a fact, or to feel it."""
    if pair.context.is_program and not pair.is_watched:
        return Evidence(text="What the command itself loads was not seen.")
    if fact(key).of_python and runs_python(pair) is False:
        return NO_PYTHON
    return None


def _package(pair: FingerprintPair, key: str) -> Evidence:
    name = key.partition(".")[0]
    return _used(name, _having(pair, "loaded_packages", (name,)), verb="imported")


def _lock(pair: FingerprintPair, _key: str) -> Evidence:
    before, after = pair.values("site_packages.sha256")
    if before is None or before != after:
        return Evidence()
    return Evidence(is_felt=False, text="The installed files are the same all the same.")


def interpreters(pair: FingerprintPair) -> tuple[str, ...]:
    """Return what the interpreters of both arms are called."""
    return tuple(str(one or "").rpartition("/")[2] for one in pair.values("python.executable"))


def runs_python(pair: FingerprintPair) -> bool | None:
    """Say whether a command runs the Python of an arm; None where its programs were not seen."""
    seen = pair.names("programs")
    if seen is None:
        return None
    return any(one in names for one, names in zip(interpreters(pair), seen, strict=True))


def _python(pair: FingerprintPair, _key: str) -> Evidence:
    who = "The command runs it, and one" if runs_python(pair) else "A workload"
    return Evidence(is_felt=True, text=f"{who} bound by Python is affected.")


def _installed(pair: FingerprintPair, _key: str) -> Evidence:
    """Say what a workload imports of the installed files, of which some differ."""
    names = pair.names("loaded_packages")
    if names is None:
        return Evidence(text="What this workload imports was not measured.")
    packages = sorted(names[0] | names[1])
    if not packages:
        return Evidence(is_felt=False, text="This workload imports no installed package.")
    return Evidence(text=f"This workload imports {first_few(packages, most=3)} of them.")


def imported(pair: FingerprintPair, entry: str) -> bool | None:
    """Say whether a package was imported in either arm; None where that was not measured."""
    names = None if pair.context.is_program else pair.names("loaded_packages")
    return None if names is None else entry_name(entry) in names[0] | names[1]


def packages_evidence(pair: FingerprintPair, packages: tuple[str, ...]) -> Evidence:
    """Say in which arms a workload imports the packages that differ."""
    names = tuple(dict.fromkeys(entry_name(one) for one in packages))
    if not names or pair.context.is_program or pair.names("loaded_packages") is None:
        return Evidence()
    what = names[0] if len(names) == 1 else "each of them"
    return _used(what, _having(pair, "loaded_packages", names), verb="imported")


def parts_evidence(pair: FingerprintPair, parts: tuple[str, ...]) -> Evidence:
    """Say whether a workload uses packages, or files of none, whose content differs."""
    names = tuple(dict.fromkeys(part_name(one) for one in parts))
    if unseen := _of_a_command(pair, INSTALLED_PARTS):
        return unseen
    if always := next((one for one in names if _RUN_ALWAYS.fullmatch(one)), ""):
        return Evidence(is_felt=True, text=f"Python runs {always} at every start.")
    used = tuple(one for one in names if imported(pair, one))
    if used:
        return packages_evidence(pair, used)
    if pair.names("loaded_packages") is None or any("==" not in one for one in names):
        return Evidence(text="Whether this workload uses them was not measured.")
    return Evidence(is_felt=False, text="They were not imported by this workload.")


def _having(pair: FingerprintPair, key: str, prefixes: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the arms whose list holds such a name; None where a list was not measured."""
    names = pair.names(key)
    if names is None:
        return None
    is_exact = key == "loaded_packages"
    before, after = (
        any(one in prefixes if is_exact else one.startswith(prefixes) for one in side)
        for side in names
    )
    return pair.arms_with((before, after))


def _used(name: str, arms: tuple[str, ...] | None, *, verb: str) -> Evidence:
    start = f"{name[0].upper()}{name[1:]}" if " " in name else name
    match arms:
        case None:
            return Evidence(text=f"Whether this workload {verb} {name} was not measured.")
        case ():
            return Evidence(is_felt=False, text=f"{start} was not {verb} by this workload.")
        case (arm,):
            where = f"in {arm} alone"
        case _:
            where = "in both arms"
    return Evidence(is_felt=True, text=f"{start} was {verb} by this workload {where}.")


def _preload(pair: FingerprintPair, key: str) -> Evidence:
    """Say whether a library that is to be loaded before all others was loaded."""
    mapped = pair.names("loaded_libraries")
    if mapped is None:
        return Evidence(text="Whether its library was loaded was not measured.")
    asked = [re.split(r"[:\s]+", str(one or "")) for one in pair.values(key)]
    stems = [{stem(one.rpartition("/")[2]) for one in side if one} for side in asked]
    arms = pair.arms_with(
        (
            any(stem(one) in stems[0] for one in mapped[0]),
            any(stem(one) in stems[1] for one in mapped[1]),
        )
    )
    if not arms:
        return Evidence(is_felt=False, text="No library that it names was loaded.")
    return _used("a library that it names", arms, verb="loaded")


def _library_path(pair: FingerprintPair, key: str) -> Evidence:
    """Say whether a library was loaded from the folders that differ."""
    before, after = (set(str(one or "").split(":")) - {""} for one in pair.values(key))
    paths = pair.values("loaded_paths")
    if None in paths:
        return Evidence(text="Whether a library was loaded from there was not measured.")
    folders = tuple(f"{folder.rstrip('/')}/" for folder in before ^ after)
    loaded = (path for side in paths for _, path in _loaded_from(side))
    used = sorted({path.rpartition("/")[2] for path in loaded if path.startswith(folders)})
    if used:
        return Evidence(text=f"{used[0]} was loaded from there.")
    is_engines = before ^ after == {_ENGINE_LIBRARIES}
    text = "No library was loaded from there."
    return Evidence(is_felt=False if is_engines else None, text=text)


def _allocator(pair: FingerprintPair, key: str) -> Evidence:
    if fact(key).with_what == "GLIBC_TUNABLES":
        before, after = (set(_TUNABLE.findall(str(one or ""))) for one in pair.values(key))
        if before == after:
            return Evidence(is_felt=False, text="glibc knows no tunable that differs in it.")
    names = pair.values("allocator.name")
    if "glibc" in names:
        return Evidence(is_felt=True, text="The allocator is glibc's, which reads it.")
    known = [str(one) for one in names if one is not None]
    if not known:
        return Evidence(text="Which allocator serves the memory was not measured.")
    return Evidence(is_felt=False, text=f"The allocator is {known[0]}, which does not read it.")


def _quota(pair: FingerprintPair, key: str) -> Evidence:
    if pair.context.throttled_ns:
        seconds = pair.context.throttled_ns / 1e9
        text = f"It stopped the workload for {seconds:.1f} s while it was measured."
        return Evidence(is_felt=True, text=text)
    quotas = [one for one in pair.values(key) if isinstance(one, int | float)]
    return _cpus_for_threads(min(quotas, default=None), pair.threads())


def _cpu_set(pair: FingerprintPair, key: str) -> Evidence:
    counts = [count for one in pair.values(key) if (count := _count_cpus(one))]
    if pair.threads() == min(counts, default=None) == 1:
        text = "The workload uses 1 thread, and one arm has only one CPU for everything."
        return Evidence(text=text)
    return _cpus_for_threads(min(counts, default=None), pair.threads())


def _cpus_for_threads(cpus: float | None, threads: int) -> Evidence:
    if cpus is None:
        return Evidence()
    word = "thread computes" if threads == 1 else "threads compute"
    has = f"{cpus:g} {'CPU' if cpus == 1 else 'CPUs'}"
    if cpus < threads:
        return Evidence(is_felt=True, text=f"{threads} {word} and one arm has {has} for it.")
    return Evidence(is_felt=False, text=f"{threads} {word}, and {has} are enough for that.")


def _memory(pair: FingerprintPair, key: str) -> Evidence:
    limits = [one for one in pair.values(key) if isinstance(one, int)]
    peak = pair.context.peak_bytes
    if not limits or peak is None:
        return Evidence()
    text = f"The workload's peak is {_megabytes(peak)} and the limit {_megabytes(min(limits))}."
    return Evidence(is_felt=peak * _ENOUGH > min(limits), text=text)


def _count_cpus(value: FingerprintValue) -> int | None:
    """Count the CPUs of a list of numbers, or of a text such as 0-3,8."""
    if isinstance(value, tuple):
        return len(value)
    try:
        spans = [part.split("-") for part in str(value or "").split(",") if part]
        return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)
    except ValueError:
        return None


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB"


_READERS: Final[dict[Sign | None, Callable[[FingerprintPair, str], Evidence]]] = {
    "allocator": _allocator,
    "cpu set": _cpu_set,
    "installed": _installed,
    "library path": _library_path,
    "lock": _lock,
    "memory": _memory,
    "package": _package,
    "preload": _preload,
    "python": _python,
    "quota": _quota,
}
