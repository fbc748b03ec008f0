"""Film reviews for the RNN: the real IMDB set downloaded, or reviews from a grammar, same layout.

The grammar has about 200 words. Most opinions of a review agree with its rating, some do not, and
some are said by denying the opposite, so that a single word decides little; the last one agrees.
"""

# ruff: noqa: SIM905  words read better in a row than as a list of literals

from __future__ import annotations

import hashlib
import os
import random
import re
import tarfile
import tempfile
import urllib.error
import urllib.request
from typing import Sequence

from harness.failures import DataError
from harness.formats.data import Source

TRAIN, TEST = 4000, 1000
URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
MD5 = "7c2ac02c03563afcf9b574c7e56c153a"
MEMBER = re.compile(r"aclImdb/(train|test)/(pos|neg)/\d+_\d+\.txt")

PRAISE = (
    "good great wonderful brilliant superb moving funny clever beautiful charming gripping warm "
    "fresh honest lovely perfect delightful powerful excellent touching thrilling witty elegant "
    "memorable stunning"
).split()
BLAME = (
    "bad awful terrible boring dull weak clumsy ugly tedious flat cold stale shallow horrible poor "
    "dreadful annoying lifeless silly painful slow messy empty forgettable predictable"
).split()
LIKED = "loved enjoyed admired adored praised".split()
DISLIKED = "hated regretted despised endured disliked".split()
THINGS = (
    "film movie story plot acting cast director script music ending dialogue camera hero villain "
    "scene humor pace drama comedy romance mystery picture production actor actress performance"
).split()
DEGREES = "very really quite truly rather so simply utterly mostly deeply".split()
PEOPLE = "i|we|everyone|my friend|critics|people|the audience|they|my wife|the children".split("|")
PLACES = (
    "in the city|at the sea|in a small town|during the war|on a train|in the mountains|at night|"
    "in the last hour|near the end|at the start|on the island|in the old house|after the storm"
).split("|")
DEEDS = (
    "two brothers travel|a young woman leaves home|an old man waits|the police search|a doctor "
    "returns|the children hide|a soldier writes letters|the family meets again|a stranger arrives|"
    "the boat sinks|a teacher finds a map|the king falls|a dog saves them"
).split("|")
ASIDES = (
    "it runs about two hours|i saw it last week|it was made some years ago|the tickets were cheap|"
    "we watched it at home|there is also a book|it has many parts|the rest is known"
).split("|")


def write_review(draws: random.Random, *, is_positive: bool) -> str:
    """Return one review of 5 to 13 sentences, with capitals, full stops and some line breaks."""
    sentences = []
    for _ in range(4 + int(draws.random() * 9)):
        if draws.random() < 0.35:
            sentences.append(_neutral(draws))
        else:
            sentences.append(_opinion(draws, is_praise=(draws.random() < 0.92) == is_positive))
    sentences.append(_opinion(draws, is_praise=is_positive))
    marked = [f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences]
    breaks = ("<br /><br />" if draws.random() < 0.08 else " " for _ in marked)
    return "".join(text + gap for text, gap in zip(marked, breaks)).rstrip()


def make(folder: str) -> None:
    """Write aclImdb/{train,test}/{pos,neg}/NUMBER_RATING.txt, half of each kind."""
    for part, count, seed in (("train", TRAIN, 3), ("test", TEST, 4)):
        draws = random.Random(seed)
        for kind in ("pos", "neg"):
            os.makedirs(os.path.join(folder, "aclImdb", part, kind))
        for number in range(count):
            is_positive = number % 2 == 0
            rating = int(draws.random() * 4) + (7 if is_positive else 1)
            text = write_review(draws, is_positive=is_positive)
            name = f"{number // 2}_{rating}.txt"
            kind = "pos" if is_positive else "neg"
            path = os.path.join(folder, "aclImdb", part, kind, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)


def download(folder: str) -> None:
    """Fetch the Large Movie Review Dataset (Maas et al. 2011); only its labelled reviews stay."""
    with tempfile.TemporaryFile() as archive:
        digest = hashlib.md5(usedforsecurity=False)
        try:
            with urllib.request.urlopen(URL, timeout=60) as response:  # fixed, https
                for chunk in iter(lambda: response.read(1 << 20), b""):
                    digest.update(chunk)
                    archive.write(chunk)
        except (urllib.error.URLError, OSError) as error:
            raise DataError(
                f"{URL} cannot be downloaded here: {error}. Give an aclImdb folder as data instead"
            ) from error
        if digest.hexdigest() != MD5:
            raise DataError(f"{URL} came damaged: its MD5 is {digest.hexdigest()}. Try it again")
        archive.seek(0)
        with tarfile.open(fileobj=archive, mode="r:gz") as members:
            _extract(members, folder)


SOURCE = Source("reviews 1", make, download)


def _extract(members: tarfile.TarFile, folder: str) -> None:
    """Write the reviews alone: a name that is none can write nowhere."""
    for member in members:
        content = members.extractfile(member) if MEMBER.fullmatch(member.name) else None
        if content is not None:
            path = os.path.join(folder, *member.name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content.read())


def _opinion(draws: random.Random, *, is_praise: bool) -> str:
    words, verbs = (PRAISE, LIKED) if is_praise else (BLAME, DISLIKED)
    opposite = BLAME if is_praise else PRAISE
    thing, degree = _pick(draws, THINGS), _pick(draws, DEGREES)
    forms = (
        lambda: f"the {thing} was {degree} {_pick(draws, words)}",
        lambda: f"the {thing} is {_pick(draws, words)} and {degree} {_pick(draws, words)}",
        lambda: f"{_pick(draws, PEOPLE)} {_pick(draws, verbs)} the {thing}",
        lambda: (
            f"a {_pick(draws, words)} {thing} with a {_pick(draws, words)} {_pick(draws, THINGS)}"
        ),
        lambda: f"the {thing} was never {_pick(draws, opposite)}",
    )
    return forms[int(draws.random() * len(forms))]()


def _neutral(draws: random.Random) -> str:
    if draws.random() < 0.3:
        return _pick(draws, ASIDES)
    return f"{_pick(draws, DEEDS)} {_pick(draws, PLACES)}"


def _pick(draws: random.Random, words: Sequence[str]) -> str:
    return words[int(draws.random() * len(words))]
