"""Mask secrets in output and files, by the same rule as the harness in the arms."""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType
from typing import Final

from envcompare import bundled

_EXPRESSIONS: Final = ("--measure",)  # their value is often an expression for tokens
_VARIABLES: Final = ("-e", "--env")  # their value is NAME=VALUE
_NO_SECRETS: Final = frozenset({"true", "false", "none", "null"})
_LONGEST_LINE: Final = 1 << 16
_CUT: Final = b"... the rest of this line is left out: too long\n"
_KEY_BEGIN: Final = "-----BEGIN PRIVATE KEY-----\n"
_LINE_ENDS: Final = (b"\n", b"\r")  # a progress bar ends its lines with a carriage return


def masked(text: str) -> str:
    """Mask logins in URLs, values whose names suggest secrets, and known tokens."""
    kept: str = _rule().masked(text)
    return kept


def masked_words(words: tuple[str, ...]) -> tuple[str, ...]:
    """Mask secrets in a command, including the value after an option that names one."""
    kept: list[str] = []
    before = ""
    for word in words:
        kept.append(word if before in _EXPRESSIONS else _masked_word(word, before=before))
        before = word
    return tuple(kept)


def _masked_word(word: str, *, before: str) -> str:
    """Mask a word of a command; an option's value is masked as a whole, with its spaces."""
    if word.lower() in _NO_SECRETS:
        return word
    if before.startswith("-") and "=" not in before and not word.startswith("-"):
        named = masked(f"{before} x")
        if named != f"{before} x":
            return named.removeprefix(f"{before} ")
    option, equals, variable = word.partition("=")
    if equals and option in _VARIABLES:
        return f"{option}={_masked_word(variable, before=option)}"
    # a script is not a value, though it may start like one: TOKEN=… make
    is_whole = before != "-c" and " " not in option and equals
    if is_whole and masked(f"{option}=x") != f"{option}=x":
        return masked(f"{option}=x")
    return masked(word)


class LineMask:
    """Masks a stream of bytes line by line; binary data stays as it is.

    Cuts a line that is too long to buffer, because a secret in it could not be recognized.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._is_cut = False  # until the line has ended
        self._key = ""  # a private key in progress

    def feed(self, chunk: bytes) -> bytes:
        """Return the complete lines, masked."""
        if self._is_cut:
            end = _first_end(chunk)
            if end < 0:
                return b""
            chunk, self._is_cut = chunk[end + 1 :], False
        text = self._rest + chunk
        end = max(map(text.rfind, _LINE_ENDS)) + 1
        whole, self._rest = text[:end], text[end:]
        if len(self._rest) > _LONGEST_LINE:
            whole += self._rest[:_LONGEST_LINE] + _CUT
            self._rest, self._is_cut = b"", True
        return self._masked(whole)

    def end(self) -> bytes:
        """Return the remainder after the last line."""
        rest, self._rest = self._rest, b""
        return self._masked(rest)

    def _masked(self, content: bytes) -> bytes:
        text = self._key + content.decode("utf-8", "surrogateescape")
        done = masked(text)
        if self._key:  # an earlier call returned its first line
            done = done.partition(_rule().MASK)[2]
        self._key = _KEY_BEGIN if _rule().is_open(text) else ""
        return done.encode("utf-8", "surrogateescape")


def _first_end(chunk: bytes) -> int:
    return min((at for at in map(chunk.find, _LINE_ENDS) if at >= 0), default=-1)


@cache
def _rule() -> ModuleType:
    """Load the rule from its file, which is outside the package so that arms can import it."""
    path = bundled.workloads() / "harness" / "facts" / "masking.py"
    spec = importlib.util.spec_from_file_location("envcompare_masking_rule", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
