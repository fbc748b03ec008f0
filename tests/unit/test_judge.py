"""What a verdict rests on: the typical step, the mean beside it, and enough looks and restarts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from benches import Kept, bench
from builders import CELL, blocks, design, run_record, stepped
from msgspec.structs import replace

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import Comparison
from envcompare.measure.cell import Roster
from envcompare.measure.limits import PAUSE_CAUTION
from envcompare.measure.lockstep import Lockstep
from envcompare.report.wording.verdicts import verdict
from envcompare.run_folder import SETTLED
from envcompare.run_folder.records import CAPTURED, ArmRecord, Block, Event
from envcompare.run_folder.results import RunFolder
from envcompare.stats import DRIFT_LEVEL, TurnTrend
from envcompare.stats.intervals import ALPHA, look_factor
from envcompare.stats.metrics import Readings
from envcompare.stats.typical import TYPICAL_SHARE

ARMS = run_record().arms


def judged(
    folder: Path,
    found: tuple[Block, ...],
    *,
    arms: tuple[ArmRecord, ...] = ARMS,
    stopped_by: str = "budget",
    **changes: object,
) -> Comparison:
    """Return the comparison of docker in a run of one cell."""
    made = RunFolder.create(folder, run_record(arms=arms, design=design(**changes)))
    for sample in found:
        made.append_sample(sample)
    made.append_event(Event(t=1.0, what="stopped", host="local", cell=CELL, text=stopped_by))
    made.close()
    return next(
        comparison for comparison in compare_run(made).comparisons if comparison.arm == "docker"
    )


def test_fewer_restarts_than_a_gpu_needs_pay_for_no_look(tmp_path: Path) -> None:
    """On a GPU the first look is after four restarts: a budget's end there has the whole error."""
    found = tuple(
        replace(block, gpu_ns=block.wall_ns) for block in blocks({"vm": 1.0, "docker": 1.0})
    )
    once = judged(tmp_path / "a", found, min_restarts=2, gpu_restarts=4)
    twice = judged(tmp_path / "b", found, min_restarts=2)
    assert half_width(once) < half_width(twice)


def half_width(comparison: Comparison) -> float:
    """Return that of the interval a verdict rests on."""
    assert comparison.primary is not None
    assert comparison.primary.high is not None
    return comparison.primary.high - comparison.primary.log_ratio


def uneven(*ratios: float) -> tuple[Block, ...]:
    """Return blocks of which docker takes another ratio in each restart."""
    return tuple(
        replace(block, wall_ns=tuple(round(ns * ratios[block.restart]) for ns in block.wall_ns))
        if block.arm == "docker"
        else block
        for block in blocks(
            {"vm": 1.0, "docker": 1.0, "vm~control": 1.0}, restarts=len(ratios), generations=5
        )
    )


def test_a_capture_has_no_forecast_of_more_restarts(tmp_path: Path) -> None:
    """All that it will ever have is in its file."""
    found = uneven(0.95, 1.08, 0.97, 1.06)
    vm, docker, control = ARMS
    captured = (vm, replace(docker, environment=CAPTURED), control)
    plain, of_capture = (
        judged(tmp_path / name, found, arms=arms)
        for name, arms in (("plain", ARMS), ("captured", captured))
    )
    assert (plain.outcome, of_capture.outcome) == ("inconclusive", "inconclusive")
    assert plain.forecast_restarts is not None
    assert of_capture.forecast_restarts is None


@pytest.mark.parametrize(("more", "is_detected"), [((), True), (("podman",), False)])
def test_trend_within_a_turn_pays_for_all_arms_of_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], *, is_detected: bool
) -> None:
    """Of many equal arms one shows such a trend by chance."""
    seen = TurnTrend(first_log_ratio=0.0, last_log_ratio=0.1, p_value=0.6 * DRIFT_LEVEL)
    monkeypatch.setattr("envcompare.analysis.timing.judge.turn_trend", lambda _: seen)
    arms = (*ARMS, *(ArmRecord(id=name, environment=name) for name in more))
    found = judged(tmp_path, blocks({arm.id: 1.0 for arm in arms}), arms=arms)
    assert found.turn_trend is not None
    assert found.turn_trend.is_detected is is_detected


