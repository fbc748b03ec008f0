"""Find which files are sent with a user's workload: its file, or its folder if the file needs it.

Git, if available, decides which files of a folder count. Hidden files, byte code, virtual
environments and run folders are never sent.
"""

from __future__ import annotations

import ast
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from envcompare.command import Command
from envcompare.errors import CommandTimeoutError, ConfigError, OutputLimitError
from envcompare.files import read_text
from envcompare.transport import run
from envcompare.transport.local import LOCAL

MOST_BYTES: Final = 32 << 20
MOST_FILES: Final = 2000
_SHOWN: Final = 3
_LISTING_S: Final = 60.0
_MODULES: Final = frozenset({".py", ".pyc", ".so"})
_UNNEEDED: Final = frozenset({"__pycache__", "node_modules"})
_MARKS: Final = frozenset({"pyvenv.cfg", "samples.jsonl"})
"""A folder with one of these files is a virtual environment or a run folder."""
_FINDS_FILES: Final = frozenset({"__file__", "__import__", "importlib", "pkgutil", "runpy"})
"""Names by which a file may reach neighbouring files without an `import` statement."""
# A Git hook that starts envcompare sets these to its own repository.
_GIT: Final = ("env", "-u", "GIT_DIR", "-u", "GIT_WORK_TREE", "-u", "GIT_INDEX_FILE", "git")
_LIST: Final = ("ls-files", "-z", "--others", "--exclude-standard")


def travelling(path: Path) -> tuple[str, ...]:
    """Return the names, relative to its folder, of the files sent with a workload file.

    Only the file itself is sent if it needs no other, or if it may only read others and the folder
    is too large. Raises ConfigError if it imports from a folder that is too large.
    """
    try:
        imports, may_read = _needs_of(path)
    except OSError as error:
        raise _unlisted(path, error) from error
    try:
        return _files_of_folder(path) if imports or may_read else (path.name,)
    except ConfigError:
        if imports:
            raise
        return (path.name,)


def left_behind(path: Path) -> str:
    """Return why the folder of a file that may read others of it does not travel; empty if so."""
    try:
        if any(_needs_of(path)):
            _files_of_folder(path)
    except ConfigError as error:
        return error.details
    except OSError as error:
        return str(error)
    return ""


def _files_of_folder(path: Path) -> tuple[str, ...]:
    try:
        found = islice(_below(path.parent, frozenset(), needed=path.name), MOST_FILES + 1)
        names = tuple(sorted({path.name, *found}))
        sizes = {name: (path.parent / name).stat().st_size for name in names}
    except (CommandTimeoutError, OutputLimitError) as error:
        raise _too_large(path, f"its files cannot be listed: {error}") from error
    except OSError as error:
        raise _unlisted(path, error) from error
    if len(names) > MOST_FILES:
        crowded = _largest(dict.fromkeys(names, 1))[0][0]
        raise _too_large(path, f"it holds more than {MOST_FILES} files, most of them in {crowded}")
    if sum(sizes.values()) > MOST_BYTES:
        largest = ", ".join(f"{name} ({_size(amount)})" for name, amount in _largest(sizes))
        raise _too_large(path, f"{_size(sum(sizes.values()))} in all, most of it in {largest}")
    return names


def _needs_of(path: Path) -> tuple[bool, bool]:
    """Return whether a file imports its neighbours, and whether it may reach them otherwise."""
    neighbours = {
        entry.name.partition(".")[0]
        for entry in path.parent.iterdir()
        if entry.name != path.name and (entry.is_dir() or entry.suffix in _MODULES)
    }
    used: set[str] = set()
    for node in ast.walk(ast.parse(read_text(path))):
        if isinstance(node, ast.Import):
            used |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            used.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Name | ast.Attribute):
            used |= {node.id if isinstance(node, ast.Name) else node.attr} & _FINDS_FILES
    return bool((used - {""}) & neighbours), bool(used & _FINDS_FILES)


def _below(folder: Path, above: frozenset[Path], *, needed: str = "") -> Iterator[str]:
    """Yield the names of regular files in a folder, including those behind links and submodules."""
    here = above | {folder.resolve()}
    for name in _listed(folder, needed):
        path = folder / name
        if any(part.startswith(".") or part in _UNNEEDED for part in PurePosixPath(name).parts):
            continue
        if path.is_file():
            yield name
        elif path.is_dir() and path.resolve() not in here:
            yield from (f"{name.rstrip('/')}/{inner}" for inner in _below(path, here))


def _listed(folder: Path, needed: str) -> Iterator[str]:
    """Yield what Git has or would add, without virtual environments and run folders.

    If a repository ignores the needed file, the folder is searched as if outside it; without Git
    everything is yielded.
    """
    names = _asked("-C", str(folder), *_LIST, "--cached")
    if names is None or (needed and needed not in names):
        with tempfile.TemporaryDirectory() as empty:
            _asked("init", "-q", "--bare", empty)
            words = (f"--git-dir={empty}", f"--work-tree={folder}", "-C", str(folder))
            names = _asked(*words, *_LIST)
    yield from _walked(folder) if names is None else _useful(names)


def _asked(*words: str) -> list[str] | None:
    """Return the lines Git prints; None if it fails or is not installed."""
    done = run(LOCAL, Command(argv=(*_GIT, *words)), timeout_s=_LISTING_S)
    return list(filter(None, done.stdout.split("\0"))) if done.succeeded else None


def _useful(names: list[str]) -> Iterator[str]:
    paths = [PurePosixPath(name) for name in names]
    marked = {path.parent for path in paths if path.name in _MARKS} - {PurePosixPath()}
    return (str(path) for path in paths if marked.isdisjoint(path.parents))


def _walked(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        if not _MARKS.isdisjoint(files) and Path(place) != folder:
            folders.clear()
            continue
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        folders[:] = [name for name in folders if name not in _UNNEEDED and name[0] != "."]
        for name in (*files, *links):
            yield str((Path(place) / name).relative_to(folder))


def _largest(amounts: dict[str, int]) -> list[tuple[str, int]]:
    """Return the largest files and folders directly below a folder."""
    tops: Counter[str] = Counter()
    for name, amount in amounts.items():
        top, slash, _ = name.partition("/")
        tops[top + slash] += amount
    return tops.most_common(_SHOWN)


def _size(size_bytes: int) -> str:
    large, unit = (2**30, "GiB") if size_bytes >= 2**30 else (2**20, "MiB")
    return f"{size_bytes / large:.1f} {unit}"


def _unlisted(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path.name} needs the files in {path.parent}, which cannot be listed",
        details=str(error),
        hint="make them readable, or move the file and its imports",
    )


def _too_large(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path.name} needs other files of its folder, and {path.parent} is too large to send",
        details=f"{why}; at most {_size(MOST_BYTES)} and {MOST_FILES} files are sent",
        hint="list large files in a .gitignore there, or give data with --data",
    )
