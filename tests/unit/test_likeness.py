"""Which arms should have the same software, and what doctor says when they do not."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace
from schemas import schema_text

from envcompare import doctor
from envcompare.cli import app
from envcompare.cli.planning import resolved
from envcompare.config.experiment import Experiment
from envcompare.config.settings import Settings
from envcompare.doctor import build_command, counterpart, is_meant_same
from envcompare.doctor.checks import (
    ComparedStack,
    Examination,
    HostExamination,
    comparison_lines,
    diagnosis_lines,
)
from envcompare.errors import Problem
from envcompare.run_folder.records import ArmRecord, FactDifference
from envcompare.run_folder.results import json_bytes
from envcompare.stack import NotMadeError, Progress
from envcompare.transport.hosts import parse_hosts

TREE = "site_packages.sha256"
VM = ArmRecord(id="vm", environment="vm", is_reference=True)
DOCKER = ArmRecord(id="docker", environment="docker")
VM_HOST = ArmRecord(id="vm-host", environment="vm", stack="host")
DOCKER_HOST = ArmRecord(id="docker-host", environment="docker", stack="host")
OWN = ArmRecord(id="new", environment="docker", reference="app:2")
ARMS = (VM, DOCKER, VM_HOST, DOCKER_HOST, OWN)


def difference(key: str = "numpy.version", **fields: Any) -> FactDifference:
    """Return a difference between docker and vm, a confounder unless told otherwise."""
    known: dict[str, Any] = {"fact_class": "confounder", "sentence": f"{key} differs."}
    return FactDifference(
        **{"host": "h", "arm": "docker", "key": key, "reference": 1, "value": 2, **known, **fields}
    )


def likeness(*differences: FactDifference, **fields: Any) -> ComparedStack:
    """Return what a step of cnn found in docker beside vm."""
    known = {"arm": "docker", "base": "vm", "is_meant": True, "workloads": ("cnn",)}
    return ComparedStack(**{**known, **fields}, differences=differences)


def likeness_lines(found: ComparedStack) -> tuple[str, ...]:
    """Return what is said of it alone."""
    return comparison_lines(HostExamination(host="h", stacks=(found,)))


BROKEN = Problem(brief="docker has other software", details="another hash", hint="rm -r VENV")
UNREAD = difference(TREE, value=None, fact_class="possible-influence")


@pytest.mark.parametrize(
    ("arm", "base", "is_meant"),
    [
        (DOCKER, VM, True),
        (DOCKER_HOST, VM_HOST, True),
        (VM_HOST, VM, False),
        (OWN, VM, False),
    ],
)
def test_an_arm_is_held_against_the_one_it_should_be_like(
    arm: ArmRecord, base: ArmRecord, *, is_meant: bool
) -> None:
    """Arms of one stack are; an image of the user's is like nothing, and stands beside all."""
    assert counterpart(arm, ARMS) == base
    assert is_meant_same(base, arm) is is_meant


@pytest.mark.parametrize(
    ("found", "is_as_meant"),
    [
        (likeness(), True),
        (likeness(difference("seccomp.mode", fact_class="varied")), True),
        (likeness(difference()), False),
        (likeness(difference(), is_meant=False), True),
        (likeness(difference(TREE, fact_class="possible-influence")), False),
        (likeness(UNREAD), True),
        (likeness(mismatch=BROKEN), False),
    ],
)
def test_what_is_not_as_it_should_be(found: ComparedStack, *, is_as_meant: bool) -> None:
    """Other software where it should be the same, another tree of it, or a broken proof."""
    assert found.is_as_meant is is_as_meant


