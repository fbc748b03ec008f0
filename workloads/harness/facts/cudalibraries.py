"""The versions of the CUDA libraries that are mapped, said by the libraries themselves.

None of the calls starts CUDA or maps a library: each returns numbers that were compiled in.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Callable, Iterable, Optional

from harness.attempts import attempt


def cuda_versions(paths: Iterable[str]) -> dict[str, str | None]:
    """Return the versions of what is mapped at these paths; None is not loaded, or silent."""
    known = tuple(paths)
    return {f"cuda.{name}": attempt(partial(_read, name, known)) for name in _READERS}


def _read(name: str, paths: tuple[str, ...]) -> str | None:
    pattern = re.compile(_FILES[name])
    own = [path for path in paths if pattern.fullmatch(os.path.basename(path))]
    return _READERS[name](own[0]) if own else None


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


_FILES = {
    "runtime": r"libcudart\.so\b.*",
    # From 8 on libcudnn.so is a door: asked, it would map the part that answers, used or not.
    "cudnn": r"libcudnn(\.so\.7|_ops_infer\.so\.8|_graph\.so)\b.*",
    "cublas": r"libcublas\.so\b.*",
    "nccl": r"libnccl\.so\b.*",
}
_READERS: dict[str, Callable[[str], Optional[str]]] = {
    "runtime": _runtime,
    "cudnn": _property("cudnnGetProperty"),
    "cublas": _property("cublasGetProperty"),
    "nccl": _nccl,
}
