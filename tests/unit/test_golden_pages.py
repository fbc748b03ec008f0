"""Pages, comments and terminal summaries of fixed run folders, word for word.

`python tests/support/goldens.py` writes what is kept anew.
"""

from __future__ import annotations

import pytest
from goldenruns import SHAPES, SMALL, golden_run
from goldens import difference, texts
from htmltree import parse

FILES = tuple(
    f"{name}.{form}"
    for name in SHAPES
    for form in ("page.txt", *(("md", "terminal.txt") if name in SMALL else ()))
)


@pytest.mark.parametrize("file", FILES)
def test_a_fixed_run_is_drawn_as_it_was(file: str) -> None:
    """Whatever changes on a page, in a comment or on the terminal is seen in a review."""
    text = texts(file.partition(".")[0])[file]
    changed = difference(file, text)
    assert not changed, f"\n{changed}"


@pytest.mark.parametrize("name", SHAPES)
def test_the_pages_of_fixed_runs_are_sound(name: str) -> None:
    """Elements are closed in their turn, ids are there once, and references lead to them."""
    page = parse(golden_run(name).html)
    ids = [one.attributes["id"] for one in page.walk() if "id" in one.attributes]
    assert len(set(ids)) == len(ids)
    for one in page.walk():
        for attribute in ("aria-labelledby", "aria-describedby", "for", "aria-controls"):
            for target in one.attributes.get(attribute, "").split():
                assert target in ids, f"{attribute}={target}"
        target = one.attributes.get("href", "")
        assert not target.startswith("#") or target[1:] in ids, target


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_on_a_page_carries_a_style_or_a_handler(name: str) -> None:
    """The policy of a strict server refuses style attributes and handlers, so there are none."""
    for one in parse(golden_run(name).html).walk():
        assert "style" not in one.attributes, one.tag
        assert not [key for key in one.attributes if key.startswith("on")]
        assert "src" not in one.attributes
        assert one.tag not in {"link", "iframe", "object", "embed", "base", "img", "image"}
