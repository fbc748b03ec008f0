"""`envcompare report`: every format, to stdout or a file, and a sentence for all that cannot be."""

from __future__ import annotations

import csv
import io
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import envcompare

from runfolders import TITLE, Arm, Failing, Shape, write

HOST = "gpu01"
SHAPE = Shape(
    arms=(Arm(id="docker", ratio=1.08), Arm(id="old", ratio=1.0)),
    workloads=("cnn", "rnn"),
    restarts=4,
    failing=Failing(cell=f"{HOST}/rnn/default", arm="docker"),
)
MIGHT = "-dac_override,-dac_read_search"
BOUND = ("setpriv", f"--bounding-set={MIGHT}") if os.geteuid() == 0 else ()  # root reads anything
RAW = ("run.json", "samples.jsonl", "events.jsonl")

WHOLE = ("--format", "csv", "--columns", "all")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run folder that was never drawn."""
    return write(tmp_path_factory.mktemp("runs"), SHAPE).path


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    """Return a copy of it that a test may change."""
    return shutil.copytree(kept, tmp_path / "run")


def drawn(folder: Path, *arguments: str) -> str:
    """Call the command for the run in a folder; return what it prints."""
    done = envcompare("report", "run", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(folder: Path) -> dict[str, bytes]:
    """Return what lies in a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_page_lies_beside_the_run_and_links_to_its_files(run: Path, tmp_path: Path) -> None:
    """As after a run; stdout holds the sentences and where the page is."""
    assert drawn(tmp_path).endswith("report: run/report.html\n")
    page = (run / "report.html").read_text()
    assert TITLE in page
    assert 'href="./samples.jsonl"' in page
    assert 'href="./logs/gpu01/gpu01_rnn_default/docker.log"' in page
    assert (run / "comparison.json").exists()


