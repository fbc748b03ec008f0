"""The quiet gate: it lets a calm machine pass at once, and waits a bounded time for a busy one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benches import Kept, bench, measure, on_this_machine
from experiments import known

from envcompare.config.experiment import resolve
from envcompare.config.settings import Settings
from envcompare.errors import ConfigError, InterruptedRunError
from envcompare.measure import cell
from envcompare.measure.cell import CellContext, QuietGate, Reading, parse_glance, parse_look
from envcompare.report.sections.cards import summary_cards
from envcompare.report.wording.methodwords import method_rules
from envcompare.run_folder import waited_s
from envcompare.run_folder.records import Event
from envcompare.text import Command, CommandResult

WORKLOAD = """
class Steady:
    batch = 1

    def setup(self, seed, device):
        pass

    def step(self):
        return float(sum(i * i for i in range(3000)) % 97)
"""


def glance(*, load: float = 0.3, pressure: float | None = 0.5) -> str:
    """Return what a host with two CPUs answers to the first glance."""
    lines = ["2", f"{load:.2f} 0.40 0.30 1/140 4711"]
    if pressure is not None:
        lines += [f"some avg10={pressure:.2f} avg60=1.00 avg300=5.00 total=46195708"]
        lines += ["full avg10=0.00 avg60=0.00 avg300=0.00 total=0"]
    return "\n".join(lines) + "\n"


def look(tasks: Iterable[int], *, waited_us: int | None = 0) -> str:
    """Return what it answers to the second look: tasks in each sample, waits over 0.2 s."""
    lines = ["2"]
    for number, count in enumerate(tasks):
        lines += [f"{100 + number / 10:.2f} 150.00", f"9.00 9.00 9.00 {count + 1}/140 4711"]
        if waited_us is not None:
            total = 1_000_000 + waited_us * number // 2
            lines += [f"some avg10=55.00 avg60=1.00 avg300=5.00 total={total}"]
            lines += ["full avg10=0.00 avg60=0.00 avg300=0.00 total=0"]
    return "\n".join(lines) + "\n"


CALM, BUSY = look([0, 1, 0]), look([3, 4, 3], waited_us=180_000)


class Host:
    """Answers each command with the next line of a script; the last one for ever."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, _script: str) -> CommandResult:
        """Give the next answer."""
        self.asked += 1
        text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return CommandResult(command=Command(argv=("sh",)), exit_code=0, stdout=text, stderr="")


@pytest.fixture(autouse=True)
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once."""
    monkeypatch.setattr(cell, "POLL_S", 0.01)


Gate = Callable[..., tuple[QuietGate, CellContext]]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Give a function that makes a gate before a host."""
    kept: list[Kept] = []

    def make(host: Host, **changes: Any) -> tuple[QuietGate, CellContext]:
        made = bench(
            tmp_path, "none", on_host=host, **{"quiet_gate": True, "budget_s": 5.0, **changes}
        )
        assert isinstance(made.recorder, Kept)
        kept.append(made.recorder)
        return QuietGate(made), made

    yield make
    for one in kept:
        one.folder.close()


def events(made: CellContext, what: str) -> list[Event]:
    """Return the events of a kind."""
    assert isinstance(made.recorder, Kept)
    return [event for event in made.recorder.events if event.what == what]


def gpus(
    *processes: str, mode: str = "Default", mask: str = "0x0000000000000001", mps: bool = False
) -> str:
    """Return what a host with two GPUs answers: that of a cell, and another."""
    lines = [f"mode, GPU-1, {mode}", "mode, GPU-2, Default", f"clocks, GPU-1, {mask}"]
    lines += [f"process, {process}" for process in processes]
    return "\n".join([*lines, *(["mps"] if mps else [])]) + "\n"


def before_a_launch(tried: QuietGate, *, uuid: str = "GPU-1") -> QuietGate:
    """Let a gate before a GPU wait as a restart does."""
    beside = QuietGate(replace(tried.context, has_gpu=True))
    beside.wait_to_launch(uuid=uuid)
    return beside


STRANGER = "GPU-1, 4711, /usr/bin/python3"


def test_process_on_the_gpu_is_waited_for_before_a_launch(gate: Gate) -> None:
    """It is named with its number, and its end lets the restart begin."""
    host = Host(glance(), gpus(STRANGER), gpus(STRANGER), gpus())
    tried, made = gate(host)
    beside = before_a_launch(tried)
    (waited,) = events(made, "waited")
    assert "process 4711 python3" in waited.text
    assert waited.values["is_quiet"] is True
    assert beside.waited_s > 0
    assert events(made, "caution") == []


