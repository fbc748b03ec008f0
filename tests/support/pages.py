"""A page opened in a real browser, what it says and asks for, and what axe-core finds wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page

# What Jenkins sends with every artefact: neither a style nor a script of the page is used.
CI_POLICY: Final = "sandbox; default-src 'none'; img-src 'self'; style-src 'self';"
_TRIMMED: Final = """most => {
  for (const holder of document.querySelectorAll("main :is(tbody, ul, section, details)")) {
    if (holder.closest("#answer")) { continue; }
    for (const kind of { TBODY: ["TR"], UL: ["LI"] }[holder.tagName] || ["DETAILS", "DIV"]) {
      const alike = [...holder.children].filter(one => one.tagName === kind);
      alike.slice(kind === "DIV" ? 3 * most : most).forEach(one => one.remove());
    }
  }
}"""


@dataclass(slots=True)
class Visit:
    """A page opened from disk, with all it said and asked for."""

    page: Page
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)


def open_report(context: BrowserContext, path: Path) -> Visit:
    """Open a file in a browser context."""
    return open_address(context, path.as_uri())


def open_address(context: BrowserContext, address: str) -> Visit:
    """Open an address in a browser context, and write down what the page says and asks for."""
    opened = Visit(page=context.new_page())
    opened.page.on("console", lambda message: opened.console.append(message.text))
    opened.page.on("pageerror", lambda error: opened.console.append(str(error)))
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.on(
        "dialog", lambda dialog: (opened.dialogs.append(dialog.message), dialog.accept())
    )
    opened.page.goto(address)
    return opened


def unfold(page: Page) -> None:
    """Open every fold."""
    page.locator("details").evaluate_all("all => all.forEach(fold => { fold.open = true; })")


def trim(page: Page, *, most: int = 8) -> None:
    """Keep the first rows, items and folds beside each other: the rest are like them."""
    page.evaluate(_TRIMMED, most)


def violations(page: Page) -> list[str]:
    """Return what axe-core finds wrong, with the rule of WCAG 2.2 that it leaves out by itself."""
    rules = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
    found = Axe().run(page, options=rules)
    return [
        f"{one['id']}: {one['nodes'][0]['target']} {one['nodes'][0]['failureSummary']}"
        for one in found.response["violations"]
    ]


class _UnderPolicy(SimpleHTTPRequestHandler):
    """Serves files as a CI server does."""

    def end_headers(self) -> None:
        """Add the policy."""
        self.send_header("Content-Security-Policy", CI_POLICY)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 — its name there
        """Say nothing on stderr."""


@contextmanager
def ci_server(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine under the policy of a CI server; give its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_UnderPolicy, directory=folder))
    worker = Thread(target=server.serve_forever, daemon=True)
    worker.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        worker.join()
