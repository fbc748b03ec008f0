"""What a cell is shown of its host, and that no other cell is shown it as well."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import Programs, first_on_path
from recording import Recorder

from envcompare.cli.planning import resolved
from envcompare.config import Arm
from envcompare.config.settings import Settings
from envcompare.config.workloads import Workload
from envcompare.environments import Check, Isolation, oci
from envcompare.environments.docker import Docker
from envcompare.environments.registry import ENVIRONMENTS, all_traits, environment
from envcompare.errors import StillRunningError, UnusableError, WorkloadError
from envcompare.hosts import HostSession, ReadyArm, keeper
from envcompare.hosts.folders import CellFolders, relayed
from envcompare.run_folder.records import ArmRecord
from envcompare.stack import Mount, Prepared
from envcompare.text import Command
from envcompare.transport import LOCAL, Transport, run
from envcompare.transport.hosts import parse_hosts

WORKER = Path(__file__).resolve().parents[2] / "workloads" / "harness" / "worker.py"


# A container that goes on when its client has ended.
LEFT_BEHIND = """
exec 6>"$ENVCOMPARE_CHANNEL/replies"
sleep 20 >/dev/null 2>&1 </dev/null &
echo lost; exit 125
"""


class RecordsStarts(Recorder):
    """Records what is started for an arm, and nothing that cleans up."""

    bare = LOCAL


@pytest.fixture
def session(tmp_path: Path) -> HostSession:
    """Give this machine as a session, its workloads staged."""
    session = HostSession(
        host=parse_hosts(["local"])[0],
        transport=LOCAL,
        local=LOCAL,
        boot_id="",
        run_id=f"test-{uuid.uuid4().hex[:8]}",
        cache=str(tmp_path / "cache"),
        uid=1000,
        gid=1000,
        python="3.11",
        gpus=None,
    )
    session.stage()
    return session


def ready(arm: str, environment: str, prepared: Prepared, *, stack: str = "image") -> ReadyArm:
    """Return an arm that is prepared."""
    record = ArmRecord(id=arm, environment=environment, stack=stack)
    return ReadyArm(arm=record, prepared=prepared, check=Check())


def folder(path: Path) -> str:
    """Make a folder and return its path."""
    path.mkdir()
    return str(path)


def test_folder_of_one_command_is_not_shown_to_the_next(
    session: HostSession, tmp_path: Path
) -> None:
    """Two cells of one session see the workloads, and each its own folder and data alone."""
    first, second = CellFolders(session=session), CellFolders(session=session)
    one, other, data = (folder(tmp_path / name) for name in ("one", "other", "data"))
    first.show_command(one, data)
    second.show_command(other, None)
    assert first.mounts == (*session.mounts, Mount(path=one), Mount(path=data))
    assert second.mounts == (*session.mounts, Mount(path=other))
    assert session.mounts == (Mount(path=session.workloads),)


def test_file_of_one_workload_is_not_shown_to_the_next(
    session: HostSession, tmp_path: Path
) -> None:
    """Every cell of a workload is shown its file, which is sent once and stays the same."""
    path = tmp_path / "own.py"
    path.write_text("first")
    own = Workload(name="own-Work", path=path, class_name="Work")
    cells = [CellFolders(session=session) for _ in range(3)]
    names = {cells[0].name_of(own)}
    path.write_text("changed during the run")
    names.add(cells[1].name_of(own))
    (sent,) = (Path(name.rpartition(":")[0]) for name in names)
    assert sent.read_text() == "first"
    assert cells[0].shown == cells[1].shown == (Mount(path=str(sent.parent)),)
    assert cells[2].shown == ()


def test_files_beside_a_workload_are_sent_with_it(session: HostSession, tmp_path: Path) -> None:
    """Those that travel alone, and what a link leads to in place of the link."""
    source = tmp_path / "project"
    for name in ("own.py", "deep/helper.py", "secret"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "link.py").symlink_to("deep/helper.py")
    own = Workload(
        name="own-Work",
        path=source / "own.py",
        class_name="Work",
        files=("deep/helper.py", "link.py", "own.py"),
    )
    sent = Path(CellFolders(session=session).name_of(own).rpartition(":")[0]).parent
    found = {str(path.relative_to(sent)) for path in sent.rglob("*") if path.is_file()}
    assert found == {"deep/helper.py", "link.py", "own.py"}
    assert not (sent / "link.py").is_symlink()


MAKES_DATA = """
import os, pathlib


