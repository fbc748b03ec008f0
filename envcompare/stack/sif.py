"""SIF files and sandboxes: found, or made once and sent to every host, and checked before use."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from envcompare.config.settings import Compression
from envcompare.environments.registry import environment
from envcompare.errors import StackError, UnusableError
from envcompare.stack import Progress, begin
from envcompare.stack.cache import host_cache, local_cache
from envcompare.stack.image import Image, find
from envcompare.stack.packing import Wanted, pack
from envcompare.stack.stream import moving, put
from envcompare.transport import Transport
from envcompare.transport.local import LOCAL
from envcompare.transport.operations import CONTENT_S, make_folder, not_understood, shell

_SUM = r"""
[ -e "$1" ] || exit 3
[ ! -d "$1" ] || { echo sandbox; exit; }
sha256sum <"$1" | cut -d ' ' -f 1
"""
_WHOLE = f'[ "$(cat "$1.sha256")" = "$({_SUM.strip()})" ] && cat "$1.sha256"'
_NOTE = 'umask 022; echo "$2" >"$1.sum.$$" && mv -f -- "$1.sum.$$" "$1.sha256"'
_HEADER = 'head -c 128 -- "$1" | od -An -v -tx1 && wc -c <"$1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Sif:
    """An image file (or sandbox folder) on a host; a sandbox has no digest."""

    path: str
    sha256: str
    compression: str


_TURNS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_MADE: dict[str, tuple[Transport, Sif]] = {}  # by this process, and on which host


def make(
    transport: Transport,
    image: Image,
    *,
    compression: Compression,
    local: Transport,
    progress: Progress,
) -> Sif:
    """Return the SIF of that very image on the host, whole.

    The same file goes to every host where that can be: it is kept on this machine once it was made
    here, or made by the first host and fetched for the second. Else the host makes its own.
    """
    wanted = Wanted(image=image, compression=compression, local=local, progress=progress)
    target = f"{host_cache(transport)}/{_key(wanted)}"
    digest = _whole(transport, target)
    if not digest:
        make_folder(transport, target.rpartition("/")[0])
        digest = _brought(transport, wanted, target)
    return Sif(path=target, sha256=digest, compression=compression)


def given(transport: Transport, path: str, *, local: Transport, progress: Progress) -> Sif:
    """Return a SIF the user named: the host's own, else the one on this machine, sent there."""
    here = Path(path).expanduser()
    if transport.name == LOCAL.name:
        return inspect(transport, str(here))
    if shell(transport, '[ -e "$1" ]', path).succeeded or not here.is_file():
        return inspect(transport, path)
    found = inspect(local, str(here))
    target = f"{host_cache(transport)}/given-{found.sha256[:32]}/{here.name}"
    if _whole(transport, target) != found.sha256:
        make_folder(transport, target.rpartition("/")[0])
        _send(transport, found, target, progress=progress)
    return inspect(transport, target)


def inspect(transport: Transport, path: str) -> Sif:
    """Return a SIF the user named; raises StackError when it is missing or cut short."""
    there = shell(transport, _SUM, path, timeout_s=CONTENT_S)
    if there.exit_code == 3 or "denied" in there.stderr:
        raise StackError(
            f"{path} is not on {transport.name}" if there.exit_code == 3 else f"cannot read {path}",
            details=there.tail(1) or "there is no such file or folder",
            hint=f"copy it there, for example: scp IMAGE.sif {transport.name}:{path}",
        )
    digest = there.stdout.strip()
    if digest != "sandbox":
        _check_length(transport, path)
    return Sif(path=path, sha256=digest, compression="as given")


def promised_bytes(header: bytes) -> int | None:
    """Return the length a SIF's header promises; None when it is no SIF header.

    Layout of the SIF global header: 32 bytes of launch script, the magic word, and at offsets
    112 and 120 the start and length of the data as little-endian 64-bit numbers.
    """
    if len(header) < 128 or header[32:41] != b"SIF_MAGIC":
        return None
    return int.from_bytes(header[112:120], "little") + int.from_bytes(header[120:128], "little")


