"""The files in which the images of two lines differ, and images that get some of them."""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import shutil
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, Protocol

from envcompare.environments.line import KEEP_OWNERS, KEEP_SETTINGS
from envcompare.environments.oci import RUN_LABEL
from envcompare.errors import CommandTimeoutError, StackError, plain
from envcompare.proof.levers import START, Change, Edit
from envcompare.stack.image import HELD_LABEL
from envcompare.text import Command, shortened, visible, visible_line
from envcompare.transport import CONTENT_S, LOCAL, run

FILES: Final = "image.files"
_MOST_PARTS: Final = 4
_MOST_NAMED: Final = 3
_ANSWER_S: Final = 60.0
# In place of the path of a file: the entrypoint and command of the fast line's image.
ENTRYPOINT: Final = "/ENTRYPOINT/"
# What the engine puts into each container itself.
_OF_ENGINE: Final = re.compile(
    r"(?:proc|sys|dev|\.dockerenv|run/\.containerenv|etc/(?:hosts|hostname|resolv\.conf|mtab))(?:/|$)"
)
# Options of `run` for a program of an image that changes files, and needs nothing else.
CONFINED: Final = (
    *("--network", "none", "--security-opt", "no-new-privileges"),
    *("--cap-drop", "ALL", "--cap-add", "DAC_OVERRIDE", "--cap-add", "FOWNER"),
)
# Settings of an image besides its variables, which are changed one by one.
_SETTINGS: Final = ("Entrypoint", "Cmd", "Volumes", "User", "WorkingDir", "Healthcheck")
# Byte code holds the time of its source, so that both are copied together (importlib, PEP 552).
_BYTE_CODE: Final = re.compile(r"__pycache__/([^/.]+)\.[^/]+\.pyc$")

_Entry = tuple[bytes, int, int, int, str]  # type, mode, user, group, and what it holds


class FilesOfImages(Protocol):
    """Files in which the images of two lines differ, and images that get some of them."""

    @property
    def paths(self) -> tuple[str, ...] | None:
        """Return the absolute paths that differ, in order; None if they were not yet read."""

    def read(self, *, limit_s: float) -> tuple[str, ...]:
        """Return the absolute paths that differ in content, rights or owner, in order.

        A folder with differing files is left out. Raises CommandTimeoutError if reading the images
        takes longer, and StackError if they cannot be compared.
        """

    def change(self, paths: Sequence[str]) -> Change:
        """Return the change that makes these files as they are in the fast line's image."""

    def image_with(self, paths: Sequence[str], *, limit_s: float) -> str:
        """Make an image from the slow line's, with these files of the fast one's.

        Return what a line calls it. Raises StackError if it fails, and CommandTimeoutError.
        """

    def forget(self) -> None:
        """Remove images that take room, since their trials are measured."""

    def differ_in_files_alone(self) -> bool:
        """Return whether settings and variables of both images are equal."""

    def settings_that_differ(self) -> str:
        """Return what the images set differently, besides variables; empty if nothing."""


