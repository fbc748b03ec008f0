"""A page opened from disk in a real browser, and what axe-core finds wrong with one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page


@dataclass(slots=True)
class Visit:
    """A page opened from disk, with all it said and asked for."""

    page: Page
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def open_report(context: BrowserContext, path: Path) -> Visit:
    """Open a file in a browser context."""
    opened = Visit(page=context.new_page())
    opened.page.on("console", lambda message: opened.console.append(message.text))
    opened.page.on("pageerror", lambda error: opened.console.append(str(error)))
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.goto(path.as_uri())
    return opened


def violations(page: Page) -> list[str]:
    """Return what axe-core finds wrong, with the rule of WCAG 2.2 that it leaves out by itself."""
    rules = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
    found = Axe().run(page, options=rules)
    return [
        f"{one['id']}: {one['nodes'][0]['target']} {one['nodes'][0]['failureSummary']}"
        for one in found.response["violations"]
    ]
