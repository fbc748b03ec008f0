"""An arm that works while others have their turns: never equivalent, and the first words say so."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from benches import Measured, bench, measure
from builders import CELL, blocks, design, run_record
from msgspec.structs import replace
from runs import STEPS_ALONE, run_folder, running

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.report.wording.headlines import headlines
from envcompare.run_folder.records import Block, Event
from envcompare.run_folder.results import RunFolder
from envcompare.stats.metrics import Readings

SOURCE = """
import multiprocessing, os, queue, threading, time


def fill(filled):
    slow = os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker"
    while True:
        time.sleep(0.024 if slow else 0.002)
        filled.put(1)


class Load:
    batch = 1

    def setup(self, seed, device):
        self.filled = {queue}(8)
        self.other = {other}(target=fill, args=(self.filled,), daemon=True)
        self.other.start()

    def step(self):
        self.filled.get()
        time.sleep(0.008)
        return 1.0
"""
CHILD, THREAD = (
    ("multiprocessing.Queue", "multiprocessing.Process"),
    ("queue.Queue", "threading.Thread"),
)
ARMS = ("vm", "docker", "vm~control")
STOPPED = {
    "children": 2, "outside_cpu_ns": 0, "outside_runs": 0, "is_stopped": True, "run_in": 40,
}  # fmt: skip
QUIET = {"children": 0, "outside_cpu_ns": 0, "outside_runs": 0}


def compared(
    folder: Path, *, ratio: float = 1.0, arms: dict[str, dict[str, int | None]], **changes: object
) -> RunComparison:
    """Return a run of one cell in which arms did something outside their turns."""
    found = blocks({"vm": 1.0, "docker": ratio, "vm~control": 1.0}, generations=3)
    return ended(folder, [replace(one, **arms.get(one.arm, QUIET)) for one in found], **changes)


def ended(folder: Path, samples: Iterable[Block], **changes: object) -> RunComparison:
    """Return a run of one cell that ended with these blocks."""
    made = RunFolder.create(folder, run_record(design=design(**changes)))
    for sample in samples:
        made.append_sample(sample)
    made.append_event(Event(t=1.0, what="stopped", host="local", cell=CELL, text="equivalent"))
    made.close()
    return compare_run(made)


def docker(run: RunComparison) -> tuple[str, str, str]:
    """Return the outcome of docker, its leaning, and the first words of the page."""
    found = next(comparison for comparison in run.comparisons if comparison.arm == "docker")
    (headline,) = headlines(run)
    return found.outcome, found.leaning, f"{headline.lead} {headline.caution}"


def test_arm_that_keeps_its_turns_is_equivalent(tmp_path: Path) -> None:
    """What the rule does not touch."""
    assert docker(compared(tmp_path, arms={}))[0] == "equivalent"


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ({"outside_cpu_ns": 60_000_000}, "docker worked 2.2 s outside its turns: use `--command`"),
        ({"children": 1}, "1 child process of docker kept working in the turns of other arms"),
        (
            {"children": 2, "outside_cpu_ns": 60_000_000},
            "docker worked 2.2 s outside its turns (2 child processes)",
        ),
        ({"outside_runs": 3}, "threads of docker kept working in the turns of other arms"),
        ({"children": 1, "outside_cpu_ns": None}, "1 child process of docker kept working in"),
    ],
)
def test_arm_that_works_outside_its_turns_is_never_equivalent(
    tmp_path: Path, does: dict[str, int | None], words: str
) -> None:
    """It is inconclusive and leans to no side; the first screen says why, and what to use."""
    outcome, leaning, first = docker(compared(tmp_path, arms={"docker": {**QUIET, **does}}))
    assert (outcome, leaning) == ("inconclusive", "none")
    assert words in first


def test_reference_that_works_outside_its_turns_makes_no_arm_equivalent(tmp_path: Path) -> None:
    """A ratio has two sides; the words name the one that did it."""
    outcome, _, first = docker(compared(tmp_path, arms={"vm": {**QUIET, "children": 1}}))
    assert outcome == "inconclusive"
    assert "1 child process of vm kept working in the turns of other arms" in first


def test_slower_arm_stays_slower_with_the_caveat(tmp_path: Path) -> None:
    """Work done ahead can only make it look faster than it is."""
    outcome, _, first = docker(
        compared(tmp_path, ratio=1.5, arms={"docker": {**QUIET, "children": 1}})
    )
    assert outcome == "slower"
    assert "Steps may look shorter than they are: 1 child process of docker kept" in first


@pytest.mark.parametrize(
    ("used_ns", "outcome"), [(15_000_000, "equivalent"), (45_000_000, "inconclusive")]
)
def test_pool_of_threads_may_spin_after_a_block(tmp_path: Path, used_ns: int, outcome: str) -> None:
    """As those of OpenMP do, for some milliseconds; more than that is work."""
    spins = {**QUIET, "outside_cpu_ns": used_ns}
    assert docker(compared(tmp_path, arms={"docker": spins}, threads=2))[0] == outcome


def test_what_is_seldom_is_no_work(tmp_path: Path) -> None:
    """A thread that wakes now and then, and a child that lived in a single block."""
    found = blocks({"vm": 1.0, "docker": 1.0, "vm~control": 1.0})
    seldom = [
        replace(one, **{**QUIET, "outside_runs": int(number % 30 == 1)})
        for number, one in enumerate(found)
    ]
    assert docker(ended(tmp_path, seldom))[0] == "equivalent"


def test_kept_run_of_before_says_nothing_of_it(tmp_path: Path) -> None:
    """Its blocks have no such fields: it is judged as it was."""
    nothing = {"children": None, "outside_cpu_ns": None, "outside_runs": None}
    run = compared(tmp_path, arms=dict.fromkeys(ARMS, nothing))
    assert docker(run)[0] == "equivalent"
    assert run.cells[0].cautions == ()


def test_kernel_that_does_not_tell_is_named(tmp_path: Path) -> None:
    """As gVisor: what was not seen is said, and is no proof of anything."""
    blind = {"children": 0, "outside_cpu_ns": None, "outside_runs": None}
    run = compared(tmp_path, arms={"docker": blind})
    assert docker(run)[0] == "equivalent"
    (caution,) = run.cells[0].cautions
    assert caution.startswith("what threads and children of docker do outside their turns cannot")


def test_child_that_was_stopped_meanwhile_is_no_work_outside(tmp_path: Path) -> None:
    """It lived, and did nothing."""
    run = compared(tmp_path, arms=dict.fromkeys(ARMS, STOPPED))
    assert docker(run)[0] == "equivalent"
    assert run.cells[0].stops
    assert run.cells[0].cautions == ()


@pytest.mark.parametrize(("calibration", "outcome"), [(0, "equivalent"), (1, "inconclusive")])
def test_what_ran_before_arms_were_stopped_counts_against_none(
    tmp_path: Path, calibration: int, outcome: str
) -> None:
    """A child may be seen late; its turns are then calibrated again, and every arm must stop."""
    samples = []
    for one in blocks({"vm": 1.0, "docker": 1.0, "vm~control": 1.0}, generations=3):
        is_free = one.restart == 0 and one.arm == "docker"
        number = calibration if is_free else int(one.restart > 0)
        samples.append(replace(one, calibration=number, **(QUIET if is_free else STOPPED)))
    assert docker(ended(tmp_path, samples))[0] == outcome


@pytest.mark.parametrize(
    ("children", "words"),
    [
        (0, "docker could not be stopped during the"),
        (2, "2 child processes of docker could not be"),
    ],
)
@pytest.mark.parametrize("cpu_ns", [0, None], ids=["read", "not read"])
def test_arm_that_could_not_be_stopped_is_never_equivalent(
    tmp_path: Path, children: int, words: str, cpu_ns: int | None
) -> None:
    """Whatever was seen of it: a process of another user, or a kernel that shows no state."""
    free = {**STOPPED, "is_stopped": False, "children": children, "outside_cpu_ns": cpu_ns}
    arms = {**dict.fromkeys(ARMS, STOPPED), "docker": free}
    outcome, leaning, first = docker(compared(tmp_path, arms=arms))
    assert (outcome, leaning) == ("inconclusive", "none")
    assert words in first


@pytest.mark.parametrize(("run_in", "outcome"), [(36, "inconclusive"), (37, "equivalent")])
def test_answers_that_came_during_stops_may_hide_a_difference(
    tmp_path: Path, run_in: int, outcome: str
) -> None:
    """One a child and turn: two in 39 steps may hide more than the margin of 5 %."""
    few = {**STOPPED, "run_in": run_in}
    found, _, first = docker(compared(tmp_path, arms=dict.fromkeys(ARMS, few)))
    assert found == outcome
    words = (
        "2 child processes of docker may get an answer while stopped, which could hide up to 5 %"
    )
    assert (words in first) == (outcome == "inconclusive")


def test_kernel_that_does_not_tell_is_named_where_arms_were_stopped_too(tmp_path: Path) -> None:
    """That they stood rests on their states alone."""
    blind = {**STOPPED, "outside_cpu_ns": None, "outside_runs": None}
    run = compared(tmp_path, arms={**dict.fromkeys(ARMS, STOPPED), "docker": blind})
    (caution,) = run.cells[0].cautions
    assert "of docker do outside their turns cannot be read there" in caution
    assert "whether they stay stopped is not known" in caution


@pytest.mark.nightly
@pytest.mark.parametrize(("queue", "other"), [CHILD, THREAD], ids=["process", "thread"])
def test_slow_loader_is_measured_at_its_size(tmp_path: Path, queue: str, other: str) -> None:
    """It sleeps for three times the step, and would have filled its queue in the others' turns."""
    path = tmp_path / "own.py"
    path.write_text(SOURCE.format(queue=queue, other=other))
    made = bench(tmp_path, f"{path}:Load", budget_s=12.0, min_restarts=2, target=1e-4)
    measured = measure(made)
    kept = [
        sample for sample in measured.folder.read_samples().samples if isinstance(sample, Block)
    ]
    assert all(one.is_stopped for one in kept if not one.warmup)
    assert not measured.docker.works_outside
    means_s = {
        arm: sum(sum(one.wall_ns) for one in of_arm) / sum(one.k for one in of_arm) / 1e9
        for arm in ("vm", "docker")
        if (of_arm := [one for one in kept if one.arm == arm and not one.warmup])
    }
    assert 2 < means_s["docker"] / means_s["vm"] < 4  # each alone: 3
    # a sleep that ends while all is stopped is in no timed step; it would leave 23.4 ms of 24
    assert means_s["docker"] > 0.0237
    assert measured.docker.outcome != "equivalent"


