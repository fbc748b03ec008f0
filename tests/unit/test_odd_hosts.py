"""A host whose programs print what nobody asked for: it is not usable, and nothing else ends."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from programs import Programs, first_on_path

from envcompare.cli import app
from envcompare.cli.planning import resolved
from envcompare.config.settings import Settings
from envcompare.console import Display
from envcompare.doctor import examine
from envcompare.doctor.checks import diagnose, diagnosis_lines
from envcompare.environments.gpu import read_files
from envcompare.environments.oci import image_store
from envcompare.environments.registry import environment
from envcompare.environments.singularity import find_engine
from envcompare.errors import (
    CommandTimeoutError,
    EnvcompareError,
    InterruptedRunError,
    Interruption,
    UnusableError,
)
from envcompare.hosts import HostSession, opening
from envcompare.measure.cell import parse_glance, parse_look
from envcompare.profilers.toolbox import read_rights
from envcompare.run_folder.results import RunFolder
from envcompare.runner import walk
from envcompare.runner.upkeep import tell_holders
from envcompare.stack import Options, building, image, sif
from envcompare.stack.storage import _disk_of, host_cache
from envcompare.stack.venv import find_interpreter, find_python
from envcompare.transport import ANSWER_S, LOCAL, run, shell
from envcompare.transport.hosts import HostSpec, parse_hosts

# What motd, proxies, wrappers and broken installations put in the place of an answer.
SAID = {
    "nothing": b"",
    "one-word": b"maintenance",
    "a-banner": b"\x1b[1;31m*** Welcome to gpu01 ***\x1b[0m\nLast login: never\n",
    "one-number": b"1\n",
    "words-and-numbers": b"a b c 1 2 3 \xc2\xb2\n",
    "binary": bytes(range(256)),
    "half-a-json": b'{"path": "/x", \n',
    "another-json": b"[]\n",
    "null": b"null\n",
    "nested": b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n",
    "a-huge-number": b'{"path": 1' + b"0" * 5000 + b"}\n",
}
Odd = Callable[..., None]


@pytest.fixture(params=SAID.values(), ids=SAID)
def odd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Odd:
    """Give what makes programs of this machine say something odd, and end well."""
    (tmp_path / "said").write_bytes(request.param)

    def make(*names: str) -> None:
        for name in names:
            program = tmp_path / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\nexec /bin/cat {tmp_path}/said\n")
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    monkeypatch.setenv("HOME", str(tmp_path))
    return make


def _opened(_: Path) -> None:
    experiment, hosts = resolved(Settings(envs="vm"), Settings())
    opening.open_session(hosts[0], experiment, "odd", Interruption()).close()


ASKED: dict[str, tuple[tuple[str, ...], Callable[[Path], object]]] = {
    "docker version": (("docker",), lambda _: environment("docker").check(LOCAL)),
    "docker ps": (("docker",), lambda _: environment("docker").sweep(LOCAL, "20260101-000000-a")),
    "docker image": (("docker",), lambda _: image.look_up(image_store(LOCAL), "python:3")),
    "docker context": (("docker",), lambda _: image.find(image_store(LOCAL), "python:3")),
    "images": (("docker",), lambda _: building.remove_images(image_store(LOCAL))),
    "uname": (("uname",), lambda _: environment("vm").check(LOCAL)),
    "id": (("id",), _opened),
    "id of a sweep": (("id",), lambda _: environment("vm").sweep(LOCAL, "20260101-000000-a")),
    "apptainer": (("apptainer",), lambda _: environment("singularity").check(LOCAL)),
    "engine": (("apptainer",), lambda _: find_engine(LOCAL)),
    "df": (("df",), lambda path: _disk_of(LOCAL, str(path))),
    "python": (
        ("python3.11", "own"),
        lambda path: find_interpreter(LOCAL, python="3.11", chosen=f"{path}/bin/own"),
    ),
    "host python": (
        ("own",),
        lambda path: find_python(LOCAL, python=f"{path}/bin/own", imports=()),
    ),
    "sif": (("sha256sum", "od", "wc"), lambda path: sif.inspect(LOCAL, f"{path}/said")),
    "doctor": (
        ("cat", "id", "uname", "df", "docker", "apptainer", "nvidia-smi", "ldconfig", "grep"),
        lambda _: diagnose(LOCAL, (("vm", "host"), ("docker", "image")), options=Options()),
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_odd_answer_is_a_finding_or_an_error_of_that_host(
    odd: Odd, tmp_path: Path, name: str
) -> None:
    """Nothing but the family's errors, which are recorded for a host or an arm, comes out."""
    programs, ask = ASKED[name]
    odd(*programs)
    with suppress(EnvcompareError):
        ask(tmp_path)


