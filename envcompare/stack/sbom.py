"""The bill of materials of the locked wheels, written by cyclonedx-py."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from envcompare.command import Command
from envcompare.errors import ConfigError, StackError
from envcompare.stack.cache import local_cache
from envcompare.stack.diagnosis import failure
from envcompare.stack.wheelhouse import LOCK, LOCK_LABEL
from envcompare.text import shortened
from envcompare.transport import Transport
from envcompare.transport.operations import CONTENT_S, run

_KEY = re.compile("[0-9a-f]{32,64}")  # as folders of the cache are called
_ONE_VARIANT = "name one with --variant, or build for fewer hosts"
_NO_LOCK = "no arm that could be made has them"
_NO_LOCK_HINT = (
    "make an arm of the stack image, as in --envs vm; the host's own software has no lock"
)


def check_tool() -> None:
    """Raise StackError where cyclonedx-py is not installed, before anything is built."""
    if find_spec("cyclonedx_py") is None:
        raise StackError(
            "no bill of materials can be written here",
            details=f"{sys.executable} has no cyclonedx-bom",
            hint="pip install 'envcompare-bench[sbom]'",
        )


def check_target(target: Path) -> None:
    """Raise ConfigError where the file cannot be written, before anything is built."""
    try:
        is_new = not target.exists()
        with target.open("ab"):
            pass
        if is_new:
            target.unlink()
    except OSError as error:
        raise ConfigError(
            f"--sbom {str(target)!r} cannot be written",
            details=error.strerror or str(error),
            hint="name a file in a folder that is there and can be written to",
        ) from error


def write(locks: Iterable[str], target: Path, *, local: Transport) -> None:
    """Write name, version and hash of each locked wheel as CycloneDX JSON.

    The same lock gives the same bytes. Raises StackError unless there is one lock, and it is read.
    """
    keys = sorted(set(locks))
    if len(keys) != 1:
        raise StackError(
            f"{target} is not written: it can list the wheels of one lock only",
            details="the hosts have wheels of different variants" if keys else _NO_LOCK,
            hint=_ONE_VARIANT if keys else _NO_LOCK_HINT,
        )
    if not _KEY.fullmatch(keys[0]):
        raise StackError(
            f"{target} is not written: the image's label does not name a lock",
            details=f"{LOCK_LABEL} is {shortened(keys[0], most=200)!r}",
            hint="leave out the image you named, or remove the label",
        )
    lock = local_cache() / keys[0] / "wheelhouse" / LOCK
    words = ("requirements", "--of", "JSON", "--output-reproducible", "-o", str(target), str(lock))
    command = Command(argv=(sys.executable, "-m", "cyclonedx_py", *words))
    result = run(local, command, timeout_s=CONTENT_S)
    if not result.succeeded:
        raise failure(
            local,
            f"writing {target}",
            result.stderr,
            hint="check that the folder can be written to",
        )
