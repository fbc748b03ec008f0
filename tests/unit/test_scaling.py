"""Several ranks: where they may lie, and what they bring against one rank of each environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from builders import blocks, design, run_record
from msgspec.structs import replace

import envcompare
from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.cli.planning import planned
from envcompare.config.settings import Settings
from envcompare.errors import ConfigError, UnusableError
from envcompare.hosts import HostSession
from envcompare.hosts.folders import CellFolders, HostTeam
from envcompare.measure import Variables
from envcompare.report import markdown
from envcompare.report.page import render
from envcompare.report.sections.scaling import scaling_table
from envcompare.report.summary import summary
from envcompare.run_folder.profiles import Profile, ProfileRecord, Quantity
from envcompare.run_folder.records import ArmRecord, CellRecord, Event, FingerprintRecord
from envcompare.run_folder.results import RunFolder
from envcompare.runner.cellrun import sharing
from envcompare.transport import LOCAL
from envcompare.transport.hosts import parse_hosts
from tests.data.report.builders import changed

_ARMS = ("vm", "docker", "vm~control")


def ranked(
    out: Path, *, counts: tuple[int, ...] = (1, 2), hosts: tuple[str, ...] = (), waited: float = 0.0
) -> Path:
    """Return a run in which a step of two ranks takes 1.25 times as long, 1.6 in docker."""
    cells = tuple(
        CellRecord(
            id=f"local/ddp/ranks={count}", host="local", workload="ddp",
            parameters={"ranks": count}, hosts=hosts,
        )
        for count in counts
    )  # fmt: skip
    folder = RunFolder.create(out, run_record(cells=cells, design=design()))
    folder.append_event(Event(t=1.0, what="run-started"))
    for cell, count in zip(cells, counts, strict=True):
        factors = {"vm": 1.25, "docker": 1.6, "vm~control": 1.25}
        times = {arm: factors[arm] if count > 1 else 1.0 for arm in _ARMS}
        for sample in blocks(times, noise=0.0):
            wait_ns = round(waited * sum(sample.wall_ns))
            folder.append_sample(replace(sample, cell=cell.id, wait_ns=wait_ns, cpu_ns=(0,) * 3))
        values = {"batch": 16 * count, "device": "cpu", "code": "c0de"}
        for arm in _ARMS:
            at = {"host": "local", "cell": cell.id, "arm": arm}
            folder.append_event(Event(t=2.0, what="note", values=values, **at))
            facts = {"network.interfaces": "lo", "shm.bytes": 64 << 20, "cpu.affinity": (0, 1)}
            folder.write_fingerprint(FingerprintRecord(facts=facts, taken="step", **at))
            folder.write_profile(exchanged(cell.id, arm))
    folder.append_event(Event(t=5.0, what="run-ended"))
    folder.close()
    return folder.path


def exchanged(cell: str, arm: str) -> ProfileRecord:
    """Return a profile of two steps with 8 ms of collectives, 6 ms of them exposed."""
    told = (
        ("collective_ns", 8e6, "ns", "union"),
        ("collective_exposed_ns", 6e6, "ns", "difference"),
        ("collective_step_share", 40.0, "%", "ratio of sums"),
        ("collective_exposed_step_share", 30.0, "%", "ratio of sums"),
    )
    quantities = tuple(
        Quantity(name=name, value=value, unit=unit, rule=rule, source="torch.profiler")
        for name, value, unit, rule in told
    )
    profile = Profile(tool="torch", quantities=quantities, steps=2)
    return ProfileRecord(
        host="local", cell=cell, arm=arm, kind="torch", name="torch", steps=2, profile=profile
    )


def compared(out: Path, **changes: tuple[int, ...] | tuple[str, ...]) -> RunComparison:
    """Return what analysis finds in it."""
    return compare_run(RunFolder.open(ranked(out, **changes)))  # type: ignore[arg-type]


def test_speed_up_is_of_the_samples_of_the_same_environment(tmp_path: Path) -> None:
    """Twice the batch in 1.25 times the time is 1.6 times as fast; the control has no row."""
    found = {(scaling.arm, scaling.ranks): scaling for scaling in compared(tmp_path).views.scaling}
    assert found.keys() == {(arm, count) for arm in ("vm", "docker") for count in (1, 2)}
    for arm, speed_up in (("vm", 1.6), ("docker", 1.25)):
        two = found[arm, 2]
        assert two.speed_up == pytest.approx(speed_up, rel=1e-6)
        assert two.efficiency == pytest.approx(speed_up / 2, rel=1e-6)
        assert two.restarts == 4
    assert found["vm", 1].speed_up == pytest.approx(1.0)


def test_a_base_is_of_the_environment_in_which_parameters_are_compared(tmp_path: Path) -> None:
    """Each environment has cells of its own, with the same parameters."""
    places = [(within, count) for within in ("vm", "docker") for count in (1, 2)]
    cells = [
        CellRecord(
            id=f"local/ddp/{within}/ranks={count}", host="local", workload="ddp",
            parameters={"ranks": count}, within=within,
        )
        for within, count in places
    ]  # fmt: skip
    arms = [
        ArmRecord(id=f"{within}{end}", environment=within, within=within, is_reference=not end,
                  is_control=end == "~control")
        for within in ("vm", "docker") for end in ("", "-b", "~control")
    ]  # fmt: skip
    folder = RunFolder.create(tmp_path, run_record(cells=tuple(cells), arms=tuple(arms)))
    for cell, (within, count) in zip(cells, places, strict=True):
        times = {arm.id: 1.25 if count > 1 else 1.0 for arm in arms if arm.within == within}
        for sample in blocks(times, noise=0.0):
            folder.append_sample(replace(sample, cell=cell.id))
        at = {"host": "local", "cell": cell.id, "arm": within}
        folder.append_event(Event(t=2.0, what="note", values={"batch": 16 * count}, **at))
    folder.close()
    found = [
        scaling.speed_up for scaling in compare_run(folder).views.scaling if scaling.ranks == 2
    ]
    assert found == pytest.approx([1.6] * 4)


def test_collectives_are_those_of_a_step_under_the_profiler(tmp_path: Path) -> None:
    """Times in seconds, shares as fractions."""
    one = compared(tmp_path).views.scaling[0]
    assert (one.collective_s, one.collective_exposed_s) == pytest.approx((0.004, 0.003))
    assert (one.collective_share, one.collective_exposed_share) == pytest.approx((0.4, 0.3))


def test_the_frame_has_the_rows_of_the_analysis(tmp_path: Path) -> None:
    """A script finds what the page shows."""
    folder = ranked(tmp_path, hosts=("gpu01", "gpu02"))
    frame = envcompare.read(folder).scaling
    assert frame["arm"].tolist() == ["vm", "docker"] * 2
    assert frame["hosts"].fillna("").tolist() == [""] * 2 + ["gpu01,gpu02"] * 2
    assert frame["efficiency"].tolist() == pytest.approx([1.0, 1.0, 0.8, 0.625])


def test_without_one_rank_there_is_no_speed_up_and_the_page_says_what_to_add(
    tmp_path: Path,
) -> None:
    """A number against nothing would be one of another kind."""
    run = compared(tmp_path, counts=(2, 4))
    assert {scaling.speed_up for scaling in run.views.scaling} == {None}
    assert "There is no speed-up without ranks=1" in render(run)


def test_page_and_markdown_show_ranks_and_what_they_exchange_data_by(tmp_path: Path) -> None:
    """The network of each environment stands with them, since it costs time."""
    run = compared(tmp_path, hosts=("gpu01", "gpu02"))
    page = re.sub(r"<[^>]+>", " ", render(run))
    assert "(on gpu01, gpu02)" in page
    assert "docker: network devices lo; shared memory (/dev/shm)" in page
    text = markdown(summary(run))
    assert "Speed-up" in text
    assert "80.0 %" in text


def test_work_stands_in_the_order_of_its_cells(tmp_path: Path) -> None:
    """Not of its letters, by which 128 comes before 16; what is the same in all is not named."""
    run = compared(tmp_path)
    rows = tuple(
        replace(row, cell=f"{batch}/{row.cell}", parameters={"batch": batch, "side": 32})
        for batch in (16, 128)
        for row in run.views.scaling
    )
    assert [row.cells[0] for row in scaling_table(changed(run, scaling=rows)).rows] == [
        *("ddp batch=16",) * 4,
        *("ddp batch=128",) * 4,
    ]


def test_page_says_which_ranks_had_too_few_cpus(tmp_path: Path) -> None:
    """Those of one host; on GPUs they have one each."""
    assert "more threads computed" not in render(compared(tmp_path / "fits"))
    run = compared(tmp_path / "many", counts=(1, 3))
    assert "With ranks=3 more threads computed than local has CPUs (2)" in render(run)
    assert "With ranks=1,3 more" in render(changed(run, threads=3))
    rows = tuple(replace(row, hosts=("gpu01", "gpu02")) for row in run.views.scaling)
    assert "more threads computed" not in render(changed(run, scaling=rows))
    devices = {cell.id: "cuda" for cell in run.cells}
    hosts = tuple(replace(host, devices=devices) for host in run.hosts)
    assert hosts
    assert "more threads computed" not in render(replace(run, hosts=hosts))


def test_arm_without_facts_hides_no_lack_of_cpus(tmp_path: Path) -> None:
    """Its worker may never have answered; the CPUs of the host are known from another."""
    run = compared(tmp_path, counts=(1, 3))
    *others, last = run.arms
    silent = replace(run, arms=(*others, replace(last, facts={})))
    assert "With ranks=3 more threads computed than local has CPUs (2)" in render(silent)


def test_page_says_that_one_rank_waited_for_other_programs(tmp_path: Path) -> None:
    """A second process has a share of the CPUs of its own: what it wins is no gain of ranks."""
    for waited in (0.05, 0.6):
        run = compare_run(RunFolder.open(ranked(tmp_path / str(waited), waited=waited)))
        assert run.views.scaling[0].waited_share == pytest.approx(waited, rel=1e-6)
        page = re.sub(r"<[^>]+>", "", render(run))
        told = "One rank waited for a CPU that other programs held for 60.0 % of its time,"
        assert (told in page) == (waited > 0.1)
        assert ("One rank waited" in page) == (waited > 0.1)


def test_a_run_without_ranks_has_no_such_section(tmp_path: Path) -> None:
    """Nothing is said of what was not asked for."""
    folder = RunFolder.create(tmp_path, run_record())
    folder.close()
    assert 'id="scaling"' not in render(compare_run(RunFolder.open(folder.path)))


def spread(**changes: object) -> Settings:
    """Return the settings of a run whose ranks lie on two hosts."""
    given = {"envs": "vm,docker", "hosts": "gpu01,gpu02", "workloads": "ddp",
             "set": {"ddp": {"ranks": (1, 2)}}, "rendezvous": "gpu01"}  # fmt: skip
    return Settings(**{**given, **changes})  # type: ignore[arg-type]


def test_ranks_over_hosts_are_measured_on_the_first_with_a_network_in_each_arm() -> None:
    """The cells tell the hosts; an option of the user wins."""
    _, plan, hosts = planned(spread(), Settings(), accept_many=False)
    assert [host.label for host in hosts] == ["gpu01", "gpu02"]
    assert {cell.host for cell in plan.cells} == {"gpu01"}
    assert {cell.hosts for cell in plan.cells} == {("gpu01", "gpu02")}
    assert [arm.options for arm in plan.arms] == [(), ("--network", "host"), ()]
    _, plan, _ = planned(spread(docker_options=("--network=fast",)), Settings(), accept_many=False)
    assert plan.arms[1].options == ("--network=fast",)


def test_cells_with_ranks_on_other_hosts_share_no_launch() -> None:
    """A worker that was started for one rank has nothing beside it that a second could lie on."""
    _, plan, _ = planned(spread(), Settings(), accept_many=False)
    assert [len(group) for group in sharing(plan.cells)] == [1, 1]
    alone = spread(rendezvous=None, hosts="gpu01")
    _, plan, _ = planned(alone, Settings(), accept_many=False)
    assert [len(group) for group in sharing(plan.cells)] == [2]


class Process:
    """A worker that has been started, of which a team only keeps what computes along."""

    peers: tuple[Any, ...] = ()

    def kill(self) -> None:
        """End it."""


def session(run: str, *, cache: str = "") -> HostSession:
    """Return a session with this machine."""
    return HostSession(
        host=parse_hosts(["local"])[0], transport=LOCAL, local=LOCAL, boot_id="", run_id=run,
        cache=cache, uid=0, gid=0, python="3.11", gpus=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("connection", "why"),
    [
        ("fd00::1 50000 fd00::2 22", "fd00::2: it is an IPv6 address"),
        ("127.0.0.1 50000 127.0.0.1 22", "127.0.0.1: it is a loopback address"),
    ],
)
def test_leader_whose_address_other_hosts_cannot_use_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, connection: str, why: str
) -> None:
    """Its ranks listen on IPv4; what is reached through a tunnel has the address of its end."""
    monkeypatch.setenv("SSH_CONNECTION", connection)
    with pytest.raises(UnusableError, match=why) as refused:
        HostTeam.of(session("r"), ())
    assert "an IPv4 address that the others reach" in refused.value.hint


def test_each_host_gets_the_secret_of_the_run_in_a_file_of_its_owner(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All arms are shown it, and each run has another."""
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 50000 10.0.0.2 22")
    told = []
    for run in ("first", "second"):
        hosts = [session(f"{run}-{place}", cache=str(tmp_path)) for place in range(2)]
        HostTeam.of(hosts[0], tuple(hosts[1:]))
        files = [Path(host.folder) / "team" / "secret" for host in hosts]
        assert [oct(file.stat().st_mode & 0o777) for file in files] == ["0o600"] * 2
        assert [mount.path for host in hosts for mount in host.mounts] == [
            str(file.parent) for file in files
        ]
        told += [file.read_text() for file in files]
    assert told[0] == told[1] != told[2] == told[3]
    assert {len(text) for text in told} == {64}


