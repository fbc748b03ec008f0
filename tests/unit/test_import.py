"""Importing profiler files: what is kept, what is refused, and what a run folder says of it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import kinetotraces
import pytest
from builders import CELL, blocks, run_record
from commandline import envcompare

from envcompare import importing
from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.errors import ConfigError, ProfileError, RunFolderError
from envcompare.importing import import_files
from envcompare.importing.place import Request
from envcompare.planning import resumed
from envcompare.profilefiles import read_profiles
from envcompare.records import CellRecord, Event
from envcompare.report.page import render
from envcompare.report.summary import markdown
from envcompare.results import RunFolder

DATA = Path(__file__).resolve().parents[1] / "data" / "profiles"
NVPROF = """\
==1234== NVPROF is profiling process 1234, command: python train.py
==1234== Profiling application: python train.py
==1234== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   60.00%  6.0000ms        10  600.00us  590.00us  610.00us  {kernel}
                   40.00%  4.0000ms        20  200.00us  190.00us  210.00us  [CUDA memcpy HtoD]
      API calls:  100.00%  20.000ms        10  2.0000ms  1.0000ms  3.0000ms  cudaLaunchKernel
"""
WINOGRAD = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
FPROP = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nhwc_tilesize128x64x16"


def log(folder: Path, name: str, kernel: str = WINOGRAD) -> Path:
    """Write a log of nvprof."""
    path = folder / name
    path.write_text(NVPROF.format(kernel=kernel), encoding="utf-8")
    return path


def trace(folder: Path, name: str, rank: int = 0) -> Path:
    """Write a trace of torch.profiler."""
    path = folder / name
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1.0,
         "dur": 2.0 + rank}
    ]  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    return path


def request(tmp_path: Path, *files: Path, **changes: Any) -> Request:
    """Return the import of a log of nvprof as `vm` into a new run."""
    fields: dict[str, Any] = {"tool": "nvprof", "arm": "vm", "out": tmp_path / "results"}
    return Request(files=files, **{**fields, **changes})


def two_arms(tmp_path: Path, *, kernel: str = FPROP, **changes: Any) -> RunFolder:
    """Import a log as vm and one as docker."""
    first = import_files(request(tmp_path, log(tmp_path, "vm.log"), **changes))
    second = request(
        tmp_path, log(tmp_path, "docker.log", kernel), arm="docker", into=first.folder.path,
        **changes,
    )  # fmt: skip
    return import_files(second).folder


def measured(tmp_path: Path, **changes: Any) -> RunFolder:
    """Write a run that timed vm, docker and the control."""
    folder = RunFolder.create(tmp_path / "results", run_record(**changes))
    for arm in ("vm", "docker"):
        folder.append_event(Event(t=1.0, what="arm-ready", host="local", arm=arm))
    for sample in blocks({"vm": 1.0, "docker": 1.1, "vm~control": 1.0}):
        folder.append_sample(sample)
    folder.append_event(Event(t=2.0, what="cell-ended", host="local", cell=CELL, state="ok"))
    folder.append_event(Event(t=3.0, what="run-ended"))
    folder.close()
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def compared(folder: RunFolder) -> RunComparison:
    """Analyse a run folder that was just written."""
    return compare_run(RunFolder.open(folder.path))


def test_the_first_import_makes_a_run_whose_only_arm_is_the_reference(tmp_path: Path) -> None:
    """The raw file is kept beside its record, and nothing claims to have been timed."""
    done = import_files(request(tmp_path, log(tmp_path, "vm.log"), steps=5))
    assert done.is_alone
    run = done.folder.read_run()
    assert [(arm.id, arm.is_reference, arm.is_timed) for arm in run.arms] == [("vm", True, False)]
    (record,) = read_profiles(done.folder)
    assert (record.kind, record.name, record.steps) == ("imported", "imported-nvprof", 5)
    assert record.raw == ("profiles/imported_workload_default/vm/imported-nvprof/vm.log",)
    kept = (done.folder.path / record.raw[0]).read_bytes()
    assert kept == (tmp_path / "vm.log").read_bytes()
    assert done.lines == ("vm: 10 launches of 1 kernel in 5 steps, read from nvprof",)


def test_a_second_environment_is_compared_with_the_first(tmp_path: Path) -> None:
    """Kernel sets, quantities and what names betray; no verdict, since nothing was timed."""
    found = compared(two_arms(tmp_path))
    assert found.reference_arm == "vm"
    assert (found.comparisons, found.failures, found.is_complete) == ((), (), True)
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
    first = import_files(request(tmp_path, log(tmp_path, "vm.log")))
    path.write_text(log(tmp_path, "vm.log").read_text() + "\n", encoding="utf-8")
    second = request(tmp_path, path, arm="docker", into=first.folder.path)
    found = compared(import_files(second).folder)
    assert "docker and vm ran the same kernels: 1 kernel" in markdown(found).replace("\\", "")
    assert "ran the same kernels" in render(found)


def test_a_refused_file_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither a new run folder nor a change of one that is there."""
    bad = tmp_path / "bad.log"
    bad.write_text(NVPROF.format(kernel=WINOGRAD)[:420], encoding="utf-8")
    with pytest.raises(ProfileError):
        import_files(request(tmp_path, log(tmp_path, "vm.log"), bad))
    assert not (tmp_path / "results").exists()
    folder = two_arms(tmp_path)
    before = files_of(folder.path)
    with pytest.raises(ProfileError):
        import_files(request(tmp_path, bad, arm="singularity", into=folder.path))
    assert files_of(folder.path) == before


