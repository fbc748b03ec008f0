"""The lab host of the tests, and which real engines can be reached from here."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from envcompare.environments.registry import ENVIRONMENTS
from envcompare.stack.storage import host_cache
from envcompare.text import Command
from envcompare.transport import Transport, run, shell
from envcompare.transport.hosts import connect, parse_hosts

HOSTS = ("lab-h1", "lab-h2")
ROOT = Path(__file__).resolve().parents[2]
_REQUIRED = frozenset(os.environ.get("ENVCOMPARE_REQUIRE", "").replace(" ", "").split(",")) - {""}
REQUIRED = _REQUIRED | (set(ENVIRONMENTS) if "environments" in _REQUIRED else set())
_OWN_SSHD = (
    "pid=$$; while read -r _ name _ parent _ </proc/$pid/stat; do "
    'case $name in "(sshd"*) echo $pid; exit;; esac; pid=$parent; done'
)
_FOLDERS = "~bench/.cache/envcompare/runs/$1 /tmp/envcompare-$1"
_CONTAINERS = "docker ps -aq --filter label=envcompare.run=$1"
_LEFT = f"{_CONTAINERS}; grep -lsF $1 /proc/[0-9]*/environ; ls -d {_FOLDERS} 2>/dev/null"
_REMOVE = f"{_CONTAINERS} | xargs -r docker rm -f; rm -rf {_FOLDERS}"
# Each connection of a login has a process of sshd, which the one of root has started.
KILL_LOGINS = "pkill -KILL -u bench sshd || :"
STOP_ENGINE = (
    "pkill -KILL dockerd; pkill -KILL containerd$; sleep 1; "
    "rm -f /run/docker.pid /run/docker/containerd/containerd.pid; "
)
START_ENGINE = (
    "setsid lab-dockerd >>/var/log/dockerd.log 2>&1 </dev/null & "
    "for i in $(seq 60); do docker info >/dev/null 2>&1 && exit; sleep 0.5; done; exit 1"
)
STOP_LOGINS = "pkill -STOP -u bench sshd || :"
ON_ONE_NODE = pytest.mark.skipif(
    len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) != 1,
    reason="arms are held where there is one NUMA node",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """An SSH host in a container, with its own engines; `script/lab` makes it."""

    alias: str
    ssh_config: Path
    identity: Path
    known_hosts: Path

    @property
    def address(self) -> str:
        """Return the address of the host."""
        return self._value("HostName")

    @property
    def host_key(self) -> str:
        """Return type and content of the host's key."""
        lines = self.known_hosts.read_text().splitlines()
        line = next(line for line in lines if self.alias in line.split()[0].split(","))
        return " ".join(line.split()[1:3])

    def as_root(self, *argv: str) -> str:
        """Run a command as root on the host, through the engine and not over SSH."""
        docker = docker_client()
        done = subprocess.run(
            [docker, "exec", self.alias, *argv], check=True, capture_output=True, text=True
        )
        return done.stdout

    def left_of(self, run_id: str) -> str:
        """Return containers, processes and the folder that a run has on the host now."""
        return self.as_root("sh", "-c", f"{_LEFT}; true", "sh", run_id).strip()

    def remove(self, run_id: str) -> None:
        """Remove containers and the folder of a run that was killed."""
        self.as_root("sh", "-c", _REMOVE, "sh", run_id)

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Let no packet of SSH in or out of the host, and then again."""
        rules = ("INPUT -p tcp --dport 22 -j DROP", "OUTPUT -p tcp --sport 22 -j DROP")

        def change(how: str) -> None:
            self.as_root("sh", "-c", " && ".join(f"iptables -w {how} {rule}" for rule in rules))

        change("-I")
        try:
            yield
        finally:
            change("-D")

    def _value(self, keyword: str) -> str:
        _, _, own = self.ssh_config.read_text().partition(f"Host {self.alias}\n")
        for line in own.splitlines():
            if line.split()[:1] == [keyword]:
                return line.split()[1]
        raise LookupError(keyword)


@contextmanager
def login(host: str, **variables: str) -> Iterator[Transport]:
    """Give a connection to a lab host as a new user, whose .bashrc sets these variables."""
    user, root = f"login{uuid.uuid4().hex[:8]}", (docker_client(), "exec", "-i", host)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    script = (
        f"useradd -m -s /bin/bash {user} && cd /home/{user} && cat >.bashrc && "
        f"cp -r ~bench/.ssh . && chown -R {user} .ssh .bashrc"
    )
    subprocess.run([*root, "sh", "-c", script], input=exports, text=True, check=True)
    transport = connect(parse_hosts([f"{user}@{host}"])[0])
    try:
        yield transport
    finally:
        transport.close()
        subprocess.run([*root, "userdel", "-rf", user], check=True, capture_output=True)


@functools.cache
def lab(alias: str = HOSTS[0]) -> Lab | None:
    """Return a lab host; it is brought up where ENVCOMPARE_REQUIRE names ssh.

    Where one host is up and none is required, the first serves for the second as well.
    """
    folder = ROOT / ".lab"
    hosts = HOSTS if "hosts" in REQUIRED else HOSTS[:1]
    is_up = all(_answers(folder / "ssh_config", host) for host in hosts)
    if REQUIRED & {"ssh", "hosts"} and not is_up:
        subprocess.run([ROOT / "script" / "lab", "up", str(len(hosts))], check=True)
    elif not is_up:
        return None
    return Lab(
        alias=alias if _answers(folder / "ssh_config", alias) else HOSTS[0],
        ssh_config=folder / "ssh_config",
        identity=folder / "id_ed25519",
        known_hosts=folder / "known_hosts",
    )


@functools.cache
def has_slurm() -> bool:
    """Say whether the cluster is up; it is brought up where ENVCOMPARE_REQUIRE names slurm."""
    if "slurm" in REQUIRED:
        subprocess.run([ROOT / "script" / "lab", "slurm"], check=True)
    return docker_client() != "" and _succeeds(docker_client(), "exec", "slurm-login", "sinfo")


@functools.cache
def docker_client() -> str:
    """Return a docker client that reaches an engine, or nothing."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        client = shutil.which("docker", path=folder)
        if (
            client
            and subprocess.run([client, "info"], capture_output=True, check=False).returncode == 0
        ):
            return client
    return ""