def test_slow_share_of_steps_is_slower_by_the_mean_alone(tmp_path: Path) -> None:
    """One step in fifty takes three times as long: 4 % more time, and the same typical step."""
    found = judged(tmp_path, stepped(share=0.02, factor=3.0), margin=0.02)
    assert (found.outcome, found.is_by_mean, found.leaning) == ("slower", True, "slower")
    assert found.primary is not None
    assert found.mean is not None
    assert found.mean.low is not None
    assert abs(found.primary.log_ratio) < 0.003
    assert found.mean.low > 0
    assert found.tail is not None
    assert found.tail.share == pytest.approx(0.02)


def test_a_mean_inside_the_margin_is_equivalent(tmp_path: Path) -> None:
    """4 % more time is less than the 10 % that matter."""
    found = judged(tmp_path, stepped(share=0.02, factor=3.0), margin=0.1)
    assert (found.outcome, found.is_by_mean) == ("equivalent", True)


def test_nothing_is_equivalent_where_the_mean_is_undecided(tmp_path: Path) -> None:
    """A few steps that took very long say nothing of the next run."""
    calm = stepped()
    wild = tuple(
        replace(one, wall_ns=(10**9, *one.wall_ns[1:]), cpu_ns=(10**9, *one.cpu_ns[1:]))
        if one.arm == "docker" and (one.restart, one.round) == (1, 7)
        else one
        for one in calm
    )
    found = judged(tmp_path, wild)
    assert (found.outcome, found.is_by_mean) == ("inconclusive", True)
    assert found.mean is not None
    assert found.mean.low is not None
    assert found.mean.low < 0 < math.log(1.05) < found.mean.log_ratio


@pytest.mark.parametrize(
    ("slow", "screen", "kind"),
    [(("docker", "vm~control"), False, "control-failed"), (("docker",), True, "not-selected")],
)
def test_mean_decides_nothing_beside_the_control_or_before_a_screen(
    tmp_path: Path, slow: tuple[str, ...], kind: str, *, screen: bool
) -> None:
    """What slows the reference too is none of the environment; a screen selects what may differ."""
    found = judged(tmp_path, stepped(slow, share=0.1, factor=3.0), screen=screen)
    assert found.reason is not None
    assert (found.outcome, found.reason.kind) == ("inconclusive", kind)


@pytest.mark.parametrize(
    ("stopped_by", "min_restarts", "share"),
    [("budget", 4, 1.0), ("budget", 6, 1.0), ("budget", 2, 0.8), ("target", 4, 0.2)],
)
def test_interval_pays_for_looks_but_where_the_budget_ended_the_cell_at_the_first(
    tmp_path: Path, stopped_by: str, min_restarts: int, share: float
) -> None:
    """A look after which nothing could go on is none."""
    found = stepped()
    here = judged(tmp_path / "a", found, stopped_by=stopped_by, min_restarts=min_restarts)
    once = judged(tmp_path / "b", found, stopped_by="budget", min_restarts=4)
    own = TYPICAL_SHARE * ALPHA  # one comparison is planned
    assert half_width(here) == pytest.approx(look_factor(own, share) * half_width(once))


def test_restarts_that_scatter_far_are_judged_by_their_own_values(tmp_path: Path) -> None:
    """A large difference is seen by few of them; for a small one they are too few."""
    large = judged(tmp_path / "a", uneven(1.2, 1.26, 1.21, 1.28))
    small = judged(tmp_path / "b", uneven(1.0, 1.06, 1.01, 1.08))
    assert (large.outcome, small.outcome) == ("slower", "inconclusive")
    for found in (large, small):
        assert found.primary is not None
        assert found.primary.unit == "restart"


def why_done(path: Path, found: tuple[Block, ...], *, min_restarts: int = 2) -> str | None:
    """Return which rule ends a cell of which so much is read."""
    made = bench(path, "own.py:Steady", min_restarts=min_restarts, target=1e-4)
    return Roster(made).why_done(Readings(found), min_restarts=min_restarts)


