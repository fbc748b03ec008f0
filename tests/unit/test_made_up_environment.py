"""A further environment costs one file: a made-up one is planned, checked, prepared and swept."""

from __future__ import annotations

import math
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner
from runs import ADDS, LIGHT, STEPS_ALONE

from envcompare.analysis.compare import compare_run
from envcompare.analysis.frames import read_frames
from envcompare.cli import app
from envcompare.cli.planning import resolved
from envcompare.config import Traits
from envcompare.config.plan import make_plan
from envcompare.config.settings import Settings
from envcompare.environments import Check, Environment, Isolation, ask, kill_marked, marks, unusable
from envcompare.environments.registry import ENVIRONMENTS, environment
from envcompare.environments.software import with_proof
from envcompare.errors import ConfigError, Interruption, Problem, UnusableError
from envcompare.gpu import GpuState, HostGpus
from envcompare.hosts import HostSession
from envcompare.hosts.folders import CellFolders
from envcompare.hosts.opening import open_session
from envcompare.run_folder.results import RunFolder
from envcompare.stack import Prepared, Progress, Request
from envcompare.stack.venv import find_python
from envcompare.text import Command
from envcompare.transport import Transport, shell


@dataclass(frozen=True, slots=True)
class Yielding:
    """Runs the command with the lowest priority that the host gives, as `nice` does."""

    name: ClassVar[str] = "yielding"
    traits: ClassVar[Traits] = Traits(aliases=("nice",))
    engine: ClassVar[None] = None

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return the command behind `nice`."""
        env = (*marks(self.name, isolation), *command.env)
        return replace(command, argv=("nice", "-n", "19", *command.argv), env=env)

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:  # noqa: ARG002 — no engine
        """Return nothing: no engine starts the command."""
        return ()

    def check(self, transport: Transport) -> Check:
        """Say whether the host has the program."""
        probe = Command(argv=("nice", "--version"))
        result = ask(transport, probe, what="nice", hint="run it there")
        if isinstance(result, Check):
            return result
        if result.exit_code == 127:
            return unusable("nice is not installed", "install coreutils")
        return Check(version=result.stdout.split("\n")[0].rpartition(" ")[2])

    def check_gpu(self, transport: Transport, driver: Check) -> Check:  # noqa: ARG002 — the host was asked
        """Say whether the driver works; nothing stands between it and the process."""
        return driver

    def prepare(self, request: Request) -> Prepared:
        """Return the interpreter of a login, whatever the stack is."""
        options = request.options
        python = find_python(
            request.transport, python=options.host_python, imports=options.host_imports
        )
        identity = (("stack", "host"), ("python", python.version))
        prepared = Prepared(interpreter=python.path, identity=identity)
        return with_proof(self, request, prepared)

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Say that the program is missing."""
        return Problem(brief=f"nice: {stderr.strip()}") if exit_code in {126, 127} else None

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Kill the processes that carry the marks of a run."""
        return kill_marked(transport, self.name, run_id=run_id, worker=worker)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Register the environment, and return it."""
    yielding: Environment = Yielding()
    monkeypatch.setitem(ENVIRONMENTS, yielding.name, yielding)
    return yielding


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Give settings that compare a plain process with it, on a workload that needs no torch."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "light.py").write_text(LIGHT)
    return Settings(
        envs="vm,nice", stacks="host", workload=f"{tmp_path / 'light.py'}:Light",
        host_python=sys.executable, device="cpu", data=str(tmp_path),
    )  # fmt: skip


@pytest.fixture
def session(settings: Settings) -> Iterator[HostSession]:
    """Open this machine and make both arms ready there."""
    experiment, hosts = resolved(settings, Settings())
    run_id = f"20260101-000000-{uuid.uuid4().hex[:4]}"
    opened = open_session(hosts[0], experiment, run_id, Interruption())
    opened.claim()
    for arm in make_plan(experiment, ("local",), accept_many=False).arms:
        if not arm.is_control:
            opened.add_arm(arm, experiment, Progress(print))
    opened.stage()
    yield opened
    opened.close()


def test_it_is_planned_by_its_names_and_not_compared_unasked(settings: Settings) -> None:
    """An alias is the environment itself; what none names is not compared."""
    experiment, _ = resolved(settings, Settings())
    assert [arm.id for arm in experiment.arms] == ["vm-host", "yielding-host"]
    plan = make_plan(experiment, ("local",), accept_many=False)
    assert [arm.is_plain for arm in plan.arms] == [True, False, True]
    assert environment("nice") is environment("yielding")
    unasked, _ = resolved(Settings(workloads="cnn"), Settings())
    assert "yielding" not in {arm.environment for arm in unasked.arms}
    with pytest.raises(ConfigError, match="yielding has no image"):
        resolved(Settings(envs="mine=yielding:app:1"), Settings())


