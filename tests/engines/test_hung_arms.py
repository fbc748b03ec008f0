"""An arm that hangs on real engines: it is ended inside before anything is measured again."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, need
from runs import BASE
from software import sif_of

from envcompare.cli.planning import planned
from envcompare.config.settings import Settings
from envcompare.console import Display
from envcompare.environments.oci import image_store
from envcompare.errors import WorkloadError
from envcompare.measure import cell, limits, workers
from envcompare.measure.cell import CellContext
from envcompare.run_folder.records import Block, Event, ProcessRun, Sample, Startup
from envcompare.run_folder.results import RunFolder
from envcompare.runner import CellRecorder, Job, walk
from envcompare.stack import Progress, image
from envcompare.transport import LOCAL, Transport

ENOUGH = 12  # samples after the hang: the run may end, whatever its budget
pytestmark = pytest.mark.timeout(420)
SOURCE = """
import collections, itertools, os, signal, subprocess, sys, time

HUNG = os.environ["ENVCOMPARE_ARM"] == "hung"


def hang(*, session):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if session:
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    collections.deque(itertools.repeat(None), maxlen=0)  # in C: no other thread gets its turn


class Steady:
    batch = 1

    def setup(self, seed, device):
        self.steps = 0

    def step(self):
        time.sleep(0.002)
        self.steps += 1
        return 1.0


class HangsInAStep(Steady):
    def step(self):
        if HUNG and self.steps == 6:
            hang(session=True)
        return super().step()


class HangsInSetup(Steady):
    def setup(self, seed, device):
        if HUNG:
            hang(session=False)
        super().setup(seed, device)


class DiesAndLeavesAChild(Steady):
    def step(self):
        if HUNG and self.steps == 6:
            subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
            os._exit(3)
        return super().step()
"""
# Of the hung arm, in the run: what its worker left anywhere on the machine, and computes.
COMPUTING = r"""
for file in $(grep -lsF "ENVCOMPARE_RUN=$1" /proc/[0-9]*/environ); do
  tr '\000' '\n' <"$file" 2>/dev/null | grep -qx ENVCOMPARE_ARM=hung || continue
  read -r line <"${file%environ}stat" 2>/dev/null || continue
  case ${line##*) } in R*) echo "$line" ;; esac
done
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a workload file whose arm `hung` hangs."""
    path = tmp_path / "own.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up a worker that hangs after seconds, not after a minute.

    A container may take as long as ever to start and to import: it is what it does then that hangs.
    """
    monkeypatch.setattr(limits, "MIN_BLOCK_LIMIT_S", 10.0)
    monkeypatch.setattr(cell, "begin_limit_s", lambda *_, **__: 15.0)
    monkeypatch.setattr(workers, "MAX_REPETITIONS", 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A host, and the arm that is to hang there."""

    lab: Lab
    host: str
    hung: str

    def computing(self, run_id: str) -> list[str]:
        """Return the processes of the hung arm that compute there now."""
        argv = ("sh", "-c", COMPUTING, "sh", run_id)
        if self.host != "local":
            return self.lab.as_root(*argv).splitlines()
        done = subprocess.run(argv, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()


PLACES = [("local", "docker"), ("lab", "docker"), ("lab", "singularity"), ("local", "vm"),
          ("lab", "vm")]  # fmt: skip


# Where a worker hangs in setup or dies, what ends it is the same: each kind of environment has one.
CASES = [
    *((where, "HangsInAStep") for where in PLACES),
    *((where, "HangsInSetup") for where in (("lab", "docker"), ("local", "vm"))),
    *((where, "DiesAndLeavesAChild") for where in (*PLACES[1:3], ("local", "vm"))),
]


IN_EACH_RUN = (
    (("lab", "docker"), "HangsInAStep"),
)  # fmt: skip


@pytest.fixture
def place(request: pytest.FixtureRequest, lab: Lab, host: Transport) -> Place:
    """Give each environment, with an image that holds Python."""
    need("docker")
    where, environment = request.param
    base = image.find(image_store(LOCAL), BASE)
    assert base is not None, f"{BASE} is not here; script/lab up makes it"
    there = image.deliver(
        image_store(host), base, local=image_store(LOCAL), progress=Progress(print)
    )
    hung = {"docker": f"docker:{BASE}", "vm": "vm@host"}.get(environment)
    if hung is None:
        made = sif_of(host, there, compression="zstd", say=print)
        hung = f"singularity:{made.path}"
    return Place(lab=lab, host=lab.alias if where == "lab" else where, hung=f"hung={hung}")


class Watch:
    """Looks for the hung arm at each sample of another arm that is taken after the hang.

    Once it has seen enough, the budget is spent.
    """

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.beside: list[str] = []
        self.taken = 0
        self._has_failed = False
        keep_sample, keep_event = CellRecorder.sample, CellRecorder.event
        remaining_s = CellContext.remaining_s

        def sample(run: CellRecorder, one: Sample) -> None:
            if self._has_failed and isinstance(one, Block | Startup | ProcessRun):
                self.taken += 1
                self.beside += place.computing(run.job.folder.path.name)
            keep_sample(run, one)

        def event(run: CellRecorder, one: Event) -> None:
            self._has_failed |= one.what == "arm-failed" and one.arm == "hung"
            keep_event(run, one)

        def left_s(bench: CellContext) -> float:
            return remaining_s.__get__(bench) if self.taken < ENOUGH else 0.0

        monkeypatch.setattr(CellContext, "remaining_s", property(left_s))
        monkeypatch.setattr(CellRecorder, "sample", sample)
        monkeypatch.setattr(CellRecorder, "event", event)


def run(out: Path, **settings: Any) -> tuple[int, RunFolder]:
    """Carry out a run in this process; return its exit code and folder."""
    given = Settings(
        profile="none",
        quiet_gate=False,
        budget=240.0,
        generation="rebuild",
        base_image=BASE,
        preset="quick",
        **settings,
    )
    experiment, plan, hosts = planned(given, Settings(), accept_many=True)
    record = walk.run_record(plan, experiment, command_line=("envcompare", "run"))
    folder = RunFolder.create(out, record)
    job = Job(
        folder=folder, plan=plan, experiment=experiment, hosts=hosts, display=Display(is_quiet=True)
    )
    return walk.run(job), folder


@pytest.mark.parametrize(
    ("place", "name"),
    [
        pytest.param(
            where,
            name,
            id="-".join((*where, name)),
            marks=[] if (where, name) in IN_EACH_RUN else pytest.mark.nightly,
        )
        for where, name in CASES
    ],
    indirect=["place"],
)
def test_nothing_is_measured_beside_an_arm_that_was_given_up(
    place: Place, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It spins in C, ignores SIGTERM, and has a child in a session of its own."""
    envs = (f"one=docker:{BASE}", place.hung, f"two=docker:{BASE}")
    watch = Watch(place, monkeypatch)
    code, folder = run(
        tmp_path / "out", envs=envs, hosts=place.host, workload=f"{own}:{name}", startup=False
    )
    assert watch.beside == []
    assert watch.taken >= ENOUGH
    assert code == WorkloadError.exit_code
    (ended,) = [event for event in folder.read_events().events if event.what == "cell-ended"]
    assert ended.state == "ok"
    assert ended.text.startswith("stopped: ")
