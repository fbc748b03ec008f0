"""Prove the cause of a difference: change the slow line, and see whether the difference goes.

A search runs the slow line with groups of properties of the fast one, and halves the group that
closes most. What it finds is confirmed in fresh rounds beside a placebo, since the best of many in
one measurement looks better than it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from envcompare.proof.levers import PLACEBO, Change, Edit, edited
from envcompare.run_folder.records import Proof, ProofShare, Trial
from envcompare.stats.shares import Share, Unit, excess_of_share, share_closed
from envcompare.text import masked

_FAST, _SLOW, _PLACEBO, _CHANGED = "fast", "slow", "placebo", "changed"
_MOST_ARMS: Final = 3  # of changed lines in a stage
_ROUNDS: Final = 7  # of a stage, the first of which warms up
_STAGE_SHARE: Final = 1 / 3  # of the time left, at most, for a stage
_LITTLE: Final = 0.15  # a share below this is followed no further
_CAUSE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run of several lines gave."""

    units: Sequence[Unit]
    failed: Mapping[str, str]  # reasons, by line
    folder: str


Measure = Callable[[dict[str, str], int | None, float], Measured]
"""Measures lines by name, in at most so many rounds (None: as many as it takes) and seconds."""


@dataclass(slots=True, kw_only=True)
class Search:
    """A search for the cause, and its confirmation, within a budget in seconds."""

    fast: str  # the lines
    slow: str
    measure: Measure
    manual: str  # of `run --help`, for a line that calls an engine
    budget_s: float
    tried: list[Trial] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)

    def prove(self, changes: Sequence[Change], *, arm: str, slow_arm: str, client: str) -> Proof:
        """Return the proof of what closes most of the gap, or that nothing does.

        Another image closes it with whatever is in it: it counts where nothing else does as well.
        """
        found = self._found(changes)
        outcome: Literal["cause", "contributes", "not-proven", "none"] = "none"
        confirmed, placebo = None, None
        if found is not None:
            outcome, confirmed, placebo = self._confirmed(found)
        return Proof(
            arm=arm,
            slow=slow_arm,
            outcome=outcome,
            confirmed=confirmed,
            placebo=placebo,
            mend=found.mend(client) if found is not None else "",
            cost=found.cost if found is not None else "",
            tried=tuple(self.tried),
            runs=tuple(self.runs),
        )

    @property
    def _left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self._began_s)

    def _found(self, changes: Sequence[Change]) -> Change | None:
        """Return the change that closes most of the gap in the search; None if none does much."""
        groups = _groups(changes)
        while groups and len(changes) > 1:
            shares = self._stage(groups)
            best = max(shares, key=lambda at: shares[at].value, default=None)
            if best is None or shares[best].value < _LITTLE:
                return None
            if groups[best][0].edit.image:
                enough = max(_LITTLE, _CAUSE * shares[best].value)
                del shares[best]
                other = max(shares, key=lambda at: shares[at].value, default=best)
                best = other if other in shares and shares[other].value >= enough else best
            if len(groups[best]) == 1:
                return groups[best][0]
            groups = _groups(groups[best])
        return changes[0] if changes else None

    def _stage(self, groups: Sequence[Sequence[Change]]) -> dict[int, Share]:
        """Measure the slow line with each group of changes; return the shares that they close."""
        names = [f"{_CHANGED}-{at + 1}" for at in range(len(groups))]
        lines = {
            name: self._changed(_edit(group)) for name, group in zip(names, groups, strict=True)
        }
        measured = self._run(lines, _ROUNDS, self._left_s * _STAGE_SHARE)
        found: dict[int, Share] = {}
        for at, (name, group) in enumerate(zip(names, groups, strict=True)):
            share = self._share(measured, name)
            self.tried.append(_trial(group, lines[name], share, measured.failed.get(name, "")))
            if share is not None:
                found[at] = share
        return found

    def _confirmed(
        self, found: Change
    ) -> tuple[Literal["cause", "contributes", "not-proven"], Trial, ProofShare | None]:
        line = self._changed(found.edit)
        lines = {_CHANGED: line, _PLACEBO: self._changed(PLACEBO)}
        measured = self._run(lines, None, max(self._left_s, 1.0))
        share, placebo = (self._share(measured, name) for name in (_CHANGED, _PLACEBO))
        trial = _trial((found,), line, share, measured.failed.get(_CHANGED, ""))
        if share is None or placebo is None:
            return "not-proven", trial, None
        excess = excess_of_share(
            measured.units, fast=_FAST, slow=_SLOW, changed=_CHANGED, placebo=_PLACEBO
        )
        is_more = share.low > 0 and excess is not None and excess.low > 0
        outcome: Literal["cause", "contributes", "not-proven"] = "not-proven"
        if is_more:
            outcome = "cause" if share.low > _CAUSE else "contributes"
        return outcome, trial, _kept(placebo)

    def _run(self, lines: dict[str, str], rounds: int | None, budget_s: float) -> Measured:
        both = {_FAST: self.fast, _SLOW: self.slow}
        measured = self.measure({**both, **lines}, rounds, budget_s)
        self.runs.append(measured.folder)
        return measured

    def _share(self, measured: Measured, name: str) -> Share | None:
        if {_FAST, _SLOW, name} & measured.failed.keys():
            return None
        names = {_FAST, _SLOW, name}
        units = [unit for unit in measured.units if names <= unit.keys()]
        return share_closed(units, fast=_FAST, slow=_SLOW, changed=name)

    def _changed(self, edit: Edit) -> str:
        return edited(self.slow, edit, manual=self.manual)


def _groups(changes: Sequence[Change]) -> list[list[Change]]:
    """Return groups to compare: by kind, else each alone if they are few, else halves."""
    image = [[one] for one in changes if one.edit.image]
    others = [one for one in changes if not one.edit.image]
    kinds = list(dict.fromkeys(one.kind for one in others))
    if len(others) <= _MOST_ARMS:
        return [*image, *([one] for one in others)]
    if len(kinds) > 1:
        return [*image, *([one for one in others if one.kind == kind] for kind in kinds)]
    half = len(others) // 2
    return [*image, others[:half], others[half:]]


def _edit(group: Sequence[Change]) -> Edit:
    whole = Edit()
    for one in group:
        whole += one.edit
    return whole


def _trial(group: Sequence[Change], line: str, share: Share | None, failed: str) -> Trial:
    return Trial(
        keys=tuple(one.key for one in group),
        what="; ".join(one.what for one in group),
        line=masked(line),
        share=None if share is None else _kept(share),
        failed=failed if share is None else "",
    )


def _kept(share: Share) -> ProofShare:
    return ProofShare(value=share.value, low=share.low, high=share.high)
