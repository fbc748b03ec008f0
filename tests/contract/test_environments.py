"""One contract for every environment, on real engines: what it gives a command, what it leaves."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from lab import need
from runs import BASE
from software import sif_of

from envcompare.environments import Environment, Gpu, Isolation, gpu, run_inside
from envcompare.environments.bubblewrap import LayeredBubblewrap
from envcompare.environments.oci import ENGINE, image_store
from envcompare.environments.registry import ENVIRONMENTS, environment
from envcompare.environments.rootfs import unpack
from envcompare.errors import CommandTimeoutError
from envcompare.stack import Mount, Progress, Request, image
from envcompare.stack.storage import ImageStore
from envcompare.text import Command, CommandResult
from envcompare.transport import LOCAL, Process, Transport, run
from envcompare.transport.hosts import connect, parse_hosts

HOSTILE = (
    "",
    " two  words ",
    "$HOME `id` $(id)",
    'it\'s "quoted" \\ back',
    "line\nbreak\tand tab",
    "é ☃ 日本",
    "a,b:c=d,E=f",
    "-n",
    "*?[a-z]~;&|<>!#",
)
# Says what it was given and what it may do; the folder that cannot be written comes first.
REPORT = """
import json, os, shutil, sys
names, folders, arguments = sys.argv[1].split(), json.loads(sys.argv[2]), sys.argv[4:]
denied = {}
for folder in folders:
    try:
        open(os.path.join(folder, "result"), "w").close()
    except OSError as error:
        denied[folder] = error.strerror
if os.environ["HOME"] == sys.argv[3]:  # and not that of the login
    open(os.path.join(os.environ["HOME"], "kept"), "w").write("kept")
open("/tmp/temporary", "w").close()
said = {
    "arguments": arguments, "variables": {name: os.environ.get(name) for name in names},
    "folder": os.getcwd(), "home": os.environ["HOME"], "denied": denied,
    "free_bytes": shutil.disk_usage("/tmp").free,
}
os.remove("/tmp/temporary")
sys.stderr.write("err")
sys.stdout.write(json.dumps(said))
sys.exit(42)
"""
# Like the worker: obeys lines of stdin, and ends with them.
ECHO = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    print(line.strip().upper(), flush=True)
"""
# Hangs: computes, or waits beside a child that has a session of its own. Seven that compute, in
# gVisor, keep sshd on a host with two cores from replying for half a minute.
WAITS = "import threading; threading.Event().wait()"
HUNG = f"""
import os, signal, subprocess, sys
kind, words = sys.argv[1:]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = [sys.executable, "-c", {WAITS!r}, words]
if kind == "child":
    subprocess.Popen(child, start_new_session=True)
elif kind == "bare":
    subprocess.Popen(child, start_new_session=True, env={{}})
elif kind == "orphan" and os.fork() == 0:
    subprocess.Popen(child, start_new_session=True)
    os._exit(0)
print("ready", flush=True)
while kind == "spins":
    pass
{WAITS}
"""
HANGS = {"spins": 1, "child": 2, "bare": 2, "orphan": 2}  # with so many processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An environment on a host, with an image that holds Python."""

    transport: Transport
    environment: Environment
    isolation: Isolation

    def start(self, command: Command, **changes: Any) -> Process:
        """Start a command in the environment."""
        isolation = replace(self.isolation, **changes)
        return self.transport.spawn(self.environment.wrap(command, isolation))

    def run(self, *argv: str, cwd: str | None = None, **changes: Any) -> CommandResult:
        """Run a command in the environment to its end."""
        isolation = replace(self.isolation, **changes)
        command = Command(argv=argv, cwd=cwd)
        return run(self.transport, self.environment.wrap(command, isolation), timeout_s=60)

    def on_host(self, *argv: str) -> str:
        """Run a command on the host itself and return what it printed."""
        return run(self.transport, Command(argv=argv), timeout_s=60).stdout.strip()

    def shows(self, words: str) -> bool:
        """Tell whether a process of the host has these words in its command line."""
        return words in self.on_host("ps", "-eo", "args").splitlines()

    def processes(self, words: str) -> list[str]:
        """Return the command lines of the host's processes that have these words in them."""
        lines = self.on_host("ps", "-ewwo", "stat,args").splitlines()
        return [line for line in lines if words in line and not line.startswith("Z")]

    def containers(self) -> list[str]:
        """Return the containers of this run that the host's engine holds, in any state."""
        label = f"label=envcompare.run={self.isolation.run_id}"
        assert self.environment.engine is not None
        program = self.environment.engine.program
        return self.on_host(program, "ps", "-aq", "--filter", label).split()


