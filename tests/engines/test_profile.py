"""Profiles of a real run: in each environment, with what a host has and what it lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benches import WORKER
from lab import Lab
from runs import BASE, LIGHT, Done, envcompare, resume

from envcompare.environments import Check, Isolation
from envcompare.environments.docker import Docker
from envcompare.environments.oci import image_store
from envcompare.hosts import HostSession, ReadyArm
from envcompare.measure import LaunchSpec
from envcompare.measure.worker import Worker
from envcompare.profile_files import read
from envcompare.profilers import Pass, ProfilerRun, Quarantine, Tool
from envcompare.profilers.ncu import MEMORY
from envcompare.profilers.nsys import Nsys
from envcompare.run_folder.records import ArmRecord
from envcompare.stack import Mount, Prepared, Progress, image
from envcompare.text import Command
from envcompare.transport import LOCAL, make_folder, run
from envcompare.transport.copies import put_file
from envcompare.transport.hosts import connect, parse_hosts

pytestmark = pytest.mark.timeout(420)
ARMS = ("vm", "docker", "singularity")
GPU_PASSES = ("nsys", "ncu-memory", "ncu-flops")


@pytest.fixture(scope="module")
def profiled(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Return a short run in three environments, profiled by default."""
    return envcompare(
        tmp_path_factory.mktemp("profiled"),
        *("--hosts", lab.alias, "--envs", ",".join(ARMS), "--workloads", "cnn"),
        *("--budget", "12", "--seed", "5", "--no-startup", "--no-quiet-gate"),
    )


def records(done: Done) -> dict[tuple[str, str], Any]:
    """Return the records of a run by arm and kind."""
    assert done.folder is not None, done.stderr
    paths = sorted((done.folder / "profiles").glob("*/*/*.json"))
    found = [json.loads(path.read_text()) for path in paths]
    return {(one["arm"], one["kind"]): one for one in found}


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
@pytest.mark.engine("singularity")
class TestWithoutGpu:
    """On a host without a GPU every arm has what the worker itself can tell."""

    def test_the_run_ends_well_and_says_what_was_profiled(self, profiled: Done) -> None:
        """What is missing is no failure."""
        assert profiled.exit_code == 0, profiled.stderr
        assert "profiled by host, flops, torch; without nsys" in profiled.stderr

    @pytest.mark.parametrize("arm", ARMS)
    def test_every_environment_has_the_profiles_of_its_worker(
        self, profiled: Done, arm: str
    ) -> None:
        """The same steps of the same program that was timed."""
        found = records(profiled)
        codes = {
            e["values"]["code"] for e in profiled.lines("events.jsonl") if "code" in e["values"]
        }
        for kind in ("host", "flops", "torch"):
            one = found[arm, kind]
            assert (one["state"], one["steps"], one["batch"]) == ("ok", 5, 64), one["lacks"]
            assert {one["code_hash"]} == codes

    def test_model_flops_are_the_same_in_every_environment(self, profiled: Done) -> None:
        """They are those of the mathematics: 4,580,179,968 in a step of this CNN."""
        found = records(profiled)
        for arm in ARMS:
            (quantity,) = found[arm, "flops"]["profile"]["quantities"]
            assert quantity["value"] == 5 * 4_580_179_968

    def test_operators_are_those_of_the_workload(self, profiled: Done) -> None:
        """The trace is kept beside them."""
        for arm in ARMS:
            one = records(profiled)[arm, "torch"]
            names = {operator["name"] for operator in one["profile"]["operators"]}
            assert {"aten::convolution", "aten::addmm"} <= names
            assert profiled.folder is not None
            assert (profiled.folder / one["raw"][0]).stat().st_size > 1000

    def test_what_needs_a_gpu_is_missing_with_its_reason(self, profiled: Done) -> None:
        """The control is the reference again: of it only programs beside it are looked at."""
        found = records(profiled)
        assert {key for key in found if key[0] not in ARMS} == {("vm~control", "host")}
        for arm in ARMS:
            for kind in GPU_PASSES:
                assert found[arm, kind]["state"] == "missing"
                assert found[arm, kind]["lacks"]["why"] == "no-gpu"
                assert "no GPU" in found[arm, kind]["lacks"]["problem"]["brief"]

    def test_an_interrupted_run_does_the_missing_profiles_alone(self, profiled: Done) -> None:
        """The timing that is whole is not done again."""
        assert profiled.folder is not None
        before = len(profiled.lines("samples.jsonl"))
        path = profiled.folder / "events.jsonl"
        lines = path.read_text().splitlines()
        ended = next(n for n, line in enumerate(lines) if json.loads(line)["what"] == "cell-ended")
        path.write_text("\n".join(lines[:ended]) + "\n")
        (profiled.folder / "profiles" / "lab-h1_cnn_default" / "docker" / "flops.json").unlink()
        resume(profiled.folder)
        assert len(profiled.lines("samples.jsonl")) == before
        events = [json.loads(line) for line in path.read_text().splitlines()[ended:]]
        assert [(e["arm"], e["text"]) for e in events if e["what"] == "profiled"] == [
            ("docker", "flops")
        ]
        assert records(profiled)["docker", "flops"]["state"] == "ok"

    @pytest.mark.nightly
    def test_an_ended_run_tries_again_the_profile_that_failed(self, profiled: Done) -> None:
        """Its cell ended well, since a profile is no part of the timing."""
        assert profiled.folder is not None
        before = len(profiled.lines("samples.jsonl"))
        path = profiled.folder / "profiles" / "lab-h1_cnn_default" / "docker" / "flops.json"
        lacks = {"why": "failed", "problem": {"brief": "it died"}}
        broken = {"state": "missing", "lacks": lacks, "profile": None}
        path.write_text(json.dumps({**json.loads(path.read_text()), **broken}))
        resume(profiled.folder)
        found = records(profiled)["docker", "flops"]
        assert (found["state"], found["lacks"], found["steps"]) == ("ok", None, 5)
        assert len(profiled.lines("samples.jsonl")) == before