LATE = """
import os, subprocess

class Late:
    batch = 1

    def setup(self, seed, device):
        mark = __file__ + "." + os.environ["ENVCOMPARE_ENVIRONMENT"]
        self.other = None
        if os.path.exists(mark) and mark.endswith("docker"):
            self.other = subprocess.Popen(["sleep", "100"])
        open(mark, "w").close()

    def step(self):
        return float(sum(i * i for i in range(30000)) % 97)

    def finish(self):
        if self.other:
            self.other.kill()
            self.other.wait()
"""


def test_child_that_comes_late_is_said_once_where_its_stops_have_no_room(tmp_path: Path) -> None:
    """It was there in two restarts; no turn is too short."""
    (tmp_path / "own.py").write_text(LATE)
    sizes = {"restarts": 3, "rounds": 2, "min_restarts": 1, "budget_s": 30.0}
    measured = measure(bench(tmp_path, f"{tmp_path}/own.py:Late", **sizes))
    assert measured.comparison.cells[0].restarts == 3
    (caution,) = (text for text in measured.cautions.splitlines() if "give --budget" in text)
    assert caution.startswith("something that an arm started works during the turns of others")


SLOW = """
import os, time

class Slow:
    batch = 1

    def setup(self, seed, device):
        self.is_slow = os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker"
        self.steps = 0

    def step(self):
        self.steps += 1
        until_s = {until_s} if self.is_slow else 0.0003
        end = time.process_time() + until_s
        while time.process_time() < end: pass
        return 1.0
"""