class Honest:
    @staticmethod
    def make(folder):
        pathlib.Path(folder, "data").write_text("1")


class Swaps:
    @staticmethod
    def make(folder):
        pathlib.Path(folder, "data").write_text("1")
        target = pathlib.Path(os.environ["TARGET"])
        rename = os.rename

        def plant(source, made):
            rename(source, made)
            rename(made, made + ".old")
            os.symlink(target, made)

        os.rename = plant
"""


@pytest.fixture
def makes_data(session: HostSession, tmp_path: Path) -> Callable[[str], str]:
    """Return what prepares the data of a class in an arm, and gives its folder."""
    path = tmp_path / "makes.py"
    path.write_text(MAKES_DATA)
    (tmp_path / "secret").mkdir()
    variables = (("TARGET", str(tmp_path / "secret")),)
    prepared = Prepared(interpreter=sys.executable, variables=variables)
    session.arms["given"] = ready("given", "vm", prepared)
    experiment, _ = resolved(Settings(), Settings())

    def prepare(name: str) -> str:
        cell = CellFolders(session=session)
        return cell.prepare_data(
            Workload(name=f"makes-{name}", path=path, class_name=name), {}, experiment
        )

    return prepare


NEEDS_MORE = """
import rare


class Needs:
    @staticmethod
    def make(folder):
        rare.write(folder)
"""


def arm_with(modules: Path | None) -> tuple[str, ReadyArm]:
    """Return an arm of this machine that finds modules in a folder."""
    name = modules.name if modules else "bare"
    variables = (("PYTHONPATH", str(modules)),) if modules else ()
    prepared = Prepared(interpreter=sys.executable, variables=variables)
    return name, ready(name, "vm", prepared)


def test_data_are_made_in_an_arm_that_can_import_the_workload(
    session: HostSession, tmp_path: Path
) -> None:
    """Where none can, the missing module is named with the first such arm and its Python."""
    path = tmp_path / "needs.py"
    path.write_text(NEEDS_MORE)
    own = Workload(name="needs-Needs", path=path, class_name="Needs")
    experiment, _ = resolved(Settings(), Settings())
    session.arms |= [arm_with(None)]
    with pytest.raises(WorkloadError) as caught:
        CellFolders(session=session).prepare_data(own, {}, experiment)
    said = f"needs.py:Needs cannot be imported in bare ({sys.executable}): ModuleNotFoundError: "
    assert caught.value.phase == "import"
    assert caught.value.brief == f"{said}No module named 'rare'"
    assert "has no module rare" in caught.value.hint
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "rare.py").write_text(
        "import pathlib\ndef write(folder): pathlib.Path(folder, 'made').touch()"
    )
    session.arms |= [arm_with(tmp_path / "full")]
    made = CellFolders(session=session).prepare_data(own, {}, experiment)
    assert Path(made, "made").exists()


@pytest.fixture
def private(session: HostSession) -> Iterator[Path]:
    """Give the folder in which a plain process of the session has its data in memory."""
    folder = Path(all_traits()["vm"].placing("tmpfs").private.format(run=session.run_id))
    yield folder
    environment("vm").sweep(LOCAL, session.run_id)


def temporary_files(session: HostSession) -> list[Path]:
    """Return a temporary file that each of two plain processes makes."""
    for name in ("one", "two"):
        session.arms[name] = ready(name, "vm", Prepared(interpreter=sys.executable))
    session.stage()
    argv = (sys.executable, "-c", "import tempfile; print(tempfile.mkstemp()[1])")
    starts = (
        session.wrapped(arm, Command(argv=argv), mounts=(), worker="w")
        for arm in session.arms.values()
    )
    return [Path(run(LOCAL, start).stdout.strip()) for start in starts]


@pytest.fixture
def of_login(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder that the login names as its TMPDIR."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_a_plain_process_has_temporary_files_of_its_own(
    session: HostSession, of_login: Path
) -> None:
    """They lie where the login wants them; a file of one arm is found by no other, and removed."""
    made = temporary_files(session)
    assert [path.parent.name for path in made] == ["one", "two"]
    (top,) = {path.parent.parent for path in made}
    assert top.parent == of_login
    assert top.stat().st_mode & 0o777 == 0o700
    environment("vm").sweep(LOCAL, session.run_id)
    assert list(of_login.iterdir()) == []


def test_temporary_files_lie_in_tmp_where_the_login_names_no_folder(
    session: HostSession, of_login: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every program takes a TMPDIR that is not there."""
    monkeypatch.setenv("TMPDIR", str(of_login / "none"))
    assert {path.parents[2] for path in temporary_files(session)} == {Path("/tmp")}
    environment("vm").sweep(LOCAL, session.run_id)


