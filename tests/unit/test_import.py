"""Importing profiler files: what is compared then, and what the user is told."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import kinetotraces
import pytest
from commandline import envcompare
from imports import FPROP, WINOGRAD, compared, log, request, trace, two_arms
from summaries import markdown

from envcompare.report.page import render


def test_the_first_import_makes_a_run_whose_only_arm_is_the_reference(tmp_path: Path) -> None:
    """The raw file is kept beside its record, and nothing claims to have been timed."""
    done = request(tmp_path, log(tmp_path, "vm.log"), steps=5).run()
    assert done.is_alone
    run = done.folder.read_run()
    assert [(arm.id, arm.is_reference, arm.is_timed) for arm in run.arms] == [("vm", True, False)]
    (record,) = done.folder.read_profiles()
    assert (record.kind, record.name, record.steps) == ("imported", "imported-nvprof", 5)
    assert record.raw == ("profiles/imported_workload_default/vm/imported-nvprof/vm.log",)
    kept = (done.folder.path / record.raw[0]).read_bytes()
    assert kept == (tmp_path / "vm.log").read_bytes()
    assert done.lines == ("vm: 10 launches of 1 kernel in 5 steps, read from nvprof",)


def test_a_second_environment_is_compared_with_the_first(tmp_path: Path) -> None:
    """Kernel sets, quantities and what names show; no verdict, since nothing was timed."""
    found = compared(two_arms(tmp_path))
    assert found.reference_arm == "vm"
    assert (found.comparisons, found.course.failures, found.course.is_complete) == ((), (), True)
    (cell,) = found.profiles
    (diff,) = cell.kernel_diffs
    assert (diff.arm, diff.identical_kernel_set) == ("docker", False)
    assert {one.key for one in cell.betrayed} >= {"kernels.cudnn"}
    text = markdown(found)
    assert "Nothing was timed by envcompare" in text
    assert "| kernel time, whole profile | 6.00 ms | 6.00 ms ×1.0000 |" in text


def test_the_same_kernels_are_said_to_be_the_same(tmp_path: Path) -> None:
    """One sentence, on the page and on the terminal."""
    path = tmp_path / "again.log"
    first = request(tmp_path, log(tmp_path, "vm.log")).run()
    path.write_text(log(tmp_path, "vm.log").read_text() + "\n", encoding="utf-8")
    second = request(tmp_path, path, arm="docker", into=first.folder.path)
    found = compared(second.run().folder)
    assert "docker and vm ran the same kernels: 1 kernel" in markdown(found).replace("\\", "")
    assert "ran the same kernels" in render(found)


def test_steps_can_be_said_afterwards(tmp_path: Path) -> None:
    """Naming a file again with --steps changes what its record covers."""
    folder = two_arms(tmp_path)
    for arm, kernel in (("vm", WINOGRAD), ("docker", FPROP)):
        again = log(tmp_path, f"{arm}.log", kernel)
        done = request(tmp_path, again, arm=arm, into=folder.path, steps=10).run()
        assert done.lines[1] == f"{arm}: imported-nvprof now covers 10 steps"
    (diff,) = compared(folder).profiles[0].kernel_diffs
    assert diff.is_per_step
    assert diff.arm_ns == pytest.approx(600_000)


def test_steps_that_a_trace_counts_itself_are_not_overruled(tmp_path: Path) -> None:
    """--steps is for files that tell none; what contradicts a file is said."""
    trace = kinetotraces.write(tmp_path / "a.json", kinetotraces.step(1))
    done = request(tmp_path, trace, tool="kineto", steps=7).run()
    assert "in 1 step, read from kineto" in done.lines[0]
    (cell,) = compared(done.folder).profiles
    assert "declared with 7 steps but has 1" in " ".join(cell.cautions)


def test_steps_said_afterwards_change_none_that_a_trace_counts_itself(tmp_path: Path) -> None:
    """The message names the number that is used."""
    trace = kinetotraces.write(tmp_path / "a.json", kinetotraces.step(1))
    folder = request(tmp_path, trace, tool="kineto").run().folder
    again = request(tmp_path, trace, tool="kineto", into=folder.path, steps=60)
    said = "vm: imported-kineto covers 1 step, which its file counts; --steps 60 is not used"
    assert again.run().lines[1] == said
    assert said in [event.text for event in folder.read_events().events]


def test_one_file_for_two_environments_is_said_to_differ_in_nothing(tmp_path: Path) -> None:
    """A slip of the hand would look like perfect agreement."""
    first = request(tmp_path, log(tmp_path, "vm.log")).run()
    same = request(tmp_path, log(tmp_path, "vm.log"), arm="docker", into=first.folder.path)
    told = "vm has the same file, so vm and docker cannot differ"
    assert same.run().lines[1] == told


def test_every_import_can_be_typed_again(tmp_path: Path) -> None:
    """The report lists the commands of all imports, also that which said the steps."""
    folder = (
        request(tmp_path, log(tmp_path, "vm.log"), command_line=("envcompare", "first"))
        .run()
        .folder
    )
    for words, changes in (
        (("envcompare", "it's second"), {"arm": "docker"}),
        (("envcompare", "third"), {"arm": "docker", "steps": 10}),
        (("envcompare", "fourth"), {"arm": "docker", "reference": "docker"}),
        (("envcompare", "nothing new"), {"arm": "docker"}),
    ):
        path = log(tmp_path, "docker.log", FPROP)
        request(tmp_path, path, into=folder.path, command_line=words, **changes).run()
    run = compared(folder)
    assert [one.removeprefix("envcompare ") for one in run.imports] == [
        "first", "'it'\"'\"'s second'", "third", "fourth",
    ]  # fmt: skip
    shown = render(run).partition('id="reproduce"')[2].partition("<pre>")[2].partition("</pre>")[0]
    assert unescape(shown).splitlines() == list(run.imports)


def test_a_file_that_holds_nothing_is_no_comparison(tmp_path: Path) -> None:
    """A trace of the wrong part of a program is told, and the other environment still asked for."""
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps({"schemaVersion": 1, "traceEvents": []}), encoding="utf-8")
    folder = request(tmp_path, trace(tmp_path, "vm.json"), tool="kineto").run().folder
    done = request(tmp_path, empty, tool="kineto", arm="docker", into=folder.path).run()
    assert done.lines[0].startswith("⚠ docker: empty.json has nothing to compare")
    assert done.is_alone
    found = compared(done.folder)
    assert "ran the same" not in markdown(found)
    assert "The profiles of docker and vm hold no GPU data" in markdown(found)


def test_the_command_says_what_it_found_and_what_comes_next(tmp_path: Path) -> None:
    """From two logs to a report with two commands, each told by the one before."""
    log(tmp_path, "vm.log")
    log(tmp_path, "docker.log", FPROP)
    first = envcompare("import", "nvprof", "--env", "vm", "vm.log", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "Profiles of vm alone were imported" in first.stdout
    told = first.stdout.splitlines()[-1].removeprefix("next: envcompare ").split()
    words = ["docker.log" if one == "FILE…" else "docker" if one == "NAME" else one for one in told]
    second = envcompare(*words, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    for text in ("differ: 1 only in vm", "kernel time", "scudnn and", "Nothing was timed"):
        assert text in second.stdout
    assert "next:" not in second.stdout
    path = second.stdout.partition("report: ")[2].strip()
    assert (tmp_path / path).is_file()
