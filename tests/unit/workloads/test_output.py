"""What a launcher reads in the output of a program, however it arrives."""

from __future__ import annotations

import os
import re
from pathlib import Path

from harness.output import HEAD_BYTES, LINE_BYTES, TAIL_BYTES, Output
from hypothesis import given
from hypothesis import strategies as st

LOSS = {"loss": re.compile(rb"loss: (\S+)")}


def read(chunks: list[bytes], log: Path) -> dict[str, float]:
    """Return what is found when the output arrives in these pieces."""
    with log.open("wb") as sink:
        found = Output(LOSS, log=sink.fileno())
        found.start()
        for chunk in chunks:
            os.write(found.sink, chunk)
        assert found.finish(10.0)
    return found.values


@given(st.lists(st.sampled_from(["loss: 1.5", "loss: nan", "loss: x", "loss:", "", "b loss: -2"])),
       st.sampled_from("\r\n"), st.integers(1, 40))  # fmt: skip
def test_last_finite_number_is_found_however_it_arrives(
    lines: list[str], end: str, size: int
) -> None:
    """Pieces, carriage returns and a last line without an end change nothing."""
    text = end.join(lines).encode()
    numbers = [word.removeprefix("b ").split(": ")[1] for word in lines if ": " in word]
    expected = [float(number) for number in numbers if number in {"1.5", "-2"}]
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    found = read(chunks, Path(os.devnull))
    assert found == ({"loss": expected[-1]} if expected else {})


def test_long_output_keeps_its_head_and_its_end(tmp_path: Path) -> None:
    """What lies between is counted."""
    log = tmp_path / "log"
    read([b"first\n", *[b"x" * 50_000] * 20, b"\nlast"], log)
    content = log.read_bytes()
    assert content.startswith(b"first\n")
    assert content.endswith(b"\nlast")
    assert len(content) < HEAD_BYTES + TAIL_BYTES + 100
    assert f"{1_000_011 - HEAD_BYTES - TAIL_BYTES} bytes left out".encode() in content


def test_line_without_an_end_is_searched_in_pieces(tmp_path: Path) -> None:
    """A program that never ends a line does not fill the memory."""
    found = read([b"loss: 4 ", *[b"y" * 60_000] * 5], tmp_path / "log")
    assert found == {"loss": 4.0}
    assert LINE_BYTES < 300_000
