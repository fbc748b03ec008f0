"""Reviews as numbers: reads an aclImdb folder or a CSV file, counts words, pads on the left."""

from __future__ import annotations

import collections
import csv
import io
import os
import re
from typing import Iterable, Sequence

from harness.failures import DataError
from harness.formats.data import Folder

PAD, UNKNOWN, FIRST_WORD = 0, 1, 2
SENTIMENTS = {"positive": 1, "pos": 1, "1": 1, "negative": 0, "neg": 0, "0": 0}
TRAIN_SHARE = 0.8

Review = tuple[list[str], int]


def words_of(text: str) -> list[str]:
    """Return the words of a review in small letters, without marks and line breaks."""
    return re.findall(r"[a-z0-9']+", text.lower().replace("<br />", " "))


def vocabulary_of(reviews: Iterable[Review], size: int) -> dict[str, int]:
    """Return the numbers of the most frequent words; equally frequent ones go by the alphabet."""
    counts: collections.Counter[str] = collections.Counter()
    for words, _ in reviews:
        counts.update(words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: FIRST_WORD + rank for rank, word in enumerate(ranked[:size])}


def encode(words: Sequence[str], vocabulary: dict[str, int], length: int) -> list[int]:
    """Return exactly `length` numbers: the first words, with padding before them.

    Padding is on the left, so the last step of a recurrent network reads a word.
    """
    numbers = [vocabulary.get(word, UNKNOWN) for word in words[:length]]
    return [PAD] * (length - len(numbers)) + numbers


def read_reviews(path: str | None, part: str, *, at_most: int = 0) -> list[Review]:
    """Return the reviews of `train` or `test`, positive and negative in turn; 0 reads all.

    The path is a folder with aclImdb in it, that folder itself, a CSV file with the columns
    review and sentiment, or a folder with one such file. Of a CSV the first 80 % train.
    """
    if path is None:
        raise DataError("no data was given. Prepare some (--prepare DIR) or name an aclImdb folder")
    table = _csv_in(path)
    if table is not None:
        return _read_csv(table, part, at_most)
    return _read_folder(path, part, at_most)


def _csv_in(path: str) -> str | None:
    if os.path.isfile(path):
        return path
    names = os.listdir(path) if os.path.isdir(path) else []
    tables = [name for name in names if name.lower().endswith(".csv")]
    return os.path.join(path, tables[0]) if len(tables) == 1 else None


def _read_folder(path: str, part: str, at_most: int) -> list[Review]:
    inner = "aclImdb" if os.path.isdir(os.path.join(path, "aclImdb")) else ""
    folder = Folder(path)
    kinds = []
    for kind, sentiment in (("pos", 1), ("neg", 0)):
        place = os.path.join(inner, part, kind)
        try:
            names = sorted(os.listdir(os.path.join(path, place)), key=_number_first)
        except OSError as error:
            raise DataError(
                f"{os.path.join(path, place)} cannot be read: {error.strerror}. An aclImdb folder "
                "has train/pos, train/neg, test/pos and test/neg"
            ) from error
        kinds.append([(os.path.join(place, name), sentiment) for name in names])
    chosen = [review for pair in zip(*kinds) for review in pair]
    return [
        (words_of(folder.read(name).decode("utf-8", "replace")), sentiment)
        for name, sentiment in chosen[: at_most or None]
    ]


def _number_first(name: str) -> tuple[int, str]:
    digits = re.match(r"\d+", name)
    return (int(digits[0]) if digits else -1, name)


def _read_csv(path: str, part: str, at_most: int) -> list[Review]:
    text = Folder(os.path.dirname(path)).read(os.path.basename(path)).decode("utf-8", "replace")
    rows = csv.DictReader(io.StringIO(text, newline=""))
    if not {"review", "sentiment"} <= set(rows.fieldnames or ()):
        raise DataError(
            f"{path} has the columns {rows.fieldnames}; review and sentiment are needed"
        )
    reviews = []
    for row in rows:
        sentiment = SENTIMENTS.get(str(row["sentiment"]).strip().lower())
        if sentiment is None:
            raise DataError(
                f"{path} line {rows.line_num}: sentiment {row['sentiment']!r} is neither "
                "positive nor negative"
            )
        reviews.append((words_of(row["review"] or ""), sentiment))
    split = int(len(reviews) * TRAIN_SHARE)
    return (reviews[:split] if part == "train" else reviews[split:])[: at_most or None]
