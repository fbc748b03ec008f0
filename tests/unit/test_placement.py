"""Where data lie in each arm: how it is asked for, planned, and given to an environment."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from experiments import known

from envcompare.cli.planning import plan_lines
from envcompare.config import PLACES, Arm, Place, parse_places
from envcompare.config.experiment import Experiment, resolve
from envcompare.config.plan import make_plan
from envcompare.config.settings import Settings, settings_toml
from envcompare.config.workloads import (
    Known,
    Workload,
    catalogue,
    info_of,
    writes_into_data,
)
from envcompare.environments import HoldsData, Isolation
from envcompare.environments.registry import ENVIRONMENTS, all_traits, environment
from envcompare.errors import ConfigError, StackError, StillRunningError
from envcompare.run_folder.records import Event, Failure
from envcompare.runner.cellrun import sharing
from envcompare.runner.walk import _exit_code
from envcompare.text import Command, parse_toml
from envcompare.transport import LOCAL

WORKER = Command(argv=("/venv/bin/python", "/w/worker.py"))
ISOLATION = Isolation(
    run_id="20260101-000000-abcd", arm="new", worker="0f", reference="sha256:0123",
    uid=1000, gid=1001, scratch="/home/ann/scratch",
)  # fmt: skip


def planned(**flags: Any) -> tuple[Experiment, tuple[str, ...]]:
    """Return an experiment with small files, and the lines of its plan."""
    names = Known(environments=all_traits(), workloads={"files": catalogue()["files"]})
    experiment = resolve(Settings(workloads="files", **flags), Settings(), known=names)
    plan = make_plan(experiment, ("local",), accept_many=False)
    return experiment, plan_lines(experiment, plan)


def test_each_place_of_the_data_is_a_cell_with_the_place_in_its_name() -> None:
    """The workload itself is given no parameter for it."""
    given = {"files": {"pattern": ("read", "stat")}}
    experiment, _ = planned(envs="vm,docker", place="data=bind,tmpfs", set=given)
    cells = make_plan(experiment, ("local",), accept_many=False).cells
    assert [cell.id for cell in cells] == [
        f"local/files/pattern={pattern},place.data={place}"
        for pattern in ("read", "stat")
        for place in ("bind", "tmpfs")
    ]
    assert [cell.place for cell in cells] == ["bind", "tmpfs"] * 2
    assert [dict(cell.parameters) for cell in cells[::2]] == [
        {"pattern": "read"}, {"pattern": "stat"}
    ]  # fmt: skip
    assert cells[1].record().parameters == {"pattern": "read", "place.data": "tmpfs"}


def test_cells_with_data_at_different_places_share_no_launch() -> None:
    """A container that has a tmpfs is started with it."""
    experiment, _ = planned(place="data=bind,tmpfs", set={"files": {"files": (5, 6)}})
    groups = sharing(make_plan(experiment, ("local",), accept_many=False).cells)
    assert sorted(len(group) for group in groups) == [2, 2]
    assert all(len({cell.place for cell in group}) == 1 for group in groups)


@pytest.mark.parametrize(
    ("place", "expected"), [("bind", [4]), ("overlay", [4]), ("image", [2, 2]), ("sif", [2, 2])]
)
def test_container_with_data_in_its_image_serves_no_other_workload(
    place: str, expected: list[int]
) -> None:
    """It holds the data of a single one, at a path that is the same for all."""
    settings = Settings(
        workloads="cnn,rnn", place=f"data={place}", set={"cnn": {"a": (1, 2)}, "rnn": {"a": (1, 2)}}
    )
    experiment = resolve(settings, Settings(), known=known(cnn={"a": 1}, rnn={"a": 1}))
    groups = sharing(make_plan(experiment, ("local",), accept_many=False).cells)
    assert [len(group) for group in groups] == expected


def test_what_has_no_such_place_is_not_run_and_the_plan_says_why() -> None:
    """The reference is compared with those that are left."""
    _, lines = planned(envs="vm,docker,singularity,bubblewrap", place="data=sif,overlay")
    told = [line.strip() for line in lines if "not run" in line]
    assert told == [
        "not run: docker: it runs no SIF",
        "not run: bubblewrap: it runs no SIF",
        "not run: bubblewrap: it lays no overlay over the files",
    ]
    first = next(line.split() for line in lines if "launch:" in line)
    assert sorted(first[1:]) == ["singularity", "vm", "vm~control"]


def test_a_place_that_the_plan_left_out_is_no_failure_of_the_run() -> None:
    """All others are."""
    lost = Event(t=0, what="arm-failed", failure=Failure(phase="plan", brief="it runs no SIF"))
    assert _exit_code((lost,)) == 0
    other = msgspec.structs.replace(lost, failure=Failure(phase="environment", brief="full"))
    assert _exit_code((lost, other)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tmpfs", "--place tmpfs is not understood"),
        ("data=", "--place data= is not understood"),
        ("data=tmpsf", "names an unknown place `tmpsf`"),
        ("data=bind,bind", "names a place twice"),
        ("code=bind", "--place code=bind is not understood"),
    ],
)
def test_a_place_that_is_none_is_refused(text: str, message: str) -> None:
    """With the form, or the likeliest name."""
    with pytest.raises(ConfigError, match=message):
        parse_places(text)


def test_a_command_has_no_place_for_data(tmp_path: Path) -> None:
    """Nothing tells it where they lie."""
    content = {
        "workloads": {"own": {"command": "true", "cwd": str(tmp_path)}},
        "place": "data=bind",
    }
    settings = msgspec.convert(content, Settings)
    with pytest.raises(ConfigError, match="--place is not for plain commands"):
        resolve(settings, Settings(), known=known(cnn={}))


def test_a_workload_that_loads_no_data_has_no_place_for_them() -> None:
    """Its cells would all be the same; which do is read from their source."""
    names = Known(environments=all_traits(), workloads=catalogue())
    loading = {name for name, info in names.workloads.items() if info.loads_data}
    assert loading == {"cnn", "files", "loader", "rnn"}
    settings = Settings(workloads="files,vgg16", place="data=bind,tmpfs")
    with pytest.raises(ConfigError, match="--place: vgg16 loads no data"):
        resolve(settings, Settings(), known=names)


@pytest.mark.parametrize("place", ["data=image,bind", "data=sif"])
@pytest.mark.parametrize("compare", [None, "parameter=pattern"])
def test_nothing_is_planned_that_writes_to_an_image(place: str, compare: str | None) -> None:
    """What is written to the scratch folder is not written to the place."""
    values = {"pattern": ("read", "write")}
    one = "vm" if compare else "vm,singularity"
    with pytest.raises(ConfigError, match="cannot write into an image or a SIF"):
        planned(envs=one, place=place, compare=compare, set={"files": values})
    planned(envs=one, place=place, compare=compare, set={"files": {**values, "place": "scratch"}})
    planned(envs=one, place="data=tmpfs", compare=compare, set={"files": values})


OWN = """
class Mine:
    PARAMS = {{"pattern": "write"}}
    WRITES_BESIDE_DATA = {declared}
