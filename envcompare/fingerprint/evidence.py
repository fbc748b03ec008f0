"""Whether a workload can feel a difference, by what it was seen to load, to use and to need."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from envcompare.fingerprint.classes import longest_rule
from envcompare.fingerprint.sides import Sides
from envcompare.fingerprint.words import INSTALLED_PARTS, entries, entry_name, part_name, stem
from envcompare.run_folder.records import FingerprintValue

_OPENMP: Final = ("libgomp", "libiomp", "libomp")
_OPENBLAS: Final = ("libopenblas", "libscipy_openblas")
_MKL: Final = ("libmkl", "libtorch_cpu")  # the wheels of PyTorch hold MKL inside libtorch_cpu
_CUDNN: Final = ("cuDNN", ("libcudnn",))
_CUBLAS: Final = ("cuBLAS", ("libcublas",))
_ONEDNN: Final = ("oneDNN", ("libdnnl", "libtorch_cpu"))  # which those wheels hold as well
_TORCH: Final = ("PyTorch", ("libtorch", "libc10"))
_LIBRARIES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "cuda.cudnn": _CUDNN,
    "cuda.cublas": _CUBLAS,
    "cuda.nccl": ("NCCL", ("libnccl",)),
    "cuda.runtime": ("the CUDA runtime", ("libcudart",)),
    "env.ATEN_CPU_CAPABILITY": _TORCH,
    "env.CUBLAS": _CUBLAS,
    "env.CUDNN": _CUDNN,
    "env.DNNL": _ONEDNN,
    "env.MKLDNN": _ONEDNN,
    "env.NCCL": ("NCCL", ("libnccl",)),
    "env.ONEDNN": _ONEDNN,
    "env.PYTORCH": _TORCH,
    "env.TORCH": _TORCH,
    "env.OMP": ("a library that reads it", (*_OPENMP, *_OPENBLAS, *_MKL)),
    "env.GOMP": ("an OpenMP runtime", _OPENMP),
    "env.KMP": ("an OpenMP runtime", _OPENMP),
    "env.MKL": ("MKL", _MKL),
    "env.OPENBLAS": ("OpenBLAS", _OPENBLAS),
    "threads.omp": ("an OpenMP runtime", (*_OPENMP, *_OPENBLAS, *_MKL)),
    "threads.mkl": ("MKL", _MKL),
    "threads.openblas": ("OpenBLAS", _OPENBLAS),
    "torch": _TORCH,
    "torch.cudnn": _CUDNN,
    "torch.tf32_matmul": _CUBLAS,
    "torch.tf32_cudnn": _CUDNN,
    "gpu": ("the library of the GPU driver", ("libcuda.",)),
}
_PACKAGES: Final = ("numpy", "torchvision")
_ALLOCATOR: Final = ("env.MALLOC", "env.GLIBC", "allocator.tunables")
_TUNABLES: Final = ("env.GLIBC_TUNABLES", "allocator.tunables")
_PRELOADS: Final = ("env.LD_PRELOAD", "allocator.ld_preload")
LIBRARY_PATH: Final = "env.LD_LIBRARY_PATH"
_ENGINE_LIBRARIES: Final = "/.singularity.d/libs"  # Apptainer puts the driver's there, for --nv
# Names and values that glibc's loader takes (elf/dl-tunables.list); it ignores all others.
_TUNABLE: Final = re.compile(
    r"glibc\.(?:cpu\.\w+=[^:]+|(?:elision|gmon|malloc|mem|pthread|rtld)\.\w+=-?\d\w*)"
)
# What nothing but the interpreter of an arm has the use of.
_OF_PYTHON: Final = ("python", *_PACKAGES, "torch", "packages", "site_packages", "lock")
# What `site` runs as Python starts; of a .pth file at least the lines that begin with import.
_RUN_ALWAYS: Final = re.compile(r"(?:sitecustomize|usercustomize)\.py|[^/]+\.pth")
_ENOUGH: Final = 1.25  # a peak this far below a limit is not held back by it


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Whether a difference is felt (None: it cannot be known), and the sentence that says why."""

    is_felt: bool | None = None
    text: str = ""


NO_PYTHON: Final = Evidence(is_felt=False, text="The command was not seen to run Python.")


def evidence_of(sides: Sides, key: str) -> Evidence:
    """Return what was seen of a workload that tells whether it feels a difference in a fact."""
    if key in LIMITS:
        return LIMITS[key](sides, key)
    if unseen := _of_a_command(sides, key):
        return unseen
    if reader := longest_rule(key, _READERS):
        return _READERS[reader](sides, key)
    package = key.partition(".")[0]
    if package in _PACKAGES:
        return _used(package, _having(sides, "loaded_packages", (package,)), verb="imported")
    rule = longest_rule(key, _LIBRARIES)
    if rule:
        name, prefixes = _LIBRARIES[rule]
        verb = "seen to be loaded" if sides.is_watched else "loaded"
        return _used(name, _having(sides, "loaded_libraries", prefixes), verb=verb)
    return _of_the_rest(sides, key)


