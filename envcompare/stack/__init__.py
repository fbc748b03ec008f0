"""The software an arm needs: locked wheels, a venv, an image, a SIF; made once and kept by key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from envcompare.config.settings import Compression, Variant
from envcompare.environments import Mount
from envcompare.errors import UnusableError

Progress = Callable[[str], None]


class NotMadeError(UnusableError):
    """What an arm needs is not there, and nothing may be made for it now."""


class LookingOnly:
    """Stand in for a progress where software may be found and nothing may be made or sent."""

    def __call__(self, text: str) -> None:
        """Drop what is told."""


def begin(progress: Progress, text: str) -> None:
    """Tell what is about to be made or sent; raises NotMadeError where looking is all there is."""
    if isinstance(progress, LookingOnly):
        raise NotMadeError("what is needed is not made yet", details=f"it would begin with {text}")
    progress(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user may choose about the software."""

    python: str = "3.11"
    base_image: str | None = None
    variant: Variant = "auto"
    sif_compression: Compression = "zstd"
    vm_python: str | None = None
    host_python: str | None = None
    host_imports: tuple[str, ...] = ("torch",)
    run_id: str = ""  # that what is started to prove the software belongs to

    @property
    def base(self) -> str:
        """Return the image to build on; without a wish it has the Python that is asked for."""
        return self.base_image or f"python:{self.python}-slim-bookworm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What `wrap` and the worker need, and the proof of which software it is."""

    interpreter: str  # its path, which no wrapper stands around
    started_as: str = ""  # how a user of the image starts Python; empty where it is made here
    reference: str = ""
    engine: str = ""
    identity: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()  # compared between arms, beside what the worker finds
    software: tuple[tuple[str, str], ...] = ()  # what must be the same when a run is resumed
    parts: tuple[str, ...] = ()  # of what is installed: `name==version digest`, or a file's name
    changed: tuple[str, ...] = ()  # `part name digest` of files that not all arms have alike
    meant: str = ""  # the tree of what is installed, as the label of the image says
    variables: tuple[tuple[str, str], ...] = ()  # by which Python and its packages are found
    mounts: tuple[Mount, ...] = ()  # of the host's own files, where the stack is `host`
    run_id: str = ""  # that what is started to prove it belongs to

    @property
    def python(self) -> str:
        """Return what starts a workload: in an image of the user's its own `python3`."""
        return self.started_as or self.interpreter