def test_page_that_nothing_opens_is_said(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no desktop, the reader is not left waiting for a window."""
    monkeypatch.setenv("PATH", str(tmp_path))
    why = "the page was not opened: no program to open it was found\n"
    assert drawn(tmp_path, "--open").endswith(why)


def test_page_elsewhere_links_to_nothing_that_is_not_beside_it(run: Path, tmp_path: Path) -> None:
    """A page that is sent away alone has no dead link, and the run folder stays as it was."""
    before = files(run)
    assert drawn(tmp_path, "--output", "page.html").endswith("report: page.html\n")
    page = (tmp_path / "page.html").read_text()
    assert 'href="./' not in page
    assert "docker.log" in page
    assert files(run) == before


def test_page_of_another_name_in_the_run_folder_keeps_its_links(run: Path, tmp_path: Path) -> None:
    """What it links to lies beside it, under whatever path the folder is named."""
    (tmp_path / "link").symlink_to(run)
    drawn(tmp_path, "--output", "link/second.html")
    page = (run / "second.html").read_text()
    assert 'href="./samples.jsonl"' in page
    assert 'href="./second.html"' not in page


@pytest.mark.parametrize("form", ["md", "json", "csv", "parquet"])
def test_text_and_data_leave_the_run_folder_as_it_is(run: Path, tmp_path: Path, form: str) -> None:
    """They go to stdout, and to a file where one is named: the same bytes."""
    before = files(run)
    argv = [sys.executable, "-m", "envcompare", "report", str(run), "--format", form]
    shown = subprocess.run(argv, capture_output=True, check=True).stdout
    target = tmp_path / f"found.{form}"
    subprocess.run([*argv, "--output", str(target)], check=True)
    assert target.read_bytes() == shown != b""
    assert files(run) == before


def test_json_is_the_comparison_that_is_kept(run: Path, tmp_path: Path) -> None:
    """Byte for byte what the run folder holds beside the page."""
    shown = drawn(tmp_path, "--format", "json")
    drawn(tmp_path)
    assert shown == (run / "comparison.json").read_text()


def test_table_holds_the_failure_too(run: Path, tmp_path: Path) -> None:
    """A row without numbers, with the reason."""
    assert drawn(tmp_path, *WHOLE, "--output", "x.csv") == ""
    rows = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_bytes().decode(), newline="")))
    (lost,) = [row for row in rows if row["outcome"] == "failed"]
    assert (lost["arm"], lost["workload"], lost["ratio"]) == ("docker", "rnn", "")
    assert "out of memory" in lost["reason"]


def test_file_that_is_there_is_replaced_whole(run: Path, tmp_path: Path) -> None:
    """Through a link as well, which stays one; nothing else is left behind."""
    (tmp_path / "kept.csv").write_text("x" * 10**6)
    (tmp_path / "link.csv").symlink_to("kept.csv")
    drawn(tmp_path, *WHOLE, "--output", "link.csv")
    assert (tmp_path / "kept.csv").read_text().startswith("run_id,")
    assert (tmp_path / "link.csv").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"run", "kept.csv", "link.csv"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--output", "."), ("is a folder", "name a file")),
        (("--output", "no/such/page.html"), ("there is no folder no/such", "mkdir -p no/such")),
        (("--output", "run/page.html/x"), ("there is no folder", "mkdir -p")),
        (("--output", "run/samples.jsonl"), ("a part of a run", "another name")),
        (("--output", "run/logs/page.html"), ("a part of a run", "another name")),
        (("--format", "csv", "--open"), ("--open is for the page", "leave one")),
        (("--format", "xlsx"), ("xlsx", "--help")),
        (("--width", "84"), ("--width is for --figures", "add --figures")),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    run: Path, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, str]
) -> None:
    """In sentences with what to try, and exit code 2; the run is untouched."""
    before = files(tmp_path)
    done = envcompare("report", "run", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr
    assert "  try: " in done.stderr
    assert files(tmp_path) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("is_stdout", [True, False])
def test_full_disk_is_an_error_with_what_to_try(run: Path, tmp_path: Path, is_stdout: bool) -> None:  # noqa: FBT001
    """A table that is not whole must not look like one; a device is not replaced by a file."""
    argv = [sys.executable, "-m", "envcompare", "report", str(run), *WHOLE]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            argv if is_stdout else [*argv, "--output", "/dev/full"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 5
    assert "No space left" in done.stderr
    assert "free some disk space" in done.stderr
    assert Path("/dev/full").is_char_device()


def test_disk_that_fills_up_leaves_the_file_that_was_there(run: Path, tmp_path: Path) -> None:
    """Half a table is worse than the old one."""
    (tmp_path / "x.csv").write_text("old")
    limited = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500));"
        "from envcompare.cli import main; main()"
    )
    argv = ["report", str(run), *WHOLE, "--output", str(tmp_path / "x.csv")]
    done = subprocess.run(
        [sys.executable, "-c", limited, *argv], capture_output=True, text=True, check=False
    )
    assert done.returncode == 5, done.stderr
    assert "File too large" in done.stderr
    assert (tmp_path / "x.csv").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"run", "x.csv"}


def test_folder_that_refuses_the_page_gives_it_elsewhere(run: Path, tmp_path: Path) -> None:
    """The error names the way, and the way works."""
    (run / "comparison.json").mkdir()  # whoever runs the test, this name cannot be written to
    done = envcompare("report", "run", cwd=tmp_path)
    assert done.returncode == 5
    assert "`--output FILE`" in done.stderr
    for form, name in (("html", "page.html"), ("csv", "x.csv"), ("md", "x.md")):
        drawn(tmp_path, "--format", form, "--output", name)
        assert (tmp_path / name).stat().st_size > 100


def test_parquet_does_not_go_to_a_terminal(run: Path) -> None:
    """Its bytes would upset it; the hint says where they can go."""
    reader, terminal = pty.openpty()
    argv = [sys.executable, "-m", "envcompare", "report", str(run), "--format", "parquet"]
    done = subprocess.run(argv, stdout=terminal, stderr=subprocess.PIPE, text=True, check=False)
    os.close(terminal)
    os.close(reader)
    assert done.returncode == 2
    assert "--output FILE.parquet" in done.stderr


def test_named_pipe_is_written_to_and_stays_one(run: Path, tmp_path: Path) -> None:
    """As in `--output >(gzip > x.csv.gz)`."""
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE) as reader:
        drawn(tmp_path, *WHOLE, "--output", "pipe")
        assert reader.stdout is not None
        assert reader.stdout.read().startswith(b"run_id,")
    assert (tmp_path / "pipe").is_fifo()


def test_table_is_in_utf8_whatever_the_terminal_writes(run: Path) -> None:
    """A reason may hold any language."""
    text = (run / "events.jsonl").read_text().replace("out of memory", "Speicher voll: 模型")
    (run / "events.jsonl").write_text(text)
    argv = [sys.executable, "-m", "envcompare", "report", str(run), *WHOLE]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(argv, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "模型" in done.stdout.decode()


def test_figures_are_written_beside_any_format(run: Path, tmp_path: Path) -> None:
    """The table alone is on stdout; how many files there are goes to stderr."""
    done = envcompare("report", "run", *WHOLE, "--figures", "new/figs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = sorted((tmp_path / "new" / "figs").iterdir())
    assert {path.suffix for path in found} == {".svg", ".png", ".pdf", ".md"}
    assert done.stderr.strip() == f"{len(found)} files of figures in new/figs"
    assert done.stdout.startswith("run_id,")


def test_figures_do_not_replace_a_file(run: Path, tmp_path: Path) -> None:
    """A name that is a file's is a mistake, with what to do."""
    (tmp_path / "figs").write_text("mine")
    done = envcompare("report", "run", "--format", "md", "--figures", "figs", cwd=tmp_path)
    assert done.returncode == 2
    assert "is not a folder" in done.stderr
    assert (tmp_path / "figs").read_text() == "mine"


@pytest.mark.parametrize("flag", ["--output", "--figures"])
def test_parts_of_another_run_are_never_replaced(flag: str, run: Path, tmp_path: Path) -> None:
    """What cannot be measured again is kept, whichever run it is of."""
    other = shutil.copytree(run, tmp_path / "other")
    name = "samples.jsonl" if flag == "--output" else "logs"
    before = files(other)
    done = envcompare("report", "run", flag, f"other/{name}", cwd=tmp_path)
    assert done.returncode == 2
    assert "part of a run" in done.stderr
    assert files(other) == before


def test_name_that_no_disk_takes_is_no_fault_of_envcompare(run: Path, tmp_path: Path) -> None:
    """The disk's own words, and the code for files; 1 would say that a gate was hit."""
    done = envcompare("report", "run", "--output", "a" * 300, cwd=tmp_path)
    assert done.returncode == 5
    assert "fault of envcompare" not in done.stderr
    assert "cannot be used" in done.stderr


def test_links_that_lead_to_each_other_are_no_file_to_keep(run: Path, tmp_path: Path) -> None:
    """The result stands in the place of the link."""
    (tmp_path / "loop").symlink_to("loop")
    drawn(tmp_path, "--format", "md", "--output", "loop")
    assert (tmp_path / "loop").read_text(encoding="utf-8").startswith("#")


@pytest.mark.parametrize("closed", [".", "run.json", "events.jsonl", "fingerprints"])
def test_run_that_this_user_may_not_read_is_said(run: Path, tmp_path: Path, closed: str) -> None:
    """By the exit code for run folders; what is closed is not taken for what is not there."""
    mode = (run / closed).stat().st_mode
    (run / closed).chmod(0)
    argv = [*BOUND, sys.executable, "-m", "envcompare", "report", str(run), "--format", "md"]
    try:
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    finally:
        (run / closed).chmod(mode)
    assert done.returncode == 5, done.stderr
    assert "Permission denied" in done.stderr
