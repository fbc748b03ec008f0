"""A server of one run's page and files, for browsers on this machine."""

from __future__ import annotations

import secrets
import threading
import time
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from envcompare.analysis.compare import compare_run
from envcompare.errors import EnvcompareError
from envcompare.report.page import render
from envcompare.run_folder import owner_of
from envcompare.run_folder.results import RunFolder

_LOCAL_ADDRESS: Final = "127.0.0.1"
# How long a page is kept before it is drawn again: a run that has ended may be resumed.
_CHANGING_S, _ENDED_S = 5.0, 30.0
_PAGE: Final = "report.html"
_TEXTS: Final = frozenset({"", ".json", ".jsonl", ".log", ".csv", ".md", ".toml", ".xml", ".html"})


class RunServer(ThreadingHTTPServer):
    """Serves a run below a secret path, so that other users of this machine cannot read it.

    The page is always drawn here: one that came with a run from elsewhere is not trusted.
    """

    def __init__(self, folder: RunFolder, port: int) -> None:
        """Listen on this machine alone; raises OSError if the port is taken."""
        super().__init__((_LOCAL_ADDRESS, port), partial(_Handler, self))
        self.folder = folder
        self.secret = secrets.token_urlsafe(16)
        self._drawing = threading.Lock()
        self._page = b""
        self._until_s = 0.0

    @property
    def address(self) -> str:
        """Return where the page is."""
        return f"http://{_LOCAL_ADDRESS}:{self.server_port}/{self.secret}/"

    def page(self) -> bytes:
        """Return the page, drawn again after a while, and often while the run is being measured."""
        with self._drawing:
            if time.monotonic() > self._until_s:
                # Asked first, so that a run that ends meanwhile is drawn once more, soon.
                is_changing = owner_of(self.folder.path) is not None
                names = tuple(name for name in self.folder.file_names() if name != _PAGE)
                self._page = render(compare_run(self.folder), files=names).encode()
                self._until_s = time.monotonic() + (_CHANGING_S if is_changing else _ENDED_S)
            return self._page

    def file(self, name: str) -> bytes | None:
        """Return a file inside the run's folder; None for anything else."""
        root = self.folder.path.resolve()
        path = (root / name).resolve()
        return path.read_bytes() if path.is_relative_to(root) and path.is_file() else None


class _Handler(BaseHTTPRequestHandler):
    """Answers GET with the page or a file of the run; changes nothing."""

    def __init__(self, run: RunServer, *args: object) -> None:
        self._run = run
        super().__init__(*args)  # type: ignore[arg-type]  # as socketserver gives them

    def do_GET(self) -> None:
        """Send the page, or a file of the run's folder."""
        _, secret, name = [*unquote(urlsplit(self.path).path).split("/", 2), "", ""][:3]
        try:
            # a page elsewhere must not read it by a name of its own
            host = self.headers.get("Host", "").partition(":")[0]
            # Compared in constant time, which reveals nothing about the secret.
            is_known = secrets.compare_digest(secret.encode(), self._run.secret.encode())
            is_allowed = host in {_LOCAL_ADDRESS, "localhost"} and is_known
            is_page = name in {"", _PAGE}
            content = None
            if is_allowed:
                content = self._run.page() if is_page else self._run.file(name)
            if content is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            is_text = Path(name).suffix in _TEXTS
            # HTML among the files is sent as text, since a page from elsewhere is not trusted.
            kind = "text/plain; charset=utf-8" if is_text else "application/octet-stream"
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html" if is_page else kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            # Without this, a browser may take a text for a page and run it.
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)
        except EnvcompareError as error:
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=error.brief)
        except (OSError, ValueError):
            # The browser is gone, or no file can have that name.
            self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Print nothing for each request."""
