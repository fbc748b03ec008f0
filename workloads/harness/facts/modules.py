"""The modules of the standard library: their content, and whether Python has to compile them."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import partial
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from itertools import islice
from typing import Any, Dict, Iterator, List, Optional, Tuple

from harness.attempts import attempt
from harness.facts.libraries import short_hash

_HEADER_BYTES = 16  # magic number, flags, then time and size of the source, or its hash (PEP 552)
_BY_HASH, _CHECKED = 1, 2  # of its flags
_U32 = 0xFFFFFFFF
MOST_FILES = 3000  # a whole library has about 1000 without its tests
_NO_PART = {
    "__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "test",
    "tests", "tkinter", "turtledemo",
}  # fmt: skip


def module_facts(*, every: bool = False) -> Dict[str, Any]:
    """Return `file digest` of the imported modules, and how many of them Python must compile.

    With `every` it is all modules there are: what a command imports is not seen from outside. Each
    file is read once in a process and its forks, since `short_hash` keeps what it has read.
    """
    files = dict(sorted(islice(_every_file() if every else _imported_files(), MOST_FILES)))
    return {
        "python.modules": [f"{name} {short_hash(path)}" for name, path in files.items()],
        "python.uncompiled": sum(not attempt(partial(is_compiled, one)) for one in files.values()),
    }


def _tops() -> List[str]:
    """Return the folders of the library, each with a slash at its end."""
    paths = sysconfig.get_paths()
    return sorted({os.path.join(paths[name], "") for name in ("stdlib", "platstdlib")})


def _every_file() -> Iterator[Tuple[str, str]]:
    """Yield all modules of the library, except its tests and programs."""
    for top in _tops():
        yield from files_below(top)


def files_below(top: str) -> Iterator[Tuple[str, str]]:
    """Yield all modules below a folder of a library, which ends with a slash, and their paths."""
    for folder, below, names in os.walk(top):
        below[:] = sorted(set(below) - _NO_PART)
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(".py"):
                yield path[len(top) :], path


def _imported_files() -> Iterator[Tuple[str, str]]:
    """Yield the file of each imported module below the folder of the library, and its path.

    Extension modules are among the libraries; frozen modules have no file.
    """
    tops = _tops()
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        file, spec = names.get("__file__"), names.get("__spec__")
        if not isinstance(file, str) or getattr(spec, "origin", None) == "frozen":
            continue
        top = next((one for one in tops if file.startswith(one)), "")
        if top and file.endswith((".py", ".pyc")) and not _is_installed(file[len(top) :]):
            yield file[len(top) :], file


def _is_installed(below: str) -> bool:
    return below.startswith(("site-packages/", "dist-packages/"))


def is_compiled(path: str) -> bool:
    """Return whether Python uses the byte code of a source, by its header (PEP 552)."""
    if path.endswith(".pyc"):
        return True
    header = _header(path)
    if header is None or header[:4] != MAGIC_NUMBER:
        return False
    flags = int.from_bytes(header[4:8], "little")
    if flags & _BY_HASH:
        return not flags & _CHECKED or header[8:] == _hash_of_source(path)
    found = os.stat(path)
    expected = (int(found.st_mtime) & _U32, found.st_size & _U32)
    return expected == tuple(int.from_bytes(header[at : at + 4], "little") for at in (8, 12))


def _header(path: str) -> Optional[bytes]:
    try:
        with open(cache_from_source(path), "rb") as file:
            return file.read(_HEADER_BYTES)
    except OSError:
        return None


def _hash_of_source(path: str) -> bytes:
    with open(path, "rb") as file:
        return source_hash(file.read())
