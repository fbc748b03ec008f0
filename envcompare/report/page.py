"""Draw the page: one HTML file with its style and script inside, nothing fetched from anywhere."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files as package_files
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: TID251 — its home
from markupsafe import Markup, escape

from envcompare.analysis.model.comparison import RunComparison
from envcompare.report.format.numbers import FIGURE
from envcompare.report.view import page
from envcompare.text import visible

_CODE: Final = re.compile(r"`([^`]+)`")


def render(comparison: RunComparison, *, files: tuple[str, ...] = ()) -> str:
    """Return the report as HTML; `files` are the names, beside the page, that it may link to."""
    style, script = _bundled("report.css"), _bundled("report.js")
    return (
        _templates()
        .get_template("report.html.j2")
        .render(
            page=page(comparison, files),
            style=Markup(style),  # noqa: S704 — our own file
            script=Markup(script),  # noqa: S704 — our own file
            policy=_policy(style, script),
        )
    )


def _policy(style: str, script: str) -> str:
    """Return a content security policy that allows this style, this script and nothing else."""
    return (
        f"default-src 'none'; style-src 'sha256-{_digest(style)}'; "
        f"script-src 'sha256-{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("envcompare.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"figures": _figures, "attributes": _attributes}
    return templates


@cache
def _bundled(name: str) -> str:
    path = package_files("envcompare.report") / "templates" / name
    return path.read_text(encoding="utf-8")


def _printed(value: object) -> object:
    """Make hidden characters visible in everything that is printed."""
    return visible(value) if type(value) is str else value


def _figures(text: str) -> Markup:
    """Keep a number and its unit on one line, and set what stands in backquotes as code."""
    safe = FIGURE.sub(r'<span class="nw">\g<0></span>', str(escape(visible(text))))
    return Markup(_CODE.sub(r"<code>\1</code>", safe))  # noqa: S704 — escaped above


def _attributes(pairs: tuple[tuple[str, str], ...]) -> Markup:
    """Return attributes as they stand in a tag, each with a space before it."""
    made = (f' {escape(name)}="{escape(visible(value))}"' for name, value in pairs)
    return Markup("".join(made))  # noqa: S704 — escaped above
