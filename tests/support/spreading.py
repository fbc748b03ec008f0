"""Which tests run one after another where several processes share them, and which run alone."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
from lab import HOSTS
from xdist.scheduler import LoadScopeScheduling

_ON_ENGINES = frozenset({"tests/contract", "tests/engines", "tests/faults", "tests/gpu"})
_ON_SECOND_HOST = frozenset({
    # These stop the engine of a host, kill its logins or imitate its GPU.
    "tests/engines/test_gpu_host.py", "tests/engines/test_lost_hosts.py",
    "tests/faults/test_faults.py",
    # These measure nothing that needs the stack of the workloads, which the first host has.
    "tests/engines/test_allocations.py", "tests/engines/test_docker_options.py",
    "tests/engines/test_hostile_image.py", "tests/engines/test_hung_arms.py",
    "tests/engines/test_leftovers.py",
    "tests/engines/test_odd_host.py", "tests/engines/test_planted_differences.py",
    "tests/engines/test_same_software.py", "tests/engines/test_two_clients.py",
})  # fmt: skip
# These use nothing of the lab host that another test changes.
_ANYWHERE = frozenset({
    "tests/contract/test_copies.py", "tests/contract/test_transports.py",
    "tests/engines/test_wheel.py",
})  # fmt: skip
_NICENESS = 5


def host_of(nodeid: str) -> str:
    """Return the lab host of a test; those that need none get the first."""
    return HOSTS[nodeid.split("::", 1)[0] in _ON_SECOND_HOST]


def uses_engines(nodeid: str) -> bool:
    """Say whether a test shares engines and a lab host with the others of its lane."""
    path = nodeid.split("::", 1)[0]
    return str(PurePosixPath(path).parent) in _ON_ENGINES and path not in _ANYWHERE


def group(nodeid: str) -> str:
    """Return the group of a test; no two tests of a group run at the same time.

    All that use the engines of a lab host are one lane; all in Chromium are one group, as they
    share the browser; any other file is a group of its own.
    """
    if uses_engines(nodeid):
        return host_of(nodeid)
    path = nodeid.split("::", 1)[0]
    folder = str(PurePosixPath(path).parent)
    return folder if folder == "tests/browser" else path


class Spreading(LoadScopeScheduling):
    """Give each process of pytest-xdist whole groups.

    The marks of its own `loadgroup` are lost with pytest 9, which has no `_nodeid` to write to.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def spread(items: list[pytest.Item]) -> None:
    """Put the lanes first, as they take longest."""
    places = {host: place for place, host in enumerate(HOSTS)}
    items.sort(key=lambda item: places.get(group(item.nodeid), len(HOSTS)))


def step_aside() -> None:
    """Let the lanes go first: runs there look at times. Not to be undone."""
    missing = _NICENESS - os.nice(0)
    if missing > 0:
        os.nice(missing)


@contextmanager
def turn(item: pytest.Item, *, of: str) -> Iterator[None]:
    """Wait until a test of a lane may run: one marked `alone` never runs beside the other lane."""
    if not uses_engines(item.nodeid):
        yield
        return
    is_alone = item.get_closest_marker("alone") is not None
    with Path(tempfile.gettempdir(), f"envcompare-tests-{of}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)  # freed as it is closed
        yield
