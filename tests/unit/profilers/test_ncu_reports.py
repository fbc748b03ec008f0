"""Reports of Nsight Compute, read by the real program and the real module where they are."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from ncutexts import refusing_program

from envcompare.errors import ProfileError
from envcompare.profile_files import ncu
from envcompare.profilers.ncu import choose, offered_metrics
from envcompare.run_folder.profiles import Note

PROGRAM = shutil.which("ncu")
# Debian's package has the reports beside the program, whatever folder it is unpacked into.
SAMPLES = sorted(
    sample
    for parent in (Path(PROGRAM).parents if PROGRAM else ())
    for sample in (parent / "share/doc/nsight-compute/examples").glob("*/*.ncu-rep")
)
needs_ncu = pytest.mark.engine("nvidia-tools")


@needs_ncu
def test_report_holds_what_its_csv_holds(tmp_path: Path) -> None:
    """Shape, device and every metric agree."""
    report = ncu.read(SAMPLES[0])
    argv = [PROGRAM or "ncu", "--import", str(SAMPLES[0]), "--csv", "--page", "raw"]
    done = subprocess.run(
        [*argv, "--print-units", "base"], capture_output=True, check=True, env={"LC_ALL": "C"}
    )
    path = tmp_path / "a.csv"
    path.write_bytes(done.stdout)
    table = ncu.read(path)
    one, other = report.kernels[0], table.kernels[0]
    assert report.devices == table.devices
    assert (one.name, one.grid, one.block, one.calls) == (
        other.name, other.grid, other.block, other.calls,
    )  # fmt: skip
    # CSV rounds to two decimals what the module gives whole
    assert one.metrics == pytest.approx(other.metrics, rel=1e-9, abs=0.0051)
    assert one.metrics["dram__bytes_read.sum"] > 0


@needs_ncu
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_report_with_the_full_set_tells_the_time(sample: Path) -> None:
    """Instructions are counted in it; the duration is of a pass in which they were not."""
    profile = ncu.read(sample)
    (kernel,) = profile.kernels
    read, rate = (kernel.metrics[f"dram__bytes_read.sum{end}"] for end in ("", ".per_second"))
    assert any("sass_" in name for name in kernel.metrics)
    assert Note(kind="unpatched-time") in profile.notes
    assert kernel.total_ns == pytest.approx(read / rate * 1e9, rel=1e-6)


@needs_ncu
@pytest.mark.parametrize("size", [0, 100, 20_000, 100_000])
def test_report_that_was_cut_is_refused(tmp_path: Path, size: int) -> None:
    """The module opens some of them and finds launches without a metric."""
    path = tmp_path / "cut.ncu-rep"
    path.write_bytes(SAMPLES[0].read_bytes()[:size])
    with pytest.raises(ProfileError) as told:
        ncu.read(path)
    assert told.value.brief == "cannot trust cut.ncu-rep"
    assert "damaged, cut off, or from a newer ncu" in told.value.hint


@pytest.mark.parametrize("name", ["a.ncu-rep", "A.NCU-REP"])
@pytest.mark.parametrize("content", [b"", b"hello", b"SQLite format 3\0"])
def test_file_that_is_no_report_is_told_before_it_is_opened(
    tmp_path: Path, name: str, content: bytes
) -> None:
    """The module takes it for a report without launches; a disk may have the name in capitals."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ProfileError) as told:
        ncu.read(path)
    assert told.value.details.startswith("it is not an Nsight Compute report")


@pytest.mark.skipif(find_spec("ncu_report") is not None, reason="the module ncu_report is here")
def test_report_newer_than_ncu_is_refused_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not damaged."""
    said = "==ERROR== run.ncu-rep was created by a newer version of Nsight Compute"
    refusing_program(tmp_path / "ncu", f"{said}\n==ERROR== Failed to load the report")
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "run.ncu-rep").write_bytes(b"NVR\0report")
    with pytest.raises(ProfileError) as told:
        ncu.read(tmp_path / "run.ncu-rep")
    assert told.value.details == f"the ncu on PATH is older than the report: {said}"
    assert (
        "pip install --upgrade ncu-report, or import the output of the ncu that" in told.value.hint
    )


@pytest.mark.skipif(find_spec("ncu_report") is not None, reason="the module ncu_report is here")
def test_report_without_a_reader_tells_both_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optional module, or the command that prints CSV."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "run.ncu-rep").write_bytes(b"NVR\0report")
    with pytest.raises(ProfileError) as told:
        ncu.read(tmp_path / "run.ncu-rep")
    assert "pip install '.[ncu]' in a clone of envcompare" in told.value.hint
    command = "LC_ALL=C ncu --import run.ncu-rep --csv --page raw --print-units base"
    assert command in told.value.hint


@needs_ncu
@pytest.mark.parametrize(("capability", "chip"), [("7.0", "gv100"), ("8.0", "ga100")])
def test_installed_ncu_offers_what_is_chosen(capability: str, chip: str) -> None:
    """The names are those of a real version, without a GPU."""
    argv = [PROGRAM or "ncu", "--query-metrics", "--chips", chip]
    done = subprocess.run(argv, capture_output=True, check=True, text=True)
    offered = offered_metrics(done.stdout)
    assert len(offered) > 1000
    passes = choose(capability, ncu_version="2022.3", offered=offered)
    assert {"dram__bytes_read.sum", "gpu__time_duration.sum"} <= set(passes.memory)
    assert "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum" in passes.flops
