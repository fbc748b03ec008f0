"""The value of `--mount`, which Docker, Podman, Apptainer and SingularityCE read alike."""

from __future__ import annotations

import csv
import io

from envcompare.environments import Isolation


def bind(path: str, *, target: str = "", is_read_only: bool = True) -> str:
    """Return a bind mount as one CSV record, so that commas, colons and quotes stay in the path.

    A bind given so must exist: engines refuse a missing source instead of creating it.
    """
    fields = ["type=bind", f"source={path}", f"destination={target or path}"]
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([*fields, *(["ro"] if is_read_only else [])])
    return text.getvalue()


def all_binds(isolation: Isolation) -> tuple[str, ...]:
    """Return `--mount` options for every mount and the scratch folder, each at its own path."""
    binds = [bind(mount.path, is_read_only=mount.is_read_only) for mount in isolation.mounts]
    if isolation.scratch:
        binds.append(bind(isolation.scratch, is_read_only=False))
    return tuple(word for value in binds for word in ("--mount", value))
