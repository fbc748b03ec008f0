"""Prove the cause of a difference: change the slow line, and see whether the difference goes.

A search runs the slow line with groups of properties of the fast one, and divides the group that
closes most. What it finds is confirmed in fresh rounds beside a placebo, since the best of many in
one measurement looks better than it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec

from envcompare.errors import EnvcompareError, HostHeldError, InterruptedRunError
from envcompare.proof.imagefiles import ENTRYPOINT, FILES, FilesOfImages, divided
from envcompare.proof.levers import PLACEBO, SOFTWARE, Change, Edit, edited
from envcompare.run_folder.records import FingerprintValue, Proof, ProofShare, Trial
from envcompare.stats import Share, Unit, excess_of_share, gap, share_closed
from envcompare.text import masked, visible_line

Outcome = Literal["cause", "contributes", "not-proven", "none"]
Group = Sequence[Change]
_FAST, _SLOW, _PLACEBO, _CHANGED = "fast", "slow", "placebo", "changed"
_BASE: Final = "base"  # the slow line with what was found first
_MOST_ARMS: Final = 5  # of changed lines in a stage
_STAGE_SHARE: Final = 1 / 3  # of the time left, at most, for a stage
_LEAST_S: Final = 5.0  # for a run
_LITTLE: Final = 0.15  # a share below this is followed no further
_CAUSE: Final = 0.5
# A placebo that surely closes more casts doubt on the rounds.
_PLACEBO_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run of several lines gave."""

    units: Sequence[Unit]
    failed: Mapping[str, str]  # reasons, by line
    facts: Mapping[str, Mapping[str, FingerprintValue]] = field(default_factory=dict)  # by line
    lines: Mapping[str, str] = field(default_factory=dict)  # as they were changed, by name
    folder: str = ""


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
    files: FilesOfImages | None = None  # if the lines' images differ
    say: Callable[[str], object] = print  # what takes long
    gap: float = 0.0  # ln(slow ÷ fast), as it was measured before
    tried: list[Trial] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)

    def prove(self, changes: Group, *, arm: str, slow_arm: str, cell: str = "") -> Proof | None:
        """Return the proof of what closes most of the gap, or that nothing does.

        None if the budget is too short to measure any of the changes. All software together closes
        the gap with whatever it holds, and counts where no part of it does.
        """
        first, share = self._search(changes)
        if changes and not self.tried and (not first or self._left_s < _LEAST_S):
            return None
        second: Group = ()
        # If the first change may close almost all of the gap, nothing is left to explain.
        has_room = share is not None and share.high < 0.9
        if has_room and self._left_s > self.budget_s * _STAGE_SHARE:
            second, _ = self._search(self._further(changes, first), base=first)
        chosen, more = (
            [self._with_settings(change) for change in each] for each in (first, second)
        )
        outcome: Outcome = "none"
        confirmed = placebo = None
        if chosen:
            outcome, confirmed, placebo = self._confirm(chosen, more)
            if confirmed.keys != tuple(change.key for change in chosen):
                chosen += more
        mends = dict.fromkeys(change.mend(self.slow, manual=self.manual) for change in chosen)
        return Proof(
            arm=arm,
            cell=cell,
            slow=slow_arm,
            outcome=outcome,
            confirmed=confirmed,
            placebo=placebo,
            mend=masked("; ".join(mends)),
            cost=", and ".join(dict.fromkeys(change.cost for change in chosen if change.cost)),
            tried=tuple(self.tried),
            runs=tuple(self.runs),
        )

    @property
    def _left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self._began_s)

    def _search(self, changes: Group, *, base: Group = ()) -> tuple[Group, Share | None]:
        """Return the changes that close most of the gap in the search, and their share.

        They are several only if no part of them does much; none if no change does. `base` is
        changed with each of them; then they are those that close most besides it.
        """
        groups = _groups(changes)
        if len(changes) <= 1:
            parts = [part for group in groups for part in self._parts(group)]
            if not parts and not base:
                return changes, None
            groups = parts if self._is_all_of_image(parts) else groups + parts
        last: Group = ()
        closed: Share | None = None
        held = 0.0  # the share of `last`, while parts of a group that failed are measured
        measured: list[Group] = []
        waiting: list[Group] = []  # parts of groups that failed, for later stages
        while (groups := [group for group in groups if group not in measured]) and (
            # a quarter of the budget is kept for the confirmation
            self._left_s > max(_LEAST_S, self.budget_s / 4)
        ):
            measured += groups
            shares, failed = self._stage(groups, base=base)
            best = _best(groups, shares)
            if best is None or shares[best].value < _CAUSE:
                # a change that cannot be run hides what the others of its group do
                waiting += [half for group in failed for half in self._parts(group)]
                if waiting:
                    if best is not None and shares[best].value > held:
                        last, closed = groups[best], shares[best]
                        held = closed.value
                    groups, waiting = waiting[:_MOST_ARMS], waiting[_MOST_ARMS:]
                    continue
            if best is None or shares[best].value < held:
                break
            held = 0.0
            last, closed = groups[best], shares[best]
            groups = _groups(last) if len(last) > 1 else self._parts(last)
            if last[0].edit.image and self._is_all_of_image(groups):
                last, groups = groups[0], self._parts(groups[0])
        return last, closed

    def _further(self, changes: Group, chosen: Group) -> Group:
        """Return what may be changed besides, and of two images the other files."""
        is_whole = any(change.is_whole for change in chosen)
        files = {path for change in chosen for path in change.edit.files}
        others = [
            change
            for change in changes
            if change not in chosen
            and not (is_whole and change.kind == "software")
            and not (files and change.is_whole)
        ]
        if files and self.files is not None:
            rest = [path for path in self.files.paths or () if path not in files]
            others += [self.files.change(rest)] if rest else []
        return others

    def _is_all_of_image(self, parts: Sequence[Group]) -> bool:
        """Return whether an only part is all that differs between two images."""
        return (
            len(parts) == 1
            and bool(parts[0][0].edit.files)
            and self.files is not None
            and self.files.differ_in_files_alone()
        )

    def _parts(self, group: Group) -> list[Group]:
        """Return the halves of a group, or the parts of an image; none if there are none."""
        if len(group) > 1:
            return _halves(group)
        (change,) = group
        if self.files is None or not (change.edit.image or change.edit.files):
            return []
        paths = change.edit.files
        try:
            if change.edit.image:
                self.say("  reading both images")
                paths = self.files.read(limit_s=self._left_s * _STAGE_SHARE)
        except InterruptedRunError:
            raise
        except EnvcompareError as error:
            trial = Trial(keys=(FILES,), what="files of the image", line="", failed=error.brief)
            self.tried.append(trial)
            return []
        parts = divided(paths) if paths else []
        if not parts and change.edit.image and paths:
            parts = [paths]
        return [[self.files.change(part)] for part in parts]

    def _with_settings(self, change: Change) -> Change:
        """Describe an image whose files do not differ by its settings."""
        if self.files is None or not change.edit.image or self.files.paths != ():
            return change
        try:
            settings = self.files.settings_that_differ()
        except InterruptedRunError:
            raise
        except EnvcompareError:
            return change
        return replace(change, what=f"settings of the image: {settings}") if settings else change

    def _stage(
        self, groups: Sequence[Group], *, base: Group
    ) -> tuple[dict[int, Share], list[Group]]:
        """Measure the slow line with `base` and each group of changes.

        Return the shares that they close, and the groups that failed, which may be divided. Beside
        a base, which is measured too, a share is what a group surely closes more than it.
        """
        names = [f"{_CHANGED}-{at + 1}" for at in range(len(groups))]
        edits = {name: _whole((*base, *group)) for name, group in zip(names, groups, strict=True)}
        if base:
            is_remade = any(change.edit.files for group in groups for change in group)
            edits[_BASE] = _whole(base) + Edit(is_remade=is_remade)
        # seven rounds, the first of which warms up
        measured = self._run(edits, 7, self._left_s * _STAGE_SHARE)
        shares: dict[int, Share] = {}
        failed: list[Group] = []
        for at, (name, group) in enumerate(zip(names, groups, strict=True)):
            trial, share = self._trial(measured, name, group, base=base)
            self.tried.append(trial)
            if share is not None and base:
                share = _excess(measured.units, name, _BASE)
                share = share if share is not None and share.low > 0 else None
            if share is not None:
                shares[at] = share
            elif name in measured.failed and (measured.folder or name not in measured.lines):
                failed.append(group)
        return shares, failed

    def _confirm(self, first: Group, second: Group) -> tuple[Outcome, Trial, ProofShare | None]:
        """Measure in fresh rounds; the second change counts if it surely adds to the first."""
        changed = _whole((*first, *second))
        # an image that was made for a trial may be faster or slower by that alone
        as_made = Edit(is_remade=bool(changed.files))
        edits = {_CHANGED: changed, _PLACEBO: PLACEBO + as_made}
        if second:
            edits[_BASE] = _whole(first) + as_made
        measured = self._run(edits, None, self._left_s)
        chosen, name = [*first, *second], _CHANGED
        if second:
            added = _excess(measured.units, _CHANGED, _BASE)
            if added is None or added.low <= 0:
                chosen, name = [*first], _BASE
        trial, share = self._trial(measured, name, chosen)
        placebo = self._share(measured, _PLACEBO)
        whole = gap(measured.units, fast=_FAST, slow=_SLOW)
        is_gone = whole is not None and math.isfinite(whole.low) and whole.high < self.gap / 3
        if share is not None and is_gone:
            share = None
            why = "in fresh rounds the slow line is no longer slow: a trial may have left a cache"
            trial = msgspec.structs.replace(trial, share=None, failed=why)
        if share is not None and placebo is None:
            share = None
            why = f"no placebo was measured: {measured.failed.get(_PLACEBO, 'too few rounds')}"
            trial = msgspec.structs.replace(trial, share=None, failed=masked(why))
        outcome = "not-proven" if share is None else judged(measured.units, changed=name)
        return outcome, trial, _kept(placebo)

    def _run(self, edits: Mapping[str, Edit], rounds: int | None, budget_s: float) -> Measured:
        lines: dict[str, str] = {}
        failed: dict[str, str] = {}
        for name, edit in edits.items():
            try:
                lines[name] = self._edited(edit)
            except InterruptedRunError:
                raise
            except EnvcompareError as error:
                failed[name] = error.brief
        every = {_FAST: self.fast, _SLOW: self.slow, **lines}
        if not lines:
            return Measured(units=(), failed=failed)
        if budget_s < _LEAST_S:
            failed = dict.fromkeys(every, "no time was left")
            return Measured(units=(), failed=failed, lines=lines)
        try:
            measured = self.measure(every, rounds, budget_s)
        except (InterruptedRunError, HostHeldError):
            # Nothing was measured: that says nothing about the changes.
            raise
        except EnvcompareError as error:
            # A failed trial must not cost the verdict.
            return Measured(units=(), failed=dict.fromkeys(every, error.brief), lines=lines)
        finally:
            if self.files is not None:
                self.files.forget()
        self.runs.append(measured.folder)
        return replace(measured, failed={**measured.failed, **failed}, lines=lines)

    def _trial(
        self, measured: Measured, name: str, group: Group, *, base: Group = ()
    ) -> tuple[Trial, Share | None]:
        """Return the record of a changed line, and its share, unless it is not known."""
        changed = (*base, *group)
        share = self._share(measured, name)
        lines = (one for one in (name, _SLOW, _FAST) if one in measured.failed)
        failed = next((measured.failed[line] for line in lines), "")
        facts = measured.facts.get(name, {})
        same = [change for change in group if change.is_without_effect(facts)]
        if same and share is not None:
            share = None if len(same) == len(group) else share
            which = f"{', '.join(change.what for change in same)}: " if len(group) > 1 else ""
            failed = f"{which}the line keeps its value"
        files = (path for change in changed for path in change.edit.files)
        trial = Trial(
            keys=tuple(change.key for change in changed),
            what=masked("; ".join(change.what for change in changed)),
            line=masked(measured.lines.get(name, "")),
            files=tuple(visible_line(path) for path in files if path != ENTRYPOINT)[:1000],
            share=_kept(share),
            failed=masked(failed),
        )
        return trial, share

    def _edited(self, edit: Edit) -> str:
        if (edit.files or edit.is_remade) and not edit.image and self.files is not None:
            self.say("  making an image for a trial")
            image = self.files.image_with(edit.files, limit_s=self._left_s)
            edit = replace(edit, image=image, files=())
        return edited(self.slow, edit, manual=self.manual)

    def _share(self, measured: Measured, name: str) -> Share | None:
        if {_FAST, _SLOW, name} & measured.failed.keys():
            return None
        return share_closed(measured.units, fast=_FAST, slow=_SLOW, changed=name)


