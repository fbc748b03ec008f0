"""The names of facts and the differences between them in a few words."""

from __future__ import annotations

from typing import Final

from envcompare.run_folder.records import FactDifference, FingerprintValue
from envcompare.text import visible_line

INSTALLED_PARTS: Final = "site_packages.parts"
"""Packages and files of none, each with its digest."""
CHANGED_FILES: Final = "site_packages.changed"
"""The files in which arms differ, each after its package; they are told with the packages."""
_NAMES: Final[dict[str, str]] = {
    "python.version": "Python",
    "python.sha256": "the build of Python",
    "python.libpython_sha256": "the build of Python",
    "python.flags": "the build of Python",
    "python.compiler": "the build of Python",
    "python.is_debug": "the build of Python",
    "torch.version": "torch",
    "torch.git": "the build of torch",
    "torch.build_sha256": "the build of torch",
    "torch.cuda": "the CUDA that torch is built for",
    "torch.threads": "the threads of torch",
    "torch.interop_threads": "the threads between operations of torch",
    "cuda.runtime": "the CUDA runtime",
    "cuda.cudnn": "cuDNN",
    "cuda.cublas": "cuBLAS",
    "cuda.nccl": "NCCL",
    "torchvision.version": "torchvision",
    "numpy.version": "numpy",
    "libc.version": "the C library",
    "libc.sha256": "the build of the C library",
    "packages": "packages",
    "packages.outside": "packages from outside the installed ones",
    "packages.not_imported": "packages that are not imported",
    "site_packages.sha256": "the installed files",
    INSTALLED_PARTS: "the installed files",
    "site_packages.files": "the number of installed files",
    "lock.sha256": "the lock of the wheels",
    "loaded_libraries": "loaded libraries",
    "programs": "programs",
    "allocator.name": "the memory allocator",
    "kernels.build": "the build in kernel names",
    "kernels.architecture": "the GPU generation in kernel names",
    "kernels.precision": "the precision of the kernels",
    "kernels.cudnn": "the generation of cuDNN's kernels",
    "kernels.nccl": "the generation of NCCL's kernels",
    "kernels.cutlass": "the generation of CUTLASS's kernels",
    "gpu.name": "the GPU",
    "gpu.driver": "the GPU driver",
    "cgroup.cpu_quota": "the CPU quota",
    "cgroup.cpu_weight": "the CPU weight",
    "cgroup.io_weight": "the I/O weight",
    "cgroup.cpuset": "the CPU set",
    "cpu.affinity": "the CPU set",
    "cgroup.memory_limit_bytes": "the memory limit",
    "thp": "transparent huge pages",
    "thp.is_disabled": "the process's ban on transparent huge pages",
    "process.nice": "the priority (nice)",
    "process.scheduler": "the scheduling policy",
    "shm.bytes": "the size of /dev/shm",
    "seccomp.mode": "seccomp",
    "seccomp.filters": "the number of seccomp filters",
    "capabilities.effective": "capabilities",
    "lsm.label": "the security label",
    "mount.python": "the file system of the interpreter",
    "mount.data": "the file system of the data",
    "mount.scratch": "the file system of the scratch folder",
    "os.release": "the distribution",
}
_DIGESTS: Final = frozenset(
    {"sha256", "flags", "git", "flags_sha256", "build_sha256", "libpython_sha256"}
)
_PLURAL: Final = (
    "packages", "loaded_libraries", "programs", "site_packages.sha256", INSTALLED_PARTS,
    "torch.threads",
    "torch.interop_threads", "capabilities",
)  # fmt: skip
WHOLE: Final = ("kernels.", "gpu.name")
"""How keys begin whose values are never cut in a sentence."""
_MOST_PARTS: Final = 2
_LONGEST: Final = 60  # of a value in a sentence


def fact_name(key: str) -> str:
    """Return the name of a fact as sentences use it, such as cuDNN for `cuda.cudnn`."""
    return _NAMES.get(key, key.removeprefix("env."))