def _of_a_command(sides: Sides, key: str) -> Evidence | None:
    """Return what a command's own processes lack to tell of a fact, or to feel it."""
    if sides.pair.is_program and not sides.is_watched:
        return Evidence(text="What the command itself loads was not seen.")
    if longest_rule(key, _OF_PYTHON) and runs_python(sides) is False:
        return NO_PYTHON
    return None


def _of_the_rest(sides: Sides, key: str) -> Evidence:
    part = key.partition(".")[0]
    if part == "libc":
        return Evidence(is_felt=True, text="Every program loads it.")
    if key == "packages.outside":
        return Evidence(is_felt=True, text="No proof of a stack covers what is imported so.")
    if part == "site_packages":
        return _installed(sides)
    if key == "lock.sha256" and _is_same(sides, "site_packages.sha256"):
        return Evidence(is_felt=False, text="The installed files are the same all the same.")
    return Evidence()


def interpreters(sides: Sides) -> tuple[str, ...]:
    """Return what the interpreters of both arms are called."""
    return tuple(str(one or "").rpartition("/")[2] for one in sides.values("python.executable"))


def runs_python(sides: Sides) -> bool | None:
    """Say whether a command runs the Python of an arm; None where its programs were not seen."""
    seen = sides.names("programs")
    if seen is None:
        return None
    return any(one in names for one, names in zip(interpreters(sides), seen, strict=True))


def _python(sides: Sides, _key: str) -> Evidence:
    who = "The command runs it, and one" if runs_python(sides) else "A workload"
    return Evidence(is_felt=True, text=f"{who} bound by Python feels it.")


def _priority(_sides: Sides, _key: str) -> Evidence:
    return Evidence(text="It matters only where other processes compete for the same CPUs.")


def _installed(sides: Sides) -> Evidence:
    """Say what a workload imports of the installed files, of which some differ."""
    names = sides.names("loaded_packages")
    if names is None:
        return Evidence(text="What this workload imports was not measured.")
    found = sorted(names[0] | names[1])
    if not found:
        return Evidence(is_felt=False, text="This workload imports no installed package.")
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return Evidence(text=f"This workload imports {', '.join(found[:3])}{more} of them.")


def imported(sides: Sides, entry: str) -> bool | None:
    """Say whether a package was imported in either arm; None where that was not measured."""
    names = None if sides.pair.is_program else sides.names("loaded_packages")
    return None if names is None else entry_name(entry) in names[0] | names[1]


def packages_evidence(sides: Sides, found: tuple[str, ...]) -> Evidence:
    """Say in which arms a workload imports the packages that differ."""
    names = tuple(dict.fromkeys(entry_name(one) for one in found))
    if not names or sides.pair.is_program or sides.names("loaded_packages") is None:
        return Evidence()
    what = names[0] if len(names) == 1 else "each of them"
    return _used(what, _having(sides, "loaded_packages", names), verb="imported")


def parts_evidence(sides: Sides, found: tuple[str, ...]) -> Evidence:
    """Say whether a workload uses packages, or files of none, whose content differs."""
    names = tuple(dict.fromkeys(part_name(one) for one in found))
    if unseen := _of_a_command(sides, INSTALLED_PARTS):
        return unseen
    if always := next((one for one in names if _RUN_ALWAYS.fullmatch(one)), ""):
        return Evidence(is_felt=True, text=f"Python runs {always} at every start.")
    used = tuple(one for one in names if imported(sides, one))
    if used:
        return packages_evidence(sides, used)
    if sides.names("loaded_packages") is None or any("==" not in one for one in names):
        return Evidence(text="Whether this workload uses them was not measured.")
    return Evidence(is_felt=False, text="They were not imported by this workload.")