def measured_slow(folder: Path, until_s: str, *, has_gpu: bool = False) -> Measured:
    """Return a cell in which a step of docker lasts `until_s`, and else 0.3 ms."""
    folder.mkdir(exist_ok=True)
    path = folder / "own.py"
    path.write_text(SLOW.format(until_s=until_s))
    made = bench(folder, f"{path}:Slow", budget_s=12.0, min_restarts=2, target=1e-4)
    return measure(dataclasses.replace(made, has_gpu=has_gpu))


def kept_blocks(measured: Measured, arm: str) -> list[Block]:
    """Return the blocks of an arm in their order."""
    samples = measured.folder.read_samples().samples
    return [sample for sample in samples if isinstance(sample, Block) and sample.arm == arm]


def test_far_slower_arm_does_fewer_steps_in_a_block(tmp_path: Path) -> None:
    """Its blocks stay short, so that it is judged; sizes are of a step in all arms."""
    measured = measured_slow(tmp_path, "0.06")
    docker_blocks, vm_blocks = kept_blocks(measured, "docker"), kept_blocks(measured, "vm")
    assert max(one.k for one in docker_blocks if not one.warmup) <= 2
    assert max(one.k for one in vm_blocks) > 20
    assert measured.docker.outcome == "slower"
    assert measured.docker.mean is not None
    readings = Readings([*docker_blocks, *vm_blocks])
    mean = readings.mean("docker", "vm", "net")
    assert mean is not None
    assert 4 < mean.mean < 6  # ln 200 is 5.3


