"""`envcompare ls` and `view`: runs in a folder, and one of them over HTTP on this machine."""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commandline import envcompare

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.cli import browsing, serving
from envcompare.run_folder.results import RunFolder

RUNS = Path(__file__).resolve().parents[1] / "data" / "runs"


@contextmanager
def served(run: Path) -> Iterator[tuple[int, str]]:
    """Serve a run at a free port until the test ends; give the port and the secret."""
    words = [sys.executable, "-m", "envcompare", "view", str(run), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            port, secret = line.split()[0].removeprefix("http://127.0.0.1:").split("/")[:2]
            yield int(port), secret
        finally:
            process.kill()  # SIGINT is ignored in the background of a shell


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
    (run / "report.html").write_text("<script>alert(1)</script>")
    (run / "x.svg").write_text("<svg/>")
    with served(run) as (port, secret):
        status, kind, content = answer(port, f"/{secret}/")
        assert (status, kind) == (200, "text/html")
        assert b"envcompare report" in content
        assert b"alert(1)" not in content
        status, kind, content = answer(port, f"/{secret}/run.json")
        assert (status, kind) == (200, "text/plain; charset=utf-8")
        assert content == (run / "run.json").read_bytes()
        assert answer(port, f"/{secret}/x.svg")[1] == "application/octet-stream"
        for name in ("../secret", "%2e%2e/secret", "out", "logs", "none"):
            assert answer(port, f"/{secret}/{name}")[0] == 404, name
        for path in ("/", "/run.json", "/wrong/run.json", "/wrong/"):
            assert answer(port, path)[0] == 404, path
        assert answer(port, f"/{secret}/", Host="evil.test:80")[0] == 404
        with pytest.raises(http.client.RemoteDisconnected):
            answer(port, f"/{secret}/%00")


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
    assert second[:4] == ["20260101-000000-aaaa", "ended", "vm", "docker"]
    empty = envcompare("ls", str(tmp_path / "20260102-000000-bbbb"), cwd=tmp_path)
    assert "no runs in" in empty.stdout
    missing = envcompare("ls", str(tmp_path / "none"), cwd=tmp_path)
    assert missing.returncode == 5
    assert "there is no folder" in missing.stderr


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give what holds a run; it lets go as soon as the files of the run are read."""
    held = ["run"]

    def read(folder: RunFolder) -> RunComparison:
        read_until_now = compare_run(folder)
        held.clear()
        return read_until_now

    for name in ("browsing", "serving"):
        monkeypatch.setattr(f"envcompare.cli.{name}.owner_of", lambda _: held[0] if held else None)
    monkeypatch.setattr("envcompare.cli.serving.compare_run", read)
    monkeypatch.setattr("envcompare.analysis.compare.compare_run", read)
    return held


def test_a_run_that_ends_while_it_is_read_is_drawn_again(
    ending: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon if it was being measured, and later as well: it may be resumed."""
    drawn: list[float] = []
    now = [1000.0]
    monkeypatch.setattr(serving.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(serving, "render", lambda *_, **__: drawn.append(now[0]) or "page")
    with serving.RunServer(RunFolder(RUNS / "1x1x1"), 0) as server:
        for wait_s in (0, 4, 2, 20, 11):
            now[0] += wait_s
            assert server.page() == b"page"
    assert drawn == [1000.0, 1006.0, 1037.0]
    assert not ending


@pytest.mark.usefixtures("ending")
def test_a_run_that_ends_while_it_is_read_is_not_said_to_be_interrupted() -> None:
    """What was read of it lacked the end."""
    folder = RunFolder(RUNS / "1x1x1")
    assert browsing._row(folder.path, folder).cells[1] == "being measured"
