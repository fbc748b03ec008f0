"""The search for batches: what it plans, what it refuses, and what it says of the knee."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import known
from hypothesis import given, settings
from hypothesis import strategies as st

from envcompare.cli.planning import plan_lines, planned
from envcompare.config.experiment import BatchSearch, Experiment, parse_search, resolve
from envcompare.config.plan import make_plan
from envcompare.config.settings import Settings, WorkloadTable
from envcompare.console import Display
from envcompare.environments import Check
from envcompare.errors import ConfigError, InterruptedRunError, exit_code_of
from envcompare.gpu import HostGpus
from envcompare.hosts import HostSession, ReadyArm
from envcompare.run_folder import standing
from envcompare.run_folder.records import Event, Scalar
from envcompare.run_folder.results import RunFolder
from envcompare.runner import Fit, Job, search_fit, walk
from envcompare.runner.cellrun import CellRun, run_cells
from envcompare.stack import Prepared
from envcompare.stats.acrosscells import KNEE_SHARE, Knee, _differences, knee
from envcompare.text import Command
from envcompare.transport import LOCAL, run

KNOWN = known(
    cnn={"batch": 64, "lr": 0.1, "compile": False}, mlp={"batch": 1}, startup={"until": "import"}
)
Searching = Callable[[str], tuple[Job, list[CellRun]]]
SEARCHED = """
import time

class RaisesAtOnce:
    PARAMS = {"batch": 8}

    def __init__(self, batch):
        pass

    def setup(self, seed, device):
        raise ValueError("no such layer")

    def step(self):
        return 0.0

class Hangs(RaisesAtOnce):
    PARAMS = {"batch": 8}

    def setup(self, seed, device):
        time.sleep(600)
"""
OWN = """
class Net:
    PARAMS = {parameters}

    def step(self):
        return 0.0
"""


def experiment(**flags: Any) -> Experiment:
    """Resolve these flags over the defaults."""
    return resolve(Settings(**{"envs": "vm", **flags}), Settings(), known=KNOWN)


def written(folder: Path, parameters: str, more: str = "") -> str:
    """Write a class of the user's with these parameters, and return how it is named."""
    path = folder / "net.py"
    path.write_text(OWN.format(parameters=parameters) + more)
    return f"{path}:Net"


def sizes_of(found: Experiment) -> dict[str, tuple[object, ...]]:
    """Return the batches of each workload."""
    return {workload.name: dict(workload.parameters)["batch"] for workload in found.workloads}


def test_sizes_double_from_the_batch_of_each_workload() -> None:
    """Each size is a cell, beside the values of other parameters."""
    found = experiment(workloads="cnn,mlp", search="batch", set={"cnn": {"lr": (0.1, 0.2)}})
    assert sizes_of(found) == {
        "cnn": (64, 128, 256, 512, 1024, 2048, 4096),
        "mlp": (1, 2, 4, 8, 16, 32, 64),
    }
    cells = make_plan(found, ("local",), accept_many=False).cells
    assert [cell.id for cell in cells[:2]] == [f"local/cnn/batch=64,lr={lr}" for lr in (0.1, 0.2)]
    assert len(cells) == 2 * 7 + 7


def test_the_plan_says_that_search_and_training_come_on_top() -> None:
    """Its minutes are those of the budgets."""
    found = experiment(workloads="cnn", search="batch")
    lines = plan_lines(found, make_plan(found, ("local",), accept_many=False))
    said = "hosts take turns, without search, profiles and waiting;"
    assert any(line.endswith(said) for line in lines)


def test_sizes_out_of_range_are_refused_with_the_range(tmp_path: Path) -> None:
    """An end that is open is not named."""
    own = written(tmp_path, "{'batch': 8}", "    RANGES = {'batch': (4, None)}\n")
    with pytest.raises(ConfigError) as refused:
        experiment(workload=own, search="batch=2-8")
    assert refused.value.details == "it accepts at least 4"


def test_first_last_and_memory_are_taken_as_named() -> None:
    """The last size is one that doubling reaches."""
    found = experiment(workloads="cnn", search="batch=16-100,memory=256")
    assert found.search == BatchSearch(first=16, last=100, memory_mib=256)
    assert sizes_of(found) == {"cnn": (16, 32, 64)}


