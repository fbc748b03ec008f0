"""What is installed beside an interpreter, as one hash: names, modes and content of every file.

Run by the interpreter that is asked about; prints one JSON object. `--stamp` reads no content: it
gives a hash that changes whenever a file is replaced, and takes a fraction of the time.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import sysconfig
from collections.abc import Iterator

_CHUNK_BYTES = 1 << 20
# These hold the path of the environment, or where its wheels lay.
_LEFT_OUT = ("RECORD", "direct_url.json")
# Magic number, flags and hash of the source: how a file was compiled. What follows holds its path.
_PYC_BYTES = 16


def roots() -> list[str]:
    """Return the folders that packages are installed in, each once."""
    paths = (sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return list(dict.fromkeys(os.path.realpath(path) for path in paths))


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


def tree() -> dict[str, object]:
    """Return the hash of all that is installed, and the number of files."""
    digest, count = hashlib.sha256(), 0
    for root in roots():
        for name, path in installed(root):
            if os.path.basename(name) not in _LEFT_OUT:
                mode = stat.S_IMODE(os.lstat(path).st_mode)
                digest.update(os.fsencode(f"{name}\0{mode:o}\0{content(path)}\n"))
                count += 1
    return {"sha256": digest.hexdigest(), "files": count}


def stamp() -> dict[str, object]:
    """Return a hash over path, size and times of every file."""
    digest = hashlib.sha256()
    for root in roots():
        for _, path in installed(root):
            found = os.lstat(path)
            facts = (path, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            digest.update(os.fsencode("\0".join(map(str, facts)) + "\n"))
    return {"stamp": digest.hexdigest()}


if __name__ == "__main__":
    found = stamp() if sys.argv[1:] == ["--stamp"] else tree()
    sys.stdout.write(json.dumps(found) + "\n")
