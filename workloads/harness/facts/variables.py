"""The environment variables of a fingerprint: allowed by name, and never a secret."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Mapping, Optional, Pattern

from harness.facts.masking import SECRET_WORDS, masked

ALLOWED = re.compile(
    r"(OMP|GOMP|KMP|MKL|MKLDNN|ONEDNN|DNNL|OPENBLAS|GOTO|BLIS|NUMEXPR|NPY"
    r"|MALLOC|TCMALLOC|MIMALLOC|CUDA|CUDNN|CUBLAS|NCCL|NVIDIA|TORCH|PYTORCH)_\w+"
    r"|LD_PRELOAD|LD_LIBRARY_PATH|LD_BIND_NOW|GLIBC_TUNABLES|ATEN_CPU_CAPABILITY"
    # not what official images say of themselves
    r"|(?!PYTHON_(VERSION|SHA256|PIP_|GET_PIP|SETUPTOOLS))PYTHON[A-Z0-9_]*"
)
# Of programs that make a cache at each start if they cannot keep it, and of other runtimes.
_OF_LINES = re.compile(
    r"(TORCHINDUCTOR|TRITON|NUMBA|HF|XDG_CACHE|TF|XLA|RAYON)_\w+|MPL\w+"
    r"|GOMAXPROCS|GOGC|GODEBUG|NODE_OPTIONS|JAVA_TOOL_OPTIONS"
)
# The location of a file or folder does not change the speed, so only "set" is recorded.
_PLACES = re.compile(r"(?!LD_|PYTHON)\w+_(FILE|DIR|DIRECTORY|PATH|HOME)S?")
SET = "set"
_FOUND: Dict[str, Optional[str]] = {}
"""Previous values of the variables that envcompare has overwritten; None: it was not set."""


def overwrite(name: str, value: str) -> None:
    """Set a variable to the same value in every arm; the fingerprint keeps the previous value."""
    _FOUND.setdefault(name, os.environ.get(name))
    os.environ[name] = value


def variables() -> dict[str, Any]:
    """Return the variables that matter, as the arm sets them, and what is in effect of a few."""
    return {**_kept({**os.environ, **_FOUND}), **_in_effect(os.environ)}


def environment_of(process: str) -> Dict[str, str]:
    """Return the variables with which a process was started.

    Raises OSError if this login may not read them.
    """
    with open(f"/proc/{process}/environ", encoding="utf-8", errors="replace") as file:
        pairs = (entry.partition("=") for entry in file.read().split("\0"))
        return {name: value for name, equals, value in pairs if equals}


def variables_of(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the same of another process, with the variables of caches and other runtimes."""
    return {**_kept(given), **_kept(given, _OF_LINES), **_in_effect(given)}


def _kept(given: Mapping[str, Optional[str]], allowed: Pattern[str] = ALLOWED) -> dict[str, Any]:
    return {
        f"env.{name}": SET if _PLACES.fullmatch(name) else masked(value)
        for name, value in given.items()
        if value is not None and allowed.fullmatch(name) and not SECRET_WORDS.search(name)
    }


def _in_effect(given: Mapping[str, str]) -> dict[str, Any]:
    return {
        "allocator.ld_preload": _text(given, "LD_PRELOAD"),
        "allocator.tunables": _text(given, "GLIBC_TUNABLES"),
        "threads.omp": _number(given, "OMP_NUM_THREADS"),
        "threads.mkl": _number(given, "MKL_NUM_THREADS"),
        "threads.openblas": _number(given, "OPENBLAS_NUM_THREADS"),
        "gpu.visible": _text(given, "CUDA_VISIBLE_DEVICES"),
    }


def scratch_folder() -> str:
    """Return the folder that only this arm writes to; a run begins with it empty and removes it.

    A worker that is started by hand has none, and writes to HOME.
    """
    return os.environ.get("ENVCOMPARE_SCRATCH") or os.environ.get("HOME") or os.getcwd()


def _text(given: Mapping[str, str], name: str) -> str | None:
    value = given.get(name)
    return None if value is None else masked(value)


def _number(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name, "")
    return int(value) if value.isdigit() else None
