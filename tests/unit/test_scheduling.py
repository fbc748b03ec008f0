"""Allocations: what `--allocation` and the table say, and what is refused before any job."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from commandline import envcompare
from experiments import known

from envcompare.cli.options import read_settings
from envcompare.cli.planning import standalone
from envcompare.config.experiment import Experiment, resolve
from envcompare.config.scheduling import (
    Allocation,
    Gres,
    check_time,
    offered_gres,
    parse_allocation,
    parse_gres,
)
from envcompare.config.settings import AllocationTable, Settings, parse_settings, settings_toml
from envcompare.errors import ConfigError
from envcompare.hosts.allocation import Partition
from envcompare.text import parse_toml
from envcompare.transport.hosts import parse_hosts

FULL = "slurm:partition=gpu,gres=gpu:a100:1,time=01:00:00,nodes=2"
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_END_TIME": "5000"}


def parsed(text: str, **environ: str) -> Allocation:
    """Return the allocation of a text, at the time of 4000 s."""
    allocation = parse_allocation(text, environ, now_s=4000)
    assert allocation is not None
    return allocation


def resolved(**settings: object) -> Experiment:
    """Return the experiment of these settings over a `vm` with one workload."""
    given = {"envs": "vm", "workloads": "cnn", **settings}
    return resolve(Settings(**given), Settings(), known=known(cnn={}))


def test_text_names_nodes_time_and_resources() -> None:
    """Each key is one of the scheduler's options; a colon belongs to the value."""
    allocation = parsed(FULL)
    assert (allocation.nodes, allocation.time_s) == (2, 3600.0)
    assert allocation.gres == Gres(name="gpu", type="a100", count=1)
    assert allocation.hosts == ("slurm-1", "slurm-2")
    assert allocation.request == AllocationTable(
        scheduler="slurm", partition="gpu", gres="gpu:a100:1", time="01:00:00", nodes=2
    )


def test_nodes_are_shared_unless_the_user_says_otherwise() -> None:
    """Parsl would ask for whole nodes, which may cost many times as much."""
    requests = [parsed(f"slurm:time=01:00:00{more}").request for more in ("", ",exclusive=true")]
    assert [request and request.exclusive for request in requests] == [False, True]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:10:00", 600), ("1-00:00:00", 86_400), ("2-01:00:30", 176_430), ("100:00:00", 360_000),
        ("60", 3600), ("30:00", 1800), ("2-0", 172_800), ("1-12:30", 131_400), ("0:5:0", 300),
    ],
)  # fmt: skip
def test_time_is_read_as_slurm_writes_it(text: str, seconds: int) -> None:
    """In each form of sbatch(1): a number alone is in minutes, and after days in hours."""
    assert parsed(f"slurm:time={text}").time_s == seconds


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("slurm", "names no key"),
        ("slurm:partition=gpu", "time"),
        ("slurm:time=UNLIMITED", "HH:MM:SS"),
        ("slurm:time=1:00:00:00", "HH:MM:SS"),
        ("slurm:time=01:60:00", "HH:MM:SS"),
        ("slurm:time=01:00:00,time=02:00:00", "twice"),
        ("slurm:time=01:00:00,partition", "needs a value"),
        ("slurm:time=01:00:00,nodes=0", "from 1"),
        ("slurm:time=01:00:00,nodes=two", "int"),
        ("slurm:time=01:00:00,exclusive=perhaps", "bool"),
        ("slurm:time=01:00:00,gres=gpu:a:b:c", "NAME:TYPE:COUNT"),
        ("slurm:time=01:00:00,script-dir=here", "absolute"),
        ("slurm:time=01:00:00,script-dir=/a b;id", "absolute"),
        ("slurm:time=01:00:00,account=a\n#SBATCH --uid=0", "letters"),
        ("slurm:time=01:00:00,partition=$(id)", "letters"),
    ],
)
def test_malformed_value_is_refused_with_what_is_wrong(text: str, named: str) -> None:
    """Nothing that sbatch would have to refuse, or would read as a line of its own, gets there."""
    with pytest.raises(ConfigError, match="is not understood") as caught:
        parsed(text)
    assert named in caught.value.details
    assert "slurm:partition=" in caught.value.hint


