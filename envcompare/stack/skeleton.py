"""The empty root of a container that shows the host's own files: mount points and links alone."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass
from pathlib import PurePosixPath

from envcompare.command import Command
from envcompare.stack import Mount
from envcompare.stack.cache import host_cache
from envcompare.stack.diagnosis import failure
from envcompare.stack.engine import ImageStore, mount_options
from envcompare.stack.wheelhouse import LOCK_LABEL
from envcompare.transport import Transport, operations
from envcompare.transport.operations import CONTENT_S, run, shell

REPOSITORY = "envcompare-skeleton"
_FOLDERS = ("dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "sys", "usr", "var")
_OPEN_FOLDERS = ("tmp", "var/tmp")
_FILES = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": b"127.0.0.1 localhost\n",
    "etc/resolv.conf": b"",
}
# An engine gives its ID back, so that a second call makes nothing.
_IMPORT = r"""
"$1" image inspect --format '{{.Id}}' "$2" 2>/dev/null || "$1" import --change "LABEL $3" - "$2"
"""
_UNPACK = r"""
[ -d "$1" ] && exit 0
umask 022
mkdir -p "$1.partial" && tar -xof - -C "$1.partial" && mv "$1.partial" "$1"
"""
# The folders that programs of the host live on, and where those that are links point.
_PROGRAMS = r"""
for path in /usr /bin /sbin /lib*; do
    if [ -L "$path" ]; then printf '%s %s\n' "$path" "$(readlink "$path")"
    elif [ -d "$path" ]; then printf '%s\n' "$path"; fi
done
"""
_GIVE_BACK_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What is shown of a host: links as they are there, folders and files bound at their paths."""

    links: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Return the binds, all of them read-only."""
        return tuple(Mount(path=path) for path in (*self.folders, *self.files))


def archive(layout: Layout) -> bytes:
    """Return the root as a tar archive; the same layout gives the same bytes."""
    files = {**_FILES, **{path.lstrip("/"): b"" for path in layout.files}}
    links = {path.lstrip("/"): target for path, target in layout.links}
    named = (*_FOLDERS, *_OPEN_FOLDERS, *(path.lstrip("/") for path in layout.folders))
    paths = {*named, *_parents((*named, *files, *links))}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(paths):
            member = _member(path, tarfile.DIRTYPE)
            member.mode = 0o1777 if path in _OPEN_FOLDERS else 0o755
            tar.addfile(member)
        for path, content in sorted(files.items()):
            member = _member(path, tarfile.REGTYPE)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for path, target in sorted(links.items()):
            member = _member(path, tarfile.SYMTYPE)
            member.linkname = target
            tar.addfile(member)
    return packed.getvalue()


def make_image(store: ImageStore, layout: Layout) -> str:
    """Return the ID of the skeleton in the host's engine; imported there when it is not."""
    packed = archive(layout)
    words = (store.engine.program, f"{REPOSITORY}:{_key(packed)}", f"{LOCK_LABEL}=skeleton")
    command = Command(argv=("sh", "-c", _IMPORT, "sh", *words))
    result = run(store.transport, command, stdin=packed, timeout_s=CONTENT_S)
    if not result.succeeded:
        hint, what = "envcompare doctor says more", "importing the skeleton"
        raise failure(store.transport, what, result.stderr, hint=hint)
    return result.stdout.strip()


def make_folder(transport: Transport, layout: Layout) -> str:
    """Return the skeleton as a folder of the host's cache; unpacked there when it is not."""
    packed = archive(layout)
    base = host_cache(transport)
    operations.make_folder(transport, base)
    folder = f"{base}/skeleton-{_key(packed)}"
    command = Command(argv=("sh", "-c", _UNPACK, "sh", folder))
    result = run(transport, command, stdin=packed, timeout_s=CONTENT_S)
    if not result.succeeded:
        raise failure(transport, "unpacking the skeleton", result.stderr, hint="check the disk")
    return folder


def give_back(store: ImageStore, folder: str, *, owner: str) -> None:
    """Make `owner` the owner of all in a folder, by root in a container without an arm's program.

    It is the host's own `chown`, with the right to do that alone, which sees nothing but the host's
    programs and the folder. What it cannot change is told by whoever removes the folder.
    """
    lines = shell(store.transport, _PROGRAMS).stdout.splitlines()
    paths = tuple((path, target) for path, _, target in (line.partition(" ") for line in lines))
    layout = Layout(
        links=tuple((path, target) for path, target in paths if target),
        folders=tuple(path for path, target in paths if not target),
    )
    root = make_image(store, layout)
    words = (
        *("run", "--rm", "--pull", "never", "--network", "none", "--log-driver", "none"),
        *("--user", "0:0", "--cap-drop", "ALL"),
        *("--cap-add", "CHOWN", "--cap-add", "DAC_READ_SEARCH"),
        *("--security-opt", "no-new-privileges", "--read-only"),
        *mount_options(layout.mounts, folder),
        *("--entrypoint", "", root, "/bin/chown", "-hR", "--", owner, folder),
    )
    store.run(*words, timeout_s=_GIVE_BACK_S)


def _key(packed: bytes) -> str:
    return hashlib.sha256(packed).hexdigest()[:16]


def _parents(paths: tuple[str, ...]) -> set[str]:
    parents = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    return parents - {"."}


def _member(path: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.type = kind
    return member