def test_process_that_stays_on_the_gpu_is_a_caution(gate: Gate) -> None:
    """The wait is a part of the fifth of the budget, and is not repeated."""
    host = Host(glance(), gpus(STRANGER))
    tried, made = gate(host, budget_s=1.0)
    beside = before_a_launch(tried)
    assert beside.waited_s >= 0.2
    (caution,) = events(made, "caution")
    assert "4711 python3" in caution.text
    host.answers = [glance()]
    asked = host.asked
    beside.wait_to_launch(uuid="GPU-1")
    assert host.asked == asked + 1


@pytest.mark.parametrize(
    ("answer", "uuid"),
    [
        (gpus(), "GPU-1"),
        (gpus("GPU-2, 4711, /usr/bin/python3"), "GPU-1"),
        (gpus(STRANGER), ""),
        (gpus("ERROR: Option --query-compute-apps is not recognized."), "GPU-1"),
        ("", "GPU-1"),
        ("mode, NVIDIA-SMI has failed because it couldn't communicate", "GPU-1"),
    ],
)
def test_gpu_without_strangers_is_not_waited_for(gate: Gate, answer: str, uuid: str) -> None:
    """Nor is another GPU of the host, one of several before it is known, or one that is mute."""
    tried, made = gate(Host(glance(), answer))
    assert before_a_launch(tried, uuid=uuid).waited_s == 0.0
    assert (events(made, "waited"), events(made, "caution")) == ([], [])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (gpus(mode="Exclusive_Process"), "nvidia-smi -c DEFAULT"),
        (gpus(mask="0x0000000000000044"), "held down before anything runs on it (power cap, heat"),
        (gpus(mps=True), "MPS daemon"),
        (gpus("GPU-1, 99, nvidia-cuda-mps-server", mps=True), "quit | nvidia-cuda-mps-control"),
    ],
)
def test_what_makes_a_gpu_unfit_is_said_once(gate: Gate, answer: str, words: str) -> None:
    """Before the first launch, with what to do; the server of MPS is no stranger."""
    tried, made = gate(Host(glance(), answer, glance(), answer))
    before_a_launch(tried).wait_to_launch(uuid="GPU-1")
    (caution,) = events(made, "caution")
    assert words in caution.text
    assert events(made, "waited") == []


def test_host_without_nvidia_smi_answers_nothing() -> None:
    """The script itself runs in the shell of this machine, whatever it has."""
    answer = on_this_machine(cell._GPUS)
    assert answer.exit_code == 0


def test_gpu_is_not_asked_about_where_the_workload_uses_none(gate: Gate) -> None:
    """A command for nothing would be paid in every restart."""
    host = Host(glance(), gpus(STRANGER))
    tried, made = gate(host)
    tried.wait_to_launch()
    assert (host.asked, events(made, "waited")) == (1, [])


@pytest.mark.parametrize(
    "answers",
    [
        (glance(),),
        *((first, CALM) for first in (glance(pressure=60), glance(load=4), glance(load=3))),
    ],
)
def test_calm_machine_passes_at_once(gate: Gate, answers: tuple[str, ...]) -> None:
    """Averages that hold launches of our own raise a suspicion: the second look finds it free."""
    host = Host(*answers)
    tried, made = gate(host)
    tried.wait()
    assert (host.asked, tried.waited_s, events(made, "waited")) == (len(answers), 0.0, [])


def test_busy_machine_is_waited_for_and_the_wait_is_recorded(gate: Gate) -> None:
    """The event holds the seconds and the reading."""
    host = Host(glance(pressure=60), BUSY, BUSY, CALM)
    tried, made = gate(host)
    tried.wait()
    found = events(made, "waited")
    assert len(found) == 1
    assert found[0].values["seconds"] == pytest.approx(tried.waited_s, abs=0.01)
    assert (found[0].values["is_quiet"], found[0].values["tasks"]) == (True, 3)
    assert found[0].values["pressure_percent"] == pytest.approx(90)
    assert events(made, "caution") == []


def test_wait_ends_after_a_fifth_of_the_budget(gate: Gate) -> None:
    """Then it is measured nevertheless, with a caution, and never waited again."""
    host = Host(glance(pressure=60), BUSY)
    tried, made = gate(host, budget_s=1.0)
    tried.wait()
    assert tried.waited_s >= 0.2
    caution = events(made, "caution")[0].text
    assert "the machine was still busy after waiting" in caution
    assert "raise --quiet-pressure" in caution
    asked = host.asked
    tried.wait()
    assert host.asked == asked


def test_interruption_ends_the_wait_and_keeps_it(gate: Gate) -> None:
    """A resumed cell must know of it; nobody has given up on the machine yet."""
    tried, made = gate(Host(glance(load=5), BUSY), budget_s=600.0)
    made.interruption.request()
    with pytest.raises(InterruptedRunError):
        tried.wait()
    found = events(made, "waited")
    assert waited_s(found) == tried.waited_s > 0
    assert (found[0].values["is_quiet"], events(made, "caution")) == (False, [])


