"""`envcompare why --prove`: trials of changed lines, in run folders below that of the run."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from envcompare.analysis.model import Comparison, RunComparison
from envcompare.environments.line import EngineCall, engine_call, given_options
from envcompare.errors import EnvcompareError
from envcompare.proof import Measured, Search
from envcompare.proof.levers import Change, changes, line_changes, replaces
from envcompare.report.wording.linewords import line_candidates
from envcompare.report.wording.verdicts import MOVED
from envcompare.run_folder.records import Block, ProcessRun, Proof, Sample
from envcompare.run_folder.results import RunFolder
from envcompare.stats.metrics import wall_ns
from envcompare.stats.shares import Unit
from envcompare.text import Command
from envcompare.transport import LOCAL, run

TRIALS: Final = "trials"
_ANSWER_S: Final = 60.0
_PARTS: Final = 8  # of a gap: the margin of its trials
_WIDEST: Final = 50.0  # percent


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
    """Look for the cause of the first decided difference; None if there is none to look for."""
    decided = next((one for one in whole.compared if one.outcome in MOVED), None)
    if decided is None or decided.deciding is None:
        return None
    reference = whole.reference_of(decided.arm)
    arms = {one.id: one for one in folder.read_run().arms}
    names = (reference, decided.arm) if decided.outcome == "slower" else (decided.arm, reference)
    margin = min(_WIDEST, 100 * math.expm1(abs(decided.deciding.log_ratio) / _PARTS))
    fast, slow = (arms[name].reference for name in names)
    call = engine_call(slow)
    manual = ""
    if call is not None:
        help_ = Command(argv=(*call.client, "run", "--help"))
        manual = run(LOCAL, help_, timeout_s=_ANSWER_S).stdout

    def measured(lines: dict[str, str], rounds: int | None, limit_s: float) -> Measured:
        words = tuple(f"{name}={line}" for name, line in lines.items())
        out = str(folder.path / TRIALS)
        result, trial = measure(words, rounds, budget=limit_s, margin=margin, out=out)
        return Measured(
            units=units(trial.read_samples().samples),
            failed={
                one.arm: one.brief.removeprefix(f"{one.arm}: ")
                for one in result.failures
                if one.arm
            },
            facts={one.arm: one.facts for one in trial.read_fingerprints()},
            folder=str(trial.path.relative_to(folder.path)),
        )

    with _byte_code_folder(call, manual) as cache:
        search = Search(fast=fast, slow=slow, measure=measured, manual=manual, budget_s=budget_s)
        levers = _levers(whole, decided, (fast, slow), manual, cache)
        return search.prove(levers, arm=decided.arm, slow_arm=names[1])


@contextmanager
def _byte_code_folder(call: EngineCall | None, manual: str) -> Iterator[str]:
    """Give a folder that only this login can reach, and a container, whatever its user."""
    with tempfile.TemporaryDirectory(prefix="envcompare-", ignore_cleanup_errors=True) as parent:
        cache = Path(parent) / "cache"
        cache.mkdir()
        if call is not None:
            cache.chmod(0o777)
        try:
            yield str(cache)
        finally:
            with suppress(OSError):
                shutil.rmtree(cache)
            if call is not None and cache.exists():  # another user's, such as root's in a container
                image = call.words[given_options(call.words, manual)[1]]
                volume = ("--volume", f"{parent}:/d", "--entrypoint", "rm", "--user", "0", image)
                words = (*call.client, "run", "--rm", *volume, "-rf", "/d/cache")
                with suppress(EnvcompareError):
                    run(LOCAL, Command(argv=words), timeout_s=_ANSWER_S)


def _levers(
    whole: RunComparison, decided: Comparison, lines: tuple[str, str], manual: str, cache: str
) -> list[Change]:
    found, _ = line_candidates(whole, decided)
    if decided.outcome == "faster":  # the reference is the slow one
        found = [
            msgspec.structs.replace(one, reference=one.value, value=one.reference) for one in found
        ]
    own = line_changes(*lines, manual=manual)
    levers = changes(found, cache=cache, is_engine=engine_call(lines[1]) is not None)
    return [*own, *(one for one in levers if not any(replaces(each, one) for each in own))]


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
