"""Which build of PyTorch a host gets: chosen by its GPU or by wish, and really taken by pip."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import pytest
from recording import Recorder

from envcompare.cli import app
from envcompare.cli.planning import resolved
from envcompare.config import Variant
from envcompare.config.plan import make_plan
from envcompare.config.settings import Settings
from envcompare.errors import Interruption, StackError, UnusableError
from envcompare.gpu import driver_version
from envcompare.hosts.opening import open_session
from envcompare.stack import CPU, Progress, Tier, wheelhouse
from envcompare.stack.storage import Wheelhouse
from envcompare.stack.wheelhouse import fill
from envcompare.text import Command
from envcompare.transport import LocalTransport, Process

REQUIREMENTS = "torch==2.0\ntorchvision==1.0  # for images\nnumpy\n"
DRIVER = "NVRM version: NVIDIA UNIX {} Kernel Module{}  {}  Tue Sep 19 19:27:19 UTC 2025\nGCC 12\n"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def test_each_variant_pins_its_local_version() -> None:
    """`==` would take either build, and a torchvision of another kind than the torch."""
    told = {one: wheelhouse.constraints(REQUIREMENTS, one) for one in ("cpu", "cuda", "auto")}
    assert told["cpu"] == "torch==2.0+cpu\n"
    assert told["cuda"] == "torch===2.0\ntorchvision===1.0\n"
    assert told["auto"] == wheelhouse.constraints("pip\n", "cpu") == ""


@pytest.mark.parametrize(("variant", "expected"), [("cpu", "2.0+cpu"), ("cuda", "2.0")])
def test_pip_takes_the_build_of_the_variant(variant: Variant, expected: str, links: Path) -> None:
    """Where both are offered, neither wins by chance."""
    _offer(links, "torch-2.0", "torch-2.0+cpu")
    filled = _fill(links, variant)
    assert [name.split("-")[1] for name, _ in filled.sums] == [expected]


def test_the_variants_are_kept_apart(links: Path) -> None:
    """What was resolved for the one is never taken for the other."""
    _offer(links, "torch-2.0", "torch-2.0+cpu")
    assert _fill(links, "cpu").key != _fill(links, "cuda").key


def test_the_choice_is_said_once_a_host_and_a_second_build_is_silent(
    links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run says it though the wheels are there; neither says it again for a second arm."""
    _offer(links, "torch-2.0+cpu")
    monkeypatch.setattr(Tier, "requirements", links.parent / "requirements.in")
    (links.parent / "requirements.in").write_text("torch==2.0\n")
    sentence = f"no GPU is to be used: {CPU.sentence}"
    assert _said_for_two_arms(Progress) == [sentence]
    assert _said_for_two_arms(partial(Progress, may_make=False)) == []
    _fill(links, "cpu")
    assert _said_for_two_arms(Progress) == []
    assert _said_for_two_arms(partial(Progress, is_before_run=True)) == [sentence]


