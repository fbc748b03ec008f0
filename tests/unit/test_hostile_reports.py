"""A run whose every name, path, error, kernel and fact is hostile is drawn like any other."""

from __future__ import annotations

import csv
import functools
import io
import re
import unicodedata
from xml.etree import ElementTree as ET

import pytest
from hostile import EVIL, files_of, full_run, harmless, renamed
from htmltree import Element, parse
from summaries import markdown, printed

from envcompare.cli.conclusion import show
from envcompare.report.exports import csv_text
from envcompare.report.page import render
from envcompare.report.summary import summary
from envcompare.text import visible

FREE = {"id", "href", "aria-label", "aria-labelledby", "aria-describedby", "title", "value", "name"}
FROM_TEXT = {"code", "span"}  # set around figures and backquotes wherever they are written
NEVER_DRAWN = {"script", "foreignObject", "image", "a", "style", "use", "animate", "set"}
PAINTED = {"fill", "stroke", "filter", "clip-path", "mask", "marker-end", "cursor"}
NUMBER = re.compile(r"-?[\d.]+(?:e-?\d+)?")
CONTROL = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@functools.cache
def html(text: str) -> str:
    """Draw the run with a text before everything that is said in it.

    One letter stands before it, so that names are sorted alike with any text.
    """
    run = renamed(full_run(), f"z{text}")
    return render(run, files=files_of(run))


@functools.cache
def page(text: str) -> Element:
    """Return the drawn page as a tree."""
    return parse(html(text))


def skeleton(root: Element) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Return tags, names of attributes, and the values of those that no name of a user is part of.

    Shapes in drawings may stand elsewhere: a long name makes room for itself.
    """
    return [
        (
            one.tag,
            tuple(one.attributes),
            tuple(value for key, value in one.attributes.items() if key not in FREE and not drawn),
        )
        for one, drawn in placed(root, drawn=False)
        if one.tag not in FROM_TEXT
    ]


def placed(root: Element, *, drawn: bool) -> list[tuple[Element, bool]]:
    """Return all elements, and whether each stands in a drawing."""
    inside = drawn or root.tag in {"svg", "meta"}
    below = [child for child in root.children if isinstance(child, Element)]
    return [(root, inside), *(pair for child in below for pair in placed(child, drawn=inside))]


@pytest.mark.parametrize("evil", EVIL)
def test_no_element_and_no_attribute_comes_from_a_name(evil: str) -> None:
    """The page has the elements it would have had with names of letters, one for one."""
    hostile, usual = skeleton(page(evil)), skeleton(page(harmless(evil)))
    for found, expected in zip(hostile, usual, strict=False):
        assert found == expected
    assert len(hostile) == len(usual)


@pytest.mark.parametrize("evil", EVIL)
def test_no_name_leaves_the_page(evil: str) -> None:
    """Links lead to places on the page and files beside it; no handler or source is there."""
    for one in page(evil).walk():
        keys = set(one.attributes)
        assert not [key for key in keys if key.startswith("on")]
        assert not keys & {"style", "src", "srcset", "action", "formaction", "xlink:href"}
        target = one.attributes.get("href", "#")
        assert target.startswith(("#", "./")), target
        assert ".." not in target.split("/")
        for key in keys & PAINTED:
            assert not re.search(r"url\((?!#)", one.attributes[key]), one.tag


@pytest.mark.parametrize("evil", EVIL)
def test_every_hostile_name_is_read_as_it_was_written(evil: str) -> None:
    """A name is shown and not swallowed, with what is hidden in it spelt out."""
    root = page(evil)
    first = next(line for line in evil.splitlines() if line)
    start = re.split(r"[\x00-\x1f\u0080-\u009f\u200b\u2028\u202e]|`|  ", first)[0][:12]
    assert start in root.text
    for one in root.walk():
        for text in (*one.attributes.values(), *filter(is_text, one.children)):
            assert not hidden(str(text)), (one.tag, text)


def is_text(child: Element | str) -> bool:
    """Say whether a child is text."""
    return isinstance(child, str)


def hidden(text: str) -> list[str]:
    """Return the characters that a reader does not see, but for line breaks and tabs."""
    return [char for char in text if char not in "\n\t" and unicodedata.category(char) in CONTROL]


@pytest.mark.parametrize("evil", EVIL)
def test_charts_stay_drawings(evil: str) -> None:
    """Each is XML by itself, its ids are its own, and no text in it became an element."""
    charts = re.findall(r"<svg\b[^>]*>.*?</svg>", html(evil), re.DOTALL)
    assert charts
    for chart in charts:
        named = chart.replace("<svg", '<svg xmlns:xlink="http://www.w3.org/1999/xlink"', 1)
        tags = {one.tag.rpartition("}")[2] for one in ET.fromstring(named).iter()}
        assert not tags & {
            "script",
            "foreignObject",
            "image",
            "a",
            "style",
            "use",
            "animate",
            "set",
        }


@pytest.mark.parametrize("evil", EVIL)
def test_lines_of_the_terminal_stay_lines(evil: str) -> None:
    """No name ends a line, colours one, or writes over another."""
    hostile, usual = (printed(renamed(full_run(), text)) for text in (evil, harmless(evil)))
    assert hostile.count("\n") == usual.count("\n")
    assert not hidden(hostile.replace("\n", ""))


@pytest.mark.parametrize("evil", EVIL)
def test_markdown_keeps_its_lines_its_columns_and_no_markup_of_a_name(evil: str) -> None:
    """A pull-request comment shows a name and does not obey it."""
    hostile, usual = (markdown(renamed(full_run(), text)) for text in (evil, harmless(evil)))
    assert [shape(line) for line in hostile.splitlines()] == [
        shape(line) for line in usual.splitlines()
    ]
    assert not hidden(hostile)
    assert not re.search(r"[<>@]|&(?!amp;|lt;|gt;|#64;)", re.sub(r"(?m)^> ⚠", "", hostile))


def shape(line: str) -> tuple[str, int, int]:
    """Return how a line begins, how many columns it has, and what in it Markdown would obey."""
    bare = re.sub(r"\\[\\`*_\[\]|#~!]", "", line)
    return line[:2], bare.count("|"), sum(bare.count(mark) for mark in ("**", "`", "[", "](", "_"))


@pytest.mark.parametrize("evil", EVIL)
def test_a_table_for_spreadsheets_holds_texts_and_no_formulas(evil: str) -> None:
    """Every line has all its cells, and no cell of a name would be computed."""
    hostile, usual = (csv_rows(text) for text in (evil, harmless(evil)))
    assert [len(row) for row in hostile] == [len(row) for row in usual]
    for row in hostile:
        for cell in row:
            assert not hidden(cell)
            assert not cell.startswith(("=", "+", "@", "\t")), cell
            assert not cell.startswith("-") or NUMBER.fullmatch(cell), cell


def csv_rows(text: str) -> list[list[str]]:
    """Return the cells of the table, as a program reads them."""
    return list(csv.reader(io.StringIO(csv_text(renamed(full_run(), text)), newline="")))


MARKUP = ("[red]x[/red]", "[/]", "[link=x]y[/link]", "\x1b]0;x\x07", ":smile:")


@pytest.mark.parametrize("text", MARKUP)
def test_the_terminal_prints_markup_as_it_was_written(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What looks like markup of the library that prints is none, and no sequence is sent."""
    show(summary(renamed(full_run(), text)))
    shown = capsys.readouterr().out
    assert visible(text) in shown
    assert "\x1b]" not in shown
    assert "\x07" not in shown
