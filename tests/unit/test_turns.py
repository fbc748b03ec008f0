"""Cells that share their launches: one worker an arm serves them in turn, with real workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
from benches import ARMS, Kept, bench
from builders import block

from envcompare.measure.cell import Budget, CellContext, QuietGate, Roster
from envcompare.measure.limits import Costs
from envcompare.measure.lockstep import Lockstep, Turns
from envcompare.measure.startup import StartupPass
from envcompare.measure.worker import Worker
from envcompare.measure.workers import MAX_REPETITIONS, CellWorkers, WorkerPool
from envcompare.run_folder import elapsed_s
from envcompare.run_folder.records import Block, Event, Memory, Sample, Startup
from envcompare.text import Command, CommandResult

SOURCE = """
import os, signal, time

print("imported", flush=True)


class Steady:
    batch = 1
    PARAMS = {"step_s": 0.01, "dies": False}

    def __init__(self, step_s, dies):
        self.step_s = step_s
        self.dies = dies and os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker"

    def load(self, data):
        print(f"loads with {self.step_s}", flush=True)

    def setup(self, seed, device):
        pass

    def step(self):
        if self.dies:
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        end = time.monotonic() + self.step_s
        while time.monotonic() < end:
            pass
        return 1.0
"""
THREADED = (
    "import threading\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
)


_MADE: list[Cells] = []


@dataclass
class Cells:
    """Cells of one launch on this machine, and the arms in the order of their launches."""

    made: list[CellContext]
    launched: list[str] = field(default_factory=list)

    def locksteps(self, **prior: list[Sample]) -> list[Lockstep]:
        """Return the passes, with samples of before by the name of a cell."""
        return [Lockstep(one, Roster(one), prior.get(one.cell, [])) for one in self.made]

    @property
    def kept(self) -> Kept:
        """Return what was recorded."""
        recorder = self.made[0].recorder
        assert isinstance(recorder, Kept)
        return recorder

    def samples(self) -> tuple[Sample, ...]:
        """Return all samples."""
        self.kept.folder.close()
        return self.kept.folder.read_samples().samples

    def restarts(self, cell: str) -> list[int]:
        """Return the restarts of a cell that have blocks, in their order."""
        found = [s.restart for s in self.samples() if isinstance(s, Block) and s.cell == cell]
        return list(dict.fromkeys(found))

    def events(self, what: str) -> list[Event]:
        """Return the events of a kind."""
        return [event for event in self.kept.events if event.what == what]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Close what a test has recorded."""
    yield
    while _MADE:
        _MADE.pop().kept.folder.close()


def cells(
    path: Path, *params: dict[str, object], budget_s: float, source: str = SOURCE, **changes: object
) -> Cells:
    """Return cells named a, b, … of one workload, each with its parameters."""
    (path / "own.py").write_text(source)
    first = bench(path, f"{path}/own.py:Steady", budget_s=budget_s, target=1e-4, **changes)
    found = Cells([])
    _MADE.append(found)

    def launch(name: str, arm: str, variables: tuple[tuple[str, str], ...] = ()) -> Worker:
        found.launched.append(arm)
        worker = first.launch(arm, variables)
        worker.serve(path / name / arm, f"{name}/{arm}")
        return worker

    for name, given in zip("abc", params, strict=False):
        (path / name).mkdir()
        found.made.append(
            replace(
                first,
                cell=name,
                launch=partial(launch, name),
                log_of=lambda arm, name=name: (path / name / arm, f"{name}/{arm}"),
                spec=msgspec.structs.replace(first.spec, params=given),
                budget=Budget.of(budget_s),
            )
        )
    return found


