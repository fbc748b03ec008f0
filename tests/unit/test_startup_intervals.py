"""The start-up pass: phases against the reference in seconds, cold and warm apart."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benches import Kept, Measured, bench, measure, on_this_machine
from builders import CELL, design, run_record
from experiments import known

from envcompare.analysis.model import RunComparison, StartupPart, StartupSummary
from envcompare.analysis.timing.descriptive import startup_summaries
from envcompare.config.experiment import resolve
from envcompare.config.plan import make_plan
from envcompare.config.settings import Settings
from envcompare.measure import Values
from envcompare.measure.cell import Roster
from envcompare.measure.startup import StartupPass
from envcompare.measure.workers import Launches
from envcompare.report import Words, plain
from envcompare.report.sections.charted import startup_tables
from envcompare.run_folder.records import Event, Startup
from envcompare.text import CommandResult

WORKLOAD = """
import os, time


class Steady:
    batch = 1

    def load(self, data):
        time.sleep(0.5 if os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker" else 0.0)

    def setup(self, seed, device):
        pass

    def step(self):
        return float(sum(i * i for i in range(3000)) % 97)
"""


def launch(arm: str, repetition: int, seconds: float, **changes: Any) -> Startup:
    """Return a launch in which each phase took this long."""
    phases = ("engine", "import", "data", "build", "first_step", "train", "exit", "real")
    times = {f"{name}_ns": round(seconds * 1e9) for name in (*phases, "user", "sys")}
    fields = {"page_cache": "warm", "train_steps": 10, "order": 0, **times, **changes}
    return Startup(cell=CELL, arm=arm, repetition=repetition, **fields)


def summaries(launches: list[Startup], *, cold_start: bool = False) -> tuple[StartupSummary, ...]:
    """Summarise launches of a run."""
    run = run_record(design=design(cold_start=cold_start))
    return startup_summaries(launches, run, ())


def part(found: tuple[StartupSummary, ...], arm: str, phase: str = "import") -> StartupPart:
    """Return a phase of an arm."""
    summary = next(one for one in found if one.arm == arm)
    return next(one for one in summary.parts if one.phase == phase)


def test_arm_that_died_before_the_launches_has_those_of_its_restarts() -> None:
    """They are compared with no warm ones."""
    launches = [launch("vm", n, 1.0 + n) for n in range(4)]
    launches += [launch("vm", 9, 1.0, page_cache="unknown")]
    launches += [launch("docker", 9, 2.0, page_cache="unknown")]
    found = summaries(launches)
    assert {one.arm: (one.page_cache, one.launches) for one in found} == {
        "vm": ("warm", 4),
        "docker": ("unknown", 1),
    }
    assert part(found, "docker").pairs == 0


def test_difference_is_paired_by_repetition() -> None:
    """What slows a whole repetition cancels: the interval is narrow though the ranges are wide."""
    pairs = [(1.0, 2.4), (3.0, 4.41), (2.0, 3.39), (5.0, 6.4)]
    launches = [launch("vm", n, a) for n, (a, _) in enumerate(pairs)]
    launches += [launch("docker", n, b) for n, (_, b) in enumerate(pairs)]
    found = part(summaries(launches), "docker")
    assert found.pairs == 4
    assert found.difference_s == pytest.approx(1.4)
    assert found.difference_low_s is not None
    assert found.difference_high_s is not None
    # Student t with 3 degrees of freedom, by hand: 3.182 · 0.00816 / √4
    assert found.difference_high_s - found.difference_s == pytest.approx(0.01299, abs=1e-4)
    assert found.difference_s - found.difference_low_s == pytest.approx(0.01299, abs=1e-4)


def test_repetition_that_one_arm_lacks_is_left_out_of_the_pairs() -> None:
    """The median still holds it."""
    found = part(
        summaries([launch("vm", 0, 1.0), launch("vm", 1, 1.0), launch("docker", 1, 2.0)]), "docker"
    )
    assert (found.pairs, found.difference_s, found.difference_low_s) == (1, 1.0, None)


def test_reference_has_no_difference_to_itself() -> None:
    """There is nothing to compare."""
    found = part(summaries([launch("vm", 0, 1.0), launch("vm", 1, 1.0)]), "vm")
    assert (found.pairs, found.difference_s) == (0, None)


def test_cold_and_warm_launches_are_never_mixed() -> None:
    """Each has its own summary, with pairs of its own."""
    launches = [launch(arm, n, 1.0) for arm in ("vm", "docker") for n in (0, 1)]
    launches += [launch(arm, n, 9.0, page_cache="cold") for arm in ("vm", "docker") for n in (2, 3)]
    found = summaries(launches, cold_start=True)
    kinds = {(one.arm, one.page_cache): one for one in found}
    assert len(found) == len(kinds) == 4
    assert all(one.launches == 2 and one.cold_reason == "" for one in found)
    assert part((kinds["docker", "cold"],), "docker").median_s == 9.0


def test_reason_without_cold_launches_is_kept() -> None:
    """Not asked for, or what the host said."""
    warm = [launch("vm", 0, 1.0)]
    assert summaries(warm)[0].cold_reason == "not asked for"
    run = run_record(design=design(cold_start=True))
    refused = Event(
        t=1.0,
        what="note",
        cell=CELL,
        text="cold start not measured: Permission denied; log in as root there",
        values={"cold": False, "why": "Permission denied; log in as root there"},
    )
    found = startup_summaries(warm, run, (refused,))
    assert found[0].cold_reason == "Permission denied; log in as root there"


def started(folder: Path, **changes: Any) -> Measured:
    """Run the start-up pass with real workers."""
    path = folder / "own.py"
    path.write_text(WORKLOAD)
    made = bench(folder, f"{path}:Steady", **{"has_startup": True, "budget_s": 600.0, **changes})
    return measure(made, passes=("startup",))


def parts(run: RunComparison, name: str) -> tuple[Words, ...]:
    """Return the cells of a part in the first table, one for each arm."""
    rows = (row.cells for row in startup_tables(run)[0][1].rows)
    return next(cells for head, *cells in rows if plain(head) == name)


def note(run: RunComparison) -> str:
    """Return what the first table says of itself."""
    return startup_tables(run)[0][1].caption


def test_phase_that_is_slower_in_an_arm_shows_in_its_interval(tmp_path: Path) -> None:
    """Half a second of loading are found in `data`, by real workers."""
    run = started(tmp_path).comparison
    found = part(run.views.startup, "docker", "data")
    assert found.pairs == 4  # the first launches are of unknown cache
    assert found.difference_low_s is not None
    assert found.difference_low_s > 0.1
    assert re.fullmatch(r"\+\S+ m?s \(\+\S+( m?s)? to \+\S+ m?s\)", parts(run, "data")[1].below[0])
    assert parts(run, "data")[0].below == ()
    assert "mean difference to vm over 4 pairs" in note(run)
    assert "cold: not asked for" in note(run)


def test_order_of_arms_is_drawn_for_each_repetition(tmp_path: Path) -> None:
    """No arm is always first."""
    found = started(tmp_path).folder.read_samples().samples
    firsts = Counter(one.arm for one in found if isinstance(one, Startup) and one.order == 0)
    assert set(firsts) == {"vm", "docker"}


def test_caches_are_dropped_before_each_cold_launch_and_no_other(tmp_path: Path) -> None:
    """The host is asked once to try, then before every cold launch."""
    asked: list[str] = []

    def host(script: str) -> CommandResult:
        asked.append(script)
        return on_this_machine("true")

    run = started(tmp_path, cold_start=True, on_host=host, budget_s=20.0).comparison
    cold = [one for one in run.views.startup if one.page_cache == "cold"]
    assert {one.arm for one in cold} == {"vm", "docker"}
    assert len(asked) == 1 + sum(one.launches for one in cold)
    assert set(asked) == {"sync && echo 1 >/proc/sys/vm/drop_caches"}
    assert startup_tables(run)[-1][0].endswith(", cold page cache")


def resumed(
    folder: Path, prior: list[Startup], before: dict[str, Values] | None = None, **changes: Any
) -> list[Startup]:
    """Run what is left of a pass after these launches; return what was launched then."""
    folder.mkdir(exist_ok=True)
    path = folder / "own.py"
    path.write_text(WORKLOAD)
    made = bench(
        folder,
        f"{path}:Steady",
        on_host=lambda _script: on_this_machine("true"),
        **{"has_startup": True, "cold_start": True, "budget_s": 600.0, **changes},
    )
    assert isinstance(made.recorder, Kept)
    startup = StartupPass([Launches(Roster(made, before=before or {}), list(prior))])
    startup.measure_cold()
    startup.measure_warm()
    made.recorder.folder.close()
    samples = made.recorder.folder.read_samples().samples
    return [sample for sample in samples if isinstance(sample, Startup)]


def prior(
    repetitions: int, *, seconds: float, first: int = 0, cache: str = "warm"
) -> list[Startup]:
    """Return the launches of whole repetitions."""
    numbers = range(first, first + repetitions)
    arms = ("vm", "docker")
    return [
        launch(arm, n, seconds, page_cache=cache, train_steps=4) for n in numbers for arm in arms
    ]


def test_interrupted_pass_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    """Four of five repetitions are there, the last is torn: after the cold part it is run anew."""
    found = resumed(tmp_path, [*prior(4, seconds=0.1), launch("vm", 4, 0.1)])
    kinds = Counter((one.arm, one.page_cache) for one in found)
    assert kinds == {
        (arm, kind): n for arm in ("vm", "docker") for kind, n in {"warm": 1, "cold": 5}.items()
    }
    assert min(one.repetition for one in found) == 5
    assert {one.train_steps for one in found} == {4}


def test_interrupted_pass_stays_within_its_share(tmp_path: Path) -> None:
    """With half of the share spent on warm launches only the cold ones are left, at least once."""
    found = resumed(tmp_path, prior(1, seconds=2.0), budget_s=30.0)
    assert {one.page_cache for one in found} == {"cold"}


def test_whole_pass_is_not_begun_again(tmp_path: Path) -> None:
    """Neither where five of each kind are there, nor where no other would fit."""
    whole = [*prior(5, seconds=0.1), *prior(5, seconds=0.1, first=5, cache="cold")]
    assert resumed(tmp_path / "five", whole) == []
    slow = [*prior(1, seconds=9.0), *prior(1, seconds=9.0, first=1, cache="cold")]
    assert resumed(tmp_path / "slow", slow, budget_s=60.0) == []


def test_refused_drop_leaves_the_warm_launches_and_says_why(tmp_path: Path) -> None:
    """A user who is not root gets what can be had."""
    run = started(
        tmp_path,
        cold_start=True,
        budget_s=10.0,
        on_host=lambda _script: on_this_machine("echo 'Permission denied' >&2; exit 1"),
    ).comparison
    assert {one.page_cache for one in run.views.startup} <= {"warm", "unknown"}
    assert "cold: Permission denied; only root of the host may drop its page cache" in note(run)


def test_cold_start_is_off_unless_asked_for() -> None:
    """Emptying the page cache harms others on a shared machine."""
    names = known("vm", "docker", cnn={}, rnn={})
    for asked in (None, True):
        experiment = resolve(Settings(envs="vm,docker", cold_start=asked), Settings(), known=names)
        plan = make_plan(experiment, ("local",), accept_many=False)
        assert plan.design.cold_start is bool(asked)


def test_launch_of_other_code_or_data_than_before_is_not_kept(tmp_path: Path) -> None:
    """An arm that would do other work than the first part of the run gives no start-up."""
    before: dict[str, Values] = {"docker": {"code": "another", "data": "another"}}
    found = resumed(tmp_path, prior(1, seconds=0.1), before, budget_s=30.0)
    assert {one.arm for one in found} == {"vm"}