@pytest.mark.engine("docker")
def test_nsys_runs_inside_a_container_that_is_shown_its_folder(tmp_path: Path) -> None:
    """The protocol stays whole, and the host exports what the tool left inside."""
    found = Nsys().discover(LOCAL)
    if isinstance(found, Check):
        pytest.skip(found.reason)
    (tmp_path / "light.py").write_text(LIGHT)
    profiler = _from_the_start(found, tmp_path / "scratch")
    worker = _in_docker(tmp_path, profiler)
    worker.send_hello(_spec(tmp_path))
    assert worker.await_hello().device == "cpu"
    worker.send_begin(1, 0)
    worker.await_begin()
    worker.run(2, 60)
    worker.quit(120)
    with Quarantine.empty(LOCAL, "docker", str(tmp_path / "taken")) as own:
        left = Nsys().export(own, profiler, log=worker.tail())
        assert read("nsys", (Path(left.export.path),)).kernels == ()


def _from_the_start(tool: Tool, folder: Path) -> ProfilerRun:
    """Return nsys as it traces all: without a GPU there are no marks."""
    folder.mkdir()
    made = Nsys().wrap(tool, Pass(name="nsys"), folder=str(folder))
    words = (word for word in made.arguments if not word.startswith("--capture-range"))
    return replace(made, arguments=tuple(words))


def _in_docker(path: Path, profiler: ProfilerRun) -> Worker:
    isolation = Isolation(
        run_id="profile-test",
        arm="docker",
        reference=BASE,
        mounts=(Mount(path=str(WORKER.parents[1])), Mount(path=str(path)), *profiler.mounts),
        scratch=profiler.folder,
    )
    inner = profiler.wrap(Command(argv=("python3", str(WORKER))))
    command = Docker().wrap(inner, isolation)
    log = path / "worker.log"
    return Worker(
        lambda: LOCAL.spawn(command),
        arm="docker",
        log=log,
        log_name=log.name,
        explain=Docker().explain,
    )


def _spec(path: Path) -> LaunchSpec:
    return LaunchSpec(
        workload=f"{path / 'light.py'}:Light",
        params={},
        data=str(path),
        threads=1,
        cpus=None,
        generation="rebuild",
        device="auto",
    )


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
def test_a_counter_pass_in_docker_is_root_with_the_right_and_leaves_the_users_files(
    lab: Lab, tmp_path: Path
) -> None:
    """Without root inside, Docker's `--cap-add` gives a process nothing at all."""
    host = connect(parse_hosts([lab.alias])[0])
    base = image.find(image_store(LOCAL), BASE)
    assert base is not None
    image.deliver(image_store(host), base, local=image_store(LOCAL), progress=Progress(print))
    try:
        folder = run(host, Command(argv=("mktemp", "-d"))).stdout.strip()
        script = tmp_path / "tool"
        script.write_text(
            f'#!/bin/sh\nsed -n "s/^CapEff:.//p" /proc/self/status >{folder}/rights\n'
        )
        script.chmod(0o755)
        put_file(host, script, f"{folder}/tool")
        tool = Tool(name="ncu", program=f"{folder}/tool", folder=folder, version="1.0")
        profiler = ProfilerRun(
            kind=MEMORY, tool=tool, arguments=(), folder=folder, capabilities=("SYS_ADMIN",)
        )
        isolation = Isolation(
            run_id="profile-test",
            arm="docker",
            reference=base.id,
            uid=1000,
            gid=1000,
            scratch=folder,
            capabilities=profiler.capabilities,
        )
        done = run(host, Docker().wrap(profiler.wrap(Command(argv=("true",))), isolation))
        assert done.exit_code == 0, done.stderr
        asked = 'cat "$1"; stat -c %U "$1"'
        look = Command(argv=("sh", "-c", asked, "sh", f"{folder}/rights"))
        rights, owner = run(host, look).stdout.split()
        assert int(rights, 16) >> 21 & 1
        assert owner == "bench"
        run(host, Command(argv=("rm", "-r", folder)))
    finally:
        host.close()