@pytest.fixture(scope="session")
def base() -> image.Image:
    """Give a small image with Python in the local engine."""
    need("docker")
    found = image.find(image_store(LOCAL), BASE)
    assert found is not None, f"{BASE} is not here; script/lab up makes it"
    return found


def _params(*which: Environment) -> list[Any]:
    """Return each environment on the lab host, and here too if it needs no more than Docker."""
    params = []
    for where in which:
        layered = isinstance(where, LayeredBubblewrap)
        own = {"bubblewrap" if layered else where.name} if where.traits.is_isolated else set()
        for host, needed in (
            ("local", own),
            ("ssh", own | {"ssh"} | ({"docker"} if own else set())),
        ):
            if host == "ssh" or needed <= {"docker"}:
                marks = [pytest.mark.engine(engine) for engine in sorted(needed)]
                params.append(
                    pytest.param((host, where.name), id=f"{where.name}-{host}", marks=marks)
                )
    return params


def _places(*which: Environment) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("open_place", _params(*which), indirect=True)


_LOWER_RUNGS = [where for where in ENVIRONMENTS.values() if isinstance(where, LayeredBubblewrap)][
    :-1
]
ALL = [where for where in ENVIRONMENTS.values() if where not in _LOWER_RUNGS]
CONTAINERS = [where for where in ALL if where.traits.is_isolated]
# A new environment gets every test; these cannot do what some of them ask for.
_SHOWS_NO_FOLDER_READ_ONLY = {"charliecloud"}
_HAS_PROCESSES_OF_ITS_OWN = {"gvisor"}  # none of the host's

read_only = _places(*(one for one in CONTAINERS if one.name not in _SHOWS_NO_FOLDER_READ_ONLY))
containers_only = _places(*CONTAINERS)
with_store_only = _places(*(one for one in CONTAINERS if one.engine))
docker_only = _places(environment("docker"))
singularity_only = _places(environment("singularity"))
seen_on_host = _places(*(one for one in ALL if one.name not in _HAS_PROCESSES_OF_ITS_OWN))


@pytest.fixture(scope="module", params=_params(*ALL))
def open_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Give each environment on each host, with its image in place."""
    host, name = request.param
    alias = "local" if host == "local" else request.getfixturevalue("lab").alias
    transport = connect(parse_hosts([alias])[0])
    reference = ""
    where = environment(name)
    if where.traits.is_isolated:
        reference = _reference(transport, name, request.getfixturevalue("base"))
    ids = run(transport, Command(argv=("sh", "-c", "id -u; id -g"))).stdout.split()
    yield Place(
        transport=transport,
        environment=where,
        isolation=Isolation(
            run_id="",
            arm="test",
            reference=reference,
            uid=int(ids[0]),
            gid=int(ids[1]),
            layers=where.find_layers(transport)[0] if isinstance(where, LayeredBubblewrap) else (),
        ),
    )
    transport.close()


def _reference(transport: Transport, name: str, base: image.Image) -> str:
    engine = environment(name).engine
    store = ImageStore(engine=engine, transport=transport) if engine else image_store(transport)
    there = image.deliver(store, base, local=image_store(LOCAL), progress=Progress(print))
    if engine:
        return there.id
    if name != "singularity":
        return _files_of(transport, there)
    return sif_of(transport, there, compression="zstd", say=print).path


def _files_of(transport: Transport, there: image.Image) -> str:
    """Return a folder of the host with the files of an image of the engine there."""
    request = Request(transport=transport, progress=Progress(print), builder=ENGINE)
    return unpack(request, image_store(transport), there)


@contextmanager
def _own_run(place: Place) -> Iterator[Place]:
    """Give the place with a run of its own, and a scratch folder with a difficult name."""
    run_id = uuid.uuid4().hex
    # Charliecloud cannot show a path with a colon
    colon = "" if place.environment.name == "charliecloud" else "colon: and "
    folder = f'/tmp/envcompare-test-{run_id}/with space, {colon}"quotes"'
    run(place.transport, Command(argv=("mkdir", "-p", f"{folder}/data", f"{folder}/scratch")))
    isolation = replace(
        place.isolation,
        run_id=run_id,
        mounts=(Mount(path=f"{folder}/data"),),
        scratch=f"{folder}/scratch",
    )
    yield replace(place, isolation=isolation)
    place.environment.sweep(place.transport, run_id)
    run(place.transport, Command(argv=("rm", "-rf", f"/tmp/envcompare-test-{run_id}")))


@pytest.fixture
def place(open_place: Place) -> Iterator[Place]:
    """Give the place with a run of its own."""
    with _own_run(open_place) as own:
        yield own


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What one start of a program in an environment gave it and brought back."""

    place: Place
    result: CommandResult
    results: str  # the folder that it could write to

    @property
    def said(self) -> Any:
        """Return what the program found: its output is the protocol's alone."""
        return json.loads(self.result.stdout)