def test_a_copy_that_fails_undoes_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk leaves no run folder without its profiles, and no arm without any."""
    folder = two_arms(tmp_path)
    before = files_of(folder.path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(importing.shutil, "copyfile", full)
    third = log(tmp_path, "third.log", "third_kernel")
    with pytest.raises(RunFolderError, match="cannot be copied"):
        import_files(request(tmp_path, third, arm="singularity", into=folder.path))
    assert files_of(folder.path) == before
    with pytest.raises(RunFolderError):
        import_files(request(tmp_path, third, out=tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_the_same_file_is_not_imported_twice(tmp_path: Path) -> None:
    """Its launches would count double; under another name it is the same file."""
    folder = two_arms(tmp_path)
    before = files_of(folder.path)
    again = log(tmp_path, "renamed.log", FPROP)
    done = import_files(request(tmp_path, again, arm="docker", into=folder.path))
    assert "renamed.log is there already, by its SHA-256" in done.lines[0]
    assert files_of(folder.path) == before
    twice = import_files(request(tmp_path, log(tmp_path, "a.log"), log(tmp_path, "b.log")))
    assert len(read_profiles(twice.folder)) == 1


def test_steps_can_be_said_afterwards(tmp_path: Path) -> None:
    """Naming a file again with --steps changes what its record covers."""
    folder = two_arms(tmp_path)
    for arm, kernel in (("vm", WINOGRAD), ("docker", FPROP)):
        again = log(tmp_path, f"{arm}.log", kernel)
        done = import_files(request(tmp_path, again, arm=arm, into=folder.path, steps=10))
        assert done.lines[1] == f"{arm}: imported-nvprof covers 10 steps now"
    (diff,) = compared(folder).profiles[0].kernel_diffs
    assert diff.is_per_step
    assert diff.arm_ns == pytest.approx(600_000)


def test_steps_that_a_trace_counts_itself_are_not_overruled(tmp_path: Path) -> None:
    """--steps is for files that tell none; what contradicts a file is said."""
    trace = kinetotraces.write(tmp_path / "a.json", kinetotraces.step(1))
    done = import_files(request(tmp_path, trace, tool="kineto", steps=7))
    assert "in 1 step, read from kineto" in done.lines[0]
    (cell,) = compared(done.folder).profiles
    assert "said to hold 7 steps and itself counts 1" in " ".join(cell.cautions)


def test_one_file_for_two_environments_is_said_to_differ_in_nothing(tmp_path: Path) -> None:
    """A slip of the hand would look like perfect agreement."""
    first = import_files(request(tmp_path, log(tmp_path, "vm.log")))
    same = request(tmp_path, log(tmp_path, "vm.log"), arm="docker", into=first.folder.path)
    assert import_files(same).lines[1] == (
        "vm has the same file: between it and docker nothing can differ"
    )


def test_counters_of_one_call_are_passes_of_one_program(tmp_path: Path) -> None:
    """Bytes and FLOPs of two files give the intensity that neither has; both files are kept."""
    files = (DATA / "ncu_raw_2024.csv", DATA / "ncu_raw_2024_flops.csv")
    done = import_files(request(tmp_path, *files, tool="ncu"))
    (record,) = read_profiles(done.folder)
    assert [Path(one).name for one in record.raw] == [one.name for one in files]
    for one, path in zip(record.raw, files, strict=True):
        assert (done.folder.path / one).read_bytes() == path.read_bytes()
    rows = {one.name: one for one in compared(done.folder).profiles[0].arms[0].quantities}
    for name in ("dram_bytes", "flops_fp32", "arithmetic_intensity"):
        assert rows[name].value, name
    again = import_files(request(tmp_path, *files, tool="ncu", into=done.folder.path))
    assert [line.partition(" is ")[2][:5] for line in again.lines] == ["there", "there"]


def test_counters_of_other_launches_are_refused_together_and_taken_apart(tmp_path: Path) -> None:
    """Passes over two programs are no passes of one."""
    other = tmp_path / "other"
    other.mkdir()
    pair = (log(tmp_path, "x.log"), log(other, "x.log", FPROP))
    with pytest.raises(ProfileError) as caught:
        import_files(request(tmp_path, *pair))
    assert "one call for each" in caught.value.hint
    assert not (tmp_path / "results").exists()
    folder = import_files(request(tmp_path, pair[0])).folder
    import_files(request(tmp_path, pair[1], into=folder.path))
    records = sorted(read_profiles(folder), key=lambda one: one.name)
    assert [one.name for one in records] == ["imported-nvprof", "imported-nvprof-2"]
    assert len({name for one in records for name in one.raw}) == 2
    for one, path in zip(records, pair, strict=True):
        assert (folder.path / one.raw[0]).read_bytes() == path.read_bytes()


def test_passes_with_equal_file_names_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """One folder for each pass is a habit of many scripts."""
    paths = []
    for name in ("ncu_raw_2024.csv", "ncu_raw_2024_flops.csv"):
        paths.append(tmp_path / name.removesuffix(".csv") / "out.csv")
        paths[-1].parent.mkdir()
        paths[-1].write_bytes((DATA / name).read_bytes())
    (record,) = read_profiles(import_files(request(tmp_path, *paths, tool="ncu")).folder)
    assert list(record.sha256) == ["out.csv", "2-out.csv"]
    assert len(record.raw) == 2


def test_each_rank_of_a_trace_is_a_profile_of_its_own(tmp_path: Path) -> None:
    """Traces of several ranks are no passes over the same launches."""
    paths = [trace(tmp_path, f"rank{number}.json", number) for number in (0, 1)]
    records = read_profiles(import_files(request(tmp_path, *paths, tool="kineto")).folder)
    assert [(one.name, *one.sha256) for one in records] == [
        ("imported-kineto", "rank0.json"), ("imported-kineto-2", "rank1.json"),
    ]  # fmt: skip


def test_every_import_can_be_typed_again(tmp_path: Path) -> None:
    """The report lists the commands of all imports, also that which said the steps."""
    folder = import_files(
        request(tmp_path, log(tmp_path, "vm.log"), command_line=("envcompare", "first"))
    ).folder
    for words, changes in (
        (("envcompare", "it's second"), {"arm": "docker"}),
        (("envcompare", "third"), {"arm": "docker", "steps": 10}),
        (("envcompare", "fourth"), {"arm": "docker", "reference": "docker"}),
        (("envcompare", "nothing new"), {"arm": "docker"}),
    ):
        path = log(tmp_path, "docker.log", FPROP)
        import_files(request(tmp_path, path, into=folder.path, command_line=words, **changes))
    run = compared(folder)
    assert [one.removeprefix("envcompare ") for one in run.imports] == [
        "first", "'it'\"'\"'s second'", "third", "fourth",
    ]  # fmt: skip
    shown = render(run).partition('id="reproduce"')[2].partition("<pre>")[2].partition("</pre>")[0]
    assert unescape(shown).splitlines() == list(run.imports)


def test_a_trace_in_json_is_kept_without_becoming_a_record(tmp_path: Path) -> None:
    """A raw file may end in .json as records do."""
    done = import_files(request(tmp_path, trace(tmp_path, "trace.json"), tool="kineto"))
    (record,) = read_profiles(done.folder)
    assert record.raw[0].endswith("imported-kineto/trace.json")
    assert record.profile is not None
    assert record.profile.operators[0].name == "aten::add"


def test_a_large_file_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read, its digest is kept, and the user is told."""
    monkeypatch.setattr(importing, "COPY_LIMIT_BYTES", 10)
    done = import_files(request(tmp_path, log(tmp_path, "vm.log")))
    (record,) = read_profiles(done.folder)
    assert record.raw == ()
    assert list(record.sha256) == ["vm.log"]
    assert "vm.log is not copied" in done.lines[1]


