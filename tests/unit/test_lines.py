"""Command lines as typed: which are one call of an engine, and what is added to them."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from programs import Programs, first_on_path

from envcompare.cli import app, running
from envcompare.cli.running import line_settings
from envcompare.environments import GATE, Isolation
from envcompare.environments.line import (
    CLIENTS,
    EngineCall,
    EngineLine,
    Line,
    _require_path,
    _require_together,
    container_file,
    engine_call,
    given_options,
    name_of,
)
from envcompare.environments.oci import ENGINE
from envcompare.environments.registry import ALL_ENVIRONMENTS
from envcompare.errors import ConfigError, Phase, UnusableError
from envcompare.stack import Progress, Request
from envcompare.text import Command
from envcompare.transport import LOCAL

# Parts of what `run --help` prints, of Docker 20.10 and of Podman 4.3.
DOCKER = """
Usage:  docker run [OPTIONS] IMAGE [COMMAND] [ARG...]

Options:
      --add-host list                  Add a custom host-to-IP mapping (host:ip)
  -d, --detach                         Run container in background and print container ID
  -e, --env list                       Set environment variables
  -i, --interactive                    Keep STDIN open even if not attached
      --rm                             Automatically remove the container when it exits
  -t, --tty                            Allocate a pseudo-TTY
      --ulimit ulimit                  Ulimit options (default [])
  -v, --volume list                    Bind mount a volume
  -w, --workdir string                 Working directory inside the container
"""
NAMED = """
      --env-file list                  Read in a file of environment variables
      --name string                    Assign a name to the container
  -p, --publish list                   Publish a container's port(s) to the host
"""
PODMAN = """
Options:
      --cidfile string                           Write the container ID to the file
  -d, --detach                                   Run container in background
      --rmi                                      Remove image unless used by other containers
  -v, --volume stringArray                       Bind mount a volume into the container
