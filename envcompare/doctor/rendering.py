"""The lines in which `envcompare doctor` says what it finds."""

from __future__ import annotations

from collections.abc import Iterator

from envcompare.doctor.model import ComparedStack, Finding, HostExamination
from envcompare.fingerprint.facts import fact
from envcompare.fingerprint.sentences import SEPARATE, describe
from envcompare.run_folder.records import FactClass, FactDifference

_MARGIN = "      "
_COUNTED: tuple[tuple[FactClass, str], ...] = (
    ("varied", "made by the environment on purpose"),
    ("identity", "in names and IDs alone"),
)
_NAMED: tuple[tuple[FactClass, str], ...] = (
    ("possible-influence", "possible influence"),
    ("host", "differs though the host is one"),
)
_MOST_NAMES = 6


def diagnosis_lines(host: HostExamination) -> tuple[str, ...]:
    """Say what a host has and lacks, each with the line that mends it."""
    if host.trouble is not None:
        error, *rest = host.trouble.lines()
        return (f"{host.host}:", f"  ✕ {error}", *(f"  {line}" for line in rest))
    return (f"{host.host}:", *(line for one in host.findings for line in _finding_lines(one)))


def comparison_lines(host: HostExamination, *, allow_mismatch: bool = False) -> tuple[str, ...]:
    """Say how the stacks of a host differ, or why they were not compared."""
    notes = (f"  – {note}" for note in host.notes)
    if host.not_compared is not None:
        problem = host.not_compared
        mark = "✕" if host.exit_code else "–"  # that they are not made yet is no failure
        why = (f"{_MARGIN}why: {problem.details}",) if problem.details else ()
        head = f"  {mark} stacks: not compared, {problem.brief}"
        return (*notes, head, *why, *_try(problem.hint))
    is_allowed = allow_mismatch and not all(stack.is_as_meant for stack in host.stacks)
    allowed = "  – stacks differ and are compared all the same (--allow-mismatch)"
    lines = (line for stack in host.stacks for line in _stack_lines(stack))
    return (*notes, *lines, *((allowed,) * is_allowed))


def _stack_lines(stack: ComparedStack) -> tuple[str, ...]:
    """Say how an arm differs from the one it is compared with, what matters first."""
    where = f"in a step of {', '.join(stack.workloads)}"
    leading = [one for one in stack.differences if one.fact_class == "confounder"]
    told = [one for one in leading if not one.part_of]
    head = f"  {_head(stack, is_other=bool(told))}"
    broken: tuple[str, ...] = ()
    if stack.mismatch:
        broken = (f"{_MARGIN}⚠ {stack.mismatch.details}", *_try(stack.mismatch.hint))
    others = [one for one in stack.unexpected if one not in told and not one.part_of]
    more = (f"{_MARGIN}⚠ {describe(one)}: {one.sentence}" for one in others)
    counts = _counts(stack.differences)
    return (f"{head}, {where}", *broken, *_confounders(told), *more, *counts)


def _confounders(told: list[FactDifference]) -> Iterator[str]:
    """Give their sentences, and once what separates those that one command separates."""
    for remedy in dict.fromkeys(one.remedy for one in told):
        for one in told:
            if one.remedy == remedy:
                yield f"{_MARGIN}⚠ {one.sentence}"
        if remedy:
            yield f"{_MARGIN}  {SEPARATE}{remedy}"


def _head(stack: ComparedStack, *, is_other: bool) -> str:
    """Say whether an arm has the software it should have, as far as that was seen."""
    if not stack.is_as_meant:
        return f"✕ stack of {stack.arm}: not the software of {stack.base}, as it should be"
    if is_other:
        why = "your own image" if stack.is_given else "another stack"
        return f"✓ stack of {stack.arm}: other software than {stack.base}'s, as expected of {why}"
    if not stack.is_meant:
        return f"✓ stack of {stack.arm}: no difference that matters from {stack.base}'s"
    if not stack.is_proven:
        return f"– stack of {stack.arm}: like {stack.base}'s, but not all of it could be hashed"
    return f"✓ stack of {stack.arm}: the software of {stack.base}"


def _counts(differences: tuple[FactDifference, ...]) -> Iterator[str]:
    for fact_class, words in _NAMED:
        told = [one for one in differences if not one.part_of]
        keys = [one.key for one in told if one.fact_class == fact_class]
        names = list(dict.fromkeys(fact(key).name for key in keys))
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        if names:
            yield f"{_MARGIN}{words}: {', '.join(names[:_MOST_NAMES])}{more}"
    counts = [
        f"{count} {words}"
        for kind, words in _COUNTED
        if (count := sum(one.fact_class == kind for one in differences))
    ]
    if counts:
        yield f"{_MARGIN}other differences: {', '.join(counts)}"


def _finding_lines(finding: Finding) -> tuple[str, ...]:
    brief = finding.problem.brief if finding.problem else ""
    if finding.is_usable:
        text = f"  ✓ {finding.subject}: {finding.version or 'usable'}"
    else:
        text = f"  {'✕' if finding.is_needed else '–'} {finding.subject}: {brief}"
    return (text, *_try(finding.problem.hint if finding.problem else ""))


def _try(hint: str) -> tuple[str, ...]:
    return (f"{_MARGIN}try: {hint}",) if hint else ()
