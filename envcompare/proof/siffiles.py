"""The files in which two SIFs differ, and SIFs that get some of them; needs no root."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from envcompare.errors import CommandTimeoutError, StackError, plain
from envcompare.proof.imagefiles import (
    FILES,
    Differing,
    described,
    digest_of,
    leaves_of,
    named_of,
)
from envcompare.proof.levers import Change, Edit
from envcompare.text import Command, visible
from envcompare.transport import LOCAL, run

_Entry = tuple[int, int, int, str]  # kind and mode, user, group, and what it holds


@dataclass(slots=True, kw_only=True)
class SifFiles:
    """Makes SIFs from the slow line's, with files of the fast line's, in its folder.

    Both are unpacked there. Folders and files of the copies get the rights of their user that
    reading and changing them needs.
    """

    program: str  # that runs SIFs
    names: tuple[str, str]  # what the lines call the images: fast, slow
    sifs: tuple[Path, Path]  # their files
    folder: Path
    paths: tuple[str, ...] | None = None
    _differing: Differing = field(default_factory=Differing)
    _made: list[Path] = field(default_factory=list)
    _count: int = 0

    def read(self, *, limit_s: float) -> tuple[str, ...]:
        """Return the paths that differ, as FilesOfImages says."""
        if self.paths is None:
            until_s = time.monotonic() + limit_s
            size = sum(path.stat().st_size for path in self.sifs)
            # for both images unpacked, a copy while a SIF is built, and the SIFs of a stage
            if shutil.disk_usage(self.folder).free < 8 * size:
                raise StackError(
                    f"there is no room to unpack images of {size / (1 << 30):.1f} GiB",
                    hint=f"make room in {self.folder}",
                )
            fast, slow = (self._unpacked(at, until_s) for at in (0, 1))
            names = {name for name in fast.keys() | slow.keys() if fast.get(name) != slow.get(name)}
            # these say how an image was made, which no program reads
            names -= {".singularity.d/labels.json", ".singularity.d/Singularity"}
            self._differing = Differing.of(leaves_of(names), fast)
            self.paths = self._differing.paths
        return self.paths

    def change(self, paths: Sequence[str]) -> Change:
        """Return the change that makes these files as they are in the fast line's image."""
        taken, removed = self._differing.split(paths)
        fixes = [f"take {named_of(taken)} from {visible(self.names[0])}"] * bool(taken)
        fixes += [f"remove {named_of(removed)}"] * bool(removed)
        return Change(
            key=FILES,
            what=", ".join(described(taken, removed, self.names[0])),
            edit=Edit(files=tuple(paths)),
            fix=visible(f"in the definition of {self.names[1]}: ") + "; ".join(fixes),
        )

    def differ_in_files_alone(self) -> bool:
        """Return that they do: the settings of a SIF are files."""
        return True

    def settings_that_differ(self) -> str:
        """Return nothing, since the settings of a SIF are files."""
        return ""

    def image_with(self, paths: Sequence[str], *, limit_s: float) -> str:
        """Make a SIF as FilesOfImages says; return its path as a word of the shell."""
        until_s = time.monotonic() + limit_s
        self._count += 1
        root = self.folder / f"tree-{self._count}"
        sif = root.with_suffix(".sif").absolute()
        try:
            # Hard links take no room; a changed file is written again, so that the unpacked image
            # stays as it is.
            self._call("cp", "--archive", "--link", str(self._tree(1)), str(root), until_s=until_s)
            taken, removed = self._differing.split(paths)
            ways = (*((path, True) for path in removed), *((path, False) for path in taken))
            for path, is_removed in ways:
                _require_time(until_s)
                self._replace(root, path[1:], is_removed=is_removed)
            self._made.append(sif)
            self._call(self.program, "build", str(sif), str(root), until_s=until_s)
        except OSError as error:
            raise StackError("a SIF cannot be made", details=plain(error, has_file=True)) from error
        finally:
            shutil.rmtree(root, ignore_errors=True)
        return shlex.quote(str(sif))

    def forget(self) -> None:
        """Remove the SIFs that were made."""
        for path in self._made:
            path.unlink(missing_ok=True)
        self._made.clear()

    def _replace(self, root: Path, name: str, *, is_removed: bool) -> None:
        """Make a path below a root as it is in the fast line's image, or remove it.

        No link is followed, since one in an image may lead out of it. A file is written again: the
        old one is also that of the unpacked image.
        """
        target, source = root / name, self._tree(0) / name
        for parent in reversed(Path(name).parents[:-1]):
            if (root / parent).is_symlink() or not (root / parent).is_dir():
                (root / parent).unlink(missing_ok=True)
                (root / parent).mkdir()
                _copy_rights(self._tree(0) / parent, root / parent)
        is_folder = target.is_dir() and not target.is_symlink()
        stays = is_folder and not is_removed and source.is_dir() and not source.is_symlink()
        if is_folder and not stays:
            shutil.rmtree(target)
        elif not is_folder:
            target.unlink(missing_ok=True)
        if is_removed:
            return
        kind = source.lstat().st_mode
        if stat.S_ISDIR(kind):
            target.mkdir(exist_ok=True)
        elif stat.S_ISLNK(kind) or stat.S_ISREG(kind):
            shutil.copyfile(source, target, follow_symlinks=False)
        else:
            # A pipe, a socket or a device holds nothing to copy.
            return
        _copy_rights(source, target)

    def _unpacked(self, at: int, until_s: float) -> dict[str, _Entry]:
        """Unpack an image, and return what it holds by the path, without its root."""
        tree = self._tree(at)
        sif = str(self.sifs[at].absolute())
        self._call(self.program, "build", "--sandbox", str(tree), sif, until_s=until_s)
        entries: dict[str, _Entry] = {}
        try:
            for path, status in opened(tree):
                _require_time(until_s)
                holds = ""
                if stat.S_ISLNK(status.st_mode):
                    holds = str(path.readlink())
                elif stat.S_ISREG(status.st_mode):
                    with path.open("rb") as file:
                        holds = digest_of(file)
                owner = status.st_uid, status.st_gid
                entries[str(path.relative_to(tree))] = (status.st_mode, *owner, holds)
        except OSError as error:
            raise StackError(
                "the images cannot be compared", details=plain(error, has_file=True)
            ) from error
        return entries

    def _tree(self, at: int) -> Path:
        return self.folder / ("fast", "slow")[at]

    def _call(self, *words: str, until_s: float) -> None:
        _require_time(until_s)
        # `read` has looked for room in this folder, and not in /tmp.
        place = str(self.folder.absolute())
        variables = (("APPTAINER_TMPDIR", place), ("SINGULARITY_TMPDIR", place))
        command = Command(argv=words, env=variables)
        done = run(LOCAL, command, timeout_s=until_s - time.monotonic())
        if not done.succeeded:
            raise StackError(f"{' '.join(words[:2])} failed: {done.tail(1)}")


def opened(tree: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield what is below a folder, with its status; let its user read and change all of it."""
    for folder, below, files in os.walk(tree):
        for name in (*below, *files):
            path = Path(folder, name)
            status = path.lstat()
            needed = {stat.S_IFDIR: stat.S_IRWXU, stat.S_IFREG: stat.S_IRUSR}
            missing = needed.get(stat.S_IFMT(status.st_mode), 0) & ~status.st_mode
            # A link needs no rights, and chmod would follow it.
            if missing:
                path.chmod(stat.S_IMODE(status.st_mode) | missing)
            yield path, status


def _copy_rights(source: Path, target: Path) -> None:
    """Give a path the owner, if this login may, and the rights and times of another one."""
    status = source.lstat()
    with suppress(PermissionError):
        os.lchown(target, status.st_uid, status.st_gid)
    # After the owner, since chown(2) may clear the setuid and setgid bits.
    shutil.copystat(source, target, follow_symlinks=False)


def _require_time(until_s: float) -> None:
    if time.monotonic() >= until_s:
        raise CommandTimeoutError("the time for the images is over")
