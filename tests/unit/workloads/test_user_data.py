"""Data that a user gives: CSV tables and folders, readable and not."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.failures import DataError
from harness.formats.texts import read_reviews

TABLE = """review,sentiment
"A good, ""warm"" film.<br />Yes",positive
Bad,negative
"Two
lines",1
dull,neg
fine,pos
"""


def test_csv_is_read_with_quotes_and_line_breaks(tmp_path: Path) -> None:
    """The first 80 % train, the rest test."""
    path = tmp_path / "reviews.csv"
    path.write_text(TABLE)
    assert read_reviews(str(path), "train") == [
        (["a", "good", "warm", "film", "yes"], 1),
        (["bad"], 0),
        (["two", "lines"], 1),
        (["dull"], 0),
    ]
    assert read_reviews(str(path), "test") == [(["fine"], 1)]
    assert read_reviews(str(tmp_path), "train", at_most=1) == read_reviews(str(path), "train")[:1]


@pytest.mark.parametrize("depth", ["aclImdb", "."])
def test_folder_is_read_from_within_and_from_above(tmp_path: Path, depth: str) -> None:
    """The aclImdb folder itself will do, or the one it lies in; files go by their number."""
    for kind, text in (("pos", "good"), ("neg", "bad")):
        folder = tmp_path / depth / "train" / kind
        folder.mkdir(parents=True)
        (folder / "10_8.txt").write_text(f"{text} ten")
        (folder / "2_8.txt").write_text(f"{text} two")
    assert [words for words, _ in read_reviews(str(tmp_path), "train")] == [
        ["good", "two"],
        ["bad", "two"],
        ["good", "ten"],
        ["bad", "ten"],
    ]


@pytest.mark.parametrize(
    ("text", "brief"),
    [
        ("text,label\na,1\n", "has the columns ['text', 'label']; review and sentiment are needed"),
        ("review,sentiment\na,so-so\n", "line 2: sentiment 'so-so' is neither positive nor"),
        ("", "has the columns None; review and sentiment are needed"),
    ],
)
def test_wrong_csv_is_named(tmp_path: Path, text: str, brief: str) -> None:
    """The message names the file and what it lacks."""
    path = tmp_path / "reviews.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_reviews(str(path), "train")
    assert str(caught.value).startswith(str(path))
    assert brief in str(caught.value)


def test_missing_data_says_what_is_needed(tmp_path: Path) -> None:
    """No data, an empty folder and a missing one are told apart from good data."""
    with pytest.raises(DataError, match="no data was given"):
        read_reviews(None, "train")
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match="An aclImdb folder has train/pos, train/neg"):
            read_reviews(str(path), "train")