"""


@pytest.mark.parametrize(
    ("declared", "writing"),
    [
        ('{"pattern": ("write",)}', "pattern=write"),
        ('{"pattern": ["append", "write"]}', "pattern=write"),
        ('{"pattern": ("w", "e")}', ""),
        ('{"pattern": ("write")}', ""),  # a text, not a tuple
        ('{"pattern": 1}', ""),
        ('{"pattern": ([],)}', ""),
        ('("pattern",)', ""),
        ("True", ""),
        ("None", ""),
    ],
)
def test_an_own_class_says_with_which_values_it_writes(
    tmp_path: Path, declared: str, writing: str
) -> None:
    """As with the other names, what is no tuple or list of values there is nothing."""
    path = tmp_path / "own.py"
    path.write_text(OWN.format(declared=declared))
    own = Workload(name="own-Mine", path=path, class_name="Mine")
    assert writes_into_data(info_of(own, known()), {}) == writing


def test_the_place_stands_in_the_configuration_of_a_run() -> None:
    """By which it is resumed."""
    experiment, _ = planned(place="data=bind,tmpfs")
    assert parse_toml(settings_toml(experiment.settings))["place"] == "data=bind,tmpfs"
    assert experiment.places == ("bind", "tmpfs")


@pytest.mark.parametrize("name", sorted(set(ENVIRONMENTS) - {"vm"}))
@pytest.mark.parametrize("place", PLACES)
def test_each_environment_has_a_place_or_says_why_not(name: str, place: Place) -> None:
    """What its image holds it can be asked to put there."""
    placing = all_traits()[name].placing(place)
    if place == "bind":
        assert placing.folder == placing.refusal == ""
    else:
        assert bool(placing.folder) != bool(placing.refusal)
    assert not placing.is_held or isinstance(environment(name), HoldsData)


def test_a_made_up_environment_has_the_folders_of_the_host_alone() -> None:
    """Its author need not know of places."""
    traits = Arm(id="nice", environment="nice").traits
    assert not traits.placing("bind").refusal
    assert traits.placing("tmpfs").refusal == "it has no place `tmpfs`"


@pytest.mark.parametrize("name", ["docker", "podman", "gvisor"])
def test_a_container_gets_a_tmpfs_for_the_data_and_only_then(name: str) -> None:
    """It is mounted above the folder that the worker copies the data to."""
    argv = environment(name).wrap(WORKER, replace(ISOLATION, place="tmpfs")).argv
    mounted = "type=tmpfs,destination=/envcompare-data,tmpfs-mode=1777"
    assert argv[argv.index(mounted) - 1] == "--mount"
    assert all_traits()[name].placing("tmpfs").folder.startswith("/envcompare-data/")
    assert mounted not in environment(name).wrap(WORKER, ISOLATION).argv


def test_the_layer_of_a_container_can_be_written_to_where_the_data_lie_in_it() -> None:
    """Also in passes that are not timed: /var/tmp would be a tmpfs there."""
    argv = environment("docker").wrap(WORKER, replace(ISOLATION, place="overlay")).argv
    assert "--read-only" not in argv
    assert "--read-only" in environment("docker").wrap(WORKER, ISOLATION).argv


def test_singularity_keeps_what_is_written_on_the_disk_of_the_host() -> None:
    """As the engines with layers do; its own tmpfs has 64 MB."""
    argv = environment("singularity").wrap(WORKER, replace(ISOLATION, place="overlay")).argv
    assert argv[argv.index("--overlay") + 1] == "/home/ann/scratch/upper"
    assert "--overlay" not in environment("singularity").wrap(WORKER, ISOLATION).argv


def test_the_tmpfs_of_a_plain_process_goes_with_the_run() -> None:
    """Also where what is copied there cannot be written to; a worker's end leaves it."""
    run_id = "20260101-000000-ffff"
    vm = environment("vm")
    folder = Path(all_traits()["vm"].placing("tmpfs").folder.format(run=run_id, arm="vm"))
    (folder / "part").mkdir(parents=True)
    (folder / "part" / "file").touch()
    (folder / "part").chmod(0o500)
    vm.sweep(LOCAL, run_id, worker="0f")
    assert folder.is_dir()
    vm.sweep(LOCAL, run_id)
    assert not folder.parent.exists()


