"""The words in which two lines differ, in parts that can be changed one by one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Final

SIF: Final = re.compile(r"\.(?:sif|simg)['\"]?$")
"""The end of a word that names a SIF."""
_Places = tuple[int, int, int, int]  # in the old words from, to, and in the new ones


def words_or_text(line: str) -> list[str] | str:
    """Return the words of a line; the line itself where the shell would report an open quote."""
    try:
        return shlex.split(line)
    except ValueError:
        return line


def differing_words(old: list[str], new: list[str]) -> Iterator[_Places]:
    """Yield the places in which words differ, each an option with its value, or a SIF."""
    # By default, words that occur often in a long line would be ignored (difflib).
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        sifs = [n for n in range(a, b) if SIF.search(old[n])]
        others = [n for n in range(c, d) if SIF.search(new[n])]
        if b - a != d - c and len(sifs) == len(others) == 1:
            i, j = sifs[0], others[0]
            for places in ((a, i, c, j), (i, i + 1, j, j + 1), (i + 1, b, j + 1, d)):
                yield from _parted(old, new, places)
        else:
            yield from _parted(old, new, (a, b, c, d))


def _parted(old: list[str], new: list[str], places: _Places) -> Iterator[_Places]:
    """Yield the parts of a difference, which begin with options; all of it if it begins with none.

    A part that only one side has comes at the end of what the other side has.
    """
    a, b, c, d = places
    count = min(b - a, d - c)
    is_option = [(old[a + n][0] == "-", new[c + n][0] == "-") for n in range(count)]
    rest = old[a + count : b] + new[c + count : d]
    if any(one != other for one, other in is_option) or any(one[0] != "-" for one in rest[:1]):
        yield places
        return
    pairs = [n for n, (one, _) in enumerate(is_option) if n == 0 or one]
    lone = [count + n for n, word in enumerate(rest) if word[0] == "-"]
    for n, end in pairwise((*pairs, *lone, count + len(rest))):
        yield min(a + n, b), min(a + end, b), min(c + n, d), min(c + end, d)