def _check_length(transport: Transport, path: str) -> None:
    said = shell(transport, _HEADER, path).stdout
    try:
        *words, size = said.split()
        header, length = bytes.fromhex("".join(words)), int(size)
    except ValueError as error:
        hint = "od and wc there should print numbers alone"
        raise not_understood(transport, f"the header of {path}", said, hint=hint) from error
    promised = promised_bytes(header)
    if promised is not None and length < promised:
        raise StackError(
            f"{path} on {transport.name} is cut short",
            details=f"it has {length} bytes, its header promises {promised}",
            hint="copy it again and compare sha256sum",
        )


def _key(wanted: Wanted) -> str:
    """Return where a SIF is in every cache."""
    ending = "sandbox" if wanted.compression == "sandbox" else "sif"
    return f"{wanted.image.key}/{wanted.compression}.{ending}"


def _brought(transport: Transport, wanted: Wanted, target: str) -> str:
    """Send the SIF to the host, or make it there; return its hash."""
    if wanted.compression == "sandbox":
        return pack(transport, wanted, target)  # a folder is made where it is used
    key, is_here = _key(wanted), transport.name == LOCAL.name
    with _TURNS[key]:
        found = None if is_here else _found_here(transport, wanted)
        if found is None:
            digest = pack(transport, wanted, target)
            made = Sif(path=target, sha256=digest, compression=wanted.compression)
            _MADE[key] = (transport, made)
            return digest
    _send(transport, found, target, progress=wanted.progress)
    return found.sha256


def _whole(transport: Transport, path: str) -> str:
    """Return the hash of a SIF that is as it was when its hash was noted; nothing otherwise."""
    there = shell(transport, _WHOLE, path, timeout_s=CONTENT_S)
    return there.stdout.strip() if there.succeeded else ""


def _found_here(transport: Transport, wanted: Wanted) -> Sif | None:
    """Return the SIF in the cache of this machine; made here, or fetched, where that can be.

    What fails here is no reason to fail: the host may still make it itself.
    """
    path = local_cache() / _key(wanted)
    digest = _whole(wanted.local, str(path))
    elsewhere = _MADE.get(_key(wanted))
    try:
        if not digest and can_make(wanted):
            make_folder(wanted.local, str(path.parent))
            digest = pack(wanted.local, wanted, str(path))
        elif not digest and elsewhere and elsewhere[0].name != transport.name:
            digest = _fetch(wanted, path, *elsewhere)
    except UnusableError as error:
        wanted.progress(f"{error.brief}; it is made on {transport.name}")
    return Sif(path=str(path), sha256=digest, compression=wanted.compression) if digest else None


def can_make(wanted: Wanted) -> bool:
    """Tell whether this machine has the image and an Apptainer that packs and mounts a SIF."""
    try:
        has_image = find(wanted.local, wanted.image.id) is not None
    except UnusableError:
        return False
    return has_image and environment("singularity").check(wanted.local).is_usable


def _fetch(wanted: Wanted, path: Path, transport: Transport, made: Sif) -> str:
    """Fetch what another host made; return its hash."""
    said = shell(transport, 'wc -c <"$1"', made.path).stdout.strip()
    size_bytes = int(said) if said.isdecimal() else 0
    begin(wanted.progress, f"fetching the SIF, {size_bytes / 1e6:.0f} MB, from {transport.name}")
    make_folder(wanted.local, str(path.parent))
    with moving(wanted.progress, path.name, size_bytes) as told:
        transport.get(made.path, path, sha256=made.sha256, told=told)
    shell(wanted.local, _NOTE, str(path), made.sha256)
    return made.sha256


def _send(transport: Transport, found: Sif, target: str, *, progress: Progress) -> None:
    source = Path(found.path)
    size_bytes = source.stat().st_size
    begin(progress, f"sending {source.name}, {size_bytes / 1e6:.0f} MB, to {transport.name}")
    with moving(progress, source.name, size_bytes) as told:
        put(transport, source, target, sha256=found.sha256, told=told)
    shell(transport, _NOTE, target, found.sha256)