@functools.cache
def missing(name: str) -> str:
    """Say why an engine cannot be used here; nothing where it can."""
    is_there = {
        **dict.fromkeys(ENVIRONMENTS, lambda: lab() is not None),
        "ssh": lambda: lab() is not None,
        "hosts": lambda: lab() is not None and _answers(ROOT / ".lab" / "ssh_config", HOSTS[1]),
        "docker": lambda: docker_client() != "",
        "singularity": lambda: _has("apptainer", "singularity") or lab() is not None,
        "slurm": has_slurm,
        "hyperfine": lambda: _has("hyperfine"),
        "sudo": lambda: _succeeds("sudo", "-n", "true"),
        "browser": lambda: _has("chromium", "chromium-browser", "google-chrome"),
        "torch": lambda: torch_python() != "",
        "recipes": lambda: _succeeds(
            os.environ.get("ENVCOMPARE_TEST_RECIPES") or "false",
            *("-c", "import lightning, transformers"),
        ),
        "gpu": lambda: _has("nvidia-smi"),
        "nvidia-tools": lambda: _has("nsys") and _has("ncu"),
        "gcc": lambda: _has("gcc"),
        "nvml.h": lambda: nvml_headers() is not None,
    }[name]()
    remedy = {
        **dict.fromkeys(ENVIRONMENTS, "script/lab up"),
        "ssh": "script/lab up",
        "hosts": "script/lab up 2",
        "docker": "script/engine",
        "slurm": "script/lab slurm",
        "hyperfine": "apt-get install hyperfine",
        "sudo": "let sudo work without a password",
        "browser": "install Chromium",
        "torch": "set ENVCOMPARE_TEST_PYTHON to an interpreter that imports torch",
        "recipes": "set ENVCOMPARE_TEST_RECIPES to a Python with requirements/recipes.in",
        "gpu": "run on a machine with an NVIDIA GPU",
        "nvidia-tools": 'PATH="$(script/nvidia-tools):$PATH"',
        "gcc": "apt-get install gcc libc6-dev",
        "nvml.h": "pip install nvidia-nvml-dev",
    }
    return "" if is_there else f"{name} is not there; try: {remedy[name]}"


@functools.cache
def torch_python() -> str:
    """Return an interpreter that imports torch, or nothing."""
    named = os.environ.get("ENVCOMPARE_TEST_PYTHON", "")
    if named:
        return named if _succeeds(named, "-c", "import torch") else ""
    return sys.executable if importlib.util.find_spec("torch") else ""


@functools.cache
def nvml_headers() -> Path | None:
    """Return the folder of nvml.h, where NVIDIA's package of it is installed."""
    with suppress(importlib.metadata.PackageNotFoundError):
        for path in importlib.metadata.files("nvidia-nvml-dev") or ():
            if path.name == "nvml.h":
                return Path(str(path.locate())).parent
    return None


def need(name: str) -> None:
    """Skip the test aloud where `name` is missing; fail it where ENVCOMPARE_REQUIRE names it."""
    reason = missing(name)
    if reason and name in REQUIRED:
        pytest.fail(f"ENVCOMPARE_REQUIRE names {name}, but {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)


def served_by(transport: Transport) -> str:
    """Return the number of the process that serves a connection on its host."""
    return run(transport, Command(argv=("sh", "-c", _OWN_SSHD))).stdout.strip()


def forget(transport: Transport, *keys: str) -> None:
    """Remove from a host's cache what a test put there under these keys."""
    for key in keys:
        shell(transport, 'rm -rf -- "$1"', f"{host_cache(transport)}/{key}")


@contextmanager
def forgotten(transport: Transport, key: str) -> Iterator[None]:
    """Let a host's cache have nothing under a key, before and after: tests may be killed."""
    forget(transport, key)
    yield
    forget(transport, key)


def _has(*programs: str) -> bool:
    return any(shutil.which(program) for program in programs)


def _answers(config: Path, host: str) -> bool:
    if not config.exists() or not _has("ssh"):
        return False
    argv = ["ssh", "-F", str(config), "-oBatchMode=yes", "-oConnectTimeout=5", host, "true"]
    return _succeeds(*argv)


def _succeeds(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0