def test_a_search_plans_the_same_when_it_is_resumed() -> None:
    """The settings keep what was asked for, and no sizes."""
    found = experiment(workloads="cnn", search="batch")
    again = resolve(Settings(), found.settings, known=KNOWN)
    assert again.workloads == found.workloads


@pytest.mark.parametrize(
    "text",
    [
        "knee", "batch=8", "batch=8-15", "batch=0-8", "batch=1-1048577", "batch=-8",
        "batch,memory=8",
        "batch,memory=1.5", "batch,memory=" + "9" * 5000, "batch,cores=2", "batch=", "", "batch,",
        "batch,memory=64,memory=64",
    ],
)  # fmt: skip
def test_a_search_for_anything_else_is_refused(text: str) -> None:
    """With the form that is understood."""
    with pytest.raises(ConfigError, match="is not understood") as refused:
        parse_search(text)
    assert "--search batch" in refused.value.hint


def test_a_workload_without_a_batch_is_refused(tmp_path: Any) -> None:
    """A bundled one, a plain command, and a class that declares none."""
    own = written(tmp_path, "{'width': 8}")
    command = {"job": WorkloadTable(command="true")}
    for flags in ({"workloads": "startup"}, {"workloads": command}, {"workload": own}):
        with pytest.raises(ConfigError, match="has no parameter `batch`") as refused:
            experiment(search="batch", **flags)
        assert "cnn, mlp" in refused.value.details


def test_a_class_of_the_users_is_searched_from_its_own_batch(tmp_path: Any) -> None:
    """As its PARAMS declare it."""
    found = experiment(search="batch", workload=written(tmp_path, "{'batch': 3}"))
    assert sizes_of(found) == {"net-Net": (3, 6, 12, 24, 48, 96, 192)}


def test_a_batch_that_is_set_as_well_is_refused() -> None:
    """By a flag or by the file."""
    with pytest.raises(ConfigError, match="exclude each other"):
        experiment(workloads="cnn", search="batch", set={"cnn": {"batch": 8}})


def test_a_search_with_compiled_models_is_refused() -> None:
    """Among other values as well; the model that is not compiled may be searched for."""
    for values in (True, (False, True)):
        with pytest.raises(ConfigError, match=r"cnn\.compile=true exclude each other"):
            experiment(workloads="cnn", search="batch", set={"cnn": {"compile": values}})
    found = experiment(workloads="cnn", search="batch", set={"cnn": {"compile": False}})
    assert sizes_of(found)["cnn"][0] == 64


def rates(*samples_per_s: float, restarts: int = 4, noise: float = 0.0) -> dict[int, Any]:
    """Return log throughputs of doubling batches; what a restart adds is large and cancels."""
    drawn = np.random.default_rng(1).normal(0, noise, (len(samples_per_s), restarts))
    return {
        1 << power: {
            restart: math.log(rate) + 0.3 * restart + drawn[power][restart]
            for restart in range(restarts)
        }
        for power, rate in enumerate(samples_per_s)
    }


def knee_of(values: dict[int, Any]) -> Knee:
    """Return the knee of throughputs that have one."""
    found = knee(values)
    assert found is not None
    return found


def test_the_knee_is_the_smallest_batch_near_the_best() -> None:
    """The best may be a larger one, and restarts may differ from each other."""
    found = knee_of(rates(100, 180, 240, 250, 252, noise=0.002))
    assert (found.low, found.high, found.best) == (4, 4, 16)


def test_a_knee_at_the_edge_is_not_decided() -> None:
    """95 % of the best is as near to the one as to the other: both ends are named."""
    found = knee_of(rates(100, 150, 237.5, 250, noise=0.002))
    assert (found.low, found.high) == (4, 8)


def test_one_restart_decides_nothing() -> None:
    """It says nothing of how far restarts scatter."""
    found = knee_of(rates(100, 180, 240, restarts=1))
    assert (found.low, found.high, found.restarts) == (1, None, 1)


