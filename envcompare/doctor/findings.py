"""What doctor finds: one model, written as JSON and as lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from envcompare.environments import Check
from envcompare.errors import Problem
from envcompare.fingerprint.facts import INSTALLED_PARTS, fact
from envcompare.fingerprint.sentences import SEPARATE, describe
from envcompare.run_folder.records import SCHEMA, FactClass, FactDifference
from envcompare.stack.proof import TREE
from envcompare.text import first_few

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


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing on one host; a run fails without what is needed and does with less otherwise."""

    host: str
    subject: str
    is_usable: bool
    is_needed: bool
    version: str | None = None
    problem: Annotated[
        Problem | None, Meta(description="what is wrong with it, or could be better")
    ] = None


class ComparedStack(msgspec.Struct, frozen=True, kw_only=True):
    """How the software around an arm differs from that around another one, after a step in each."""

    arm: str
    base: Annotated[str, Meta(description="the arm it is compared with")]
    workloads: tuple[str, ...]
    is_meant: Annotated[bool, Meta(description="both should have the same software")]
    is_as_meant: Annotated[bool, Meta(description="nothing differs that should not")] = True
    is_proven: Annotated[bool, Meta(description="what is installed was hashed in both")] = True
    is_given: Annotated[bool, Meta(description="one of them is an image of the user's")] = False
    mismatch: Annotated[
        Problem | None, Meta(description="where the proof of the stack is broken")
    ] = None
    differences: tuple[FactDifference, ...] = ()

    def __post_init__(self) -> None:
        """Find out whether all is as it should be."""
        is_as_meant = self.mismatch is None and not self.unexpected
        msgspec.structs.force_setattr(self, "is_as_meant", is_as_meant)

    @property
    def unexpected(self) -> tuple[FactDifference, ...]:
        """Return the differences that should not be: other software, or another tree of it."""
        return tuple(one for one in self.differences if self.is_meant and _is_other_software(one))


class HostExamination(msgspec.Struct, frozen=True, kw_only=True):
    """What one host has and lacks, and how the stacks on it differ."""

    host: str
    exit_code: int = 0
    trouble: Annotated[Problem | None, Meta(description="why the host could not be asked")] = None
    findings: tuple[Finding, ...] = ()
    stacks: tuple[ComparedStack, ...] = ()
    not_compared: Annotated[Problem | None, Meta(description="why no stacks were compared")] = None
    notes: tuple[str, ...] = ()


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All hosts, and the exit code that is the answer for them together."""

    hosts: tuple[HostExamination, ...]
    allow_mismatch: bool = False
    exit_code: int = 0
    schema: Literal[2] = SCHEMA


def finding(host: str, subject: str, check: Check, *, is_needed: bool = True) -> Finding:
    """Return what a check found of something on a host."""
    return Finding(
        host=host,
        subject=subject,
        is_usable=check.is_usable,
        is_needed=is_needed,
        version=check.version,
        problem=check.problem or check.caution,
    )


def overall_exit_code(hosts: tuple[HostExamination, ...]) -> int:
    """Return the smallest of the codes that tell of a lack; 0 where nothing needed is missing."""
    return min({host.exit_code for host in hosts} - {0}, default=0)


def _is_other_software(difference: FactDifference) -> bool:
    """Tell whether a difference is one of software; a hash that could not be taken says nothing."""
    if difference.key in {TREE, INSTALLED_PARTS}:
        return None not in (difference.reference, difference.value)
    return difference.fact_class == "confounder" and not difference.part_of


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
        for difference in told:
            if difference.remedy == remedy:
                yield f"{_MARGIN}⚠ {difference.sentence}"
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
        if names:
            yield f"{_MARGIN}{words}: {first_few(names, most=_MOST_NAMES)}"
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
        text += f", but {brief}" * bool(brief)
    else:
        text = f"  {'✕' if finding.is_needed else '–'} {finding.subject}: {brief}"
    return (text, *_try(finding.problem.hint if finding.problem else ""))


def _try(hint: str) -> tuple[str, ...]:
    return (f"{_MARGIN}try: {hint}",) if hint else ()
