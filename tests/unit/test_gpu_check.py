"""`script/gpu-check`: what it makes of doctor, its table, its exit code, the scrubbed archive."""

from __future__ import annotations

import argparse
import gzip
import json
import sqlite3
import tarfile
from pathlib import Path

import pytest

import gpu_check
import gpu_claims
from gpu_check import Scrubber
from gpu_claims import Row

SCRUBBER = Scrubber(
    names=(
        ("/home/ada", "HOME"),
        ("10.128.0.7", "ADDRESS"),
        ("gpu-vm-7.c.secret-project.internal", "HOST"),
        ("gpu-vm-7", "HOST"),
        ("ada", "USER"),
    )
)


def doctor(*findings: dict[str, object]) -> str:
    """Return what doctor prints, with a line of progress before it."""
    return "looking at local\n" + json.dumps({"hosts": [{"findings": findings}]}, indent=1)


def finding(subject: str, brief: str = "") -> dict[str, object]:
    """Return a finding that is usable, or not with its reason."""
    problem = {"brief": brief} if brief else None
    return {
        "subject": subject, "is_usable": not brief, "version": None if brief else "1.0",
        "problem": problem,
    }  # fmt: skip


def test_a_step_that_never_ends_is_a_failure_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive is still made of what is there."""
    monkeypatch.setattr(gpu_check, "_LIMIT_S", 0.01)
    session = gpu_check.Session(options=argparse.Namespace(), folder=tmp_path)
    said = session.envcompare("list")
    assert said.exit_code == 124
    assert said.text.endswith("ended after 0.01 s\n")


def test_environments_that_work_take_part() -> None:
    """What is missing is a row of its own, with doctor's reason."""
    said = doctor(finding("vm"), finding("docker"), finding("singularity", "none"), finding("gpu"))
    known = gpu_check.survey(said)
    assert (known.environments, known.no_gpu) == (("vm", "docker"), "")
    assert known.rows[-1] == Row(
        check="environment singularity", state="not possible here", detail="none"
    )


def test_an_environment_that_cannot_reach_the_gpu_is_a_failure() -> None:
    """Counters that may not be read, and tools that are missing, are not."""
    said = doctor(
        finding("gpu driver"), finding("gpu in vm"), finding("gpu in docker", "no way"),
        finding("gpu counters in vm", "no right"), finding("ncu", "missing"), finding("cgroups"),
    )  # fmt: skip
    rows = {row.check: (row.state, row.detail) for row in gpu_check.survey(said, ()).rows}
    assert rows == {
        "gpu in vm": ("passed", "1.0"),
        "gpu in docker": ("failed", "no way"),
        "gpu counters in vm": ("not possible here", "no right"),
        "ncu": ("not possible here", "missing"),
    }


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (doctor(finding("vm"), finding("gpu", "no NVIDIA GPU")), "no NVIDIA GPU"),
        (doctor(finding("vm"), finding("gpu driver", "too old"), finding("gpu")), "too old"),
        (doctor(finding("vm")), "doctor says nothing of a GPU"),
        ("Traceback: it broke", "doctor did not end well"),
    ],
)
def test_a_machine_without_a_usable_gpu_says_why(said: str, why: str) -> None:
    """Whoever looks at the table knows it at once."""
    assert gpu_check.survey(said).no_gpu == why


@pytest.mark.parametrize(
    ("states", "has_reached", "code"),
    [
        (("passed", "not possible here"), True, 0),
        (("passed", "failed"), True, 1),
        (("passed",), False, 3),
        (("failed",), False, 3),
    ],
)
def test_exit_code_tells_what_happened(
    states: tuple[gpu_claims.State, ...],
    has_reached: bool,  # noqa: FBT001 - a row of the table
    code: int,
) -> None:
    """A run whose images stayed on the CPU is never a success."""
    rows = [Row(check="c", state=state, detail="d") for state in states]
    assert gpu_check.exit_code(rows, has_reached=has_reached) == code


def test_table_counts_its_rows_and_says_a_reason_once() -> None:
    """Twenty rows of one reason stay readable."""
    rows = [Row(check="a", state="passed", detail="fine"), *gpu_claims.unjudged("no GPU")]
    text = gpu_check.table(rows)
    assert text.count("no GPU") == 1
    assert text.endswith(f"1 passed, 0 failed, {len(gpu_claims.names())} not possible here")


def test_a_run_that_left_no_folder_judges_nothing(tmp_path: Path) -> None:
    """Every check is a row, and no image reached a GPU."""
    rows, has_reached = gpu_check.judged(tmp_path)
    assert [row.check for row in rows] == list(gpu_claims.names())
    assert not has_reached


def test_a_machine_whose_python_has_no_torch_says_what_to_name(tmp_path: Path) -> None:
    """Nothing is built for the software of the host, and nothing is measured."""
    options = gpu_check.options_of(["--stacks", "host"])
    (row,) = gpu_check.measure(gpu_check.Session(options=options, folder=tmp_path), ["vm"])
    assert (row.check, row.state) == ("stack of the host", "not possible here")
    assert row.detail.endswith("name one with --host-python")


