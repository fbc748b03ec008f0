"""Exports of Nsight Systems that are refused: damaged, cut off, or at odds with themselves."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from ncutexts import refusing_program
from nsysexports import KERNEL, MEMCPY, MEMSET, RUNTIME, change, plain

from envcompare.errors import ProfileError
from envcompare.profile_files import nsysexport
from envcompare.profile_files.nsys import complaints, read
from envcompare.report.wording.profilewords import note_sentences


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Give the export of a small program."""
    return plain().write(tmp_path / "plain.sqlite")


def refusal_of(path: Path) -> ProfileError:
    """Return the error that reading this export raises."""
    with pytest.raises(ProfileError, match="cannot trust") as caught:
        read(path)
    return caught.value


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        (f"UPDATE {KERNEL} SET demangledName = 99 WHERE rowid = 5", "row 5: demangledName 99 has"),
        ("DELETE FROM StringIds WHERE value LIKE 'cudaMemcpy_%'", "RUNTIME, row 6"),
        (f"UPDATE {KERNEL} SET end = start - 1 WHERE rowid = 7", "KERNEL, row 7: end"),
        (f"UPDATE {MEMCPY} SET start = -5 WHERE rowid = 1", "MEMCPY, row 1: start -5"),
        (f"UPDATE {RUNTIME} SET end = 'x' WHERE rowid = 2", "RUNTIME, row 2: end is 'x'"),
        (f"UPDATE {KERNEL} SET start = 1.5 WHERE rowid = 2", "KERNEL, row 2: start is 1.5"),
        (f"UPDATE {KERNEL} SET gridY = 0 WHERE rowid = 2", "KERNEL, row 2: a grid or block"),
        (f"UPDATE {MEMCPY} SET copyKind = 77 WHERE rowid = 2", "row 2: unknown copyKind 77"),
        (f"UPDATE {MEMSET} SET bytes = -1", "MEMSET, row 1: -1 bytes"),
        (f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL} WHERE rowid = 9", "61: the same as row 9"),
        (f"INSERT INTO {MEMCPY} SELECT * FROM {MEMCPY} WHERE rowid = 1", "4: the same as row 1"),
        (f"INSERT INTO {RUNTIME} SELECT * FROM {RUNTIME} WHERE rowid = 1", "the same as row 1"),
        ("DROP TABLE StringIds", "it lacks the tables of an nsys export"),
        (f"ALTER TABLE {KERNEL} DROP COLUMN gridX", "there is no column gridX"),
    ],
)  # fmt: skip
def test_untrustworthy_rows_are_refused(export: Path, sql: str, why: str) -> None:
    """Table, row and reason are named."""
    assert why in refusal_of(change(export, sql)).details


def test_a_missing_number_is_refused_where_the_schema_allows_it(tmp_path: Path) -> None:
    """Exports of other releases may not forbid NULL themselves."""
    path = plain().write(tmp_path / "a.sqlite")
    loose = (
        "CREATE TABLE loose AS SELECT * FROM {0}; DROP TABLE {0}; ALTER TABLE loose RENAME TO {0};"
    )
    change(path, loose.format(KERNEL) + f"UPDATE {KERNEL} SET streamId = NULL WHERE rowid = 2")
    assert "row 2: streamId is NULL" in refusal_of(path).details


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_a_cut_file_is_refused(export: Path, share: float) -> None:
    """A copy that was not finished is not a short profile."""
    content = export.read_bytes()
    export.write_bytes(content[: int(len(content) * share)])
    assert refusal_of(export)


def test_nothing_is_written_beside_the_export(export: Path) -> None:
    """A file on a shared disk is only read."""
    before = (export.read_bytes(), sorted(export.parent.iterdir()))
    read(export)
    assert before == (export.read_bytes(), sorted(export.parent.iterdir()))


def test_an_export_still_written_is_refused(export: Path) -> None:
    """Rows in a journal beside the file would be missed."""
    Path(f"{export}-wal").write_bytes(b"rows")
    assert "plain.sqlite" in refusal_of(export).brief