@dataclass(frozen=True, slots=True)
class Differing:
    """The absolute paths in which two images differ."""

    paths: tuple[str, ...] = ()
    removed: frozenset[str] = frozenset()  # only the slow line's image has them
    folders: Counter[str] = field(default_factory=Counter)  # that it alone has: their files

    @classmethod
    def of(cls, names: Collection[str], fast: Collection[str]) -> Differing:
        """Return it for names without the leading slash, of which the fast image has some."""
        removed = frozenset(f"/{name}" for name in names if name not in fast)
        above = (parent for path in removed for parent in _above(path) if parent[1:] not in fast)
        return cls(tuple(sorted(f"/{name}" for name in names)), removed, Counter(above))

    def split(self, paths: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return what is taken from the fast image, and what is removed.

        In place of all paths of a removed folder comes the folder itself.
        """
        every = list(paths)
        left = [path for path in every if path in self.removed]
        held = Counter(parent for path in left for parent in _above(path))
        full = {parent for parent, count in held.items() if self.folders[parent] == count}
        roots = (next((each for each in _above(path) if each in full), path) for path in left)
        taken = [path for path in every if path not in self.removed]
        return taken, list(dict.fromkeys(roots))


def leaves_of(differing: set[str]) -> set[str]:
    """Return differing names without the folders that hold others of them."""
    return differing - {parent for name in differing for parent in _above(name)}


@dataclass(slots=True, kw_only=True)
class ImageFiles:
    """Makes images from the slow line's, with files of the fast line's.

    They have no name. They carry the label of the run, with which they are removed, and that of
    images with data, which `envcompare clean` removes.
    """

    client: tuple[str, ...]
    fast: str  # the images
    slow: str
    run_id: str
    folder: Path  # for the files in which they differ
    paths: tuple[str, ...] | None = None
    _scripts: tuple[str, ...] = ()  # of the fast line's entrypoint, in which they differ
    _differing: Differing = field(default_factory=Differing)
    _settings: list[dict[str, Any]] = field(default_factory=list)

    def read(self, *, limit_s: float) -> tuple[str, ...]:
        """Return the paths that differ, as FilesOfImages says.

        Where entrypoints differ, one path stands for them and their programs, since an image does
        not start without its own.
        """
        if self.paths is not None:
            return self.paths
        until_s = time.monotonic() + limit_s
        try:
            self.paths = self._read(until_s)
        except (OSError, ValueError, tarfile.TarError) as error:
            if time.monotonic() >= until_s:
                raise CommandTimeoutError("reading the images takes too long") from error
            raise StackError(
                "the images cannot be compared", details=plain(error, has_file=True)
            ) from error
        return self.paths

    def _read(self, until_s: float) -> tuple[str, ...]:
        slow, _ = self._entries(self.slow, until_s)
        fast, sizes = self._entries(self.fast, until_s)
        volumes = tuple(
            f"{path.strip('/')}/"
            for setting in self.settings()
            for path in setting.get("Volumes") or ()
        )
        differing = {
            name
            for name in slow.keys() | fast.keys()
            if slow.get(name) != fast.get(name) and not f"{name}/".startswith(volumes)
        }
        differing |= {one for one in map(_source_of, differing) if one in fast and one in slow}
        size = sum(sizes.get(name, 0) for name in differing)
        amount = f"{size / (1 << 30):.1f} GiB of files"
        if size > 4 << 30:
            raise StackError(
                f"the images differ in {amount}, and envcompare divides at most 4 GiB",
                hint="compare images that have more in common",
            )
        if 2 * size > shutil.disk_usage(self.folder).free:
            raise StackError(
                f"the images differ in {amount}, for which there is no room",
                hint=f"make twice as much room in {self.folder.parent}",
            )
        with tarfile.open(self._kept, "w") as kept:
            _copy(self._members(self.fast, until_s), kept, differing)
        leaves = leaves_of(differing)
        starts = [setting.get("Entrypoint") or [] for setting in self.settings()]
        programs: set[str] = set()
        if starts[0] != starts[1]:
            words = {word.strip("/") for words in starts for word in words}
            programs = {name for name in leaves if _is_program(name, words)}
            self._scripts = tuple(sorted(f"/{name}" for name in programs if name in fast))
        self._differing = Differing.of(leaves - programs, fast)
        return (*[ENTRYPOINT] * (starts[0] != starts[1]), *self._differing.paths)

    def settings(self) -> list[dict[str, Any]]:
        """Return the settings of the slow line's image, and of the fast one's."""
        if not self._settings:
            words = ("image", "inspect", "--format", "{{json .Config}}", self.slow, self.fast)
            # `splitlines` would also split a label
            answers = [each for each in self._ask(*words).split("\n") if each]
            settings: list[dict[str, Any]] = [json.loads(each) for each in answers]
            # The name becomes a part of an instruction of `commit`.
            if not all(re.fullmatch(r"[\w.:-]*", each.get("User") or "") for each in settings):
                raise StackError("the user of an image is not a name")
            self._settings = settings
        return self._settings

    def differ_in_files_alone(self) -> bool:
        """Return whether settings and variables of both images are equal."""
        return not self._changed((*_SETTINGS, "Env"))

    def settings_that_differ(self) -> str:
        """Return what the images set differently, besides variables; empty if nothing."""
        return "; ".join(self._changed(_SETTINGS))

    def _changed(self, keys: Iterable[str], *, write: Callable[[str], str] = str) -> list[str]:
        """Return these settings, as `write` writes their names, with both values if they differ."""
        pairs = {key: [setting.get(key) or None for setting in self.settings()] for key in keys}
        return [
            f"{write(key)} {_shown(slow)} → {_shown(fast)}"
            for key, (slow, fast) in pairs.items()
            if slow != fast
        ]

    def change(self, paths: Sequence[str]) -> Change:
        """Return the change that makes these files as they are in the fast line's image."""
        taken, removed = self._differing.split(path for path in paths if path != ENTRYPOINT)
        what = described(taken, removed, self.fast)
        if ENTRYPOINT in paths:
            starts = self._changed(("Entrypoint", "Cmd"), write=str.upper)
            what[:0] = map(visible, starts)
            taken = [*self._scripts, *taken]
        fixes = [self._copying(taken)] * bool(taken)
        if len(removed) > _MOST_NAMED:
            fixes.append(f"remove {named_of(removed)}")
        elif removed:
            fixes.append(visible_line(f"RUN {shlex.join(['rm', '-r', *removed])}"))
        if ENTRYPOINT in paths:
            named = self._starting(paths)[: 1 + bool(self.settings()[1].get("Cmd"))]
            fixes += [visible(one) for one in named]
        return Change(
            key=START if list(paths) == [ENTRYPOINT] else FILES,
            what=", ".join(what),
            edit=Edit(files=tuple(paths)),
            fix=visible(f"in the Dockerfile of {self.slow}: ") + "; ".join(fixes),
        )

    def _copying(self, paths: Sequence[str]) -> str:
        """Return the instructions that copy paths, or of many what to copy."""
        # COPY would expand these characters.
        has_pattern = re.search(r"[$*?\[\\]", "".join(paths))
        if len(paths) > _MOST_NAMED or has_pattern:
            return f"copy {named_of(paths)} from {visible(self.fast)}"
        each = (f"COPY --from={self.fast} {json.dumps([path, path])}" for path in paths)
        return visible_line("; ".join(each))

    def forget(self) -> None:
        """Keep the images to the end: they share their layers."""

    def image_with(self, paths: Sequence[str], *, limit_s: float) -> str:
        """Make an image as FilesOfImages says; return its ID."""
        taken, removed = self._differing.split(path for path in paths if path != ENTRYPOINT)
        scripts = self._scripts if ENTRYPOINT in paths else ()
        names = {path[1:] for path in (*taken, *scripts)}
        names |= {parent for name in names for parent in _above(name)}
        created = (self.slow, *["true"] * (not self._entrypoint))
        if removed:
            start = ("--entrypoint", "rm", self.slow) if self._entrypoint else (self.slow, "rm")
            created = (*CONFINED, "--user", "0", *start, "-rf", "--", *removed)
        with self._container(*created) as container:
            if removed:
                self._ask("start", "--attach", container, limit_s=limit_s)
                self._require_removal(container, frozenset(removed))
            if names:
                copied = ("cp", *KEEP_OWNERS.get(self.client[-1], ()), "-", f"{container}:/")
                self._ask(*copied, limit_s=limit_s, feed=partial(self._pack, names))
            made = self._commit(container, paths, limit_s)
        if self._entrypoint and not self._programs(paths)[0]:
            # an instruction cannot take away what the container was created with
            with self._container("--entrypoint", "", made, "true") as container:
                made = self._commit(container, paths, limit_s)
        self._require_settings(made, paths)
        return made

    def _commit(self, container: str, paths: Sequence[str], limit_s: float) -> str:
        form = KEEP_SETTINGS.get(self.client[-1], ())
        words = ("commit", *form, *self._instructions(paths), container)
        made = self._ask(*words, limit_s=limit_s)
        return made.split()[-1].removeprefix("sha256:")[:12]  # as engines print an ID

    def _require_removal(self, container: str, paths: frozenset[str]) -> None:
        """Raise StackError if a container has changed more: its `rm` is that of the image."""
        above = {parent for path in paths for parent in _above(path)}
        # The engine changes these folders itself.
        above |= {"/dev", "/etc", "/proc", "/run", "/sys"}
        for line in self._ask("diff", container).splitlines():
            kind, _, path = line.partition(" ")
            is_removed = kind == "D" and not {path, *_above(path)}.isdisjoint(paths)
            if not (is_removed or (kind == "C" and path in above)):
                raise StackError(f"rm in {self.slow} does more than remove", details=line)

    @property
    def _entrypoint(self) -> list[str]:
        return self.settings()[0].get("Entrypoint") or []

    def _starting(self, paths: Sequence[str]) -> list[str]:
        words = zip(("ENTRYPOINT", "CMD"), self._programs(paths), strict=True)
        return [f"{name} {json.dumps(one)}" for name, one in words]

    def _programs(self, paths: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the entrypoint and command of an image; without any, each line gives its own."""
        own = self.settings()[ENTRYPOINT in paths]
        entrypoint = own.get("Entrypoint") or []
        return entrypoint, own.get("Cmd") or ["true"] * (not entrypoint)

    def _require_settings(self, name: str, paths: Sequence[str]) -> None:
        """Raise StackError if an image starts another program than it should: it may be `rm`.

        `commit` keeps what the container was created with where an instruction sets nothing.
        """
        made = json.loads(self._ask("image", "inspect", "--format", "{{json .Config}}", name))
        programs = (made.get("Entrypoint") or [], made.get("Cmd") or [])
        if programs != self._programs(paths):
            raise StackError(
                f"{' '.join(self.client)} commit does not keep the program of {self.slow}",
                details=f"it made {programs}",
            )

    @property
    def _kept(self) -> Path:
        return self.folder / "files.tar"

    def _instructions(self, paths: Sequence[str]) -> list[str]:
        """Return the options of `commit` that keep the settings of the slow line's image."""
        has_entrypoint = bool(self._programs(paths)[0])
        instructions = (
            *self._starting(paths)[not has_entrypoint :],
            f"USER {self.settings()[0].get('User') or 0}",
            # podman takes one label in each instruction.
            f"LABEL {RUN_LABEL}={self.run_id}",
            f"LABEL {HELD_LABEL}",
        )
        return [word for instruction in instructions for word in ("--change", instruction)]

    def _pack(self, names: set[str], stream: BinaryIO) -> None:
        with (
            tarfile.open(self._kept) as kept,
            tarfile.open(fileobj=stream, mode="w|") as chosen,
        ):
            sources = {member.name: member for member in kept}
            taken = (member for member in kept if member.name.strip("/") in names)
            _copy(((_unlinked(member, sources, names), kept) for member in taken), chosen, names)

    def _entries(self, image: str, until_s: float) -> tuple[dict[str, _Entry], dict[str, int]]:
        """Return what an image holds by the path, without its root, and sizes in bytes."""
        entries: dict[str, _Entry] = {}
        sizes: dict[str, int] = {}
        for member, archive in self._members(image, until_s):
            holds = member.linkname
            # A hard link has the content of the file that it names, which comes first in an
            # archive.
            if member.islnk():
                holds = entries[member.linkname][-1] if member.linkname in entries else holds
            elif member.isreg():
                content = archive.extractfile(member)
                holds = "" if content is None else digest_of(content)
            kind = tarfile.REGTYPE if member.islnk() else member.type
            name = member.name.strip("/")
            entries[name] = (kind, member.mode, member.uid, member.gid, holds)
            sizes[name] = member.size
        return entries, sizes

    def _members(
        self, image: str, until_s: float
    ) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
        """Yield what a container of the image holds before it starts."""
        words = ["true"] * (image != self.slow or not self._entrypoint)
        with self._container(image, *words) as container:
            process = LOCAL.spawn(Command(argv=(*self.client, "export", container)))
            # Reading an archive has no time limit, so the engine's client is killed in time.
            timer = threading.Timer(max(0.0, until_s - time.monotonic()), process.kill)
            timer.start()
            try:
                with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                    for member in archive:
                        # some engines list the root too, which is no file to copy
                        is_root = not member.name.strip("./")
                        if not (is_root or _OF_ENGINE.match(member.name.strip("/"))):
                            yield member, archive
                code = process.wait(_ANSWER_S)
            except (ValueError, tarfile.TarError) as error:
                # A name that cannot be decoded raises ValueError.
                code, broken = 1, str(error)
            else:
                broken = "the engine ended early"
            finally:
                timer.cancel()
                process.kill()
        if time.monotonic() >= until_s:
            raise CommandTimeoutError(f"reading {image} takes too long")
        if code:
            raise StackError(f"{image} cannot be read", details=broken)

    @contextmanager
    def _container(self, *words: str) -> Iterator[str]:
        """Create a container, which is not started, and remove it at the end."""
        label = f"{RUN_LABEL}={self.run_id}"
        container = self._ask("create", "--label", label, *words).strip()
        try:
            yield container
        finally:
            # `create` makes anonymous volumes, which `rm` keeps without --volumes.
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

    Files whose names begin alike stay together, such as libz.so.1 and libz.so.1.3, a package and
    its metadata, or a module and its byte code.
    """
    owners = {path: _source_of(path) or path for path in paths}
    common = os.path.commonpath(list(owners.values()))
    below = {path: owner[len(common) :].lstrip("/") for path, owner in owners.items()}
    names = {path: each.partition("/")[0] for path, each in below.items()}
    stems = {
        path: stem[0] for path, name in names.items() if (stem := re.match(r"\.?[^.-]*", name))
    }
    has_folders = any("/" in each for each in below.values())
    keys = names if len(set(stems.values())) == 1 and has_folders else stems
    by_key: dict[str, list[str]] = {}
    for path in sorted(paths, key=lambda path: (keys[path], path)):
        by_key.setdefault(keys[path], []).append(path)
    parts: list[list[str]] = []
    most = 0 if len(by_key) <= _MOST_PARTS else len(paths) / _MOST_PARTS
    for each in by_key.values():
        if not parts or len(parts[-1]) + len(each) > most:
            parts.append([])
        parts[-1] += each
    while len(parts) > _MOST_PARTS:  # join the two smallest neighbours
        at = min(range(len(parts) - 1), key=lambda n: len(parts[n]) + len(parts[n + 1]))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [tuple(each) for each in parts] if len(parts) > 1 else []


def digest_of(content: IO[bytes]) -> str:
    """Return a digest of what a file holds."""
    digest = blake2b(digest_size=16)
    while chunk := content.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def _source_of(path: str) -> str:
    """Return the source of byte code; empty for any other file."""
    name, count = _BYTE_CODE.subn(r"\1.py", path)
    return name if count else ""


def _above(path: str) -> list[str]:
    """Return the folders that hold a path, the outermost first, without the root."""
    parts = path.split("/")
    return [each for n in range(1, len(parts)) if (each := "/".join(parts[:n]))]


def _unlinked(
    member: tarfile.TarInfo, sources: Mapping[str, tarfile.TarInfo], names: set[str]
) -> tarfile.TarInfo:
    """Return a hard link as a file if what it links to is not copied with it."""
    target = member.linkname.strip("/")
    if not member.islnk() or target in names:
        return member
    source = sources.get(member.linkname)
    if source is None:  # the file is equal in both images
        return member
    own = copy.copy(member)
    own.type, own.linkname, own.size = tarfile.REGTYPE, "", source.size
    own.offset_data = source.offset_data
    return own


def _copy(
    members: Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]],
    target: tarfile.TarFile,
    names: set[str],
) -> None:
    for member, archive in members:
        if member.name.strip("/") in names:
            target.addfile(member, archive.extractfile(member) if member.isreg() else None)


def described(taken: Sequence[str], removed: Sequence[str], image: str) -> list[str]:
    """Return what is done with paths."""
    what = [f"{named_of(taken)} as in {visible(image)}"] * bool(taken)
    return what + [f"{named_of(removed)} removed"] * bool(removed)


def _is_program(name: str, words: set[str]) -> bool:
    """Return whether a file is started by one of these words, which may lack their folder.

    In many images /bin is a link to /usr/bin.
    """
    folder, _, program = name.rpartition("/")
    is_found = folder.endswith("bin") and program in words
    return is_found or name in words or name.removeprefix("usr/") in words


def named_of(paths: Sequence[str]) -> str:
    """Return the paths, or of many the folder that holds them."""
    if len(paths) <= _MOST_NAMED:
        return visible_line(" ".join(paths))
    return visible_line(f"{os.path.commonpath(paths)} ({len(paths)} files)")


def _shown(value: object) -> str:
    return "none" if value is None else shortened(json.dumps(value), most=60)