def test_launches_are_paid_once_for_all_cells(tmp_path: Path) -> None:
    """Every restart launches an arm once, and each cell measures in it and has its start-up."""
    two = cells(
        tmp_path, {}, {"step_s": 0.02}, budget_s=60.0, has_startup=True, restarts=2, rounds=9
    )
    Turns(two.locksteps()).measure()
    restarts = two.restarts("a")
    assert restarts == two.restarts("b") == [0, 1]
    assert Counter(two.launched) == dict.fromkeys(ARMS, len(restarts))
    peaks = [one for one in two.samples() if isinstance(one, Memory)]
    known = Counter((one.arm, one.restart) for one in peaks if one.cgroup_peak_bytes is not None)
    assert max(known.values(), default=0) <= 1, "the peak of a container is that of its first cell"
    starts = [one for one in two.samples() if isinstance(one, Startup)]
    by_launch: dict[tuple[str, int], list[Startup]] = {}
    for one in starts:
        by_launch.setdefault((one.arm, one.repetition), []).append(one)
    assert set(by_launch) == {(arm, n) for arm in ("vm", "docker") for n in restarts[:5]}
    for a, b in by_launch.values():
        assert {a.cell, b.cell} == {"a", "b"}
        assert (a.exit_ns, b.exit_ns > 0) == (b.exit_ns, True)
        assert abs(a.engine_ns - b.engine_ns) < 1e8
        before = (a.engine_ns, a.import_ns, a.data_ns, a.build_ns, a.first_step_ns)
        assert a.real_ns == sum((*before, a.train_ns, a.exit_ns))


COUNTING = """
import os, pathlib, time
here = pathlib.Path({path!r})
mine = here / f"up-{{os.getpid()}}"
mine.touch()
end = time.monotonic() + 30
while len(list(here.glob("up-*"))) < {together} and time.monotonic() < end:
    time.sleep(0.01)
with (here / "seen").open("a") as seen:
    seen.write(str(len(list(here.glob("up-*")))))
while time.monotonic() < end and (here / "seen").stat().st_size < {together}:
    time.sleep(0.01)
mine.unlink()
"""


@pytest.mark.parametrize(("is_timed", "together"), [(True, 1), (False, len(ARMS))])
def test_launches_overlap_where_none_is_timed(
    tmp_path: Path, *, is_timed: bool, together: int
) -> None:
    """Each import sees as many workers as import then; what they take together is charged once."""
    source = COUNTING.format(path=str(tmp_path), together=together) + SOURCE
    (lockstep,) = cells(tmp_path, {}, budget_s=120.0, source=source).locksteps()
    context = lockstep.context
    pool = WorkerPool(spec=context.spec, restart=0, cells=1, known=set(), is_timed=is_timed)
    workers = CellWorkers(lockstep.roster, pool)
    began = time.monotonic()
    assert workers.begin(ARMS, is_alone=is_timed).keys() == set(ARMS)
    took_s = time.monotonic() - began
    assert (tmp_path / "seen").read_text() == len(ARMS) * str(together)
    assert 0 < pool.launch_s < took_s
    assert pool.shared_s == pytest.approx(pool.launch_s)
    workers.give_back()
    pool.dismiss(context)
    assert pool.exits_ns.keys() == set(ARMS)


def test_launches_that_restarts_were_too_few_for_are_shared_too(tmp_path: Path) -> None:
    """One more of each arm serves both cells, in the numbers that come next."""
    two = cells(tmp_path, {}, {}, budget_s=100.0, has_startup=True)
    found = [one.launches for one in two.locksteps()]
    StartupPass(found).measure_warm()
    assert Counter(two.launched) == dict.fromkeys(("vm", "docker"), MAX_REPETITIONS)
    of_a, of_b = ([(one.arm, one.repetition) for one in cell.kept] for cell in found)
    assert sorted(of_a) == sorted(of_b)
    assert {number for _, number in of_a} == set(range(MAX_REPETITIONS))


@pytest.mark.parametrize(
    ("launch_s", "sharing", "timed"),
    [
        (1.0, 1, 5),  # five take 15 s of two arms and the control; a fifth of the budget is 20 s
        (2.0, 1, 3),
        (4.0, 1, 2),
        (60.0, 1, 2),  # however long it takes
        (4.0, 2, 3),  # another cell pays its part
    ],
)
def test_launches_are_timed_while_they_take_a_fifth_of_the_budgets(
    tmp_path: Path, launch_s: float, sharing: int, timed: int
) -> None:
    """Two restarts have them at least; in later ones all arms start at the same time."""
    (lockstep,) = cells(tmp_path, {}, budget_s=100.0, has_startup=True).locksteps()
    launches = lockstep.launches
    launches.sharing = sharing
    parts = dict.fromkeys(("engine", "import", "data", "build", "first_step", "train", "exit"), 0)
    while launches.are_due:
        number = len(launches.kept) // 2
        launches.kept += [
            Startup(
                cell="a", arm=arm, repetition=number, order=0, train_steps=1, page_cache="warm",
                real_ns=round(launch_s * 1e9), **{f"{part}_ns": ns for part, ns in parts.items()},
            )
            for arm in ("vm", "docker")
        ]  # fmt: skip
    assert len(launches.kept) // 2 == timed


