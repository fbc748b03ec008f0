"""A resumed run measures what the first part measured, or says with both values why it does not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commandline import envcompare
from runs import unfinish

from envcompare.cli.concluding import conclude
from envcompare.report.summary import markdown
from envcompare.results import RunFolder

WORK = "#!/bin/sh\nexec sleep 0.01\n"
REMEDY = "start a new run"


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a place with a command, data, an interpreter, and a run whose cell has not ended."""
    place = tmp_path_factory.mktemp("origin")
    (place / "data").mkdir()
    (place / "data" / "digits").write_text("0123456789")
    (place / "work").write_text(WORK)
    (place / "work").chmod(0o755)
    venv = [sys.executable, "-m", "venv", "--without-pip", str(place / "venv")]
    subprocess.run(venv, check=True)
    (site_packages(place) / "own.py").write_text("VALUE = 1\n")
    done = envcompare(
        *("run", "--envs", "vm@host", "--host-python", str(place / "venv" / "bin" / "python")),
        *("--command", "./work", "--data", str(place / "data"), "--out", str(place / "out")),
        *("--budget", "2", "--no-quiet-gate", "--profile", "none"),
        cwd=place,
    )
    assert done.returncode == 0, done.stderr
    unfinish(only_run(place))
    return place


@pytest.fixture
def place(origin: Path) -> Iterator[Path]:
    """Give the place as it was: a run names it by its path."""
    kept = origin.with_name(f"{origin.name}-kept")
    shutil.copytree(origin, kept, symlinks=True)
    yield origin
    shutil.rmtree(origin)
    kept.rename(origin)


def site_packages(place: Path) -> Path:
    """Return where packages of the interpreter lie."""
    (found,) = place.glob("venv/lib/python3*/site-packages")
    return found


def only_run(place: Path) -> Path:
    """Return the run folder."""
    (found,) = (place / "out").iterdir()
    return found


def edit(run: Path, key: str, value: str) -> str:
    """Write another value of a property into what was noted; return the one that was there."""
    events = read_events(run)
    for event in events:
        if event["what"] == "identity" and key in event["values"]:
            before = event["values"][key]
            event["values"][key] = value
    (run / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in events))
    return str(before)


def read_events(run: Path) -> list[dict[str, Any]]:
    """Return the events."""
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def written(run: Path) -> dict[str, bytes]:
    """Return what the measuring half has written."""
    names = ("run.json", "samples.jsonl", "events.jsonl")
    prints = (str(path.relative_to(run)) for path in run.glob("fingerprints/*/*/*.json"))
    return {name: (run / name).read_bytes() for name in (*names, *prints)}


def resume(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Go on with the run."""
    return envcompare("run", "--resume", str(only_run(place)), *words, cwd=place)


def add_a_file(place: Path) -> None:
    """Put one more file into the data."""
    (place / "data" / "more").write_text("more")


def write_other_data(place: Path) -> None:
    """Write other data of the same size into the same file."""
    (place / "data" / "digits").write_text("9876543210")


def patch_a_package(place: Path) -> None:
    """Change a file of a package."""
    (site_packages(place) / "own.py").write_text("VALUE = 2\n")


def put_another_interpreter(place: Path) -> None:
    """Let the name of the interpreter lead to another file."""
    path = place / "venv" / "bin" / "python"
    real = path.resolve()
    path.unlink()
    shutil.copy(real, path)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (add_a_file, "the data of local"),
        (write_other_data, "the data of local"),
        (patch_a_package, "the installed files of vm-host on local"),
        (put_another_interpreter, "the interpreter of vm-host on local"),
    ],
    ids=lambda one: getattr(one, "__name__", "value"),
)
def test_other_software_or_data_is_refused_before_anything_is_measured(
    place: Path, change: Callable[[Path], None], what: str
) -> None:
    """Exit code 2, both values and what to do; the run folder stays as it was."""
    before = written(only_run(place))
    change(place)
    done = resume(place)
    assert done.returncode == 2, done.stderr
    assert f"cannot be resumed: {what}" in done.stderr
    assert "then, " in done.stderr
    assert REMEDY in done.stderr
    assert written(only_run(place)) == before


@pytest.mark.parametrize("key", ["kernel.release", "machine.id", "cpu.model"])
def test_another_machine_or_kernel_is_refused_with_both_values(place: Path, key: str) -> None:
    """A host is the same by what it says of itself, not by its name alone."""
    now = edit(only_run(place), key, "another")
    before = written(only_run(place))
    done = resume(place)
    assert done.returncode == 2, done.stderr
    assert f"another then, {now} now" in done.stderr
    assert written(only_run(place)) == before


def test_a_restarted_host_is_said_and_measured_on(place: Path) -> None:
    """A restart changes no software, and what it may change is compared by itself."""
    now = edit(only_run(place), "boot.id", "another-boot")
    done = resume(place)
    assert done.returncode == 0, done.stderr
    comparison, _ = conclude(RunFolder.open(only_run(place)))
    (change,) = comparison.identity_changes
    assert (change.host, change.key, change.before, change.after) == (
        "local", "boot.id", "another-boot", now,
    )  # fmt: skip
    for text in (markdown(comparison), done.stdout, (only_run(place) / "report.html").read_text()):
        assert "local was restarted" in " ".join(text.split())


def test_a_run_that_noted_no_software_is_refused(place: Path) -> None:
    """Earlier versions wrote such folders."""
    run = only_run(place)
    events = [one for one in read_events(run) if one["what"] != "identity"]
    (run / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in events))
    before = written(run)
    done = resume(place)
    assert done.returncode == 2, done.stderr
    assert "does not say what software it measured" in done.stderr
    assert REMEDY in done.stderr
    assert written(run) == before


def test_the_same_software_is_measured_on(place: Path) -> None:
    """Nothing is refused, nothing is said, and the first fingerprints stay."""
    before = written(only_run(place))
    done = resume(place)
    assert done.returncode == 0, done.stderr
    after = written(only_run(place))
    assert after["samples.jsonl"].startswith(before["samples.jsonl"])
    assert len(after["samples.jsonl"]) > len(before["samples.jsonl"])
    kept = {name: content for name, content in after.items() if name.startswith("fingerprints")}
    assert kept == {name: before[name] for name in kept}
    assert conclude(RunFolder.open(only_run(place)))[0].identity_changes == ()


@pytest.mark.parametrize("change", [patch_a_package, add_a_file])
def test_a_mismatch_that_is_allowed_is_measured_on_and_said(
    place: Path, change: Callable[[Path], None]
) -> None:
    """On the terminal, in the report and in comparison.json, with both values."""
    change(place)
    done = resume(place, "--allow-mismatch")
    assert done.returncode == 0, done.stderr
    comparison, _ = conclude(RunFolder.open(only_run(place)))
    assert comparison.identity_changes
    for one in comparison.identity_changes:
        for text in (done.stderr, markdown(comparison)):
            assert f"{one.before} then, {one.after} now" in " ".join(text.split())
    assert "--allow-mismatch" in markdown(comparison)
    # it is not forgotten: what was allowed once is compared again
    unfinish(only_run(place))
    assert resume(place).returncode == 2
