"""Wheels, images and SIFs on their way to real hosts: cut, damaged, several hosts at once."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab import Lab, forget, served_by
from runs import BASE
from software import sif_of
from spoiling import Spoiling

from envcompare.environments.oci import image_store
from envcompare.environments.singularity import Singularity
from envcompare.errors import InterruptedRunError, StackError, TransportError
from envcompare.stack import Progress, image, sif, storage, venv
from envcompare.stack.image import Image
from envcompare.stack.storage import LOCK, SUMS, Wheelhouse
from envcompare.text import Command
from envcompare.transport import LOCAL, Process, Transport, file_sha256, make_folder, run, shell
from envcompare.transport.copies import get_file
from envcompare.transport.hosts import connect, parse_hosts

SIZE = 30_000_000
NAME = "envcompare-test-distribution:1"
BLOB = "envcompare-test-blob:1"
DERIVED = f"FROM {BASE}\nLABEL envcompare.test=distribution\n"


@pytest.fixture(scope="module")
def first(lab: Lab) -> Iterator[Transport]:
    """Give the lab host."""
    transport = connect(parse_hosts([lab.alias])[0])
    yield transport
    transport.close()


@pytest.fixture(scope="module")
def second(lab: Lab) -> Iterator[Transport]:
    """Give the other lab host."""
    transport = connect(parse_hosts(["lab-h2"])[0])
    yield transport
    transport.close()


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give this machine a cache that is empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield storage.local_cache()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheelhouse:
    """Give a folder like a wheelhouse, with one large file that no packing makes smaller."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    command = 'head -c "$1" /dev/urandom >"$2/a-1-py3-none-any.whl"'
    shell(LOCAL, command, str(SIZE), str(folder))
    sums = tuple((path.name, file_sha256(path)) for path in folder.glob("*.whl"))
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums))
    (folder / LOCK).write_text(str(folder))
    return Wheelhouse(key=f"test-{sums[0][1][:16]}", folder=folder, sums=sums)


@pytest.fixture(scope="module")
def built() -> Iterator[Image]:
    """Give an image of the local engine that runs."""
    make = Command(
        argv=("docker", "build", "--quiet", f"--tag={NAME}", "-"),
        env=(("DOCKER_BUILDKIT", "0"),),  # a client on PATH may lack buildx
    )
    assert run(LOCAL, make, stdin=DERIVED.encode()).succeeded
    found = image.find(image_store(LOCAL), NAME)
    assert found
    yield found
    run(LOCAL, Command(argv=("docker", "image", "rm", "-f", found.id)))