def test_temporary_files_are_removed_where_the_login_has_another_folder_by_then(
    session: HostSession, of_login: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a batch job's own TMPDIR."""
    temporary_files(session)
    assert list(of_login.iterdir())
    monkeypatch.delenv("TMPDIR")
    left = keeper.Claim(run_id=session.run_id, environments=("vm",))
    keeper.remove(LOCAL, session.cache, left, environments=ENVIRONMENTS)
    assert list(of_login.iterdir()) == []


def test_a_long_path_of_the_login_is_made_no_longer(
    session: HostSession, of_login: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the sockets of multiprocessing would have no room in their path."""
    long = of_login / ("long" * 9)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    assert {path.parent for path in temporary_files(session)} == {long}


def test_data_in_memory_of_the_host_are_of_this_login_alone(
    session: HostSession, private: Path
) -> None:
    """Also the second time, for the control."""
    experiment, _ = resolved(Settings(), Settings())
    vm = Arm(id="vm", environment="vm", traits=all_traits()["vm"])
    folders = CellFolders(session=session, place="tmpfs")
    for control in ("", "vm~control"):
        placed = folders.place_data(vm, "/data", experiment, control=control)
        assert placed is not None
        assert Path(placed.folder).parent == private
        assert private.stat().st_mode & 0o777 == 0o700
        private.chmod(0o777)


def test_data_are_put_into_no_folder_of_another_user(
    session: HostSession, private: Path, tmp_path: Path
) -> None:
    """Who has it could read them, or put others in their place."""
    experiment, _ = resolved(Settings(), Settings())
    vm = Arm(id="vm", environment="vm", traits=all_traits()["vm"])
    private.symlink_to(tmp_path)
    try:
        with pytest.raises(UnusableError, match="a private folder"):
            CellFolders(session=session, place="tmpfs").place_data(vm, "/data", experiment)
    finally:
        private.unlink()


def test_an_image_with_data_is_made_once_for_all_cells_and_arms_that_run_it(
    session: HostSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker and gVisor have the images of one engine."""
    made: list[str] = []

    def hold(
        _: Docker, _transport: Transport, isolation: Isolation, data: str, *, compression: str
    ) -> str:
        assert compression == "zstd"
        made.append(f"{isolation.reference} {data}")
        return f"held-{len(made)}"

    monkeypatch.setattr(Docker, "hold", hold)
    experiment, _ = resolved(Settings(), Settings())
    images = {"docker": "app:1", "gvisor": "app:1", "new": "app:2"}
    for arm_id, reference in images.items():
        engine = "gvisor" if arm_id == "gvisor" else "docker"
        prepared = Prepared(interpreter="python", reference=reference)
        session.arms[arm_id] = ready(arm_id, engine, prepared)
    for _ in range(2):
        held = {arm: session.hold(arm, "/data", experiment) for arm in images}
        assert held == {"docker": "held-1", "gvisor": "held-1", "new": "held-2"}
    assert session.hold("new", "/more", experiment) == "held-3"
    assert made == ["app:1 /data", "app:2 /data", "app:2 /more"]


def test_nothing_starts_until_a_worker_is_shown_to_have_ended(
    session: HostSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its engine does not say so to the end, the folder stays for a later run to find it."""
    for tries in ("_TRIES", "_TRIES_OF_WORKER"):
        monkeypatch.setattr(oci, tries, 0)
    programs = Programs(first_on_path(tmp_path, monkeypatch))
    programs.program("docker", "exit 1")
    session.arms["docker"] = ready("docker", "docker", Prepared(interpreter=""))
    with pytest.raises(StillRunningError):
        session.end("docker", "0f")
    with pytest.raises(StillRunningError):
        session.spawn(Command(argv=("true",)))
    programs.program("docker", "exit 0")
    assert session.spawn(Command(argv=("true",))).wait(60) == 0
    programs.program("docker", "exit 1")
    (said,) = session.close()
    assert said.startswith("docker could not be swept: cannot confirm")
    assert Path(session.folder).is_dir()


def test_data_stands_alone_in_the_folder_that_an_arm_may_write_to(
    session: HostSession, makes_data: Callable[[str], str]
) -> None:
    """What makes the data of one workload cannot reach that of another."""
    made = Path(makes_data("Honest"))
    assert (made / "data").read_text() == "1"
    assert [path.name for path in made.parent.iterdir()] == ["data"]
    assert made.parent.parent == Path(session.folder) / "data"


def test_a_link_in_the_place_of_data_is_refused(makes_data: Callable[[str], str]) -> None:
    """Every arm would be shown the folder of the host that it leads to."""
    with pytest.raises(WorkloadError, match="is not a folder") as caught:
        makes_data("Swaps")
    assert caught.value.phase == "data"
    assert caught.value.hint


def test_folder_that_is_not_there_is_named(session: HostSession, tmp_path: Path) -> None:
    """Nothing is shown then."""
    cell = CellFolders(session=session)
    with pytest.raises(WorkloadError, match=f"{tmp_path}/none of the command is not on local"):
        cell.show_command(f"{tmp_path}/none", None)
    assert cell.shown == ()


def test_worker_starts_as_a_user_of_the_image_starts_python(
    session: HostSession, tmp_path: Path
) -> None:
    """A wrapper around `python3` is in effect; the launcher of a command is the tool's own."""
    session.transport = recorder = RecordsStarts()
    prepared = Prepared(interpreter="/opt/python3.11", started_as="python3")
    session.arms["vm"] = ready("vm", "vm", prepared)
    cell = CellFolders(session=session)
    for program in ("harness/worker.py", "harness/measuring.py"):
        cell.launch("vm", program, log=tmp_path / "log", log_name="log").kill()
    assert [command.argv[-2:] for command in recorder.commands] == [
        ("python3", f"{session.workloads}/harness/worker.py"),
        ("/opt/python3.11", f"{session.workloads}/harness/measuring.py"),
    ]


@pytest.mark.parametrize(
    ("argv", "given", "said", "code"),
    [
        ((sys.executable, str(WORKER)), '{"op": "nope"}\n', ("no operation 'nope'", ""), 0),
        ((sys.executable, str(WORKER)), "", ("", ""), 0),
        (("sh", "-c", "echo refused; exit 125"), '{"op": "nope"}\n', ("", "refused"), 125),
        (("sh", "-c", LEFT_BEHIND), "", ("", "lost"), 125),
    ],
    ids=[
        "a request is answered",
        "nothing is asked",
        "nothing opens the pipes",
        "a client is lost",
    ],
)
def test_requests_pass_by_what_starts_a_worker(
    tmp_path: Path, argv: tuple[str, ...], given: str, said: tuple[str, str], code: int
) -> None:
    """What it prints itself is no reply, its exit code stays, and the pipes are gone."""
    folder = tmp_path / "channel"
    command = relayed(Command(argv=argv), str(folder))
    done = subprocess.run(
        command.argv,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=15,
        env={**os.environ, "ENVCOMPARE_CHANNEL": str(folder)},
    )
    assert done.returncode == code
    replied, logged = said
    assert bool(done.stdout) == bool(replied)
    assert replied in done.stdout
    assert logged in done.stderr
    assert not folder.exists()


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("requests", "replies"), "No such device or address"),  # as under another kernel
        ((), "No such file or directory"),
    ],
    ids=["nobody reads", "none are shown"],
)
def test_a_worker_whose_pipes_lead_nowhere_says_so_at_once(
    tmp_path: Path, names: tuple[str, ...], why: str
) -> None:
    """It waits for nobody: nothing would ever end that."""
    for name in names:
        os.mkfifo(tmp_path / name)
    done = subprocess.run(
        (sys.executable, str(WORKER)),
        env={**os.environ, "ENVCOMPARE_CHANNEL": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 76
    assert done.stderr == f"the pipes in {tmp_path} lead nowhere: {why}\n"