def test_the_lines_begin_with_the_answer_and_what_matters() -> None:
    """Confounders by their sentences, what has another cause once, and harmless classes counted."""
    found = likeness(
        difference(),
        difference(TREE, part_of="numpy.version"),
        difference("thp", fact_class="possible-influence"),
        difference("seccomp.mode", fact_class="varied"),
        difference("gid", fact_class="varied"),
        difference("image.id", fact_class="identity"),
        mismatch=BROKEN,
    )
    assert likeness_lines(found) == (
        "  ✕ stack of docker: software differs from vm's, but should not, in a step of cnn",
        "      ⚠ another hash",
        "      try: rm -r VENV",
        "      ⚠ numpy.version differs.",
        "      possible influence: transparent huge pages",
        "      other differences: 2 made by the environment on purpose, 1 in names and IDs",
    )


@pytest.mark.parametrize(
    ("arm", "why", "is_given"),
    [("new", "your own image", True), ("docker-host", "another stack", False)],
)
def test_other_software_that_was_asked_for_is_told_and_expected(
    arm: str, why: str, *, is_given: bool
) -> None:
    """Nothing is wrong with an image of the user's."""
    found = likeness(difference(), arm=arm, is_meant=False, is_given=is_given)
    head = f"  ✓ stack of {arm}: software differs from vm's, expected of {why}"
    assert likeness_lines(found)[:2] == (
        f"{head}, in a step of cnn",
        "      ⚠ numpy.version differs.",
    )


@pytest.mark.parametrize(
    ("found", "head"),
    [
        (likeness(), "✓ stack of docker: same software as vm"),
        (
            likeness(UNREAD, is_proven=False),
            "– stack of docker: like vm's, but not everything could be hashed",
        ),
        (likeness(arm="new", is_meant=False), "✓ stack of new: no confounder against vm"),
    ],
)
def test_no_more_is_said_than_was_seen(found: ComparedStack, head: str) -> None:
    """Software is called the same where it is meant to be and was hashed in both arms."""
    assert likeness_lines(found)[0] == f"  {head}, in a step of cnn"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ""),
        ({"envs": "vm,docker", "hosts": "gpu01"}, " --envs vm,docker --hosts gpu01"),
        ({"python": "3.12", "variant": "cuda"}, " --variant cuda --python 3.12"),
        ({"sif_compression": "gzip"}, " --sif-compression gzip"),
        ({"device": "cpu"}, " --variant cpu"),
        ({"connect_timeout": 30.0}, " --connect-timeout 30"),
        ({"accept_new_host_keys": True}, " --accept-new-host-keys"),
        (
            {"docker_options": ("--shm-size 1g", "--cap-add SYS_NICE")},
            " --docker-options '--shm-size 1g' --docker-options '--cap-add SYS_NICE'",
        ),
    ],
)
def test_the_command_that_builds_makes_the_very_stack_that_is_missing(
    given: dict[str, Any], words: str
) -> None:
    """Whatever decides what is made stands in it, and nothing that is so anyway."""
    experiment, hosts = resolved(Settings(**given), Settings())
    assert build_command(experiment, hosts[0], Settings()) == f"envcompare build{words}"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, " --hosts me@gpu01 --sif-compression none --accept-new-host-keys"),
        (
            {"hosts": "local", "sif_compression": "zstd", "accept_new_host_keys": False},
            " --hosts local --sif-compression zstd --check-host-keys",
        ),
    ],
)
def test_the_command_that_builds_overrides_the_configuration_file_as_doctor_did(
    given: dict[str, Any], words: str
) -> None:
    """A default that the command line gave would else be decided by the file."""
    file = Settings(hosts="me@gpu01", sif_compression="none", accept_new_host_keys=True)
    experiment, hosts = resolved(Settings(**given), file)
    assert build_command(experiment, hosts[0], file) == f"envcompare build{words}"


@pytest.mark.parametrize("words", [("--config", "a b.toml"), ("--config=a b.toml",)])
def test_the_command_that_builds_reads_the_same_configuration_file(words: tuple[str, ...]) -> None:
    """Otherwise that of the folder would decide."""
    experiment, hosts = resolved(Settings(), Settings())
    command = build_command(experiment, hosts[0], Settings(), ("--quick", *words, "--jobs", "2"))
    assert command == f"envcompare build {shlex.join(words)}"


