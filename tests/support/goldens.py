"""What a page, a summary and a comment said when somebody last looked: kept as text, and compared.

`python tests/support/goldens.py` writes all of them anew, after a change that is meant; look at
`git diff tests/data/report/golden` before it is kept. A small page is kept whole, element by
element; of a large one its outline. Style and script are left out, and so is what a drawing
library draws: a chart is its title, its description and its number of marks.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "benchmarks")]

from goldenruns import SHAPES, SMALL, golden_run  # noqa: E402 — found beside this file
from htmltree import Element, parse  # noqa: E402
from summaries import markdown, terminal_lines  # noqa: E402

from envcompare.analysis.model import RunComparison  # noqa: E402

GOLDEN: Final = ROOT / "tests" / "data" / "report" / "golden"
_MOST_LINES: Final = 80  # of a difference that is shown
_HASH: Final = re.compile(r"'sha256-[^']+'")
_INLINE: Final = frozenset({"span", "strong", "small", "code", "a", "br", "i", "em", "b", "label"})
_SHAPES: Final = frozenset({"path", "rect", "line", "circle", "polygon", "polyline", "ellipse"})
_DATA: Final = re.compile(r"--(?:p\d|slow|fast|even|open|bad)\b")
_MOST_ALIKE: Final = {"details": 3, "li": 6}  # beside each other in an outline
_OUTLINED: Final = {"p": "text", "li": "item", "summary": "fold", "form": "form"}
_HEADINGS: Final = ("h1", "h2", "h3", "h4")


def texts(name: str) -> dict[str, str]:
    """Return what is kept of a fixed run, by the names of the files."""
    run = golden_run(name)
    page = whole(run.html) if name in SMALL else outline(run.html)
    found = {f"{name}.page.txt": page}
    if name in SMALL:
        found[f"{name}.md"] = markdown(run.comparison)
        found[f"{name}.terminal.txt"] = terminal(run.comparison)
    return found


def difference(name: str, text: str) -> str:
    """Return how a text differs from the kept one, empty where it does not."""
    path = GOLDEN / name
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    if kept == text:
        return ""
    lines = list(
        difflib.unified_diff(
            kept.splitlines(), text.splitlines(), f"kept {name}", "drawn now", lineterm="", n=2
        )
    )
    shown = lines[:_MOST_LINES]
    if len(lines) > len(shown):
        shown.append(f"… and {len(lines) - len(shown)} more lines")
    return "\n".join((*shown, "If this is meant: python tests/support/goldens.py"))


def terminal(run: RunComparison) -> str:
    """Return the lines for the terminal as text: role, outcome, columns."""
    return "".join(
        f"{line.role:<9}{line.outcome or '':<13}{' | '.join(line.columns)}\n"
        for line in terminal_lines(run)
    )


def whole(html: str) -> str:
    """Return every element of a page on a line of its own, indented; inline ones in their line."""
    root = next(one for one in parse(html).walk() if one.tag == "html")
    return "\n".join(_lines(root, 0)) + "\n"


def outline(html: str) -> str:
    """Return headings, headlines, cards, folds, the heads and sizes of tables, and charts."""
    main = next(one for one in parse(html).walk() if one.tag == "main")
    return "\n".join(_outlined(main)) + "\n"


def is_chart(one: Element) -> bool:
    """Say whether a drawing stands for itself and is no mark in a row that says the same."""
    return one.tag == "svg" and one.attributes.get("role") == "img"


def chart_line(one: Element) -> str:
    """Return a chart in one line: title, description and how many marks it has."""
    said = [" ".join(part.text for part in one.every(tag)[:1]) for tag in ("title", "desc")]
    return f"chart: {said[0]} / {said[1]} / {marks(one)} marks"


def marks(one: Element) -> int:
    """Return how many shapes have a colour that stands for data; axes and grids are grey."""
    return sum(
        part.tag in _SHAPES
        and any(_DATA.search(part.attributes.get(key, "")) for key in ("fill", "stroke"))
        for part in one.walk()
    )


def _lines(one: Element, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if one.tag in {"style", "script"}:
        return
    if is_chart(one):
        yield indent + chart_line(one)
        return
    if one.tag == "svg":
        yield f"{indent}{_head(one)} {sum(part.tag in _SHAPES for part in one.walk())} shapes"
        return
    if all(isinstance(part, str) or _is_inline(part) for part in one.children):
        yield f"{indent}{_head(one)} {_inline(one)}".rstrip()
        return
    yield f"{indent}{_head(one)}"
    for part in one.children:
        if isinstance(part, Element):
            yield from _lines(part, depth + 1)
        elif part.strip():
            yield f"{indent}  “{' '.join(part.split())}”"


def _is_inline(one: Element) -> bool:
    return one.tag in _INLINE and all(
        isinstance(part, str) or _is_inline(part) for part in one.children
    )


def _inline(one: Element) -> str:
    parts = (
        part if isinstance(part, str) else f"[{_head(part)} {_inline(part)}]" if part.children
        else f"[{_head(part)}]"
        for part in one.children
    )  # fmt: skip
    return " ".join("".join(parts).split())


def _head(one: Element) -> str:
    known = dict(one.attributes)
    name = known.pop("id", "")
    known.pop("class", "")
    classes = "".join(f".{part}" for part in one.classes)
    if one.tag == "svg":
        known = {}
    rest = "".join(
        f" {key}={_HASH.sub('…', value)!r}" if value else f" {key}" for key, value in known.items()
    )
    return f"{one.tag}{f'#{name}' if name else ''}{classes}{f'({rest.strip()})' if rest else ''}"


def _outlined(one: Element) -> Iterator[str]:
    """Yield the outline of what stands in an element: of many alike the first ones and a count."""
    seen: Counter[str] = Counter()
    for part in one.children:
        if not isinstance(part, Element):
            continue
        seen[part.tag] += 1
        if seen[part.tag] > _MOST_ALIKE.get(part.tag, seen[part.tag]):
            continue
        line = _outline_line(part)
        if line:
            yield line
        if part.tag not in {"table", "svg", "p"}:
            yield from _outlined(part)
    for tag, most in _MOST_ALIKE.items():
        if seen[tag] > most:
            yield f"… and {seen[tag] - most} more <{tag}>"


def _outline_line(one: Element) -> str:
    if is_chart(one):
        return chart_line(one)
    if one.tag in _HEADINGS:
        return f"{'#' * int(one.tag[1])} {one.text}"
    if one.tag == "table":
        return _table_line(one)
    word = "lead" if "lead" in one.classes else _OUTLINED.get(one.tag, "")
    return f"{word}: {one.text}" if word and one.text and not one.every("table") else ""


def _table_line(one: Element) -> str:
    heads = [cell.text for head in one.every("thead")[:1] for cell in head.every("th")]
    rows = [row for body in one.every("tbody") for row in body.every("tr")]
    drawn = sum(part.tag == "svg" for part in one.walk())
    first = " | ".join(cell.text for cell in rows[0].children if isinstance(cell, Element))
    size = f"{len(rows)} rows, {drawn} drawings"
    return f"table: {' | '.join(heads)}\n  {size}; first: {first}"


def rewrite() -> None:
    """Write every kept text as it is drawn now."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in SHAPES:
        for file, text in texts(name).items():
            (GOLDEN / file).write_text(text, encoding="utf-8")
            sys.stdout.write(f"{GOLDEN / file}\n")


if __name__ == "__main__":
    rewrite()