def test_host_python_is_the_one_of_the_build_where_no_other_has_a_gpu() -> None:
    """Its path stands in what build printed; a named one comes first."""
    built = "local vm: /home/ada/.cache/envcompare/venvs/1/bin/python, torch 2.13.0\n"
    python = "/home/ada/.cache/envcompare/venvs/1/bin/python"
    assert gpu_check.host_python("", built) == python
    assert gpu_check.host_python("/opt/python", built) == "/opt/python"
    assert gpu_check.host_python("", "it failed") == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ada@gpu-vm-7:/home/ada/x", "USER@HOST:HOME/x"),
        ("gpu-vm-7.c.secret-project.internal", "HOST"),
        ("other.c.secret-project.internal", "HOST"),
        ("inet 10.128.0.7/32", "inet ADDRESS/32"),
        ("nameserver 8.8.4.4", "nameserver ADDRESS"),
        ("from 34.72.9.1:22,", "from ADDRESS:22,"),
        ("the canada adapter of 127.0.0.1", "the canada adapter of 127.0.0.1"),
        ("nvidia-curand-cu12==10.3.9.90", "nvidia-curand-cu12==10.3.9.90"),
        ('"nvidia-curand-cu12": "10.3.9.90"', '"nvidia-curand-cu12": "10.3.9.90"'),
        ("driver 570.86.10 at 12:13:14", "driver 570.86.10 at 12:13:14"),
        ("fe80::4001:aff:fe80:7 ::1", "ADDRESS ::1"),
        ("2600:1900:4000::7", "ADDRESS"),
        ("std::vector<at::native::add>", "std::vector<at::native::add>"),
        ("ether 42:01:0a:80:00:07", "ether ADDRESS"),
        ("Serial Number           : 1320220012345", "Serial Number           : REMOVED"),
        (" Username: adal", " Username: REMOVED"),
        ("http://me:word@proxy/", "http://SECRET@proxy/"),
        ("Bus-Id 00000000:00:04.0", "Bus-Id 00000000:00:04.0"),
    ],
)
def test_texts_lose_what_names_the_machine_and_keep_versions(text: str, expected: str) -> None:
    """Names are whole words; four numbers behind a package's name are its version."""
    assert SCRUBBER.text(text) == expected


@pytest.mark.parametrize(("name", "is_telling"), [("root", False), ("ab", False), ("ada", True)])
def test_words_of_every_text_are_no_names(name: str, is_telling: bool) -> None:  # noqa: FBT001 - a row of the table
    """Else "root" would be taken out of "the root of the tree"."""
    assert gpu_check.is_telling(name) is is_telling


def test_archive_is_whole_and_names_nobody(tmp_path: Path) -> None:
    """Texts, packed traces, databases and names of files alike; the database can still be read."""
    folder = tmp_path / "gpu-check-1"
    (folder / "logs" / "gpu-vm-7").mkdir(parents=True)
    (folder / "logs" / "gpu-vm-7" / "doctor.txt").write_text("ada runs in /home/ada")
    (folder / "trace.json.gz").write_bytes(gzip.compress(b'{"host": "gpu-vm-7"}'))
    with sqlite3.connect(folder / "a.sqlite") as database:
        database.execute("CREATE TABLE t (path TEXT)")
        database.execute("INSERT INTO t VALUES ('/home/ada/train.py')")
    database.close()
    (folder / "link").symlink_to("/etc/passwd")
    gpu_check.pack(folder, tmp_path / "a.tar.gz", SCRUBBER)
    out = tmp_path / "out"
    with tarfile.open(tmp_path / "a.tar.gz") as packed:
        names = packed.getnames()
        packed.extractall(out, filter="data")
    assert names == [
        "gpu-check/a.sqlite", "gpu-check/logs/HOST/doctor.txt", "gpu-check/trace.json.gz"
    ]  # fmt: skip
    assert (out / names[1]).read_text() == "USER runs in HOME"
    assert gzip.decompress((out / names[2]).read_bytes()) == b'{"host": "HOST"}'
    database = sqlite3.connect(out / names[0])
    assert database.execute("SELECT path FROM t").fetchall() == [("x" * 9 + "/train.py",)]
    database.close()
    for path in out.rglob("*"):
        if path.is_file():
            assert b"/home/ada" not in path.read_bytes()


def test_a_program_that_is_missing_says_so() -> None:
    """The archive holds the reason in the place of its output."""
    said = gpu_check.ask("no-such-program-here")
    assert said.exit_code == 127
    assert "no-such-program-here" in said.text


def test_nothing_is_built_where_no_environment_is_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The archive holds what doctor said of them."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    words = ["--rehearse", "--envs", "docker", "--out", str(tmp_path)]
    assert gpu_check.main(words) == gpu_check.NO_GPU
    assert "no environment is usable" in capsys.readouterr().out
    assert len(list(tmp_path.glob("gpu-check-*.tar.gz"))) == 1
    assert [path.name for path in tmp_path.glob("gpu-check-*/logs/*")] == ["doctor.txt"]