def test_a_folder_of_another_user_is_left_alone_by_the_sweep_of_a_run(tmp_path: Path) -> None:
    """Anyone may put something where the run keeps its data in memory."""
    run_id = "20260101-000000-fffe"
    private = Path(all_traits()["vm"].placing("tmpfs").private.format(run=run_id))
    (tmp_path / "kept").touch()
    private.symlink_to(tmp_path)
    try:
        environment("vm").sweep(LOCAL, run_id)
        assert (tmp_path / "kept").exists()
        assert private.is_symlink()
    finally:
        private.unlink()


def test_an_engine_that_cannot_name_the_images_of_a_run_is_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no containers, and what it holds of the run is not known."""
    client = tmp_path / "docker"
    client.write_text('#!/bin/sh\n[ "$1" = ps ] || { echo no image store >&2; exit 1; }\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(StillRunningError) as caught:
        environment("docker").sweep(LOCAL, "20260101-000000-ffff")
    assert "no image store" in caught.value.details


def test_podman_puts_no_pattern_into_an_image() -> None:
    """It would take what the pattern matches."""
    podman = environment("podman")
    assert isinstance(podman, HoldsData)
    with pytest.raises(StackError, match=r"podman cannot put /data/\[a\] into an image"):
        podman.hold(LOCAL, ISOLATION, "/data/[a]", compression="zstd")