def judged(units: Sequence[Unit], *, changed: str = _CHANGED, placebo: str = _PLACEBO) -> Outcome:
    """Return whether a change is a cause, in rounds of `fast`, `slow` and these lines.

    A cause surely closes more than half of the gap; a part of it, 15 % and more than the placebo.
    Neither is proven if the placebo surely closes more than a tenth, or widens the gap by as much.
    """
    names = {"fast": _FAST, "slow": _SLOW}
    whole = gap(units, **names)
    share, nothing = (share_closed(units, **names, changed=one) for one in (changed, placebo))
    excess = excess_of_share(units, **names, changed=changed, placebo=placebo)
    if share is None or nothing is None or whole is None or excess is None:
        return "not-proven"
    is_steady = nothing.low < _PLACEBO_SHARE and nothing.high > -_PLACEBO_SHARE
    if not is_steady or min(whole.low, share.low, excess.low) <= 0:
        return "not-proven"
    if min(share.low, excess.low) > _CAUSE:
        return "cause"
    return "contributes" if share.value >= _LITTLE else "not-proven"


def _whole(group: Group) -> Edit:
    whole = Edit()
    for change in group:
        whole += change.edit
    return whole


def _excess(units: Sequence[Unit], name: str, base: str) -> Share | None:
    return excess_of_share(units, fast=_FAST, slow=_SLOW, changed=name, placebo=base)


