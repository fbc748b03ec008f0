"""The files in which the images of two lines differ, and images that get some of them."""

from __future__ import annotations

import json
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from envcompare.environments.oci import RUN_LABEL
from envcompare.errors import CommandTimeoutError, StackError
from envcompare.proof.levers import Change, Edit
from envcompare.text import Command
from envcompare.transport import CONTENT_S, LOCAL, run

FILES: Final = "image.files"
_MOST_PARTS: Final = 4
_MOST_BYTES: Final = 4 << 30  # of files in which images differ
_MOST_NAMED: Final = 3
_ANSWER_S: Final = 60.0
_CHUNK: Final = 1 << 20
# What the engine puts into each container itself.
_OF_ENGINE: Final = re.compile(
    r"(?:proc|sys|dev|\.dockerenv|run/\.containerenv|etc/(?:hosts|hostname|resolv\.conf|mtab))(?:/|$)"
)
# Settings of an image besides its variables, which are changed one by one.
_SETTINGS: Final = ("Entrypoint", "Cmd", "Volumes", "User", "WorkingDir", "Healthcheck")
_STEM: Final = re.compile(r"\.?[^.-]*")

Entry = tuple[bytes, int, int, int, str]  # type, mode, user, group, and what it holds


@dataclass(slots=True, kw_only=True)
class ImageFiles:
    """Makes images from the slow line's, with files of the fast line's.

    They carry the label of the run, with which they are removed.
    """

    client: tuple[str, ...]
    fast: str  # the images
    slow: str
    run_id: str
    folder: Path  # for the files in which they differ
    paths: tuple[str, ...] | None = None  # absolute, in which they differ; None: not yet read
    _removed: frozenset[str] = frozenset()  # only the slow line's image has them
    _count: int = 0
    _settings: list[dict[str, Any]] = field(default_factory=list)

    def read(self, *, limit_s: float) -> tuple[str, ...]:
        """Return the absolute paths that differ in content, rights or owner, in order.

        Raises CommandTimeoutError if reading the images takes longer, StackError if they differ in
        too much, and UnusableError if the engine fails.
        """
        until_s = time.monotonic() + limit_s
        slow, _ = self._entries(self.slow, until_s)
        fast, sizes = self._entries(self.fast, until_s)
        volumes = tuple(
            f"{path.strip('/')}/" for one in self.settings() for path in one.get("Volumes") or ()
        )
        differing = {
            name
            for name in slow.keys() | fast.keys()
            if slow.get(name) != fast.get(name) and not f"{name}/".startswith(volumes)
        }
        self._removed = frozenset(f"/{name}" for name in differing if name not in fast)
        size = sum(sizes.get(name, 0) for name in differing)
        if size > _MOST_BYTES:
            raise StackError(
                f"the images differ in more than {_MOST_BYTES >> 30} GiB of files",
                hint="compare images that have more in common",
            )
        with tarfile.open(self._kept, "w") as kept:
            _copy(self._members(self.fast, until_s), kept, differing)
        self.paths = tuple(sorted(f"/{name}" for name in differing))
        return self.paths

    def settings(self) -> list[dict[str, Any]]:
        """Return the settings of the slow line's image, and of the fast one's."""
        if not self._settings:
            words = ("image", "inspect", "--format", "{{json .Config}}", self.slow, self.fast)
            self._settings = [json.loads(each) for each in self._ask(*words).splitlines()]
        return self._settings

    def settings_that_differ(self) -> str:
        """Return what the images set differently, besides variables; empty if nothing."""
        slow, fast = ({key: one.get(key) or None for key in _SETTINGS} for one in self.settings())
        return "; ".join(
            f"{key} {_shown(slow[key])} → {_shown(fast[key])}"
            for key in _SETTINGS
            if slow[key] != fast[key]
        )

    def change(self, paths: Sequence[str]) -> Change:
        """Return the change that makes these files as they are in the fast line's image."""
        removed = [path for path in paths if path in self._removed]
        taken = [path for path in paths if path not in self._removed]
        what, fixes = [], []
        if taken:
            what.append(f"{_named(taken)} as in {self.fast}")
            fixes.append(f"COPY --from={self.fast} {_named(taken)}")
        if removed:
            what.append(f"{_named(removed)} removed")
            fixes.append(f"RUN rm -r {_named(removed)}")
        return Change(
            key=FILES,
            what=", ".join(what),
            edit=Edit(files=tuple(paths)),
            fix=f"in the Dockerfile of {self.slow}: {'; '.join(fixes)}",
        )

    def image_with(self, paths: Sequence[str], *, limit_s: float) -> str:
        """Make an image from the slow line's, with these files of the fast one's; return its name.

        Raises UnusableError if the engine fails, and CommandTimeoutError.
        """
        removed = [path for path in paths if path in self._removed]
        whole = [path for path in removed if path.rpartition("/")[0] not in self._removed]
        names = {path.lstrip("/") for path in paths if path not in self._removed}
        self._count += 1
        name = f"envcompare-trial:{self.run_id.lower()}-{self._count}"
        with self._container(*self._removing(whole)) as one:
            if whole:
                self._ask("start", "--attach", one, limit_s=limit_s)
            if names:
                self._ask("cp", "-", f"{one}:/", limit_s=limit_s, feed=partial(self._pack, names))
            self._ask("commit", *self._instructions(), one, name, limit_s=limit_s)
        self._require_settings(name)
        return name

    def _removing(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return the words of `create` for a container that removes these paths, if any."""
        if not paths:
            return (self.slow, "true")
        start = ("--entrypoint", "rm", self.slow) if self._entrypoint else (self.slow, "rm")
        return ("--user", "0", *start, "-rf", "--", *paths)

    @property
    def _entrypoint(self) -> list[str]:
        return self.settings()[0].get("Entrypoint") or []

    @property
    def _command(self) -> list[str]:
        """Return the command of the slow image; without one, each line gives its own."""
        return self.settings()[0].get("Cmd") or ["true"]

    def _require_settings(self, name: str) -> None:
        """Raise StackError if an image starts another program than the slow line's: it may be `rm`.

        `commit` keeps what the container was created with where an instruction sets nothing.
        """
        made = json.loads(self._ask("image", "inspect", "--format", "{{json .Config}}", name))
        found = (made.get("Entrypoint") or [], made.get("Cmd"))
        if found != (self._entrypoint, self._command):
            raise StackError(
                f"{' '.join(self.client)} commit does not keep the program of {self.slow}",
                details=f"it made {found}",
            )

    @property
    def _kept(self) -> Path:
        return self.folder / "files.tar"

    def _instructions(self) -> list[str]:
        """Return the options of `commit` that keep the settings of the slow line's image."""
        instructions = (
            *([f"ENTRYPOINT {json.dumps(self._entrypoint)}"] if self._entrypoint else []),
            f"CMD {json.dumps(self._command)}",
            f"USER {self.settings()[0].get('User') or 0}",
            f"LABEL {RUN_LABEL}={self.run_id}",
        )
        return [word for one in instructions for word in ("--change", one)]

    def _pack(self, names: set[str], stream: BinaryIO) -> None:
        with (
            tarfile.open(self._kept) as kept,
            tarfile.open(fileobj=stream, mode="w|") as chosen,
        ):
            _copy(((member, kept) for member in kept), chosen, names)

    def _entries(self, image: str, until_s: float) -> tuple[dict[str, Entry], dict[str, int]]:
        """Return what an image holds by the path, without its root, and sizes in bytes."""
        entries: dict[str, Entry] = {}
        sizes: dict[str, int] = {}
        for member, archive in self._members(image, until_s):
            holds = member.linkname
            if member.islnk():  # the file that it names comes first
                holds = entries[member.linkname][-1] if member.linkname in entries else holds
            elif member.isreg():
                digest = blake2b(digest_size=16)
                content = archive.extractfile(member)
                while content is not None and (chunk := content.read(_CHUNK)):
                    digest.update(chunk)
                holds = digest.hexdigest()
            kind = tarfile.REGTYPE if member.islnk() else member.type
            name = member.name.strip("/")
            entries[name] = (kind, member.mode, member.uid, member.gid, holds)
            sizes[name] = member.size
        return entries, sizes

    def _members(
        self, image: str, until_s: float
    ) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
        """Yield what a container of the image holds before it starts."""
        with self._container(image, "true") as container:
            process = LOCAL.spawn(Command(argv=(*self.client, "export", container)))
            try:
                with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                    for member in archive:
                        if time.monotonic() > until_s:
                            raise CommandTimeoutError(f"reading {image} takes too long")
                        if not _OF_ENGINE.match(member.name.strip("/")):
                            yield member, archive
            except tarfile.TarError as error:
                raise StackError(f"{image} cannot be read", details=str(error)) from error
            finally:
                process.kill()

    @contextmanager
    def _container(self, *words: str) -> Iterator[str]:
        """Create a container, which is not started, and remove it at the end."""
        label = f"{RUN_LABEL}={self.run_id}"
        container = self._ask("create", "--label", label, *words).strip()
        try:
            yield container
        finally:
            self._ask("rm", "--force", "--volumes", container)

    def _ask(
        self,
        *words: str,
        limit_s: float = _ANSWER_S,
        feed: Callable[[BinaryIO], object] | bytes = b"",
    ) -> str:
        """Return what the engine answers; raises StackError if it fails."""
        command = Command(argv=(*self.client, *words))
        done = run(LOCAL, command, stdin=feed, timeout_s=min(max(limit_s, _ANSWER_S), CONTENT_S))
        if not done.succeeded:
            raise StackError(f"{' '.join(command.argv[:3])} failed: {done.tail(1)}")
        return done.stdout


def divided(paths: Sequence[str]) -> list[tuple[str, ...]]:
    """Return up to four parts of these paths; none if they belong together.

    Files whose names begin alike stay together, such as libz.so.1 and libz.so.1.3, or a package and
    its metadata.
    """
    common = os.path.commonpath(paths)
    below = [path[len(common) :].lstrip("/") for path in paths]
    names = [each.partition("/")[0] for each in below]
    stems = [cast("re.Match[str]", _STEM.match(name))[0] for name in names]
    are_folders = any("/" in each for each in below)
    keys = names if len(set(stems)) == 1 and are_folders else stems
    by_key: dict[str, list[str]] = {}
    for key, path in sorted(zip(keys, paths, strict=True)):
        by_key.setdefault(key, []).append(path)
    if len(by_key) == 1:
        return []
    if len(by_key) <= _MOST_PARTS:
        return [tuple(each) for each in by_key.values()]
    parts: list[list[str]] = [[]]
    for each in by_key.values():
        if len(parts[-1]) >= len(paths) / _MOST_PARTS and len(parts) < _MOST_PARTS:
            parts.append([])
        parts[-1] += each
    return [tuple(each) for each in parts]


def _copy(
    members: Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]],
    target: tarfile.TarFile,
    names: set[str],
) -> None:
    """Copy members with these names."""
    for member, archive in members:
        if member.name.strip("/") in names:
            target.addfile(member, archive.extractfile(member) if member.isreg() else None)


def _named(paths: Sequence[str]) -> str:
    """Return the paths, or of many the folder that holds them."""
    if len(paths) <= _MOST_NAMED:
        return " ".join(paths)
    return f"{os.path.commonpath(paths)} ({len(paths)} files)"


def _shown(value: object) -> str:
    return "none" if value is None else json.dumps(value)