def test_unknown_key_names_the_likely_one() -> None:
    """A misspelt key is not ignored."""
    with pytest.raises(ConfigError, match="no key `partitoin`") as caught:
        parsed("slurm:partitoin=gpu,time=01:00:00")
    assert "did you mean `partition`" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pbs", "pbs is not supported yet"),
        ("lsf", "lsf is not supported yet"),
        ("gridengine", "gridengine is not supported yet"),
        ("cobalt", "cobalt is not supported yet"),
        ("kubernetes", "kubernetes is not supported yet"),
        ("slrum", "unknown scheduler `slrum`"),
    ],
)
def test_other_schedulers_are_refused_by_name(name: str, words: str) -> None:
    """What was not tried is not offered, and a misspelt word is none of them."""
    with pytest.raises(ConfigError, match=words):
        parsed(f"{name}:time=01:00:00")


def test_table_says_the_same_as_the_text(tmp_path: Path) -> None:
    """`[allocation]` holds the keys of the flag, in the types of TOML."""
    path = tmp_path / "envcompare.toml"
    path.write_text(
        '[allocation]\nscheduler = "slurm"\npartition = "gpu"\ngres = "gpu:a100:1"\n'
        'time = "01:00:00"\nnodes = 2\n'
    )
    table = read_settings(path).allocation
    assert parse_allocation(table, {}, now_s=0) == parsed(FULL)


def test_unknown_key_of_the_table_names_file_and_likely_key(tmp_path: Path) -> None:
    """A table is checked as the rest of the file is."""
    path = tmp_path / "envcompare.toml"
    path.write_text('[allocation]\nscheduler = "slurm"\ntime = "01:00:00"\npartitoin = "gpu"\n')
    with pytest.raises(ConfigError, match=r"allocation\.partitoin") as caught:
        read_settings(path)
    assert "did you mean `partition`" in caught.value.hint


def test_job_around_gives_its_nodes_and_the_time_it_has_left() -> None:
    """`inside` asks for nothing: Slurm has told the job what it is."""
    allocation = parsed("inside", **JOB)
    assert (allocation.job, allocation.nodes, allocation.time_s) == ("7", 3, 1000.0)
    assert allocation.request is None
    without_end = {name: value for name, value in JOB.items() if "END" not in name}
    assert parsed("inside", **without_end).time_s == math.inf


def test_inside_of_no_job_is_refused() -> None:
    """Outside of a job there are no nodes to be measured."""
    with pytest.raises(ConfigError, match="outside a job"):
        parsed("inside")


def test_time_that_is_shorter_than_the_plan_is_refused() -> None:
    """The budgets of all cells of a node have to fit, and the hint says how long they are."""
    allocation = parsed("slurm:time=00:19:59")
    check_time(allocation, cells=1, budget_s=600, jobs=1)
    with pytest.raises(ConfigError, match="shorter than the plan: 00:19:59") as caught:
        check_time(allocation, cells=2, budget_s=600, jobs=1)
    assert "time=00:20:00" in caught.value.hint
    with pytest.raises(ConfigError) as searched:
        check_time(allocation, cells=2, budget_s=600, jobs=1, has_search=True)
    assert "the search for batches come on top" in searched.value.details


def test_nodes_that_are_not_worked_on_at_once_take_turns() -> None:
    """Of 64 nodes and 32 jobs the second half begins when the first has ended."""
    allocation = parsed("slurm:time=00:19:59,nodes=64")
    check_time(allocation, cells=1, budget_s=600, jobs=64)
    with pytest.raises(ConfigError, match="shorter than the plan") as caught:
        check_time(allocation, cells=1, budget_s=600, jobs=32)
    assert "32 of 64 nodes at once, take up to 00:20:00" in caught.value.details


