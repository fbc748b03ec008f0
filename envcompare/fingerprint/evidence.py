"""Decide whether a difference can affect a workload, from what it loaded, used and needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import compress
from typing import Final

from envcompare.fingerprint import (
    CLASS_ORDER,
    INSTALLED_PARTS,
    INTERPOSED,
    OVERWRITTEN,
    THROTTLED,
    Library,
    Sign,
    fact,
    holds_for,
    is_first,
)
from envcompare.run_folder.records import (
    CAPTURED,
    ArmRecord,
    FactDifference,
    FingerprintRecord,
    FingerprintValue,
)
from envcompare.text import counted, first_few

# Apptainer puts the libraries of the GPU driver there, for --nv.
_ENGINE_LIBRARIES: Final = "/.singularity.d/libs"
# Names and values that glibc's loader takes (elf/dl-tunables.list); it ignores all others.
_TUNABLE: Final = re.compile(
    r"glibc\.(?:cpu\.\w+=[^:]+|(?:elision|gmon|malloc|mem|pthread|rtld)\.\w+=-?\d\w*)"
)
# What `site` runs as Python starts; of a .pth file at least the lines that begin with import.
_RUN_ALWAYS: Final = re.compile(r"(?:sitecustomize|usercustomize)\.py|[^/]+\.pth")
LIMIT_HITS: Final = "cgroup.memory_limit_hits"
# Compiling a module takes about a millisecond, so a few of them cost little.
_FEW_MODULES: Final = 20
# A limit this far above the peak has no effect.
_ENOUGH: Final = 1.25
_THREADS: Final = ("torch.threads", "threads.omp", "threads.mkl", "threads.openblas")
_SHOWN_IN_S: Final = 1e9  # ns, from which a time is shown in seconds
_Sides = tuple[bool, bool]  # which of two arms, the reference first
_BOTH: Final = (True, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmsContext:
    """What is known of two arms in addition to their facts."""

    arms: tuple[ArmRecord, ArmRecord] | None = None  # the reference first
    is_program: bool = False  # a plain command, described by its launcher
    # threads of each arm that ran in a block; None: not measured
    running: tuple[int | None, int | None] = (None, None)
    throttled_ns: int | None = None  # of both while measuring; None: not measured
    peak_bytes: int | None = None  # the larger peak of memory; None: not measured
    # peaks of each arm's control group, page cache included; None: not measured
    group_peaks: tuple[int | None, int | None] = (None, None)
    options: tuple[str, ...] = ()  # of the command line, in addition to those of a remedy
    hosts: tuple[tuple[str, str], ...] = ()  # each with its --hosts, empty for none; or unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintPair:
    """The fingerprints of the reference and of an arm, with their context."""

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
        """Return the names in a list of software of both sides; None if one has no list."""
        before, after = self.values(key)
        if before is None or after is None:
            return None
        return frozenset(map(entry_name, entries(before))), frozenset(
            map(entry_name, entries(after))
        )

    @property
    def is_watched(self) -> bool:
        """Return whether these are programs, inspected a few times while they ran."""
        return None not in self.values("programs")

    def path(self, library: str) -> str:
        """Return the path of a loaded library in either arm; empty if unknown."""
        both = (place for value in self.values("loaded_paths") for place in _loaded_from(value))
        return next((path for name, path in both if name == library), "")

    def arms_with(self, has: tuple[bool, bool]) -> tuple[str, ...]:
        """Return the names of the arms for which `has` is true."""
        pairs = zip(self.records, has, strict=True)
        return tuple(record.arm for record, holds in pairs if holds)

    @property
    def is_one_environment(self) -> bool:
        """Return whether both arms have one environment and stack."""
        arms = self.context.arms
        return arms is not None and len({(arm.environment, arm.stack) for arm in arms}) == 1

    @property
    def are_lines(self) -> bool:
        """Return whether an arm is a command line, which runs as it is typed."""
        return "line" in {arm.stack for arm in self.context.arms or ()}

    @property
    def is_captured(self) -> bool:
        """Return whether an arm is a capture, which may be of another machine."""
        return CAPTURED in {arm.environment for arm in self.context.arms or ()}

    def threads(self, of: _Sides) -> int:
        """Return the requested number of threads of arms, else the number that ran; at least 1."""
        asked = _counts(self, _THREADS, of=of)
        ran = (number or 1 for number in compress(self.context.running, of))
        return max(1, *(asked or ran))

    def counted_threads(self, of: _Sides) -> int | None:
        """Return how many threads of arms were seen alive; None if they were not counted."""
        return max(_counts(self, ("threads.alive",), of=of), default=None)

    @property
    def interposers(self) -> frozenset[str]:
        """Return the libraries that replace functions of the C library in one of the arms."""
        both = (entry for value in self.values(INTERPOSED) for entry in entries(value))
        return frozenset(map(entry_name, both))


def _counts(pair: FingerprintPair, keys: Iterable[str], *, of: _Sides = _BOTH) -> tuple[int, ...]:
    values = (value for key in keys for value in compress(pair.values(key), of))
    return tuple(value for value in values if isinstance(value, int))


def entries(value: FingerprintValue) -> tuple[str, ...]:
    """Return the entries of a list of software; a single value is one entry."""
    if value is None:
        return ()
    return tuple(str(one) for one in value) if isinstance(value, tuple) else (str(value),)


def _loaded_from(value: FingerprintValue) -> tuple[tuple[str, str], ...]:
    """Return name and path of each file in a list of "basename path"."""
    return tuple(
        (name, path) for name, _, path in (entry.partition(" ") for entry in entries(value))
    )


def entry_name(entry: str) -> str:
    """Return the name in "name==version" and in "basename digest"."""
    return entry.partition("==")[0].partition(" ")[0]


def stem(entry: str) -> str:
    """Return a library's name without its version: /proc/PID/maps shows no links."""
    return entry_name(entry).partition(".so")[0]


