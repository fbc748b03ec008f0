"""The files in which two SIFs differ, and SIFs that get some of them; needs no root."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from envcompare.errors import StackError
from envcompare.proof.imagefiles import ImageFiles, digest_of, named_of
from envcompare.text import Command, visible
from envcompare.transport import LOCAL, run

# What says how an image was made, which no program reads.
_ABOUT: Final = (".singularity.d/labels.json", ".singularity.d/Singularity")
_TIMES_LARGER: Final = 8  # two images and a copy, unpacked, than both files
_Entry = tuple[int, int, int, str]  # kind and mode, user, group, and what it holds


@dataclass(slots=True, kw_only=True)
class SifFiles(ImageFiles):
    """Makes SIFs from the slow line's, with files of the fast line's, in its folder.

    Both are unpacked there; `fast` and `slow` are what the lines call them.
    """

    recipe: ClassVar[str] = "definition file"
    shell: ClassVar[str] = "%post "
    sifs: tuple[Path, Path]  # the files of `fast` and `slow`
    count: int = 0  # of the SIFs that were made

    def settings(self) -> list[dict[str, Any]]:
        """Return nothing: the settings of a SIF are files."""
        return [{}, {}]

    def settings_that_differ(self) -> str:
        """Return nothing, likewise."""
        return ""

    def image_with(self, paths: Sequence[str], *, limit_s: float) -> str:
        """Make a SIF from the slow line's, with these files of the fast one's; return its path.

        Raises StackError if that fails, and CommandTimeoutError.
        """
        self.count += 1
        root = self.folder / f"tree-{self.count}"
        try:
            self._call("cp", "--archive", "--link", str(self._tree(1)), str(root), limit_s=limit_s)
            for path in sorted(paths, key=lambda path: path not in self.removed):
                self._replace(root, path[1:])
            sif = f"{root}.sif"
            self._call(*self.client, "build", sif, str(root), limit_s=limit_s)
        except OSError as error:
            raise StackError("a SIF cannot be made", details=str(error)) from error
        finally:
            shutil.rmtree(root, ignore_errors=True)
        return sif

    def _replace(self, root: Path, name: str) -> None:
        """Make a path below a root as it is in the fast line's image.

        No link is followed, since one in an image may lead out of it.
        """
        target, source = root / name, self._tree(0) / name
        for parent in reversed(target.relative_to(root).parents[:-1]):
            if (root / parent).is_symlink() or not (root / parent).is_dir():
                (root / parent).unlink(missing_ok=True)
                (root / parent).mkdir()
                shutil.copystat(self._tree(0) / parent, root / parent)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)  # it shares its content with the unpacked image
        if f"/{name}" in self.removed:
            return
        self._call("cp", "--archive", "--no-target-directory", str(source), str(target))

    def _read(self, until_s: float) -> tuple[str, ...]:
        size = sum(path.stat().st_size for path in self.sifs)
        if shutil.disk_usage(self.folder).free < _TIMES_LARGER * size:
            raise StackError(
                f"there is no room to unpack images of {size / (1 << 30):.1f} GiB",
                hint=f"make room in {self.folder}",
            )
        fast, slow = (self._unpacked(at, until_s) for at in (0, 1))
        names = fast.keys() | slow.keys()
        differing = {name for name in names if fast.get(name) != slow.get(name)}
        return self._changeable(differing.difference(_ABOUT), fast)

    def _unpacked(self, at: int, until_s: float) -> dict[str, _Entry]:
        """Unpack an image, and return what it holds by the path, without its root."""
        tree = self._tree(at)
        self._call(
            *(*self.client, "build", "--sandbox", str(tree), str(self.sifs[at])),
            limit_s=until_s - time.monotonic(),
        )
        entries: dict[str, _Entry] = {}
        for folder, below, files in os.walk(tree):
            for each in (*below, *files):
                path = Path(folder, each)
                entries[str(path.relative_to(tree))] = _entry(path)
        return entries

    def _tree(self, at: int) -> Path:
        return self.folder / ("fast", "slow")[at]

    def _call(self, *words: str, limit_s: float = 60.0) -> None:
        done = run(LOCAL, Command(argv=words), timeout_s=max(1.0, limit_s))
        if not done.succeeded:
            raise StackError(f"{' '.join(words[:2])} failed: {done.tail(1)}")

    def _copying(self, paths: Sequence[str]) -> str:
        return f"take {named_of(paths)} from {visible(self.fast)}"


def _entry(path: Path) -> _Entry:
    """Return what counts of a path."""
    status = path.lstat()
    holds = ""
    if stat.S_ISLNK(status.st_mode):
        holds = str(path.readlink())
    elif stat.S_ISREG(status.st_mode):
        with path.open("rb") as file:
            holds = digest_of(file)
    return status.st_mode, status.st_uid, status.st_gid, holds
