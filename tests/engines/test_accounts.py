"""The CPU time that a run tells of an arm, against what the kernel's own accounts of it say."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from lab import Lab
from nightly import nightly_except
from runs import BASE

from envcompare.cli.planning import resolved
from envcompare.config.plan import make_plan
from envcompare.config.settings import Settings
from envcompare.environments.registry import environment
from envcompare.errors import Interruption
from envcompare.hosts import HostSession
from envcompare.hosts.folders import CellFolders, find_pipes
from envcompare.hosts.opening import open_session
from envcompare.measure.worker import Worker
from envcompare.profilers.host import list_helpers, used_ns
from envcompare.stack import Progress

ARMS = ("vm", "docker", "singularity", "podman", "charliecloud", "bubblewrap")
pytestmark = [pytest.mark.engine(name) for name in ("ssh", *ARMS[1:], "gvisor")]
_RUN_S = 4.0
_REQUESTS = 40
_TICKS_NS = 50e6  # of 10 ms, in which the kernel tells each of some processes
# As root of the host: of the processes that carry the marks of an arm, and of all they started, the
# ticks of the kernel (proc_pid_stat(5)); those of every other process of these names, each by
# itself, since one of an earlier launch may end at any time; and the account of the control group
# of the arm, where it is not the one that everything else is in.
ACCOUNT = r"""
import json, os, sys
run, arm, names = sys.argv[1], sys.argv[2], set(sys.argv[3].split())
tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")

def read(path):
    try:
        return open(path, "rb").read()
    except OSError:
        return b""

def group(pid):
    for line in read(f"/proc/{pid}/cgroup").decode().splitlines():
        number, controllers, path = line.split(":", 2)
        if "cpuacct" in controllers.split(","):
            return f"/sys/fs/cgroup/cpuacct{path}/cpuacct.usage"
    return ""

used, parents, comms, began, marked = {}, {}, {}, {}, set()
for pid in filter(str.isdigit, os.listdir("/proc")):
    stat = read(f"/proc/{pid}/stat").decode(errors="replace")
    if not stat:
        continue
    left, _, right = stat.rpartition(")")
    fields = right.split()
    used[pid], parents[pid] = (int(fields[11]) + int(fields[12])) * tick_ns, fields[1]
    comms[pid], began[pid] = left.partition("(")[2], fields[19]
    marks = read(f"/proc/{pid}/environ").split(b"\0")
    if {f"ENVCOMPARE_RUN={run}".encode(), f"ENVCOMPARE_ARM={arm}".encode()} <= set(marks):
        marked.add(pid)
tree, grown = set(marked), True
if not tree:  # the kernel of gVisor keeps its processes to itself: they are those that runsc starts
    tree = {pid for pid, comm in comms.items() if comm in ("exe", "runsc-sandbox", "runsc-gofer")}
while grown:
    grown = {pid for pid, parent in parents.items() if parent in tree} - tree
    tree |= grown