def part_name(entry: str) -> str:
    """Return the package, as name==version, or the file in "part digest" and "part file digest"."""
    return entry.partition(" ")[0]


def part_file(entry: str) -> str:
    """Return the file in "part file digest"; empty if the part is reported as a whole."""
    part, _, rest = entry.partition(" ")
    file = rest.rpartition(" ")[0]
    return "" if file == part else file


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Whether a difference has an effect (None: unknown), and the sentence that says why."""

    is_felt: bool | None = None
    text: str = ""


_ALWAYS: Final[dict[Sign | None, Evidence]] = {
    "compiler": Evidence(is_felt=True, text="torch.compile compiles its kernels with it."),
    "every program": Evidence(is_felt=True, text="Every program loads it."),
    "outside": Evidence(is_felt=True, text="The proof of the stack does not cover them."),
    "priority": Evidence(text="It matters only if other processes compete for the same CPUs."),
}
NO_PYTHON: Final = Evidence(is_felt=False, text="The command was not seen to run Python.")


def evidence_of(pair: FingerprintPair, key: str) -> Evidence:
    """Return whether a difference in a fact affects the workload, from what was observed."""
    sign = fact(key).seen_by
    if overwritten := _overwritten(pair, key):
        return overwritten
    if not fact(key).is_limit and (unseen := _of_a_command(pair, key)):
        return unseen
    if isinstance(sign, Library):
        verb = "seen to be loaded" if pair.is_watched else "loaded"
        arms = _having(pair, "loaded_libraries", sign.files)
        # a library that is loaded for a short time can be missed between two readings
        return _used(sign.name, arms, verb=verb, is_sure=not pair.is_watched)
    if sign in _READERS:
        return _READERS[sign](pair, key)
    return _ALWAYS.get(sign, Evidence())


def _of_a_command(pair: FingerprintPair, key: str) -> Evidence | None:
    """Return why a command cannot show or use a fact; None if it can."""
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
    return Evidence(is_felt=False, text="The installed files are equal anyway.")


def interpreters(pair: FingerprintPair) -> tuple[str, ...]:
    """Return the names of the interpreters of both arms."""
    return tuple(str(one or "").rpartition("/")[2] for one in pair.values("python.executable"))


def runs_python(pair: FingerprintPair) -> bool | None:
    """Return whether a command runs the Python of an arm; None if its programs were not seen."""
    seen = pair.names("programs")
    if seen is None:
        return None
    return any(one in names for one, names in zip(interpreters(pair), seen, strict=True))


def _python(pair: FingerprintPair, _key: str) -> Evidence:
    who = "the command's" if runs_python(pair) else "the workload's"
    text = f"It runs {who} Python code, with its own modules such as bz2, ssl and sqlite3."
    return Evidence(is_felt=True, text=text)


def modules_evidence(pair: FingerprintPair, *, is_in_both: bool) -> Evidence:
    """Return whether Python imported the standard-library modules that differ."""
    if not pair.context.is_program:
        where = "both arms" if is_in_both else "only one arm"
        return Evidence(is_felt=is_in_both or None, text=f"Python imported them in {where}.")
    if runs_python(pair) is False:
        return NO_PYTHON
    return Evidence(text="Whether the command imports them was not seen.")


def _byte_code(pair: FingerprintPair, key: str) -> Evidence:
    """Report which arm compiles more modules at each start; only commands are timed with it."""
    counts = _counts(pair, (key,))
    if len(counts) < len(pair.records):
        return Evidence()
    if pair.are_lines and not pair.context.is_program:
        return Evidence(
            is_felt=False, text="Only steps are timed, and modules are imported before them."
        )
    before, after = counts
    arm = pair.records[after > before].arm
    text = (
        f"{arm} has {counted(abs(after - before), 'more module')} without byte code, which Python "
        "compiles at each start"
        + ("." if pair.are_lines else ": envcompare lets no arm write byte code.")
    )
    are_many = abs(after - before) > _FEW_MODULES
    return Evidence(is_felt=(are_many and runs_python(pair)) or None, text=text)


def _installed(pair: FingerprintPair, _key: str) -> Evidence:
    names = pair.names("loaded_packages")
    if names is None:
        return Evidence(text="What this workload imports was not measured.")
    packages = sorted(names[0] | names[1])
    if not packages:
        return Evidence(is_felt=False, text="This workload imports no installed package.")
    return Evidence(text=f"This workload imports {first_few(packages, most=3)} of them.")


def imported(pair: FingerprintPair, entry: str) -> bool | None:
    """Return whether either arm imported a package; None if that was not measured."""
    names = None if pair.context.is_program else pair.names("loaded_packages")
    return None if names is None else entry_name(entry) in names[0] | names[1]


def packages_evidence(pair: FingerprintPair, packages: tuple[str, ...]) -> Evidence:
    """Report in which arms a workload imports the packages that differ."""
    names = tuple(dict.fromkeys(entry_name(package) for package in packages))
    if not names or pair.context.is_program or pair.names("loaded_packages") is None:
        return Evidence()
    what = names[0] if len(names) == 1 else "each of them"
    return _used(what, _having(pair, "loaded_packages", names), verb="imported")


def parts_evidence(pair: FingerprintPair, parts: tuple[str, ...]) -> Evidence:
    """Return whether a workload uses packages, or files of no package, that differ."""
    names = tuple(dict.fromkeys(part_name(part) for part in parts))
    if unseen := _of_a_command(pair, INSTALLED_PARTS):
        return unseen
    if always := next((name for name in names if _RUN_ALWAYS.fullmatch(name)), ""):
        return Evidence(is_felt=True, text=f"Python runs {always} at every start.")
    used = tuple(name for name in names if imported(pair, name))
    if used:
        return packages_evidence(pair, used)
    if pair.names("loaded_packages") is None or any("==" not in name for name in names):
        return Evidence(text="Whether this workload uses them was not measured.")
    return Evidence(is_felt=False, text="This workload did not import them.")


def _having(pair: FingerprintPair, key: str, prefixes: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the arms whose list has such a name; None if a list was not measured."""
    names = pair.names(key)
    if names is None:
        return None
    # The name of a library may go on with a version, that of a package may not.
    is_exact = key == "loaded_packages"
    before, after = (
        any(one in prefixes if is_exact else one.startswith(prefixes) for one in side)
        for side in names
    )
    return pair.arms_with((before, after))


