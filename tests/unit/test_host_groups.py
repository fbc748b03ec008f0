"""Groups of hosts against each other: how they are named, compared and told."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from builders import blocks, run_record
from msgspec.structs import replace

from envcompare.analysis.compare import compare_run
from envcompare.analysis.frames import comparison_frame
from envcompare.analysis.model import GroupEstimate, RunComparison
from envcompare.cli.planning import plan_lines, planned
from envcompare.config.settings import Settings, parse_settings, settings_toml
from envcompare.errors import ConfigError
from envcompare.report import Table, markdown, plain
from envcompare.report.exports import csv_text
from envcompare.report.page import render
from envcompare.report.sections.environments import groups_section
from envcompare.report.summary import summary
from envcompare.report.wording.causewords import basis_texts, difference_texts
from envcompare.run_folder.records import (
    CellRecord,
    Event,
    Failure,
    FingerprintRecord,
    FingerprintValue,
    HostGroup,
    Scalar,
    event_now,
)
from envcompare.run_folder.results import RunFolder
from envcompare.stats.acrosscells import between_groups
from envcompare.text import parse_toml
from envcompare.transport.hosts import Inventory, KnownHost, host_groups, parse_hosts
from tests.data.report.builders import changed

ARMS = ("vm", "docker", "vm~control")
Facts = dict[str, dict[str, FingerprintValue]]
FACTS = {"torch.version": "2.13.0", "cpu.model": "EPYC", "kernel.release": "6.1", "arch": "x86_64"}


def cells_of(hosts: Iterable[str]) -> tuple[CellRecord, ...]:
    """Return a cell on each host."""
    return tuple(CellRecord(id=f"{host}/cnn/default", host=host, workload="cnn") for host in hosts)


def measured(
    path: Path,
    groups: dict[str, dict[str, tuple[float, float]]],
    *,
    facts: Facts | None = None,
    restarts: dict[str, int] | None = None,
    events: Iterable[Event] = (),
    throttled: str = "",
    unknown: str = "",
) -> RunComparison:
    """Analyse a run: by group and host the factor of all times, and what docker costs there."""
    hosts = {host: factors for group in groups.values() for host, factors in group.items()}
    named = tuple(HostGroup(name=name, hosts=tuple(each)) for name, each in groups.items())
    folder = RunFolder.create(path, run_record(cells=cells_of(hosts), groups=named))
    for host, (speed, cost) in hosts.items():
        cell = f"{host}/cnn/default"
        for one in blocks(
            {"vm": 1.0, "docker": cost, "vm~control": 1.0}, restarts=(restarts or {}).get(host, 6)
        ):
            wall = tuple(round(speed * step) for step in one.wall_ns)
            stopped_ns = int(1e6) if host == throttled else 0
            wait_ns = None if host == unknown else one.wait_ns
            folder.append_sample(
                replace(one, cell=cell, wall_ns=wall, throttled_ns=stopped_ns, wait_ns=wait_ns)
            )
        for arm in ARMS:
            seen = {**FACTS, **(facts or {}).get(host, {})}
            folder.write_fingerprint(FingerprintRecord(host=host, cell=cell, arm=arm, facts=seen))
    for event in events:
        folder.append_event(event)
    folder.close()
    return compare_run(folder)


def estimate(run: RunComparison, arm: str, against: str = "") -> GroupEstimate:
    """Return what is said of the last group in an arm."""
    return [
        one for one in run.between_hosts.group_estimates if (one.arm, one.against) == (arm, against)
    ][-1]


def ends(found: GroupEstimate) -> tuple[float, float]:
    """Return the ends of an interval."""
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def said(run: RunComparison, words: str) -> str:
    """Return the only sentence on what a comparison of groups rests on that has these words."""
    (text,) = (text for text in basis_texts(run) if words in text)
    return text


TWO = {"metal": {"h1": (1.0, 1.0)}, "cloud": {"h2": (1.2, 1.1)}}
SIX = {
    "metal": {"h1": (1.0, 1.0), "h2": (1.01, 1.01), "h3": (0.99, 1.0)},
    "cloud": {"h4": (1.3, 1.2), "h5": (1.31, 1.21), "h6": (1.29, 1.19)},
}


def test_groups_of_hosts_are_named_in_the_list_of_hosts() -> None:
    """Each host knows its group; the first group is what the others are compared with."""
    hosts = parse_hosts(["metal=h1+me@h2:22,cloud=h3"])
    assert [host.group for host in hosts] == ["metal", "metal", "cloud"]
    assert host_groups(hosts) == (
        HostGroup(name="metal", hosts=("h1", "h2")),
        HostGroup(name="cloud", hosts=("h3",)),
    )
    assert host_groups(parse_hosts(["h1,h2"])) == ()
    assert [str(host) for host in parse_hosts(["a+b"])] == ["a+b"]  # a plus in a name stays


def test_groups_take_tags_lists_and_files(tmp_path: Path) -> None:
    """What stands for several hosts does so within a group too."""
    known = {name: KnownHost(address=name, tags=(tag,)) for name, tag in (("a", "t"), ("b", "t"))}
    inventory = Inventory(hosts=known, groups={"nightly": ("c",)})
    file = tmp_path / "hosts"
    file.write_text("d\ne  # the last\n")
    hosts = parse_hosts([f"one=tag:t+@nightly,two={file}"], inventory)
    assert {host.label: host.group for host in hosts} == {
        "a": "one", "b": "one", "c": "one", "d": "two", "e": "two",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("hosts", "brief"),
    [
        ("metal=h1,cloud=h1", "host 'h1' is in two groups"),
        ("metal=h1+h1,cloud=h2", "host 'h1' is named twice"),
        ("metal=h1,h2", "h2: in no group, while other hosts are"),
        ("metal=h1+h2", "there is only one group of hosts, metal"),
        ("metal=,cloud=h2", "a host is missing"),
        ("metal=h1+,cloud=h2", "a host is missing"),
        ("=h1,cloud=h2", "no name of a group"),
        ("metal=h1,metal=h2", "the group of hosts metal is named twice"),
        ("metal=h1,Metal=h2", "differ in upper and lower case alone"),
        ("my metal=h1,cloud=h2", "'my metal' cannot be the name of a group"),
        ("metal=h1,cloud=a b", "'a b' is not a host"),
    ],
)
def test_groups_that_cannot_be_compared_are_refused(hosts: str, brief: str) -> None:
    """Each with what to write instead."""
    with pytest.raises(ConfigError) as caught:
        parse_hosts([hosts])
    assert brief in caught.value.brief
    assert caught.value.hint


def test_host_of_two_groups_through_a_tag_is_refused() -> None:
    """Hosts that tags have in common are measured once, and belong to one side."""
    known = {"a": KnownHost(address="a", tags=("x", "y")), "b": KnownHost(address="b", tags=("y",))}
    with pytest.raises(ConfigError, match="'a' is in two groups"):
        parse_hosts(["one=tag:x,two=tag:y"], Inventory(hosts=known))


def test_groups_of_the_file_count_where_hosts_of_two_are_chosen() -> None:
    """A group in the file is no hindrance to a run of one of its hosts beside others."""
    of_groups = {"a": "metal", "b": "metal", "c": "cloud", "d": ""}
    known = {name: KnownHost(address=name, group=group) for name, group in of_groups.items()}

    def groups(hosts: str) -> list[str]:
        return [host.group for host in parse_hosts([hosts], Inventory(hosts=known))]

    assert groups("a,new") == groups("a,d") == groups("a,b") == ["", ""]
    assert groups("a,b,c") == ["metal", "metal", "cloud"]
    with pytest.raises(ConfigError, match="new: in no group, while other hosts are"):
        groups("a,c,new")
    with pytest.raises(ConfigError, match="d: in no group, while other hosts are"):
        groups("metal=a+b,d")


def test_groups_are_kept_by_a_run_and_shown_by_the_plan() -> None:
    """A resumed run has the same; a part of one group alone is compared with nothing."""
    experiment, plan, _ = planned(
        Settings(hosts="metal=h1+h2,cloud=h3"), Settings(), accept_many=True
    )
    at = plan_lines(experiment, plan).index("groups of hosts: 2")
    assert plan_lines(experiment, plan)[at + 1 : at + 3] == (
        "  metal: h1, h2 (the others are compared with it)",
        "  cloud: h3",
    )
    kept = parse_settings(parse_toml(settings_toml(experiment.settings)), source="run.json")
    _, again, _ = planned(kept, Settings(), accept_many=True)
    assert again.groups == plan.groups
    assert again.cells == plan.cells
    _, part, _ = planned(Settings(hosts="h1,h2"), kept, accept_many=True)
    assert part.groups == ()


@pytest.mark.parametrize(
    ("sizes", "taus"),
    [((2, 1), (0.03, 0.03)), ((3, 3), (0.03, 0.0)), ((2, 6), (0.05, 0.01)), ((5, 5), (0.02, 0.02))],
)
def test_the_interval_between_groups_covers(
    sizes: tuple[int, int], taus: tuple[float, float]
) -> None:
    """Where one group scatters more than the other too; a single host scatters as the others do."""
    draws, runs, error = np.random.default_rng(5), 1000, 0.005
    covered = 0
    for _ in range(runs):
        groups = [
            (draws.normal(mean, np.hypot(tau, error), size).tolist(), [error] * size)
            for mean, tau, size in zip((0.0, 0.1), taus, sizes, strict=True)
        ]
        found = between_groups(*groups, level=0.95)
        assert found
        covered += found.low <= 0.1 <= found.high
    assert covered / runs >= 0.93


@pytest.mark.parametrize(("hosts", "tau"), [(3, 0.005), (6, 0.0)])
def test_the_interval_of_one_host_covers_that_host_and_not_its_group(
    hosts: int, tau: float
) -> None:
    """Where its group scatters far more than the other, one host is no word on the group."""
    draws, runs, error = np.random.default_rng(5), 1000, 0.005
    of_host = of_group = 0
    for _ in range(runs):
        single = draws.normal(0.1, 0.05)
        others = draws.normal(0.0, np.hypot(tau, error), hosts).tolist()
        seen = [draws.normal(single, error)]
        found = between_groups((others, [error] * hosts), (seen, [error]), level=0.95)
        assert found
        of_host += found.low <= single <= found.high
        of_group += found.low <= 0.1 <= found.high
    assert of_host / runs >= 0.95
    assert of_group / runs < 0.6


def test_one_host_of_a_group_is_named_instead_of_the_group(tmp_path: Path) -> None:
    """The sentence is about what was measured, on either side of it."""
    run = measured(tmp_path / "run", {"metal": SIX["metal"], "cloud": {"h4": (1.3, 1.2)}})
    assert "cnn in vm: h4 of cloud is 30." in markdown(summary(run))
    assert "docker costs more on h4 of cloud than in metal (" in markdown(summary(run))
    assert said(run, "One host") == (
        "One host of cloud was measured, h4. Its intervals "
        "hold for further hosts of cloud only if those scatter no more than the hosts of the other "
        "group, which is not shown here."
    )
    run = measured(tmp_path / "other", TWO)
    assert "cnn in vm: h2 of cloud is 20." in markdown(summary(run))
    assert "docker costs more on h2 of cloud than on h1 of metal (" in markdown(summary(run))


def test_a_host_in_each_group_is_no_statement_over_hosts() -> None:
    """Nothing tells how hosts of a group differ; nor where a group has none."""
    assert between_groups(([0.0], [0.1]), ([0.1], [0.1]), level=0.95) is None
    assert between_groups(([0.0, 0.1], [0.1] * 2), ([], []), level=0.95) is None


def test_two_machines_are_compared_over_restarts_and_said_to_be_two_machines(
    tmp_path: Path,
) -> None:
    """The interval holds the planted ratio, and the sentence keeps it from being one of groups."""
    run = measured(tmp_path / "run", TWO)
    found = estimate(run, "vm")
    assert (found.group, found.reference_group, found.unit) == ("cloud", "metal", "restart")
    assert found.outcome == "slower"
    low, high = ends(found)
    assert low < math.log(1.2) < high
    assert found.values["h2"] == pytest.approx(0.012, rel=0.01)
    assert found.reference_values["h1"] == pytest.approx(0.010, rel=0.01)
    assert said(run, "restarts") == (
        "One host of each group was measured: each interval comes from restarts of h1 and h2, and "
        "says nothing about other hosts of metal and cloud."
    )


def test_groups_of_several_hosts_are_compared_over_hosts(tmp_path: Path) -> None:
    """The unit is the host: the interval holds what was planted and is wider than one of rounds."""
    run = measured(tmp_path / "run", SIX)
    found = estimate(run, "vm")
    assert (found.unit, found.outcome) == ("host", "slower")
    assert found.log_ratio == pytest.approx(math.log(1.3), abs=0.01)
    low, high = ends(found)
    assert low < math.log(1.3) - 0.01 < math.log(1.3) + 0.01 < high
    assert list(found.values) == ["h4", "h5", "h6"]
    assert not [text for text in basis_texts(run) if "restarts" in text]


def test_a_host_without_an_error_is_left_out_of_its_group(tmp_path: Path) -> None:
    """One restart tells no error, which is no error of 0: the host would outweigh all others."""
    odd = {"h1": (1.0, 1.0), "h2": (1.01, 1.01), "h3": (0.5, 2.0)}
    run = measured(tmp_path / "run", SIX | {"metal": odd}, restarts={"h3": 1})
    for found, planted in (
        (estimate(run, "vm"), math.log(1.3)),
        (estimate(run, "docker", "vm"), math.log(1.2)),
    ):
        assert found.log_ratio == pytest.approx(planted, abs=0.02)
        assert list(found.reference_values) == ["h1", "h2"]
        assert found.left_out == ("h3",)
    assert any("were left out: h3" in text for text in basis_texts(run))


def test_groups_whose_hosts_tell_no_error_have_no_interval(tmp_path: Path) -> None:
    """The means are compared, and nothing is claimed of them."""
    run = measured(tmp_path / "run", SIX, restarts=dict.fromkeys(("h1", "h2", "h3"), 1))
    for found in (estimate(run, "vm"), estimate(run, "docker", "vm")):
        assert (found.outcome, found.low, found.high) == ("inconclusive", None, None)
        assert list(found.reference_values) == ["h1", "h2", "h3"]
    assert estimate(run, "vm").log_ratio == pytest.approx(math.log(1.3), abs=0.02)


def test_costs_on_two_machines_have_the_level_of_the_intervals_of_the_run(tmp_path: Path) -> None:
    """Their ends come from these, which are no intervals of the groups."""
    run = measured(tmp_path / "run", TWO)
    (level,) = {
        comparison.primary.level
        for comparison in run.comparisons
        if comparison.primary and not comparison.is_control
    }
    assert estimate(run, "docker", "vm").level == level != 0.95
    assert estimate(run, "vm").level == 0.975
    assert estimate(measured(tmp_path / "other", SIX), "docker", "vm").level == 0.95


def test_what_an_environment_costs_is_compared_between_groups(tmp_path: Path) -> None:
    """Docker costs nothing on the metal and a fifth in the cloud."""
    run = measured(tmp_path / "run", SIX)
    found = estimate(run, "docker", "vm")
    assert found.outcome == "slower"
    for log_ratio in (found.log_ratio, found.values["h4"]):
        assert log_ratio == pytest.approx(math.log(1.2), abs=0.01)
    told = "docker against vm: docker costs more in cloud than in metal (+"
    assert told in markdown(summary(run))
    hosts = [(one.group, one.hosts) for one in run.between_hosts.estimates]
    assert hosts == [("metal", 3), ("cloud", 3)]


def test_a_group_without_a_measured_host_is_not_compared_with_the_reason(tmp_path: Path) -> None:
    """What is missing is said, and no number stands in its place."""
    run = measured(tmp_path / "run", TWO)
    record = run_record(cells=cells_of(("h1", "h2")), groups=run.between_hosts.groups)
    folder = RunFolder.create(tmp_path / "other", record)
    for one in blocks({"vm": 1.0, "docker": 1.0}):
        folder.append_sample(replace(one, cell="h1/cnn/default"))
    folder.close()
    run = compare_run(folder)
    found, why_not = estimate(run, "docker"), "not measured on any host of cloud"
    assert (found.outcome, found.log_ratio, found.why_not) == ("not-run", None, why_not)
    assert f"not compared: {why_not}" in markdown(summary(run))


def work(host: str, arm: str, **changes: Scalar) -> Event:
    """Return what the worker of an arm says that it does."""
    values: dict[str, Scalar] = {"batch": 8, "device": "cpu", "code": "c0", "data": None, **changes}
    return event_now("note", host=host, cell=f"{host}/cnn/default", arm=arm, values=values)


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({}, ""),
        ({"data": "d1"}, "the data differ"),
        ({"code": "c1"}, "the code differs"),
        ({"device": "cuda"}, "the device differs"),
        ({"batch": 16}, "the batch size differs"),
    ],
)
def test_groups_that_did_other_work_are_not_compared(
    tmp_path: Path, changes: dict[str, Scalar], differs: str
) -> None:
    """A host is checked against none other while it measures: what workers said there is."""
    events = [
        work(host, arm, **(changes if host == "h2" else {}))
        for host in ("h1", "h2")
        for arm in ("vm", "docker")
    ]
    run = measured(tmp_path / "run", TWO, events=events)
    why_not = f"the hosts did other work, since {differs}" if differs else ""
    assert {one.why_not for one in run.between_hosts.group_estimates} == {why_not}
    assert {one.outcome for one in run.between_hosts.group_estimates} == {
        "not-run" if differs else "slower"
    }
    assert (f"not compared: {why_not}" in markdown(summary(run))) == bool(differs)


def test_times_of_an_arm_that_did_other_work_are_no_times_of_its_group(tmp_path: Path) -> None:
    """The host counts with its other arms."""
    failure = Failure(phase="checksum", brief="its first loss differs")
    event = event_now("arm-failed", host="h5", cell="h5/cnn/default", arm="docker", failure=failure)
    run = measured(tmp_path / "run", SIX, events=[event])
    assert list(estimate(run, "docker").values) == ["h4", "h6"]
    assert list(estimate(run, "docker", "vm").values) == ["h4", "h6"]
    assert list(estimate(run, "vm").values) == ["h4", "h5", "h6"]


def test_what_differs_between_the_machines_stands_first(tmp_path: Path) -> None:
    """A property that also differs within a group comes after those that part the groups."""
    facts: Facts = {
        "h2": {"kernel.release": "6.2"},
        "h4": {"cpu.model": "Xeon"},
        "h5": {"cpu.model": "Xeon", "kernel.release": "6.3"},
        "h6": {"cpu.model": "Xeon"},
    }
    run = measured(tmp_path / "run", SIX, facts=facts)
    assert difference_texts(run) == (
        "the processor: EPYC in metal; Xeon in cloud",
        "the kernel: 6.1 on h1 and h3, 6.2 on h2 in metal; 6.1 on h4 and h6, 6.3 on h5 in cloud",
    )
    page = render(run)
    assert page.index('id="groups"') < page.index('id="answer"')
    assert page.index("What differs between the groups") < page.index("Time of the same work")
    lines = markdown(summary(run))
    assert lines.index("the processor: EPYC") < lines.index("cloud is 30.") < lines.index("▶ On")


def test_software_that_differs_between_groups_confounds_them(tmp_path: Path) -> None:
    """The machines are what is compared; another torch is not."""
    facts: Facts = {"h2": {"torch.version": "2.12.0", "cpu.model": "Xeon"}}
    run = measured(tmp_path / "run", TWO, facts=facts)
    assert estimate(run, "vm").is_confounded
    assert "software or a limit differs between the groups" in " ".join(basis_texts(run))
    processors: Facts = {
        "h2": {"torch.cpu_capability": "AVX2", "gpu.name": "L4", "torch.interop_threads": 2},
        "h1": {"torch.cpu_capability": "AVX512", "torch.interop_threads": 32},
    }
    run = measured(tmp_path / "other", TWO, facts=processors)
    assert not estimate(run, "vm").is_confounded
    assert {difference.key for difference in run.between_hosts.group_differences} == {
        "torch.cpu_capability", "gpu.name", "torch.interop_threads",
    }  # fmt: skip
    assert {difference.fact_class for difference in run.between_hosts.group_differences} == {"host"}


@pytest.mark.parametrize("throttled", ["", "h1", "h2"])
def test_a_quota_that_stopped_the_work_confounds_groups(tmp_path: Path, throttled: str) -> None:
    """One that left the work alone is a setting, as it is within a host."""
    quota: Facts = {"h1": {"cgroup.cpu_quota": 8.0}, "h2": {"cgroup.cpu_quota": 4.0}}
    run = measured(tmp_path / "run", TWO, facts=quota, throttled=throttled)
    (found,) = {
        (difference.key, difference.fact_class)
        for difference in run.between_hosts.group_differences
    }
    known = "confounder" if throttled else "possible-influence"
    assert found == ("cgroup.cpu_quota", known)
    assert estimate(run, "vm").is_confounded == bool(throttled)


def test_alike_machines_are_said_to_be_alike(tmp_path: Path) -> None:
    """No empty table."""
    page = render(measured(tmp_path / "run", TWO))
    assert "The machines do not differ in anything that envcompare records." in page


def test_machines_of_which_nothing_is_known_are_not_said_to_be_alike(tmp_path: Path) -> None:
    """No worker answered on the host of one group."""
    run = without_facts(measured(tmp_path / "run", TWO), "h2")
    told = (
        "How the machines of cloud differ from those of metal is not known: in no environment did "
        "a worker answer in both groups."
    )
    for text in (render(run), markdown(summary(run))):
        assert told in text
        assert "do not differ in anything" not in text


def without_facts(run: RunComparison, host: str) -> RunComparison:
    """Return a run in which no worker answered on a host."""
    arms = (replace(arm, facts={}) if arm.host == host else arm for arm in run.arms)
    apart = (one for one in run.between_hosts.group_differences if host not in one.values)
    between = replace(run.between_hosts, group_differences=tuple(apart))
    return replace(run, arms=tuple(arms), between_hosts=between)


def test_a_third_group_is_called_as_the_first_only_where_it_is(tmp_path: Path) -> None:
    """It has its own value if it differs as well, and none where no worker answered."""
    groups = TWO | {"lab": {"h3": (0.9, 1.0)}}
    facts: Facts = {"h2": {"cpu.model": "Xeon"}, "h3": {"cpu.model": "Grace"}}
    run = measured(tmp_path / "run", groups, facts=facts)
    assert cells_of_processor(run) == [["EPYC", "Xeon", "Grace"]] * 2
    assert cells_of_processor(without_facts(run, "h3")) == [["EPYC", "Xeon", "not known"]]
    del facts["h3"]
    run = measured(tmp_path / "alike", groups, facts=facts)
    assert cells_of_processor(run) == [["EPYC", "Xeon", "as the first"]]


def cells_of_processor(run: RunComparison) -> list[list[str]]:
    """Return the values of each group in the rows of the processor."""
    section = groups_section(run)
    assert section is not None
    (table,) = (
        block for block in section.blocks
        if isinstance(block, Table) and block.label == "What differs between the groups"
    )  # fmt: skip
    return [[plain(cell) for cell in row.cells[1:4]] for row in table.rows]


def test_three_groups_are_each_compared_with_the_first(tmp_path: Path) -> None:
    """All statements of a kind share their error."""
    groups = TWO | {"lab": {"h3": (0.9, 1.0)}}
    run = measured(tmp_path / "run", groups)
    times = [one for one in run.between_hosts.group_estimates if not one.against]
    assert [(one.group, one.arm) for one in times] == [
        ("cloud", "vm"), ("cloud", "docker"), ("lab", "vm"), ("lab", "docker"),
    ]  # fmt: skip
    assert {one.level for one in times} == {1 - 0.05 / 4}
    assert "Three groups of machines: metal, cloud and lab" in render(run)


def test_hosts_of_a_third_group_decide_nothing_between_two(tmp_path: Path) -> None:
    """Where they wait for a CPU is not known, so that they are judged on the clock."""
    groups = TWO | {"lab": {"h3": (0.9, 1.0)}}
    known = measured(tmp_path / "known", groups).between_hosts.group_estimates
    unknown = measured(tmp_path / "unknown", groups, unknown="h3").between_hosts.group_estimates
    between = [[one for one in made if one.group == "cloud"] for made in (known, unknown)]
    assert between[0] == between[1]
    assert {one.metric for one in between[0]} == {"net"}


def test_groups_are_rows_of_the_table(tmp_path: Path) -> None:
    """With the groups in columns of their own; no cell and no host."""
    run = measured(tmp_path / "run", TWO)
    frame = comparison_frame(run)
    rows = frame[frame["group"].notna()]
    assert list(rows["estimate_of"]) == ["group-time", "group-time", "group-effect"]
    assert set(rows["group"]) == {"cloud"}
    assert set(rows["reference_group"]) == {"metal"}
    assert rows["host"].isna().all()
    assert rows["ratio"].iloc[0] == pytest.approx(1.2, rel=0.01)
    assert csv_text(run).count("group-time") == 2


def test_a_run_without_groups_has_none_of_it(tmp_path: Path) -> None:
    """No section, no rows."""
    run = changed(measured(tmp_path / "run", TWO), groups=(), group_estimates=())
    assert 'id="groups"' not in render(run)
    assert "groups of machines" not in markdown(summary(run))


def test_what_a_failed_control_gives_by_itself_is_no_difference_of_costs(tmp_path: Path) -> None:
    """The reference differed from itself by 30 % on a host; a fifth is no claim beside that."""
    cells = cells_of(("h1", "h2"))
    groups = (HostGroup(name="metal", hosts=("h1",)), HostGroup(name="cloud", hosts=("h2",)))
    found = {}
    for control in (1.0, 1.3):
        record = run_record(cells=cells, groups=groups)
        folder = RunFolder.create(tmp_path / f"run{control}", record)
        for cell, cost in zip(cells, (1.0, 1.2), strict=True):
            for one in blocks({"vm": 1.0, "docker": cost, "vm~control": control}):
                folder.append_sample(replace(one, cell=cell.id))
        folder.close()
        run = compare_run(folder)
        found[control] = estimate(run, "docker", "vm")
        assert any("control failed on h1 and h2" in t for t in basis_texts(run)) == (control > 1)
    assert (found[1.0].outcome, found[1.0].failed_controls) == ("slower", ())
    assert (found[1.3].outcome, found[1.3].failed_controls) == ("inconclusive", ("h1", "h2"))
