"""The plan: arms, cells and orders follow from the experiment and the seed alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiments import known
from hypothesis import given
from hypothesis import strategies as st

from envcompare.cli.planning import PROFILES, plan_lines
from envcompare.config import parse_arms
from envcompare.config.experiment import Experiment, resolve
from envcompare.config.plan import make_plan
from envcompare.config.settings import DEFAULTS, Settings, WorkloadTable
from envcompare.environments.registry import all_traits
from envcompare.errors import ConfigError
from envcompare.measure import derive_seed, shuffled

KNOWN = known(
    cnn={"batch": 64, "lr": 1.0, "compile": False}, rnn={"hidden": 40, "optimizer": "sgd"}
)


def experiment(**flags: Any) -> Experiment:
    """Resolve these flags over the defaults."""
    return resolve(Settings(**flags), Settings(), known=KNOWN)


def test_default_experiment_compares_three_environments_on_two_workloads() -> None:
    """The bare command is the main job."""
    plan = make_plan(experiment(), ("local",), accept_many=False)
    assert [arm.id for arm in plan.arms] == ["vm", "docker", "singularity", "vm~control"]
    assert [cell.id for cell in plan.cells] == ["local/cnn/default", "local/rnn/default"]
    assert (plan.reference, plan.comparisons) == ("vm", 4)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("vm", ("vm", "vm", "image", "")),
        ("vm@host", ("vm-host", "vm", "host", "")),
        ("apptainer@host", ("singularity-host", "singularity", "host", "")),
        ("apptainer", ("singularity", "singularity", "image", "")),
        ("new=docker:app:2", ("new", "docker", "image", "app:2")),
        ("old=docker:app@sha256:ab", ("old", "docker", "image", "app@sha256:ab")),
        ("sif=singularity:/data/x.sif", ("sif", "singularity", "image", "/data/x.sif")),
    ],
)
def test_arm_is_read_in_each_of_its_forms(item: str, expected: tuple[str, ...]) -> None:
    """ENV, ENV@STACK and NAME=ENV:REFERENCE."""
    (arm,) = parse_arms((item,), all_traits())
    assert (arm.id, arm.environment, arm.stack, arm.reference) == expected


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (("dokcer",), "unknown environment `dokcer`"),
        (("vm@hots",), "unknown stack `hots`"),
        (("x=docker@host:app:2",), "the stack host takes no image"),
        (("docker:app:2",), "names an image but no arm"),
        (("x=vm:app",), "app is no absolute path"),
        (("docker:",), "names no image"),
        (("Bad=docker:x",), "is not usable"),
        (("vm", "vm"), "named twice"),
        ((), "no environment"),
    ],
)
def test_wrong_arm_is_named_with_its_remedy(items: tuple[str, ...], message: str) -> None:
    """Each mistake in --envs has its own sentence and a hint."""
    with pytest.raises(ConfigError, match=message) as caught:
        parse_arms(items, all_traits())
    assert caught.value.hint


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"reference": "dcoker"}, "is not an arm"),
        ({"workloads": "cnnn"}, "unknown workload `cnnn`"),
        ({"set": {"rnn": {"hiden": 3}}}, "no parameter `hiden`"),
        ({"set": {"rnn": {"hidden": "many"}}}, "wrong type"),
        ({"set": {"rnn": {"hidden": True}}}, "wrong type"),
        ({"workloads": "cnn", "set": {"rnn": {"hidden": 3}}}, "which does not run"),
        ({"margin": 0.0}, "margin"),
        ({"target": -1.0}, "target"),
        ({"hosts": ",,"}, "names no host"),
        ({"pin": "0-"}, "is not a CPU list"),
        ({"restarts": 0, "rounds": 5}, "--restarts 0 is out of range"),
        ({"workloads": {"a": WorkloadTable(command="true")}, "restarts": 3}, "not for plain"),
        ({"workloads": "rnn", "set": {"rnn": {"hidden": (64, 64)}}}, "the same value twice"),
        ({"workloads": "rnn", "set": {"rnn": {"hidden": ()}}}, "has no value"),
        ({"download": True, "workload": "x.py:Net"}, "only for bundled workloads"),
        ({"python": "2.7"}, "not a minor version"),
        ({"workload": "nowhere.py:Net"}, "cannot be read"),
        ({"workload": "nowhere.py"}, "not understood"),
    ],
)
def test_impossible_experiment_is_refused_before_anything_starts(
    flags: dict[str, Any], message: str
) -> None:
    """The error says what and how to mend it, with exit code 2."""
    with pytest.raises(ConfigError, match=message) as caught:
        experiment(**flags)
    assert caught.value.exit_code == 2


ALLOCATION = "slurm:time=01:00:00,nodes=2"


PAIRS = [
    ({"variant": "cpu", "device": "cuda"}, "--variant cpu and --device cuda"),
    ({"rendezvous": "a", "search": "batch"}, "--rendezvous and --search"),
    ({"rendezvous": "a", "place": "data=tmpfs"}, "--rendezvous and --place"),
    ({"rendezvous": "a", "allocation": ALLOCATION}, "--rendezvous and --allocation"),
    ({"hosts": "gpu01", "allocation": ALLOCATION}, "--hosts and --allocation"),
    ({"search": "batch", "place": "data=bind"}, "--search and --place"),
    ({"cold_start": True, "startup": False}, "--cold-start and --no-startup"),
    ({"data": "/d", "download": True}, "--data and --download"),
]


@pytest.mark.parametrize(("flags", "options"), PAIRS)
def test_options_that_exclude_each_other_are_refused(flags: dict[str, Any], options: str) -> None:
    """One of the two would silently not hold."""
    with pytest.raises(ConfigError, match=f"{options} exclude each other") as caught:
        experiment(**flags)
    assert caught.value.hint


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("pair", [pair for pair, _ in PAIRS])
def test_flag_wins_over_what_excludes_it_in_the_file(
    pair: dict[str, Any], *, is_turned: bool
) -> None:
    """As over another value of the same setting; the rest of the file stays."""
    given, other = sorted(pair.items(), reverse=is_turned)
    work = {"envs": "vm", "workloads": "ddp", "title": "mine"}
    file = Settings(**{**work, other[0]: other[1]})
    able = known(ddp={"batch": 64})
    able = replace(able, workloads={"ddp": replace(able.workloads["ddp"], loads_data=True)})
    settings = resolve(Settings(**dict([given])), file, known=able).settings
    assert getattr(settings, given[0]) == given[1]
    assert getattr(settings, other[0]) in {None, getattr(DEFAULTS, other[0])}
    assert settings.title == "mine"


def test_flag_keeps_a_value_of_the_file_that_it_does_not_exclude() -> None:
    """`--device cuda` only excludes a build without CUDA."""
    file = Settings(envs="vm", variant="cu126")
    assert resolve(Settings(device="cuda"), file, known=KNOWN).settings.variant == "cu126"


def test_flag_of_own_workload_leaves_out_what_the_file_sets_for_others(tmp_path: Path) -> None:
    """Those do not run; values of a name that nothing has are a slip all the same."""
    for name in ("old", "new"):
        (tmp_path / f"{name}.py").write_text("class Net:\n    PARAMS = {'lr': 1.0}\n")
    values = {"cnn": {"lr": 0.5}, "old-Net": {"lr": 2.0}, "new-Net": {"lr": 3.0}}
    file = Settings(envs="vm", workload=(f"{tmp_path}/old.py:Net",), set=values)
    flags = Settings(workload=(f"{tmp_path}/new.py:Net",))
    (workload,) = resolve(flags, file, known=KNOWN).workloads
    assert (workload.name, workload.parameters) == ("new-Net", (("lr", (3.0,)),))
    with_cnn = Settings(envs="vm", workloads="cnn", set={"cnn": {"lr": 0.5}})
    first, _ = resolve(flags, with_cnn, known=KNOWN).workloads
    assert (first.name, first.parameters) == ("cnn", (("lr", (0.5,)),))
    with pytest.raises(ConfigError, match="`cmn`, which does not run"):
        resolve(flags, Settings(envs="vm", set={"cmn": {"lr": 0.5}}), known=KNOWN)


@pytest.mark.parametrize("name", ["out", "data", "ssh_config", "vm_python", "host_python"])
def test_empty_path_is_refused(name: str) -> None:
    """It would silently mean the default."""
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} names no path"):
        experiment(**{name: ""})


def test_own_workload_takes_the_place_of_the_bundled_ones(tmp_path: Path) -> None:
    """A file of the user's is a workload named after file and class, which must be in it."""
    path = tmp_path / "train.py"
    path.write_text("class Net:\n    pass\n")
    (workload,) = experiment(workload=(f"{path}:Net",)).workloads
    assert (workload.name, workload.path, workload.class_name) == ("train-Net", path, "Net")
    with pytest.raises(ConfigError, match="no class Nett") as caught:
        experiment(workload=(f"{path}:Nett",))
    assert "Net" in caught.value.hint


