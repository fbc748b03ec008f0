"""Compare the speed of the same ML work in different environments, honestly.

Only the names in `__all__` are a public interface; everything else may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envcompare.bundled import __version__
from envcompare.errors import RunFolderError

if TYPE_CHECKING:
    from os import PathLike

    from envcompare.analysis.frames import RunFrames

__all__ = ("RunFolderError", "__version__", "read")


def read(run: str | PathLike[str]) -> RunFrames:
    """Return a run folder, such as results/<run id>, as pandas frames; writes nothing.

    The frames are `comparisons` (a row for each comparison and metric: outcome, ratio, interval),
    `samples` (a row for each timed step: `wall_s`, `cpu_s`, `gpu_s`), `differences` (a row for each
    property in which an environment differs from the reference) and `quantities` (a row for each
    number of a profile). Columns in seconds end in `_s`; a ratio is time in the arm ÷ time in the
    reference, above 1 is slower; unknown values are missing, never 0.

    Raises RunFolderError if the folder cannot be read, and ImportError without the extra `pandas`.
    """
    from pathlib import Path  # noqa: PLC0415 — imports happen only on demand

    try:
        from envcompare.analysis.frames import read_frames  # noqa: PLC0415 — pandas is slow
    except ModuleNotFoundError as error:
        hint = "pip install '.[pandas]' in a clone of envcompare"
        raise ImportError(f"envcompare.read needs {error.name}: {hint}") from error
    return read_frames(Path(run))
