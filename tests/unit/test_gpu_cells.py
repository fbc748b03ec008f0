"""A cell on a host with a GPU, which PyTorch imitates: what its passes keep and refuse."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from envcompare.cli.planning import planned
from envcompare.config import Arm
from envcompare.config.settings import Settings
from envcompare.console import Display
from envcompare.environments import Check
from envcompare.errors import Problem, StackError, TransportError, UnusableError, WorkloadError
from envcompare.gpu import HostGpus
from envcompare.hosts import HostSession, ReadyArm
from envcompare.hosts.folders import CellFolders
from envcompare.measure import Placed
from envcompare.measure.hostreadings import ROUNDS, EnergyPass
from envcompare.run_folder.records import Block, CellState, EnergyBlock, GpuReading, event_now
from envcompare.run_folder.results import RunFolder
from envcompare.runner import Job, cellrun, walk
from envcompare.runner.cellrun import CellRun, run_cells
from envcompare.stack import Prepared
from envcompare.text import Command
from envcompare.transport import LOCAL

IMITATED = Path(__file__).parents[1] / "support" / "imitatedtorch"
WORKLOAD = """
import time

class WithoutTorch:
    batch = 1
    steps_per_epoch = 1
    def setup(self, seed, device):
        pass
    def step(self):
        time.sleep(0.005)
        return 1.0

class WithTorch(WithoutTorch):
    def setup(self, seed, device):
        import torch
        self.weights = torch.zeros(1, device=device)
"""
# Says the time at its start and at its end, as the program that asks NVIDIA's library does.
SAMPLER = """
import sys, time
for _ in range(2):
    print('{"uuid": "GPU-1m1tated-", "t_ns": %d}' % time.monotonic_ns(), flush=True)
    sys.stdin.read()
"""
Make = Callable[..., CellRun]


@pytest.fixture
def cell_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Give a function that makes a cell of one arm and its control on this machine."""
    monkeypatch.setattr(cellrun, "EnergyPass", partial(EnergyPass, block_s=0.2))
    sampler = Command(argv=(sys.executable, "-c", SAMPLER))
    monkeypatch.setattr(cellrun, "sampler_command", lambda *_: sampler)
    jobs: list[Job] = []

    def make(name: str, *, is_timed: bool = True, gpus: str = "1", envs: str = "vm") -> CellRun:
        path = tmp_path / "own.py"
        path.write_text("import torch\n" * (name == "WithTorch") + WORKLOAD)
        given = Settings(envs=envs, hosts="local", workload=f"{path}:{name}", profile="trace",
                         quiet_gate=False, startup=False, budget=5.0)  # fmt: skip
        experiment, plan, hosts = planned(given, Settings(), accept_many=True)
        session = HostSession(
            host=hosts[0], transport=LOCAL, local=LOCAL, boot_id="", run_id="r",
            cache=str(tmp_path / "cache"), uid=1000, gid=1000, python="3.11",
            gpus=HostGpus(driver="570.86.10"),
        )  # fmt: skip
        variables = (
            ("PYTHONPATH", str(IMITATED)),
            ("IMITATED_CUDA", str(tmp_path / "calls")),
            ("IMITATED_GPUS", gpus),
        )
        software = Prepared(interpreter=sys.executable, variables=variables)
        for arm in plan.arms:
            session.arms[arm.id] = ReadyArm(arm=arm, prepared=software, check=Check())
        session.stage()
        record = walk.run_record(plan, experiment, command_line=("envcompare", "run"))
        folder = RunFolder.create(tmp_path / "run", record)
        display = Display(is_quiet=True)
        jobs.append(
            Job(folder=folder, plan=plan, experiment=experiment, hosts=hosts, display=display)
        )
        (cell,) = plan.cells
        stopped = event_now("stopped", cell=cell.id, host=cell.host, text="target")
        before = (stopped,) if is_timed else ()
        return CellRun(
            cell=cell,
            session=session,
            job=jobs[-1],
            prior_events=before,
            session_events=before,
        )

    yield make
    for job in jobs:
        job.folder.close()


