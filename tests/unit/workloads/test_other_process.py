"""What the launcher of a line reads of other processes, and of the folder that they write to."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.facts.cgroups import Cgroup, limit_hits
from harness.facts.cgroups import limits as group_limits
from harness.facts.confinement import confinement
from harness.facts.otherprocess import process_facts, python_facts
from harness.facts.variables import variables
from harness.programs import _written_since
from harness.watching import _since_ms


def test_process_is_described_from_outside_as_from_inside() -> None:
    """Each fact that both read has one value, here of this process itself."""
    outside = process_facts(os.getpid())
    inside = {**confinement(None), **group_limits(), **variables()}
    shared = outside.keys() & inside.keys() - {"mount.scratch", "threads.alive"}
    assert len(shared) > 40
    assert {key: outside[key] for key in shared} == {key: inside[key] for key in shared}


def test_packages_of_a_virtual_environment_are_those_it_was_started_from(tmp_path: Path) -> None:
    """Also if it is named by a relative path, or found on PATH."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "own"], cwd=tmp_path, check=True)
    site = next((tmp_path / "own" / "lib").glob("python*/site-packages"))
    (site / "mine-1.2.dist-info").mkdir()
    path = f"{tmp_path}/own/bin:{os.environ['PATH']}"
    for words, variable in ((["own/bin/python"], os.environ["PATH"]), (["python"], path)):
        with subprocess.Popen(
            [*words, "-c", "input()"],
            cwd=tmp_path,
            env={**os.environ, "PATH": variable},
            executable=tmp_path / "own" / "bin" / "python",
            stdin=subprocess.PIPE,
        ) as process:
            time.sleep(0.2)
            facts = python_facts(process.pid)
            process.communicate(b"\n")
        assert "mine==1.2" in facts["packages"], words


def test_files_that_python_runs_as_it_starts_are_named(tmp_path: Path) -> None:
    """Those of the environment and of PYTHONPATH; a path file without code is none."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "own"], cwd=tmp_path, check=True)
    site = next((tmp_path / "own" / "lib").glob("python*/site-packages"))
    (site / "hook.pth").write_text("import sys\n")
    (site / "folder.pth").write_text("/imports\n")
    (tmp_path / "sitecustomize.py").write_text("began = True\n")
    with subprocess.Popen(
        [tmp_path / "own" / "bin" / "python", "-c", "input()"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
    ) as process:
        time.sleep(0.2)
        found = python_facts(process.pid)["python.start_files"]
        process.communicate(b"\n")
    names = {one.partition(" ")[0] for one in found}
    assert names >= {"hook.pth", "sitecustomize.py"}
    assert "folder.pth" not in names


def test_process_that_has_ended_has_no_facts() -> None:
    """None of them is a value that it might have had."""
    process = subprocess.Popen(["true"])
    process.wait()
    assert set(process_facts(process.pid).values()) == {None}
    assert python_facts(process.pid) == {}


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-29T10:00:01.250000000Z", 1250),
        ("2026-11-29T11:00:01.25+01:00", 1250),
        ("2026-11-29 10:00:01.250000001 +0000 UTC", 1250),
        ("2026-11-29T10:00:01Z", 1000),
        ("0001-01-01T00:00:00Z", 0),
        ("", None),
    ],
)
def test_time_of_an_engine_is_read_in_the_forms_of_docker_and_podman(
    text: str, ms: int | None
) -> None:
    """It is compared with the clock of this machine; one before the start is 0."""
    assert _since_ms(1795946400.0, text) == ms


def test_reached_memory_limit_is_counted_in_both_versions(tmp_path: Path) -> None:
    """The files are those of kernel: admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst."""
    (tmp_path / "memory.failcnt").write_text("31\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 0\n")
    assert limit_hits(Cgroup(1, [str(tmp_path)])) == 31
    assert limit_hits(Cgroup(2, [str(tmp_path)])) == 7
    assert limit_hits(Cgroup(0, [])) is None


def test_written_files_are_named_but_not_byte_code_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what is hidden, what was there before, and what is dated in the future."""
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new", ".cache/x", "a/__pycache__/m.pyc", "runs/r/run.json", "runs/r/log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    began_s = time.time() - 10
    os.utime("old", (began_s - 60, began_s - 60))
    (tmp_path / "later").touch()
    os.utime("later", (began_s + 3600, began_s + 3600))
    assert _written_since(began_s) == ["new"]
