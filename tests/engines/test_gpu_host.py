"""A host that looks as if it had an NVIDIA GPU: what is said of it before anything is computed.

That a kernel runs is shown on a real GPU alone, by tests/gpu.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gpuhost import build
from gpumodels import FAILURES, MODELS, Imitation
from lab import ROOT, need, nvml_headers

T4 = MODELS["t4"]


def _imitation(*failures: str, **changes: object) -> Imitation:
    return Imitation(**{"model": T4, "failures": frozenset(failures), **changes})


@pytest.mark.parametrize("failures", [(), ("two-gpus", "mig"), ("mismatch",)])
def test_stubs_have_the_prototypes_and_sizes_of_nvml_h(
    tmp_path: Path, failures: tuple[str, ...]
) -> None:
    """The compiler refuses a definition that differs from NVIDIA's own declaration."""
    need("nvml.h")
    options = ("-DNVML_HEADER", f"-I{nvml_headers()}")
    build(_imitation(*failures, model=MODELS["a100"]), tmp_path, options=options)
    assert (tmp_path / "libnvidia-ml.so.1").exists()


def test_every_failure_is_described_by_the_command() -> None:
    """Whoever imitates one by hand finds its name."""
    argv = [sys.executable, ROOT / "tests/support/gpuhost.py", "gpu", "--help"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert [name for name in FAILURES if f"  {name} " not in said] == []