def test_two_own_workloads_of_one_name_are_refused(tmp_path: Path) -> None:
    """Their cells could not be told apart."""
    items = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text("class Net:\n    pass\n")
        items.append(f"{tmp_path / folder / 'train.py'}:Net")
    with pytest.raises(ConfigError, match="two workloads are called train-Net"):
        experiment(workload=tuple(items))


def test_several_values_make_a_cell_each_with_sorted_keys() -> None:
    """Lists multiply."""
    flags = {"rnn": {"optimizer": ("sgd", "adam"), "hidden": (64, 128)}}
    plan = make_plan(experiment(workloads="rnn", set=flags), ("a", "b"), accept_many=False)
    assert len(plan.cells) == 8
    assert plan.cells[0].id == "a/rnn/hidden=64,optimizer=sgd"


def test_more_than_200_cells_are_asked_for() -> None:
    """A plan that would take days needs --yes."""
    many = experiment(workloads="cnn", set={"cnn": {"batch": tuple(range(1, 202))}})
    with pytest.raises(ConfigError, match="201 cells"):
        make_plan(many, ("local",), accept_many=False)
    assert len(make_plan(many, ("local",), accept_many=True).cells) == 201


@pytest.mark.parametrize(
    ("preset", "expected"),
    [("quick", (0.05, 0.025, 90)), ("default", (0.02, 0.01, 600)), ("strict", (0.01, 0.005, 1800))],
)
def test_preset_sets_margin_target_and_budget(
    preset: Any, expected: tuple[float, float, float]
) -> None:
    """The numbers are the documented ones; the target is half the margin."""
    made = experiment(preset=preset)
    assert (made.margin, made.target, made.budget_s) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"preset": "quick"}, (0.05, 0.025, 90, None)),
        ({"preset": "strict", "margin": 4.0}, (0.04, 0.02, 1800, None)),
        ({"preset": "quick", "restarts": 3, "rounds": 5}, (0.05, 0.025, 90, 3)),
        ({}, (0.03, 0.01, 300, 8)),
    ],
)
def test_preset_of_the_flags_wins_over_numbers_of_the_file(
    flags: dict[str, Any], expected: tuple[float, float, float, int | None]
) -> None:
    """Numbers of the flags win over it; a preset of the file is changed by the file's numbers."""
    file = Settings(preset="strict", margin=3.0, target=1.0, budget=300.0, restarts=8, rounds=9)
    made = resolve(Settings(**flags), file, known=KNOWN)
    assert (made.margin, made.target, made.budget_s, made.restarts) == expected
    again = resolve(Settings(), made.settings, known=KNOWN)
    assert (again.margin, again.target, again.budget_s, again.restarts) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"preset": "quick"}, 2),
        ({"budget": 119.0}, 2),
        ({"budget": 120.0}, 4),
        ({"preset": "default"}, 4),
        ({"preset": "quick", "budget": 600.0}, 4),
        ({"preset": "strict"}, 6),
        ({"preset": "strict", "budget": 60.0}, 6),
    ],
)
def test_least_number_of_restarts_follows_the_budget(flags: dict[str, Any], expected: int) -> None:
    """A budget below two minutes holds few launches; strict asks for six whatever it is."""
    assert make_plan(experiment(**flags), ("local",), accept_many=False).design.min_restarts == (
        expected
    )