def test_no_copy_keeps_the_record_alone(tmp_path: Path) -> None:
    """What was read is in the record; the file lies where the user has it."""
    done = import_files(request(tmp_path, log(tmp_path, "vm.log"), is_copied=False))
    assert not list(done.folder.path.rglob("*.log"))
    assert len(done.lines) == 1


def test_a_hostile_file_name_stays_inside_the_run_folder(tmp_path: Path) -> None:
    """Blanks, quotes and dots in a name make no path of their own."""
    path = log(tmp_path, "..-<b>'\u202e x.log")
    done = import_files(request(tmp_path, path))
    (record,) = read_profiles(done.folder)
    kept = (done.folder.path / record.raw[0]).resolve()
    assert kept.is_relative_to(done.folder.path.resolve())
    html = render(compared(done.folder), files=done.folder.file_names())
    assert "<b>" not in html
    assert "\u202e" not in html


def test_the_reference_of_an_imported_run_can_be_chosen(tmp_path: Path) -> None:
    """The first is a default."""
    folder = two_arms(tmp_path)
    again = log(tmp_path, "docker.log", FPROP)
    import_files(request(tmp_path, again, arm="docker", into=folder.path, reference="docker"))
    assert compared(folder).reference_arm == "docker"
    with pytest.raises(ConfigError, match="no environment of the run"):
        import_files(request(tmp_path, again, arm="docker", into=folder.path, reference="x"))


