"""The bill of materials of the locked wheels, written by cyclonedx-py."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from envcompare.command import Command
from envcompare.errors import StackError
from envcompare.stack.cache import failure, local_cache
from envcompare.stack.wheelhouse import LOCK
from envcompare.transport import Transport
from envcompare.transport.operations import run


def check_tool() -> None:
    """Raise StackError where cyclonedx-py is not installed, before anything is built."""
    if find_spec("cyclonedx_py") is None:
        raise StackError(
            "no bill of materials can be written here",
            details=f"{sys.executable} has no cyclonedx-bom",
            hint="pip install 'envcompare-bench[sbom]'",
        )


def write(locks: Iterable[str], target: Path, *, local: Transport) -> None:
    """Write name, version and hash of each locked wheel as CycloneDX JSON.

    The same lock gives the same bytes. Raises StackError unless there is one lock, and it is read.
    """
    keys = sorted(set(locks))
    if len(keys) != 1:
        details = "the hosts have wheels of different variants" if keys else "no arm has them"
        raise StackError(
            f"{target} is not written: it holds the wheels of one lock",
            details=details,
            hint="name one with --variant, or build for fewer hosts",
        )
    lock = local_cache() / keys[0] / "wheelhouse" / LOCK
    words = ("requirements", "--of", "JSON", "--output-reproducible", "-o", str(target), str(lock))
    result = run(local, Command(argv=(sys.executable, "-m", "cyclonedx_py", *words)))
    if not result.succeeded:
        raise failure(
            local, f"writing {target}", result.stderr, hint="see that the folder can be written to"
        )
