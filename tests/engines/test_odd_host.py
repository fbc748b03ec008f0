"""A host over SSH whose programs print what nobody asked for, next to a good one."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab import Lab
from runs import BASE, LIGHT, STEPS_ALONE, envcompare

pytestmark = [pytest.mark.engine("ssh"), pytest.mark.timeout(240)]
_ADD = "cat >>~bench/.ssh/authorized_keys"
_DROP = "sed -i /$1/d ~bench/.ssh/authorized_keys; rm -rf /tmp/$1"
# Stands in the place of the login's shell, as a forced command does on many clusters.
_SHELL = """#!/bin/sh
echo 'Welcome to the cluster'; echo '*** maintenance on Friday ***' >&2
PATH=/tmp/{name}:$PATH exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"
"""


@pytest.fixture
def odd_host(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, bytes], str]]:
    """Give what makes a program of the lab host odd for those who log in by another name."""
    name = f"odd-{uuid.uuid4().hex[:12]}"
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-C", name, "-f", key], check=True)
    _write(lab, f"/tmp/{name}/shell", _SHELL.format(name=name).encode())
    line = f'command="/tmp/{name}/shell" {key.with_suffix(".pub").read_text()}'
    _feed(lab, line.encode(), "sh", "-c", _ADD)
    config = tmp_path / "ssh_config"
    config.write_text(
        f"Host odd\n  HostName {lab.address}\n  HostKeyAlias {lab.alias}\n  User bench\n"
        f"  IdentityFile {key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {lab.known_hosts}\n"
        f"  StrictHostKeyChecking yes\n{lab.ssh_config.read_text()}"
    )
    monkeypatch.setenv("ENVCOMPARE_SSH_CONFIG", str(config))

    def make(program: str, said: bytes) -> str:
        _write(lab, f"/tmp/{name}/said", said)
        _write(lab, f"/tmp/{name}/{program}", f"#!/bin/sh\ncat /tmp/{name}/said\n".encode())
        return "odd"

    yield make
    lab.as_root("sh", "-c", _DROP, "sh", name)


def _feed(lab: Lab, data: bytes, *argv: str) -> None:
    subprocess.run(["docker", "exec", "-i", lab.alias, *argv], input=data, check=True)


def _write(lab: Lab, path: str, data: bytes) -> None:
    script = 'mkdir -p "${1%/*}" && cat >"$1" && chmod 755 "$1"'
    _feed(lab, data, "sh", "-c", script, "sh", path)


@pytest.mark.engine("docker")
@pytest.mark.parametrize(
    ("program", "said", "told"),
    [
        ("id", b"\x1b[31mno such user\x1b[0m\n\xff\x00", "does not answer as a POSIX host"),
        pytest.param(
            *("docker", b"maintenance\n", "cannot read Docker's versions"),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            *("docker", b"24.0.1 24.0.1\n", "its current context is 24.0.1 24.0.1"),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_good_host_is_measured_beside_an_odd_one(  # noqa: PLR0917 — fixtures and parameters
    lab: Lab,
    odd_host: Callable[[str, bytes], str],
    tmp_path: Path,
    program: str,
    said: bytes,
    told: str,
) -> None:
    """The odd one is not usable, with what it said; the exit code is 3."""
    (tmp_path / "light.py").write_text(LIGHT)
    done = envcompare(
        tmp_path / "out",
        *("--hosts", f"{odd_host(program, said)},{lab.alias}", "--workload"),
        *(f"{tmp_path}/light.py:Light", "--envs", f"vm@host,mine=docker:{BASE}"),
        # one machine by two names: leaving it by one ends what the other has started
        *("--budget", "3", *STEPS_ALONE, "--jobs", "1"),
    )
    assert done.exit_code == 3, done.stderr
    states = {cell["host"]: cell["state"] for cell in done.read("comparison.json")["cells"]}
    assert states[lab.alias] == "ok", done.stderr
    assert states["odd"] != "ok"
    assert told in done.stderr
    assert "\x1b[31mno such" not in done.stderr
    assert "fault of envcompare" not in done.stderr


def test_doctor_tells_of_an_odd_host_and_goes_on(
    lab: Lab, odd_host: Callable[[str, bytes], str]
) -> None:
    """What it said stands in its lines; the good host has its own."""
    hosts = f"{odd_host('docker', b'maintenance')},{lab.alias}"
    done = subprocess.run(
        [sys.executable, "-m", "envcompare", "doctor", "--envs", "docker", "--hosts", hosts],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 3, done.stderr
    odd, _, good = done.stdout.partition(f"{lab.alias}:\n")
    assert "it printed: maintenance" in odd
    assert "✓ docker: " in good
