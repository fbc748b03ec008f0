"""Bring wheels to a host: only those it lacks, told apart by their hash."""

from __future__ import annotations

from envcompare.stack import Progress, begin
from envcompare.stack.cache import host_cache
from envcompare.stack.stream import moving, put
from envcompare.stack.wheelhouse import LOCK, SUMS, Wheelhouse
from envcompare.text import counted
from envcompare.transport import Told, Transport
from envcompare.transport.operations import CONTENT_S, file_sha256, make_folder, shell


def ship(transport: Transport, wheelhouse: Wheelhouse, *, progress: Progress) -> str:
    """Bring the wheels that a host lacks to its cache; return the folder there."""
    folder = f"{host_cache(transport)}/{wheelhouse.key}/wheelhouse"
    missing = _missing(transport, wheelhouse, folder)
    if missing:
        make_folder(transport, folder)
        sizes = {name: (wheelhouse.folder / name).stat().st_size for name in missing}
        total = sum(sizes.values())
        what = f"{counted(len(missing), 'file')}, {total / 1e6:.0f} MB"
        begin(progress, f"sending {what}, to {transport.name}")
        with moving(progress, "wheels", total) as told:
            before = 0
            for name, digest in missing.items():
                source, target = wheelhouse.folder / name, f"{folder}/{name}"
                put(transport, source, target, sha256=digest, told=_after(before, told))
                before += sizes[name]
    return folder


def _after(before_bytes: int, told: Told) -> Told:
    """Return what counts a file's bytes after those of the files before."""
    return lambda done_bytes: told(before_bytes + done_bytes)


def _missing(transport: Transport, wheelhouse: Wheelhouse, folder: str) -> dict[str, str]:
    """Return the files the host lacks, with their hashes."""
    names = [LOCK, SUMS, *(name for name, _ in wheelhouse.sums)]
    script = 'cd -- "$1" 2>/dev/null && shift && sha256sum -- "$@" 2>/dev/null; exit 0'
    lines = shell(transport, script, folder, *names, timeout_s=CONTENT_S).stdout.splitlines()
    there = {tuple(line.split("  ", 1)) for line in lines}
    here = {name: file_sha256(wheelhouse.folder / name) for name in (LOCK, SUMS)}
    here.update(wheelhouse.sums)
    return {name: digest for name, digest in here.items() if (digest, name) not in there}