def test_a_batch_that_ended_early_spoils_no_other() -> None:
    """Its restarts are compared with the same ones of the others."""
    values = rates(100, 180, 248, 250, 252, noise=0.002)
    values[16] = {restart: values[16][restart] for restart in (1, 2)}
    found = knee_of(values)
    assert (found.low, found.high, found.best) == (4, 4, 16)


def test_without_two_batches_in_a_restart_there_is_no_knee() -> None:
    """Nor without any."""
    assert knee({}) is None
    assert knee({8: {0: 1.0}}) is None
    assert knee({8: {0: 1.0}, 16: {1: 1.0}}) is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(10, 1000), min_size=2, max_size=7),
    st.floats(0, 0.05),
)
def test_what_is_claimed_of_a_knee_holds_together(levels: list[float], noise: float) -> None:
    """The best reaches the share if anything does, and the ends are in order and measured."""
    values = rates(*levels, noise=noise)
    found = knee_of(values)
    assert found.low in values
    assert found.low <= found.best
    assert found.high is None or found.low <= found.high


def test_a_true_knee_is_rarely_missed_by_a_claim() -> None:
    """Of 400 runs at a noise of 1 % at most 5 % claim another one, and most claim the true one."""
    truth = [100.0, 150.0, 190.0, 212.0, 214.0]
    assert min(1 << p for p, one in enumerate(truth) if one >= KNEE_SHARE * max(truth)) == 8
    drawn = np.random.default_rng(7)
    claims: Counter[int | None] = Counter()
    for _ in range(400):
        values = {
            1 << p: {r: math.log(one) + drawn.normal(0, 0.01) for r in range(4)}
            for p, one in enumerate(truth)
        }
        found = knee_of(values)
        claims[found.high if found.low == found.high else None] += 1
    assert claims[8] > 200
    assert sum(claims.values()) - claims[8] - claims[None] <= 0.05 * 400


def test_intervals_of_all_pairs_of_batches_hold_together() -> None:
    """Of 1000 runs of six equal batches at most 5 % have a pair that seems to differ."""
    drawn = np.random.default_rng(3)
    missed = 0
    for _ in range(1000):
        apart, half = _differences(drawn.normal(0, 0.01, (6, 3)).tolist())
        missed += bool((np.abs(apart) > half + 1e-9).any())
    assert missed <= 0.05 * 1000


def test_sizes_stay_in_order() -> None:
    """Whatever is asked for."""
    sizes = BatchSearch(first=3, last=1000).sizes(64)
    assert all(later == 2 * size for size, later in pairwise(sizes))
    assert sizes[-1] <= 1000


ANSWER = (
    '{"largest":9,"measurable":8,"beyond":10,"limited_by":"workload","memory_mib":64,'
    '"device":"cpu","tries":5}'
)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo no torch >&2; exit 3", "no torch"),
        ("exit 3", "exit code 3"),
        ("echo {}", "is not understood"),
        (f"echo '{ANSWER.replace('9', '-9')}'", "is not understood"),
        (f"echo 'no data' >&2; echo '{ANSWER.replace('9', '0', 1)}'", "no data"),
    ],
)
def test_a_search_without_an_answer_has_a_reason(script: str, told: str) -> None:
    """Whatever the program in the arm does."""
    fit = search_fit(Command(argv=("sh", "-c", script)), partial(run, LOCAL))
    assert isinstance(fit, str)
    assert told in fit


def test_what_the_workload_said_stands_beside_what_fits() -> None:
    """It is the last line of its output."""
    script = f"echo one >&2; echo 'no more data' >&2; echo '{ANSWER}'"
    fit = search_fit(Command(argv=("sh", "-c", script)), partial(run, LOCAL))
    assert isinstance(fit, Fit)
    assert (fit.largest, fit.said) == (9, "no more data")


