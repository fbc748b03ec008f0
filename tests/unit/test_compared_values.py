"""Values of a parameter as arms: what is refused, what is planned, and a whole run of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from experiments import known
from msgspec.structs import replace
from runs import ADDS

from envcompare.analysis.compare import compare_run
from envcompare.cli import app
from envcompare.config.experiment import Experiment, resolve
from envcompare.config.plan import make_plan
from envcompare.config.settings import Settings, WorkloadTable
from envcompare.errors import ConfigError
from envcompare.fingerprint.comparing import compare_fingerprints
from envcompare.fingerprint.evidence import ArmsContext
from envcompare.report.wording.causewords import candidates_text
from envcompare.run_folder.records import ArmRecord, FingerprintRecord
from envcompare.run_folder.results import RunFolder

KNOWN = known(
    cnn={"precision": "fp32", "batch": 64, "lr": 0.1}, rnn={"precision": "fp32", "lr": 0.1}
)
BOTH = {"precision": ("fp32", "bf16"), "lr": (0.1, 0.2)}


def experiment(**flags: Any) -> Experiment:
    """Resolve these flags over the defaults, in one environment unless they say otherwise."""
    return resolve(Settings(**{"envs": "vm", **flags}), Settings(), known=KNOWN)


def test_each_value_is_an_arm_and_no_cell() -> None:
    """The first value is the reference and the control; other parameters still make cells."""
    found = experiment(workloads="cnn", set={"cnn": BOTH}, compare="parameter=precision")
    plan = make_plan(found, ("local",), accept_many=False)
    assert {arm.id: arm.parameters for arm in plan.arms} == {
        "vm-fp32": {"precision": "fp32"},
        "vm-bf16": {"precision": "bf16"},
        "vm-fp32~control": {"precision": "fp32"},
    }
    assert plan.reference == "vm-fp32"
    assert [cell.id for cell in plan.cells] == ["local/cnn/lr=0.1", "local/cnn/lr=0.2"]


def test_a_number_is_named_with_its_parameter() -> None:
    """`vm-0-1` would say nothing; the reference is chosen by that name."""
    values = {"cnn": {"lr": (0.1, 0.2)}}
    chosen = {"compare": "parameter=lr", "reference": "vm-lr-0-2"}
    found = experiment(workloads="cnn", set=values, **chosen)
    assert [arm.id for arm in found.arms] == ["vm-lr-0-1", "vm-lr-0-2"]
    assert found.reference == "vm-lr-0-2"


def test_each_environment_has_cells_for_its_own_values() -> None:
    """Arms of two environments meet in no cell; the reference has the same value in both."""
    found = experiment(
        envs="vm,docker",
        workloads="cnn",
        set={"cnn": {"precision": ("fp32", "bf16", "fp16")}},
        compare="parameter=precision",
        reference="vm-bf16",
    )
    plan = make_plan(found, ("local",), accept_many=False)
    arms = {cell.id: [arm.id for arm in plan.of(cell).arms] for cell in plan.cells}
    assert arms == {
        "local/cnn@vm/default": ["vm-fp32", "vm-bf16", "vm-fp16", "vm-bf16~control"],
        "local/cnn@docker/default": [
            "docker-fp32", "docker-bf16", "docker-fp16", "docker-bf16~control",
        ],
    }  # fmt: skip
    assert [plan.of(cell).reference for cell in plan.cells] == ["vm-bf16", "docker-bf16"]
    assert plan.controls == {
        "vm-bf16~control": "vm-bf16", "docker-bf16~control": "docker-bf16",
    }  # fmt: skip
    assert plan.comparisons == 4


def test_signs_of_numbers_are_words_in_the_names_of_arms() -> None:
    """Numbers that differ in a sign alone have different names."""
    values = {"cnn": {"lr": (0.1, -0.1, 1e-05, 1e20)}}
    found = experiment(workloads="cnn", set=values, compare="parameter=lr")
    assert [arm.id for arm in found.arms] == [
        "vm-lr-0-1", "vm-lr-minus-0-1", "vm-lr-1e-minus-05", "vm-lr-1e-plus-20",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"compare": "precision"}, "is not understood"),
        ({"compare": "environment=vm"}, "is not understood"),
        ({"compare": "parameter=batch"}, "different batches are different work"),
        ({"compare": "parameter=lr", "set": {"cnn": {"lr": 0.1}}}, "nothing to compare"),
        ({"compare": "parameter=hidden"}, "cnn has no parameter `hidden`"),
        ({"compare": "parameter=precision", "workloads": "cnn,rnn"}, "rnn has nothing to compare"),
        (
            {
                "compare": "parameter=precision",
                "workloads": "cnn,rnn",
                "set": {"cnn": BOTH, "rnn": {"precision": ("fp32", "fp16")}},
            },
            "different values of precision",
        ),
        (
            {
                "compare": "parameter=precision",
                "workloads": {"job": WorkloadTable(command="true")},
                "set": {},
            },
            "the command job has no parameters",
        ),
        (
            {"compare": "parameter=precision", "set": {"cnn": {"precision": ("a_b", "a-b")}}},
            "would both be called vm-a-b",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_with_its_remedy(
    flags: dict[str, Any], message: str
) -> None:
    """Each mistake has its own sentence and a hint."""
    with pytest.raises(ConfigError, match=message) as caught:
        experiment(**{"workloads": "cnn", "set": {"cnn": BOTH}, **flags})
    assert caught.value.hint


def test_what_follows_from_a_value_is_no_confounder() -> None:
    """The precision sets TF32, and loads other libraries: no remedy may undo what was asked for."""
    records = [
        FingerprintRecord(host="local", arm=f"vm-{one}", facts={"torch.tf32_matmul": one == "tf32"})
        for one in ("fp32", "tf32")
    ]
    arms = [
        ArmRecord(id=f"vm-{one}", environment="vm", parameters={"precision": one})
        for one in ("fp32", "tf32")
    ]
    alone = [replace(arm, parameters={}) for arm in arms]
    found = [
        compare_fingerprints(records[0], records[1], ArmsContext(arms=(both[0], both[1])))
        for both in (alone, arms)
    ]
    assert [[one.fact_class for one in each] for each in found] == [
        ["confounder"],
        ["possible-influence"],
    ]
    assert not found[1][0].remedy


def class_of_libc(first: ArmRecord, second: ArmRecord) -> str:
    """Return as what it is told that two arms have another libc."""
    records = [
        FingerprintRecord(host="local", arm=arm.id, facts={"libc.version": f"2.{number}"})
        for number, arm in enumerate((first, second))
    ]
    found = compare_fingerprints(records[0], records[1], ArmsContext(arms=(first, second)))
    return next(one.fact_class for one in found if one.key == "libc.version")


@pytest.mark.parametrize(
    "fields", [{"reference": "app:2"}, {"stack": "host"}, {"options": ("--cpus", "1")}]
)
def test_what_follows_from_another_image_of_one_environment_is_no_confounder(
    fields: dict[str, Any],
) -> None:
    """The image is what is compared, as a stack or options are; nothing else is mixed with it."""
    arm = ArmRecord(id="a", environment="docker", reference="app:1")
    other = replace(arm, id="b", **fields)
    assert class_of_libc(arm, other) == "possible-influence"
    assert class_of_libc(arm, replace(other, environment="podman")) == "confounder"
    assert class_of_libc(arm, replace(arm, id="a~control")) == "confounder"


def test_values_are_measured_and_judged_as_environments_are(tmp_path: Path) -> None:
    """Three times the numbers take longer; the control does not, and no loss is held against it."""
    (tmp_path / "adding.py").write_text(ADDS)
    out = tmp_path / "out"
    words = ("--envs", "vm@host", "--host-python", str(Path(sys.executable).resolve()))
    own = ("--workload", f"{tmp_path}/adding.py:Adds", "--set", "adding-Adds.n=100000,300000")
    short = (
        "--restarts",
        "3",
        "--rounds",
        "6",
        "--no-quiet-gate",
        "--profile",
        "none",
        "--out",
        str(out),
    )
    choice = ("--compare", "parameter=n")
    done = CliRunner().invoke(app, ["run", *words, *own, *choice, *short])
    assert done.exit_code == 0, done.output
    (folder,) = out.iterdir()
    found = compare_run(RunFolder.open(folder))
    (judged,) = [comparison for comparison in found.comparisons if not comparison.is_control]
    assert (judged.arm, judged.outcome) == ("vm-host-n-300000", "slower")
    assert not found.course.failures
    told = "The arms differ in n (100000 → 300000), which this run compares. "
    assert candidates_text(found, [judged]).startswith(told)
    assert "their losses are not checked against each other" in done.output