def _having(sides: Sides, key: str, prefixes: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the arms whose list holds such a name; None where a list was not measured."""
    names = sides.names(key)
    if names is None:
        return None
    is_exact = key == "loaded_packages"
    before, after = (
        any(one in prefixes if is_exact else one.startswith(prefixes) for one in side)
        for side in names
    )
    return sides.arms_with((before, after))


def _used(name: str, arms: tuple[str, ...] | None, *, verb: str) -> Evidence:
    start = f"{name[0].upper()}{name[1:]}" if " " in name else name
    match arms:
        case None:
            return Evidence(text=f"Whether this workload {verb} {name} was not measured.")
        case ():
            return Evidence(is_felt=False, text=f"{start} was not {verb} by this workload.")
        case (one,):
            where = f"in {one} alone"
        case _:
            where = "in both arms"
    return Evidence(is_felt=True, text=f"{start} was {verb} by this workload {where}.")


def _preload(sides: Sides, key: str) -> Evidence:
    """Say whether a library that is to be loaded before all others was loaded."""
    mapped = sides.names("loaded_libraries")
    if mapped is None:
        return Evidence(text="Whether its library was loaded was not measured.")
    asked = [re.split(r"[:\s]+", str(one or "")) for one in sides.values(key)]
    stems = [{stem(one.rpartition("/")[2]) for one in side if one} for side in asked]
    arms = sides.arms_with(
        (
            any(stem(one) in stems[0] for one in mapped[0]),
            any(stem(one) in stems[1] for one in mapped[1]),
        )
    )
    if not arms:
        return Evidence(is_felt=False, text="No library that it names was loaded.")
    return _used("a library that it names", arms, verb="loaded")


def _library_path(sides: Sides, key: str) -> Evidence:
    """Say whether a library was loaded from the folders that differ."""
    before, after = (set(str(one or "").split(":")) - {""} for one in sides.values(key))
    paths = sides.values("loaded_paths")
    if None in paths:
        return Evidence(text="Whether a library was loaded from there was not measured.")
    folders = tuple(f"{folder.rstrip('/')}/" for folder in before ^ after)
    loaded = [one.partition(" ")[2] for side in paths for one in entries(side)]
    used = sorted({path.rpartition("/")[2] for path in loaded if path.startswith(folders)})
    if used:
        return Evidence(text=f"{used[0]} was loaded from there.")
    is_engines = before ^ after == {_ENGINE_LIBRARIES}
    text = "No library was loaded from there."
    return Evidence(is_felt=False if is_engines else None, text=text)


def _allocator(sides: Sides, key: str) -> Evidence:
    if key in _TUNABLES:
        before, after = (set(_TUNABLE.findall(str(one or ""))) for one in sides.values(key))
        if before == after:
            return Evidence(is_felt=False, text="glibc knows no tunable that differs in it.")
    names = sides.values("allocator.name")
    if "glibc" in names:
        return Evidence(is_felt=True, text="The allocator is glibc's, which reads it.")
    known = [str(one) for one in names if one is not None]
    if not known:
        return Evidence(text="Which allocator serves the memory was not measured.")
    return Evidence(is_felt=False, text=f"The allocator is {known[0]}, which does not read it.")


def _quota(sides: Sides, key: str) -> Evidence:
    if sides.pair.throttled_ns:
        seconds = sides.pair.throttled_ns / 1e9
        text = f"It stopped the workload for {seconds:.1f} s while it was measured."
        return Evidence(is_felt=True, text=text)
    quotas = [one for one in sides.values(key) if isinstance(one, int | float)]
    return _cpus_for_threads(min(quotas, default=None), sides.threads())


def _cpu_set(sides: Sides, key: str) -> Evidence:
    counts = [count for one in sides.values(key) if (count := _count_cpus(one))]
    if sides.threads() == min(counts, default=None) == 1:
        text = "The workload uses 1 thread, and one arm has only one CPU for everything."
        return Evidence(text=text)
    return _cpus_for_threads(min(counts, default=None), sides.threads())


def _cpus_for_threads(cpus: float | None, threads: int) -> Evidence:
    if cpus is None:
        return Evidence()
    word = "thread computes" if threads == 1 else "threads compute"
    has = f"{cpus:g} {'CPU' if cpus == 1 else 'CPUs'}"
    if cpus < threads:
        return Evidence(is_felt=True, text=f"{threads} {word} and one arm has {has} for it.")
    return Evidence(is_felt=False, text=f"{threads} {word}, and {has} are enough for that.")


def _memory(sides: Sides, key: str) -> Evidence:
    limits = [one for one in sides.values(key) if isinstance(one, int)]
    peak = sides.pair.peak_bytes
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


def _is_same(sides: Sides, key: str) -> bool:
    before, after = sides.values(key)
    return before is not None and before == after


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB"


LIMITS: Final[dict[str, Callable[[Sides, str], Evidence]]] = {
    "cgroup.cpu_quota": _quota,
    "cgroup.cpuset": _cpu_set,
    "cpu.affinity": _cpu_set,
    "cgroup.memory_limit_bytes": _memory,
}
"""Limits that are a possible influence, and a confounder once a workload reaches them."""
_READERS: Final[dict[str, Callable[[Sides, str], Evidence]]] = {
    **dict.fromkeys(_ALLOCATOR, _allocator),
    **dict.fromkeys(_PRELOADS, _preload),
    LIBRARY_PATH: _library_path,
    "process.nice": _priority,
    "process.scheduler": _priority,
    "python": _python,
}