def test_each_cell_has_a_log_of_its_own(tmp_path: Path) -> None:
    """What the second cell prints is not in the log of the first."""
    two = cells(tmp_path, {"step_s": 0.01}, {"step_s": 0.015}, budget_s=4.0)
    Turns(two.locksteps()).measure()
    logs = {name: (tmp_path / name / "vm").read_text() for name in "ab"}
    assert "loads with 0.01\n" in logs["a"]
    assert "loads with 0.015" in logs["b"]
    assert "loads with 0.015" not in logs["a"]
    assert "loads with 0.01\n" not in logs["b"]


def test_decided_cell_leaves_its_time_to_the_others(tmp_path: Path) -> None:
    """What is left of all budgets is shared by those that go on."""
    a, b = cells(tmp_path, {}, {}, budget_s=10.0).locksteps()
    turns = Turns([a, b])
    assert turns._share_budget() == [a, b]
    assert (a.context.remaining_s, b.context.remaining_s) == (10.0, 10.0)
    a.stop("target")
    assert turns._share_budget() == [b]
    assert b.context.remaining_s == 20.0


def test_cell_that_measures_longer_takes_nothing_from_the_others(tmp_path: Path) -> None:
    """Each has its own budget, and pays its part of what belongs to no cell."""
    a, b = cells(tmp_path, {}, {}, budget_s=10.0).locksteps()
    took_s = {"a": 0.0, "b": 0.0}
    left: list[tuple[float, float]] = []

    def turn(lockstep: Lockstep, pool: WorkerPool) -> None:
        began = time.monotonic()
        left.append((a.context.remaining_s, b.context.remaining_s))
        time.sleep(0.4 if lockstep is a else 0.05)
        lockstep.restart += 1
        if lockstep.restart == 3:
            lockstep.stopped_by = "target"
        if len(left) <= 4:  # the last restart begins with what the others left
            took_s[lockstep.context.cell] += time.monotonic() - began

    Turns([a, b], turn=turn).measure()
    of_a, of_b = left[4]
    assert of_b - of_a == pytest.approx(took_s["a"] - took_s["b"], rel=0.3)


def test_what_a_cell_left_before_an_interruption_is_for_the_others(tmp_path: Path) -> None:
    """It was decided early: a resumed run has as much for the rest as the whole run would have."""
    a, b = cells(tmp_path, {}, {}, budget_s=3.0).locksteps()
    a.stop("target")
    b.context.budget.left_s = 0.0
    Turns([a, b]).measure()
    assert a.readings.restarts == 0
    assert b.readings.restarts > 0


def test_cell_that_took_too_long_takes_nothing_from_the_others(tmp_path: Path) -> None:
    """What it took beyond its budget is for itself."""
    a, b = cells(tmp_path, {}, {}, budget_s=80.0).locksteps()
    turns = Turns([a, b])
    for cell, left_s in ((a, -110.0), (b, 80.0)):
        cell.context.budget.stop()
        cell.context.budget.left_s = left_s
    a.stop("budget")
    assert turns._share_budget() == [b]
    assert b.context.budget.left_s == pytest.approx(80.0)


def test_cells_of_a_resumed_run_have_as_much_of_what_is_left(tmp_path: Path) -> None:
    """Events count a launch for the cell that it served first, whose budget may seem overspent."""
    a, b, c = cells(tmp_path, {}, {}, {}, budget_s=10.0).locksteps()
    a.context.budget.left_s, b.context.budget.left_s = -4.0, 8.0
    c.context.budget.left_s = 2.0
    c.stop("target")
    left: list[float] = []

    def turn(lockstep: Lockstep, pool: WorkerPool) -> None:
        left.append(lockstep.context.remaining_s)
        lockstep.stopped_by = "target"

    Turns([a, b, c], turn=turn).measure()
    assert left == pytest.approx([3.0, 3.0], abs=0.1)


