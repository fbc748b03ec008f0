"""A registry that serves one image and takes none: what `docker pull` needs, and no more."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from envcompare.transport import file_sha256

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An image in a registry: its name there, and the digest of its manifest."""

    name: str
    digest: str


@contextmanager
def serving(docker: str, reference: str, folder: Path) -> Iterator[Served]:
    """Serve an image of the local engine at a free port, which an engine takes without TLS."""
    archive = folder / "image.tar"
    subprocess.run((docker, "save", "-o", str(archive), reference), check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    blobs, manifest = _contents(folder)
    handler = partial(_Handler, blobs, manifest)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
        try:
            yield Served(name=f"127.0.0.1:{server.server_port}/base:1", digest=digest)
        finally:
            server.shutdown()
            thread.join()


def _contents(folder: Path) -> tuple[dict[str, Path], bytes]:
    """Return the blobs by digest, and the manifest that names them."""
    (saved,) = json.loads((folder / "manifest.json").read_text())
    blobs: dict[str, Path] = {}

    def described(name: str, kind: str) -> dict[str, Any]:
        path = folder / name
        digest = f"sha256:{file_sha256(path)}"
        blobs[digest] = path
        return {"mediaType": kind, "size": path.stat().st_size, "digest": digest}

    layer = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": described(saved["Config"], "application/vnd.docker.container.image.v1+json"),
        "layers": [described(name, layer) for name in saved["Layers"]],
    }
    return blobs, json.dumps(manifest).encode()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, blobs: dict[str, Path], manifest: bytes, *rest: Any) -> None:
        self.blobs = blobs
        self.manifest = manifest
        super().__init__(*rest)

    def do_GET(self) -> None:
        """Answer with the manifest, a blob, or that this is a registry."""
        blob = self.blobs.get(self.path.rpartition("/")[2])
        if "/manifests/" in self.path:
            self._send(self.manifest, _MANIFEST)
        elif blob is not None:
            self._send(blob.read_bytes(), "application/octet-stream")
        else:
            self._send(b"{}", "application/json")

    do_HEAD = do_GET  # noqa: N815 - likewise

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(content).hexdigest()}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
