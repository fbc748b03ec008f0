"""Hosts with names, groups and tags in the configuration file, and how `--hosts` chooses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from envcompare.cli.planning import plan_lines, planned
from envcompare.config.settings import Settings, parse_settings, settings_toml
from envcompare.errors import ConfigError
from envcompare.text import parse_toml

_FILE = """
envs = "vm,docker"

[hosts.gpu01]
address = "me@10.0.0.1:2222"
tags = ["a100", "eu"]

[hosts.gpu02]
tags = ["a100"]

[hosts.gpu03]
tags = ["eu"]

[groups]
nightly = ["gpu03", "tag:a100"]
"""


def labels(hosts: str | None, *, file: str = _FILE) -> list[str]:
    """Return the names of the hosts that take part."""
    settings = parse_settings(parse_toml(file), source="test")
    return [host.label for host in planned(Settings(hosts=hosts), settings, accept_many=True)[2]]


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (None, ["gpu01", "gpu02", "gpu03"]),
        ("gpu02", ["gpu02"]),
        ("@nightly", ["gpu03", "gpu01", "gpu02"]),
        ("tag:a100", ["gpu01", "gpu02"]),
        ("tag:eu,you@box:22,tag:a100", ["gpu01", "gpu03", "box", "gpu02"]),
        ("@nightly,gpu01", ["gpu03", "gpu01", "gpu02"]),
    ],
)
def test_hosts_are_chosen_by_name_group_and_tag(named: str | None, expected: list[str]) -> None:
    """All hosts of the file take part unless some are named; those named by two groups once."""
    assert labels(named) == expected


def test_allocation_takes_the_place_of_the_hosts_of_the_file() -> None:
    """A flag wins over the file, whose table only gives names to hosts."""
    file = parse_settings(parse_toml(_FILE), source="test")
    flags = Settings(envs="vm", allocation="slurm:time=10:00:00,nodes=2")
    hosts = planned(flags, file, accept_many=True)[2]
    assert [host.label for host in hosts] == ["slurm-1", "slurm-2"]


def test_file_of_hosts_may_name_groups_and_tags(tmp_path: Path) -> None:
    """A line of a file means what it means on the command line."""
    path = tmp_path / "hosts"
    path.write_text("tag:eu  # both\nbox\n")
    assert labels(str(path)) == ["gpu01", "gpu03", "box"]


@pytest.mark.parametrize(
    ("named", "brief", "hint"),
    [
        ("@nightyl", "there is no group 'nightyl'", "did you mean 'nightly'?"),
        ("tag:a10", "there is no tag 'a10'", "did you mean 'a100'?"),
        ("tag:zzzz", "there is no tag 'zzzz'", "write it into the configuration file"),
    ],
)
def test_unknown_group_or_tag_is_an_error_with_a_suggestion(
    named: str, brief: str, hint: str
) -> None:
    """A slip in a name selects no other hosts."""
    with pytest.raises(ConfigError, match=brief) as caught:
        labels(named)
    assert hint in (caught.value.hint or "")


def test_host_named_twice_by_itself_is_an_error() -> None:
    """By its name and by its address it is the same host."""
    with pytest.raises(ConfigError, match="named twice"):
        labels("gpu01,me@10.0.0.1:2222")


def test_group_without_hosts_is_an_error() -> None:
    """An empty group would measure nothing."""
    with pytest.raises(ConfigError, match="has no hosts"):
        labels("@none", file="[groups]\nnone = []")


def test_group_in_a_group_is_an_error_that_says_what_a_group_contains() -> None:
    """Its name would otherwise be taken for that of a host."""
    with pytest.raises(ConfigError, match="the group 'all' contains the group '@some'") as caught:
        labels("@all", file='[groups]\nsome = ["gpu01"]\nall = ["@some"]')
    assert "tag:NAME" in (caught.value.hint or "")


def test_unknown_key_of_a_host_names_the_known_ones() -> None:
    """The error lists the keys of a host, not those of the whole file."""
    with pytest.raises(ConfigError, match=r"hosts.*tag`") as caught:
        labels(None, file='[hosts.gpu01]\ntag = "x"')
    assert "tags" in (caught.value.hint or "")


def test_settings_of_a_run_keep_names_and_tags_of_its_hosts() -> None:
    """A resumed run has the same hosts, whatever the file says by then."""
    file = parse_settings(parse_toml(_FILE), source="test")
    experiment, plan, hosts = planned(Settings(hosts="@nightly,box"), file, accept_many=True)
    kept = parse_settings(parse_toml(settings_toml(experiment.settings)), source="run.json")
    again, same, resumed = planned(kept, Settings(), accept_many=True)
    assert same.cells == plan.cells
    assert [(host.label, str(host)) for host in resumed] == [
        (host.label, str(host)) for host in hosts
    ]
    assert again.settings.hosts == experiment.settings.hosts


def test_plan_shows_address_and_tags_of_each_host() -> None:
    """Before a run it is seen what a group stands for."""
    file = parse_settings(parse_toml(_FILE), source="test")
    experiment, plan, _ = planned(Settings(hosts="@nightly", jobs=2), file, accept_many=True)
    lines = plan_lines(experiment, plan)
    at = lines.index("hosts: 3, 2 at once")
    assert lines[at + 1 : at + 4] == (
        "  gpu03: gpu03 (eu)",
        "  gpu01: me@10.0.0.1:2222 (a100, eu)",
        "  gpu02: gpu02 (a100)",
    )
