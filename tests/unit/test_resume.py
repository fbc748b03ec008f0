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
from nightly import nightly_except
from runs import UNTIL_KNOWN, unfinish
from summaries import markdown

from envcompare.bundled import workloads
from envcompare.cli.conclusion import conclude
from envcompare.run_folder.results import RunFolder

WORK = "#!/bin/sh\nexec sleep 0.3\n"
STEPS = """
import ctypes, os


class LoadsLate:
    batch = 1
    steps = 0

    def setup(self, seed, device):
        pass

    def step(self):
        self.steps += 1
        self.interrupt(os.path.join({place!r}, "interrupt"))
        ctypes.CDLL(os.path.join({place!r}, "libopenblas.so"))
        return float(sum(i * i for i in range(20000)) % 97)

    def interrupt(self, path):
        # Ctrl-C for a process in a step of this number, where a file asks for it
        if os.path.exists(path):
            with open(path) as file:
                pid, step = map(int, file.read().split())
            if self.steps == step:
                os.kill(pid, 2)
                os.unlink(path)
"""
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
    words = ("--command", "./work", "--data", str(place / "data"))
    measure(place, "out", *words)
    unfinish(only_run(place))
    return place


@pytest.fixture(scope="module")
def stepping(origin: Path) -> Path:
    """Give the same place with a run of a workload that loads a library in its steps."""
    with Path("/proc/self/maps").open() as maps:
        library = next(line.split()[-1] for line in maps if "/libm.so" in line or "/libm-" in line)
    shutil.copy(library, origin / "libopenblas.so")
    (origin / "steps.py").write_text(STEPS.format(place=str(origin)))
    words = ("--workload", f"{origin / 'steps.py'}:LoadsLate", "--no-startup")
    measure(origin, "steps", *words)
    leave_one_restart(only_run(origin, "steps"))
    return origin


