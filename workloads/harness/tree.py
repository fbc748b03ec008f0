"""The site-packages of an interpreter as one hash: names and contents of every file.

Run by the interpreter in question; prints one JSON object with a hash of all files and one of each
distribution. `--stamp` reads no contents: its hash changes whenever a file is replaced, and it
takes a fraction of the time. `--files PART…` gives the hash of each file of some distributions.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator

_CHUNK_BYTES = 1 << 20
# These hold the path of the environment, or where its wheels lay.
_LEFT_OUT = ("RECORD", "direct_url.json")
# Magic number, flags and hash of the source: how a file was compiled. What follows holds its path.
_PYC_BYTES = 16
_SHOWN_DIGITS = 16  # of a hash that tells one file or distribution from another
_METADATA = re.compile(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_BYTE_CODE = re.compile(r"(.*)__pycache__/([^/]+?)\.[^/]*\.pyc")


def roots() -> list[str]:
    """Return the folders that packages are installed in, each once."""
    paths = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    found = dict.fromkeys(os.path.realpath(path) for path in (*paths, *site.getsitepackages()))
    return [path for path in found if path]


def installed(root: str) -> Iterator[tuple[str, str]]:
    """Yield name and path of every file below a root, in an order that no file system decides.

    A link to a folder counts as one file, and is not followed.
    """
    found = []
    for folder, below, names in os.walk(root):
        links = (name for name in below if os.path.islink(os.path.join(folder, name)))
        for name in (*names, *links):
            path = os.path.join(folder, name)
            found.append((os.path.relpath(path, root), path))
    return iter(sorted(found))


def content(path: str) -> str:
    """Return the SHA-256 of a file, of a link's target, or of what says how it was compiled."""
    if os.path.islink(path):
        return hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest()
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if path.endswith(".pyc"):
            digest.update(file.read(_PYC_BYTES))
        else:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


class Owners:
    """Which distribution the files below a root belong to, as the RECORDs there say."""

    def __init__(self, root: str) -> None:
        self._by_file: dict[str, str] = {}
        self._by_folder: dict[str, set[str]] = {}
        for entry in sorted(os.listdir(root)) if os.path.isdir(root) else []:
            match = _METADATA.fullmatch(entry)
            if match:
                name = re.sub(r"[-_.]+", "-", match[1]).lower()
                self._take(f"{name}=={match[2]}", root, entry)

    def _take(self, part: str, root: str, metadata: str) -> None:
        self._by_folder[metadata] = {part}
        path = os.path.join(root, metadata, "RECORD")
        if not os.path.isfile(path):
            return
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            names = [row[0] for row in csv.reader(line.replace("\0", "") for line in file) if row]
        for name in names:
            self._by_file.setdefault(name, part)
            self._by_folder.setdefault(name.partition("/")[0], set()).add(part)

    def part(self, name: str) -> str:
        """Return `name==version` of the distribution of a file, else the first part of its path.

        A file that no RECORD lists, as byte code, belongs to the only one that its folder is of.
        """
        code = _BYTE_CODE.fullmatch(name)
        source = f"{code[1]}{code[2]}.py" if code else name
        top, is_below, _ = name.partition("/")
        owners = self._by_folder.get(top, set()) if is_below else set()
        alone = next(iter(owners)) if len(owners) == 1 else top
        return self._by_file.get(name) or self._by_file.get(source) or alone


def hashed(parts: set[str] | None = None) -> Iterator[tuple[str, str, bytes]]:
    """Yield part, name and what is hashed of every file that is installed, or that is of parts."""
    for root in roots():
        owners = Owners(root)
        for name, path in installed(root):
            part = _text(owners.part(name))
            if os.path.basename(name) not in _LEFT_OUT and (parts is None or part in parts):
                yield part, _text(name), os.fsencode(f"{name}\0{content(path)}\n")


def tree() -> dict[str, object]:
    """Return the hash of all that is installed, the number of files, and a hash of each part."""
    digest, count = hashlib.sha256(), 0
    parts: dict[str, hashlib._Hash] = {}
    for part, _, line in hashed():
        digest.update(line)
        parts.setdefault(part, hashlib.sha256()).update(line)
        count += 1
    short = {part: one.hexdigest()[:_SHOWN_DIGITS] for part, one in sorted(parts.items())}
    return {"sha256": digest.hexdigest(), "files": count, "parts": short}


def files_of(parts: set[str]) -> dict[str, object]:
    """Return part, name and hash of every file of some parts."""
    found = [
        (part, name, hashlib.sha256(line).hexdigest()[:_SHOWN_DIGITS])
        for part, name, line in hashed(parts)
    ]
    return {"files": found}


def _text(name: str) -> str:
    """Return a name without blanks or control characters: a name may be of any bytes."""
    text = os.fsencode(name).decode(errors="backslashreplace")
    return re.sub(r"[\s\x00-\x1f\x7f]", lambda blank: f"\\x{ord(blank[0]):02x}", text)


def stamp() -> dict[str, object]:
    """Return a hash over path, size and times of every file."""
    digest = hashlib.sha256()
    for root in roots():
        for _, path in installed(root):
            found = os.lstat(path)
            facts = (path, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            digest.update(os.fsencode("\0".join(map(str, facts)) + "\n"))
    return {"stamp": digest.hexdigest()}


def main(words: list[str]) -> dict[str, object]:
    """Return what is asked for."""
    if words == ["--stamp"]:
        return stamp()
    return files_of(set(words[1:])) if words[:1] == ["--files"] else tree()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])) + "\n")
