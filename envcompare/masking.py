"""Masks secrets in what is shown or kept, by the rule of the harness, which arms use too."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache

from envcompare import bundled
from envcompare.errors import Problem


def masked(text: str) -> str:
    """Return a text without logins of URLs, values that are named as secrets, and known tokens."""
    return _rule()(text)


def masked_problem(problem: Problem) -> Problem:
    """Return a problem with its three sentences masked."""
    brief, details, hint = map(masked, (problem.brief, problem.details, problem.hint))
    return Problem(brief=brief, details=details, hint=hint)


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