def test_a_resumed_run_gives_no_cell_the_time_of_another(tmp_path: Path) -> None:
    """What was noted after its last turn says how much is its own; one that had none has all."""
    a, b, c = cells(tmp_path, {}, {}, {}, budget_s=10.0).locksteps()
    for cell, left_s, share_s in ((a, 6.0, 4.0), (b, -2.0, 0.0), (c, 10.0, 10.0)):
        cell.context.budget.left_s, cell.context.budget.share_s = left_s, share_s
    left: dict[str, float] = {}

    def turn(lockstep: Lockstep, pool: WorkerPool) -> None:
        left[lockstep.context.cell] = lockstep.context.remaining_s
        lockstep.stopped_by = "target"

    Turns([a, b, c], turn=turn).measure()
    assert (left["a"], left["c"]) == pytest.approx((4.0, 10.0), abs=0.1)
    assert left.get("b", 0.0) <= 0.1


def test_what_is_left_is_noted_after_each_turn(tmp_path: Path) -> None:
    """A resumed run begins with it."""
    two = cells(tmp_path, {}, {}, budget_s=10.0)
    took_s = {"a": 0.5, "b": 0.1}

    def turn(lockstep: Lockstep, pool: WorkerPool) -> None:
        time.sleep(took_s[lockstep.context.cell])
        lockstep.stopped_by = "target"

    Turns(two.locksteps(), turn=turn).measure()
    resumed = {n: Budget.of(10.0, [e for e in two.kept.events if e.cell == n]) for n in "abc"}
    expected = {name: pytest.approx(10.0 - seconds, abs=0.1) for name, seconds in took_s.items()}
    assert {name: budget.share_s for name, budget in resumed.items()} == {**expected, "c": 10.0}


def test_a_caution_about_the_machine_is_for_all_cells_that_are_measured_then(
    tmp_path: Path,
) -> None:
    """One launch serves them all, and the machine was busy for each."""
    silent = CommandResult(command=Command(argv=("true",)), exit_code=0, stdout="", stderr="")
    two = cells(tmp_path, {}, {}, budget_s=1.0, quiet_gate=True)
    a, b = (lockstep.context for lockstep in two.locksteps())
    QuietGate(replace(a, on_host=lambda _: silent)).wait_to_launch([a, b])
    assert [event.cell for event in two.events("caution")] == ["a", "b"]


def test_time_of_a_cell_is_that_of_its_own_turns(tmp_path: Path) -> None:
    """All together it is that of the run, or a resumed run would not go on with what is left."""
    two = cells(tmp_path, {}, {}, budget_s=5.0)
    began = time.monotonic()
    Turns(two.locksteps()).measure()
    took_s = time.monotonic() - began
    own_s = [elapsed_s([e for e in two.kept.events if e.cell == name]) for name in "ab"]
    assert min(own_s) > 2.0
    assert sum(own_s) < took_s


def test_worker_that_dies_in_one_cell_is_launched_again_for_the_next(tmp_path: Path) -> None:
    """The arm is out in the cell that kills it, and measured in the other."""
    two = cells(tmp_path, {"dies": True}, {}, budget_s=8.0)
    a, b = two.locksteps()
    Turns([a, b]).measure()
    assert a.stopped_by == "failure"
    assert set(a.roster.failed) == {"docker"}
    assert b.roster.failed == {}
    assert {one.arm for one in two.samples() if isinstance(one, Block) and one.cell == "b"} == set(
        ARMS
    )


def test_cell_that_cannot_begin_takes_no_worker_from_the_others(tmp_path: Path) -> None:
    """Its arms fail with what is wrong, and no arm is launched again for it."""
    two = cells(tmp_path, {"unknown": 1}, {}, budget_s=5.0)
    a, b = two.locksteps()
    Turns([a, b]).measure()
    assert a.stopped_by == "failure"
    assert set(a.roster.failed) == set(ARMS)
    assert all("unknown" in one.brief for one in a.roster.failed.values())
    assert Counter(two.launched) == dict.fromkeys(ARMS, len(two.restarts("b")))


def test_workers_that_cannot_stay_are_launched_for_each_cell(tmp_path: Path) -> None:
    """A thread lives in them after the import: no fork of them is safe."""
    two = cells(tmp_path, {}, {}, budget_s=6.0, source=SOURCE + THREADED)
    Turns(two.locksteps()).measure()
    count = len(two.restarts("a")) + len(two.restarts("b"))
    assert Counter(two.launched) == dict.fromkeys(ARMS, count)