@pytest.mark.parametrize(
    ("steps", "spent", "expected"), [(1, 0.4, None), (1, 0.6, "target"), (100, 0.4, "target")]
)
def test_narrow_intervals_end_nothing_while_rare_slow_steps_may_not_have_shown(
    tmp_path: Path, steps: int, spent: float, expected: str | None
) -> None:
    """A narrow interval of a few hundred steps leaves a sleep in one of 500 out."""
    found = blocks({"vm": 1.0, "docker": 1.0, "vm~control": 1.0}, restarts=2, noise=0.001)
    longer = (
        replace(one, k=steps, wall_ns=steps * one.wall_ns[:1], cpu_ns=steps * one.cpu_ns[:1])
        for one in found
    )
    made = bench(tmp_path, "own.py:Steady", target=0.05)
    made.budget.give(-spent * made.design.budget_s)
    assert Roster(made).why_done(Readings(longer), min_restarts=2) == expected


@pytest.mark.parametrize(
    ("restarts", "expected"),
    [(1, None), (2, "decided"), (3, None), (4, "decided"), (5, None), (8, "decided")],
)
def test_measuring_ends_at_a_look_alone(
    tmp_path: Path, restarts: int, expected: str | None
) -> None:
    """After 2, 4 and 8 restarts, although three would decide as well."""
    found = blocks({"vm": 1.0, "docker": 1.6, "vm~control": 1.0}, restarts=restarts, noise=0.01)
    assert why_done(tmp_path, found) == expected


@pytest.mark.parametrize(("is_settled", "expected"), [(True, "decided"), (False, None)])
def test_no_interval_ends_a_cell_whose_turns_may_be_too_short(
    tmp_path: Path, *, is_settled: bool, expected: str | None
) -> None:
    """What a pause changes has to be seen twice, and a decided ratio may be that of the pause."""
    found = blocks({"vm": 1.0, "docker": 1.6, "vm~control": 1.0}, restarts=2, noise=0.01)
    made = bench(tmp_path, "own.py:Steady", min_restarts=2, target=1e-4)
    lockstep = Lockstep(made, Roster(made), found, {SETTLED: is_settled})
    assert lockstep.why_done() == expected


@pytest.mark.parametrize("is_seen", [True, False])
def test_cell_that_ends_while_turns_may_be_too_short_says_so(
    tmp_path: Path, *, is_seen: bool
) -> None:
    """The budget may leave no room for a second look."""
    made = bench(tmp_path, "own.py:Steady")
    lockstep = Lockstep(made, Roster(made), (), {SETTLED: False})
    lockstep._tuning.settling.is_seen = is_seen
    lockstep.stop("budget")
    cautions = [event.text for event in made.recorder.events if event.what == "caution"]
    assert isinstance(made.recorder, Kept)
    made.recorder.folder.close()
    assert (PAUSE_CAUTION in cautions) == is_seen


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((1.2, 1.26), None),
        ((1.2, 1.26, 1.21, 1.28), None),
        ((1.2, 1.26, 1.21, 1.28, 1.22, 1.25), "decided"),
    ],
)
def test_measuring_goes_on_where_restarts_scatter_far(
    tmp_path: Path, ratios: tuple[float, ...], expected: str | None
) -> None:
    """Below six of them how far is not known; what the budget ends has a verdict all the same."""
    assert why_done(tmp_path, uneven(*ratios)) == expected


def test_one_restart_has_no_size_and_leans_to_no_side(tmp_path: Path) -> None:
    """A single launch may be off by any amount: no number of it is printed, however large."""
    found = judged(tmp_path, blocks({"vm": 1.0, "docker": 1.5, "vm~control": 1.0}, restarts=1))
    assert (found.outcome, found.leaning) == ("inconclusive", "none")
    words = verdict(found, label="cnn", margin=0.05)
    assert (words.number, words.interval, words.leaning) == ("", "", "")
    assert "%" not in words.text