@pytest.mark.parametrize("read", [read_rights, read_files, parse_glance, parse_look])
@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
@pytest.mark.parametrize("names", ["", "uid=", "capabilities=", "variable ", "variable", "device"])
def test_odd_lines_are_read_as_not_known(
    read: Callable[[str], object], said: bytes, names: str
) -> None:
    """A fact that is there and odd is as good as none."""
    read(names + said.decode(errors="replace"))


def test_docker_that_prints_a_banner_is_quoted_without_its_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason says what the host said, so that its owner finds it."""
    _say(tmp_path, monkeypatch, "docker", "\\033[31mUnder maintenance\\033[0m until noon")
    check = environment("docker").check(LOCAL)
    assert not check.is_usable
    assert "Under maintenance" in check.reason
    assert "\x1b" not in check.reason


def test_a_hint_on_an_image_needs_no_address_of_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of a job has none, and scp takes no host:port."""
    with pytest.raises(EnvcompareError) as missing:
        sif.inspect(LOCAL, f"{tmp_path}/missing.sif")
    assert missing.value.hint == (
        "give the path of a SIF that you may read there, or of one on this machine"
    )
    _say(tmp_path, monkeypatch, "docker", "")
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(EnvcompareError, match="does not describe its images") as silent:
        image.look_up(image_store(LOCAL), "python:3")
    assert silent.value.hint == "run docker image inspect python:3 there"


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ("20.10.0 20.10.0", ""),
        ("19.03.15 24.0.7", "Docker 19.03.15 (client) and 24.0.7 (daemon) are too old"),
        ("24.0.7 19.03.15", "Docker 24.0.7 (client) and 19.03.15 (daemon) are too old"),
    ],
)
def test_docker_is_too_old_where_its_client_or_its_daemon_is(
    versions: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start needs options that both know."""
    _say(tmp_path, monkeypatch, "docker", versions)
    check = environment("docker").check(LOCAL)
    assert (check.reason, check.version) == (reason, versions.split()[1])


def test_host_that_does_not_tell_its_user_is_refused_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number is never made of a greeting."""
    _say(tmp_path, monkeypatch, "id", "hello 1000")
    experiment, hosts = resolved(Settings(envs="vm"), Settings())
    with pytest.raises(UnusableError) as caught:
        opening.open_session(hosts[0], experiment, "odd", Interruption())
    assert caught.value.brief == "local does not answer as a POSIX host"
    assert "hello 1000" in caught.value.details


def test_host_without_a_cpu_of_pin_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the CPUs that it has."""
    monkeypatch.setattr(opening, "_machine", lambda _: {"cpu.online": "0-1,4"})
    experiment, hosts = resolved(Settings(envs="vm", pin="0-3,99"), Settings())
    with pytest.raises(UnusableError) as caught:
        opening.open_session(hosts[0], experiment, "odd", Interruption())
    assert caught.value.brief == "CPUs 2, 3, 99 do not exist on local (it has CPUs 0-1,4)"
    assert "--pin" in caught.value.hint


@pytest.mark.parametrize("online", ["", "0-1," * 64])
def test_host_that_does_not_tell_its_cpus_is_opened(
    online: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that is cut off tells nothing; an arm that cannot be pinned says so itself."""
    monkeypatch.setattr(opening, "_machine", lambda _: {"cpu.online": online})
    experiment, hosts = resolved(Settings(envs="vm", pin="99"), Settings())
    opening.open_session(hosts[0], experiment, "odd", Interruption()).close()


def test_host_without_a_cpu_of_pin_can_be_tended() -> None:
    """What a run left on a host is not out of reach because of a CPU that it lacks."""
    experiment, hosts = resolved(Settings(envs="vm", pin="8191"), Settings())
    assert tell_holders(experiment, hosts, Display()).errors == []


def test_home_that_is_no_path_is_no_place_for_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made there would be made wherever a command happens to start."""
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    with pytest.raises(UnusableError, match="cannot read the cache folder from local's answer"):
        host_cache(LOCAL)


def test_doctor_goes_on_with_the_next_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An odd one is a line with the reason, and exit code 3."""
    _say(tmp_path, monkeypatch, "docker", "{")
    monkeypatch.setattr("envcompare.doctor.connect", lambda _host, **_: LOCAL)
    experiment, _ = resolved(Settings(envs="docker", device="cpu"), Settings())
    reports = list(examine(experiment, parse_hosts(["local", "other"])))
    assert [one.host for one in reports] == ["local", "other"]
    codes = [one.exit_code for one in reports]
    assert codes == [UnusableError.exit_code] * 2, [one.trouble for one in reports]
    assert any("cannot read Docker's versions" in line for line in diagnosis_lines(reports[0]))


def test_doctor_starts_no_runtime_that_its_user_did_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is installed on a login node is told by its name; Podman would leave a process there."""
    programs = Programs(first_on_path(tmp_path, monkeypatch))
    programs.program("sinfo", "echo 'main*|infinite|(null)'")
    for runtime in ("apptainer", "podman", "ch-run"):
        programs.program(runtime, f"echo {runtime} >>started")
    experiment, hosts = resolved(Settings(envs="vm", device="cpu"), Settings())
    (report,) = examine(experiment, hosts)
    said = "singularity (apptainer), podman (podman), charliecloud (ch-run)"
    lines = diagnosis_lines(report)
    assert any(f"container runtimes for jobs: {said}" in line for line in lines), lines
    assert not (programs.folder / "started").exists()


def _say(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\nprintf '{text}\\n'\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def hang(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let programs of this machine not come to their end."""
    for name in names:
        program = folder / "hangs" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho >{folder}/asked\nexec sleep 60\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'hangs'}:{os.environ['PATH']}")


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_question_that_hangs_ends_with_what_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that does not respond costs its host, and no more than the limit."""
    hang(tmp_path, monkeypatch, "df")
    began = time.monotonic()
    with pytest.raises(CommandTimeoutError) as caught:
        shell(LOCAL, 'df -Pk -- "$1"', "/somewhere", timeout_s=1.0)
    assert time.monotonic() - began < 20
    assert caught.value.brief == "local did not answer within 1 s"
    assert 'df -Pk -- "$1" /somewhere' in caught.value.details


def test_every_question_has_a_limit() -> None:
    """One without waits for ever where a host hangs, and every other host with it."""
    for ask in (run, shell):
        assert signature(ask).parameters["timeout_s"].default == ANSWER_S


def test_interruption_does_not_wait_for_a_host_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to be saved while it is asked what it is."""
    hang(tmp_path, monkeypatch, "uname")
    interruption = Interruption()
    experiment, hosts = resolved(Settings(envs="vm"), Settings())

    def interrupt() -> None:
        wait_for(tmp_path / "asked")
        interruption.request()

    began = time.monotonic()
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(InterruptedRunError):
        opening.open_session(hosts[0], experiment, "hangs", interruption)
    assert time.monotonic() - began < 20


