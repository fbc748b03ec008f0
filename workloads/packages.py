"""The distributions beside the interpreter: what is installed, and what of it is in use."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from typing import Iterable, NamedTuple

from attempts import attempt
from cgroups import read_text

# Imported by a .pth file at the start of every process, whatever it does later (site).
_HOOKS = ("_distutils_hack", "__editable__")


class Distribution(NamedTuple):
    """An installed distribution by its folder of metadata."""

    name: str
    version: str
    folder: str
    metadata: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    def is_used(self, files: Iterable[str], modules: Iterable[str]) -> bool:
        """Say whether one of the files below `folder` is its own.

        Where it keeps no list of its files, the names of its modules decide.
        """
        record = read_text(os.path.join(self.metadata, "RECORD"))
        if record is not None:
            return not {line.partition(",")[0] for line in record.splitlines()}.isdisjoint(files)
        names = read_text(os.path.join(self.metadata, "top_level.txt"))
        own = names.split() if names is not None else [self.name.replace("-", "_")]
        return not set(own).isdisjoint(modules)


def installed() -> list[Distribution]:
    """Return what can be imported, read from the names of metadata folders.

    importlib.metadata would open each folder, which takes ten times as long. Of two versions in one
    folder the first by name counts: the order of a listing is the file system's own.
    """
    found: dict[str, Distribution] = {}
    for folder in sys.path:
        for entry in sorted(attempt(partial(os.listdir, folder)) or []):
            match = re.fullmatch(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info", entry)
            if match:
                name = re.sub(r"[-_.]+", "-", match[1]).lower()
                metadata = os.path.join(folder, entry)
                found.setdefault(name, Distribution(name, match[2], folder, metadata))
    return sorted(found.values(), key=str)


def loaded(distributions: Iterable[Distribution], libraries: Iterable[str]) -> list[str]:
    """Return `name==version` of those of which a module is imported or a library is mapped."""
    files = {*_module_files(), *libraries}
    below: dict[str, set[str]] = {}
    used = []
    for one in distributions:
        if one.folder not in below:
            below[one.folder] = _below(files, one.folder)
        own = below[one.folder]
        if own and one.is_used(own, {path.partition("/")[0].partition(".")[0] for path in own}):
            used.append(str(one))
    return used


def _module_files() -> set[str]:
    """Return the files of all imported modules, past their own `__getattr__`: some import then."""
    found = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and not name.startswith(_HOOKS):
            found.add(file)
    return found


def _below(files: Iterable[str], folder: str) -> set[str]:
    """Return the files below a folder, relative to it; the process map knows real paths alone."""
    tops = {os.path.join(folder, ""), os.path.join(os.path.realpath(folder), "")}
    return {path[len(top) :] for path in files for top in tops if path.startswith(top)}