def _used(name: str, arms: tuple[str, ...] | None, *, verb: str, is_sure: bool = True) -> Evidence:
    start = f"{name[0].upper()}{name[1:]}" if " " in name else name
    match arms:
        case None:
            return Evidence(text=f"Whether this workload {verb} {name} was not measured.")
        case ():
            text = f"{start} was not {verb} by this workload."
            return Evidence(is_felt=False if is_sure else None, text=text)
        case (arm,):
            where = f"only in {arm}"
        case _:
            where = "in both arms"
    return Evidence(is_felt=True, text=f"{start} was {verb} by this workload {where}.")


def _preload(pair: FingerprintPair, key: str) -> Evidence:
    """Report which preloaded library was loaded, and what it replaces."""
    mapped = pair.names("loaded_libraries")
    if mapped is None:
        return Evidence(text="Whether its library was loaded was not measured.")
    # LD_PRELOAD separates libraries by colons or spaces (ld.so(8)).
    asked = [re.split(r"[:\s]+", str(one or "")) for one in pair.values(key)]
    stems = [{stem(one.rpartition("/")[2]) for one in side if one} for side in asked]
    loaded = [
        sorted(name for name in names if stem(name) in wanted)
        for names, wanted in zip(mapped, stems, strict=True)
    ]
    arms = pair.arms_with((bool(loaded[0]), bool(loaded[1])))
    if not arms:
        if pair.is_watched:
            return Evidence(text="None of these libraries was seen to be loaded.")
        return Evidence(is_felt=False, text="None of these libraries was loaded.")
    names = first_few(sorted(map(entry_name, {*loaded[0], *loaded[1]})), most=3)
    verb = "were" if ", " in names or " and " in names else "was"
    where = f"only in {arms[0]}" if len(arms) == 1 else "in both arms"
    said = f"{names} {verb} loaded {where}."
    return Evidence(is_felt=True, text=f"{said} {_interposed(pair, INTERPOSED).text}".strip())