def test_the_file_of_doctor_reaches_what_it_suggests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the current folder, if the command line names none."""
    (tmp_path / "envcompare.toml").write_text('hosts = "me@gpu01"\n')
    monkeypatch.chdir(tmp_path)
    files: list[Settings] = []
    monkeypatch.setattr(doctor, "examine", lambda *_, file: files.append(file) or ())
    with pytest.raises(SystemExit):
        app(["doctor", "--envs", "vm,docker", "--hosts", "local"], standalone_mode=False)
    assert files == [Settings(hosts="me@gpu01")]


class HostSession:
    """A host on which every arm is told of and none is made."""

    def __init__(self) -> None:
        (self.host,) = parse_hosts(["local"])

    def claim(self) -> tuple[str, ...]:
        """Find nothing that another run left."""
        return ()

    def add_arm(self, _arm: ArmRecord, _experiment: Experiment, progress: Progress) -> None:
        """Tell something of the arm, twice."""
        for _ in range(2):
            progress.say("app:2 is 1 here and 2 on lab: the one there is taken")
        raise NotMadeError("not made")

    def close(self) -> tuple[str, ...]:
        """Leave a container behind."""
        return ("docker could not be swept",)


def test_what_a_run_tells_of_an_arm_doctor_tells_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two images of one name would be compared in silence."""
    experiment, hosts = resolved(Settings(envs="vm,docker", workloads="cnn"), Settings())
    monkeypatch.setattr(doctor, "open_session", lambda *_: HostSession())
    known = HostExamination(host="local")
    said = doctor._compared(experiment, hosts[0], (), known, Settings(hosts="me@gpu01"))
    note = "app:2 is 1 here and 2 on lab: the one there is taken"
    lines = comparison_lines(said)
    left = "docker could not be swept"
    assert lines[:2] == (f"  – {note}", f"  – {left}")
    assert "not compared, the stack of vm is not built yet" in lines[2]
    assert (said.notes, said.exit_code) == ((note, left), 0)
    assert said.not_compared == Problem(
        brief="the stack of vm is not built yet",
        hint="envcompare build --envs vm,docker --hosts local",
    )


@pytest.mark.parametrize(
    ("place", "given", "brief"),
    [
        ("local", {"vm_python": "/not/there"}, "python for vm cannot be used on local"),
        ("127.0.0.1:1", {}, "host '127.0.0.1:1' refused the connection"),
    ],
)
def test_where_nothing_is_compared_the_result_says_why(
    place: str, given: dict[str, Any], brief: str
) -> None:
    """A host that lacks something or is not reached is none whose stacks are alike."""
    settings = Settings(envs="vm,vm@host", device="cpu", hosts=place, **given)
    (found,) = doctor.examine(*resolved(settings, Settings()))
    assert (found.exit_code, found.stacks) == (3, ())
    assert found.not_compared is not None
    assert found.not_compared.brief == brief
    assert found.not_compared.hint
    (alone,) = doctor.examine(*resolved(replace(settings, envs="vm"), Settings()))
    assert (alone.exit_code, alone.not_compared) == (3, None)
    assert any(line.lstrip().startswith("✕") for line in diagnosis_lines(alone))


def test_what_doctor_writes_as_json_obeys_its_schema() -> None:
    """Each fact that differs stands in it with its class and both values, the words beside."""
    found = likeness(difference(), mismatch=BROKEN)
    host = HostExamination(host="h", exit_code=3, stacks=(found,))
    unreachable = HostExamination(host="g", exit_code=3, trouble=Problem(brief="no such host"))
    written = json.loads(json_bytes(Examination(hosts=(host, unreachable), exit_code=3)))
    jsonschema.validate(written, json.loads(schema_text("doctor")))
    (stack,) = written["hosts"][0]["stacks"]
    assert (stack["arm"], stack["base"], stack["is_as_meant"]) == ("docker", "vm", False)
    (one,) = stack["differences"]
    assert (one["key"], one["fact_class"]) == ("numpy.version", "confounder")
    assert (one["reference"], one["value"]) == (1, 2)
