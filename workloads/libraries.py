"""What is installed beside the interpreter and what is mapped into the process, by content."""

from __future__ import annotations

import hashlib
import os
import re
import sys

CHUNK_BYTES = 1 << 20
WHOLE_UP_TO_BYTES = 8 << 20


def content_hash(path: str, *, sampled: bool = True) -> str:
    """Return the sha256 of a file.

    A sampled hash of a file above 8 MiB covers its size and its first and last MiB. The first
    holds the build ID that linkers write into a library, so another build shows; the whole would
    take seconds for the libraries of PyTorch.
    """
    digest = hashlib.sha256()
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        if sampled and size > WHOLE_UP_TO_BYTES:
            digest.update(str(size).encode() + file.read(CHUNK_BYTES))
            file.seek(-CHUNK_BYTES, os.SEEK_END)
        while True:
            chunk = file.read(CHUNK_BYTES)
            if not chunk:
                return digest.hexdigest()
            digest.update(chunk)


def loaded_libraries() -> list[str]:
    """Return `name hash` of each shared library mapped now, 16 digits of the sampled hash."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        columns = (line.rstrip("\n").split(maxsplit=5) for line in file)
        paths = {row[5] for row in columns if len(row) == 6 and re.search(r"\.so(\.|$)", row[5])}
    return sorted(f"{os.path.basename(path)} {_short_hash(path)}" for path in paths)


def installed_packages() -> list[str]:
    """Return `name==version` of what can be imported, read from the names of metadata folders.

    importlib.metadata would open each folder, which takes ten times as long.
    """
    found: dict[str, str] = {}
    for folder in sys.path:
        names = os.listdir(folder) if os.path.isdir(folder) else []
        for name in names:
            match = re.fullmatch(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info", name)
            if match:
                found.setdefault(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2])
    return sorted(f"{name}=={version}" for name, version in found.items())


def _short_hash(path: str) -> str:
    try:
        return content_hash(path)[:16]
    except OSError:
        return "unreadable"
