"""Files that may be anybody's: what is no file, is too large or is still written ends in words."""

from __future__ import annotations

import io
import os
import queue
import resource
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from commandline import envcompare
from imports import files_of, log, measured, request, two_arms

from envcompare import cli, files, importing
from envcompare.analysis.timing.runfiles import read_files
from envcompare.errors import ProfileError, RunFolderError
from envcompare.measure.worker import Worker
from envcompare.run_folder.records import Event
from envcompare.run_folder.results import RunFolder

SPARSE_BYTES = 60 << 30
NAMES = (
    "run.json",
    "samples.jsonl",
    "events.jsonl",
    "fingerprints/local/vm/cnn.json",
    "profiles/local_cnn/vm/trace.json",
    "profiles/roofs/local.json",
)


def sparse(path: Path) -> Path:
    """Make a file that says it has 60 GB and takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, SPARSE_BYTES)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_sparse_file_of_a_run_is_refused(tmp_path: Path, name: str) -> None:
    """Its size is looked at before any of it is held."""
    folder = measured(tmp_path)
    sparse(folder.path / name)
    with pytest.raises(RunFolderError, match="cannot be read") as caught:
        read_files(folder)
    assert "it has 61,440 MiB; at most" in caught.value.details


def test_sparse_run_ends_with_the_exit_code_of_bad_data(tmp_path: Path) -> None:
    """It is no fault of envcompare."""
    folder = measured(tmp_path)
    sparse(folder.path / "run.json")
    done = envcompare("report", str(folder.path), cwd=tmp_path)
    assert done.returncode == 5
    assert "fault" not in done.stderr


def limited(*argv: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python with 16 GiB of memory, so that a file is not held even where it would fit."""
    most = 16 << 30
    return subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env={**os.environ, **env},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["known_hosts", "config"])
def test_sparse_file_of_ssh_is_refused(tmp_path: Path, name: str) -> None:
    """Known hosts, and the configuration where no OpenSSH reads it."""
    config = tmp_path / "config"
    config.write_text(f"UserKnownHostsFile {tmp_path}/known_hosts\n")
    path = sparse(tmp_path / name)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        words = ("-m", "envcompare", "doctor", "--hosts", host, "--ssh-config", str(config))
        done = limited(*words, cwd=tmp_path, PATH="" if name == "config" else os.environ["PATH"])
    assert done.returncode == 3, done.stderr
    assert f"{path} cannot be read" in done.stdout + done.stderr
    assert "it has 61,440 MiB; at most 16 MiB can be read" in done.stdout + done.stderr


def test_sparse_private_key_is_not_read(tmp_path: Path) -> None:
    """It is named among the keys that were tried."""
    program = "from envcompare.transport import ssh; print(ssh._load(ssh.Path('key')))"
    sparse(tmp_path / "key")
    done = limited("-c", program, cwd=tmp_path)
    assert done.stdout.startswith("it has 61,440 MiB"), done.stderr


@pytest.mark.parametrize("tool", ["nvprof", "ncu", "kineto", "nsys"])
def test_sparse_profile_is_refused(tmp_path: Path, tool: str) -> None:
    """Before it is hashed, which takes minutes."""
    with pytest.raises(ProfileError):
        request(tmp_path, sparse(tmp_path / "profile"), tool=tool).run()
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("tool", "name", "head"),
    [
        ("ncu", "a.ncu-rep", b"NVR\0"),
        ("nsys", "a.nsys-rep", b"report"),
        ("nsys", "a.sqlite", b"SQLite format 3\0StringIds"),
    ],
)
def test_sparse_profile_that_begins_as_one_is_refused_before_it_is_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, name: str, head: bytes
) -> None:
    """Its holes are seen without reading them, which takes minutes."""
    path = tmp_path / name
    path.write_bytes(head)
    monkeypatch.setattr(importing, "file_sha256", lambda _: pytest.fail("it is hashed"))
    with pytest.raises(ProfileError) as caught:
        request(tmp_path, sparse(path), tool=tool).run()
    assert "nearly all of it are holes" in caught.value.details


def test_file_with_some_holes_is_not_hollow(tmp_path: Path) -> None:
    """A copy may leave them where a database has zeros."""
    path = tmp_path / "some"
    with path.open("wb") as file:
        for place in range(64):
            file.seek(place * files.MIB)
            file.write(b"x")
    assert not files.is_hollow(path)


@pytest.mark.parametrize("stream", ["", ">&2"], ids=["stdout", "stderr"])
def test_program_that_prints_without_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    """What converts a report is held in memory; its children end with it."""
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nhead -c 64000000 /dev/zero {stream}\nsleep 5\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    (tmp_path / "a.nsys-rep").write_bytes(b"report")
    with pytest.raises(ProfileError) as caught:
        request(tmp_path, tmp_path / "a.nsys-rep", tool="nsys").run()
    assert caught.value.details == "nsys printed more than 16 MiB to convert it"


