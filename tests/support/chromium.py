"""A real headless Chromium, driven by Playwright and asking nothing of the network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

_ARGUMENTS = [
    "--no-sandbox",  # root in a container has no user namespace for it
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-sync",
    "--no-first-run",
    "--no-pings",
]


@contextmanager
def started() -> Iterator[Browser]:
    """Start the Chromium of this machine, and end it."""
    program = next(
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    )
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=_ARGUMENTS)
        yield chromium
        chromium.close()
