"""What all tests share: real engines, or a reason aloud why a test was not run."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator

import pytest
from chromium import started
from hypothesis import settings
from lab import Lab, need, torch_python
from lab import lab as running_lab
from playwright.sync_api import Browser
from spreading import Spreading, host_of, spread, step_aside, turn, uses_engines
from xdist.remote import Producer

# an example that waits for a CPU is no failure, and the CPUs are shared
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")


# several of these processes measure on this machine at the same time, which users must not
os.environ["ENVCOMPARE_LOCK_FOLDER"] = tempfile.mkdtemp(prefix="envcompare-locks-")
atexit.register(shutil.rmtree, os.environ["ENVCOMPARE_LOCK_FOLDER"], ignore_errors=True)


def is_worker(config: pytest.Config) -> bool:
    """Say whether this is one of several processes that share the tests."""
    return hasattr(config, "workerinput")  # pytest-xdist sets it


@pytest.hookimpl(optionalhook=True)  # none asks for it under -p no:xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Spreading:
    """Keep apart what must not run at the same time, where several processes share the tests."""
    return Spreading(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest, where several processes share the tests."""
    if is_worker(config):
        spread(items)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure at once when CI runs: with `-q` it is else named half an hour later."""
    if report.failed and os.environ.get("CI") and "PYTEST_XDIST_WORKER" not in os.environ:
        sys.stderr.write(f"\nfailed: {report.nodeid}\n{str(report.longrepr)[-1500:]}\n")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the time-out: a turn may be long in coming
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep tests apart that would disturb each other, where several processes share the tests."""
    if not is_worker(item.config):
        return (yield)
    with turn(item, of=item.config.workerinput["testrunuid"]):
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail a test whose engine is missing, before its fixtures are made."""
    if is_worker(item.config) and not uses_engines(item.nodeid):
        step_aside()
    for marker in item.iter_markers("engine"):
        need(marker.args[0])
    for name in ("browser", "torch", "gpu"):
        if item.get_closest_marker(name):
            need(name)


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Give the lab host, with the SSH configuration that all parts of envcompare read."""
    need("ssh")
    host = running_lab(host_of(request.node.nodeid))
    assert host is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVCOMPARE_SSH_CONFIG", str(host.ssh_config))
        yield host


@pytest.fixture(autouse=True, scope="module")
def no_foster_children() -> Iterator[None]:
    """Let this process adopt no orphans, as the harness lets a worker do: it never reaps them."""
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER, prctl(2)


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
