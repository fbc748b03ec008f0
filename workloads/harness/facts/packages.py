"""The distributions of the interpreter: which are installed, and which are in use."""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
from functools import partial
from typing import Iterable, NamedTuple, Optional

from harness.attempts import attempt, text_hash
from harness.facts.cgroups import read_text
from harness.facts.libraries import short_hash
from harness.loading import imported_from

# Imported by a .pth file at the start of every process, whatever it does later (site).
_HOOKS = ("_distutils_hack", "__editable__")
_OWN_WORKLOAD = "workload_"  # what inside a worker imports a user's file as


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


def installed(folders: Optional[Iterable[str]] = None) -> list[Distribution]:
    """Return what can be imported from folders, by default those of this interpreter.

    It is read from the names of metadata folders.

    importlib.metadata would open each folder, which takes ten times as long. Of two versions in one
    folder the first by name counts: the order of a listing is the file system's own.
    """
    found: dict[str, Distribution] = {}
    for folder in sys.path if folders is None else folders:
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


def outside() -> list[str]:
    """Return `name digest` of each package that was imported from no place where such belong.

    Those are the standard library and the folders of installed packages, which the proof of a stack
    covers; the digest is one over the content of all its imported files.
    """
    known = _known_folders()
    files: dict[str, list[str]] = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or name.startswith((*_HOOKS, "__main__")):
            continue
        if not file.startswith(known) and not os.path.realpath(file).startswith(known):
            files.setdefault(name.partition(".")[0], []).append(f"{name} {short_hash(file)}")
    return [f"{name} {text_hash(chr(10).join(found))[:16]}" for name, found in files.items()]


def _known_folders() -> tuple[str, ...]:
    """Return the folders of the interpreter, of the worker and of a user's own workload.

    As they are called and as they are: a distribution may link a file of its Python to /etc.
    """
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update(attempt(site.getsitepackages) or [])
    folders.add(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if name.startswith(_OWN_WORKLOAD) and isinstance(file, str):
            folders.add(imported_from(os.path.abspath(file))[0])
    folders.update([os.path.realpath(one) for one in folders])
    return tuple(os.path.join(one, "") for one in folders)


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
