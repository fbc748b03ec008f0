"""The empty root of a container that shows the host's own files: mount points and links alone."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass
from pathlib import PurePosixPath

from envcompare.command import Command
from envcompare.environments import Isolation, Mount
from envcompare.environments.mounts import all_binds
from envcompare.stack.cache import LOCK_LABEL, failure, host_cache
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
docker image inspect --format '{{.Id}}' "$1" 2>/dev/null || docker import --change "LABEL $2" - "$1"
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


def make_image(transport: Transport, layout: Layout) -> str:
    """Return the ID of the skeleton in the host's engine; imported there when it is not."""
    packed = archive(layout)
    words = (f"{REPOSITORY}:{_key(packed)}", f"{LOCK_LABEL}=skeleton")
    command = Command(argv=("sh", "-c", _IMPORT, "sh", *words))
    result = run(transport, command, stdin=packed, timeout_s=CONTENT_S)
    if not result.succeeded:
        raise failure(
            transport, "importing the skeleton", result.stderr, hint="envcompare doctor says more"
        )
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
        raise failure(
            transport, "unpacking the skeleton", result.stderr, hint="see what the disk says"
        )
    return folder


def give_back(transport: Transport, folder: str, *, owner: str) -> None:
    """Make `owner` the owner of all in a folder, by root in a container without an arm's program.

    It is the host's own `chown`, with the right to do that alone, which sees nothing but the host's
    programs and the folder. What it cannot change is told by whoever removes the folder.
    """
    said = (line.partition(" ") for line in shell(transport, _PROGRAMS).stdout.splitlines())
    found = tuple((path, target) for path, _, target in said)
    layout = Layout(
        links=tuple(one for one in found if one[1]),
        folders=tuple(path for path, target in found if not target),
    )
    root = make_image(transport, layout)
    shown = Isolation(run_id="", arm="", mounts=layout.mounts, scratch=folder)
    argv = (
        *("docker", "run", "--rm", "--pull", "never", "--network", "none", "--log-driver", "none"),
        *("--user", "0:0", "--cap-drop", "ALL"),
        *("--cap-add", "CHOWN", "--cap-add", "DAC_READ_SEARCH"),
        *("--security-opt", "no-new-privileges", "--read-only", *all_binds(shown)),
        *("--entrypoint", "", root, "/bin/chown", "-hR", "--", owner, folder),
    )
    run(transport, Command(argv=argv), timeout_s=_GIVE_BACK_S)


def _key(packed: bytes) -> str:
    return hashlib.sha256(packed).hexdigest()[:16]


def _parents(paths: tuple[str, ...]) -> set[str]:
    parents = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    return parents - {"."}


def _member(path: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.type = kind
    return member