@pytest.mark.parametrize(
    ("flags", "least", "is_said"),
    [
        ({"preset": "quick"}, 4, True),
        ({"preset": "quick", "device": "cpu"}, 4, False),
        ({"preset": "strict"}, 6, False),
        ({"preset": "quick", "restarts": 2, "rounds": 9}, 2, False),
    ],
)
def test_cell_on_a_gpu_has_four_restarts_at_least(
    *, flags: dict[str, Any], least: int, is_said: bool
) -> None:
    """Intervals of two cover too rarely there, which the plan says; `--restarts` is obeyed."""
    made = experiment(**flags)
    plan = make_plan(made, ("local",), accept_many=False)
    assert plan.design.on_gpu().min_restarts == least
    assert any("on a GPU at least 4" in line for line in plan_lines(made, plan)) == is_said


def test_many_comparisons_ask_for_no_more_restarts() -> None:
    """The arms of a cell tell together how far restarts scatter."""
    one = make_plan(experiment(envs="vm,docker", workloads="cnn"), ("local",), accept_many=False)
    four = make_plan(experiment(), ("local",), accept_many=False)
    assert (one.comparisons, four.comparisons) == (1, 4)
    assert one.design.min_restarts == four.design.min_restarts


def test_seed_is_drawn_and_kept_when_none_is_given() -> None:
    """A run can be repeated from what it stored."""
    made = experiment()
    assert made.settings.seed == made.seed