def test_run_says_the_choice_where_build_has_nothing_to_make(
    links: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both end with the interpreter that is missing, after they have chosen."""
    _offer(links, "torch-2.0+cpu")
    monkeypatch.setattr(Tier, "requirements", links.parent / "requirements.in")
    _fill(links, "cpu")
    said = {}
    for command in (("build",), ("run", "--workloads", "cnn", "--out", str(links.parent))):
        words = (*command, "--envs", "vm", "--python", "3.11", "--vm-python", "/none")
        with pytest.raises(SystemExit):
            app([*words, "--variant", "cpu"], standalone_mode=False)
        said[command[0]] = capsys.readouterr().err
    assert all("no Python 3.11 for vm on local" in text for text in said.values())
    assert {name: text.count(CPU.sentence) for name, text in said.items()} == {"build": 0, "run": 1}


def test_a_cpu_build_that_pip_does_not_find_is_asked_of_pytorch(links: Path) -> None:
    """Once, and said; where there is none either, the remedy names the index."""
    _offer(links, "torch-2.0")
    told: list[str] = []
    here = Recorder()
    with pytest.raises(StackError) as caught:
        _fill(links, "cpu", told=told, local=here)
    asked = [command.argv for command in here.commands if "download" in command.argv]
    assert [CPU_INDEX in argv for argv in asked] == [False, True]
    assert told[-1] == f"no CPU build of torch where pip looks, asking {CPU_INDEX}"
    assert caught.value.brief == "there is no cpu build of torch for Python 3.11 here"
    assert "--variant" in caught.value.hint


def test_a_cuda_build_that_pip_does_not_find_is_not_replaced(links: Path) -> None:
    """A CPU build in its place would measure something else."""
    _offer(links, "torch-2.0+cpu")
    with pytest.raises(StackError) as caught:
        _fill(links, "cuda")
    assert caught.value.brief == "there is no cuda build of torch for Python 3.11 here"


def test_a_build_of_pytorchs_own_index_is_taken_where_there_is_no_plain_one(links: Path) -> None:
    """Its local version names the CUDA; one for another CUDA is not taken."""
    _offer(links, "torch-2.0+cpu", "torch-2.0+cu126")
    filled = _fill(links, "cu126")
    assert [name.split("-")[1] for name, _ in filled.sums] == ["2.0+cu126"]
    with pytest.raises(StackError, match="there is no cu128 build of torch"):
        _fill(links, "cu128")


def test_another_package_that_is_missing_is_no_question_of_the_variant(links: Path) -> None:
    """The remedy is another one then."""
    _offer(links, "torch-2.0+cpu")
    with pytest.raises(StackError) as caught:
        _fill(links, "cpu", requirements="torch==2.0\nno-such-part\n")
    assert caught.value.brief.startswith("resolving the workloads' packages failed")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (DRIVER.format("x86_64", "", "535.104.05"), "535.104.05"),
        (DRIVER.format("Open", " for x86_64", "580.65.06"), "580.65.06"),
        ("", None),
        ("something else", None),
    ],
)
def test_the_driver_is_read_from_its_kernel_module(text: str, version: str | None) -> None:
    """The closed and the open one name themselves differently."""
    assert driver_version(text) == version


def test_a_host_of_another_architecture_is_refused() -> None:
    """Wheels for this machine would install there, and not load."""
    with pytest.raises(StackError) as caught:
        wheelhouse.check_machine(Answering("riscv128\n"))
    assert caught.value.details.startswith("it is riscv128, and the wheels ")
    wheelhouse.check_machine(LocalTransport())


class Answering(LocalTransport):
    """A host whose every command says the same; no machine here has these drivers."""

    def __init__(self, text: str) -> None:
        self.text = text

    def spawn(self, command: Command) -> Process:
        """Say the text in place of the command's own."""
        return super().spawn(replace(command, argv=("printf", "%s", self.text)))


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder that pip looks in, and a cache of its own."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return folder


def _offer(links: Path, *names: str) -> None:
    for name in names:
        project, version = name.split("-")
        with ZipFile(links / f"{name}-py3-none-any.whl", "w") as wheel:
            meta = f"{name}.dist-info"
            about = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
            wheel.writestr(f"{meta}/METADATA", about)
            wheel.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{meta}/RECORD", "")


def _fill(
    links: Path,
    variant: Variant,
    *,
    requirements: str = "torch==2.0\n",
    told: list[str] | None = None,
    local: LocalTransport | None = None,
) -> Wheelhouse:
    path = links.parent / "requirements.in"
    path.write_text(requirements)
    told = [] if told is None else told
    return fill(
        path,
        python="3.11",
        variant=variant,
        local=local or LocalTransport(),
        progress=Progress(told.append),
    )


def _said_for_two_arms(make: Callable[..., Progress]) -> list[str]:
    """Return what a session says of two arms whose interpreter is missing."""
    said: list[str] = []
    given = Settings(envs="vm", workloads="cnn", device="cpu", python="3.11", vm_python="/none")
    experiment, hosts = resolved(given, Settings())
    with closing(open_session(hosts[0], experiment, "said", Interruption())) as session:
        for arm in 2 * make_plan(experiment, ("local",), accept_many=True).arms[:1]:
            with pytest.raises(UnusableError, match=r"no Python 3\.11 for vm"):
                session.add_arm(arm, experiment, make(said.append))
    return said
