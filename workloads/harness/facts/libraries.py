"""The libraries that are mapped into the process, by content and by origin.

The versions of CUDA's are said by the libraries themselves. None of the calls starts CUDA or maps a
library: each returns numbers that were compiled in.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Callable, Collection, Iterable, Mapping, Optional

from harness.attempts import attempt
from harness.facts.cgroups import opened

CHUNK_BYTES = 1 << 20
WHOLE_UP_TO_BYTES = 8 << 20
_C_LIBRARIES = {
    "glibc": r"libc(\.so\.6|-2\.\d+\.so)",
    "musl": r"(ld-musl-.*|libc\.musl-.*|libc\.so)",
}
# The index of the loader is mapped for a moment and is none.
_LIBRARY = re.compile(r"(?!ld\.so\.cache$).*\.so(\.|$)")
_UNLINKED = " (deleted)"
UNREADABLE = "unreadable"  # instead of the hash of a file
_ALLOCATORS = r"lib(jemalloc|tcmalloc|mimalloc)[-_.].*"


def content_hash(path: str, *, sampled: bool = True) -> str:
    """Return the sha256 of a file.

    A sampled hash of a file above 8 MiB covers its size and its first and last MiB. The first
    holds the build ID that linkers write into a library, so another build shows; the whole would
    take seconds for the libraries of PyTorch.
    """
    digest = hashlib.sha256()
    with open(opened(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if sampled and size > WHOLE_UP_TO_BYTES:
            digest.update(str(size).encode() + file.read(CHUNK_BYTES))
            file.seek(-CHUNK_BYTES, os.SEEK_END)
        while True:
            chunk = file.read(CHUNK_BYTES)
            if not chunk:
                return digest.hexdigest()
            digest.update(chunk)


def mapped_libraries(process: str = "self") -> list[str]:
    """Return the paths of the shared libraries that a process has mapped now."""
    with open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as file:
        columns = (line.rstrip("\n").split(maxsplit=5) for line in file)
        paths = {row[5] for row in columns if len(row) == 6}
    return sorted(path for path in paths if _LIBRARY.match(_name(path)))


def library_facts(
    paths: Collection[str], readable: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Return names, hashes and paths of the mapped libraries, the C library and the allocator.

    `readable` has the path by which this process can read a library, if it is another one.
    """
    by_name = {_name(path): readable.get(path, path) for path in paths}
    hashes = {path: short_hash(readable.get(path, path)) for path in paths}
    return {
        "loaded_libraries": sorted({f"{_name(one)} {text}" for one, text in hashes.items()}),
        "loaded_paths": sorted({f"{_name(one)} {_path(one)}" for one in paths}),
        "libc.version": _libc_version(),
        "libc.sha256": _hash_of(by_name, "|".join(_C_LIBRARIES.values())),
        "python.libpython_sha256": _hash_of(by_name, r"libpython\d.*"),
        "allocator.name": allocator(by_name),
    }


def allocator(names: Iterable[str]) -> str | None:
    """Return which library provides `malloc`: an allocator if there is one, else the C library."""
    for name in names:
        found = re.fullmatch(_ALLOCATORS, name)
        if found:
            return found[1]
    for library, pattern in _C_LIBRARIES.items():
        if any(re.fullmatch(pattern, name) for name in names):
            return library
    return None


@cache
def short_hash(path: str) -> str:
    """Return 16 digits of the sampled hash; a fork keeps those that were read before it."""
    try:
        return content_hash(path)[:16]
    except OSError:
        return UNREADABLE


@cache
def whole_hash(path: str) -> str | None:
    """Return the hash of a whole file; None if it cannot be read."""
    try:
        return content_hash(path, sampled=False)
    except OSError:
        return None


def _name(path: str) -> str:
    return os.path.basename(_path(path))


def _path(mapped: str) -> str:
    # proc_pid_maps(5) says so of a file that was unlinked; its content cannot be read any more
    return mapped.removesuffix(_UNLINKED)


def _hash_of(by_name: dict[str, str], pattern: str) -> str | None:
    path = next((path for name, path in by_name.items() if re.fullmatch(pattern, name)), None)
    return whole_hash(path) if path else None


def _libc_version() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):
        return None


def cuda_versions(paths: Iterable[str]) -> dict[str, str | None]:
    """Return the versions of what is mapped at these paths; None is not loaded, or silent."""
    known = tuple(paths)
    return {f"cuda.{name}": attempt(partial(_cuda_version, name, known)) for name in _CUDA_READERS}


def _cuda_version(name: str, paths: tuple[str, ...]) -> str | None:
    pattern = re.compile(_CUDA_FILES[name])
    own = [path for path in paths if pattern.fullmatch(_name(path))]
    return _CUDA_READERS[name](own[0]) if own else None


def _runtime(path: str) -> str | None:
    """Return the version of libcudart: 12040 is 12.4."""
    code = _number_from(path, "cudaRuntimeGetVersion")
    return None if code is None else f"{code // 1000}.{code % 1000 // 10}"


def _nccl(path: str) -> str | None:
    """Return the version of libnccl: 22703 is 2.27.3, and before 2.9 2804 was 2.8.4 (nccl.h)."""
    code = _number_from(path, "ncclGetVersion")
    if code is None:
        return None
    unit = 10_000 if code >= 10_000 else 1_000
    return f"{code // unit}.{code % unit // 100}.{code % 100}"


def _property(call: str) -> Callable[[str], str]:
    """Return a reader of the three parts of a version (library_types.h: major, minor, patch)."""

    def read(path: str) -> str:
        parts = [_number_from(path, call, which) for which in range(3)]
        if None in parts:
            raise OSError(f"{call} refuses")
        return ".".join(map(str, parts))

    return read


def _number_from(path: str, call: str, *arguments: int) -> int | None:
    """Return the number that a function of a library already loaded writes, None for an error."""
    import ctypes  # noqa: PLC0415  itself a library, which a process without CUDA does not need

    library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    number = ctypes.c_int()
    status = getattr(library, call)(*arguments, ctypes.byref(number))
    return number.value if status == 0 else None


_CUDA_FILES = {
    "runtime": r"libcudart\.so\b.*",
    # From 8 on libcudnn.so is a door: asked, it would map the part that answers, used or not.
    "cudnn": r"libcudnn(\.so\.7|_ops_infer\.so\.8|_graph\.so)\b.*",
    "cublas": r"libcublas\.so\b.*",
    "nccl": r"libnccl\.so\b.*",
}
_CUDA_READERS: dict[str, Callable[[str], Optional[str]]] = {
    "runtime": _runtime,
    "cudnn": _property("cudnnGetProperty"),
    "cublas": _property("cublasGetProperty"),
    "nccl": _nccl,
}
