"""Masks secrets in what is shown or kept, by the rule of the harness, which arms use too."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Final

from envcompare import bundled

_EXPRESSIONS: Final = ("--measure",)  # whose value is often an expression for tokens
_LONGEST_LINE: Final = 1 << 16


def masked(text: str) -> str:
    """Return a text without logins of URLs, values that are named as secrets, and known tokens."""
    return _rule()(text)


def masked_words(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command without secrets, also where the option that names one is a word before."""
    kept: list[str] = []
    before = ""
    for word in words:
        alone = masked(word)
        after = masked(f"{before} {word}").removeprefix(f"{before} ")
        is_named = before.startswith("-") and "=" not in before and " " not in word
        kept.append(word if before in _EXPRESSIONS else after if is_named else alone)
        before = word
    return tuple(kept)


class LineMask:
    """Masks a stream of bytes line by line; what is no text stays as it is."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return the lines that are whole by now, masked; a very long one is cut into parts."""
        whole, end, self._rest = (self._rest + chunk).rpartition(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            whole, end, self._rest = whole + end + self._rest, b"", b""
        return self._masked(whole + end)

    def end(self) -> bytes:
        """Return what is left after the last line."""
        rest, self._rest = self._rest, b""
        return self._masked(rest)

    @staticmethod
    def _masked(content: bytes) -> bytes:
        # every byte is a character of Latin-1, and back
        return masked(content.decode("latin-1")).encode("latin-1")


@cache
def _rule() -> Callable[[str], str]:
    """Load the one file that decides; it is no part of the package, since arms import it alone."""
    path = bundled.workloads() / "harness" / "facts" / "masking.py"
    spec = importlib.util.spec_from_file_location("envcompare_masking_rule", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rule: Callable[[str], str] = module.masked
    return rule
