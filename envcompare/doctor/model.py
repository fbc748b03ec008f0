"""What doctor finds: one model, written as JSON, and as lines by `rendering`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from envcompare.environments import Check
from envcompare.errors import Problem
from envcompare.fingerprint.facts import INSTALLED_PARTS
from envcompare.run_folder.records import SCHEMA, FactDifference
from envcompare.stack.proof import TREE


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


def _is_other_software(one: FactDifference) -> bool:
    """Tell whether a difference is one of software; a hash that could not be taken says nothing."""
    if one.key in {TREE, INSTALLED_PARTS}:
        return None not in (one.reference, one.value)
    return one.fact_class == "confounder" and not one.part_of