"""


@pytest.mark.parametrize(
    ("line", "before", "words"),
    [
        ("docker run --rm app:2 python x.py", "docker run", ("--rm", "app:2", "python", "x.py")),
        ("docker  run\t-v $PWD:/w app", "docker  run", ("-v", "$PWD:/w", "app")),
        ("A=1 B='x y' podman run app", "A=1 B='x y' podman run", ("app",)),
        ("/usr/bin/docker container run app", "/usr/bin/docker container run", ("app",)),
        ("docker run -v $(pwd):/w app", "docker run", ("-v", "$$$$$$:/w", "app")),
        ("docker run>log app", "docker run", (">", "log", "app")),
        ("DATA=/srv/docker docker run app", "DATA=/srv/docker docker run", ("app",)),
        ("sudo docker run app", "sudo docker run", ("app",)),
        ("time sudo -n docker run app", "time sudo -n docker run", ("app",)),
        ("env A=1 nice -n 5 docker run app", "env A=1 nice -n 5 docker run", ("app",)),
        ("docker run\\\n --rm app", "docker run", ("--rm", "app")),
        ("docker run \\\n  --rm \\\n app 'a;b'", "docker run", ("--rm", "app", "a;b")),
        ("docker run app sh -c 'a && b | c'", "docker run", ("app", "sh", "-c", "a && b | c")),
    ],
)
def test_call_of_an_engine_is_found_with_its_position(
    line: str, before: str, words: tuple[str, ...]
) -> None:
    """Quotes, blanks, variables and lines that go on are those of the shell."""
    call = engine_call(line)
    assert call is not None
    assert line[: call.position] == before
    assert call.words == words
    parts = [line[begin:end].replace("$(pwd)", "$" * 6) for begin, end in call.spans]
    assert [shlex.split(part) for part in parts] == [[word] for word in words]


@pytest.mark.parametrize(
    "line",
    [
        "python train.py",
        "docker compose run app",
        "docker exec box run",
        "docker run",
        "docker run app | tee log",
        "docker run app; docker run app",
        "docker run app && true",
        "docker run app\ndocker run app",
        "docker --context far run app",
        "DOCKER_HOST=ssh://far docker run app",
        "docker run $(cat $(ls))",
        "(docker run app)",
        "cd x && docker run app",
        "sudo -u bob docker run app",
        "sudo -ubob podman run app",
        "sudo -E docker run app",
        "env -i docker run app",
        "time -p sleep 1 docker run app",
        "env DOCKER_HOST=ssh://far docker run app",
        "docker run 'app",
        "echo docker run app",
        "",
    ],
)
def test_other_lines_are_no_call_of_an_engine(line: str) -> None:
    """They are measured as they are, with nothing added."""
    assert engine_call(line) is None


@pytest.mark.parametrize(
    ("text", "manual", "names", "image"),
    [
        ("--rm -v /a:/b -w /b app -d", DOCKER, ("--rm", "-v", "-w"), "app"),
        ("-dit app", DOCKER, ("-d", "-i", "-t"), "app"),
        ("-eX=1 --env Y --env=Z app run", DOCKER, ("-e", "--env", "--env"), "app"),
        ("-itv /a:/b app", DOCKER, ("-i", "-t", "-v"), "app"),
        ("--net host -d app", DOCKER, ("--net", "-d"), "app"),
        ("--cidfile f --rmi app", PODMAN, ("--cidfile", "--rmi"), "app"),
        ("--rm", DOCKER, ("--rm",), ""),
    ],
)
def test_manual_separates_options_from_the_image(
    text: str, manual: str, names: tuple[str, ...], image: str
) -> None:
    """An option that the client describes with a type takes the next word."""
    words = tuple(shlex.split(text))
    found, place = given_options(words, manual)
    assert (found, words[place : place + 1]) == (names, (image,) if image else ())


def test_line_of_an_engine_gets_only_what_finds_its_container() -> None:
    """Everything else of the line stays as it is, byte for byte."""
    line = "X=1 docker run --rm -v $PWD:/w  app python -c 'print(1)'"
    isolation = Isolation(run_id="R", arm="b", worker="W", reference=line, scratch="/s")
    launcher = Command(argv=("python3", "measuring.py"), env=(("MALLOC_TOP_PAD_", "1"),))
    wrapped = EngineLine.of(("docker",)).wrap(launcher, isolation)
    added = "--label envcompare.run=R --label envcompare.worker=W --cidfile /s/container-W"
    assert container_file(isolation) == "/s/container-W"
    assert wrapped.argv == launcher.argv
    assert dict(wrapped.env) == {
        "ENVCOMPARE_RUN": "R",
        "ENVCOMPARE_ARM": "b",
        "ENVCOMPARE_ENVIRONMENT": "docker-line",
        "ENVCOMPARE_WORKER": "W",
        "ENVCOMPARE_LINE": f"X=1 docker run {added} --rm -v $PWD:/w  app python -c 'print(1)'",
        "ENVCOMPARE_CONTAINER": "docker\n/s/container-W",
    }


STEPPER = Command(
    argv=("python3", "/run/workloads/harness/stepping.py"),
    env=((GATE, "/s"), ("PYTHONPATH", "/image")),
)


def test_program_in_a_container_gets_the_probe_and_its_gate() -> None:
    """Before the paths of its image, and of each PYTHONPATH that the line sets."""
    line = "docker run -v $PWD:/w -ePYTHONPATH=/mine app sh -c 'PYTHONPATH=/own python x.py'"
    isolation = Isolation(run_id="R", arm="b", worker="W", reference=line, scratch="/s")
    wrapped = EngineLine.of(("docker",)).wrap(STEPPER, isolation)
    probe = "/envcompare-gate/harness/probe"
    added = (
        "--label envcompare.run=R --label envcompare.worker=W --cidfile /s/container-W "
        "--mount type=bind,source=/run/workloads/harness,target=/envcompare-gate/harness,readonly "
        "--mount type=bind,source=/s,target=/envcompare-gate/turn,readonly "
        f"--env ENVCOMPARE_GATE=/envcompare-gate/turn --env PYTHONPATH={probe}:/image"
    )
    assert dict(wrapped.env)["ENVCOMPARE_LINE"] == (
        f"docker run {added} -v $PWD:/w -ePYTHONPATH={probe}:/mine app sh -c "
        f"'PYTHONPATH={probe}:/own python x.py'"
    )
    assert dict(wrapped.env)[GATE] == "/s"


@pytest.mark.parametrize(
    ("text", "brief"),
    [
        ("--name box app", "which --name does not allow"),
        ("-p 80:80 app", "which -p does not allow"),
        ("-e PYTHONPATH app", "PYTHONPATH of the container must be known"),
        ("--env-file f app", "PYTHONPATH of the container must be known"),
        ("$IMAGE", "PYTHONPATH of the container must be known"),
        ("-e PYTHONPATH=/x app python train.py --name run1 -p 3", ""),
    ],
)
def test_options_that_hinder_steps_are_refused(text: str, brief: str) -> None:
    """Those of the container only, not those of the script."""
    words = tuple(shlex.split(text))
    names, place = given_options(words, f"{DOCKER}{NAMED}")
    with pytest.raises(UnusableError, match=brief) if brief else nullcontext():
        _require_together(names)
        _require_path(names, words, is_known=not words[place].startswith("$"))


def test_plain_line_with_steps_keeps_its_own_pythonpath() -> None:
    """The probe goes before it."""
    line = "env PYTHONPATH=lib python train.py"
    isolation = Isolation(run_id="R", arm="a", worker="W", reference=line)
    wrapped = Line().wrap(STEPPER, isolation)
    expected = "env PYTHONPATH=/run/workloads/harness/probe:lib python train.py"
    assert dict(wrapped.env)["ENVCOMPARE_LINE"] == expected


def test_steps_and_lines_around_processes_exclude_each_other() -> None:
    """`--prepare` belongs to one process, and a stepped process serves many blocks."""
    with pytest.raises(ConfigError, match="cannot be combined"):
        line_settings(("a", "b"), {"lockstep": True, "prepare": "rm x"})
    settings = line_settings(("python a.py", "python b.py"), {"lockstep": True})
    assert settings.workloads["a"].lockstep
    with pytest.raises(ConfigError, match="--step train is not understood"):
        line_settings(("a", "b"), {"step": "train"})
    with pytest.raises(ConfigError, match="cannot be combined"):
        line_settings(("a", "b"), {"lockstep": True, "measures": ("rate=([0-9]+) tokens",)})
    table = line_settings(("a", "b"), {"measures": ("rate=([0-9]+) tokens",)}).workloads["line"]
    assert table.measures == {"rate": "([0-9]+) tokens"}
    table = line_settings(("a", "b"), {"step": "model:Net.forward"}).workloads["line"]
    assert (table.lockstep, table.step) == (True, "model:Net.forward")


def test_plain_line_gets_nothing_but_marks() -> None:
    """The variables that workloads get are not for lines."""
    isolation = Isolation(run_id="R", arm="a", worker="W", reference="make fast")
    wrapped = Line().wrap(Command(argv=("python3",), env=(("PYTHONHASHSEED", "0"),)), isolation)
    assert wrapped.env[-1] == ("ENVCOMPARE_LINE", "make fast")
    assert "PYTHONHASHSEED" not in dict(wrapped.env)


def test_lines_become_arms_by_what_starts_them() -> None:
    """A name may come first; without one it is a letter."""
    lines = ("fast=python x.py", "OMP_NUM_THREADS=1 python x.py", "docker run app a@b:c,d=e")
    settings = line_settings(lines, {"budget": 30.0})
    assert settings.envs == (
        "fast=line:python x.py",
        "b=line:OMP_NUM_THREADS=1 python x.py",
        "c=docker-line:docker run app a@b:c,d=e",
    )
    assert (settings.budget, settings.margin, settings.profile) == (30.0, 5.0, "none")
    assert line_settings(lines, {"preset": "strict"}).margin is None


@pytest.mark.parametrize(
    ("lines", "brief"),
    [
        (("python x.py",), "2 to 26 command lines, not 1"),
        (("true",) * 27, "2 to 26 command lines, not 27"),
        (("b=true", "true"), "two lines are 'b'"),
        (("true", " "), "is empty"),
        (("true", "fast="), "is empty"),
    ],
)
def test_lines_that_cannot_be_compared_are_refused(lines: tuple[str, ...], brief: str) -> None:
    """Before anything is run, with what to write instead."""
    with pytest.raises(ConfigError, match=brief) as refused:
        line_settings(lines, {})
    assert refused.value.hint


@pytest.mark.parametrize(("phases", "code"), [(("checksum",), 6), (("checksum", "step"), 4)])
def test_only_other_work_has_the_exit_code_of_other_work(
    monkeypatch: pytest.MonkeyPatch, phases: tuple[Phase, ...], code: int
) -> None:
    """Where a line failed as well, its exit code says so."""
    failures = tuple(SimpleNamespace(phase=phase) for phase in phases)
    found = SimpleNamespace(course=SimpleNamespace(failures=failures), compared=())
    monkeypatch.setattr(running, "_carry_out", lambda *_, **__: (4, found, None))
    assert CliRunner().invoke(app, ["why", "true 1", "true 2"]).exit_code == code


def test_engine_call_names_the_program_without_its_folder() -> None:
    """It is looked up by that name to find and remove the container."""
    assert engine_call("/opt/bin/podman run app") == EngineCall(
        ("podman",), 0, 19, ("app",), ((20, 23),)
    )
    call = engine_call("X=/usr/bin/sudo sudo docker run app")
    assert call is not None
    assert (call.client, name_of(call.client)) == (("sudo", "-n", "docker"), "sudo-docker-line")
    assert call.client_at == len("X=/usr/bin/sudo sudo ")
    assert engine_call("env --unset=A docker run app") is not None
    assert engine_call("env --unset=DOCKER_HOST docker run app") is None
    assert {"line", *map(name_of, CLIENTS)} < set(ALL_ENVIRONMENTS)


@pytest.mark.parametrize(("pull", "is_looked_up"), [("", True), ("--pull always", False)])
def test_image_that_a_line_pulls_by_itself_is_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pull: str, *, is_looked_up: bool
) -> None:
    """Which one it will run is not known before it has."""
    programs = Programs(first_on_path(tmp_path, monkeypatch))
    manual = f"{DOCKER}      --pull string                    Pull image before running\n"
    (programs.folder / "manual").write_text(manual)
    programs.program("docker", '[ "$1" = run ] && exec cat manual; echo "$@" >>asked; echo an-id')
    request = Request(
        transport=LOCAL,
        progress=Progress(lambda _text: None),
        builder=ENGINE,
        reference=f"docker run {pull} app",
    )
    prepared = EngineLine.of(("docker",)).prepare(request)
    assert prepared.software == ((("image.id", "an-id"),) if is_looked_up else ())
    assert (programs.folder / "asked").exists() is is_looked_up


@pytest.mark.parametrize("image", ["$(cat built)", "app:$(git rev-parse --short HEAD)", "app:$V"])
def test_image_that_the_shell_names_is_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    """Its name is not known before the shell has run the line, which --lockstep needs."""
    programs = Programs(first_on_path(tmp_path, monkeypatch))
    (programs.folder / "manual").write_text(DOCKER)
    programs.program("docker", '[ "$1" = run ] && exec cat manual; echo "$@" >>asked; echo an-id')
    request = Request(
        transport=LOCAL,
        progress=Progress(lambda _text: None),
        builder=ENGINE,
        reference=f"docker run --rm {image} python train.py",
    )
    assert EngineLine.of(("docker",)).prepare(request).software == ()
    assert not (programs.folder / "asked").exists()
    with pytest.raises(UnusableError, match="must be known before it starts"):
        EngineLine.of(("docker",)).prepare(
            replace(request, options=replace(request.options, lockstep=True))
        )


def test_a_dangling_link_is_no_new_file_for_a_capture(tmp_path: Path) -> None:
    """It is refused before the line is measured, not after."""
    (tmp_path / "slow.capture").symlink_to(tmp_path / "gone")
    done = CliRunner().invoke(app, ["capture", "true", "-o", str(tmp_path / "slow.capture")])
    assert isinstance(done.exception, ConfigError)
    assert "slow.capture exists already" in done.exception.brief