def test_another_workload_makes_another_cell(tmp_path: Path) -> None:
    """Profiles of other work are never compared with each other."""
    folder = import_files(request(tmp_path, log(tmp_path, "vm.log"), workload="cnn")).folder
    other = request(tmp_path, log(tmp_path, "rnn.log", FPROP), workload="rnn", into=folder.path)
    import_files(other)
    assert [one.workload for one in folder.read_run().cells] == ["cnn", "rnn"]
    third = log(tmp_path, "third.log", "k")
    with pytest.raises(ConfigError, match="several cells"):
        import_files(request(tmp_path, third, into=folder.path))


def test_an_arm_of_a_timed_run_gets_the_profile(tmp_path: Path) -> None:
    """Verdicts stay as they were; the profiles stand beside them."""
    folder = measured(tmp_path)
    before = compared(folder)
    for arm in ("vm", "docker"):
        path = log(tmp_path, f"{arm}.log", f"{WINOGRAD}_{'a' * len(arm)}")
        import_files(request(tmp_path, path, arm=arm, into=folder.path))
    after = compared(folder)
    assert after.comparisons == before.comparisons
    assert after.cells == before.cells
    assert after.duration_s == before.duration_s
    assert [one.arm for one in after.profiles[0].kernel_diffs] == ["docker"]
    assert folder.read_run() == RunFolder.open(folder.path).read_run()


def test_an_arm_that_a_timed_run_lacks_is_added_untimed(tmp_path: Path) -> None:
    """It widens no interval, has no verdict, and does not stop the run from being resumed."""
    folder = measured(tmp_path)
    before = compared(folder)
    for arm, kernel in (("vm", WINOGRAD), ("old", FPROP)):
        path = log(tmp_path, f"{arm}.log", kernel)
        import_files(request(tmp_path, path, arm=arm, into=folder.path))
    after = compared(folder)
    assert after.planned_comparisons == before.planned_comparisons
    assert after.comparisons == before.comparisons
    assert {one.arm: one.is_timed for one in after.arms}["old"] is False
    assert "old and vm differ" in markdown(after)
    with pytest.raises(ConfigError, match="cannot be changed"):
        import_files(
            request(tmp_path, tmp_path / "old.log", arm="old", into=folder.path, reference="old")
        )