@pytest.fixture
def searching(tmp_path: Path) -> Iterator[Searching]:
    """Give a function that makes the cells of a search in one arm, here and with this Python."""
    jobs: list[Job] = []

    def make(name: str) -> tuple[Job, list[CellRun]]:
        path = tmp_path / "own.py"
        path.write_text(SEARCHED)
        given = Settings(
            envs="vm", hosts="local", workload=f"{path}:{name}", profile="none", quiet_gate=False,
            startup=False, budget=5.0, search="batch=8-16,memory=64",
        )  # fmt: skip
        found, plan, hosts = planned(given, Settings(), accept_many=True)
        session = HostSession(
            host=hosts[0], transport=LOCAL, local=LOCAL, boot_id="", run_id="r",
            cache=str(tmp_path / "cache"), uid=1000, gid=1000, python="3.11", gpus=HostGpus(),
        )  # fmt: skip
        for arm in plan.arms:
            ready = ReadyArm(arm=arm, prepared=Prepared(interpreter=sys.executable), check=Check())
            session.arms[arm.id] = ready
        session.stage()
        record = walk.run_record(plan, found, command_line=("envcompare", "run"))
        folder = RunFolder.create(tmp_path / "run", record)
        display = Display(is_quiet=True)
        jobs.append(Job(folder=folder, plan=plan, experiment=found, hosts=hosts, display=display))
        return jobs[-1], [CellRun(cell=cell, session=session, job=jobs[-1]) for cell in plan.cells]

    yield make
    for job in jobs:
        job.folder.close()


def fits(job: Job, run: CellRun, **values: Scalar) -> None:
    """Note what a search found in the only arm."""
    job.note("batch-fits", host=run.cell.host, cell=run.cell.id, arm="vm", values=values)


def ends(job: Job) -> dict[str, str | None]:
    """Return the state of each cell that ended, by its batch."""
    events = job.folder.read_events().events
    return {e.cell.split("=")[-1]: e.state for e in events if e.what == "cell-ended"}


def searches(job: Job) -> list[Event]:
    """Return what searches have noted."""
    return [event for event in job.folder.read_events().events if event.what == "batch-fits"]


def exit_codes(job: Job) -> set[int]:
    """Return the exit codes of all failures."""
    events = standing(job.folder.read_events().events)
    return {exit_code_of(event.failure.phase) for event in events if event.failure}


def test_a_search_that_fails_in_every_arm_is_a_failure(searching: Searching) -> None:
    """Its cells fail with what the class said, and a resumed run searches anew."""
    job, runs = searching("RaisesAtOnce")
    run_cells(job, runs, ended=set())
    assert ends(job) == {"8": "failed", "16": "failed"}
    assert exit_codes(job) == {4}
    (search,) = searches(job)
    failure = next(event.failure for event in job.folder.read_events().events if event.failure)
    assert failure.details == f"vm: {search.values['reason']}"
    job.note("run-resumed")
    run_cells(job, runs, ended=set())
    assert len(searches(job)) == 2


def test_a_search_in_which_no_size_fits_is_a_failure_too(searching: Searching) -> None:
    """There is nothing that could be measured."""
    job, runs = searching("RaisesAtOnce")
    fits(job, runs[0], largest=0, measurable=0)
    run_cells(job, runs, ended=set())
    assert ends(job) == {"8": "failed", "16": "failed"}
    assert exit_codes(job) == {4}


def test_a_size_that_does_not_fit_beside_one_that_does_is_no_failure(searching: Searching) -> None:
    """It ends skipped, also where an arm that takes part no more would hold less."""
    job, runs = searching("RaisesAtOnce")
    fits(job, runs[0], largest=8, measurable=8)
    job.note("batch-fits", host="local", cell=runs[0].cell.id, arm="docker", values={"largest": 0})
    run_cells(job, runs[1:], ended=set())
    assert ends(job) == {"16": "skipped"}
    assert exit_codes(job) == set()
    ended = next(e for e in job.folder.read_events().events if e.what == "cell-ended")
    assert ended.text == "a batch of 16 does not fit in vm: the largest that fits is 8"


def test_a_request_to_stop_ends_a_search_at_once(searching: Searching) -> None:
    """It has no end of its own, and finds nothing that would stand in the run folder."""
    job, runs = searching("Hangs")
    began = time.monotonic()
    threading.Timer(2.0, job.interruption.request).start()
    with pytest.raises(InterruptedRunError):
        run_cells(job, runs, ended=set())
    assert time.monotonic() - began < 60
    assert searches(job) == []