def describe(difference: FactDifference) -> str:
    """Return the difference in a few words: "cuDNN 9.1 → 9.5", "the build of Python"."""
    name = fact_name(difference.key)
    if difference.key.rpartition(".")[2] in _DIGESTS:
        return name
    before, after = difference.reference, difference.value
    if difference.key == "cpu.affinity":
        return f"{name} {_spans(before)} → {_spans(after)}"
    if difference.key == INSTALLED_PARTS:
        return f"{name} ({_parts(entries(before) + entries(after))})"
    if isinstance(before, tuple) or isinstance(after, tuple):
        return f"{name} ({_changes(entries(before), entries(after))})"
    if difference.key.startswith(WHOLE):
        return f"{name} ({visible_line(str(before))} → {visible_line(str(after))})"
    word = _size if difference.key.endswith((".bytes", "_bytes")) else _word
    return f"{name} {word(before)} → {word(after)}"


def is_plural(difference: FactDifference) -> bool:
    """Say whether the words of a difference name several things."""
    return is_plural_name(difference.key)


def is_plural_name(key: str) -> bool:
    """Say whether the name of a fact names several things."""
    return key.startswith(_PLURAL) or key in {"thp", "thp.defrag"}


def entries(value: FingerprintValue) -> tuple[str, ...]:
    """Return the entries of a list of software; a single value is one entry."""
    if value is None:
        return ()
    return tuple(str(one) for one in value) if isinstance(value, tuple) else (str(value),)


def entry_name(entry: str) -> str:
    """Return the name in "name==version" and in "basename digest"."""
    return entry.partition("==")[0].partition(" ")[0]


def stem(entry: str) -> str:
    """Return a library's name without its version: the map of a process shows no links."""
    return entry_name(entry).partition(".so")[0]


def part_name(entry: str) -> str:
    """Return the package, as name==version, or the file in "part digest" and "part file digest"."""
    return entry.partition(" ")[0]


def _parts(found: tuple[str, ...]) -> str:
    """Name the first packages with their first file: "torch 2.13.0: torch/__init__.py"."""
    files: dict[str, dict[str, None]] = {}
    for one in found:
        part, _, rest = one.partition(" ")
        file = rest.rpartition(" ")[0]
        files.setdefault(part, {}).update({file: None} if file and file != part else {})
    words = [_of_part(part, tuple(names)) for part, names in files.items()]
    more = f" and {len(words) - _MOST_PARTS} more" if len(words) > _MOST_PARTS else ""
    return visible_line("; ".join(words[:_MOST_PARTS]) + more)


def _of_part(part: str, names: tuple[str, ...]) -> str:
    package = part.replace("==", " ")
    more = f" and {len(names) - 1} more files" if len(names) > 1 else ""
    return f"{package}: {names[0]}{more}" if names else package


def _changes(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    """Name the first three entries, with both versions where there are versions."""
    versions = [dict(one.partition("==")[::2] for one in side) for side in (before, after)]
    names = list(dict.fromkeys(entry_name(one) for one in before + after))
    words = [_change(name, versions[0].get(name), versions[1].get(name)) for name in names[:3]]
    more = len(names) - len(words)
    return ", ".join(words) + (f" and {more} more" if more > 0 else "")


def _change(name: str, before: str | None, after: str | None) -> str:
    """Return both versions; of what only one side has, the name is enough and short."""
    return visible_line(f"{name} {before} → {after}" if before and after else name)


def _spans(value: FingerprintValue) -> str:
    """Return a list of CPUs as the kernel writes it, "0-3,6"."""
    if not isinstance(value, tuple):
        return _word(value)
    spans: list[list[str]] = []
    for before, cpu in zip((None, *value), value, strict=False):
        if isinstance(cpu, int) and before == cpu - 1 and spans:
            spans[-1] = [spans[-1][0], str(cpu)]
        else:
            spans.append([str(cpu)])
    return _word(",".join("-".join(one) for one in spans))


def _size(value: FingerprintValue) -> str:
    return f"{value / 2**20:.0f} MiB" if isinstance(value, int) else _word(value)


def _word(value: FingerprintValue) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    text = visible_line(str(value)) or "empty"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