def test_insisting_ends_a_claim_on_a_cache_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the search did not see is not taken for nothing, and nothing of another is removed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    interruption = Interruption()
    experiment, hosts = resolved(Settings(envs="vm"), Settings())
    session = opening.open_session(hosts[0], experiment, "hangs", interruption)
    others = Path(session.folder) / "of-another"
    others.mkdir(parents=True)
    hang(tmp_path, monkeypatch, "uname")

    def insist() -> None:
        wait_for(tmp_path / "asked")
        interruption.request()
        interruption.request()

    began = time.monotonic()
    threading.Thread(target=insist, daemon=True).start()
    with pytest.raises(UnusableError, match="cannot see which runs use"):
        session.claim()
    session.close()
    assert time.monotonic() - began < 20
    assert others.is_dir()


def _break(session: HostSession) -> None:
    if session.host.label == "other":
        raise ZeroDivisionError("what nobody foresaw")


@pytest.mark.parametrize("broken", ["preparing", "opening"])
def test_fault_of_envcompare_on_one_host_ends_no_other(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is kept, with the reason; the other host is measured."""
    monkeypatch.setattr(opening, "connect", lambda _host, **_: LOCAL)
    whole, open_session = HostSession.stage, opening.open_session

    def stage(session: HostSession) -> None:
        _break(session)
        whole(session)

    def opened(host: HostSpec, *rest: Any) -> HostSession:
        session = open_session(host, *rest)
        _break(session)
        return session

    if broken == "preparing":
        monkeypatch.setattr(HostSession, "stage", stage)
    else:
        monkeypatch.setattr(walk, "open_session", opened)
    monkeypatch.chdir(tmp_path)
    words = ("--envs", "vm@host", "--host-python", sys.executable, "--hosts", "other,local")
    # Both are this machine: at once, the sweep after the fault would end what the other measures.
    short = (
        "--jobs",
        "1",
        "--command",
        "true",
        "--budget",
        "1",
        "--no-quiet-gate",
        "--profile",
        "none",
    )
    done = CliRunner().invoke(app, ["run", *words, *short, "--out", str(tmp_path / "out")])
    (folder,) = (tmp_path / "out").iterdir()
    events = RunFolder.open(folder).read_events().events
    fates = {event.host: event.failure for event in events if event.what == "host-failed"}
    assert set(fates) == {"other"}, done.output
    assert fates["other"] is not None
    assert "unexpected ZeroDivisionError: what nobody foresaw" in fates["other"].brief
    assert {event.host for event in events if event.what == "cell-ended"} == {"local"}
    assert done.exit_code == EnvcompareError.exit_code
