"""What the doctor finds on real hosts, healthy and not."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Lab
from runs import BASE

from envcompare.doctor.checks import Finding, diagnose
from envcompare.stack import Options, storage
from envcompare.transport import LOCAL, Transport
from envcompare.transport.hosts import connect, parse_hosts

ENVIRONMENTS = ("vm", "docker", "singularity")
ARMS = tuple((name, "image") for name in ENVIRONMENTS)


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a shell and its everyday tools on PATH, and no engine."""
    for tool in ("sh", "cat", "df", "dirname", "id", "ls", "sed", "tail", "uname"):
        found = next(folder / tool for folder in (Path("/usr/bin"), Path("/bin")))
        (tmp_path / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def plain_user(lab: Lab) -> Iterator[str]:
    """Give a user of the lab host who is in no group that may use Docker."""
    name = f"plain{uuid.uuid4().hex[:8]}"
    lab.as_root("useradd", "--create-home", "--shell", "/bin/sh", name)
    lab.as_root("cp", "-r", "/home/bench/.ssh", f"/home/{name}/.ssh")
    lab.as_root("chown", "-R", f"{name}:", f"/home/{name}/.ssh")
    yield f"{name}@{lab.alias}"
    lab.as_root("userdel", "--remove", "--force", name)


@pytest.mark.engine("ssh")
@pytest.mark.engine("singularity")
def test_a_healthy_host_has_all_that_is_needed(lab: Lab) -> None:
    """Every environment says its version, and nothing needs mending."""
    transport = connect(parse_hosts([lab.alias])[0])
    findings = _by_subject(transport)
    transport.close()
    for subject in (*ENVIRONMENTS, "python for vm"):
        assert findings[subject].is_usable
        assert findings[subject].version
    assert {finding.host for finding in findings.values()} == {lab.alias, "local"}
    assert findings["run-queue wait"].is_usable
    assert re.fullmatch(r"\d+ GB free", findings["disk of the cache"].version or "")
    assert (findings["cgroups"].version or "").startswith("v")


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
def test_a_user_without_permission_on_the_socket_is_told_the_group(plain_user: str) -> None:
    """The engine runs, and only this user may not use it."""
    transport = connect(parse_hosts([plain_user])[0])
    docker = _by_subject(transport)["docker"]
    transport.close()
    assert not docker.is_usable
    assert docker.problem.brief == "permission denied on the engine's socket"
    assert docker.problem.hint == 'sudo usermod -aG docker "$USER", then log in again'


@pytest.mark.engine("docker")
def test_a_daemon_that_is_down_is_told_from_one_that_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client is there and nobody answers; where that address is named is what to look at."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///not/there.sock")
    monkeypatch.setattr(storage, "AWAY_S", 2.0)
    docker = _by_subject(LOCAL)["docker"]
    assert docker.problem.brief == "no Docker daemon answers at unix:///not/there.sock"
    assert "DOCKER_HOST" in docker.problem.hint


@pytest.mark.usefixtures("bare_path")
def test_missing_engines_are_said_to_be_missing() -> None:
    """Each comes with the line that installs it, and the rest is still examined."""
    findings = _by_subject(LOCAL)
    assert findings["vm"].is_usable
    assert findings["docker"].problem.brief == "docker is not installed"
    assert findings["singularity"].problem.brief == "neither apptainer nor singularity is installed"
    assert all(findings[name].problem.hint for name in ("docker", "singularity"))
    assert findings["disk of the cache"].version


def test_without_a_driver_there_is_one_finding_about_the_gpu() -> None:
    """A comparison on the CPU needs no driver, and no environment is blamed for it."""
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an NVIDIA driver")
    findings = _by_subject(LOCAL)
    about_gpu = [finding for subject, finding in findings.items() if "gpu" in subject]
    assert [(finding.subject, finding.is_needed) for finding in about_gpu] == [("gpu", False)]


def test_a_python_that_is_not_there_is_a_finding_and_no_error() -> None:
    """The hint names the version the wheels are for."""
    options = Options(python="3.1")
    (python,) = (
        finding
        for finding in diagnose(LOCAL, (("vm", "image"),), options=options)
        if finding.subject == "python for vm"
    )
    assert (python.is_usable, python.is_needed) == (False, True)
    assert python.problem is not None
    assert python.problem.hint == "install python3.1 there, or name one with --vm-python"


@pytest.mark.engine("docker")
def test_base_image_that_cannot_be_had_is_found_before_a_run() -> None:
    """One that is here needs no registry."""
    there, none = (
        next(
            one
            for one in diagnose(LOCAL, (("docker", "image"),), options=Options(base_image=name))
            if one.subject == f"base image {name}"
        )
        for name in (BASE, "localhost:9/envcompare-none:1")
    )
    assert (there.is_usable, none.is_usable, none.is_needed) == (True, False, True)
    assert none.problem is not None
    assert "cannot be pulled" in none.problem.brief
    assert "--base-image" in none.problem.hint


def _by_subject(transport: Transport) -> dict[str, Finding]:
    findings = diagnose(transport, ARMS, options=Options())
    return {finding.subject: finding for finding in findings}