def test_resumed_gate_waits_no_longer_than_what_is_left(gate: Gate) -> None:
    """With its fifth spent it looks once, says so, and measures."""
    host = Host(glance(pressure=60), BUSY)
    _, made = gate(host, budget_s=600.0)
    resumed = QuietGate(replace(made, waited_s=120.0))
    resumed.wait()
    assert host.asked == 2
    assert "the machine was still busy after waiting 120 s (" in events(made, "caution")[0].text


@pytest.mark.parametrize(
    ("seen", "is_busy"),
    [(look([1, 1, 1]), False), (look([2, 2, 3]), True), (look([9, 9, 0]), False)],
)
def test_one_free_cpu_is_enough(gate: Gate, seen: str, is_busy: bool) -> None:  # noqa: FBT001
    """Two tasks of others on two CPUs leave none for our worker; a passing burst does."""
    tried, _ = gate(Host(glance(load=5), seen, CALM))
    tried.wait()
    assert (tried.waited_s > 0) is is_busy


@pytest.mark.parametrize(
    ("changes", "asked"),
    [({"quiet_pressure": 70.0}, 1), ({"quiet_pressure": 50.0}, 2), ({"quiet_gate": False}, 0)],
)
def test_thresholds_are_those_of_the_user(gate: Gate, changes: dict[str, Any], asked: int) -> None:
    """Pressure above the given percentage is looked into; a gate switched off asks nothing."""
    host = Host(glance(pressure=60), CALM)
    tried, _ = gate(host, **changes)
    tried.wait()
    assert host.asked == asked


@pytest.mark.parametrize("flags", [{"quiet_pressure": 0.0}, {"quiet_load": -1.0}])
def test_threshold_that_cannot_be_meant_is_refused(flags: dict[str, float]) -> None:
    """The error names the flag and a remedy."""
    names = known("vm", cnn={}, rnn={})
    with pytest.raises(ConfigError, match=next(iter(flags)).replace("_", "-")):
        resolve(Settings(envs="vm", **flags), Settings(), known=names)


def test_load_alone_decides_where_the_kernel_has_no_pressure(gate: Gate) -> None:
    """Kernels before 4.20, or without PSI."""
    host = Host(glance(load=4, pressure=None), look([3, 3, 3], waited_us=None), CALM)
    tried, made = gate(host)
    tried.wait()
    assert events(made, "waited")[0].values["pressure_percent"] is None


def test_host_that_tells_nothing_is_said_once(gate: Gate) -> None:
    """Blind, the gate stays open."""
    host = Host("")
    tried, made = gate(host)
    for _ in range(3):
        tried.wait()
    assert host.asked == 1
    assert len(events(made, "caution")) == 1
    assert "--no-quiet-gate" in events(made, "caution")[0].text


@pytest.mark.parametrize("text", ["", "two\n", "2\n", "2\nno numbers here\n"])
def test_answers_that_make_no_sense_are_no_reading(text: str) -> None:
    """None, never a number that was not there."""
    assert parse_glance(text) is None
    assert parse_look(text) is None


def test_this_machine_can_be_read() -> None:
    """The scripts and the parsers fit a real kernel."""
    first = parse_glance(on_this_machine(cell._GLANCE).stdout)
    second = parse_look(on_this_machine(cell._LOOK).stdout)
    for seen in (first, second):
        assert isinstance(seen, Reading)
        assert seen.cpus >= 1
        assert seen.load >= 0
        assert seen.pressure is None or 0 <= seen.pressure <= 100


def test_wait_is_said_in_the_method_of_a_real_cell(tmp_path: Path) -> None:
    """It is part of the budget, and no block is lost by it."""
    path = tmp_path / "own.py"
    path.write_text(WORKLOAD)
    host = Host(glance(pressure=60), BUSY, CALM, glance())
    made = bench(tmp_path, f"{path}:Steady", on_host=host, quiet_gate=True, budget_s=2.0)
    found = measure(made)
    assert found.docker.primary is not None
    assert found.comparison.cells[0].waited_s > 0
    told = dict(method_rules(found.comparison))["Watched"]
    assert "for a quiet machine (cnn)" in told
    cautions = " ".join(item.text for item in summary_cards(found.comparison).cautions.items)
    assert "still busy" not in cautions


@pytest.mark.parametrize("question", [cell._GLANCE, cell._LOOK])
def test_cpus_are_those_of_the_host_whatever_openmp_is_told(question: str) -> None:
    """GNU nproc heeds these variables, which many set on a shared machine."""
    for variables in ({}, {"OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "1"}):
        done = subprocess.run(
            ("sh", "-c", question), env={**os.environ, **variables}, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert int(done.stdout.split()[0]) == len(os.sched_getaffinity(0))
