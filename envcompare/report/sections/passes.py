"""The profiles that were taken of a cell, and why others are missing."""

from __future__ import annotations

from dataclasses import dataclass

from envcompare.analysis.model.profiling import ArmProfiles, PassState
from envcompare.report.format.numbers import listed
from envcompare.report.sections.links import Link, link
from envcompare.text import counted, one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """One profile of one arm: what made it, or why it is missing and what mends that."""

    arm: str
    name: str
    state: str
    text: str
    hint: str
    files: tuple[Link, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """The profiles that are missing for one reason."""

    names: str
    reason: str
    hint: str


def pass_row(arm: ArmProfiles, one: PassState, files: tuple[str, ...]) -> PassRow:
    """Return one profile in words, with its raw files."""
    steps = counted(one.steps, "step") if one.steps else "steps not known"
    untimed = "" if one.has_time else "its times are not used: counting slows kernels down"
    told = (one.tool, steps, untimed, *one.notes)
    missing = one_line(one.reason) or "no reason was recorded"
    return PassRow(
        arm=arm.arm,
        name=one.name,
        state=one.state,
        text="; ".join(text for text in told if text) if one.state == "ok" else missing,
        hint=one_line(one.hint),
        files=tuple(found for name in one.raw if (found := link(name, files)) is not None),
    )


def missing_rows(rows: tuple[PassRow, ...]) -> tuple[Missing, ...]:
    """Return each reason once, with the profiles that are missing for it."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        if row.state == "missing":
            found.setdefault((row.text, row.hint), {}).setdefault(row.arm, []).append(row.name)
    return tuple(
        Missing(names=_grouped(by_arm), reason=reason, hint=hint)
        for (reason, hint), by_arm in found.items()
    )


def _grouped(by_arm: dict[str, list[str]]) -> str:
    """Return "nsys and ncu-memory of vm and docker; nsys of singularity"."""
    arms: dict[str, list[str]] = {}
    for arm, names in by_arm.items():
        arms.setdefault(listed(names, most=6), []).append(arm)
    return "; ".join(f"{names} of {listed(of, most=6)}" for names, of in arms.items())
