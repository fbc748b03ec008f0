"""The fingerprint: software and limits of a process's environment; None is not measured."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from typing import Any, Callable

from harness.attempts import attempt
from harness.compiling import is_made_here
from harness.facts import torchfacts
from harness.facts.cgroups import limits
from harness.facts.confinement import confinement
from harness.facts.interposing import interposing
from harness.facts.libraries import (
    cuda_versions,
    library_facts,
    mapped_libraries,
    whole_hash,
)
from harness.facts.machine import machine
from harness.facts.masking import masked
from harness.facts.modules import module_facts
from harness.facts.packages import installed, loaded, outside
from harness.facts.variables import variables

# What only a process itself can say: of a plain command these are the launcher's, not its own.
OF_ONE_PROCESS = ("loaded_libraries", "loaded_paths", "loaded_packages", "packages.outside",
                  "allocator.name", "threads.alive")  # fmt: skip


def fingerprint(
    *, threads: int | None, device: str, data: str | None = None, is_launcher: bool = False
) -> dict[str, Any]:
    """Return flat dotted keys; it never raises, and takes about 0.3 s with PyTorch loaded.

    `threads` is what a generation will get; None reads what PyTorch has now. A launcher does not
    know what its program imports, so it reports all modules. The process map is read first, so it
    does not contain what the other facts load.
    """
    paths = [path for path in attempt(mapped_libraries) or [] if not is_made_here(path)]
    parts: tuple[Callable[[], dict[str, Any]], ...] = (
        lambda: library_facts(paths),
        lambda: module_facts(every=is_launcher),
        _python,
        machine,
        limits,
        lambda: confinement(data),
        variables,
        interposing,
        lambda: _packages(paths),
        lambda: torchfacts.versions(threads),
        torchfacts.settings,
        torchfacts.compiler,
        lambda: cuda_versions(paths),
        lambda: torchfacts.gpu(device),
    )
    found: dict[str, Any] = {}
    for part in parts:
        found.update(attempt(part) or {})
    return dict(sorted(found.items()))


def _python() -> dict[str, Any]:
    executable = os.path.realpath(sys.executable)
    return {
        "python.version": platform.python_version(),
        "python.implementation": sys.implementation.name,
        "python.executable": executable,
        "python.sha256": whole_hash(executable),
        "python.flags": attempt(lambda: masked(sysconfig.get_config_var("CONFIG_ARGS"))),
        "python.compiler": platform.python_compiler(),
        "python.is_debug": hasattr(sys, "gettotalrefcount"),
    }


def _packages(paths: list[str]) -> dict[str, Any]:
    found = installed()
    return {
        "packages": [str(one) for one in found],
        "loaded_packages": attempt(lambda: loaded(found, paths)),
        "packages.outside": attempt(outside),
        "site_packages.sha256": None,  # the proof of the stack says it
    }