def test_a_range_before_the_start_of_the_trace_is_refused(tmp_path: Path) -> None:
    """What was launched in it is not known."""
    trace = plain()
    trace.range("step", -7, 10)
    error = refusal_of(trace.write(tmp_path / "a.sqlite"))
    assert "NVTX_EVENTS, row 2: start -7" in error.details
    assert error.hint.startswith("collect again")


def test_an_export_of_a_newer_schema_is_refused_as_that(export: Path) -> None:
    """Not as one that lacks a table."""
    version = "UPDATE EXPORT_META_DATA SET value = '{}' WHERE name = 'EXPORT_{}_VERSION';"
    sql = version.format("4.0.1", "SCHEMA") + version.format("2027.2.1", "PRODUCT")
    error = refusal_of(change(export, f"{sql} DROP TABLE StringIds"))
    assert error.details == (
        "nsys 2027.2.1 wrote it with schema 4.0.1; envcompare reads schema 3 only"
    )
    assert error.hint.startswith("upgrade envcompare, or export the report with an nsys")


@pytest.mark.parametrize(("schema", "is_told"), [("3.24.14", False), ("3.31.0", True)])
def test_an_export_with_more_columns_than_known_is_read_with_a_note(
    export: Path, schema: str, *, is_told: bool
) -> None:
    """A second number that rises adds columns."""
    sql = f"UPDATE EXPORT_META_DATA SET value = '{schema}' WHERE name = 'EXPORT_SCHEMA_VERSION'"
    notes = note_sentences(read(change(export, sql)).notes)
    assert any("its schema is newer than 3.24" in note for note in notes) == is_told


def test_a_report_newer_than_nsys_is_refused_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words are those of nsys 2023.4."""
    said = "Report was created in Nsight Systems version (2024.5.1.113), newer than your current"
    refusing_program(tmp_path / "nsys", f"{said} version\nPlease update.")
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "run.nsys-rep").write_bytes(b"report")
    error = refusal_of(tmp_path / "run.nsys-rep")
    assert error.details == f"the nsys on PATH is older than the report: {said} version"
    assert "with the nsys that collected it, or a newer one" in error.hint


def test_a_report_without_nsys_says_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint is what to type."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "run.nsys-rep").write_bytes(b"report")
    expected = "nsys export --type=sqlite --lazy=false --force-overwrite=true --output=run.sqlite"
    assert expected in refusal_of(tmp_path / "run.nsys-rep").hint


def test_a_refused_range_leaves_nothing_that_fails_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was being read is given up after the database was closed."""
    trace = plain()
    trace.range("step", 0, 10)
    path = trace.write(tmp_path / "a.sqlite")
    change(path, "UPDATE NVTX_EVENTS SET text = NULL, textId = 999 WHERE rowid = 1")
    failed: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", failed.append)
    with pytest.raises(ProfileError, match=r"a\.sqlite") as caught:
        read(path)
    assert "textId 999 has no row in StringIds" in caught.value.details
    del caught
    gc.collect()
    assert failed == []


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["DIAGNOSTIC_EVENT", KERNEL])
def test_a_view_in_place_of_a_table_is_not_run(export: Path, name: str) -> None:
    """It may go on for ever, and nothing in a file is executed."""
    view = (
        f"CREATE VIEW {name}(severity, text) AS WITH RECURSIVE r(n) AS "
        "(SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT 2, 'x' FROM r"
    )
    path = change(export, f"DROP TABLE IF EXISTS {name}; {view}")
    assert complaints(path) == ()
    assert "x" not in {kernel.name for kernel in read(path).kernels}


def test_a_file_that_takes_too_long_is_refused(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason; Ctrl-C ends it before."""
    monkeypatch.setattr(nsysexport, "_LIMIT_S", -1.0)
    monkeypatch.setattr(nsysexport, "_STEPS", 1)
    with pytest.raises(ProfileError, match="cannot trust"):
        read(export)