def _library_path(pair: FingerprintPair, key: str) -> Evidence:
    # An empty folder is the current one (ld.so(8)).
    before, after = (
        dict.fromkeys(one or "." for one in str(value).split(":")) if value else {}
        for value in pair.values(key)
    )
    paths = pair.values("loaded_paths")
    if None in paths:
        return Evidence(text="Whether a library was loaded from there was not measured.")
    is_order = before.keys() == after.keys()
    differing = before.keys() if is_order else before.keys() ^ after.keys()
    folders = tuple(f"{folder.rstrip('/')}/" for folder in differing)
    loaded = (path for side in paths for _, path in _loaded_from(side))
    used = sorted({path.rpartition("/")[2] for path in loaded if path.startswith(folders)})
    if used:
        order = "The same folders are searched in another order. " * is_order
        return Evidence(text=f"{order}{used[0]} was loaded from there.")
    if is_order:
        return Evidence(text="The same folders are searched, and no library was loaded from there.")
    if any(not folder.startswith("/") for folder in folders):
        return Evidence(text="Whether a library was loaded from there was not measured.")
    is_engines = differing == {_ENGINE_LIBRARIES}
    text = "No library was loaded from there, but each folder slows the search."
    return Evidence(is_felt=False if is_engines else None, text=text)