def test_a_run_of_several_cells_asks_which_is_meant(tmp_path: Path) -> None:
    """By workload or by the cell's ID."""
    cells = (
        CellRecord(id=CELL, host="local", workload="cnn"),
        CellRecord(id="local/rnn/default", host="local", workload="rnn"),
    )
    folder = measured(tmp_path, cells=cells)
    path = log(tmp_path, "vm.log")
    with pytest.raises(ConfigError) as caught:
        import_files(request(tmp_path, path, into=folder.path))
    assert "local/rnn/default" in caught.value.details
    with pytest.raises(ConfigError, match="the run has no gpt"):
        import_files(request(tmp_path, path, into=folder.path, workload="gpt"))
    import_files(request(tmp_path, path, into=folder.path, workload="rnn"))
    import_files(request(tmp_path, path, into=folder.path, cell=CELL))
    assert {one.cell for one in read_profiles(folder)} == {CELL, "local/rnn/default"}


def test_arms_with_like_names_keep_their_own_profiles(tmp_path: Path) -> None:
    """A name that makes no folder as it is shares none with another."""
    folder = import_files(request(tmp_path, log(tmp_path, "a.log"), arm="docker@host")).folder
    import_files(
        request(tmp_path, log(tmp_path, "b.log", FPROP), arm="docker_host", into=folder.path)
    )
    kept = {one.arm: one.profile.kernels[0].name for one in read_profiles(folder) if one.profile}
    assert kept == {"docker@host": WINOGRAD, "docker_host": FPROP}


def test_an_imported_run_cannot_be_resumed(tmp_path: Path) -> None:
    """It measures nothing."""
    folder = import_files(request(tmp_path, log(tmp_path, "vm.log"))).folder
    with pytest.raises(ConfigError, match="imported profiles"):
        resumed(folder)


