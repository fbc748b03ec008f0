"""`envcompare why --prove`: trials of changed lines, in run folders below that of the run."""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from envcompare.analysis.model import Comparison, RunComparison
from envcompare.environments.line import engine_call, given_options
from envcompare.errors import UnusableError
from envcompare.proof import Measured, Search
from envcompare.proof.levers import Change, changes, image_change, option_changes
from envcompare.report.wording.linewords import line_candidates
from envcompare.report.wording.verdicts import MOVED
from envcompare.run_folder.records import CAPTURED, Block, ProcessRun, Proof, Sample
from envcompare.run_folder.results import RunFolder
from envcompare.stats.metrics import wall_ns
from envcompare.stats.shares import Unit
from envcompare.text import Command
from envcompare.transport import LOCAL, run

TRIALS: Final = "trials"
_ANSWER_S: Final = 60.0
_PARTS: Final = 8  # of a gap: the margin of its trials


class Run(Protocol):
    """Measures lines with their names, in at most so many rounds, with settings of `why`."""

    def __call__(
        self,
        lines: tuple[str, ...],
        rounds: int | None,
        *,
        budget: float,
        margin: float,
        out: str,
    ) -> tuple[RunComparison, RunFolder]:
        """Return the results and the run folder."""


def prove(
    whole: RunComparison, folder: RunFolder, measure: Run, *, budget_s: float
) -> Proof | None:
    """Look for the cause of the first decided difference; None if there is none to look for.

    Raises UnusableError if a line is a capture, which cannot be changed.
    """
    decided = next((one for one in whole.compared if one.outcome in MOVED), None)
    if decided is None or decided.deciding is None:
        return None
    reference = whole.reference_of(decided.arm)
    arms = {one.id: one for one in folder.read_run().arms}
    names = (reference, decided.arm) if decided.outcome == "slower" else (decided.arm, reference)
    if CAPTURED in {arms[name].environment for name in names}:
        raise UnusableError(
            "--prove changes lines and runs them again, which a capture does not allow",
            hint="run both lines on this machine, or leave --prove out",
        )
    margin = 100 * math.expm1(abs(decided.deciding.log_ratio) / _PARTS)
    fast, slow = (arms[name].reference for name in names)
    call = engine_call(slow)
    client = " ".join(call.client) if call is not None else ""
    manual = ""
    if call is not None:
        help_ = Command(argv=(*call.client, "run", "--help"))
        manual = run(LOCAL, help_, timeout_s=_ANSWER_S).stdout

    def measured(lines: dict[str, str], rounds: int | None, limit_s: float) -> Measured:
        words = tuple(f"{name}={line}" for name, line in lines.items())
        out = str(folder.path / TRIALS)
        result, trial = measure(words, rounds, budget=limit_s, margin=margin, out=out)
        failed = {one.arm: one.brief for one in result.failures if one.arm}
        path = trial.path.relative_to(folder.path)
        return Measured(units=units(trial.read_samples().samples), failed=failed, folder=str(path))

    with tempfile.TemporaryDirectory(prefix="envcompare-") as cache:
        Path(cache).chmod(0o777)  # a container may run as another user
        search = Search(fast=fast, slow=slow, measure=measured, manual=manual, budget_s=budget_s)
        levers = _levers(whole, decided, (fast, slow), manual, cache)
        return search.prove(levers, arm=decided.arm, slow_arm=names[1], client=client)


def _levers(
    whole: RunComparison, decided: Comparison, lines: tuple[str, str], manual: str, cache: str
) -> list[Change]:
    found, _ = line_candidates(whole, decided)
    if decided.outcome == "faster":  # the reference is the slow one
        found = [
            msgspec.structs.replace(one, reference=one.value, value=one.reference) for one in found
        ]
    calls = [engine_call(line) for line in lines]
    images = [
        "".join(call.words[at : at + 1])
        for call in calls
        if call is not None
        for at in [given_options(call.words, manual)[1]]
    ]
    levers = changes(found, cache=cache, is_engine=calls[1] is not None)
    differ = len(images) == len(lines) and images[0] != images[1]
    options = option_changes(*lines, manual=manual)
    named = {one.key.partition(".")[2] for one in options}
    # an option in which the lines differ says more than what follows from it
    own = [one for one in levers if named.isdisjoint(word[2:] for word in one.edit.options[:1])]
    return [*([image_change(*images)] if differ else []), *options, *own]


def units(samples: Iterable[Sample]) -> list[Unit]:
    """Return the mean time of every arm in each round of processes, or in each restart."""
    times: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for one in samples:
        if not isinstance(one, Block | ProcessRun) or one.warmup or one.status != "ok":
            continue
        total = times[one.restart][one.arm]
        total[0] += wall_ns(one)
        total[1] += one.k if isinstance(one, Block) else 1
    return [{arm: whole / count for arm, (whole, count) in each.items()} for each in times.values()]
