"""Differences that have one cause are told as one: the first of a group speaks for the others."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from envcompare.fingerprint.sides import Sides
from envcompare.fingerprint.words import INSTALLED_PARTS, entries, entry_name
from envcompare.run_folder.records import FactClass, FactDifference

_PYTHON: Final = (
    "python.version", "python.implementation", "python.sha256", "python.libpython_sha256",
    "python.flags", "python.compiler", "python.is_debug",
)  # fmt: skip
_LIBC: Final = ("libc.version", "libc.sha256")
_TORCH: Final = ("torch.version", "torch.git", "torch.build_sha256", "torch.cuda")
_ALLOCATOR: Final = ("env.LD_PRELOAD", "allocator.ld_preload", "allocator.name")
_INSTALLED: Final = (
    "packages", "torch.version", "numpy.version", "torchvision.version", INSTALLED_PARTS,
    "site_packages.sha256", "site_packages.files", "lock.sha256", "loaded_packages",
)  # fmt: skip
_GROUPS: Final = (
    _PYTHON,
    _LIBC,
    _TORCH,
    _ALLOCATOR,
    ("env.GLIBC_TUNABLES", "allocator.tunables"),
    ("env.ATEN_CPU_CAPABILITY", "torch.cpu_capability"),
    ("env.OMP_NUM_THREADS", "threads.omp"),
    ("env.MKL_NUM_THREADS", "threads.mkl"),
    ("env.OPENBLAS_NUM_THREADS", "threads.openblas"),
    ("cpu.affinity", "cgroup.cpuset"),
    ("seccomp.mode", "seccomp.filters"),
)
_FOLLOWERS: Final = _INSTALLED[5:]

_FELT_LIBRARIES: Final = (
    "libc.", "libm.", "ld-linux", "libpython", "libtorch", "libc10", "libgomp", "libiomp", "libomp",
    "libmkl", "libopenblas", "libscipy_openblas", "libblas", "liblapack", "libcu", "libnv",
    "libnccl", "_multiarray_umath", "libjemalloc", "libtcmalloc", "libmimalloc",
)  # fmt: skip

_BY_PACKAGE: Final = {
    "torch": _TORCH,
    "torchvision": ("torchvision.version",),
    "numpy": ("numpy.version",),
}
_BY_NAME: Final[tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = (
    (_LIBC, ("libc.", "libm.", "ld-linux", "libpthread.", "libdl.", "librt.", "libutil.")),
    (_PYTHON, ("libpython",)),
    (_TORCH, ("libtorch", "libc10", "libshm")),
    (("numpy.version",), ("_multiarray_umath", "libscipy_openblas")),
    (("cuda.cudnn",), ("libcudnn",)),
    (("cuda.cublas",), ("libcublas",)),
    (("cuda.nccl",), ("libnccl",)),
    (("cuda.runtime",), ("libcudart",)),
    (("allocator.name",), ("libjemalloc", "libtcmalloc", "libmimalloc")),
)
_INSTALLED_FILE: Final = re.compile(r"/(?:site|dist)-packages/(\w+)")


def told_once(sides: Sides, found: list[FactDifference]) -> list[FactDifference]:
    """Return the differences, each that another one speaks for with the key of that one."""
    classes = {one.key: one.fact_class for one in found}
    return [_following(sides, one, classes) for one in found]


def is_computing(sides: Sides, entry: str) -> bool:
    """Say whether a library takes part in computing: by its name, or as a part of a package."""
    path = sides.path(entry_name(entry))
    return entry.startswith(_FELT_LIBRARIES) or bool(_INSTALLED_FILE.search(path))


def tellers(sides: Sides, entry: str) -> tuple[str, ...]:
    """Return the facts that tell of another build of a library, by where it lies and its name."""
    path = sides.path(entry_name(entry))
    if package := _INSTALLED_FILE.search(path):
        return _BY_PACKAGE.get(package[1], ("packages",))
    if "/lib-dynload/" in path:
        return _PYTHON
    return next((facts for facts, names in _BY_NAME if entry.startswith(names)), ())


def _following(sides: Sides, one: FactDifference, classes: dict[str, FactClass]) -> FactDifference:
    leader = _leader_of_libraries(sides, one, classes) or _leader(one.key, classes)
    if leader:
        return replace(one, part_of=leader)
    if one.key in _FOLLOWERS and INSTALLED_PARTS in classes:
        return replace(one, part_of=INSTALLED_PARTS, fact_class=classes[INSTALLED_PARTS])
    is_explained = one.key in _FOLLOWERS and "packages.not_imported" in classes
    if is_explained and one.fact_class == "confounder":
        text = "Packages differ that this workload does not import, which may be all of it."
        return replace(one, fact_class="possible-influence", evidence=text)
    return one


def _leader(key: str, classes: dict[str, FactClass]) -> str:
    """Return what tells of this one as well; empty where it speaks for itself."""
    group = _INSTALLED if key in _FOLLOWERS else next((g for g in _GROUPS if key in g), ())
    before = group[: group.index(key)] if group else ()
    enough = {"confounder", classes[key]}
    return next((one for one in before if classes.get(one) in enough), "")


def _leader_of_libraries(sides: Sides, one: FactDifference, classes: dict[str, FactClass]) -> str:
    """Return the first confounder that tells of loaded libraries, where some tell of them all."""
    if one.key != "loaded_libraries":
        return ""
    both = entries(one.reference) + entries(one.value)
    leaders = [
        next((key for key in tellers(sides, entry) if classes.get(key) == "confounder"), "")
        for entry in both
        if is_computing(sides, entry)
    ]
    return leaders[0] if leaders and all(leaders) else ""
