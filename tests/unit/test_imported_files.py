"""Which files an import keeps, under which names, and which of them make one profile."""

from __future__ import annotations

from pathlib import Path

import pytest
from imports import FPROP, compared, files_of, log, request, trace, two_arms

from envcompare import importing
from envcompare.errors import ProfileError
from envcompare.report.page import render

DATA = Path(__file__).resolve().parents[1] / "data" / "profiles"


def test_the_same_file_is_not_imported_twice(tmp_path: Path) -> None:
    """Its launches would count double; under another name it is the same file."""
    folder = two_arms(tmp_path)
    before = files_of(folder.path)
    again = log(tmp_path, "renamed.log", FPROP)
    done = request(tmp_path, again, arm="docker", into=folder.path).run()
    assert "renamed.log is already imported (same SHA-256)" in done.lines[0]
    assert files_of(folder.path) == before
    twice = request(tmp_path, log(tmp_path, "a.log"), log(tmp_path, "b.log")).run()
    assert len(twice.folder.read_profiles()) == 1


def test_counters_of_one_call_are_passes_of_one_program(tmp_path: Path) -> None:
    """Bytes and FLOPs of two files give the intensity that neither has; both files are kept."""
    files = (DATA / "ncu_raw_2024.csv", DATA / "ncu_raw_2024_flops.csv")
    done = request(tmp_path, *files, tool="ncu").run()
    (record,) = done.folder.read_profiles()
    assert [Path(one).name for one in record.raw] == [file.name for file in files]
    for one, path in zip(record.raw, files, strict=True):
        assert (done.folder.path / one).read_bytes() == path.read_bytes()
    rows = {
        quantity.name: quantity for quantity in compared(done.folder).profiles[0].arms[0].quantities
    }
    for name in ("dram_bytes", "flops_fp32", "arithmetic_intensity"):
        assert rows[name].value, name
    again = request(tmp_path, *files, tool="ncu", into=done.folder.path).run()
    assert [line.partition(" is ")[2][:16] for line in again.lines] == ["already imported"] * 2


def test_counters_of_other_launches_are_refused_together_and_taken_apart(tmp_path: Path) -> None:
    """Passes over two programs are no passes of one."""
    other = tmp_path / "other"
    other.mkdir()
    pair = (log(tmp_path, "x.log"), log(other, "x.log", FPROP))
    with pytest.raises(ProfileError) as caught:
        request(tmp_path, *pair).run()
    assert "one call for each" in caught.value.hint
    assert not (tmp_path / "results").exists()
    folder = request(tmp_path, pair[0]).run().folder
    request(tmp_path, pair[1], into=folder.path).run()
    records = sorted(folder.read_profiles(), key=lambda one: one.name)
    assert [record.name for record in records] == ["imported-nvprof", "imported-nvprof-2"]
    assert len({name for record in records for name in record.raw}) == 2
    for one, path in zip(records, pair, strict=True):
        assert (folder.path / one.raw[0]).read_bytes() == path.read_bytes()


def test_passes_with_equal_file_names_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """One folder for each pass is a habit of many scripts."""
    paths = []
    for name in ("ncu_raw_2024.csv", "ncu_raw_2024_flops.csv"):
        paths.append(tmp_path / name.removesuffix(".csv") / "out.csv")
        paths[-1].parent.mkdir()
        paths[-1].write_bytes((DATA / name).read_bytes())
    (record,) = request(tmp_path, *paths, tool="ncu").run().folder.read_profiles()
    assert list(record.sha256) == ["out.csv", "2-out.csv"]
    assert len(record.raw) == 2


def test_each_rank_of_a_trace_is_a_profile_of_its_own(tmp_path: Path) -> None:
    """Traces of several ranks are no passes over the same launches."""
    paths = [trace(tmp_path, f"rank{number}.json", number) for number in (0, 1)]
    records = request(tmp_path, *paths, tool="kineto").run().folder.read_profiles()
    assert [(record.name, *record.sha256) for record in records] == [
        ("imported-kineto", "rank0.json"), ("imported-kineto-2", "rank1.json"),
    ]  # fmt: skip


def test_a_trace_in_json_is_kept_without_becoming_a_record(tmp_path: Path) -> None:
    """A raw file may end in .json as records do."""
    done = request(tmp_path, trace(tmp_path, "trace.json"), tool="kineto").run()
    (record,) = done.folder.read_profiles()
    assert record.raw[0].endswith("imported-kineto/trace.json")
    assert record.profile is not None
    assert record.profile.operators[0].name == "aten::add"


def test_a_large_file_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read, its digest is kept, and the user is told."""
    monkeypatch.setattr(importing, "COPY_LIMIT_BYTES", 10)
    done = request(tmp_path, log(tmp_path, "vm.log")).run()
    (record,) = done.folder.read_profiles()
    assert record.raw == ()
    assert list(record.sha256) == ["vm.log"]
    assert "vm.log is not copied" in done.lines[1]


def test_no_copy_keeps_the_record_alone(tmp_path: Path) -> None:
    """What was read is in the record; the file lies where the user has it."""
    done = request(tmp_path, log(tmp_path, "vm.log"), is_copied=False).run()
    assert not list(done.folder.path.rglob("*.log"))
    assert len(done.lines) == 1


def test_a_hostile_file_name_stays_inside_the_run_folder(tmp_path: Path) -> None:
    """Blanks, quotes and dots in a name make no path of their own."""
    path = log(tmp_path, "..-<b>'\u202e x.log")
    done = request(tmp_path, path).run()
    (record,) = done.folder.read_profiles()
    kept = (done.folder.path / record.raw[0]).resolve()
    assert kept.is_relative_to(done.folder.path.resolve())
    html = render(compared(done.folder), files=done.folder.file_names())
    assert "<b>" not in html
    assert "\u202e" not in html


def test_a_link_to_a_regular_file_is_as_good_as_the_file(tmp_path: Path) -> None:
    """Profiles often lie elsewhere."""
    link = tmp_path / "link.log"
    link.symlink_to(log(tmp_path, "vm.log"))
    (record,) = request(tmp_path, link).run().folder.read_profiles()
    assert list(record.sha256) == ["link.log"]
