"""Which tests run one after another where several processes share them."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling

ENGINES = "engines"
_ON_ENGINES = frozenset({"tests/contract", "tests/engines", "tests/faults", "tests/gpu"})
# These look at nothing of the lab host but what is their own, and at no times.
_ALONE = frozenset({
    "tests/contract/test_copies.py", "tests/contract/test_transports.py",
    "tests/engines/test_wheel.py",
})  # fmt: skip
_NICENESS = 5


def group(nodeid: str) -> str:
    """Return the group of a test; no two tests of a group run at the same time.

    All that use an engine or a GPU are one, as they share these and the caches; all in Chromium
    are one, as they share the browser; any other file is a group of its own.
    """
    path = nodeid.split("::", 1)[0]
    folder = str(PurePosixPath(path).parent)
    if folder in _ON_ENGINES and path not in _ALONE:
        return ENGINES
    return folder if folder == "tests/browser" else path


class Spreading(LoadScopeScheduling):
    """Give each process of pytest-xdist whole groups.

    The marks of its own `loadgroup` are lost with pytest 9, which has no `_nodeid` to write to.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def spread(items: list[pytest.Item]) -> None:
    """Put the tests with engines first, as they take longest."""
    items.sort(key=lambda item: group(item.nodeid) != ENGINES)


def step_aside() -> None:
    """Let the process with the engines go first: runs there look at times. Not to be undone."""
    missing = _NICENESS - os.nice(0)
    if missing > 0:
        os.nice(missing)
