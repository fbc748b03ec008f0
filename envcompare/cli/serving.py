"""A server of one run's page and files, for browsers on this machine."""

from __future__ import annotations

import mimetypes
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from envcompare.analysis.compare import compare_run, status_of
from envcompare.report.page import render
from envcompare.run_folder.results import RunFolder

LOCAL_ADDRESS: Final = "127.0.0.1"
_PAGE: Final = "report.html"
_TEXT: Final = "text/plain; charset=utf-8"
_TEXTS: Final = frozenset({"", ".json", ".jsonl", ".log", ".csv", ".md", ".toml", ".xml"})


def run_server(folder: RunFolder, port: int) -> ThreadingHTTPServer:
    """Return a server that listens on this machine alone; raises OSError if the port is taken."""
    return ThreadingHTTPServer((LOCAL_ADDRESS, port), partial(_Handler, folder))


class _Handler(BaseHTTPRequestHandler):
    """Answers GET with the page or a file of the run; changes nothing."""

    def __init__(self, folder: RunFolder, *args: object) -> None:
        self._folder = folder
        super().__init__(*args)  # type: ignore[arg-type]  # as socketserver gives them

    def do_GET(self) -> None:
        """Send the page, or a file of the run's folder."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in {
            LOCAL_ADDRESS,
            "localhost",
        }:  # a page elsewhere must not read it by its own name
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        name = unquote(urlsplit(self.path).path).lstrip("/") or _PAGE
        content = self._drawn() if name == _PAGE else self._file(name)
        if content is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        suffix = Path(name).suffix
        kind = _TEXT if suffix in _TEXTS else mimetypes.guess_type(name)[0]
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind or "application/octet-stream")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def _drawn(self) -> bytes | None:
        """Return the page; of a run that is being measured, or has none yet, a new one."""
        page = self._folder.path / _PAGE
        if page.is_file() and status_of(self._folder).state != "going-on":
            return page.read_bytes()
        names = tuple(name for name in self._folder.file_names() if name != _PAGE)
        return render(compare_run(self._folder), files=names).encode()

    def _file(self, name: str) -> bytes | None:
        """Return a file inside the run's folder; None for anything else."""
        root = self._folder.path.resolve()
        path = (root / name).resolve()
        return path.read_bytes() if path.is_relative_to(root) and path.is_file() else None

    def log_message(self, *args: object) -> None:
        """Print nothing for each request."""
