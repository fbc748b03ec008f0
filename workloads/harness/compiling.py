"""`torch.compile` in a worker: the C++ compiler, its cache folder, and counts of compilations."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from typing import Any, Callable, ContextManager

from harness.facts.variables import scratch_folder
from harness.failures import HintedError, LackingError

# Only the worker itself compiles, and no remote cache is used.
_SETTINGS = {
    "compile_threads": 1,
    "fx_graph_remote_cache": False,
    "autotune_remote_cache": False,
    "bundled_autotune_remote_cache": False,
}
_OURS = "envcompare"  # the key of our counter among those of PyTorch
FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")
"""The variables that set the folders of compiled and temporary files."""


def make_ready() -> None:
    """Import PyTorch's compiler and find the C++ compiler, before this process is forked.

    Compiled code is kept in the scratch folder of the arm, which is empty when a run begins. Later
    restarts load what the first one compiled. Raises LackingError if there is no C++ compiler or
    PyTorch is too old.
    """
    folder = os.path.join(scratch_folder(), "compiled")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.environ.update(dict.fromkeys(FOLDERS, folder))
    tempfile.tempdir = folder
    # PyTorch hashes the headers that it compiles in advance by this program
    import_inductor(cpp_cache_precompile_headers=shutil.which("openssl") is not None)
    find_compiler()


def import_inductor(**settings: bool) -> None:
    """Import PyTorch's compiler and set options of its configuration by name."""
    import torch._inductor.compile_fx  # noqa: PLC0415, TID251  seconds, for what compiles alone

    for name, value in {**_SETTINGS, **settings}.items():
        if hasattr(torch._inductor.config, name):  # noqa: SLF001  there is no other way
            setattr(torch._inductor.config, name, value)  # noqa: SLF001


def find_compiler() -> None:
    """Let PyTorch find the compiler and which vector instructions it knows, once for all steps."""
    try:
        from torch._inductor import cpp_builder, cpu_vec_isa, exc  # noqa: PLC0415, TID251
    except ImportError as error:
        version = sys.modules["torch"].__version__
        raise LackingError(
            f"torch.compile is used with PyTorch 2.5 or newer; this is {version}",
            hint="use a newer one, or leave `compile` out",
        ) from error
    try:
        compiler = cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler as error:
        raise _lacking("a C++ compiler, g++") from error
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        raise _lacking(f"Python.h for {compiler}")
    cpu_vec_isa.pick_vec_isa()


def _lacking(what: str) -> LackingError:
    packages = "g++ python{}.{}-dev".format(*sys.version_info[:2])
    return LackingError(
        f"torch.compile needs {what}, which is not here",
        hint="build on an image that has them with --base-image (docs/guide/software.md says how "
        f"to make one), or, for vm and for files of the host, install {packages} there",
    )


def computed(model: Any, device: str, *, compiled: bool) -> Callable[..., Any]:  # noqa: ANN401
    """Return what computes the model: itself, or code that is compiled when it is first called.

    The model keeps its parameters and can still be called itself. What this process has compiled
    for an earlier model is forgotten. Raises LackingError where there is no Triton for a GPU.
    """
    call: Callable[..., Any] = model
    if compiled:
        if device == "cuda" and importlib.util.find_spec("triton") is None:
            raise LackingError(
                "torch.compile needs Triton on a GPU, which is not here",
                hint="install the package triton, as PyTorch's own wheels do, or give --device cpu",
            )
        torch = sys.modules["torch"]
        torch._dynamo.reset()  # noqa: SLF001  there is no other way
        _counters().clear()
        _counters()[_OURS]["models"] += 1
        call = torch.compile(model)
    return call


def require_compiled_code() -> None:
    """Raise HintedError if a model was to be compiled and was called, but nothing was compiled."""
    if _OURS in _counters() and not compiled_graphs():
        raise HintedError(
            "torch.compile has compiled no part of the model, and its step is that of any other",
            hint="leave `compile` out: PyTorch does not compile recurrent layers, nor what is "
            "marked with torch.compiler.disable. Or unset TORCH_COMPILE_DISABLE and "
            "TORCHDYNAMO_DISABLE, which turn torch.compile off",
        )


def is_made_here(path: str) -> bool:
    """Return whether a library holds code that an arm compiled for its model."""
    folder = os.environ.get(FOLDERS[0])
    # the kernel names mapped files by their real paths, and the folder may lie behind a link
    return folder is not None and path.startswith(f"{os.path.realpath(folder)}/")


def compilations() -> int:
    """Return how often PyTorch has started to compile, or loaded compiled code, in this process."""
    counters = _counters()
    if not counters:
        return 0
    names = ("fxgraph_cache_hit", "fxgraph_cache_miss", "fxgraph_cache_bypass")
    graphs = sum(counters["inductor"][name] for name in names)
    return int(counters["frames"]["total"] + graphs)


def newly_compiled() -> int:
    """Return of how many parts this process has compiled code that it found nowhere to load."""
    counters = _counters()
    return int(counters["inductor"]["fxgraph_cache_miss"]) if counters else 0


def compiled_graphs() -> int:
    """Return of how many parts of the work this process has compiled code."""
    counters = _counters()
    return int(counters["stats"]["unique_graphs"]) if counters else 0


def _counters() -> Any:  # noqa: ANN401  PyTorch has no types here
    """Return the counters of PyTorch's compiler by kind and name; empty if it is not imported."""
    return getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})


def uncompiled() -> ContextManager[Any]:
    """Let compiled models call their operators one by one, as if they were not compiled."""
    if not compiled_graphs():
        return contextlib.nullcontext()
    stance: ContextManager[Any] = sys.modules["torch"].compiler.set_stance("force_eager")
    return stance