@pytest.fixture(scope="module")
def started(open_place: Place) -> Iterator[Started]:
    """Start a program once, with hostile arguments and two mounted folders."""
    with _own_run(open_place) as own:
        data, results = own.isolation.mounts[0], f"{own.isolation.scratch}-results"
        own.on_host("mkdir", results)
        mounts = (data, Mount(path=results, is_read_only=False))
        place = replace(own, isolation=replace(own.isolation, mounts=mounts))
        names = [f"HOSTILE_{number}" for number in range(len(HOSTILE))]
        words = (" ".join(names), json.dumps([data.path, results]), own.isolation.scratch)
        command = Command(
            argv=("python3", "-c", REPORT, *words, *HOSTILE),
            env=tuple(zip(names, HOSTILE, strict=True)),
            cwd=data.path,
        )
        wrapped = place.environment.wrap(command, place.isolation)
        result = run(place.transport, wrapped, timeout_s=60)
        yield Started(place=place, result=result, results=results)


def test_arguments_and_variables_arrive_unchanged(started: Started) -> None:
    """No engine, shell or option parser on the way changes a word."""
    assert started.said["arguments"] == list(HOSTILE)
    assert list(started.said["variables"].values()) == list(HOSTILE)


def test_the_command_starts_in_the_directory_it_names(started: Started) -> None:
    """A mounted path is the same inside, difficult name and all."""
    assert started.said["folder"] == started.place.isolation.mounts[0].path


@containers_only
def test_a_container_has_the_scratch_folder_as_its_home(started: Started) -> None:
    """What a library writes to its home or to /tmp stays out of the image and the user's home."""
    scratch = started.place.isolation.scratch
    assert started.said["home"] == scratch
    assert started.place.on_host("cat", f"{scratch}/kept") == "kept"
    assert started.said["free_bytes"] > 100e6, "the 64 MB of a private /tmp do not suffice"


def test_the_exit_code_is_the_commands_own(started: Started) -> None:
    """Neither engine nor transport has its say about it."""
    assert started.result.exit_code == 42


def test_stdout_and_stderr_stay_apart_and_nothing_is_added(started: Started) -> None:
    """Stdout is the protocol's alone, and an engine that talks would break it."""
    assert started.result.stderr == "err"
    assert started.result.stdout == json.dumps(started.said)


@read_only
def test_a_read_only_mount_cannot_be_written(started: Started) -> None:
    """What is shown to all arms cannot be changed by one of them."""
    data = started.place.isolation.mounts[0].path
    assert started.said["denied"] == {data: "Read-only file system"}


def test_results_belong_to_the_caller(started: Started) -> None:
    """A user can remove what an arm wrote without being root."""
    owner = started.place.on_host("stat", "-c", "%u:%g", f"{started.results}/result")
    isolation = started.place.isolation
    assert owner == f"{isolation.uid}:{isolation.gid}"


@seen_on_host
def test_death_by_signal_is_128_and_the_signal(place: Place) -> None:
    """A worker killed for memory is told from one that gave up."""
    words = _unique_sleep()
    process = place.start(Command(argv=("sh", "-c", f"echo ready; exec {words}")))
    assert process.stdout.readline() == b"ready\n"
    _eventually(lambda: place.shows(words))
    place.on_host("pkill", "-KILL", "-x", "-f", words)
    assert process.wait(30) == 137


