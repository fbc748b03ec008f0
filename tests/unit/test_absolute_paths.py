"""Which paths of a run are made absolute, so that it can be resumed from another folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from envcompare.cli.planning import resolved
from envcompare.config.experiment import Experiment
from envcompare.config.settings import Settings, parse_settings, settings_toml
from envcompare.errors import ConfigError
from envcompare.text import parse_toml


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a SIF, a sandbox, data and a venv."""
    folder = tmp_path / "a, b"
    for name in ("app.sif", "imgs/a.png", "sandbox/bin/sh", "venv/bin/python"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(folder)
    return folder


def again(experiment: Experiment) -> Experiment:
    """Return the experiment as it is read from the settings of its run."""
    text = settings_toml(experiment.settings)
    settings = parse_settings(parse_toml(text), source="run.json")
    return resolved(settings, Settings())[0]


def test_a_run_with_relative_paths_is_resumed_from_another_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arms, data and interpreters are those of the folder in which it began."""
    envs = "vm,sif=singularity:app.sif,box=apptainer:sandbox,app=docker:sandbox"
    begun, _ = resolved(
        Settings(envs=envs, data="imgs", vm_python="venv/bin/python", host_python="python3"),
        Settings(),
    )
    references = ["", f"{place}/app.sif", f"{place}/sandbox", "sandbox"]
    assert [arm.reference for arm in begun.arms] == references
    assert (begun.data, begun.vm_python) == (f"{place}/imgs", f"{place}/venv/bin/python")
    assert begun.host_python == "python3"
    monkeypatch.chdir("/")
    assert again(begun) == begun


def test_compared_values_share_the_absolute_path(place: Path) -> None:
    """An arm of each value comes from one item of --envs."""
    begun, _ = resolved(
        Settings(
            envs="vm,sif=singularity:app.sif",
            workloads="cnn",
            set={"cnn": {"dropout2": (0.1, 0.2)}},
            compare="parameter=dropout2",
        ),
        Settings(),
    )
    assert {arm.reference for arm in begun.arms} == {"", f"{place}/app.sif"}
    assert begun.settings.envs == ("vm", f"sif=singularity:{place}/app.sif")


def test_paths_of_another_host_are_left_as_they_are(place: Path) -> None:
    """They mean the login's home there; a SIF that is here is sent."""
    flags = Settings(
        hosts="me@gpu01",
        envs="vm,sif=singularity:app.sif,box=singularity:sandbox",
        data="/data/imgs",
        vm_python="venv/bin/python",
    )
    begun, _ = resolved(flags, Settings())
    assert [arm.reference for arm in begun.arms] == ["", f"{place}/app.sif", "sandbox"]
    assert (begun.data, begun.vm_python) == ("/data/imgs", "venv/bin/python")


@pytest.mark.parametrize("data", ["imgs", "~/imgs"])
def test_relative_data_of_another_host_are_refused_before_anything_is_built(data: str) -> None:
    """A plain process would read them there, and an engine refuses to mount them."""
    with pytest.raises(ConfigError) as caught:
        resolved(Settings(hosts="local,me@gpu01", data=data), Settings())
    assert caught.value.brief == f"--data {data} is no absolute path"
    assert caught.value.hint == "give the path on the hosts, as in --data /data/imgs"
