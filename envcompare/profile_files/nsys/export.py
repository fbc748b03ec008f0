"""A report of Nsight Systems, exported by nsys itself where it is on PATH."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from envcompare.errors import ProfileError
from envcompare.profile_files.refusing import refusal
from envcompare.text import cause_line

_REPORTS: Final = frozenset({".nsys-rep", ".qdrep"})
# nsys says: Report was created in Nsight Systems version (…), newer than your current version
_NEWER: Final = re.compile(r"\bnewer than\b")
_LIMIT_S: Final = 600.0


@contextmanager
def exported(path: Path) -> Iterator[Path]:
    """Give the SQLite export of a report, which is gone afterwards; an export is given as it is.

    Raises ProfileError with the command to run where nsys is not here or refuses.
    """
    if path.suffix.lower() not in _REPORTS:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="envcompare-") as folder:
        database = Path(folder, f"{path.stem}.sqlite")
        _export(path, database)
        yield database


def _export(path: Path, database: Path) -> None:
    if shutil.which("nsys") is None:
        raise _refusal(path, "this is a report of nsys, and nsys, which exports it, is not on PATH")
    if not path.is_file():
        raise _refusal(path, "there is no such file")
    try:
        done = subprocess.run(
            _command(str(path.resolve()), str(database)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _refusal(path, f"nsys did not export it within {_LIMIT_S:.0f} s") from error
    if done.returncode or not database.is_file():
        said = done.stdout + done.stderr
        newer = next((line.strip() for line in said.splitlines() if _NEWER.search(line)), "")
        if newer:
            raise _refusal(path, f"the nsys on PATH is older than the report: {newer}")
        cause = cause_line(said, brief="") or f"exit code {done.returncode}"
        raise _refusal(path, f"nsys cannot export it: {cause}")


def _command(report: str, database: str) -> tuple[str, ...]:
    return (
        "nsys", "export", "--type=sqlite", "--lazy=false", "--force-overwrite=true",
        f"--output={database}", report,
    )  # fmt: skip


def _refusal(path: Path, why: str) -> ProfileError:
    command = " ".join(_command(path.name, f"{path.stem}.sqlite"))
    return refusal(
        path.name, why=why, hint=f"with the nsys that collected it, or a newer one: {command}"
    )
