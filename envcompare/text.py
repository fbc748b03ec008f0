"""Texts for the reader (one line, shortened, hidden characters visible), TOML, and masked secrets.

Secrets are masked in output and files by the same rule as in the harness.

Commands are data, and only this module quotes for a shell.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import shlex
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final

from envcompare import bundled

# The value is often an expression for tokens, which looks like a secret.
_EXPRESSIONS: Final = ("--measure",)
_VARIABLES: Final = ("-e", "--env")  # their value is NAME=VALUE
_NO_SECRETS: Final = frozenset({"true", "false", "none", "null"})
_LONGEST_LINE: Final = 1 << 16
_CUT: Final = b"... the rest of this line is left out: too long\n"
_KEY_BEGIN: Final = "-----BEGIN PRIVATE KEY-----\n"
# A progress bar ends its lines with a carriage return.
_LINE_ENDS: Final = (b"\n", b"\r")
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
LONGEST_REASON: Final = 600
"""The most characters of a reason for a failure."""
_SHORTENED: Final = re.compile(r"(.*)… \((\d+) characters\)", re.DOTALL)
# Crashed interpreters and engine clients print these lines last, but they are not the cause.
_NO_CAUSE: Final = ("Python runtime state:", "See 'docker", "Run 'docker")
_THREADS: Final = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)


def is_masked(text: str) -> bool:
    """Tell whether a secret was masked in a text."""
    return _rule().MASK in text


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

    Cuts a line that is too long to buffer, because a secret in it could not be recognised.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._is_cut = False  # until the line has ended
        self._key = ""  # a private key in progress

    def feed(self, chunk: bytes) -> bytes:
        """Return the complete lines, masked."""
        if self._is_cut:
            ends = [place for place in map(chunk.find, _LINE_ENDS) if place >= 0]
            if not ends:
                return b""
            chunk, self._is_cut = chunk[min(ends) + 1 :], False
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
        # Binary data stays as it is, since surrogateescape keeps each byte (PEP 383).
        text = self._key + content.decode("utf-8", "surrogateescape")
        done = masked(text)
        # An earlier call returned the first line of the key.
        if self._key:
            done = done.partition(_rule().MASK)[2]
        self._key = _KEY_BEGIN if _rule().is_open(text) else ""
        return done.encode("utf-8", "surrogateescape")


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


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text; raises ValueError if it is invalid or nested too deep."""
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return tables


def masked_toml(text: str) -> str:
    """Mask secrets in the values of a TOML text, or in its words if it is invalid."""
    import tomli_w  # noqa: PLC0415 — only where settings are shown

    try:
        return tomli_w.dumps(_masked_value(parse_toml(text)))
    except ValueError:
        return masked(text)