def leave_one_restart(run: Path) -> None:
    """Let a run be as it was when it was killed after its first restart."""
    events = read_events(run)
    second = [event["values"].get("restart") for event in events].index(1)
    (run / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in events[:second]))
    lines = (run / "samples.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["restart"] == 0]
    (run / "samples.jsonl").write_text("".join(kept))


def measure(place: Path, out: str, *words: str) -> None:
    """Measure until the cell has ended."""
    done = envcompare(
        *("run", "--envs", "vm@host", "--host-python", str(place / "venv" / "bin" / "python")),
        *("--out", str(place / out), "--no-quiet-gate", "--profile", "none"),
        *UNTIL_KNOWN,
        *words,
        cwd=place,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def place(origin: Path) -> Iterator[Path]:
    """Give the place as it was: a run names it by its path."""
    kept = origin.with_name(f"{origin.name}-kept")
    shutil.copytree(origin, kept, symlinks=True)
    yield origin
    shutil.rmtree(origin)
    kept.rename(origin)
    note_data(origin)


def note_data(place: Path) -> None:
    """Let a run know its data in a copy, whose files have other ctimes."""
    argv = [
        sys.executable,
        str(workloads() / "harness" / "formats" / "data.py"),
        str(place / "data"),
    ]
    found = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    for key in ("changed", "files"):
        edit(only_run(place), f"data.{key}", found[key])


def site_packages(place: Path) -> Path:
    """Return where packages of the interpreter lie."""
    (found,) = place.glob("venv/lib/python3*/site-packages")
    return found


def only_run(place: Path, out: str = "out") -> Path:
    """Return the run folder."""
    (found,) = (place / out).iterdir()
    return found


def edit(run: Path, key: str, value: str | None) -> str:
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


def resume(
    place: Path, *words: str, out: str = "out", code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Go on with the run, which has to end with this exit code."""
    done = envcompare("run", "--resume", str(only_run(place, out)), *words, cwd=place)
    assert done.returncode == code, done.stderr
    return done


def add_a_file(place: Path) -> None:
    """Put one more file into the data."""
    (place / "data" / "more").write_text("more")


def write_other_data(place: Path) -> None:
    """Write other data of the same size into the same file."""
    (place / "data" / "digits").write_text("9876543210")


def put_an_older_file(place: Path) -> None:
    """Put a file of the same size and times in the place of another, as `cp -p` does."""
    digits, other = place / "data" / "digits", place / "other"
    other.write_text("9876543210")
    shutil.copystat(digits, other)
    other.replace(digits)


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
        (put_an_older_file, "the data (newest ctime) of local"),
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
    done = resume(place, code=2)
    assert f"cannot be resumed: {what}" in done.stderr
    assert ", now " in done.stderr
    assert REMEDY in done.stderr
    assert written(only_run(place)) == before


@pytest.mark.parametrize("key", ["kernel.release", "machine.id", "cpu.model"])
def test_another_machine_or_kernel_is_refused_with_both_values(place: Path, key: str) -> None:
    """A host is the same by what it says of itself, not by its name alone."""
    now = edit(only_run(place), key, "another")
    before = written(only_run(place))
    done = resume(place, code=2)
    assert f"another, now {now}" in done.stderr
    assert written(only_run(place)) == before


def test_the_id_of_the_machine_is_written_nowhere(origin: Path) -> None:
    """It is confidential by machine-id(5): what is derived from it tells machines apart as well."""
    secret = Path("/etc/machine-id").read_text().strip()
    run = only_run(origin)
    derived = [event["values"].get("machine.id") for event in read_events(run)]
    assert any(derived)
    assert not [path for path in run.rglob("*.*") if secret.encode() in path.read_bytes()]


def test_a_restarted_host_is_said_and_measured_on(place: Path) -> None:
    """A restart changes no software, and what it may change is compared by itself."""
    now = edit(only_run(place), "boot.id", "another-boot")
    done = resume(place)
    comparison, _ = conclude(RunFolder.open(only_run(place)))
    (change,) = comparison.course.identity_changes
    assert (change.host, change.key, change.before, change.after) == (
        "local", "boot.id", "another-boot", now,
    )  # fmt: skip
    assert "local was restarted since the run began" in done.stderr
    for text in (markdown(comparison), done.stdout, (only_run(place) / "report.html").read_text()):
        assert "local was restarted" in " ".join(text.split())


def test_data_that_cannot_be_read_are_not_said_to_have_changed(place: Path) -> None:
    """They may be what they were: exit code 2, and another remedy than for other data."""
    run = only_run(place)
    edit(run, "data", None)
    done = resume(place, code=2)
    assert "the data of local cannot be verified" in done.stderr
    assert "the data was not known, now " in done.stderr
    assert "restore the data" not in done.stderr
    assert "resume again, start a new run" in done.stderr
    resume(place, "--allow-mismatch")
    assert "it cannot be verified that local did not change" in markdown(
        conclude(RunFolder.open(run))[0]
    )


def test_the_same_software_is_measured_on(place: Path) -> None:
    """Nothing is refused, nothing is said, and the first fingerprints stay."""
    before = written(only_run(place))
    resume(place)
    after = written(only_run(place))
    assert after["samples.jsonl"].startswith(before["samples.jsonl"])
    assert len(after["samples.jsonl"]) > len(before["samples.jsonl"])
    kept = {name: content for name, content in after.items() if name.startswith("fingerprints")}
    assert kept == {name: before[name] for name in kept}
    assert conclude(RunFolder.open(only_run(place)))[0].course.identity_changes == ()


@pytest.mark.parametrize(
    "change", nightly_except((patch_a_package,), (patch_a_package, add_a_file))
)
def test_a_mismatch_that_is_allowed_is_measured_on_and_said(
    place: Path, change: Callable[[Path], None]
) -> None:
    """On the terminal, in the report and in comparison.json, with both values."""
    change(place)
    done = resume(place, "--allow-mismatch")
    comparison, _ = conclude(RunFolder.open(only_run(place)))
    assert comparison.course.identity_changes
    for one in comparison.course.identity_changes:
        for text in (done.stderr, markdown(comparison)):
            assert f"{one.before}, now {one.after}" in " ".join(text.split())
    assert "local changed since the run began: the " in done.stderr
    assert "continuing because of --allow-mismatch" in done.stderr
    assert "--allow-mismatch" in markdown(comparison)
    # it is not forgotten: what was allowed once is compared again
    unfinish(only_run(place))
    resume(place, code=2)


def test_another_program_at_the_same_path_ends_its_arms(place: Path) -> None:
    """It is known once the arms are asked, before one process is timed."""
    before = written(only_run(place))
    (place / "work").write_text(f"{WORK}# changed\n")
    resume(place, code=4)
    after = written(only_run(place))
    assert after["samples.jsonl"] == before["samples.jsonl"]
    failed = [one["failure"] for one in read_events(only_run(place)) if one["what"] == "arm-failed"]
    assert failed
    assert all("changed since the run began" in one["brief"] for one in failed)
    assert all(", now " in one["details"] and REMEDY in one["hint"] for one in failed)


def test_other_surroundings_of_a_worker_end_its_arm(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a process inside the arm sees them; the first fingerprint is kept, the other beside."""
    before = written(only_run(place))
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    done = resume(place, code=4)
    assert "MALLOC_ARENA_MAX" in done.stderr
    after = written(only_run(place))
    assert {name: after[name] for name in before if name != "events.jsonl"} == {
        name: content for name, content in before.items() if name != "events.jsonl"
    }
    later = list(only_run(place).glob("fingerprints/*/*/later/*.json"))
    assert {json.loads(path.read_text())["facts"]["env.MALLOC_ARENA_MAX"] for path in later} == {
        "1"
    }


def test_a_program_that_is_allowed_to_differ_is_said_in_the_report(place: Path) -> None:
    """What is known only inside an arm is let through by the same flag."""
    (place / "work").write_text(f"{WORK}# changed\n")
    resume(place, "--allow-mismatch")
    comparison, _ = conclude(RunFolder.open(only_run(place)))
    assert "changed since the run began" in markdown(comparison)
    said = [
        one["arm"] for one in read_events(only_run(place))
        if "changed since the run began" in one["text"]
    ]  # fmt: skip
    assert sorted(said) == ["vm-host", "vm-host~control"]


def test_steps_of_the_same_software_are_measured_on(stepping: Path) -> None:
    """What is measured before the arms are looked at again is kept once they are the same."""
    run = only_run(stepping, "steps")
    before = written(run)
    resume(stepping, out="steps")
    after = written(run)
    assert len(after["samples.jsonl"]) > len(before["samples.jsonl"])
    assert after["samples.jsonl"].startswith(before["samples.jsonl"])
    assert {name: after[name] for name in before if name.startswith("fingerprints")} == {
        name: content for name, content in before.items() if name.startswith("fingerprints")
    }
    leave_one_restart(run)


def test_what_is_measured_before_an_interruption_of_the_first_generation_is_kept(
    stepping: Path,
) -> None:
    """Ctrl-C ends after the block and saves, in a resumed run too."""
    run = only_run(stepping, "steps")
    before = written(run)
    blocks = [json.loads(line) for line in before["samples.jsonl"].splitlines()]
    longest = max(len(block["wall_ns"]) for block in blocks if "wall_ns" in block)
    command = [sys.executable, "-m", "envcompare", "run", "--resume", str(run)]
    with subprocess.Popen(command, cwd=stepping, stderr=subprocess.PIPE, text=True) as process:
        (stepping / "interrupt").write_text(f"{process.pid} {2 * longest}")
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert not (stepping / "interrupt").exists()
    after = written(run)
    assert after["samples.jsonl"].startswith(before["samples.jsonl"])
    assert len(after["samples.jsonl"]) > len(before["samples.jsonl"])
    assert not [one for one in read_events(run) if one["what"] == "round-dropped"]
    leave_one_restart(run)


def test_another_library_that_only_steps_load_takes_what_was_measured_with_it(
    stepping: Path,
) -> None:
    """It is seen after the first steps: their times are of other software, and are not kept."""
    run = only_run(stepping, "steps")
    with (stepping / "libopenblas.so").open("ab") as library:
        library.write(b"changed")
    before = written(run)
    done = resume(stepping, out="steps", code=4)
    assert "libopenblas.so" in done.stderr
    assert "changed since the run began" in done.stderr
    assert written(run)["samples.jsonl"] == before["samples.jsonl"]