def test_plan_that_does_not_fit_ends_with_exit_code_2(tmp_path: Path) -> None:
    """It is refused before the scheduler is asked, by `plan` too."""
    done = envcompare(
        *("plan", "--envs", "vm", "--workloads", "cnn,rnn"),
        *("--allocation", "slurm:time=00:05:00,nodes=2"),
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "2 cells on each node of at most 600 s" in done.stderr


def test_environment_of_a_daemon_is_refused() -> None:
    """Its containers would run outside of the job."""
    with pytest.raises(ConfigError, match="docker cannot be measured in an allocation") as caught:
        resolved(envs="vm,docker", allocation=FULL)
    assert "outside the job" in caught.value.details


def test_data_in_the_memory_of_a_node_are_refused_where_they_outlive_the_job() -> None:
    """A container has a tmpfs of its own, which ends with it."""
    with pytest.raises(ConfigError, match="vm cannot have its data at `tmpfs` in an allocation"):
        resolved(envs="singularity,vm", allocation=FULL, place="data=bind,tmpfs")
    assert resolved(envs="singularity", allocation=FULL, place="data=tmpfs").places == ("tmpfs",)
    assert resolved(envs="vm", place="data=tmpfs").places == ("tmpfs",)


def test_run_keeps_what_it_asked_for_so_that_it_can_be_resumed() -> None:
    """Names of nodes are no settings: a resumed run asks for a new allocation."""
    experiment = resolved(allocation=FULL)
    hosts = parse_hosts(experiment.hosts)
    kept = settings_toml(standalone(experiment, hosts).settings)
    again = parse_settings(parse_toml(kept), source="run.json")
    assert (again.allocation, again.hosts) == (FULL, None)
    table = msgspec.structs.replace(again, allocation=parsed(FULL).request)
    assert parse_settings(parse_toml(settings_toml(table)), source="run.json") == table


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu", (("gpu", "", 1),)),
        ("gpu:2", (("gpu", "", 2),)),
        ("gpu:a100:4(S:0-1),tmp:1", (("gpu", "a100", 4), ("tmp", "", 1))),
        ("gpu:a100:4,gpu:v100:2", (("gpu", "a100", 4), ("gpu", "v100", 2))),
        ("gpu:1g.10gb:7", (("gpu", "1g.10gb", 7),)),
        ("gpu:h100-80gb", (("gpu", "h100-80gb", 1),)),
        ("shard:gpu:2K,what?", (("shard", "gpu", 2048),)),
        ("tmp:3M,shard:1", (("tmp", "", 3 * 2**20), ("shard", "", 1))),
        ("(null)", ()),
    ],
)
def test_resources_of_a_node_are_read(text: str, expected: tuple[tuple[str, str, int]]) -> None:
    """Sockets in parentheses say where a GPU sits; what is not understood is not offered."""
    assert tuple((each.name, each.type, each.count) for each in offered_gres(text)) == expected


@pytest.mark.parametrize(
    ("wish", "is_met"),
    [("gpu:4", True), ("gpu:5", False), ("gpu:a100:2", True), ("gpu:a100:3", False)],
)
def test_wish_without_a_type_is_met_by_all_types_together(wish: str, *, is_met: bool) -> None:
    """Slurm itself gives a job GPUs of two types where it names none."""
    node = offered_gres("gpu:a100:2,gpu:v100:2,tmp:9")
    assert parse_gres(wish).is_met_by(node) is is_met


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("10:00", 600), ("1:00:00", 3600), ("2-00:00:00", 172_800), ("infinite", math.inf)],
)
def test_limit_of_a_partition_is_read_as_sinfo_writes_it(limit: str, seconds: float) -> None:
    """A word stands where a job may last for ever."""
    assert Partition(name="p", is_default=True, limit=limit, nodes=((),)).limit_s == seconds


def test_partition_has_room_only_where_enough_nodes_have_all_resources() -> None:
    """One node with eight GPUs is not two with four."""
    nodes = (offered_gres("gpu:a100:8"), offered_gres("gpu:a100:2"), offered_gres("(null)"))
    partition = Partition(name="p", is_default=True, limit="infinite", nodes=nodes)
    assert partition.offer == "3 nodes, up to gpu:a100:8 each"
    fitting = [
        partition.has_room(parsed(f"slurm:time=01:00:00,{wish}"))
        for wish in ("nodes=3", "nodes=2,gres=gpu:2", "nodes=2,gres=gpu:a100:4", "gres=gpu:v100")
    ]
    assert fitting == [True, True, False, False]


def test_parsl_is_not_imported_where_no_allocation_is_asked_for() -> None:
    """The providers are slow to import, and an extra."""
    script = "import sys, envcompare.hosts.allocation; print('parsl' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout == "False\n"
