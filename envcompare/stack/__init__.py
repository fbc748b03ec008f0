"""The software an arm needs: locked wheels, a venv, an image, a SIF; made once and kept by key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from envcompare.config import Compression, Variant
from envcompare.environments import Mount

Progress = Callable[[str], None]


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

    @property
    def base(self) -> str:
        """Return the image to build on; without a wish it has the Python that is asked for."""
        return self.base_image or f"python:{self.python}-slim-bookworm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What `wrap` and the worker need, and the proof of which software it is."""

    interpreter: str
    reference: str = ""
    engine: str = ""
    identity: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()  # compared between arms, beside what the worker finds
    variables: tuple[tuple[str, str], ...] = ()  # by which the interpreter finds its packages
    mounts: tuple[Mount, ...] = ()  # of the host's own files, where the stack is `host`