def test_a_timed_cell_ends_with_the_energy_of_its_arms(cell_of: Make) -> None:
    """Its host's GPUs are sampled meanwhile, until after the last block."""
    run = cell_of("WithTorch")
    run_cells(run.job, [run], ended=set())
    samples = run.job.folder.read_samples().samples
    blocks = [sample for sample in samples if isinstance(sample, EnergyBlock)]
    (reading,) = [sample for sample in samples if isinstance(sample, GpuReading)]
    assert [(b.arm, b.round) for b in blocks] == [("vm", number) for number in range(ROUNDS)]
    assert blocks[-1].t0_ns + blocks[-1].wall_ns <= reading.t_ns[-1]


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [(TransportError("the host does not answer"), True), (StackError("no room"), False)],
    ids=["lost", "full"],
)
def test_a_host_that_is_lost_while_data_are_placed_is_no_failure_of_the_arm(
    error: UnusableError, *, is_lost: bool, cell_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell is gone on with when the host is back; what an arm lacks is the arm's own."""
    run = cell_of("WithoutTorch", envs="vm,docker")

    def place_data(_: CellFolders, arm: Arm, *_rest: object, **_more: object) -> Placed:
        if arm.id == "docker":
            raise error
        return Placed(name="tmpfs")

    monkeypatch.setattr(CellFolders, "place_data", place_data)
    expected = TransportError if is_lost else UnusableError
    with pytest.raises(expected) as caught:
        run.prepare()
    assert isinstance(caught.value, TransportError) is is_lost
    failed = [e.arm for e in run.job.folder.read_events().events if e.what == "arm-failed"]
    assert failed == ([] if is_lost else ["docker"])


def test_a_cell_that_has_ended_stays_so_where_its_host_is_lost_in_the_next(
    cell_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the other is to be gone on with, or given up."""
    first, second = cell_of("WithTorch"), cell_of("WithoutTorch")

    def finish(run: CellRun) -> tuple[CellState, str]:
        if run is second:
            raise TransportError("the host does not answer")
        return "ok", ""

    monkeypatch.setattr(CellRun, "finish", finish)
    ended: set[str] = set()
    with pytest.raises(TransportError):
        run_cells(first.job, [first, second], ended=ended)
    assert ended == {first.cell.id}


def test_a_cell_on_the_cpu_has_no_energy_pass(cell_of: Make) -> None:
    """Nor does anything sample the GPU that it does not use."""
    run = cell_of("WithTorch")
    run.session.gpus = None
    run_cells(run.job, [run], ended=set())
    assert run.job.folder.read_samples().samples == ()


def test_a_workload_that_leaves_the_gpu_alone_has_no_energy_of_it(cell_of: Make) -> None:
    """What the idle GPU takes is nobody's, and a trace of it would be empty: it says why."""
    run = cell_of("WithoutTorch")
    run_cells(run.job, [run], ended=set())
    assert run.job.folder.read_samples().samples == ()
    (record,) = (r for r in run.job.folder.read_profiles(run.cell.id) if r.kind == "nsys")
    assert record.lacks is not None
    assert record.lacks.why == "no-gpu"


def test_a_gpu_that_a_restart_does_not_find_any_more_is_named_as_lost(cell_of: Make) -> None:
    """The first worker of the arm had it; one that never had it is told to see doctor."""
    run = cell_of("WithTorch")
    ready = run.session.arms["vm"]
    without = (*ready.prepared.variables, ("IMITATED_GPUS", "0"))
    blind = replace(ready, prepared=replace(ready.prepared, variables=without))
    run.session.arms["vm"] = blind
    assert "see what envcompare doctor says" in _begin(run).hint
    run.session.arms["vm"] = ready
    assert _begin(run) == Problem(brief="")
    run.session.arms["vm"] = blind
    lost = _begin(run)
    assert lost.brief == "vm: the host has an NVIDIA GPU and PyTorch sees no GPU here"
    assert "systemctl daemon-reload" in lost.hint


def _begin(run: CellRun) -> Problem:
    """Start a worker and its first generation, and return what went wrong."""
    workload, log = run.cell.workload, run.job.folder.path / "vm.log"
    spec = run.folders.spec(workload, {}, str(log.parent), run.job.experiment)
    worker = run.folders.launch("vm", log=log, log_name="vm.log")
    try:
        worker.send_hello(spec)
        worker.await_hello()
        worker.send_begin(1, 0)
        worker.await_begin()
    except WorkloadError as error:
        return error.problem
    finally:
        worker.kill()
    return Problem(brief="")


def test_a_pytorch_that_does_not_see_the_gpu_of_its_host_is_not_timed(cell_of: Make) -> None:
    """It is a failure with a remedy, and no step was run on the CPU in its place."""
    run = cell_of("WithTorch", is_timed=False, gpus="0")
    run_cells(run.job, [run], ended=set())
    (ended,) = (e for e in run.job.folder.read_events().events if e.what == "cell-ended")
    assert ended.state == "failed"
    assert "the host has an NVIDIA GPU and PyTorch sees no GPU here" in ended.text
    failures = [event.failure for event in run.job.folder.read_events().events if event.failure]
    assert all("--device cpu" in failure.hint for failure in failures)
    assert failures
    samples = run.job.folder.read_samples().samples
    assert [sample for sample in samples if isinstance(sample, Block)] == []