def test_a_missing_program_ends_with_127(place: Place) -> None:
    """The same code as in a shell, whichever engine looked for it."""
    assert place.run("no-such-program").exit_code == 127


def test_lines_go_to_and_fro_until_stdin_ends(place: Place) -> None:
    """A worker answers line by line, and the end of its input is its end."""
    process = place.start(Command(argv=("python3", "-c", ECHO)))
    assert process.stdout.readline() == b"ready\n"
    for word in (b"one\n", b"two\n"):
        process.stdin.write(word)
        assert process.stdout.readline() == word.upper()
    process.stdin.close()
    assert process.wait(30) == 0
    assert place.environment.sweep(place.transport, place.isolation.run_id) == 0


@seen_on_host
def test_a_sweep_after_a_kill_leaves_nothing_behind(place: Place) -> None:
    """A workload that ignores its input outlives the connection, but not the sweep."""
    words = _unique_sleep()
    process = place.start(Command(argv=("sh", "-c", f"{words} & echo ready; {words}")))
    assert process.stdout.readline() == b"ready\n"
    _eventually(lambda: place.shows(words))  # its child may still be on its way
    process.kill()
    place.environment.sweep(place.transport, place.isolation.run_id)
    process.wait(30)
    _eventually(lambda: not place.shows(words))
    assert place.environment.sweep(place.transport, place.isolation.run_id) == 0
    if place.environment.engine is not None:
        assert place.containers() == []


def test_a_sweep_spares_other_runs(place: Place) -> None:
    """Two runs on one host do not end each other."""
    other = place.isolation.run_id + "0"
    process = place.start(Command(argv=("python3", "-c", ECHO)), run_id=other)
    assert process.stdout.readline() == b"ready\n"
    assert place.environment.sweep(place.transport, place.isolation.run_id) == 0
    process.stdin.write(b"alive\n")
    assert process.stdout.readline() == b"ALIVE\n"
    assert place.environment.sweep(place.transport, other) >= 1
    assert process.wait(30) == 137


def test_a_worker_that_hangs_is_ended_inside_with_all_it_started(place: Place) -> None:
    """Whatever signals it ignores and whatever session its children are in; others go on."""
    run_words = uuid.uuid4().hex
    other = place.start(Command(argv=("python3", "-c", ECHO)), worker="other")
    assert other.stdout.readline() == b"ready\n"
    hung = [
        place.start(
            Command(argv=("python3", "-c", HUNG, kind, f"{kind}-{run_words}")), worker="hung"
        )
        for kind in HANGS
    ]
    for process in hung:
        assert process.stdout.readline() == b"ready\n"
    for kind, processes in HANGS.items():
        _eventually(lambda: len(place.processes(f"{kind}-{run_words}")) >= processes)  # noqa: B023
    assert place.environment.sweep(place.transport, place.isolation.run_id, worker="hung") >= 1
    for process in hung:
        process.kill()
    assert place.processes(run_words) == []
    other.stdin.write(b"alive\n")
    assert other.stdout.readline() == b"ALIVE\n"
    other.kill()


@seen_on_host
def test_a_command_that_is_given_up_does_not_go_on_inside(place: Place) -> None:
    """What makes data or proves a stack hangs as a worker does."""
    words = f"hung-{uuid.uuid4().hex}"
    command = Command(argv=("python3", "-c", HUNG, "child", words))
    child = f"-c {WAITS} {words}"
    limits_s = iter((3, 10, 30, 90))  # until one lets it start: a slow machine takes its time
    was_inside = False
    while not was_inside:
        ends = partial(
            run_inside, place.transport, command, where=place.environment,
            isolation=place.isolation, timeout_s=next(limits_s),
        )  # fmt: skip
        with ThreadPoolExecutor() as beside:
            done = beside.submit(ends)
            while not done.done():
                was_inside |= any(child in line for line in place.processes(words))
            assert isinstance(done.exception(), CommandTimeoutError)
        assert place.processes(words) == []


@with_store_only
def test_a_sweep_removes_containers_that_never_started(place: Place) -> None:
    """An engine keeps a container whose start failed, in the state `created`."""
    label = f"envcompare.run={place.isolation.run_id}"
    assert place.environment.engine is not None
    program = place.environment.engine.program
    place.on_host(program, "create", "--label", label, place.isolation.reference, "true")
    assert len(place.containers()) == 1
    assert place.environment.sweep(place.transport, place.isolation.run_id) == 1
    assert place.containers() == []


