"""What was found on the hosts, as types; `envcompare doctor --format json` writes them out."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from envcompare.doctor.checks import Finding
from envcompare.doctor.likeness import Likeness
from envcompare.errors import EnvcompareError
from envcompare.run_folder.records import SCHEMA, FactDifference


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Why something could not be done, and what to try."""

    brief: str
    details: str = ""
    hint: str = ""


class ComparedStack(msgspec.Struct, frozen=True, kw_only=True):
    """How the software around an arm differs from that around another one, after a step in each."""

    arm: str
    base: Annotated[str, Meta(description="the arm it is compared with")]
    workloads: tuple[str, ...]
    is_meant: Annotated[bool, Meta(description="both should have the same software")]
    is_as_meant: Annotated[bool, Meta(description="nothing differs that should not")]
    is_proven: Annotated[bool, Meta(description="what is installed was hashed in both")]
    mismatch: Annotated[str, Meta(description="where the proof of the stack is broken")] = ""
    hint: str = ""
    differences: tuple[FactDifference, ...] = ()


class HostExamination(msgspec.Struct, frozen=True, kw_only=True):
    """What one host has and lacks, and how the stacks on it differ."""

    host: str
    exit_code: int = 0
    trouble: Annotated[Trouble | None, Meta(description="why the host could not be asked")] = None
    findings: tuple[Finding, ...] = ()
    stacks: tuple[ComparedStack, ...] = ()
    not_compared: Annotated[Trouble | None, Meta(description="why no stacks were compared")] = None
    notes: tuple[str, ...] = ()


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All hosts, and the exit code that is the answer for them together."""

    hosts: tuple[HostExamination, ...]
    allow_mismatch: bool = False
    exit_code: int = 0
    schema: Literal[2] = SCHEMA


def trouble_of(error: EnvcompareError) -> Trouble:
    """Return an error as a part of a result."""
    return Trouble(brief=error.brief, details=error.details, hint=error.hint)


def compared_stack(found: Likeness) -> ComparedStack:
    """Return a likeness as a part of a result."""
    return ComparedStack(
        arm=found.arm,
        base=found.base,
        workloads=found.workloads,
        is_meant=found.is_meant,
        is_as_meant=found.is_as_meant,
        is_proven=found.is_proven,
        mismatch=found.mismatch,
        hint=found.hint,
        differences=found.differences,
    )


def overall_exit_code(hosts: tuple[HostExamination, ...]) -> int:
    """Return the smallest of the codes that tell of a lack; 0 where nothing needed is missing."""
    return min({one.exit_code for one in hosts} - {0}, default=0)
