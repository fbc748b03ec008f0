"""The door to all readers: whose file it is, and what is said of another tool's."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import pytest
from kinetotraces import step, write
from nsysexports import plain
from profilefuzz import NAMES, Seed, seeds

from envcompare.errors import ConfigError, ProfileError
from envcompare.profile_files import SEVERAL, read, recognise, validate
from envcompare.report.wording.profilewords import note_sentences
from envcompare.run_folder.profiles import Kernel, Profile

SEEDS = [pytest.param(name, seed, id=seed.name) for name in NAMES for seed in seeds(name)]


@pytest.mark.parametrize(("reader", "seed"), SEEDS)
def test_a_file_is_known_by_what_stands_in_it(reader: str, seed: Seed, tmp_path: Path) -> None:
    """Names of files are the user's own."""
    path = tmp_path / "a file"
    path.write_bytes(seed.content)
    assert recognise(path) == reader


@pytest.mark.parametrize(("reader", "seed"), SEEDS)
@pytest.mark.parametrize("asked", NAMES)
def test_the_file_of_another_tool_is_refused_by_its_name(
    reader: str, seed: Seed, asked: str, tmp_path: Path
) -> None:
    """The hint is the command that reads it."""
    path = tmp_path / seed.name
    path.write_bytes(seed.content)
    if reader == asked:
        assert read(asked, [path]).tool == asked
    else:
        with pytest.raises(ProfileError) as caught:
            read(asked, [path])
        assert caught.value.hint == f"use `envcompare import {reader}`"


@pytest.mark.parametrize("name", ["a.ncu-rep", "a.nsys-rep", "a.sqlite", "a.json", "a.log"])
@pytest.mark.parametrize("asked", NAMES)
def test_a_pointer_of_git_lfs_is_told_from_the_file(tmp_path: Path, asked: str, name: str) -> None:
    """What was not fetched is not damaged."""
    path = tmp_path / name
    oid = "sha256:" + "0" * 64
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid {oid}\nsize 48213371\n")
    with pytest.raises(ProfileError) as caught:
        read(asked, [path])
    assert caught.value.details == (
        "it is a Git LFS pointer: the file itself (48,213,371 bytes) was not fetched"
    )
    assert caught.value.hint.startswith(f"git lfs pull --include '*{name}'")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/annex/objects/SHA256E-s12--00.json\n", "a git-annex pointer"),
        ("\n<!DOCTYPE html>\n<html>", "it is a web page"),
    ],
)
def test_what_stands_in_for_a_file_is_told(tmp_path: Path, text: str, why: str) -> None:
    """A page about a file, or the note of where it is kept."""
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        read("kineto", [path])
    assert why in caught.value.details


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(("reader", "seed"), [one for one in SEEDS if one.values[0] in SEVERAL])
def test_text_in_utf_16_is_read(reader: str, seed: Seed, encoding: str, tmp_path: Path) -> None:
    """PowerShell redirects so, with ends of lines of its own."""
    text = seed.content.decode().replace("\n", "\r\n")
    content = text.encode(encoding)
    path, plain = tmp_path / seed.name, tmp_path / "plain" / seed.name
    path.write_bytes((b"\xfe\xff" if encoding == "utf-16-be" else b"") + content)
    plain.parent.mkdir()
    plain.write_bytes(seed.content)
    assert read(reader, [path]) == read(reader, [plain])


def test_trace_in_utf_16_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    """A trace is read byte by byte."""
    path = write(tmp_path / "a.json", step())
    path.write_bytes(path.read_text("utf-8").encode("utf-16"))
    with pytest.raises(ProfileError) as caught:
        read("kineto", [path])
    assert "the file is UTF-16" in caught.value.details
    assert caught.value.hint.startswith("iconv -f UTF-16 -t UTF-8 a.json")


@pytest.mark.parametrize("is_late", [False, True])
def test_trace_of_a_newer_schema_is_refused_as_that(tmp_path: Path, *, is_late: bool) -> None:
    """Its events may be of other units, and are no damage."""
    path, events = tmp_path / "a.json", '"traceEvents": []'
    head = '"schemaVersion": 2'
    path.write_text(f"{{{', '.join([events, head] if is_late else [head, events])}}}")
    with pytest.raises(ProfileError) as caught:
        read("kineto", [path])
    assert caught.value.details == "it uses trace schema 2; envcompare reads schema 1 only"
    assert "upgrade envcompare" in caught.value.hint


def test_a_database_of_nvprof_is_not_one_of_nsys(tmp_path: Path) -> None:
    """Both name their tables as CUPTI does."""
    path = tmp_path / "nvprof.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringTable (_id_ INTEGER, value TEXT)")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)")
    database.close()
    assert recognise(path) == "nvprof"


def test_a_packed_trace_is_known(tmp_path: Path) -> None:
    """Only its first bytes are unpacked for that."""
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(write(tmp_path / "a.json", step()).read_bytes()))
    assert recognise(path) == "kineto"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """It is an error of the file, not of the program."""
    with pytest.raises(ProfileError) as caught:
        read("nsys", [tmp_path / "none.sqlite"])
    assert "none.sqlite" in caught.value.brief
    assert "No such file" in caught.value.details


@pytest.mark.parametrize(("tool", "count"), [("gdb", 1), ("nsys", 0), ("nsys", 2), ("kineto", 2)])
def test_wrong_usage_is_said(tool: str, count: int, tmp_path: Path) -> None:
    """A tool there is none of, and more files than make one profile."""
    with pytest.raises(ConfigError):
        read(tool, [tmp_path / "a"] * count)


@pytest.mark.parametrize(
    "kernel",
    [
        Kernel(name="k", calls=0, total_ns=1),
        Kernel(name="k", calls=1, total_ns=-1),
        Kernel(name="k", calls=1, total_ns=float("nan")),
        Kernel(name="k", calls=2, total_ns=10, max_ns=11.5),
        Kernel(name="k", calls=1, total_ns=None, metrics={"dram__bytes.sum": float("inf")}),
    ],
)
def test_an_impossible_number_is_refused_whoever_read_it(kernel: Kernel) -> None:
    """The last look at what any reader returns."""
    with pytest.raises(ProfileError, match="cannot trust a"):
        validate(Profile(tool="ncu", files=("a",), kernels=(kernel,)))


def test_a_launch_of_unknown_name_counts_in_sums(tmp_path: Path) -> None:
    """Launches that nsys could not name took their time all the same, and are told."""
    trace = plain(4)
    trace.kernel("[Unknown]", 10**6, 10**6 + 500, correlation=2)
    found = read("nsys", [trace.write(tmp_path / "a.sqlite")])
    named = read("nsys", [plain(4).write(tmp_path / "b.sqlite")])
    times = [sum(kernel.total_ns or 0 for kernel in profile.kernels) for profile in (found, named)]
    assert times[0] == times[1] + 500
    told = "1 launch without a name; all sums hold"
    assert any(told in note for note in note_sentences(found.notes))