@pytest.mark.parametrize("name", ["", "a b", "../x", "vm~control", "a/b", "\u202ex"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    """An environment's name becomes a folder and a column."""
    with pytest.raises(ConfigError, match="cannot name"):
        import_files(request(tmp_path, log(tmp_path, "vm.log"), arm=name))
    assert not (tmp_path / "results").exists()


def pipe(path: Path) -> None:
    """Make a named pipe that nobody writes to."""
    os.mkfifo(path)


def device(path: Path) -> None:
    """Make a link to a device that never ends."""
    path.symlink_to("/dev/zero")


def listener(path: Path) -> None:
    """Make a socket."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # its path has to be short


@pytest.mark.parametrize("make", [pipe, device, listener, Path.mkdir])
@pytest.mark.timeout(60)
def test_what_is_no_regular_file_is_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    """A pipe would wait for ever, and a device fill the memory."""
    monkeypatch.chdir(tmp_path)
    odd = tmp_path / "odd.log"
    make(odd)
    with pytest.raises(ConfigError, match="is not a regular file"):
        import_files(request(tmp_path, odd))
    assert not (tmp_path / "results").exists()
    folder = two_arms(tmp_path)
    record = next(folder.path.glob("profiles/*/docker/*.json"))
    record.unlink()
    make(record)
    with pytest.raises(RunFolderError, match="is not a regular file"):
        compared(folder)


def test_a_link_to_a_regular_file_is_as_good_as_the_file(tmp_path: Path) -> None:
    """Profiles often lie elsewhere."""
    link = tmp_path / "link.log"
    link.symlink_to(log(tmp_path, "vm.log"))
    (record,) = read_profiles(import_files(request(tmp_path, link)).folder)
    assert list(record.sha256) == ["link.log"]


@pytest.mark.parametrize("field", ["arm", "workload"])
def test_a_name_that_fits_into_no_folder_is_refused(tmp_path: Path, field: str) -> None:
    """The disk would refuse it in the middle of the import, and blame its room."""
    path = log(tmp_path, "vm.log")
    import_files(request(tmp_path, path, **{field: "a" * 100}))
    with pytest.raises(ConfigError, match="too long") as caught:
        import_files(request(tmp_path, path, **{field: "a" * 101}))
    assert "101 characters" in caught.value.details
    assert len(caught.value.brief) < 100


def test_a_workload_without_a_name_is_refused(tmp_path: Path) -> None:
    """An empty variable of a script is no choice, neither in a new run nor in one that is there."""
    folder = two_arms(tmp_path)
    third = log(tmp_path, "third.log", "k")
    for changes in ({}, {"into": folder.path}):
        with pytest.raises(ConfigError, match="cannot name a workload"):
            import_files(request(tmp_path, third, workload="", **changes))


def test_an_arm_that_differs_in_case_alone_is_refused(tmp_path: Path) -> None:
    """Some disks would give both one folder."""
    folder = two_arms(tmp_path)
    with pytest.raises(ConfigError, match="upper and lower case"):
        import_files(request(tmp_path, log(tmp_path, "x.log"), arm="VM", into=folder.path))


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"arm": "nobody"}, "nobody"), ({"cell": "x/y/z"}, "x/y/z"), ({"host": "far"}, "far")],
)
def test_a_record_of_what_the_run_does_not_know_is_told(
    tmp_path: Path, changes: dict[str, str], name: str
) -> None:
    """It was edited or copied in, and would be missed by whoever looks for it."""
    folder = two_arms(tmp_path)
    record = next(folder.path.glob("profiles/*/docker/*.json"))
    record.write_text(json.dumps(json.loads(record.read_text()) | changes))
    (cell,) = compared(folder).profiles
    (told,) = [text for text in cell.cautions if "run.json" in text]
    assert name in told


def test_a_file_that_holds_nothing_is_no_comparison(tmp_path: Path) -> None:
    """A trace of the wrong part of a program is told, and the other environment still asked for."""
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps({"schemaVersion": 1, "traceEvents": []}), encoding="utf-8")
    folder = import_files(request(tmp_path, trace(tmp_path, "vm.json"), tool="kineto")).folder
    done = import_files(request(tmp_path, empty, tool="kineto", arm="docker", into=folder.path))
    assert done.lines[0].startswith("⚠ docker: empty.json holds nothing to compare")
    assert done.is_alone
    found = compared(done.folder)
    assert "ran the same" not in markdown(found)
    assert "no profiles whose kernels compare" in markdown(found)


def test_a_report_that_the_disk_refuses_can_be_drawn_again(tmp_path: Path) -> None:
    """The run is safe, and the command that draws it is told."""
    folder = two_arms(tmp_path)
    (folder.path / "report.html").mkdir()
    done = envcompare("report", str(folder.path), cwd=tmp_path)
    assert done.returncode == 5
    assert f"kept in {folder.path}" in done.stderr
    assert f"`envcompare report {folder.path}`" in done.stderr


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


@pytest.mark.parametrize(
    ("arguments", "exit_code", "word"),
    [
        (("nvprof", "--env", "vm", "nowhere.log"), 2, "nowhere.log"),
        (("nvprof", "--env", "vm"), 2, "FILE"),
        (("nvprof", "vm.log"), 2, "--env"),
        (("gprof", "--env", "vm", "vm.log"), 2, "gprof"),
        (("nvprof", "--env", "vm", "--steps", "0", "vm.log"), 2, "--steps"),
        (("nsys", "--env", "vm", "vm.log"), 5, "vm.log"),
        (("ncu", "--env", "vm", "vm.log"), 5, "vm.log"),
        (("kineto", "--env", "vm", "vm.log"), 5, "vm.log"),
        (("nvprof", "--env", "vm", "--into", "nowhere", "vm.log"), 5, "nowhere"),
    ],
)
def test_a_mistake_ends_in_sentences_and_its_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], exit_code: int, word: str
) -> None:
    """Wrong usage is 2, a file or folder that cannot be trusted is 5; nothing is left behind."""
    log(tmp_path, "vm.log")
    done = envcompare("import", *arguments, cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr
    assert done.stderr.startswith("error: ")
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["vm.log"]
