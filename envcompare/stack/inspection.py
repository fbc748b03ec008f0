"""What a SIF on this machine says of itself, read with spython."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def version() -> str | None:
    """Return the version of Singularity or Apptainer on this machine; None where there is none."""
    if not _has_singularity():
        return None
    from spython.utils import get_singularity_version  # noqa: PLC0415, TID251 - loaded on demand

    return str(get_singularity_version()).strip() or None


def labels(sif: Path) -> dict[str, str]:
    """Return the labels of a SIF; empty where it has none or nothing here can read it."""
    if not _has_singularity():
        return {}
    from spython.main import Client  # noqa: PLC0415, TID251 - loaded on demand

    # A failed call gives a dict with `message` and `return_code` in place of the SIF's own facts.
    facts: Any = Client.inspect(str(sif))
    found = facts.get("attributes", {}).get("labels") if isinstance(facts, dict) else None
    return {str(name): str(value) for name, value in (found or {}).items()}


def origin(sif: Path) -> str | None:
    """Return the image a SIF was made from, as its builder recorded it."""
    return labels(sif).get("org.label-schema.usage.singularity.deffile.from")


def _has_singularity() -> bool:
    """Tell whether spython can work: it knows the one name `singularity`."""
    return shutil.which("singularity") is not None
