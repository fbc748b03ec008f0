"""The stack on real engines: a small one (pip alone), made as the workloads' own is made."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import envcompare
from lab import forgotten, need
from runs import BASE
from software import prepared_by, sif_of

from envcompare.environments.docker import Docker
from envcompare.environments.oci import image_store
from envcompare.errors import StackError, UnusableError
from envcompare.stack import (
    LOCK_LABEL,
    Options,
    Prepared,
    Progress,
    building,
    image,
    sif,
    storage,
    venv,
    wheelhouse,
)
from envcompare.stack.image import Image, Recipe
from envcompare.stack.storage import Wheelhouse
from envcompare.text import Command
from envcompare.transport import LocalTransport, Transport, run, shell

PYTHON = "/opt/envcompare/venv/bin/python"
HERE = LocalTransport()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wheelhouse]:
    """Give a wheelhouse with pip alone, in a cache of its own."""
    folder = tmp_path_factory.mktemp("stack")
    requirements = folder / "requirements.in"
    requirements.write_text("pip\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield wheelhouse.fill(requirements, python="3.11", local=HERE, progress=Progress(print))


@pytest.fixture(scope="module")
def host(host: Transport, wheels: Wheelhouse) -> Iterator[Transport]:
    """Give the lab host, with nothing made of these wheels before and after."""
    with forgotten(host, wheels.key):
        yield host


@pytest.fixture(scope="module")
def packed(host: Transport, built: Image) -> Iterator[sif.Sif]:
    """Give the SIF of that image on the lab host."""
    need("singularity")
    with forgotten(host, built.key):
        image.deliver(image_store(host), built, local=image_store(HERE), progress=Progress(print))
        yield sif_of(host, built, compression="zstd", say=print)


@pytest.mark.engine("docker")
def test_the_image_runs_the_locked_packages_and_holds_no_wheels(built: Image) -> None:
    """The interpreter of the arm is the venv's, and what was only needed to build is gone."""
    script = f"{PYTHON} -m pip freeze --all && ls -d /wheelhouse"
    result = _in_container(built, "sh", "-c", script)
    assert result.startswith("pip==")
    assert "/wheelhouse" not in result


@pytest.mark.engine("docker")
def test_a_second_build_does_nothing(recipe: Recipe, built: Image) -> None:
    """The labels on the image say that it is the one."""
    told: list[str] = []
    assert building.build(recipe, local=image_store(HERE), progress=Progress(told.append)) == built
    assert told == []


@pytest.mark.engine("docker")
@pytest.mark.parametrize("change", ["ENV LD_PRELOAD=/x", "RUN true >/x", "LABEL x=1"])
def test_what_a_user_builds_on_the_image_is_never_taken_for_it(
    recipe: Recipe, built: Image, change: str
) -> None:
    """It has our labels; the image itself is found without its name, and gets it back."""
    name, child = recipe.tag, "envcompare-test-child:1"
    make = Command(
        argv=("docker", "build", "--quiet", "--network=none", f"--tag={child}", "-"),
        env=(("DOCKER_BUILDKIT", "0"),),  # a client on PATH may lack buildx
    )
    assert run(HERE, make, stdin=f"FROM {built.id}\n{change}\n".encode()).succeeded
    try:
        run(HERE, Command(argv=("docker", "image", "rm", name)))
        assert image.find(image_store(HERE), name) is None
        found = image.find_built(image_store(HERE), recipe)
        assert found is not None
        assert (found.id, found.name) == (built.id, name)
        run(HERE, Command(argv=("docker", "tag", child, name)))
        again = image.find_built(image_store(HERE), recipe)
        assert again is not None
        assert (again.id, again.name) == (built.id, f"{name}-{built.key[:12]}")
        label = f"{LOCK_LABEL}={recipe.wheelhouse.key}"
        assert building.remove_images(image_store(HERE), label=label) == building.Removed(
            kept=(again.name,)
        )
        assert image.find(image_store(HERE), child) is not None
    finally:
        run(HERE, Command(argv=("docker", "image", "rm", "--force", child, name)))
        run(HERE, Command(argv=("docker", "tag", built.id, name)))
        run(HERE, Command(argv=("docker", "image", "rm", f"{name}-{built.key[:12]}")))