def test_endless_line_of_a_journal_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more of it is held than a line may have."""
    folder = measured(tmp_path)
    monkeypatch.setattr(files, "LINE_BYTES", 1000)
    with (folder.path / "events.jsonl").open("ab") as stream:
        stream.write(b" " * 5000)
    with pytest.raises(RunFolderError, match=r"events\.jsonl cannot be read"):
        folder.read_events()


def test_file_that_does_not_tell_its_size_is_bounded() -> None:
    """As those of /proc, and one that grows."""
    with pytest.raises(OSError, match="it has over 0 MiB"):
        files.read_whole(Path("/proc/self/status"), most=10)


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """It may have taken the place of a file since anybody looked."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a named pipe"):
        files.read_whole(tmp_path / "pipe", most=10)


def test_long_torn_line_is_cut_off(tmp_path: Path) -> None:
    """Wherever its begin lies."""
    folder = measured(tmp_path)
    path = folder.path / "events.jsonl"
    before = path.read_bytes()
    path.write_bytes(before + b"x" * (3 * files.MIB))
    again = RunFolder.open(folder.path)
    again.append_event(Event(t=4.0, what="run-ended"))
    again.close()
    assert path.read_bytes().startswith(before)
    assert again.read_events().torn == 0


@pytest.mark.parametrize("name", NAMES[1:])
def test_import_refuses_what_report_refuses(tmp_path: Path, name: str) -> None:
    """Nothing is written into a run of which no report can be made."""
    folder = measured(tmp_path)
    path = folder.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}\n", encoding="utf-8")
    before = files_of(folder.path)
    with pytest.raises(RunFolderError) as of_report:
        read_files(folder)
    with pytest.raises(RunFolderError) as of_import:
        request(tmp_path, log(tmp_path, "vm.log"), into=folder.path).run()
    assert str(of_import.value) == str(of_report.value)
    assert files_of(folder.path) == before


def test_profile_that_is_still_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hash, its copy and its record would be of three files."""
    folder = two_arms(tmp_path)
    before, third, read = files_of(folder.path), log(tmp_path, "third.log"), importing.read

    def read_as_it_grows(tool: str, paths: tuple[Path, ...]) -> object:
        profile = read(tool, paths)
        with third.open("a", encoding="utf-8") as stream:
            stream.write("\n")
        return profile

    monkeypatch.setattr(importing, "read", read_as_it_grows)
    with third.open("a", encoding="utf-8") as stream:
        stream.write("\n")  # another file than that of vm
    with pytest.raises(ProfileError, match="changed while it was read"):
        request(tmp_path, third, arm="singularity", into=folder.path).run()
    assert files_of(folder.path) == before


@pytest.mark.parametrize("figures", [(), ("--figures", "figures")], ids=["report", "figures"])
def test_report_is_written_without_charts_where_memory_is_limited(
    tmp_path: Path, figures: tuple[str, ...]
) -> None:
    """The engine of the chart library ends its process there, and nothing else."""
    folder = measured(tmp_path)
    limit = 30_000_000 * 1024
    done = subprocess.run(
        [sys.executable, "-m", "envcompare", "report", str(folder.path), *figures],
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "charts are left out: the program that draws them" in done.stdout
    assert ("figures are left out: the program that draws them" in done.stderr) is bool(figures)
    page = (folder.path / "report.html").read_text(encoding="utf-8")
    assert "Charts are left out" in page
    assert '<svg class="chart"' not in page


def test_too_little_memory_is_no_fault() -> None:
    """What asked for it was a file."""
    assert cli._error_to_show(MemoryError()).exit_code == 5


def test_escapes_do_not_reach_a_kept_log(tmp_path: Path) -> None:
    """Who shows it on a terminal sees them, and the terminal does not obey."""
    worker = Worker.__new__(Worker)
    worker.log = tmp_path / "docker.log"
    worker._append(b"\x1b]0;owned\x07\x1b[2J a\rb\r\n\xc2\x9b31m \xff \xe2\x9c\x93\n")
    kept = worker.log.read_text(encoding="utf-8")
    assert kept == "⟨U+001B⟩]0;owned⟨U+0007⟩⟨U+001B⟩[2J a\nb\n⟨U+009B⟩31m ⟨U+DCFF⟩ ✓\n"


def test_log_of_escapes_alone_ends_at_its_limit(tmp_path: Path) -> None:
    """Each of them is written as eight characters, and the worker is ended for it."""
    worker = Worker.__new__(Worker)
    worker.log = tmp_path / "docker.log"
    worker._log_left_bytes = 100_000
    worker._lines = queue.Queue()
    worker._process = SimpleNamespace(stderr=io.BytesIO(b"\x1b" * 300_000))  # type: ignore[assignment]
    worker._keep_log()
    assert worker._lines.qsize() == 1
    assert worker.log.read_text(encoding="utf-8").endswith("... the log ends here: too long\n")
    assert worker.log.stat().st_size < 2_000_000