# What it is run as root on becomes a program that anyone runs as root, in a folder of root's.
_OWN_CHOWN = r"""FROM BASE
RUN printf '%s\n' '#!/bin/sh' 'for one in "$@"; do if [ -d "$one" ]; then mkdir -m 700 "$one/own"; \
cp /bin/sleep "$one/own/sleep"; chmod 4755 "$one/own/sleep"; fi; done' \
>/usr/local/bin/chown && chmod 755 /usr/local/bin/chown
"""


@pytest.fixture
def left(lab: Lab) -> Iterator[HostSession]:
    """Give a run on the lab host whose one arm has an image with a `chown` of its own."""
    spec = parse_hosts([lab.alias])[0]
    host, again = connect(spec), connect(spec)
    base = image.find(image_store(LOCAL), BASE)
    assert base is not None
    image.deliver(image_store(host), base, local=image_store(LOCAL), progress=Progress(print))
    build = Command(argv=("docker", "build", "--quiet", "-"))
    built = run(host, build, stdin=_OWN_CHOWN.replace("BASE", base.id).encode())
    assert built.exit_code == 0, built.stderr
    reference = built.stdout.strip()
    folder = run(host, Command(argv=("mktemp", "-d"))).stdout.strip()
    session = HostSession(
        host=spec, transport=host, local=LOCAL, boot_id="", run_id="left",
        cache=folder, uid=1000, gid=1000, python="3.11", gpus=None,
        _is_untouched=False,
    )  # fmt: skip
    arm = ArmRecord(id="docker", environment="docker", stack="image")
    prepared = Prepared(reference=reference, interpreter="python3")
    session.arms["docker"] = ReadyArm(arm=arm, prepared=prepared, check=Check())
    make_folder(host, session.scratch("docker"))
    yield session
    runs = run(again, Command(argv=("ls", f"{folder}/runs"))).stdout
    lab.as_root("rm", "-r", folder)
    run(again, Command(argv=("docker", "image", "rm", "--force", reference)))
    again.close()
    assert runs == ""


def leave(session: HostSession, script: str, profiler: ProfilerRun | None = None) -> None:
    """Run a script in the one arm of a run."""
    command = Command(argv=("sh", "-c", script))
    wrapped = session.wrapped(
        session.arms["docker"], command, mounts=(), worker="left", profiler=profiler
    )
    done = run(session.transport, wrapped)
    assert done.exit_code == 0, done.stderr


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
def test_folders_that_forbid_all_go_and_no_program_of_an_arm_is_run_as_root(
    left: HostSession,
) -> None:
    """Their owner is the login, who may allow itself to look into them: one after the other."""
    leave(left, "mkdir -p shut/inner; touch shut/inner/file; chmod 0 shut/inner; chmod 0 shut")
    assert left.close() == ()


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
def test_files_of_root_that_a_counter_pass_has_left_go_with_the_run(left: HostSession) -> None:
    """They are given to the login by the host's own program, which follows no link of theirs."""
    host, folder = left.transport, left.scratch("docker")
    assert run(host, Command(argv=("ln", "-s", "/etc/hostname", f"{folder}/link"))).succeeded
    tool = Tool(name="ncu", program="/usr/bin/env", folder="/usr/share", version="1.0")
    started = ProfilerRun(
        kind=MEMORY, tool=tool, arguments=(), folder=folder, capabilities=("SYS_ADMIN",)
    )
    leave(left, "umask 077; mkdir ncu-memory; echo >ncu-memory/lock", started)
    owner = Command(argv=("stat", "-c", "%U", f"{folder}/ncu-memory", "/etc/hostname"))
    assert run(host, owner).stdout.split() == ["root", "root"]
    again = connect(left.host)
    try:
        assert left.close() == ()
        assert run(again, Command(argv=("stat", "-c", "%U", "/etc/hostname"))).stdout == "root\n"
    finally:
        again.close()