@pytest.mark.parametrize(("ranks", "started"), [(1, 0), (2, 1), (3, 2), (8, 2)])
def test_only_hosts_on_which_ranks_lie_compute_along(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ranks: int, started: int
) -> None:
    """What waits on another would import and poll beside a rank that computes alone."""
    told: list[dict[str, str]] = []

    def launch(_: CellFolders, arm: str, program: str = "", **given: Any) -> Process:
        told.append(dict(given["variables"]))
        return Process()

    monkeypatch.setattr(CellFolders, "launch", launch)
    hosts = [session(f"r-{place}", cache=str(tmp_path)) for place in range(3)]
    team = HostTeam(leader=hosts[0], others=tuple(hosts[1:]), address="10.0.0.1")

    def start(variables: Variables) -> Any:
        return launch(CellFolders(session=hosts[0]), "vm", variables=variables)

    def log_of(host: str, arm: str) -> tuple[Path, str]:
        return tmp_path / host / arm, ""

    first = team.launch("vm", start, ranks=ranks, variables=(), log_of=log_of)
    assert len(first.peers) == started
    places = [one.get("GROUP_RANK") for one in told]
    assert places == ([*map(str, range(1, 1 + started)), "0"] if started else [None])
    assert {one.get("GROUP_WORLD_SIZE", "1") for one in told} == {str(1 + started)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rendezvous": "gpu03"}, "--rendezvous gpu03 is none of several --hosts"),
        ({"hosts": "gpu01"}, "--rendezvous gpu01 is none of several --hosts"),
        ({"hosts": "a=gpu01,b=gpu02"}, "--rendezvous and groups of hosts exclude each other"),
        ({"envs": "vm,podman"}, "--rendezvous: podman cannot reach another host"),
        ({"workloads": "ddp,mlp"}, "--rendezvous: mlp has no ranks on several hosts"),
    ],
)
def test_what_cannot_be_spread_over_hosts_is_refused(
    changes: dict[str, object], words: str
) -> None:
    """Before any host is reached."""
    with pytest.raises(ConfigError, match=re.escape(words)):
        planned(spread(**changes), Settings(), accept_many=False)
