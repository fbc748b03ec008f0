"""Combine several runs: the cost of each arm over days and machines, and the variation.

The interval of one run holds for its host and its time. Here the run, or the host if several were
measured, is a random effect (`stats.acrosscells`), so that the interval holds for similar days and
hosts. The timed work must be the same in all runs; machines and kernels may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from envcompare.analysis.model import Comparison
from envcompare.analysis.timing.breakdown import is_equal_by_mean
from envcompare.analysis.timing.judge import Key, Primary, claimed, primaries
from envcompare.analysis.timing.runfiles import read_files
from envcompare.analysis.two_runs import (
    CombinedEffect,
    CombinedPart,
    CombinedRuns,
    Mismatch,
    RunMismatch,
)
from envcompare.analysis.two_runs.changes import (
    ReadRun,
    arm_text,
    failed_floor,
    nothing_common,
    of_design,
    of_work,
    read_of,
    refused,
    run_side,
)
from envcompare.errors import ConfigError
from envcompare.fingerprint import fact
from envcompare.fingerprint.comparing import first_identities
from envcompare.run_folder.records import FingerprintValue
from envcompare.run_folder.results import RunFolder, count_comparisons
from envcompare.stats.acrosscells import HostValues, over_hosts, over_runs
from envcompare.stats.intervals import level_together
from envcompare.stats.verdicts import verdict
from envcompare.text import assigned

_DESIGN: Final = ("threads", "stabilise")
_SOFTWARE: Final = ("python.version", "torch.version", "torch.cuda")
_Work = tuple[str, str, str]  # workload, parameters, and the arm that contains its arms


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinableRun:
    """A run in memory, to be combined with others."""

    read: ReadRun
    settled: dict[Key, Primary]  # by cell and arm, with the standard error of each
    machines: dict[str, str]  # by host, the identification of its machine

    @property
    def run_id(self) -> str:
        """Return the ID of the run."""
        return self.read.comparison.run_id

    @property
    def compared(self) -> dict[tuple[_Work, str], list[Comparison]]:
        """Return the comparisons by work and arm, over all hosts."""
        grouped: dict[tuple[_Work, str], list[Comparison]] = {}
        for one in self.read.comparison.compared:
            grouped.setdefault((_work(one), one.arm), []).append(one)
        return grouped


def read_combinable(folder: RunFolder) -> CombinableRun:
    """Read and analyse a run; raises RunFolderError if it cannot be read."""
    files = read_files(folder)
    run, design = files.timed, files.unscreened().design
    known = first_identities(files.events)
    return CombinableRun(
        read=read_of(files),
        settled=primaries(files.cell_data(), design, m=count_comparisons(run.arms, len(run.cells))),
        machines={
            host: str(known.get((host, ""), {}).get("machine.id") or host)
            for host in dict.fromkeys(cell.host for cell in run.cells)
        },
    )


def combine_runs(runs: Sequence[CombinableRun], *, allow_mismatch: bool = False) -> CombinedRuns:
    """Pool every comparison that two or more runs have.

    Raises ConfigError for fewer than two runs, for repeated runs, without a common comparison, and,
    unless `allow_mismatch` is true, if work, settings or reference differ.
    """
    _check_several(runs)
    found: dict[tuple[_Work, str], list[tuple[CombinableRun, Comparison]]] = {}
    for run in runs:
        for key, comparisons in run.compared.items():
            found.setdefault(key, []).extend((run, comparison) for comparison in comparisons)
    shared = {
        key: parts for key, parts in found.items() if len({run.run_id for run, _ in parts}) > 1
    }
    if not shared:
        raise nothing_common(
            "no two of these runs have a comparison in common",
            {
                run.run_id: [f"{arm} in {_named(work)}" for work, arm in run.compared]
                for run in runs
            },
            hint="combine runs of the same workloads, parameters and environments",
        )
    unlike = tuple(_mismatches(shared.values()))
    if unlike and not allow_mismatch:
        raise refused(
            "these runs cannot be combined: they did not time the same work against the same "
            "reference",
            [
                f"{mismatch.first} → {mismatch.other}: {mismatch.mismatch.text}"
                for mismatch in unlike
            ],
            hint="measure all of them with one envcompare and the same settings, or add "
            "--allow-mismatch: the result then says so",
        )
    margin = max(run.read.comparison.settings.margin for run in runs)
    level = level_together(len(shared))
    return CombinedRuns(
        runs=tuple(run_side(run.read) for run in runs),
        machines={
            run.machines[host.host]: ", ".join(filter(None, (host.processor, host.cpu_family)))
            for run in runs
            for host in run.read.comparison.hosts
        },
        margin=margin,
        effects=tuple(_effect(parts, level=level, margin=margin) for parts in shared.values()),
        left_out=tuple(
            f"{arm} in {_named(work)} ({parts[0][0].run_id})"
            for (work, arm), parts in found.items()
            if (work, arm) not in shared
        ),
        mismatches=unlike,
    )


def _work(comparison: Comparison) -> _Work:
    parameters = ", ".join(assigned(dict(sorted(comparison.parameters.items()))))
    return comparison.workload, parameters, comparison.within


def _named(work: _Work) -> str:
    workload, parameters, within = work
    return " ".join(filter(None, (workload, f"in {within}" if within else "", parameters)))


def _check_several(runs: Sequence[CombinableRun]) -> None:
    names = [run.run_id for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"the run {twice} is named twice",
            details="counted twice, its days and hosts would seem to be more than they are",
            hint="name each run once",
        )
    if len(runs) < 2:
        raise ConfigError(
            "combine takes two runs or more, not one",
            hint="envcompare combine RUN RUN…, or envcompare compare RUN",
        )


def _mismatches(
    shared: Iterable[list[tuple[CombinableRun, Comparison]]],
) -> Iterator[RunMismatch]:
    """Yield each difference of a run from the first one with the same comparison, once."""
    seen: set[tuple[str, str]] = set()
    for parts in shared:
        (first, ours), *others = parts
        for run, theirs in others:
            if run is first:
                continue
            for one in _unlike(first.read, run.read, (ours, theirs)):
                if (run.run_id, one.text) not in seen:
                    seen.add((run.run_id, one.text))
                    yield RunMismatch(first=first.run_id, other=run.run_id, mismatch=one)


def _unlike(
    before: ReadRun, after: ReadRun, parts: tuple[Comparison, Comparison]
) -> Iterator[Mismatch]:
    cells = parts[0].cell, parts[1].cell
    sides = tuple(zip((before, after), cells, strict=True))
    yield from of_design(before, after, keys=_DESIGN)
    for name in ("reference", parts[1].arm):
        names = [
            run.comparison.reference_in(cell) if name == "reference" else name
            for run, cell in sides
        ]
        # described too, since one name may mean two environments
        arms = [
            f"{arm.id} ({arm_text(arm)})"
            for (run, _), wanted in zip(sides, names, strict=True)
            for arm in run.record.arms
            if arm.id == wanted
        ]
        what = f"{'the reference' if name == 'reference' else 'the environment'} {{}} → {{}}"
        yield from _unless_alike("arm", arms[0], arms[1], what)
    yield from of_work(before, after, cells)
    known = [run.fingerprints.get((cell, run.comparison.reference_in(cell))) for run, cell in sides]
    for key in _SOFTWARE:
        mine, theirs = (
            None if fingerprint is None else fingerprint.facts.get(key) for fingerprint in known
        )
        yield from _unless_alike(
            key, mine, theirs, f"{fact(key).name} of the reference {{}} → {{}}"
        )


def _unless_alike(
    key: str, mine: FingerprintValue, theirs: FingerprintValue, text: str
) -> Iterator[Mismatch]:
    if mine != theirs:
        values = ("not known" if value is None else str(value) for value in (mine, theirs))
        yield Mismatch(key=key, before=mine, after=theirs, text=text.format(*values))


def _effect(
    parts: list[tuple[CombinableRun, Comparison]], *, level: float, margin: float
) -> CombinedEffect:
    run, first = parts[0]
    members = tuple(_part(run, one) for run, one in parts)
    pooled = [
        (part, one)
        for part, (_, one) in zip(members, parts, strict=True)
        if part.log_ratio is not None and part.error is not None
    ]
    metrics = {one.primary.metric for _, one in parts if one.primary is not None}
    by_machine: dict[str, list[tuple[CombinedPart, Comparison]]] = {}
    for part, one in pooled:
        by_machine.setdefault(part.machine, []).append((part, one))
    base = CombinedEffect(
        workload=first.workload,
        parameters=first.parameters,
        within=first.within,
        arm=first.arm,
        reference=run.read.comparison.reference_in(first.cell),
        metric=metrics.pop() if len(metrics) == 1 else "",
        outcome="not-run",
        why_open="other-metric" if len(metrics) > 1 else "one-run",
        runs=len({part.run_id for part, _ in pooled}),
        hosts=len(by_machine),
        unit="host" if len(by_machine) > 1 else "run",
        parts=members,
    )
    if len(metrics) > 1 or base.runs < 2:
        return base
    together = over_runs([_values(part for part, _ in each) for each in by_machine.values()])
    scatter = over_hosts(*_values(part for part, _ in pooled))
    assert together is not None
    assert scatter is not None
    ends = together.ends(level)
    made = replace(
        base,
        outcome=verdict(ends.low, ends.high, margin=margin),
        why_open="",
        log_ratio=ends.mean,
        low=ends.low,
        high=ends.high,
        level=level,
        between_runs=scatter.tau,
    )
    if made.outcome == "equivalent":
        if any(one.works_outside for _, one in parts):
            return replace(made, outcome="inconclusive", why_open="outside-turns")
        groups = [[one for _, one in each] for each in by_machine.values()]
        if not is_equal_by_mean(groups, level=level, margin=margin):
            return replace(made, outcome="inconclusive", why_open="mean")
    if made.outcome == "inconclusive":
        return made
    # a claim is withdrawn if the failed control of a run could cause it
    floor = max((member.control_end or 0.0 for member in members), default=0.0)
    if floor and claimed(made.outcome, ends.mean, margin=margin) <= floor:
        return replace(made, outcome="inconclusive", why_open="control-failed")
    return made


def _values(parts: Iterable[CombinedPart]) -> HostValues:
    known = [(part.log_ratio or 0.0, part.error or 0.0) for part in parts]
    return [value for value, _ in known], [error for _, error in known]


def _part(run: CombinableRun, comparison: Comparison) -> CombinedPart:
    primary = comparison.primary
    settled = run.settled.get((comparison.cell, comparison.arm))
    return CombinedPart(
        run_id=run.run_id,
        cell=comparison.cell,
        host=comparison.host,
        machine=run.machines[comparison.host],
        outcome=comparison.outcome,
        log_ratio=primary.log_ratio if primary else None,
        low=primary.low if primary else None,
        high=primary.high if primary else None,
        error=settled.error if settled else None,
        control_end=failed_floor(run.read.comparison, comparison) if primary else None,
    )
