"""Texts for the reader (on one line, shortened, hidden characters made visible), and TOML."""

from __future__ import annotations

import difflib
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final

from envcompare.masking import masked, masked_words

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
LONGEST_REASON: Final = 600
"""The most characters of a reason for a failure."""
_SHORTENED: Final = re.compile(r"(.*)… \((\d+) characters\)", re.DOTALL)
# Crashed interpreters and engine clients print these lines last, but they are not the cause.
_NO_CAUSE: Final = ("Python runtime state:", "See 'docker", "Run 'docker")
_THREADS: Final = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)


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
    lines = [line.strip() for line in _without_frames(text).splitlines()]
    causes = (line for line in reversed(lines) if not line.startswith(_NO_CAUSE))
    last = next((line for line in causes if any(char.isalnum() for char in line)), "")
    return "" if last in brief else one_line(masked(last), most=LONGEST_REASON)


def _without_frames(text: str) -> str:
    """Drop the threads and frames that a crashed interpreter lists."""
    return _THREADS.split(text, maxsplit=1)[0] if "Fatal Python error" in text else text


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
