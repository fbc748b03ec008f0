"""`envcompare ls` and `view`: runs in a folder, and one of them over HTTP on this machine."""

from __future__ import annotations

import http.client
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commandline import envcompare

RUNS = Path(__file__).resolve().parents[1] / "data" / "runs"


@contextmanager
def served(run: Path, *options: str) -> Iterator[int]:
    """Serve a run at a free port, and end that as Ctrl-C does."""
    words = [sys.executable, "-m", "envcompare", "view", str(run), "--port", "0", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield int(line.rpartition(":")[2].partition("/")[0])
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0


def answer(port: int, path: str, **headers: str) -> tuple[int, str, bytes]:
    """Return status, type and content."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    found = connection.getresponse()
    return found.status, found.getheader("Content-Type", ""), found.read()


def test_page_and_files_of_a_run_are_served_to_this_machine_alone(tmp_path: Path) -> None:
    """Nothing outside the folder, and not to a page of another name."""
    run = shutil.copytree(RUNS / "1x1x1", tmp_path / "run")
    (tmp_path / "secret").write_text("x")
    (run / "out").symlink_to(tmp_path / "secret")
    with served(run) as port:
        status, kind, content = answer(port, "/")
        assert (status, kind) == (200, "text/html")
        assert b"What" in content
        status, kind, content = answer(port, "/run.json")
        assert (status, kind) == (200, "text/plain; charset=utf-8")
        assert content == (run / "run.json").read_bytes()
        for path in ("/../secret", "/%2e%2e/secret", "/out", "/logs", "/none"):
            assert answer(port, path)[0] == 404, path
        assert answer(port, "/", Host="evil.test:80")[0] == 403


def test_port_that_is_taken_is_named(tmp_path: Path) -> None:
    """With what to try."""
    run = shutil.copytree(RUNS / "1x1x1", tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = envcompare("view", str(run), "--port", port, cwd=tmp_path)
    assert done.returncode == 2
    assert f"--port {port} cannot be used" in done.stderr
    assert "--port 0" in done.stderr


def test_runs_of_a_folder_are_listed(tmp_path: Path) -> None:
    """Each with its answer; one that is damaged is named."""
    shutil.copytree(RUNS / "1x1x1", tmp_path / "20260101-000000-aaaa")
    (tmp_path / "20260102-000000-bbbb").mkdir()
    (tmp_path / "20260102-000000-bbbb" / "run.json").write_text("{")
    done = envcompare("ls", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    head, first, second = (words for words in lines if words[0].startswith(("run", "2026")))
    assert head == ["run", "state", "reference", "answer"]
    assert first[:4] == ["20260102-000000-bbbb", "cannot", "be", "read"]
    assert second[:2] == ["20260101-000000-aaaa", "ended"]
    empty = envcompare("ls", str(tmp_path / "20260102-000000-bbbb"), cwd=tmp_path)
    assert "no runs in" in empty.stdout
    missing = envcompare("ls", str(tmp_path / "none"), cwd=tmp_path)
    assert missing.returncode == 5
    assert "there is no folder" in missing.stderr