def test_cell_that_is_a_restart_behind_goes_first_after_a_break(tmp_path: Path) -> None:
    """It draws the orders that it would have drawn, in a launch of its own."""
    two = cells(tmp_path, {}, {}, budget_s=8.0)
    prior: list[Sample] = [block(cell="a", arm=arm, restart=0, k=1) for arm in ARMS]
    a, b = two.locksteps(a=prior)
    served: list[tuple[int, str]] = []

    def turn(lockstep: Lockstep, pool: WorkerPool) -> None:
        served.append((pool.restart, lockstep.context.cell))
        lockstep.run_restart(pool)

    Turns([a, b], turn=turn).measure()
    assert served[0] == (0, "b")
    assert {cell for restart, cell in served if restart == 1} == {"a", "b"}


def test_cells_take_their_turns_in_changing_order(tmp_path: Path) -> None:
    """No cell is always the first after a launch."""
    two = cells(tmp_path, {}, {}, budget_s=1.0)
    turns = Turns(two.locksteps())
    orders = {tuple(c.context.cell for c in turns._in_order(turns.cells, n)) for n in range(20)}
    assert orders == {("a", "b"), ("b", "a")}


def test_last_cells_end_one_by_one_where_the_budget_is_short(tmp_path: Path) -> None:
    """What is left is worth no launch for three cells, but for one."""
    three = cells(tmp_path, {}, {}, {}, budget_s=6.0)
    found = three.locksteps()
    for lockstep in found:
        for one in (block(cell=lockstep.context.cell, arm=arm, k=1) for arm in ARMS):
            lockstep.readings.add(one)
        lockstep._costs = Costs(launch_s=4.0, round_s=0.1)
        lockstep.context.budget.left_s = 7.9 / 3
    turns = Turns(found)
    assert [one.context.cell for one in turns._share_budget()] == ["a"]
    assert found[0].context.remaining_s == pytest.approx(7.9)
    assert found[0].context.budget.given_s == pytest.approx(7.9 * 2 / 3)
    assert [one.stopped_by for one in found] == [None, "budget", "budget"]


@pytest.mark.parametrize(
    ("restarts", "left_s", "more_s"),
    [(1, 4.0, 2.0), (2, 0.0, 0.0), (1, -1.0, 7.0), (0, 0.0, 0.0)],
    ids=["what it needs", "enough restarts", "overspent", "more than half the budget"],
)
def test_cell_takes_more_than_its_budget_where_that_gives_a_verdict(
    tmp_path: Path, restarts: int, left_s: float, more_s: float
) -> None:
    """A launch and 2 s for each restart that is missing, half the budget in all at most."""
    (lockstep,) = cells(tmp_path, {}, budget_s=17.0, min_restarts=2).locksteps()
    for restart in range(restarts):
        for arm in ARMS:
            lockstep.readings.add(block(cell="a", arm=arm, k=1, restart=restart))
    lockstep._costs = Costs(launch_s=4.0, round_s=0.1)
    lockstep.context.budget.left_s = left_s
    lives = bool(Turns([lockstep])._share_budget())
    assert lockstep.context.budget.left_s == pytest.approx(left_s + more_s)
    assert lives is (more_s > 0)
    assert lockstep.take_overtime() == 0


@pytest.mark.parametrize(("screen", "alpha"), [(False, 0.05 / 9), (True, 0.05)])
def test_plan_counts_on_the_width_that_a_cell_is_looked_at_with(
    tmp_path: Path, *, screen: bool, alpha: float
) -> None:
    """A screen pays for its comparisons at the end, and not while it measures."""
    (lockstep,) = cells(tmp_path, {}, budget_s=1.0, screen=screen).locksteps()
    lockstep.context = replace(lockstep.context, comparisons=9)
    assert lockstep.costs(1.0, [0.1]).level == pytest.approx(1 - 0.8 * alpha)


def test_budget_counts_in_turns_alone() -> None:
    """Its clock stands still while others are served, and within a turn while all wait."""
    budget = Budget.of(10.0)
    time.sleep(0.02)
    assert budget.remaining_s == 10.0
    with budget.counting():
        time.sleep(0.02)
        with budget.counting(on=False):
            before_s = budget.remaining_s
            time.sleep(0.02)
            assert budget.remaining_s == before_s
        time.sleep(0.02)
    left_s = budget.remaining_s
    assert 9.0 < left_s <= 9.96
    time.sleep(0.02)
    assert budget.remaining_s == left_s