beside = {pid: ns for pid, ns in used.items() if comms[pid] in names and pid not in tree}
here, own = group("self"), {group(pid) for pid in marked}
own.discard(here)
kept = [read(path) for path in own]
print(json.dumps({
    "tree_ns": sum(used[pid] for pid in tree),
    "beside_ns": {f"{pid} of tick {began[pid]}": ns for pid, ns in beside.items()},
    "group_ns": int(kept[0]) if len(kept) == 1 and kept[0] else None,
}))
"""


# As root of the host: how often the threads of all programs of a name have been switched to.
SWITCHES = r"""
for comm in /proc/[0-9]*/comm; do
  [ "$(cat "$comm" 2>/dev/null)" = "$1" ] && cat "${comm%/comm}"/task/*/status 2>/dev/null
done | awk '/ctxt_switches/ { sum += $2 } END { print sum + 0 }'
"""


OTHER_KERNEL = "docker-runsc"  # the environment `docker`, under a runtime that an option names


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel says at one look, in ns since each process began."""

    tree_ns: int
    group_ns: int | None
    beside_ns: dict[str, int]  # by process


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a block of steps cost by the run's own account, and by those of the kernel, in ns."""

    wall: int
    worker: int
    helpers: int
    tree: int
    group: int | None
    beside: int  # of helpers that no process of the arm has started, and that live at the end

    @property
    def ledger(self) -> int:
        """Return what the run adds up for the arm."""
        return self.worker + self.helpers

    @property
    def account(self) -> int:
        """Return what the kernel says: the control group's account is of all its processes."""
        return (self.tree if self.group is None else self.group) + self.beside


@pytest.fixture(scope="module")
def settings() -> Settings:
    """Give settings that read small files in every environment."""
    return Settings(
        envs=",".join((*ARMS, "gvisor")), workloads="files", base_image=BASE, device="cpu",
        set={"files": {"files": 500}},
    )  # fmt: skip


@pytest.fixture(scope="module")
def session(lab: Lab, settings: Settings) -> Iterator[HostSession]:
    """Open the lab host, with every environment ready there."""
    experiment, hosts = resolved(Settings(hosts=lab.alias), settings)
    run_id = f"20260101-000000-{uuid.uuid4().hex[:4]}"
    with closing(open_session(hosts[0], experiment, run_id, Interruption())) as opened:
        opened.claim()
        for arm in make_plan(experiment, (lab.alias,), accept_many=False).arms:
            if not arm.is_control:
                opened.add_arm(arm, experiment, Progress(print))
            if arm.id == "docker":
                other = msgspec.structs.replace(arm, id=OTHER_KERNEL, options=("--runtime=runsc",))
                opened.add_arm(other, experiment, Progress(print))
        opened.stage()
        find_pipes(opened, Progress(print))
        yield opened


def _account(lab: Lab, session: HostSession, arm: str, names: tuple[str, ...]) -> Account:
    words = (session.run_id, arm, " ".join(names))
    said = lab.as_root("python3", "-c", ACCOUNT, *words)
    return msgspec.json.decode(said, type=Account)


def _compared(lab: Lab, session: HostSession, arm: str, worker: Worker) -> Compared:
    """Run steps for some seconds between two looks of both kinds."""
    names = environment(session.arms[arm].arm.environment).traits.helpers
    few = worker.run(5, 60.0)
    steps = max(5, round(_RUN_S * 5e9 / sum(few.wall_ns)))
    first, seen = _account(lab, session, arm, names), list_helpers(session.transport, names)
    ran = worker.run(steps, 120.0)
    seen_then = list_helpers(session.transport, names)
    assert seen is not None
    assert seen_then is not None
    helpers = used_ns(names, seen, seen_then)
    then = _account(lab, session, arm, names)
    group = None
    if first.group_ns is not None and then.group_ns is not None:
        group = then.group_ns - first.group_ns
    return Compared(
        wall=sum(ran.wall_ns),
        worker=sum(ran.cpu_ns),
        helpers=sum(helpers.values()),
        tree=then.tree_ns - first.tree_ns,
        group=group,
        beside=sum(ns - first.beside_ns.get(one, 0) for one, ns in then.beside_ns.items()),
    )


@contextmanager
def _ready(
    lab: Lab,
    session: HostSession,
    settings: Settings,
    *,
    arm: str,
    log: Path,
    is_timed: bool = True,
) -> Iterator[Worker]:
    """Launch a worker of an arm that has done its first step."""
    experiment, _ = resolved(Settings(hosts=lab.alias), settings)
    folders = CellFolders(session=session)
    workload = experiment.workloads[0]
    data = folders.prepare_data(workload, {}, experiment)
    worker = folders.launch(arm, log=log, log_name=arm, is_timed=is_timed)
    try:
        worker.send_hello(folders.spec(workload, {"files": 500}, data, experiment))
        worker.await_hello()
        worker.send_begin(1, 0)
        worker.await_begin()
        yield worker
    finally:
        worker.kill()


def _measured(
    lab: Lab, session: HostSession, settings: Settings, *, arm: str, log: Path
) -> Compared:
    """Launch a worker of an arm, and compare what some seconds of its steps cost."""
    with _ready(lab, session, settings, arm=arm, log=log) as worker:
        return _compared(lab, session, arm, worker)


@pytest.mark.parametrize("arm", nightly_except(("docker", "singularity", "podman"), ARMS))
def test_the_cpu_time_of_an_arm_is_what_the_kernel_has_accounted(
    lab: Lab, session: HostSession, settings: Settings, tmp_path: Path, arm: str
) -> None:
    """Worker and helpers add up to it within 2 %, and the ticks of the two looks."""
    found = _measured(lab, session, settings, arm=arm, log=tmp_path / arm)
    assert (found.group is not None) == (arm == "docker"), found
    assert abs(found.ledger - found.account) <= 0.02 * found.account + _TICKS_NS, found


@pytest.mark.parametrize("arm", ["docker", "podman"])
def test_a_client_does_next_to_nothing_while_blocks_are_asked_for(
    lab: Lab, session: HostSession, settings: Settings, tmp_path: Path, arm: str
) -> None:
    """Requests pass it by; where they do not, its runtime works beside the first 20 ms of each."""
    switches = {}
    for is_timed in (True, False):
        log = tmp_path / f"{is_timed}"
        with _ready(lab, session, settings, arm=arm, log=log, is_timed=is_timed) as worker:
            before = int(lab.as_root("sh", "-c", SWITCHES, "sh", arm))
            for _ in range(_REQUESTS):
                worker.run(5, 60.0)
            switches[is_timed] = int(lab.as_root("sh", "-c", SWITCHES, "sh", arm)) - before
    assert 10 * switches[True] < switches[False], switches
    assert switches[False] > 5 * _REQUESTS, switches


def test_requests_take_the_way_that_an_arm_has(
    lab: Lab, session: HostSession, settings: Settings, tmp_path: Path
) -> None:
    """Containers of Docker under another kernel open no pipe of the host, and are measured too."""
    found = {arm: ready.has_pipes for arm, ready in session.arms.items()}
    assert found == {
        "vm": None, "docker": True, OTHER_KERNEL: False, "singularity": None, "podman": True,
        "charliecloud": None, "bubblewrap": None, "gvisor": False,
    }  # fmt: skip
    for arm in ("gvisor", OTHER_KERNEL):
        assert session.fingerprint(arm, "c", {}, taken="start").facts["engine.requests"]
        with _ready(lab, session, settings, arm=arm, log=tmp_path / arm) as worker:
            assert worker.run(1, 60.0).cpu_ns
    assert "engine.requests" not in session.fingerprint("docker", "c", {}, taken="start").facts


def test_nothing_is_counted_twice_where_the_kernel_of_gvisor_counts(
    lab: Lab, session: HostSession, settings: Settings, tmp_path: Path
) -> None:
    """Its clock has ticks of 10 ms, and counts most of its own work as that of the workload.

    It also counts the time in which it waits for a CPU of the host. No process of it is a helper:
    what the daemons beside it do is theirs, for whatever test that is.
    """
    found = _measured(lab, session, settings, arm="gvisor", log=tmp_path / "gvisor")
    assert found.worker % 10**7 == 0
    assert 0.5 * found.tree < found.worker <= found.wall + _TICKS_NS, found
    assert found.helpers <= found.beside + _TICKS_NS, found
