"""The way to a goal: what is planned and refused, how arms are trained, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benches import Kept, bench
from experiments import known
from msgspec.structs import replace as changed

from envcompare.analysis.compare import compare_run
from envcompare.config.experiment import EPOCHS, Experiment, parse_until, resolve
from envcompare.config.plan import make_plan
from envcompare.config.settings import Settings
from envcompare.config.workloads import catalogue
from envcompare.errors import ConfigError, Phase
from envcompare.measure import Ran, hostreadings, worker
from envcompare.measure.cell import CellContext, failed_for_good
from envcompare.measure.hostreadings import AccuracyPass
from envcompare.report.page import render
from envcompare.run_folder.records import Epoch, Failure, Goal, event_now
from envcompare.run_folder.results import RunFolder

GOAL = Goal(metric="accuracy", value=0.9, epochs=8)
WORKLOAD = """
import os
import time

class Learns:
    METRICS = ("accuracy",)
    batch = 1
    steps_per_epoch = 3

    def setup(self, seed, device):
        self.seed, self.steps = seed, 0

    def step(self):
        self.steps += 1
        return float(self.seed)

    def evaluate(self):
        return {"accuracy": 0.1 * self.steps}

class HardlyLearns(Learns):
    def evaluate(self):
        return {"accuracy": 0.3}

class FailsInDocker(Learns):
    def evaluate(self):
        if os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker":
            raise ValueError("no such file")
        return super().evaluate()

class InOneStep(Learns):
    steps_per_epoch = 1

class Endless(Learns):
    steps_per_epoch = None

class HangsInDocker(Learns):
    def setup(self, seed, device):
        super().setup(seed, device)
        if os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker":
            with open(__file__ + ".pid", "w") as file:
                file.write(str(os.getpid()))
            time.sleep(600)

    def evaluate(self):
        with open(__file__ + ".pid") as file:
            return {} if os.path.exists(f"/proc/{file.read()}/exe") else super().evaluate()

class OtherInControl(Learns):
    def evaluate(self):
        is_control = os.environ["ENVCOMPARE_ENVIRONMENT"] == "vm~control"
        return {"accuracy": 0.1 * self.steps + is_control / 1000}
"""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[[str], CellContext]]:
    """Return a cell on this machine."""
    path = tmp_path / "learns.py"
    path.write_text(WORKLOAD)
    contexts: list[CellContext] = []

    def make(name: str) -> CellContext:
        contexts.append(bench(tmp_path, f"{path}:{name}", until=GOAL))
        return contexts[-1]

    yield make
    for context in contexts:
        folder_of(context).close()


def folder_of(context: CellContext) -> RunFolder:
    """Return where the samples of a cell are kept."""
    assert isinstance(context.recorder, Kept)
    return context.recorder.folder


def training(context: CellContext, goal: Goal = GOAL, **fields: Any) -> AccuracyPass:
    """Return the pass over all arms."""
    return AccuracyPass(
        context=context,
        goal=goal,
        arms=context.arms,
        **{"launch": lambda arm: context.launch(arm, ()), **fields},
    )


def epochs(context: CellContext) -> list[Epoch]:
    """Return the epochs that were kept."""
    samples = folder_of(context).read_samples().samples
    return [sample for sample in samples if isinstance(sample, Epoch)]


def test_every_arm_trains_from_the_same_model_until_the_goal(
    made: Callable[[str], CellContext],
) -> None:
    """Nine steps are three epochs of three; the step that built the model is not timed.

    The report has epochs and seconds, and whether arms agree: equal seeds lead to equal epochs.
    """
    context = made("Learns")
    said = training(context).measure()
    restarts = context.design.min_restarts
    told = f"{restarts} restarts of 3 arms: reached {3 * restarts} times"
    assert said == f"trained to accuracy 0.9 in {told}"
    found = epochs(context)
    assert [(one.restart, one.epoch) for one in found] == [
        (restart, epoch) for restart in range(restarts) for epoch in (1, 2, 3) for _ in range(3)
    ]
    assert {(one.k, one.epoch, round(one.value or 0, 6), one.is_last) for one in found} == {
        (2, 1, 0.3, False), (3, 2, 0.6, False), (3, 3, 0.9, True),
    }  # fmt: skip
    folder_of(context).close()
    run = compare_run(folder_of(context))
    (cell,) = run.views.training
    assert [(arm.arm, arm.epochs) for arm in cell.arms] == [
        (arm, (3,) * restarts) for arm in ("vm", "docker", "vm~control")
    ]
    assert (cell.same_values, cell.other_values) == (3 * restarts, 0)
    vm, docker, _ = cell.arms
    assert vm.log_ratio is None
    assert docker.log_ratio is not None
    assert docker.training_s is not None
    assert docker.training_low_s is not None
    assert docker.training_low_s <= docker.training_s
    assert [point.epoch for point in docker.points] == [1, 2, 3]
    page = render(run)
    assert "Time to accuracy 0.9" in page
    assert f"In {3 * restarts} of {3 * restarts} epochs all environments had the same" in page


def test_a_first_step_is_timed_where_its_epoch_has_no_other(
    made: Callable[[str], CellContext],
) -> None:
    """An epoch takes time, though that step may have started CUDA or compiled the model."""
    context = made("InOneStep")
    training(context, changed(GOAL, epochs=2)).measure()
    assert {(one.k, one.epoch) for one in epochs(context)} == {(1, 1), (1, 2)}
    assert all(one.wall_ns > 0 for one in epochs(context))


def test_a_stop_by_the_quota_of_an_arm_is_no_wait(
    made: Callable[[str], CellContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the environment's own time, and stays in that of the training; the rest was others'."""
    run = worker.Worker.run

    def stopped(self: worker.Worker, k: int, limit_s: float) -> Ran:
        return changed(run(self, k, limit_s), wait_ns=5_000_000, throttled_ns=2_000_000)

    monkeypatch.setattr(worker.Worker, "run", stopped)
    context = made("Learns")
    training(context, changed(GOAL, epochs=1)).measure()
    assert {one.wait_ns for one in epochs(context)} == {3_000_000}


