"""What all tests share: real engines, or a reason aloud why a test was not run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chromium import started
from lab import Lab, need, torch_python
from lab import lab as running_lab
from playwright.sync_api import Browser


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail a test whose engine is missing, before its fixtures are made."""
    for marker in item.iter_markers("engine"):
        need(marker.args[0])
    for name in ("browser", "torch", "gpu"):
        if item.get_closest_marker(name):
            need(name)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Give the lab host, with the SSH configuration that all parts of envcompare read."""
    need("ssh")
    host = running_lab()
    assert host is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVCOMPARE_SSH_CONFIG", str(host.ssh_config))
        yield host


@pytest.fixture(scope="session")
def torch_interpreter() -> str:
    """Give the path of an interpreter that imports torch."""
    need("torch")
    return torch_python()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Give one headless Chromium for all tests that look at a page."""
    need("browser")
    with started() as chromium:
        yield chromium
