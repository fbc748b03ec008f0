"""Traces of torch.profiler that are refused: cut, damaged, impossible, or told twice."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from kinetotraces import Event, kernel, step, write

from envcompare.errors import ProfileError
from envcompare.profile_files.kineto import read
from envcompare.run_folder.profiles import Profile


def of(path: Path, *events: Event) -> Profile:
    """Return the profile of a trace with these events."""
    return read(write(path / "trace.json", list(events)))


def why_refused(path: Path) -> str:
    """Return the reason for which a trace is refused."""
    with pytest.raises(ProfileError, match="cannot trust") as caught:
        read(path)
    return caught.value.details


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"dur": -1}, "dur is -1, not a time"),
        ({"dur": None}, "dur is None, not a time"),
        ({"ts": "12"}, "ts is 12, not a time"),
        ({"ts": 1e300}, "not a time in microseconds"),
        ({"dur": 0.0004}, "dur is 0.0004, not a number of whole nanoseconds"),
        ({"dur": 0.0006}, "dur is 0.0006, not"),
        ({"dur": 0.0104}, "dur is 0.0104, not"),
        ({"dur": 5e-324}, "dur is 5E-324, not"),
        ({"name": 7}, "name is 7"),
        ({"args": []}, "a device or stream is missing"),
        ({"args": {"device": 0, "stream": 7, "grid": [0, 1, 1]}}, "grid is [0, 1, 1]"),
        ({"args": {"device": 0, "stream": "7"}}, "stream is '7', not a whole number"),
        ({"args": {"device": 0, "stream": 7, "est. achieved occupancy %": 400}}, "is 400"),
        # a trace whose kernels are passed over looks like one without a GPU
        ({"ph": "B"}, "ph is 'B'; a kernel needs ph X, which has a duration"),
        ({"ph": "E"}, "ph is 'E'"),
        ({"ph": ["X"]}, "ph is ['X']"),
        ({"ph": None}, "ph is None"),
        ({"cat": "gpu_memcpy", "ph": "b"}, "a gpu_memcpy needs ph X"),
        ({"cat": "kernel,gpu"}, "cat is 'kernel,gpu', not one category"),
        ({"cat": "gpu, Kernel "}, "cat is 'gpu, Kernel ', not one category"),
        ({"cat": ["kernel"]}, "cat is ['kernel'], not a text"),
        ({"cat": "gpu_op"}, "its args are those of GPU work, but cat is 'gpu_op'"),
        ({"cat": None}, "its args are those of GPU work, but cat is None"),
        ({"cat": "x", "args": {"stream": 7, "bytes": 8}}, "its args are those of GPU work"),
    ],
)
def test_impossible_event_is_refused(tmp_path: Path, change: Event, why: str) -> None:
    """The event is named by its place in the file."""
    with pytest.raises(ProfileError) as caught:
        of(tmp_path, kernel("a", 0, 1), {**kernel("b", 5, 1), **change})
    assert "event 1 of traceEvents" in caught.value.details
    assert why in caught.value.details


def test_arrows_and_names_of_processes_are_passed_over(tmp_path: Path) -> None:
    """They are no work, whatever category they carry."""
    arrows = [{"ph": phase, "cat": "kernel", "name": "x", "ts": 3} for phase in "stfM"]
    others = [{"ph": "i", "name": "Record Window End"}, {"ph": "C", "cat": "gpu_pm_counter"}]
    assert [one.calls for one in of(tmp_path, kernel("a", 0, 1), *arrows, *others).kernels] == [1]


@pytest.mark.parametrize("place", range(1, 10))
def test_the_same_event_twice_is_refused(tmp_path: Path, place: int) -> None:
    """Traces put together by hand may hold a part twice."""
    events = step()
    with pytest.raises(ProfileError) as caught:
        of(tmp_path, *events, events[place])
    assert f"event 10 of traceEvents: the same as event {place}" in caught.value.details


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.95, 0.999])
def test_a_cut_trace_is_refused(tmp_path: Path, name: str, share: float) -> None:
    """The profile of the first half of a program is not one of the program."""
    path = write(tmp_path / name, step())
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    why = why_refused(path)
    assert "cut off after" in why or "no traceEvents" in why


def test_a_damaged_packed_trace_is_refused(tmp_path: Path) -> None:
    """The checksum at the end of a gzip file is looked at."""
    path = write(tmp_path / "trace.json.gz", step())
    content = bytearray(path.read_bytes())
    content[-6] ^= 0xFF
    path.write_bytes(content)
    assert why_refused(path)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"traceEvents": 3', b"nonsense", b"\x1f\x8b"]
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    """An empty file is no empty profile."""
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert why_refused(path)


@pytest.mark.parametrize("opening", ["[", '{"a":', ' { "a\\"}" : [ ', '{"\\\\": '])
def test_deep_nesting_is_refused(tmp_path: Path, opening: str) -> None:
    """A parser calls itself for each bracket, whatever stands between them."""
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + opening * 500_000, encoding="utf-8")
    assert "event 0 of traceEvents: it is nested too deeply" in why_refused(path)


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b'"\xff\xfe"}]}', 'not UTF-8: {"traceEvents": [{"a": "\\xff\\xfe"}]}'),
        ("nö}]}".encode("latin-1"), 'not UTF-8: {"traceEvents": [{"a": n\\xf6}]}'),
        ("é\x1bö}]}".encode(), 'Expecting value: {"traceEvents": [{"a": é⟨U+001B⟩ö}]}'),
        (b'"\\ud800"}]}', "surrogates not allowed"),
        (b"NaN}]}", "NaN is not a JSON number"),
        (b"1}]} 2", 'extra data: aceEvents": [{"a": 1}]} 2'),
    ],
)
def test_a_damaged_place_is_shown_as_text(tmp_path: Path, content: bytes, shown: str) -> None:
    """What is no UTF-8, and what would reach the terminal, is written out."""
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [{"a": ' + content)
    why = why_refused(path)
    assert "bytes into the file: " in why
    assert shown in why


@pytest.mark.parametrize(
    ("digits", "why"), [(1000, "not a time in microseconds"), (5000, "Exceeds the limit")]
)
def test_number_of_thousands_of_digits_is_refused(tmp_path: Path, digits: int, why: str) -> None:
    """Reading it takes time that grows with the square of its length."""
    path = tmp_path / "trace.json"
    for spaces in (0, (1 << 18) - 150):
        event = json.dumps(kernel("k", 0, 1)).replace(
            '"ts": 0', '"ts": ' + " " * spaces + "7" * digits
        )
        path.write_text(f'{{"traceEvents": [{event}]}}', encoding="utf-8")
        assert why in why_refused(path)


def test_brackets_and_digits_in_a_name_are_no_nesting(tmp_path: Path) -> None:
    """Names of kernels hold lambdas, quotes and backslashes, also where a read ends."""
    for filling in range(6):
        name = "x" * ((1 << 18) - 120 + filling) + '\\"' * 40 + "{[" * 100 + "1" * 400 + "\\"
        event = {**kernel("k", 0, 1), "name": name}
        assert of(tmp_path, event, kernel("b", 5, 1)).kernels[0].name == name


@pytest.mark.parametrize(
    ("opening", "filling"),
    [(b'{"name": "', b"A"), (b'{"name": "', b'\\"'), (b'{"name":', b" "), (b"[", b"1,")],
)
def test_endless_value_is_refused(tmp_path: Path, opening: bytes, filling: bytes) -> None:
    """A value is parsed when the whole of it was read."""
    path = tmp_path / "trace.json.gz"
    endless = filling * ((40 << 20) // len(filling))
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + opening + endless, compresslevel=1))
    assert "a value of more than 16 MiB" in why_refused(path)


def test_small_file_that_unpacks_to_a_huge_one_is_refused(tmp_path: Path) -> None:
    """No trace is so regular; reading on would take minutes."""
    path = tmp_path / "trace.json.gz"
    event = b'{"name": "' + b"A" * (1 << 20) + b'"},'
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + event * 65))
    assert "it unpacks to more than 200 times its size" in why_refused(path)


def test_regular_trace_of_some_size_is_read(tmp_path: Path) -> None:
    """What is small enough to be read at once may be packed as tightly as it can."""
    path = tmp_path / "trace.json.gz"
    spaces = b" " * (3 << 20)
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + spaces + b'{"ph": "i"}' + spaces + b"]}"))
    assert read(path).kernels == ()
