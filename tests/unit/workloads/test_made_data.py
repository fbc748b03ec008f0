"""The small data that is made: drawn digits and reviews from a grammar, in the real formats."""

from __future__ import annotations

import hashlib
import random
import re
import struct
from pathlib import Path

import pytest
from harness.formats import digits, reviews
from harness.formats.texts import (
    FIRST_WORD,
    PAD,
    UNKNOWN,
    encode,
    read_reviews,
    vocabulary_of,
    words_of,
)

DIGITS_SHA256 = "4bf2741f40e39c9739d538fcb2bc1ad1caffc689a08885c96bc29826faec152b"
REVIEWS_SHA256 = "45ca1faa78df0a4408d3f7f48514952b5a1a38282bb299b43af952e96892b011"


def sha256_of(folder: Path) -> str:
    """Return one hash over the names and contents of all files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def test_drawn_digits_are_the_same_everywhere() -> None:
    """The bytes do not depend on machine or Python version: the recipe's number stands for them."""
    draws = random.Random(1)
    drawn = b"".join(digits.draw(label, draws) for label in range(10))
    assert hashlib.sha256(drawn).hexdigest() == DIGITS_SHA256


def test_each_drawn_digit_is_ink_on_an_empty_ground() -> None:
    """An image is 28 × 28 bytes, mostly empty, and no two of a label are alike."""
    draws = random.Random(2)
    for label in range(10):
        first, second = digits.draw(label, draws), digits.draw(label, draws)
        assert first != second
        assert len(first) == 28 * 28
        ink = sum(value > 100 for value in first)
        assert 10 < ink < 300
        border = first[:28] + first[-28:]
        assert max(border) < 100


def test_idx_file_has_the_header_of_the_format(tmp_path: Path) -> None:
    """Two zeros, the type of unsigned bytes, the number of dimensions, the sizes, the bytes."""
    path = tmp_path / "file"
    digits.write_idx(str(path), bytes(range(12)), sizes=[2, 2, 3])
    assert path.read_bytes() == struct.pack(">HBBIII", 0, 8, 3, 2, 2, 3) + bytes(range(12))


@pytest.fixture(scope="module")
def made_reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the made reviews."""
    folder = tmp_path_factory.mktemp("reviews")
    reviews.make(str(folder))
    return folder


def test_made_reviews_are_the_same_everywhere(made_reviews: Path) -> None:
    """The bytes do not depend on machine or Python version: the recipe's number stands for them."""
    assert sha256_of(made_reviews) == REVIEWS_SHA256


def test_made_reviews_lie_as_in_aclimdb(made_reviews: Path) -> None:
    """Half are positive; a file's name holds its number and a rating that fits its folder."""
    for part, count in (("train", reviews.TRAIN), ("test", reviews.TEST)):
        for kind, ratings in (("pos", {7, 8, 9, 10}), ("neg", {1, 2, 3, 4})):
            names = [path.name for path in (made_reviews / "aclImdb" / part / kind).iterdir()]
            assert len(names) == count // 2
            parsed = [re.fullmatch(r"(\d+)_(\d+)\.txt", name) for name in names]
            assert {int(match[2]) for match in parsed if match} == ratings
            assert {int(match[1]) for match in parsed if match} == set(range(count // 2))


def test_made_reviews_have_about_200_words(made_reviews: Path) -> None:
    """The vocabulary of the study fits them, and padding to 100 words cuts hardly any."""
    found = read_reviews(str(made_reviews), "train")
    assert 180 <= len(vocabulary_of(found, 10_000)) <= 200
    lengths = sorted(len(words) for words, _ in found)
    assert lengths[0] >= 15
    assert lengths[len(lengths) // 2] > 40
    assert lengths[int(len(lengths) * 0.99)] <= 100


def test_no_single_word_tells_the_sentiment(made_reviews: Path) -> None:
    """Words of praise stand in negative reviews too, only less often."""
    found = read_reviews(str(made_reviews), "train")
    praised = [sentiment for words, sentiment in found if "wonderful" in words]
    assert 0.6 < sum(praised) / len(praised) < 0.97


def test_subset_is_balanced_and_the_head_of_the_whole(made_reviews: Path) -> None:
    """Positive and negative reviews come in turn, so that any subset has both."""
    few = read_reviews(str(made_reviews), "train", at_most=10)
    assert [sentiment for _, sentiment in few] == [1, 0] * 5
    assert few == read_reviews(str(made_reviews), "train")[:10]


def test_words_are_small_letters_without_marks() -> None:
    """Line breaks of the real reviews and all marks go; apostrophes stay."""
    assert words_of("It's GREAT!<br /><br />Really, 10/10.") == [
        "it's",
        "great",
        "really",
        "10",
        "10",
    ]


def test_vocabulary_goes_by_frequency_then_by_the_alphabet() -> None:
    """Equal counts have one order, so that every arm numbers alike."""
    found = vocabulary_of([(["b", "a", "c", "c"], 1), (["d"], 0)], 3)
    assert found == {"c": FIRST_WORD, "a": FIRST_WORD + 1, "b": FIRST_WORD + 2}


def test_padding_stands_on_the_left() -> None:
    """A short review ends with its last word, a long one is cut; strange words are unknown."""
    numbers = {"good": 2, "film": 3}
    assert encode(["good", "film"], numbers, 4) == [PAD, PAD, 2, 3]
    assert encode(["good", "odd", "film"], numbers, 2) == [2, UNKNOWN]
