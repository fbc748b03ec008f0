"""A folder of data: its hash, its checksums, and how it is made whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from typing import Callable, Iterator, NamedTuple

if __name__ == "__main__":  # `harness` is imported from the folder of the workloads
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from harness.attempts import text_hash
from harness.failures import DataError

CHECKSUMS = "checksums.json"
ORIGIN = "ORIGIN"
MADE = "made "


class Source(NamedTuple):
    """The source of a workload's data; `recipe` must change whenever the output of `make` does."""

    recipe: str
    make: Callable[[str], None]
    download: Callable[[str], None]


class Folder:
    """Reads files of a data folder; those with a checksum are compared with it on the way."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._checksums = _read_checksums(path)

    def read(self, name: str) -> bytes:
        """Return a file's content; raise DataError if it is missing or damaged."""
        path = os.path.join(self.path, name)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}. {self._remedy()}") from error
        expected = (self._checksums or {}).get(name)
        if expected not in {None, hashlib.sha256(content).hexdigest()}:
            raise DataError(f"{path} is damaged: its checksum differs. {self._remedy()}")
        return content

    def check(self, name: str) -> None:
        """Raise DataError where a file is missing, or differs from its checksum if it has one."""
        if name in (self._checksums or {}) or not os.path.isfile(os.path.join(self.path, name)):
            self.read(name)

    def verify(self) -> None:
        """Raise DataError unless every file of the list is there and as it was written."""
        if self._checksums is None:
            raise DataError(
                f"{self.path} exists and has no {CHECKSUMS}: nothing here was prepared. "
                "Give it as data where it holds some, or prepare another folder"
            )
        for name in self._checksums:
            self.read(name)

    def origin(self) -> str | None:
        """Return the word on where the data came from, or None."""
        with contextlib.suppress(OSError), open(os.path.join(self.path, ORIGIN)) as file:
            return file.read().strip()
        return None

    def _remedy(self) -> str:
        if self._checksums is None:
            return "Give the folder or file that holds the data"
        return f"Remove {self.path} and prepare it again"


def data_hash(path: str | None) -> str | None:
    """Return the hash of a data folder or file; None where the workload was given none.

    It covers the checksums of prepared data, and names and sizes of a user's own.
    """
    if path is None:
        return None
    checksums = _read_checksums(path) if os.path.isdir(path) else None
    if checksums is None:
        return text_hash("".join(f"{line}\n" for line in _descriptions(path)))
    return text_hash(json.dumps(checksums, sort_keys=True))


def last_written(path: str) -> str | None:
    """Return when the newest file of a user's own data was written; None for prepared data.

    The hash of such data does not cover the contents of the files.
    """
    if os.path.isdir(path) and _read_checksums(path) is not None:
        return None
    newest_ns = max((_status(one).st_mtime_ns for one, _ in _files(path)), default=None)
    return None if newest_ns is None else _moment(newest_ns)


def state(path: str) -> dict[str, str | None]:
    """Return what shows on one host that data are still the same; None for what prepared data lack.

    Times differ between hosts. A file that was put in the place of another may bring an older
    mtime, but its ctime is never older than that.
    """
    modified = last_written(path)
    if modified is None:
        return {"hash": data_hash(path), "modified": None, "changed": None, "files": None}
    found = sorted((name, full, _status(full)) for full, name in _files(path))
    lines = (
        f"{_described(full, name)} {one.st_mtime_ns} {one.st_ctime_ns}\n"
        for name, full, one in found
    )
    return {
        "hash": data_hash(path),
        "modified": modified,
        "changed": _moment(max(one.st_ctime_ns for _, _, one in found)),
        "files": text_hash("".join(lines)),
    }


def _moment(time_ns: int) -> str:
    seconds, rest_ns = divmod(time_ns, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest_ns:09d}Z"