def _best(groups: Sequence[Group], shares: Mapping[int, Share]) -> int | None:
    """Return the place of the group that closes most; None if none does much."""
    much = {at: one.value for at, one in shares.items() if one.value >= _LITTLE}
    others = {at: value for at, value in much.items() if not groups[at][0].is_whole}
    best = max(much, key=lambda at: much[at], default=None)
    other = max(others, key=lambda at: others[at], default=None)
    if best is None or other is None:
        return best
    if groups[best][0].key == SOFTWARE and groups[other][0].kind != "software":
        # The other change is no part of the software.
        return best
    return other if others[other] >= _CAUSE * much[best] else best


def _groups(changes: Group) -> list[Group]:
    """Return groups to compare: by kind, else each alone if they are few, else halves."""
    software = [change for change in changes if change.is_whole]
    others = [change for change in changes if not change.is_whole]
    kinds = list(dict.fromkeys(change.kind for change in others))
    if len(others) <= 3:
        parts: list[Group] = [[change] for change in others]
    elif len(kinds) > 1:
        parts = [[change for change in others if change.kind == kind] for kind in kinds]
    else:
        parts = _halves(others)
    return [*([software] if software else []), *parts]


def _halves(changes: Group) -> list[Group]:
    half = len(changes) // 2
    return [changes[:half], changes[half:]]


def _kept(share: Share | None) -> ProofShare | None:
    if share is None or not math.isfinite(share.low):
        return None
    return ProofShare(value=share.value, low=share.low, high=share.high)