def test_a_worker_runs_in_it_and_says_so(
    session: HostSession, settings: Settings, tmp_path: Path
) -> None:
    """It is checked and prepared as every other, and the fingerprint shows what it does."""
    experiment, _ = resolved(settings, Settings())
    seat = session.arms["yielding-host"]
    assert seat.check.is_usable
    assert seat.prepared.interpreter == sys.executable
    assert "site_packages.sha256" in dict(seat.prepared.facts)
    folders = CellFolders(session=session)
    spec = folders.spec(experiment.workloads[0], {}, str(tmp_path), experiment)
    nice = {}
    for arm in session.arms:
        worker = folders.launch(arm, log=tmp_path / arm, log_name=arm)
        try:
            worker.send_hello(spec)
            worker.await_hello()
            worker.send_begin(1, 0)
            worker.await_begin()
            assert len(worker.run(3, 60.0).wall_ns) == 3
            worker.send_facts()
            nice[arm] = worker.await_facts().fingerprint["process.nice"]
        finally:
            worker.kill()
    assert nice["yielding-host"] == 19
    assert nice["vm-host"] != 19


def test_a_worker_is_told_its_scratch_folder(session: HostSession) -> None:
    """Without a container HOME is the login's, and what is written there outlives the run."""
    seat = session.arms["vm-host"]
    told = Command(argv=("sh", "-c", 'printf %s "$ENVCOMPARE_SCRATCH"'))
    process = session.spawn(session.wrapped(seat, told, mounts=(), worker="bbbb"))
    folder = process.stdout.readline().decode()
    assert process.wait(20.0) == 0
    assert folder == session.scratch("vm-host")


def test_what_hangs_in_it_is_swept(session: HostSession) -> None:
    """The registry leads the sweep of a run to its own."""
    seat = session.arms["yielding-host"]
    hung = Command(argv=("sh", "-c", "echo begun; exec sleep 600"))
    process = session.spawn(session.wrapped(seat, hung, mounts=(), worker="aaaa"))
    assert process.stdout.readline() == b"begun\n"
    assert session.sweep() == ("yielding: removed what was left of the run (1)",)
    assert process.wait(20.0) != 0
    look = 'grep -slF -e "ENVCOMPARE_RUN=$1" /proc/[0-9]*/environ'
    assert not shell(session.transport, look, session.run_id).succeeded


def test_values_are_judged_in_each_environment_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs in one: each environment has its reference, its control and its verdict."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "adding.py").write_text(ADDS)
    words = (
        "--envs", "vm@host,nice@host", "--host-python", sys.executable, "--device", "cpu",
        "--workload", f"{tmp_path}/adding.py:Adds", "--set", "adding-Adds.n=100000,300000",
        "--compare", "parameter=n", "--restarts", "3", "--rounds", "4", "--no-marks",
        *STEPS_ALONE, "--out", str(tmp_path / "out"),
    )  # fmt: skip
    done = CliRunner().invoke(app, ["run", *words])
    assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "out").iterdir()
    run = compare_run(RunFolder.open(folder))
    judged = {one.within: (one.arm, run.reference_in(one.cell)) for one in run.compared}
    assert judged == {
        within: (f"{within}-n-300000", f"{within}-n-100000")
        for within in ("vm-host", "yielding-host")
    }
    # a process that yields waits long on a busy machine: its verdict may be open, its estimate not
    assert all(one.primary and one.primary.log_ratio > math.log(2) for one in run.compared)
    assert all(cell.noise_floor is not None for cell in run.cells)
    page = (folder / "report.html").read_text()
    assert "yielding-host-n-300000 against yielding-host-n-100000" in page
    frame = read_frames(folder).comparisons
    columns = zip(frame["within"], frame["arm_parameters"], frame["reference_arm"], strict=True)
    assert {*columns} == {
        (within, f"n={n}", f"{within}-n-100000") for within in judged for n in (100000, 300000)
    }


# A driver without a device that works: its text, its node, and no libcuda beside them.
DRIVER = """#!/bin/sh
case $1 in
  /proc/driver/nvidia/version) echo asked >>"{asked}"; echo "Kernel Module  570.86.10  2025" ;;
  *) exec /bin/cat "$@" ;;
esac
"""


def test_a_host_is_asked_for_its_driver_once_and_says_once_what_is_measured(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both hold for all its arms; whether CUDA starts inside is asked of each."""
    experiment, hosts = resolved(settings, Settings())
    with closing(open_session(hosts[0], experiment, "driver", Interruption())) as opened:
        programs, asked, said = tmp_path / "bin", tmp_path / "asked", list[str]()
        programs.mkdir()
        for name, text in {"cat": DRIVER.format(asked=asked), "ls": "#!/bin/sh\n"}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        two = tuple(GpuState(index=i, uuid=f"GPU-{i}", name="Tesla T4") for i in range(2))
        opened.gpus = HostGpus(driver="570.86.10", states=two)
        for arm in make_plan(experiment, ("local",), accept_many=False).arms[:2]:
            with pytest.raises(UnusableError, match=arm.environment) as caught:
                opened.add_arm(arm, experiment, Progress(said.append))
            assert "does not reach the GPU: " in caught.value.details
    assert asked.read_text() == "asked\n"
    heads = [line.partition(";")[0] for line in said]
    assert heads == ["measuring on GPU 0 of 2: Tesla T4 (GPU-0)"]