def _allocator(pair: FingerprintPair, key: str) -> Evidence:
    if fact(key).with_what == "GLIBC_TUNABLES":
        before, after = (set(_TUNABLE.findall(str(one or ""))) for one in pair.values(key))
        if before == after:
            return Evidence(is_felt=False, text="glibc ignores the tunables that differ.")
    names = pair.values("allocator.name")
    if "glibc" in names:
        return Evidence(is_felt=True, text="The allocator is glibc's, which reads it.")
    known = [str(name) for name in names if name is not None]
    if not known:
        return Evidence(text="Which allocator serves the memory was not measured.")
    return Evidence(is_felt=False, text=f"The allocator is {known[0]}, which does not read it.")


def _quota(pair: FingerprintPair, key: str) -> Evidence:
    quota = min((one for one in pair.values(key) if isinstance(one, int | float)), default=None)
    if quota is None:
        return Evidence()
    before, after = (value == quota for value in pair.values(key))
    asked = pair.threads((before, after))
    # Threads of a class may be idle, except those that were asked for.
    lived = pair.counted_threads((before, after)) if pair.context.is_program else None
    threads = max(asked, lived or 1)
    ran = f"{counted(threads, 'thread')} ran on a quota of {_cpus(quota)}"
    stopped = [pair.context.throttled_ns, *_counts(pair, (THROTTLED,))]
    stops_ns = [ns for ns in stopped if ns is not None]
    if any(stops_ns):
        ns = sum(stops_ns)
        time = f"{ns / 1e9:.1f} s" if ns >= _SHOWN_IN_S else f"{ns / 1e6:.0f} ms"
        text = f"It stopped the workload for {time} while it was measured: {ran}."
        return Evidence(is_felt=True, text=text)
    is_measured = pair.context.throttled_ns is not None  # in each block; of a command once
    if quota < (asked if is_measured else threads):
        return Evidence(is_felt=True, text=f"{ran}.")
    if is_measured:
        return Evidence(is_felt=False, text=f"It did not stop the workload: {ran}.")
    unknown = "whether it stopped the workload was not measured"
    if stops_ns:
        unknown = "it did not stop the one process that was watched"
    if pair.context.is_program and lived is None:
        return Evidence(text="The threads of the command were not counted.")
    return Evidence(text=f"{ran}; {unknown}.")


def _cpu_set(pair: FingerprintPair, key: str) -> Evidence:
    """Return whether an arm has fewer CPUs than threads; enough CPUs prove nothing."""
    counts = [_count_cpus(one) for one in pair.values(key)]
    cpus = min(filter(None, counts), default=None)
    if cpus is None:
        return Evidence()
    before, after = (count == cpus for count in counts)
    lived = pair.counted_threads((before, after)) if pair.context.is_program else None
    if pair.context.is_program and lived is None:
        return Evidence(text="The threads of the command were not counted.")
    threads = max(pair.threads((before, after)), lived or 1)
    text = f"The workload uses {counted(threads, 'thread')}, and one arm has {_cpus(cpus)}."
    return Evidence(is_felt=True if cpus < threads else None, text=text)


def _cpus(number: float) -> str:
    return f"{number:g} {'CPU' if number == 1 else 'CPUs'}"


def _interposed(pair: FingerprintPair, key: str) -> Evidence:
    """Name the C library functions that other libraries replace, and in which arm."""
    if None in pair.values(key):
        return Evidence()
    before, after = (set(entries(value)) for value in pair.values(key))
    said = []
    for entry in sorted(before ^ after):
        library, _, functions = entry.partition(" ")
        (arm,) = pair.arms_with((entry in before, entry in after))
        named = first_few(functions.split(), most=3)
        said.append(f"{library} replaces {named} of the C library in {arm}.")
    return Evidence(is_felt=True, text=" ".join(said[:2]))


def _overwritten(pair: FingerprintPair, key: str) -> Evidence | None:
    """Report what envcompare set in every arm instead of a variable; None if it set nothing."""
    if key not in OVERWRITTEN or pair.are_lines:
        return None
    in_effect = OVERWRITTEN[key]
    before, after = pair.values(in_effect) if in_effect else (0, 0)
    if before is None or before != after:
        return None
    set_instead = "kept every arm from writing byte code"
    if in_effect:
        set_instead = f"set {before} {'thread' if before == 1 else 'threads'} in both arms"
    sides = zip(pair.records, pair.values(key), strict=True)
    sets = [f"{side.arm} sets {fact(key).name}={value}" for side, value in sides if value]
    return Evidence(
        is_felt=False,
        text=f"{' and '.join(sets)}; envcompare {set_instead}, so its effect is not in these "
        f"numbers{'; `--threads as-run` measures it' * bool(in_effect)}.",
    )