@pytest.mark.engine("docker")
def test_the_classic_builder_makes_the_same_tree(
    recipe: Recipe, built: Image, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where no client has BuildKit, the SDK builds, and what is installed is the same."""
    other = replace(recipe, wheelhouse=replace(recipe.wheelhouse, key="0" * 64))
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        classic = building.build(other, local=image_store(HERE), progress=Progress(print))
    assert classic.id != built.id
    assert (classic.tree, classic.layers) == (built.tree, built.layers)
    run(HERE, Command(argv=("docker", "image", "rm", "-f", classic.id)))


@pytest.mark.engine("docker")
def test_a_base_that_is_nowhere_is_an_error_with_a_remedy(recipe: Recipe) -> None:
    """Without a registry nothing can be pulled, and a base can still be made."""
    missing = replace(recipe, base="registry.invalid/envcompare-no-such-base:1", base_id="")
    with pytest.raises(StackError) as caught:
        building.build(missing, local=image_store(HERE), progress=Progress(print))
    assert caught.value.brief == f"the base image {missing.base} is not here and cannot be pulled"
    assert "--base-image" in caught.value.hint


@pytest.mark.engine("docker")
@pytest.mark.parametrize("command", ["run", "build"])
def test_a_base_that_is_nowhere_ends_a_command_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """No other arm is made or measured, and no run folder is left behind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = "registry.invalid/a:1"
    words = (command, "--hosts", "local", "--envs", "vm,docker", "--base-image", base)
    done = envcompare(*words, *(("--workloads", "files") * (command == "run")), cwd=tmp_path)
    assert done.returncode == StackError.exit_code
    first, *_ = done.stderr[done.stderr.index("error:") :].splitlines()
    assert first == f"error: the base image {base} is not here and cannot be pulled"
    assert "venv" not in done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.engine("docker")
@pytest.mark.parametrize("builder", ["buildkit", "classic"])
def test_a_base_without_python_is_refused_before_anything_is_built(
    builder: str, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What asks it for its Python leaves no container."""
    name = f"envcompare-test-bare:{builder}"
    dockerfile = f"FROM {BASE}\nRUN rm -f /usr/bin/python3* /usr/local/bin/python3* # {builder}\n"
    make = Command(
        argv=("docker", "build", "--quiet", "--network=none", f"--tag={name}", "-"),
        env=(("DOCKER_BUILDKIT", "0"),),  # a client on PATH may lack buildx
    )
    assert run(HERE, make, stdin=dockerfile.encode()).succeeded
    containers = Command(argv=("docker", "ps", "--all", "--quiet", "--filter", f"ancestor={name}"))
    before = run(HERE, containers).stdout
    told: list[str] = []
    with monkeypatch.context() as patch:
        if builder == "classic":
            patch.setenv("PATH", "/not/there")
        wanted = image.recipe(recipe.wheelhouse, base=name, local=image_store(HERE))
        for _ in range(2):
            with pytest.raises(StackError) as caught:
                building.build(wanted, local=image_store(HERE), progress=Progress(told.append))
            assert caught.value.brief == f"the base image {name} cannot run python3"
            assert caught.value.details == "python3 is not in the image"
    assert told == []
    assert run(HERE, containers).stdout == before
    run(HERE, Command(argv=("docker", "image", "rm", "--force", name)))


@pytest.mark.engine("docker")
def test_a_base_that_changed_under_its_name_is_noticed(recipe: Recipe) -> None:
    """The old image is not used again, and all that were built are removed by their label."""
    wheels = replace(recipe.wheelhouse, key="1" * 64)
    name, label = "envcompare-test-base:1", f"{LOCK_LABEL}={wheels.key}"
    building.remove_images(image_store(HERE), label=label)  # of tests that were killed
    ids = []
    for number in range(2):
        dockerfile = f"FROM {BASE}\nLABEL envcompare.test={number}\n".encode()
        make = Command(
            argv=("docker", "build", "--quiet", f"--tag={name}", "-"),
            env=(("DOCKER_BUILDKIT", "0"),),  # a client on PATH may lack buildx
        )
        assert run(HERE, make, stdin=dockerfile).succeeded
        wanted = replace(
            image.recipe(wheels, base=name, local=image_store(HERE)), dockerfile=recipe.dockerfile
        )
        ids.append(building.build(wanted, local=image_store(HERE), progress=Progress(print)).id)
        assert (
            building.build(wanted, local=image_store(HERE), progress=Progress(print)).id == ids[-1]
        )
    run(HERE, Command(argv=("docker", "image", "rm", "--force", name)))
    unknown = image.recipe(wheels, base=name, local=image_store(HERE))
    assert building.build(unknown, local=image_store(HERE), progress=Progress(print)).id in ids
    assert ids[0] != ids[1]
    assert building.remove_images(image_store(HERE), label=label) == building.Removed(count=2)
    assert building.remove_images(image_store(HERE), label=label) == building.Removed()


@pytest.mark.engine("docker")
def test_a_users_image_with_our_label_is_not_ours() -> None:
    """Anyone can write the label; ours have the hash as well, or a name that we gave."""
    name, label = "envcompare-test-planted:1", f"{LOCK_LABEL}=planted"
    make = Command(argv=("docker", "import", "--change", f"LABEL {label}", "-", name))
    assert run(HERE, make, stdin=bytes(10240)).succeeded
    try:
        assert building.remove_images(image_store(HERE), label=label) == building.Removed()
        assert image.find(image_store(HERE), name) is not None
    finally:
        run(HERE, Command(argv=("docker", "image", "rm", "--force", name)))


@pytest.mark.engine("ssh")
def test_a_host_that_lacks_an_interpreter_is_unusable_and_not_failed(host: Transport) -> None:
    """An arm the host cannot have is not run; one whose software breaks has failed."""
    options = Options(vm_python="/not/there/python3")
    with pytest.raises(UnusableError) as caught:
        prepared_by("vm", host, options=options)
    assert type(caught.value) is UnusableError
    assert caught.value.details == "looked for /not/there/python3"


@pytest.mark.filterwarnings(
    # The SDK leaves a socket that could not be connected to the collector.
    "ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning"
)
def test_an_engine_that_cannot_be_reached_makes_docker_unusable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The daemon is what the host lacks; whether there is something to clean is not known."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///not/there.sock")
    monkeypatch.setattr(storage, "AWAY_S", 2.0)
    with pytest.raises(UnusableError) as caught:
        _prepare(HERE, "docker", "any:1")
    assert type(caught.value) is UnusableError
    assert caught.value.details == "the Docker daemon is not running"
    removed = building.remove_images(image_store(HERE))
    assert (removed.count, removed.kept) == (0, ())
    assert "unix:///not/there.sock" in removed.unseen
    del caught
    gc.collect()


@pytest.mark.engine("ssh")
def test_a_venv_is_made_once_on_a_host(host: Transport, wheels: Wheelhouse) -> None:
    """The second call neither sends nor makes anything."""
    told: list[str] = []
    first = _venv(host, wheels, told)
    assert [line.split()[0] for line in told] == ["sending", "making"]
    told.clear()
    assert _venv(host, wheels, told) == first
    assert told == []
    freeze = run(host, Command(argv=(first.interpreter, "-m", "pip", "freeze", "--all")))
    assert freeze.stdout.startswith("pip==")
    assert dict(first.identity)["lock"] == wheels.key


@pytest.mark.engine("ssh")
def test_a_venv_that_was_never_finished_is_made_again(host: Transport, wheels: Wheelhouse) -> None:
    """What an interrupted run left has no mark, and is not trusted."""
    first = _venv(host, wheels, [])
    folder = first.interpreter.removesuffix("/bin/python")
    shell(host, 'rm "$1/.complete" && rm -rf "$1"/lib/python3.11/site-packages/pip', folder)
    told: list[str] = []
    assert _venv(host, wheels, told) == first
    assert [line.split()[0] for line in told] == ["making"]
    assert run(host, Command(argv=(first.interpreter, "-m", "pip", "--version"))).succeeded


@pytest.mark.engine("ssh")
def test_only_a_wheel_that_is_missing_or_damaged_is_sent(
    host: Transport, wheels: Wheelhouse
) -> None:
    """A byte that changed on the host's disk is noticed by its hash."""
    folder = venv.ship(host, wheels, progress=Progress(print))
    name = wheels.sums[0][0]
    shell(host, 'printf x | dd of="$1" bs=1 seek=5000 conv=notrunc', f"{folder}/{name}")
    told: list[str] = []
    venv.ship(host, wheels, progress=Progress(told.append))
    assert [line.split()[:2] for line in told] == [["sending", "1"]]
    venv.ship(host, wheels, progress=Progress(told.append))
    assert len(told) == 1


@pytest.mark.engine("ssh")
def test_a_host_without_the_right_python_says_what_was_found(host: Transport) -> None:
    """The remedy names the version that the wheels are for."""
    with pytest.raises(UnusableError) as caught:
        venv.find_interpreter(host, python="3.12", chosen="/usr/bin/python3.11")
    assert type(caught.value) is UnusableError
    assert caught.value.lines() == (
        "error: no Python 3.12 for vm on lab-h1",
        "  why: looked for /usr/bin/python3.11 (/usr/bin/python3.11 is Python 3.11)",
        "  try: install python3.12 there, or name one with --vm-python",
    )


@pytest.mark.engine("ssh")
def test_a_disk_without_room_is_said_before_anything_is_sent(host: Transport) -> None:
    """The check reads the disk that the folder will be on, though it is not there yet."""
    need = storage.Need(step="archive", transport=host, path="/tmp/not/there/yet")
    amount = storage.Amount(packed_bytes=0, unpacked_bytes=10**18)
    with pytest.raises(StackError) as caught:
        storage.require((need,), amount, purpose="the venv")
    assert caught.value.brief == "no room on lab-h1 for the venv"
    assert caught.value.details.startswith("/tmp/not/there/yet needs 1100000000.3 GB, ")


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
def test_an_image_is_sent_once_and_is_the_same_there(host: Transport, built: Image) -> None:
    """The host's engine needs no registry, and holds the very layers that were sent."""
    run(host, Command(argv=("docker", "image", "rm", "-f", built.id)))
    told: list[str] = []
    there = image.deliver(
        image_store(host), built, local=image_store(HERE), progress=Progress(told.append)
    )
    assert (there.layers, there.lock) == (built.layers, built.lock)
    size = f"{built.size_bytes / 1e6:.0f} MB"
    assert told[0].startswith(f"sending {built.name}, {size}, to lab-h1")
    told.clear()
    assert (
        image.deliver(
            image_store(host), built, local=image_store(HERE), progress=Progress(told.append)
        )
        == there
    )
    assert told == []


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
def test_an_image_of_the_user_is_found_here_and_sent(host: Transport, built: Image) -> None:
    """`docker:REF` may be on either side; its interpreter is asked for."""
    name = "envcompare-test-own:1"
    run(HERE, Command(argv=("docker", "tag", built.id, name)))
    prepared = _prepare(host, "docker", name)
    assert (prepared.interpreter, prepared.reference) == (f"{PYTHON}3", built.id)
    assert dict(prepared.identity)["image.name"] == name
    for transport in (HERE, host):
        run(transport, Command(argv=("docker", "image", "rm", name)))


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
def test_an_image_that_is_another_one_on_the_host_is_taken_and_said(
    host: Transport, built: Image
) -> None:
    """One name may mean two images: nobody finds out from the times which one ran."""
    name, told = "envcompare-test-own:2", list[str]()
    image.deliver(image_store(host), built, local=image_store(HERE), progress=Progress(print))
    run(host, Command(argv=("docker", "tag", built.id, name)))
    run(HERE, Command(argv=("docker", "tag", BASE, name)))
    prepared = prepared_by("docker", host, reference=name, say=told.append)
    assert prepared.reference == built.id
    assert f" here and {built.key[:12]} on lab-h1: the one there is taken" in told[0]
    for transport in (HERE, host):
        run(transport, Command(argv=("docker", "image", "rm", name)))


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
def test_an_image_that_is_nowhere_is_an_error_with_a_remedy(host: Transport) -> None:
    """Nothing is pulled behind the user's back."""
    with pytest.raises(StackError) as caught:
        _prepare(host, "docker", "envcompare-test:no-such")
    assert caught.value.brief == "the image envcompare-test:no-such is not on lab-h1"
    assert "docker pull envcompare-test:no-such" in caught.value.hint


@pytest.mark.engine("ssh")
@pytest.mark.engine("singularity")
def test_a_sif_holds_what_the_image_holds(host: Transport, built: Image, packed: sif.Sif) -> None:
    """It is made from that very image, so the installed tree is the same."""
    prepared = _prepare(host, "singularity", packed.path)
    assert dict(prepared.facts)["site_packages.sha256"] == built.tree
    assert prepared.interpreter == f"{PYTHON}3"
    assert dict(prepared.identity)["sif.sha256"] == packed.sha256


@pytest.mark.engine("ssh")
@pytest.mark.engine("singularity")
def test_a_sif_is_made_once_and_again_when_it_is_damaged(
    host: Transport, built: Image, packed: sif.Sif
) -> None:
    """Its hash was noted when it was made."""
    told: list[str] = []
    assert sif_of(host, built, compression="zstd", say=told.append) == packed
    assert told == []
    shell(host, 'printf x | dd of="$1" bs=1 seek=9000000 conv=notrunc', packed.path)
    again = sif_of(host, built, compression="zstd", say=told.append)
    assert told == ["making the SIF (zstd) on lab-h1"]
    assert sif.inspect(host, again.path).sha256 == again.sha256


@pytest.mark.engine("ssh")
@pytest.mark.engine("singularity")
def test_two_runs_that_need_the_same_sif_make_it_once(
    host: Transport, built: Image, packed: sif.Sif
) -> None:
    """The second waits, and nothing is taken away from under the first."""
    shell(host, 'rm "$1.sha256"', packed.path)
    with ThreadPoolExecutor(2) as both:
        making = [both.submit(sif_of, host, built) for _ in range(2)]
    first, second = (one.result() for one in making)
    assert first == second


@pytest.mark.engine("ssh")
@pytest.mark.engine("singularity")
def test_a_sandbox_is_made_from_an_archive_where_the_engine_lacks_the_image(
    host: Transport, built: Image
) -> None:
    """A host without Docker gets the image as a stream, and keeps no archive of it."""
    run(host, Command(argv=("docker", "image", "rm", "-f", built.id)))
    told: list[str] = []
    made = sif_of(host, built, compression="sandbox", say=told.append)
    assert told[1].startswith(f"sending {built.name}")
    assert _in_sif(host, made.path, PYTHON, "-c", "print(6 * 7)") == "42"
    names = shell(host, 'ls -A "$(dirname "$1")"', made.path).stdout.split()
    assert [name for name in names if "tar" in name or "partial" in name] == []


@pytest.mark.engine("ssh")
@pytest.mark.engine("singularity")
def test_a_sif_of_the_user_that_is_cut_short_is_refused(host: Transport, packed: sif.Sif) -> None:
    """Its own header says how long it should be."""
    short = packed.path.replace("zstd.sif", "short.sif")
    shell(host, 'head -c 3000000 "$1" >"$2"', packed.path, short)
    with pytest.raises(StackError) as caught:
        _prepare(host, "singularity", short)
    assert caught.value.brief == f"{short} on lab-h1 is truncated"
    assert caught.value.details.startswith("it has 3000000 bytes, its header promises ")


@pytest.mark.engine("ssh")
@pytest.mark.engine("singularity")
@pytest.mark.parametrize(
    ("reference", "brief"),
    [
        ("/not/there.sif", "/not/there.sif is not on lab-h1"),
        ("docker://debian", "docker://debian is not a file"),
        ("/etc/passwd", "/etc/passwd cannot be used on lab-h1"),
    ],
)
def test_what_is_no_image_file_is_refused(host: Transport, reference: str, brief: str) -> None:
    """Each with its own remedy, before anything is measured."""
    with pytest.raises(StackError) as caught:
        _prepare(host, "singularity", reference)
    assert caught.value.brief == brief
    assert caught.value.hint


def test_a_cleaned_cache_is_gone_with_folders_that_forbid_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox may hold such folders; what stands beside the cache stays."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "envcompare" / "key" / "sandbox"
    folder.mkdir(parents=True)
    (folder / "file").write_text("x")
    folder.chmod(0o555)
    storage.remove_cache(HERE)
    assert list(tmp_path.iterdir()) == []


def test_cleaning_says_what_it_could_not_look_at_and_what_was_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images may stay where the engine is silent; where there is no docker, there are none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", "unix:///not/there.sock")
    done = envcompare("clean", cwd=tmp_path)
    nothing, images = done.stdout.splitlines()
    assert done.returncode == 0
    assert nothing == f"local: nothing to remove at {tmp_path}/envcompare"
    assert images.startswith("local: images may stay, since the engine could not be asked: ")
    assert "unix:///not/there.sock" in images
    for tool in ("sh", "cat", "id", "uname"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert building.remove_images(image_store(HERE)) == building.Removed()


def _venv(host: Transport, wheels: Wheelhouse, told: list[str]) -> Prepared:
    interpreter = venv.find_interpreter(host, python="3.11", chosen=None)
    return venv.make(host, wheels, interpreter=interpreter, progress=Progress(told.append))


def _prepare(host: Transport, environment: str, reference: str) -> Prepared:
    return prepared_by(environment, host, reference=reference)


def _in_container(one: Image, *argv: str) -> str:
    label = f"{Docker().name}.test=1"
    command = ("docker", "run", "--rm", "--network=none", f"--label={label}", one.id, *argv)
    return run(HERE, Command(argv=command)).stdout.strip()


def _in_sif(host: Transport, path: str, *argv: str) -> str:
    flags = ("--containall", "--no-home", "--cleanenv", "--pwd", "/")
    return run(host, Command(argv=("apptainer", "-q", "exec", *flags, path, *argv))).stdout.strip()