@given(st.integers(0, 2**31), st.text(max_size=20), st.integers(0, 100))
def test_derived_seed_depends_on_its_parts_alone(seed: int, cell: str, restart: int) -> None:
    """A resumed run draws what the whole run would have drawn."""
    once = derive_seed(seed, "launch", cell, restart)
    assert once == derive_seed(seed, "launch", cell, restart)
    assert 0 <= once < 2**63
    assert once != derive_seed(seed, "launch", cell, restart + 1)


@given(st.integers(0, 2**63))
def test_shuffled_keeps_every_arm(seed: int) -> None:
    """An order is a permutation."""
    assert sorted(shuffled(("a", "b", "c"), seed)) == ["a", "b", "c"]


def test_orders_are_balanced_over_many_seeds() -> None:
    """No arm stands first more often than chance allows."""
    firsts = [shuffled(("a", "b"), derive_seed(1, "round", n))[0] for n in range(1000)]
    assert 420 < firsts.count("a") < 580


@pytest.mark.parametrize(("asked", "expected"), [(None, "auto"), ("trace", "trace")])
def test_profiles_are_a_part_of_the_design_and_said(asked: Any, expected: str) -> None:
    """All that is possible is looked into unless something else is asked for."""
    made = experiment(profile=asked)
    plan = make_plan(made, ("gpu01",), accept_many=False)
    assert plan.design.profile == expected
    lines = plan_lines(made, plan)
    assert f"profiles: {PROFILES[plan.design.profile]}" in lines
    assert f'  profile = "{expected}"' in lines


@pytest.mark.parametrize("compare", [None, "parameter=compile"])
def test_plan_says_what_a_compiled_model_needs(compare: str | None) -> None:
    """As a cell or as an arm; of models that are not compiled nothing is said."""
    said = {}
    for values in ((False, True), (False,)):
        chosen = {"envs": "vm", "workloads": "cnn", "set": {"cnn": {"compile": values}}}
        made = experiment(**chosen, compare=compare if len(values) > 1 else None)
        lines = plan_lines(made, make_plan(made, ("local",), accept_many=False))
        said[values] = [line for line in lines if line.startswith("compiled models: g++")]
    assert (len(said[False, True]), said[False,]) == (1, [])