def test_a_usable_environment_says_its_version(place: Place) -> None:
    """The check tries what it claims, and gives no reason where there is none."""
    check = place.environment.check(place.transport)
    assert check.is_usable
    assert check.version
    assert (check.reason, check.hint) == ("", "")


def test_no_gpu_is_said_with_its_reason(place: Place) -> None:
    """`--nv` alone proves nothing: the driver itself is asked."""
    if place.on_host("sh", "-c", "ls /proc/driver/nvidia 2>/dev/null"):
        pytest.skip("this host has an NVIDIA driver")
    driver = gpu.find(place.transport, gpu.check_driver(place.transport))
    check = place.environment.check_gpu(place.transport, driver)
    assert not check.is_usable
    assert check.reason == "no NVIDIA driver is loaded (/proc/driver/nvidia/version is missing)"


def test_cuda_itself_is_asked_whether_a_process_reaches_the_gpu(place: Place) -> None:
    """Without a driver the loader's complaint is the reason, or that of a library left behind."""
    interpreter = Command(argv=("python3",))
    driver = gpu.find(place.transport, gpu.check_driver(place.transport))
    found = place.environment.check_gpu(place.transport, driver)
    isolation = replace(place.isolation, gpu=found.gpu)
    inside = gpu.check_inside(place.transport, place.environment, interpreter, isolation)
    assert inside.is_usable == found.is_usable
    if not found.is_usable:
        complaints = ("libcuda.so.1: cannot open shared", "no CUDA-capable device is detected")
        assert any(complaint in inside.reason for complaint in complaints)
        assert inside.hint


@docker_only
def test_the_drivers_libraries_are_found_in_an_image_that_lacks_them(place: Place) -> None:
    """A library of the host, under a name that no image has, is loaded by that name."""
    cache = "PATH=$PATH:/sbin ldconfig -p | sed -n 's/.*libz[.]so[.]1 .* => //p' | head -n 1"
    library = ("libenvcompare.so.1", place.on_host("sh", "-c", cache))
    program = "import ctypes; ctypes.CDLL('libenvcompare.so.1').zlibVersion"
    given = Gpu(way="devices", libraries=(library,))
    assert place.run("python3", "-c", program, gpu=given).succeeded
    assert "cannot open shared object file" in place.run("python3", "-c", program).stderr


@containers_only
def test_an_image_that_is_not_there_is_named(place: Place) -> None:
    """The engine's complaint becomes a sentence with the image's name."""
    has_store = place.environment.engine is not None
    reference = "envcompare-test:not-there" if has_store else "/not/there.sif"
    result = place.run("true", reference=reference)
    explanation = place.environment.explain(result.exit_code, result.stderr)
    assert explanation is not None
    assert explanation.brief.startswith(f"the image {reference} is not on the host")


@containers_only
def test_a_missing_mount_is_an_error_and_not_a_new_folder(place: Place) -> None:
    """An engine that makes what it does not find would run the workload on nothing."""
    result = place.run("true", mounts=(Mount(path="/not/there"),))
    explanation = place.environment.explain(result.exit_code, result.stderr)
    assert explanation is not None
    assert explanation.brief.startswith("/not/there does not exist on the host")


@singularity_only
@pytest.mark.parametrize("harm", ["head -c 2000000", "dd bs=40000 skip=1 status=none"])
def test_a_damaged_image_file_is_called_that(place: Place, harm: str) -> None:
    """Neither a SIF that was cut short nor one without its head starts."""
    damaged = f"{place.isolation.scratch}/damaged.sif"
    place.on_host("sh", "-c", f'{harm} <"$1" >"$2"', "sh", place.isolation.reference, damaged)
    result = place.run("true", reference=damaged)
    explanation = place.environment.explain(result.exit_code, result.stderr)
    assert explanation is not None, result
    assert explanation.brief.startswith("the image is damaged or truncated"), result


def _unique_sleep() -> str:
    """Return a command by which the process table shows that it runs."""
    return f"sleep 300.{random.randrange(10**9):09d}"


def _eventually(claim: Callable[[], bool]) -> None:
    """Wait for the kernel and the engine to follow."""
    end = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < end
        time.sleep(0.1)