def test_far_slower_arm_is_warmed_up_in_each_restart_for_as_long_as_a_gpu_needs(
    tmp_path: Path,
) -> None:
    """Its block lasts 80 ms; the clocks of a GPU are up after 0.3 s.

    A machine that was busy as it calibrated, and then idle, gives a shorter one.
    """
    for number in range(3):
        measured = measured_slow(tmp_path / str(number), "0.02", has_gpu=True)
        warmups = [block for block in kept_blocks(measured, "docker") if block.warmup]
        shortest_ns = min(sum(block.wall_ns) for block in warmups)
        if len(warmups) >= 2 and shortest_ns > 0.25e9:
            break
    assert len(warmups) >= 2
    assert shortest_ns > 0.25e9
    assert max(one.k for one in kept_blocks(measured, "docker") if not one.warmup) <= 6


def test_arm_whose_first_steps_alone_are_slow_does_as_many_steps_as_the_others(
    tmp_path: Path,
) -> None:
    """Four steps are not enough to know that: the warm-up decides again."""
    measured = measured_slow(tmp_path, "(0.03 if self.steps < 6 else 0.0003)")
    of_arms = {
        arm: {one.k for one in kept_blocks(measured, arm) if not one.warmup}
        for arm in ("vm", "docker")
    }
    assert of_arms["docker"] == of_arms["vm"]


# With it no worker can be forked: its own process steps.
OTHER_THREAD = "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"


def living(run_id: str) -> set[int]:
    """Return the processes of a run on this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # of another user, or it has ended
            is_dead = (path / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            if not is_dead and f"ENVCOMPARE_RUN={run_id}\0" in (path / "environ").read_text():
                found.add(int(path.name))
    return found


def parent_of(process: int) -> int:
    """Return the parent of a process, 0 where it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def comes(is_true: Callable[[], bool], *, limit_s: float = 90.0) -> bool:
    """Tell whether it comes true in time."""
    until = time.monotonic() + limit_s
    while not is_true() and time.monotonic() < until:
        time.sleep(0.1)
    return is_true()


def is_below(process: int, root: int) -> bool:
    """Tell whether a process was started by another or by one of its children."""
    while process > 1:
        process = parent_of(process)
        if process == root:
            return True
    return False


@pytest.mark.parametrize("place", ["fork", "rebuild"])
@pytest.mark.parametrize("hurt", ["client killed", "Ctrl-C", "worker killed"])
def test_nothing_of_a_run_stays_stopped_or_alive(tmp_path: Path, hurt: str, place: str) -> None:
    """Arms are stopped for most of the time, so that some are when it happens."""
    queue, other = CHILD
    source = SOURCE.format(queue=queue, other=other) + OTHER_THREAD * (place == "rebuild")
    (tmp_path / "own.py").write_text(source)
    words = ("--envs", "vm@host", "--host-python", sys.executable, *STEPS_ALONE)
    more = ("--workload", f"{tmp_path}/own.py:Load", "--budget", "300", "--target", "0.0001")
    with running(tmp_path, *words, *more) as process:
        folder = run_folder(tmp_path)
        assert folder is not None
        samples = folder / "samples.jsonl"
        assert comes(lambda: '"is_stopped":true' in samples.read_text())
        ending = living(folder.name)
        assert len(ending) >= 2 * (3 if place == "fork" else 2)  # the control is an arm too
        if hurt == "worker killed":
            worker = next(one for one in ending if parent_of(one) not in ending)
            ending = {one for one in ending if one == worker or is_below(one, worker)}
            os.kill(worker, signal.SIGKILL)
        else:
            process.send_signal(signal.SIGKILL if hurt == "client killed" else signal.SIGINT)
        assert comes(lambda: ending.isdisjoint(living(folder.name)))