def prepare(target: str, source: Source, *, download: bool) -> str:
    """Make `target` whole and return its hash; a whole one is left alone, a damaged one remade.

    Only data that was made here is remade; for any other it raises DataError, naming the file.
    """
    target = os.path.abspath(target)
    origin = f"downloaded {source.recipe}" if download else MADE + source.recipe
    if not os.path.isdir(target) or not os.listdir(target) or _must_remake(target, origin):
        with _whole_or_absent(target) as folder:
            (source.download if download else source.make)(folder)
            _write_text(os.path.join(folder, ORIGIN), origin + "\n")
            _write_checksums(folder)
    found = data_hash(target)
    assert found is not None
    return found


def copied(source: str, target: str) -> str:
    """Return the path of a copy of a data folder or file in `target`, made unless it is there."""
    path = target if os.path.isdir(source) else os.path.join(target, os.path.basename(source))
    if not os.path.exists(path):
        with _whole_or_absent(target, is_public=False) as folder:
            if os.path.isdir(source):
                shutil.copytree(source, folder, dirs_exist_ok=True)
            else:
                shutil.copy2(source, folder)
    return path


def _must_remake(target: str, origin: str) -> bool:
    """Return whether existing data must be made again; raise DataError if it must be kept."""
    folder = Folder(target)
    found = folder.origin() or "unknown"
    try:
        folder.verify()
    except DataError as error:
        if not found.startswith(MADE):
            raise
        print(f"{error}: made again now", file=sys.stderr)  # noqa: T201  stdout is the reply's
        return True
    if found == origin:
        return False
    if found.startswith(MADE) and origin.startswith(MADE):
        print(f"{target} holds {found!r}: made again as {origin!r}", file=sys.stderr)  # noqa: T201
        return True
    raise DataError(f"{target} holds {found!r}, not {origin!r}. Choose another folder or remove it")


@contextlib.contextmanager
def _whole_or_absent(target: str, *, is_public: bool = True) -> Iterator[str]:
    """Yield a new folder that replaces the target, in one step, if the body succeeds.

    With `is_public`, others may read it: mkdtemp makes folders private.
    """
    os.makedirs(os.path.dirname(target), exist_ok=True)
    folder = tempfile.mkdtemp(prefix=f"{target}.tmp-{os.getpid()}-")
    try:
        yield folder
        if is_public:
            os.chmod(folder, 0o755)  # noqa: S103
        _swap(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _swap(folder: str, target: str) -> None:
    """Replace the target by the folder; the previous target is removed."""
    if os.path.isdir(target) and os.listdir(target):
        aside = folder + "-old"
        os.rename(target, aside)
        try:
            os.rename(folder, target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    else:
        os.rename(folder, target)


def _read_checksums(path: str) -> dict[str, str] | None:
    name = os.path.join(path, CHECKSUMS)
    try:
        with open(name, encoding="utf-8") as file:
            checksums = json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{name} is damaged: {error}. Remove {path} and prepare it again"
        ) from error
    return {str(key): str(value) for key, value in checksums.items()}


def _write_checksums(folder: str) -> None:
    names = sorted(name for _, name in _files(folder))
    checksums = {}
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            checksums[name] = hashlib.sha256(file.read()).hexdigest()
    _write_text(os.path.join(folder, CHECKSUMS), json.dumps(checksums, indent=0) + "\n")


def _descriptions(path: str) -> list[str]:
    """Return the relative name and the size of every file, in the order of the names."""
    return [_described(full, name) for name, full in sorted((n, f) for f, n in _files(path))]


def _described(full: str, name: str) -> str:
    """Return name and size of a file; of a link that leads nowhere, where it points."""
    if os.path.islink(full) and not os.path.exists(full):
        return f"{name} -> {os.readlink(full)}"
    return f"{name} {os.path.getsize(full)}"


def _status(path: str) -> os.stat_result:
    """Return the status of a file, or of a link that leads nowhere itself."""
    return os.stat(path) if os.path.exists(path) else os.lstat(path)


def _files(path: str) -> Iterator[tuple[str, str]]:
    """Yield every file and its relative name."""
    if not os.path.isdir(path):
        yield path, os.path.basename(path)
    for folder, _, names in os.walk(path):
        for name in names:
            full = os.path.join(folder, name)
            yield full, os.path.relpath(full, path)


def _write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(state(sys.argv[1])) + "\n")
