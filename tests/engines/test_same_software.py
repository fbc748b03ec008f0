"""Venv, image, SIF and definition from one wheelhouse hold the same, and say so from inside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from lab import ROOT, docker_client, forgotten
from registry import serving
from runs import BASE
from software import sif_of

from envcompare.environments.oci import ENGINE, image_store
from envcompare.environments.registry import environment as named
from envcompare.environments.software import FILES, TREE, inside, mismatch, with_proof
from envcompare.errors import StackError
from envcompare.stack import Prepared, Progress, Request, building, image, sif, venv
from envcompare.stack.image import PYTHON, Image, Recipe
from envcompare.stack.storage import Wheelhouse, steps
from envcompare.stack.wheelhouse import fill
from envcompare.text import Command, CommandResult
from envcompare.transport import LocalTransport, Transport, run, shell
from envcompare.transport.copies import put_file

pytestmark = [
    pytest.mark.engine("docker"),
    pytest.mark.engine("ssh"),
    pytest.mark.engine("singularity"),
]
HERE = LocalTransport()
# How each module is compiled: 1 is by hash and never checked, none is not at all.
COMPILED = """
import importlib.util, json, pathlib, sysconfig
found = {}
for path in pathlib.Path(sysconfig.get_path("purelib")).rglob("*.py"):
    code = pathlib.Path(importlib.util.cache_from_source(path))
    found[str(path)] = code.read_bytes()[4] if code.exists() else None
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Software that was made, where it is and how it is entered."""

    host: Transport
    environment: str
    prepared: Prepared

    def says(self, *words: str) -> str:
        """Run the arm's interpreter in its environment; return what it printed."""
        result = inside(named(self.environment), self.host, self.prepared)(*words)
        assert result.succeeded, result.stderr
        return result.stdout

    def proof(self) -> dict[str, str]:
        """Return what the arm says is installed in it."""
        told: list[str] = []
        request = Request(transport=self.host, progress=Progress(told.append), builder=ENGINE)
        proof = with_proof(named(self.environment), request, self.prepared)
        assert told == []
        return dict(proof.facts)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wheelhouse]:
    """Give pip, and setuptools, which is imported whenever its interpreter starts."""
    folder = tmp_path_factory.mktemp("same")
    requirements = folder / "requirements.in"
    requirements.write_text("pip\nsetuptools\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield fill(requirements, python="3.11", local=HERE, progress=Progress(print))


@pytest.fixture(scope="module")
def host(host: Transport, wheels: Wheelhouse) -> Iterator[Transport]:
    """Give the lab host, with nothing made of these wheels before and after."""
    with forgotten(host, wheels.key):
        yield host


@pytest.fixture
def vm(host: Transport, wheels: Wheelhouse) -> Arm:
    """Give the venv, made on the host."""
    interpreter = venv.find_interpreter(host, python="3.11", chosen=None)
    made = venv.make(host, wheels, interpreter=interpreter, progress=Progress(print))
    return Arm(host=host, environment="vm", prepared=made)


@pytest.fixture(scope="module")
def docker(built: Image) -> Arm:
    """Give the image."""
    facts = (("image.id", built.id), ("lock.sha256", built.lock))
    prepared = Prepared(interpreter=PYTHON, reference=built.id, fixed_by=built.id, facts=facts)
    return Arm(host=HERE, environment="docker", prepared=prepared)


@pytest.fixture(scope="module")
def singularity(host: Transport, built: Image) -> Iterator[Arm]:
    """Give the SIF that is made from that very image."""
    with forgotten(host, built.key):
        image.deliver(image_store(host), built, local=image_store(HERE), progress=Progress(print))
        made = sif_of(host, built, compression="zstd", say=print)
        yield _sif_arm(host, made.path, made.sha256)
    run(host, Command(argv=("docker", "image", "rm", "-f", built.id)))


@pytest.fixture(scope="module")
def defined(host: Transport, wheels: Wheelhouse) -> Arm:
    """Give the SIF that is made from the definition, without the image."""
    folder = venv.ship(host, wheels, progress=Progress(print))
    for name in steps():
        put_file(host, wheels.folder / name, f"{folder}/{name}")
    result = _define(host, folder)
    assert result.succeeded, result.stderr
    return _sif_arm(host, f"{folder}/made.sif", sif.inspect(host, f"{folder}/made.sif").sha256)


def _define(host: Transport, folder: str) -> CommandResult:
    """Make `made.sif` in a folder of wheels on the host from the definition."""
    base = image.find(image_store(HERE), BASE)
    assert base is not None
    there = image.deliver(
        image_store(host), base, local=image_store(HERE), progress=Progress(print)
    )
    put_file(host, ROOT / "containers" / "envcompare.def", f"{folder}/envcompare.def")
    arguments = {"AGENT": "docker-daemon", "BASE_IMAGE": there.id, "WHEELHOUSE": folder}
    words = [word for pair in arguments.items() for word in ("--build-arg", "=".join(pair))]
    quick = ("--mksquashfs-args", "-comp zstd -Xcompression-level 1")
    files = (f"{folder}/made.sif", f"{folder}/envcompare.def")
    build = Command(argv=("apptainer", "-q", "build", "--force", *quick, *words, *files))
    return run(host, build)


def test_definition_refuses_a_base_with_another_python(host: Transport) -> None:
    """Before anything is installed, with both versions."""
    made = shell(host, 'cd "$(mktemp -d)" && touch torch-2.0-cp39-cp39-linux_x86_64.whl && pwd')
    folder = made.stdout.strip()
    result = _define(host, folder)
    shell(host, 'rm -rf -- "$1"', folder)
    assert not result.succeeded
    assert "the base image has Python 3.11, but the wheels are for 3.9: " in result.stderr


def test_all_that_is_made_from_one_wheelhouse_holds_the_same(
    vm: Arm, docker: Arm, singularity: Arm, defined: Arm, built: Image
) -> None:
    """Packages, and names, modes and content of every file; the image says it on its label."""
    arms = (vm, docker, singularity, defined)
    assert len({arm.says("-m", "pip", "freeze", "--all") for arm in arms}) == 1
    assert {arm.proof()[TREE] for arm in arms} == {built.tree}
    assert len({arm.proof()[FILES] for arm in arms}) == 1


def test_no_arm_compiles_at_its_start(vm: Arm, docker: Arm, singularity: Arm, defined: Arm) -> None:
    """Every module has byte code that no clock makes stale, and the interpreter takes it."""
    for arm in (vm, docker, singularity, defined):
        compiled = json.loads(arm.says("-c", COMPILED))
        assert len(compiled) > 100
        assert set(compiled.values()) == {1}
        start = ("-v", "-c", "import pip._internal.cli.main, setuptools")
        result = inside(named(arm.environment), arm.host, arm.prepared)(*start)
        taken = [line for line in result.stderr.splitlines() if "# code object from" in line]
        assert len(taken) > 20
        assert [line for line in taken if line.rstrip("'").endswith(".py")] == []
        assert "# wrote" not in result.stderr


def test_an_image_says_what_it_is_made_of(built: Image, wheels: Wheelhouse) -> None:
    """Lock, tree, base and the commit of the checkout stand on it."""
    base = image.find(image_store(HERE), BASE)
    assert base is not None
    labels = _labels(built)
    assert labels["envcompare.lock"] == wheels.key
    assert labels["envcompare.tree"] == built.tree
    assert labels["org.opencontainers.image.base.name"] == BASE
    assert labels["org.opencontainers.image.base.digest"] == base.id
    assert len(labels.get("org.opencontainers.image.revision", "")) == len(building.revision(HERE))
    assert built.layers[: len(base.layers)] == base.layers


def test_a_sif_says_what_it_is_made_of(singularity: Arm, defined: Arm, built: Image) -> None:
    """The one made from the image has all its labels, the other what it can know."""
    from_image, from_definition = (_sif_labels(arm) for arm in (singularity, defined))
    assert _labels(built).items() <= from_image.items()
    assert from_definition["envcompare.lock"] == built.lock
    assert from_definition["envcompare.tree"] == built.tree
    assert "org.opencontainers.image.base.name" in from_definition


@pytest.mark.parametrize("builder", ["buildkit", "classic"])
def test_a_build_from_scratch_makes_the_same_layers(
    builder: str, built: Image, wheels: Wheelhouse
) -> None:
    """Byte for byte, times and byte code with it, whichever builder of the engine makes them."""
    name = f"envcompare-test-scratch:{builder}"
    words = (
        *("build", "--no-cache", "--network=none", f"--tag={name}"),
        *(f"--file={ROOT / 'Dockerfile'}", f"--build-arg=BASE_IMAGE={BASE}", str(wheels.folder)),
    )
    with_buildkit = image_store(HERE).buildkit(*words)
    if builder == "buildkit" and with_buildkit is None:
        pytest.skip("no docker client here has BuildKit")
    classic = Command(argv=("docker", *words), env=(("DOCKER_BUILDKIT", "0"),))
    result = run(HERE, with_buildkit if builder == "buildkit" and with_buildkit else classic)
    assert result.succeeded, result.stderr
    again = image.find(image_store(HERE), name)
    assert again is not None
    assert again.layers == built.layers
    run(HERE, Command(argv=("docker", "image", "rm", "-f", name)))


def test_what_pip_changes_in_a_venv_is_noticed(vm: Arm, docker: Arm) -> None:
    """The proof is taken again when a file was replaced, and names the venv to remove."""
    before, folder = vm.proof(), vm.prepared.interpreter.removesuffix("/bin/python")
    try:
        vm.says("-m", "pip", "uninstall", "--yes", "--quiet", "setuptools")
        after = replace(vm.prepared, facts=tuple(vm.proof().items()))
    finally:
        shell(vm.host, 'rm -rf -- "$1"', folder)
    assert dict(after.facts)[TREE] != before[TREE]
    proven = replace(docker.prepared, facts=tuple(docker.proof().items()))
    error = mismatch("docker", proven, {"vm": after}, host="lab-h1")
    assert error is not None
    assert (
        error.brief == "docker and vm on lab-h1 have different software, made from the same wheels"
    )
    assert error.hint.startswith(f"rm -r {folder}, then run again")


def test_the_proof_of_an_image_is_taken_once(docker: Arm) -> None:
    """It cannot change under its ID, so that the engine is not even asked again."""
    proof = docker.proof()
    gone = replace(docker.prepared, reference="envcompare-test:no-such")
    assert replace(docker, prepared=gone).proof() == proof


def test_what_is_changed_in_a_sandbox_is_noticed(
    host: Transport, singularity: Arm, built: Image
) -> None:
    """It is a folder without a hash of its own, so that its files are looked at each time."""
    made = sif_of(host, built, compression="sandbox", say=print)
    prepared = replace(singularity.prepared, reference=made.path, fixed_by="", facts=())
    sandbox = replace(singularity, prepared=prepared)
    assert sandbox.proof()[TREE] == built.tree
    packages = f"{made.path}/opt/envcompare/venv/lib/python3.11/site-packages"
    shell(host, 'echo "# planted" >>"$1"', f"{packages}/setuptools/__init__.py")
    assert sandbox.proof()[TREE] != built.tree


@pytest.mark.parametrize("builder", ["buildkit", "classic"])
def test_a_base_of_a_registry_is_built_on_by_its_digest(
    builder: str, wheels: Wheelhouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its name means may change; the digest stands on the image that was built on it."""
    with serving(docker_client(), BASE, tmp_path) as served, monkeypatch.context() as patch:
        if builder == "classic":
            patch.setenv("PATH", "/not/there")
        wanted = image.recipe(wheels, base=served.name, local=image_store(HERE))
        told: list[str] = []
        made = building.build(wanted, local=image_store(HERE), progress=Progress(told.append))
        same = image.find(image_store(HERE), BASE)
    assert same is not None
    assert same.digest == ""  # what one name's registry says is no digest of another name
    assert told[0] == f"pulling {served.name}"
    assert _labels(made)["org.opencontainers.image.base.name"] == served.name
    assert _labels(made)["org.opencontainers.image.base.digest"] == served.digest
    run(HERE, Command(argv=("docker", "image", "rm", "-f", made.id, served.name)))


def test_a_base_without_byte_code_gets_it(wheels: Wheelhouse) -> None:
    """As the official images of Python are: else their library would be compiled at each start."""
    name = "envcompare-test-bare:1"
    recipe = f"FROM {BASE}\nRUN find /usr -name __pycache__ -prune -exec rm -r {{}} +\n"
    make = Command(
        argv=("docker", "build", "--quiet", "--network=none", f"--tag={name}", "-"),
        env=(("DOCKER_BUILDKIT", "0"),),  # a client on PATH may lack buildx
    )
    assert run(HERE, make, stdin=recipe.encode()).succeeded
    wanted = image.recipe(wheels, base=name, local=image_store(HERE))
    made = building.build(wanted, local=image_store(HERE), progress=Progress(print))
    prepared = Prepared(interpreter=PYTHON, reference=made.id)
    start = ("-v", "-c", "import asyncio, json, multiprocessing, unittest")
    said = inside(named("docker"), HERE, prepared)(*start).stderr
    taken = [line for line in said.splitlines() if "# code object from" in line]
    assert len(taken) > 100
    assert [line for line in taken if line.rstrip("'").endswith(".py")] == []
    run(HERE, Command(argv=("docker", "image", "rm", "-f", made.id, name)))


@pytest.mark.parametrize("made", ["image", "venv"])
def test_a_wheel_that_was_damaged_is_refused(
    made: str, recipe: Recipe, host: Transport, tmp_path: Path
) -> None:
    """Before anything is built from it or sent."""
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    for path in recipe.wheelhouse.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    name = recipe.wheelhouse.sums[0][0]
    content = bytearray((folder / name).read_bytes())
    content[1000] ^= 1
    (folder / name).write_bytes(content)
    damaged = replace(recipe.wheelhouse, folder=folder, key="2" * 64)
    interpreter = venv.find_interpreter(host, python="3.11", chosen=None)
    makers: dict[str, Callable[[], object]] = {
        "image": lambda: building.build(
            replace(recipe, wheelhouse=damaged), local=image_store(HERE), progress=Progress(print)
        ),
        "venv": lambda: venv.make(host, damaged, interpreter=interpreter, progress=Progress(print)),
    }
    with pytest.raises(StackError) as caught:
        makers[made]()
    assert caught.value.brief == f"the wheel {name} is damaged"


def _sif_arm(host: Transport, path: str, digest: str) -> Arm:
    prepared = Prepared(
        interpreter=PYTHON,
        reference=path,
        engine="apptainer",
        fixed_by=digest,
        facts=(("sif.sha256", digest),),
    )
    return Arm(host=host, environment="singularity", prepared=prepared)


def _labels(one: Image) -> dict[str, str]:
    with image_store(HERE).connect() as client:
        return dict(client.images.get(one.id).labels)


def _sif_labels(arm: Arm) -> dict[str, str]:
    argv = ("apptainer", "inspect", "--json", "--labels", arm.prepared.reference)
    facts = json.loads(run(arm.host, Command(argv=argv)).stdout)
    return dict(facts["data"]["attributes"]["labels"])
