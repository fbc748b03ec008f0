"""Captures: a line as it ran on another machine, in one file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from builders import CELL, run_record
from msgspec.structs import replace

from envcompare.cli.running import line_settings, twice
from envcompare.config import parse_arms
from envcompare.environments.registry import all_traits
from envcompare.errors import ConfigError
from envcompare.run_folder.captures import (
    Capture,
    CapturedProcess,
    capture_of,
    read_capture,
    write_capture,
)
from envcompare.run_folder.records import ArmRecord, FingerprintRecord, ProcessRun
from envcompare.run_folder.results import RunFolder

CAPTURE = Capture(
    line="python train.py",
    created="2026-11-01T00:00:00Z",
    tool_version="0.1.0",
    facts={"cpu.model": "a processor", "cpu.affinity": (0, 1)},
    processes=(CapturedProcess(wall_ns=5), CapturedProcess(wall_ns=6, user_ns=0)) * 5,
    control=(CapturedProcess(wall_ns=7),) * 12,
)


def test_capture_is_read_as_it_was_written(tmp_path: Path) -> None:
    """And no file is overwritten."""
    path = tmp_path / "slow.capture"
    write_capture(path, CAPTURE)
    assert read_capture(path) == CAPTURE
    with pytest.raises(ConfigError, match="cannot be written"):
        write_capture(path, CAPTURE)


def test_process_that_did_not_end_is_no_part_of_a_capture(tmp_path: Path) -> None:
    """Its time is that after which it was killed, as at the end of the budget."""
    lines = tuple(
        ArmRecord(
            id=name,
            environment="line",
            stack="line",
            reference="python train.py",
            is_reference=name == "a",
        )
        for name in "ab"
    )
    folder = RunFolder.create(tmp_path, run_record(arms=lines))
    for number in range(11):
        for order, arm in enumerate("ab"):
            is_last = number == 10
            folder.append_sample(
                ProcessRun(
                    cell=CELL, arm=arm, number=number, order=order, t0_ns=0,
                    wall_ns=1 if is_last else 100, user_ns=1, sys_ns=1, real_ns=200,
                    exit_code=0, status="failed" if is_last else "ok",
                )
            )  # fmt: skip
    folder.write_fingerprint(FingerprintRecord(host="local", arm="a", cell=CELL, facts={}))
    folder.close()
    kept = capture_of(folder)
    assert {one.wall_ns for one in (*kept.processes, *kept.control)} == {100}


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, "null", '{"line": 3}', "\\ud800"])
def test_file_that_is_no_capture_is_refused(tmp_path: Path, text: str) -> None:
    """With how to make one."""
    path = tmp_path / "bad.capture"
    path.write_text(text)
    with pytest.raises(ConfigError, match="cannot be read as a capture") as refused:
        read_capture(path)
    assert "envcompare capture" in str(refused.value.hint)


@pytest.mark.parametrize("wall_ns", [-1, 0])
def test_times_below_one_are_refused(tmp_path: Path, wall_ns: int) -> None:
    """A file that somebody else has sent may hold anything."""
    path = tmp_path / "bad.capture"
    content = msgspec.to_builtins(CAPTURE)
    content["control"][0]["wall_ns"] = wall_ns
    path.write_bytes(msgspec.json.encode(content))
    with pytest.raises(ConfigError, match="cannot be read as a capture"):
        read_capture(path)


def test_lines_are_measured_as_often_as_the_shortest_capture(tmp_path: Path) -> None:
    """A capture is named by its file, which other lines may mention as well."""
    path = tmp_path / "slow.capture"
    write_capture(path, CAPTURE)
    settings = line_settings((f"cat {path} -", f"slow={path}"), {})
    assert settings.envs == (f"a=line:cat {path} -", f"slow=captured-line:{path}")
    assert [table.most_rounds for table in settings.workloads.values()] == [10]
    with pytest.raises(ConfigError, match="holds whole processes"):
        line_settings(("true", str(path)), {"lockstep": True})
    with pytest.raises(ConfigError, match="cannot be read as a capture"):
        line_settings(("true", "missing.capture"), {})
    with pytest.raises(ConfigError, match="is a capture already"):
        twice(f"slow={path}")
    assert twice("fast=python x.py") == ("a=python x.py", "b=python x.py")


def test_file_of_a_capture_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one with a space, or with what else would be the name of a line before it."""
    monkeypatch.chdir(tmp_path)
    for name in ("my slow.capture", "x=y.capture"):
        write_capture(Path(name), CAPTURE)
        settings = line_settings(("cat my slow.capture", name, f"slow={name}"), {})
        path = tmp_path / name
        assert settings.envs == (
            "a=line:cat my slow.capture",
            f"b=captured-line:{path}",
            f"slow=captured-line:{path}",
        )
        assert [arm.reference for arm in parse_arms(settings.envs, all_traits())][1] == str(path)
        with pytest.raises(ConfigError, match="is a capture already"):
            twice(name)


def test_capture_of_too_few_processes_is_refused(tmp_path: Path) -> None:
    """No budget of `why` would lead to a verdict."""
    path = tmp_path / "short.capture"
    write_capture(path, replace(CAPTURE, control=CAPTURE.control[:8]))
    with pytest.raises(ConfigError) as refused:
        read_capture(path)
    assert "fewer than 9 processes" in refused.value.details
