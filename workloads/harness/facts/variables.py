"""The environment variables of a fingerprint: allowed by name, and never a secret."""

from __future__ import annotations

import os
import re
from typing import Any

ALLOWED = re.compile(
    r"(OMP|GOMP|KMP|MKL|MKLDNN|ONEDNN|DNNL|OPENBLAS|GOTO|BLIS|NUMEXPR|NPY"
    r"|MALLOC|TCMALLOC|MIMALLOC|CUDA|CUDNN|CUBLAS|NCCL|NVIDIA|TORCH|PYTORCH)_\w+"
    r"|LD_PRELOAD|LD_LIBRARY_PATH|LD_BIND_NOW|GLIBC_TUNABLES|ATEN_CPU_CAPABILITY"
    r"|PYTHONHASHSEED|PYTHONMALLOC|PYTHONOPTIMIZE|PYTHONDEVMODE|PYTHONUNBUFFERED"
    r"|PYTHONDONTWRITEBYTECODE|PYTHONPATH|PYTHONHOME|PYTHONUSERBASE"
)
# Where a file or a folder lies changes no speed: that the variable is set is all that is told.
_PLACES = re.compile(r"(?!LD_|PYTHON)\w+_(FILE|DIR|DIRECTORY|PATH|HOME)S?")
SET = "set"
# An allowed prefix can carry a secret (NVIDIA_API_KEY): such names are left out.
_HIDDEN = r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|API|COOKIE|PRIVATE|LICEN[CS]E|SIGNATURE"
SECRET_WORDS = re.compile(_HIDDEN, re.IGNORECASE)
MASK = "***"
# Of a URL (RFC 3986, section 3.2.1), up to the last @: some passwords hold one as it is.
_LOGIN = re.compile(r"(\w[\w+.-]*://)[^/\s]*@")
# A colon before a slash parts the folders of a list, one of which may be called `private`.
_PART = re.compile(
    rf"((?:\b(?:sig|pw)|\w*(?:{_HIDDEN})\w*)[\"']?\s*(?:=|:(?!/))\s*|--?[\w-]*(?:{_HIDDEN})[\w-]*\s+"
    r"|\w*(?:passwd|password|passphrase|pwd|secret|token|api[_-]?key)\s+(?![-/]))"
    r"(?:\"[^\"]*\"|'[^']*'|(?:(?:Basic|Bearer)\s+)?[^&;,\s]+)",
    re.IGNORECASE,
)
# What a token is known by wherever it stands: those of forges, model hubs and clouds, and a JWT.
_TOKEN = re.compile(r"\b(?:gh[oprsu]_|github_pat_|glpat-|hf_|nvapi-|sk-|AKIA|eyJ)[\w.-]{12,}")


def variables() -> dict[str, Any]:
    """Return the variables that matter, and what a few of them mean."""
    kept = {
        f"env.{name}": SET if _PLACES.fullmatch(name) else masked(value)
        for name, value in os.environ.items()
        if ALLOWED.fullmatch(name) and not SECRET_WORDS.search(name)
    }
    return {
        **kept,
        "allocator.ld_preload": _text("LD_PRELOAD"),
        "allocator.tunables": _text("GLIBC_TUNABLES"),
        "threads.omp": _number("OMP_NUM_THREADS"),
        "threads.mkl": _number("MKL_NUM_THREADS"),
        "threads.openblas": _number("OPENBLAS_NUM_THREADS"),
        "gpu.visible": _text("CUDA_VISIBLE_DEVICES"),
    }


def masked(value: str) -> str:
    """Return a value without the login of a URL, what is named as a secret, and known tokens."""
    known = _TOKEN.sub(MASK, _LOGIN.sub(rf"\1{MASK}@", value))
    return _PART.sub(rf"\1{MASK}", known)


def _text(name: str) -> str | None:
    value = os.environ.get(name)
    return None if value is None else masked(value)


def _number(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None