@pytest.fixture(scope="module")
def blob() -> Iterator[Image]:
    """Give an image of one layer that no host has, and that no packing makes smaller."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("blob")
        member.size = SIZE
        archive.addfile(member, io.BytesIO(os.urandom(SIZE)))
    make = Command(argv=("docker", "import", "-", BLOB))
    assert run(LOCAL, make, stdin=packed.getvalue()).succeeded
    found = image.find(image_store(LOCAL), BLOB)
    assert found
    yield found
    run(LOCAL, Command(argv=("docker", "image", "rm", "-f", found.id)))


class Mute(Spoiling):
    """A host whose engine has nothing for Apptainer."""

    refused = 0

    def spawn(self, command: Command) -> Process:
        """Start the command, with the name of another image for Apptainer."""
        source = f"docker-daemon:{'0' * 64}"
        argv = tuple(source if "docker-daemon:" in word else word for word in command.argv)
        self.refused += argv != command.argv
        return super().spawn(Command(argv=argv, env=command.env, cwd=command.cwd))


def traces(transport: Transport, blob: Image) -> list[str]:
    """Return by what names an engine holds an image, or any without a name."""
    ask = ("docker", "image", "ls", "--all", "--no-trunc", "--format", "{{.ID}} {{.Repository}}")
    lines = run(transport, Command(argv=ask)).stdout.splitlines()
    return [line for line in lines if blob.id in line or BLOB.split(":", maxsplit=1)[0] in line]


@pytest.mark.engine("ssh")
def test_wheels_that_were_interrupted_are_gone_on_from(
    first: Transport, wheels: Wheelhouse
) -> None:
    """Only the rest is sent, and the wheels that are there are not."""

    def stop() -> None:
        raise InterruptedRunError("interrupted")

    cut = Spoiling(first, acts_at=SIZE * 6 // 10, act=stop)
    with pytest.raises(InterruptedRunError):
        venv.ship(cut, wheels, progress=Progress(print))
    counting = Spoiling(first)
    folder = venv.ship(counting, wheels, progress=Progress(print))
    assert counting.sent < SIZE * 6 // 10
    listed = shell(first, 'cd "$1" && sha256sum -c SHA256SUMS && ls', folder)
    assert listed.succeeded
    assert ".part-" not in listed.stdout
    forget(first, wheels.key)


@pytest.mark.engine("ssh")
def test_a_wheel_that_is_damaged_on_the_way_is_refused(
    first: Transport, wheels: Wheelhouse
) -> None:
    """It never stands under its name, so that no interpreter installs it."""
    with pytest.raises(TransportError, match=r"cannot copy .*whl to lab-h1:") as caught:
        venv.ship(Spoiling(first, flips_at=SIZE // 2), wheels, progress=Progress(print))
    assert caught.value.details == "it arrived changed or not whole"
    folder = f"{storage.host_cache(first)}/{wheels.key}/wheelhouse"
    assert "whl" not in shell(first, 'ls -A "$1"', folder).stdout
    forget(first, wheels.key)


@pytest.mark.engine("ssh")
def test_a_full_disk_is_an_error_of_the_stack(
    lab: Lab, first: Transport, wheels: Wheelhouse
) -> None:
    """The host itself is well: another arm may still run there."""
    folder = f"{storage.host_cache(first)}/{wheels.key}/wheelhouse"
    make_folder(first, folder)
    lab.as_root("mount", "-t", "tmpfs", "-o", "size=5m,mode=700,uid=1000", "tmpfs", folder)
    try:
        with pytest.raises(StackError) as caught:
            venv.ship(first, wheels, progress=Progress(print))
    finally:
        lab.as_root("umount", folder)
    name = wheels.sums[0][0]
    assert caught.value.brief == f"sending {name} failed on lab-h1: its disk is full"
    assert caught.value.details.startswith("No space left on device: 30000000 bytes to come, ")
    assert "XDG_CACHE_HOME" in caught.value.hint
    forget(first, wheels.key)


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
@pytest.mark.parametrize("way", ["cut", "interrupted", "flipped"])
def test_a_stream_that_breaks_leaves_no_image(
    lab: Lab, first: Transport, blob: Image, way: str
) -> None:
    """The engine forgets what came, the error says what happened, and the next call works."""
    own = connect(parse_hosts([lab.alias])[0])
    server = served_by(own)

    def stop() -> None:
        raise InterruptedRunError("interrupted")

    acts: dict[str, Callable[[], object]] = {
        "cut": lambda: lab.as_root("kill", "-KILL", server),
        "interrupted": stop,
        "flipped": lambda: None,
    }
    flips_at = SIZE // 2 if way == "flipped" else None
    broken = Spoiling(own, acts_at=SIZE // 2, act=acts[way], flips_at=flips_at)
    errors = {"cut": TransportError, "interrupted": InterruptedRunError, "flipped": StackError}
    with pytest.raises(errors[way]) as caught:
        image.deliver(image_store(broken), blob, local=image_store(LOCAL), progress=Progress(print))
    own.close()
    assert caught.value.brief
    assert way == "interrupted" or caught.value.hint
    assert traces(first, blob) == []
    there = image.deliver(
        image_store(first), blob, local=image_store(LOCAL), progress=Progress(print)
    )
    assert there.layers == blob.layers
    assert traces(first, blob) == [f"{blob.id} {BLOB.split(':', maxsplit=1)[0]}"]
    run(first, Command(argv=("docker", "image", "rm", "-f", blob.id)))


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
def test_layers_that_a_host_has_are_not_sent_again(first: Transport, blob: Image) -> None:
    """Of an image upon another one, only its own layers travel."""
    make = Command(argv=("docker", "build", "--quiet", "-"), env=(("DOCKER_BUILDKIT", "0"),))
    done = run(LOCAL, make, stdin=f"FROM {BLOB}\nWORKDIR /own\n".encode())
    upper = image.find(image_store(LOCAL), done.stdout.strip())
    assert upper is not None
    assert upper.layers[: len(blob.layers)] == blob.layers != upper.layers
    said: list[str] = []
    sent = []
    for one in (blob, upper):
        counting = Spoiling(first)
        store = image_store(counting)
        there = image.deliver(store, one, local=image_store(LOCAL), progress=Progress(said.append))
        assert (there.id, there.layers) == (one.id, one.layers)
        sent.append(counting.sent)
    assert sent[0] > SIZE > 100 * sent[1]
    assert "without 1 layer that it has" in said[-1]
    for transport in (first, LOCAL):
        run(transport, Command(argv=("docker", "image", "rm", "-f", upper.id)))
    run(first, Command(argv=("docker", "image", "rm", "-f", blob.id)))


@pytest.mark.engine("hosts")
@pytest.mark.engine("docker")
def test_two_hosts_get_wheels_and_image_at_once(
    first: Transport, second: Transport, wheels: Wheelhouse, blob: Image
) -> None:
    """Neither waits for the other: both have begun before one has ended."""
    both_begun = threading.Barrier(2, timeout=60)

    def bring(transport: Transport) -> str:
        watched = Spoiling(transport, acts_at=SIZE // 2, act=both_begun.wait)
        folder = venv.ship(watched, wheels, progress=Progress(print))
        image.deliver(
            image_store(transport), blob, local=image_store(LOCAL), progress=Progress(print)
        )
        listed = shell(transport, 'cd "$1" && sha256sum -c SHA256SUMS', folder)
        return f"{listed.exit_code} {len(traces(transport, blob))}"

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(bring, (first, second))) == ["0 1", "0 1"]
    for transport in (first, second):
        forget(transport, wheels.key)
        run(transport, Command(argv=("docker", "image", "rm", "-f", blob.id)))


@pytest.mark.engine("hosts")
@pytest.mark.engine("docker")
@pytest.mark.engine("singularity")
def test_two_hosts_get_the_very_same_sif(
    first: Transport, second: Transport, built: Image, own_cache: Path
) -> None:
    """The first makes it; what arrives damaged at the second is refused, and then sent again."""
    if packing_works_here(built):
        pytest.skip("the Apptainer of this machine makes it; no host has to")
    told: list[str] = []
    made = sif_of(first, built, compression="zstd", say=told.append, is_for_others=True)
    assert told[0] == "making the SIF (zstd) on lab-h1"
    assert told[-1].split(",")[0] == "fetching the SIF"  # the next host need not ask for it
    told.clear()
    spoiled = Spoiling(second, flips_at=1_000_000)
    with pytest.raises(TransportError) as caught:
        sif_of(spoiled, built, compression="zstd", say=told.append)
    assert caught.value.details == "it arrived changed or not whole"
    assert [line.split(",")[0] for line in told] == ["sending zstd.sif"]
    target = f"{storage.host_cache(second)}/{built.key}/zstd.sif"
    assert not shell(second, 'ls -d "$1"*', target).succeeded
    told.clear()
    sent = sif_of(second, built, compression="zstd", say=told.append)
    assert [line.split(",")[0] for line in told] == ["sending zstd.sif"]
    assert sent.sha256 == made.sha256 == file_sha256(own_cache / built.key / "zstd.sif")
    assert sif_of(second, built, compression="zstd", say=told.append) == sent
    assert len(told) == 1
    for transport in (first, second):
        forget(transport, built.key)


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
@pytest.mark.engine("singularity")
def test_a_sif_of_the_user_is_sent_where_only_this_machine_has_it(
    first: Transport, built: Image, tmp_path: Path
) -> None:
    """It stands in the host's cache under its hash; what is cut short here is not sent."""
    there = sif_of(first, built, compression="zstd", say=print)
    here = tmp_path / "my own.sif"
    get_file(first, there.path, here, sha256=there.sha256)
    told: list[str] = []
    given = sif.given(first, str(here), local=LOCAL, progress=Progress(told.append))
    assert (given.sha256, given.compression) == (there.sha256, "as given")
    assert given.path.endswith(f"/given-{there.sha256[:32]}/my own.sif")
    assert sif.given(first, str(here), local=LOCAL, progress=Progress(told.append)) == given
    assert len(told) == 1
    short = tmp_path / "short.sif"
    short.write_bytes(here.read_bytes()[:3_000_000])
    with pytest.raises(StackError, match="is truncated"):
        sif.given(first, str(short), local=LOCAL, progress=Progress(print))
    with pytest.raises(StackError, match="is not on lab-h1"):
        sif.given(first, str(tmp_path / "nothing.sif"), local=LOCAL, progress=Progress(print))
    forget(first, built.key, f"given-{there.sha256[:32]}")


@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
@pytest.mark.engine("singularity")
def test_an_apptainer_that_cannot_speak_with_the_engine_is_given_an_archive(
    first: Transport, built: Image
) -> None:
    """The host writes it itself: nothing of the image goes over the network."""
    image.deliver(image_store(first), built, local=image_store(LOCAL), progress=Progress(print))
    mute = Mute(first)
    told: list[str] = []
    made = sif_of(mute, built, compression="sandbox", say=told.append)
    assert sif.inspect(first, made.path).sha256 == made.sha256 == "sandbox"
    assert (mute.refused, mute.sent) == (1, 0)
    assert len(told) == 1
    assert ".tar" not in shell(first, 'ls "$1"', made.path.rpartition("/")[0]).stdout
    run(first, Command(argv=("docker", "image", "rm", "-f", built.id)))
    forget(first, built.key)


def packing_works_here(built: Image) -> bool:
    """Tell whether a SIF of the image can be made on this machine."""
    has_image = image.find(image_store(LOCAL), built.id) is not None
    return has_image and Singularity().check(LOCAL).is_usable
