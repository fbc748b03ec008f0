"""The stack `host` on real engines: what a container sees of the host, and what it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from lab import Lab, login
from runs import BASE, STEPS_ALONE, Done, envcompare
from software import prepared_by

from envcompare.environments import Gpu, Isolation
from envcompare.environments.registry import environment
from envcompare.stack import LOCK_LABEL, Options, Prepared
from envcompare.stack.storage import host_cache
from envcompare.text import Command, CommandResult
from envcompare.transport import Transport, run, shell

pytestmark = [
    pytest.mark.engine("ssh"),
    pytest.mark.engine("docker"),
    pytest.mark.engine("singularity"),
    pytest.mark.timeout(420),
]
CONTAINERS = ("docker", "singularity")
NO_GPU = Gpu()
SAME = (
    "python.executable", "python.sha256", "python.flags", "libc.version", "libc.sha256",
    "os.release", "packages", "loaded_packages", "loaded_libraries", "loaded_paths",
    "allocator.name", "torch.version", "torch.build_sha256",
)  # fmt: skip


@pytest.fixture(scope="module")
def host_python(lab: Lab) -> str:
    """Return an interpreter of the lab host that imports torch: the one of vm's venv."""
    words = ("-q", "build", "--hosts", lab.alias, "--envs", "vm", "--base-image", BASE)
    argv = (sys.executable, "-m", "envcompare", *words)
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return done.stdout.partition(f"{lab.alias} vm: ")[2].partition(",")[0].strip()


@pytest.fixture(scope="module")
def whole_run(
    lab: Lab, host_python: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Done, Path]:
    """Return a run of the three host arms, and the cache of this machine that it began without."""
    out = tmp_path_factory.mktemp("host")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(out / "cache"))
        done = envcompare(
            out / "runs",
            *("--hosts", lab.alias, "--stacks", "host", "--host-python", host_python),
            *("--workloads", "cnn", "--budget", "12", *STEPS_ALONE),
        )
    return done, out / "cache"


def test_only_the_isolation_differs_between_the_arms(whole_run: tuple[Done, Path]) -> None:
    """Interpreter, C library, packages and every loaded library are the same by their hashes."""
    done, _ = whole_run
    assert done.exit_code == 0, done.stderr
    assert done.folder is not None
    prints = {
        path.parent.name: json.loads(path.read_text())["facts"]
        for path in done.folder.glob("fingerprints/*/*/cnn_default.json")
    }
    assert {"vm-host", "docker-host", "singularity-host"} <= prints.keys()
    for key in SAME:
        assert prints["vm-host"][key], key
        assert len({json.dumps(facts[key]) for facts in prints.values()}) == 1, key
    differences = done.read("comparison.json")["differences"]
    classes = {difference["fact_class"] for difference in differences}
    assert classes <= {"varied", "identity", "possible-influence"}
    assert ("docker-host", "seccomp.mode") in {
        (difference["arm"], difference["key"]) for difference in differences
    }


def test_nothing_is_resolved_built_or_sent_for_the_hosts_own_files(
    whole_run: tuple[Done, Path],
) -> None:
    """No wheel, no image and no SIF are made where every arm has the stack host."""
    done, cache = whole_run
    assert not cache.exists()
    for word in ("resolving", "building", "sending", "making"):
        assert word not in done.stderr


def test_a_host_python_without_torch_leaves_the_arms_not_run(lab: Lab, tmp_path: Path) -> None:
    """Exit code 3, the reason, and the flag that names another interpreter."""
    done = envcompare(
        tmp_path,
        *("--hosts", lab.alias, "--envs", "vm,docker", "--stacks", "host"),
        *("--workloads", "cnn", "--budget", "8", "--profile", "none"),
        *("--host-python", "/usr/bin/python3"),
    )
    assert done.exit_code == 3
    assert done.outcomes()[("cnn", "docker-host")] == "not-run"
    assert "No module named 'torch'" in done.stderr
    assert "an interpreter that imports torch with --host-python" in done.stderr


@pytest.mark.parametrize("name", CONTAINERS)
def test_the_hosts_files_are_there_and_cannot_be_changed(host: Transport, name: str) -> None:
    """The login's interpreter runs at its own path, and nothing of the host can be written."""
    said = inside(host, name, "python3 -c 'import ssl' && ls -d /usr/bin && touch /usr/bin/new")
    assert said.stdout.split() == ["/usr/bin"]
    assert "Read-only file system" in said.stderr


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_device_is_there_where_it_is_given_and_only_there(host: Transport, name: str) -> None:
    """Beside the host's files a container gets a GPU by its device files, whatever the engine."""
    script = "test -c /dev/fuse && exec 3<>/dev/fuse"
    given = Gpu(way="engine", devices=("/dev/fuse",)).with_host_files
    said = inside(host, name, script, gpu=given)
    assert (said.exit_code, said.stderr) == (0, "")
    assert inside(host, name, script).exit_code == 1