def _memory(pair: FingerprintPair, key: str) -> Evidence:
    """Return whether the work reached the least limit, to which the page cache counts too."""
    limit = min((one for one in pair.values(key) if isinstance(one, int)), default=None)
    if limit is None:
        return Evidence()
    before, after = (value == limit for value in pair.values(key))
    hits = max(_counts(pair, (LIMIT_HITS,), of=(before, after)), default=None)
    if hits:
        faults = max(_counts(pair, ("process.major_faults",), of=(before, after)), default=0)
        reads = counted(faults, "read")
        text = f"It was reached {counted(hits, 'time')}, with {reads} of pages from disk."
        return Evidence(is_felt=True, text=text)
    own, most = pair.context.peak_bytes, _megabytes(limit)
    if own is not None and own * _ENOUGH > limit:
        return Evidence(is_felt=True, text=f"Its peak is {_megabytes(own)} and the limit {most}.")
    groups = filter(None, compress(pair.context.group_peaks, (before, after)))
    if (group := max(groups, default=None)) is not None:
        is_near = group * _ENOUGH > limit
        text = f"With the page cache, the peak is {_megabytes(group)}"
    elif hits is not None:
        is_near = False
        text = "It was not seen to be reached"
    else:
        is_near = True
        text = f"Without the page cache, the peak is {_megabytes(own)}" if own else ""
    said = f"{text}, and the limit is {most}." if text else ""
    return Evidence(is_felt=None if is_near else False, text=said)


def _count_cpus(value: FingerprintValue) -> int | None:
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
    "byte code": _byte_code,
    "cpu set": _cpu_set,
    "installed": _installed,
    "interposed": _interposed,
    "library path": _library_path,
    "lock": _lock,
    "memory": _memory,
    "package": _package,
    "preload": _preload,
    "python": _python,
    "quota": _quota,
}


_FELT: Final = (True, None, False)
_ACTING: Final[tuple[Sign, ...]] = ("quota", "memory")
# For facts with equal evidence, our estimate of which is the cause more often; "" is any other.
_BY_KIND: Final = (
    *("cpu.model", "cpu", "python.uncompiled", "container.storage", "programs"),
    *("threads.omp", "threads.mkl"),
    *("threads.openblas", "env", "home", "threads", "python.start_files"),
    *("network.resolvers", "container.ports", "container.volumes", "container.entrypoint"),
    *("seccomp", "speculation", "mount.python", "mount", "limits.nofile", "container.runtime"),
    *("container.log_driver", "shm", "network", "loaded_libraries", ""),
    *("capabilities", "limits", "lsm", "cgroup.pids_limit"),
)


def likelihood(difference: FactDifference) -> tuple[int, int, int]:
    """Return a sort key that puts the likeliest cause first.

    The order is: class; libraries before the C library and options of one arm; evidence.
    """
    rank = 0 if is_first(difference.key) else 1 if holds_for("given", difference.key) else 2
    felt = _FELT.index(difference.is_felt)
    return CLASS_ORDER.index(difference.fact_class), rank, felt


def likelihood_in_lines(difference: FactDifference) -> tuple[int, ...]:
    """Return such a key for command lines, in which everything may differ.

    Limits that have acted come first; with equal evidence, facts of kinds that often are the cause.
    """
    has_acted = fact(difference.key).seen_by in _ACTING and difference.is_felt is True
    kinds = (place for place, key in enumerate(_BY_KIND) if holds_for(key, difference.key))
    return not has_acted, *likelihood(difference), next(kinds, _BY_KIND.index(""))