def _masked_value(value: Any) -> Any:  # noqa: ANN401 — a table of TOML holds anything
    if isinstance(value, dict):
        return {key: _masked_value(each) for key, each in value.items()}
    if isinstance(value, list):
        is_command = all(isinstance(each, str) for each in value)
        return list(masked_words(tuple(value))) if is_command else [*map(_masked_value, value)]
    return masked(value) if isinstance(value, str) else value


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return "1 failure", "2 failures"; the default plural adds an s."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def age_text(age_s: float) -> str:
    """Return a duration in words: "40 s", "2 h 5 min"."""
    if age_s < 120:
        return f"{age_s:.0f} s"
    minutes = int(age_s // 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days"


def first_few(words: Sequence[str], *, most: int, between: str = ", ") -> str:
    """Return the first words, and the number of others: "a, b and 3 more"."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return between.join(words[:most]) + more


def counted_kernels(names: int, shapes: int) -> str:
    """Return "3 kernels in 12 shapes"; "3 kernels" if each has one shape or shapes are unknown."""
    kernels = counted(names, "kernel")
    return kernels if shapes <= names else f"{kernels} in {counted(shapes, 'shape')}"


def assigned(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return `name=value` of each, sorted by name."""
    return tuple(f"{name}={value}" for name, value in sorted(values.items()))


def visible(text: str) -> str:
    """Return the text with control, bidi and invisible characters written as ⟨U+202E⟩.

    New lines and tabs stay. A lone surrogate, which no file can hold, is written out as well.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"⟨U+{ord(char):04X}⟩"
        if unicodedata.category(char) in _HIDDEN and char not in "\n\t"
        else char
        for char in text
    )


def escaped_json(content: bytes) -> bytes:
    """Return JSON of the same values, without characters that hide or control a terminal."""
    if content.isascii():
        return content
    text = content.decode()
    return "".join(
        char.encode("unicode-escape").decode().replace("\\x", "\\u00")
        if unicodedata.category(char) in _HIDDEN and ord(char) in range(0x7F, 0x10000)
        else char
        for char in text
    ).encode()


def flat(text: str) -> str:
    """Return the text on one line with hidden characters visible, and spaces for whitespace."""
    return visible(text.replace("\t", " ").replace("\n", " "))


def visible_line(text: str) -> str:
    """Return the text as in `visible`, with new lines and tabs also written out."""
    return visible(text).replace("\n", "⟨U+000A⟩").replace("\t", "⟨U+0009⟩")


def one_line(text: str, *, most: int = 240) -> str:
    """Return the first line that is not empty, shortened to `most` characters."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return shortened(" ".join(first.split()), most=most)


def spoken(text: str, *, most: int = 200) -> str:
    """Return a program's output on one line, shortened, without secrets or hidden characters."""
    lines = (" ".join(visible(line).split()) for line in masked(text).splitlines())
    return shortened("; ".join(filter(None, lines)), most=most) or "nothing"


def sentence(text: str) -> str:
    """Return the text with exactly one full stop at its end."""
    return f"{text.rstrip('.')}."


def cause_line(text: str, *, brief: str) -> str:
    """Return the line of a log or traceback with the cause: the last one with words.

    Empty if the brief contains it already.
    """
    # The threads and frames that follow are not the cause.
    if "Fatal Python error" in text:
        text = _THREADS.split(text, maxsplit=1)[0]
    lines = [line.strip() for line in text.splitlines()]
    causes = (line for line in reversed(lines) if not line.startswith(_NO_CAUSE))
    last = next((line for line in causes if any(char.isalnum() for char in line)), "")
    return "" if last in brief else one_line(masked(last), most=LONGEST_REASON)


def shortened(text: str, *, most: int) -> str:
    """Return at most `most` characters and, if the text is longer, its length.

    For a text that was shortened before, this is the original length.
    """
    before = _SHORTENED.fullmatch(text)
    body, count = (before[1], before[2]) if before else (text, len(text))
    return text if len(body) <= most else f"{body[:most]}… ({count} characters)"


def closest(word: str, known: tuple[str, ...]) -> str:
    """Return a hint that lists the known words, the likeliest first."""
    near = difflib.get_close_matches(word, known, n=1)
    everything = ", ".join(known)
    return f"did you mean `{near[0]}`? Known: {everything}" if near else f"known: {everything}"


def listed(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the items of a comma list or of a TOML array, without blanks."""
    items = value.split(",") if isinstance(value, str) else (value or ())
    return tuple(item.strip() for item in items if item.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run: argv, extra environment and working directory; never shell text."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None

    def flat(self) -> tuple[str, ...]:
        """Return one argv that sets the environment and directory itself (POSIX sh, env)."""
        argv = self.argv
        if self.env:
            argv = ("env", *(f"{name}={value}" for name, value in self.env), *argv)
        if self.cwd is not None:
            argv = ("sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", self.cwd, *argv)
        return argv


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The exit code (128 + n after signal n) and both streams of a finished command."""

    command: Command
    exit_code: int
    stdout: str
    stderr: str

    @property
    def succeeded(self) -> bool:
        """Tell whether the exit code is 0."""
        return self.exit_code == 0

    def tail(self, lines: int = 10) -> str:
        """Return the last lines of stderr, or of stdout if stderr is empty, without secrets."""
        text = self.stderr.strip() or self.stdout.strip()
        return masked("\n".join(text.splitlines()[-lines:]))


def shell_text(argv: tuple[str, ...]) -> str:
    """Quote argv for a POSIX shell."""
    return shlex.join(argv)


def shown_text(argv: tuple[str, ...]) -> str:
    """Quote argv for a reader, without its secrets."""
    return shlex.join(masked_words(argv))