def test_a_goal_that_is_never_reached_ends_with_the_epochs(
    made: Callable[[str], CellContext],
) -> None:
    """The report says so, with the best value."""
    context = made("HardlyLearns")
    said = training(context).measure()
    assert said.endswith("reached 0 times")
    folder_of(context).close()
    run = compare_run(folder_of(context))
    assert {(arm.reached, arm.most_epochs, arm.best) for arm in run.views.training[0].arms} == {
        (0, GOAL.epochs, 0.3)
    }
    assert "not reached within 8 epochs" in render(run)


def test_a_pass_that_is_out_of_time_ends_its_first_restart(
    made: Callable[[str], CellContext],
) -> None:
    """After the epoch that has begun, in all arms alike; the report says that time was up."""
    context = made("HardlyLearns")
    late = replace(context, design=changed(context.design, budget_s=0.0))
    training(late).measure()
    assert {(one.restart, one.epoch, one.is_last) for one in epochs(context)} == {(0, 1, True)}
    folder_of(context).close()
    assert "not reached within 1 epoch, when time was up" in render(compare_run(folder_of(context)))


def test_only_the_first_restart_is_cut_when_time_is_up(
    made: Callable[[str], CellContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later one that was cut would count as one that does not reach the goal."""
    context = made("Learns")
    first = 3 * len(context.arms)  # epochs of a restart

    def monotonic() -> float:
        return 0.0 if len(epochs(context)) <= first else 1e6

    monkeypatch.setattr(hostreadings, "time", SimpleNamespace(monotonic=monotonic))
    assert training(context).measure().endswith("2 restarts of 3 arms: reached 6 times")
    assert {(one.restart, one.epoch) for one in epochs(context) if one.is_last} == {(0, 3), (1, 3)}


def test_an_arm_that_hangs_is_ended_before_others_train(
    made: Callable[[str], CellContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would compute beside them; here they reach the goal only once its process is gone."""
    context = made("HangsInDocker")
    monkeypatch.setattr(worker.Worker.await_begin, "__defaults__", (5.0,))
    training(context).measure()
    reached = {(one.arm, one.epoch) for one in epochs(context) if one.is_last}
    assert reached == {("vm", 3), ("vm~control", 3)}


def test_an_arm_that_fails_ends_no_other(made: Callable[[str], CellContext]) -> None:
    """It is a failure, tried once; the report names it and does not say that all agree."""
    context = made("FailsInDocker")
    training(context).measure()
    assert {one.arm for one in epochs(context) if one.is_last} == {"vm", "vm~control"}
    (failed,) = (e for e in folder_of(context).read_events().events if e.what == "training-failed")
    assert failed.arm == "docker"
    assert failed.failure is not None
    assert "no such file" in failed.failure.brief
    folder_of(context).close()
    run = compare_run(folder_of(context))
    docker = next(arm for arm in run.views.training[0].arms if arm.arm == "docker")
    assert (docker.restarts, docker.why_not) == (0, failed.failure.brief)
    assert run.views.training[0].same_values == 0
    page = render(run)
    assert "all environments had the same value" not in page
    assert "No restart came to its end in docker." in page


def test_a_workload_without_epochs_is_not_trained(made: Callable[[str], CellContext]) -> None:
    """It is said what it lacks, once for each arm, and the report has the reason."""
    context = made("Endless")
    said = training(context).measure()
    assert said == "not trained to accuracy 0.9: no arm finished an epoch"
    texts = [event.text for event in folder_of(context).read_events().events]
    lacks = "does not tell how many steps an epoch has"
    assert sum(lacks in text for text in texts) == len(context.arms)
    folder_of(context).close()
    assert lacks in render(compare_run(folder_of(context)))


def test_a_resumed_pass_trains_in_the_restarts_that_are_missing(
    made: Callable[[str], CellContext],
) -> None:
    """One that an interruption cut off is trained anew under a number of its own."""
    context = made("Learns")
    training(context).measure()
    whole = epochs(context)
    cut = [one for one in whole if one.restart == 0] + [
        one for one in whole if (one.restart, one.epoch) == (1, 1)
    ]
    training(context, prior=cut).measure()
    assert training(context, prior=whole).missing == 0
    later = epochs(context)[len(whole) :]
    assert {one.restart for one in later} == set(range(2, context.design.min_restarts + 1))


def test_an_arm_is_given_up_once_it_has_failed_as_often_as_it_is_launched() -> None:
    """A worker that merely died is launched once more; what a workload raises ends its arm."""
    failures: list[tuple[str, Phase]] = [
        ("a", "process"),
        ("b", "process"),
        ("b", "process"),
        ("c", "step"),
    ]
    events = [
        event_now("arm-failed", arm=arm, failure=Failure(phase=phase, brief="it failed"))
        for arm, phase in failures
    ]
    assert failed_for_good(events) == {"b", "c"}


def test_arms_with_other_parameters_are_not_expected_to_agree(
    made: Callable[[str], CellContext],
) -> None:
    """Neither is the control counted: it says nothing of another environment."""
    context = made("OtherInControl")
    training(context).measure()
    folder_of(context).close()
    run = compare_run(folder_of(context))
    assert (run.views.training[0].same_values, run.views.training[0].other_values) == (12, 0)
    record = folder_of(context).read_run()
    vm, docker, control = record.arms
    other = changed(record, arms=(vm, changed(docker, parameters={"lr": 1}), control))
    again = RunFolder.create(folder_of(context).path.parent / "other", other)
    for one in epochs(context):
        again.append_sample(changed(one, value=(one.value or 0) + (one.arm == "docker")))
    again.close()
    run = compare_run(again)
    assert (run.views.training[0].same_values, run.views.training[0].other_values) == (0, 0)
    page = render(run)
    assert "their arithmetic differs" not in page
    assert "equal seeds but other parameters" in page


def experiment(**flags: Any) -> Experiment:
    """Resolve these flags over the defaults, with the bundled workloads."""
    bundled = known()
    return resolve(
        Settings(**{"envs": "vm", **flags}),
        Settings(),
        known=type(bundled)(environments=bundled.environments, workloads=catalogue()),
    )


def test_a_goal_is_part_of_the_design() -> None:
    """So that a run is resumed with the same one."""
    found = experiment(workloads="cnn,rnn", until="accuracy=0.95")
    goal = Goal(metric="accuracy", value=0.95, epochs=EPOCHS)
    assert make_plan(found, ("local",), accept_many=False).design.until == goal


@pytest.mark.parametrize(
    "text",
    ["accuracy", "accuracy=", "=0.9", "accuracy=high", "accuracy=0.9,epochs=0", "accuracy=nan",
     "accuracy=0.9,steps=3", "accuracy=1e999", ""],
)  # fmt: skip
def test_another_form_of_a_goal_is_refused(text: str) -> None:
    """With the form that is understood."""
    with pytest.raises(ConfigError, match="is not understood"):
        parse_until(text)


def test_a_workload_without_the_metric_is_refused() -> None:
    """With the workloads that have it."""
    with pytest.raises(ConfigError, match="mlp does not report `accuracy`") as refused:
        experiment(workloads="cnn,mlp", until="accuracy=0.95")
    assert "cnn, rnn" in refused.value.details
    with pytest.raises(ConfigError, match="cnn does not report `loss`"):
        experiment(workloads="cnn", until="loss=0.1")