@pytest.mark.parametrize("name", CONTAINERS)
def test_what_is_not_bound_is_not_seen(host: Transport, name: str) -> None:
    """The host's users, homes and services stay outside."""
    shell(host, ": >~/.envcompare-not-seen")
    unseen = "/home/*/.envcompare-not-seen /etc/ssh /etc/ssl/private /var/lib"
    said = inside(host, name, f"ls -A {unseen}")
    shell(host, "rm ~/.envcompare-not-seen")
    assert said.stdout.strip() == ""
    assert said.stderr.count("No such file or directory") == len(unseen.split())


@pytest.mark.parametrize("name", CONTAINERS)
def test_the_skeleton_is_made_once_and_found_by_clean(host: Transport, name: str) -> None:
    """A second call finds it; it carries clean's label, or lies in the cache that clean removes."""
    first, second = (ready(host, name) for _ in range(2))
    assert first == second
    if name == "docker":
        form = f'{{{{index .Config.Labels "{LOCK_LABEL}"}}}} {{{{.Size}}}}'
        argv = ("docker", "image", "inspect", "--format", form, first.reference)
        label, size = run(host, Command(argv=argv)).stdout.split()
        assert (label, int(size) < 10_000) == ("skeleton", True)
    else:
        assert first.reference.startswith(f"{host_cache(host)}/skeleton-")


def ready(host: Transport, name: str) -> Prepared:
    """Make the login's interpreter of the lab host ready; nothing of it is left out."""
    said: list[str] = []
    options = Options(host_imports=())
    prepared = prepared_by(name, host, options=options, is_host_stack=True, say=said.append)
    assert said == []
    return prepared


def inside(host: Transport, name: str, script: str, *, gpu: Gpu = NO_GPU) -> CommandResult:
    """Run a script in a container that shows the host's own files."""
    prepared = ready(host, name)
    scratch = f"/tmp/envcompare-inside-{os.getpid()}"
    uid, gid = (
        int(word) for word in shell(host, f"mkdir -p {scratch}; id -u; id -g").stdout.split()
    )
    isolation = Isolation(
        run_id="inside",
        arm="inside",
        reference=prepared.reference,
        uid=uid,
        gid=gid,
        gpu=gpu,
        mounts=prepared.mounts,
        scratch=scratch,
    )
    wrapped = environment(name).wrap(Command(argv=("sh", "-c", script)), isolation)
    result = run(host, wrapped, timeout_s=60)
    shell(host, f"rm -rf {scratch}")
    return result


def test_the_variables_of_a_login_reach_every_arm_with_the_hosts_own_files(lab: Lab) -> None:
    """What sshd's shell reads from .bashrc is the same in a container, and none of it elsewhere."""
    variables = {"LD_LIBRARY_PATH": "/usr/local/lib", "CUDA_HOME": "/usr", "CUDA_PATH": "/usr"}
    print_them = ("-c", "import os, sys; print(*map(os.environ.get, sys.argv[1:]))", *variables)
    options = Options(host_python="python3", host_imports=())
    isolation = Isolation(run_id="login", arm="login", uid=1000, gid=1000)
    with login(lab.alias, **variables) as host:
        shown = {}
        for name in ("vm", "singularity"):
            made = prepared_by(name, host, options=options, is_host_stack=True)
            inside = replace(isolation, reference=made.reference, mounts=made.mounts)
            command = Command(argv=(made.python, *print_them), env=made.variables)
            shown[name] = run(host, environment(name).wrap(command, inside), timeout_s=120)
        image = Command(argv=("python3", *print_them))
        shown["image"] = run(host, environment("vm").wrap(image, isolation))
    assert shown["vm"].stdout.split() == [*variables.values()], shown["vm"].stderr
    in_container = shown["singularity"].stdout.split()
    assert in_container[1:] == [*variables.values()][1:], shown["singularity"].stderr
    assert "/usr/local/lib" in in_container[0].split(":")
    assert shown["image"].stdout.split() == ["None"] * 3


@pytest.mark.nightly
def test_folders_of_python_environments_are_arms(tmp_path: Path) -> None:
    """Each runs the interpreter of its own folder; a missing one is named."""
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    work = tmp_path / "work.py"
    work.write_text(
        "import pathlib, sys\n"
        "class Work:\n    def __init__(self, n=1): pass\n"
        "    def setup(self, seed, device): pathlib.Path(sys.prefix, 'used').touch()\n"
        "    def step(self): return float(sum(range(100_000)))\n"
    )
    arms = ",".join(f"{folder.name}=vm:{folder}" for folder in (*folders, tmp_path / "none"))
    given = ("--envs", arms, "--workload", f"{work}:Work", "--budget", "15", "--quick")
    done = envcompare(tmp_path / "runs", *given, "--wait", "240", *STEPS_ALONE)
    assert done.exit_code == 3, done.stderr
    assert all((folder / "used").exists() for folder in folders)
    assert f"{tmp_path}/none/bin/python" in done.stderr
