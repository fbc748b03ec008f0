"""What room a stack takes: the numbers, what is added up, and the refusal before a download."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookkeeping import RESULTS
from envcompare.config import SoftwareKind, Traits
from envcompare.environments.registry import ENVIRONMENTS, IMAGE_BUILDER
from envcompare.environments.software import needs
from envcompare.errors import StackError
from envcompare.stack import Progress, Request, storage
from envcompare.stack.sif import with_data
from envcompare.stack.storage import _disk_of
from envcompare.transport import LOCAL, LocalTransport

GB = 1_000_000_000
MEASURED: dict[str, tuple[storage.StepName, ...]] = {
    "wheels": ("wheels",),
    "venv": ("venv",),
    "image, with what its build keeps": ("image",),
    "SIF, zstd": ("archive", "sif"),
    "image, sent to the host": ("sent image", "received image"),
}
"""The rows of the benchmark, and the steps that each took on one disk; the last one's is left."""
_SMALL = """
mount -t tmpfs -o size=32m tmpfs "$1" && cd / && shift && exec "$@"
"""


class OtherHost(LocalTransport):
    """This machine under the name of a host."""

    @property
    def name(self) -> str:
        """Name the host."""
        return "gpu01"


def say_free(folder: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    """Let `df` of this machine say that all is on one disk with so much free."""
    program = folder / "bin" / "df"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        "#!/bin/sh\necho Filesystem 1024-blocks Used Available Capacity Mounted on\n"
        f"echo /dev/sda1 99999999 1 {free_bytes // 1024} 1% /a disk\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def of(*steps: storage.StepName) -> tuple[storage.Need, ...]:
    """Return needs of these steps on one disk."""
    return tuple(storage.Need(step=step, transport=LOCAL, path="/cache") for step in steps)


def test_what_stays_is_added_and_of_what_is_temporary_the_largest_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are made one after another."""
    say_free(tmp_path, monkeypatch, 7 * GB)
    amount = storage.Amount(packed_bytes=4 * GB, unpacked_bytes=8 * GB)
    (disk,) = storage.survey(of("wheels", "venv", "sif"), amount)
    left = [amount.kept_bytes(step) for step in ("wheels", "venv", "sif")]
    most = max(amount.peak_bytes(step) - amount.kept_bytes(step) for step in ("wheels", "sif"))
    assert 4 * GB <= left[0] < 4.2 * GB
    assert disk.needed_bytes == sum(left) + most
    assert disk.free_bytes == 7 * GB // 1024 * 1024
    assert not disk.is_enough


@pytest.mark.parametrize("variant", ["cpu", "cu126", "cu128", "cu130"])
def test_a_step_never_leaves_more_than_it_takes(variant: str) -> None:
    """What is left is part of what is taken at most, for every step and variant."""
    amount = storage.expected(variant)
    for step in storage._WORDS:
        assert 0 <= amount.kept_bytes(step) <= amount.peak_bytes(step)
    assert amount.unpacked_bytes > amount.packed_bytes > 0


def test_the_stack_with_cuda_needs_several_times_that_for_the_cpu() -> None:
    """A disk that is enough for the one is not said to be enough for the other."""
    cpu, cuda = storage.expected("cpu"), storage.expected("cu128")
    assert cuda.peak_bytes("venv") > 5 * cpu.peak_bytes("venv")


def test_as_much_is_reckoned_as_was_measured() -> None:
    """No step of the benchmark left more, or took more for a while, than what it was to take."""
    kept = json.loads((RESULTS / "building-cu128.json").read_text(encoding="utf-8"))
    rows = {row["what"]: row for row in kept["rows"]}
    assert rows.keys() == MEASURED.keys()
    packed, unpacked = kept["packed_bytes"], kept["unpacked_bytes"]
    amount = storage.Amount(packed_bytes=packed, unpacked_bytes=unpacked)
    for what, steps in MEASURED.items():
        (disk,) = storage.survey(of(*steps), amount)
        assert rows[what]["kept_bytes"] <= amount.kept_bytes(steps[-1]), what
        assert rows[what]["peak_bytes"] <= disk.needed_bytes, what


@pytest.mark.parametrize("lacking", [0, 1024 * 1024])
def test_the_limit_is_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: int
) -> None:
    """As much as is needed is enough; less is refused with what is needed and what is free."""
    amount = storage.Amount(packed_bytes=0, unpacked_bytes=10 * GB)
    needed = storage.survey(of("venv"), amount)[0].needed_bytes
    say_free(tmp_path, monkeypatch, needed - lacking + 1023)
    if not lacking:
        storage.require(of("venv"), amount, purpose="the venv of vm")
        return
    with pytest.raises(StackError) as caught:
        storage.require(of("venv"), amount, purpose="the venv of vm")
    assert caught.value.brief == "no room on local for the venv of vm"
    told, _, parts = caught.value.details.partition(" (")
    words = told.split()
    assert (words[0], words[1], words[3], words[-1]) == ("/cache", "needs", "GB,", "free")
    assert float(words[4]) < float(words[2])
    assert parts == f"venv {needed / GB:.1f} GB)"


def test_a_disk_that_is_not_known_is_no_reason_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `df` says nothing that can be read, the step itself finds out."""
    program = tmp_path / "bin" / "df"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho what\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert _disk_of(LOCAL, "/cache").free_bytes is None
    storage.require(of("venv"), storage.expected("cu128"), purpose="the venv of vm")


def test_a_folder_with_a_blank_in_the_name_of_its_disk_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """POSIX puts where a disk is mounted last."""
    say_free(tmp_path, monkeypatch, GB)
    assert _disk_of(LOCAL, "/cache").mounted_on == "/a disk"


def test_environment_needs_what_its_software_is_made_as() -> None:
    """A venv, an image, a SIF, or the files of an image."""
    expected = {"vm": "venv", "podman": "image", "singularity": "sif", "charliecloud": "files"}
    assert {name: ENVIRONMENTS[name].traits.software for name in expected} == expected
    assert Traits().software == "image"


def test_the_wheels_are_counted_on_this_machine_and_the_venv_on_the_host() -> None:
    """On one machine nothing is sent."""
    request = Request(
        transport=LOCAL,
        progress=Progress(print),
        builder=IMAGE_BUILDER.engine,
        kinds=("venv",),
    )
    assert [need.step for need in needs(request)] == ["wheels", "venv"]


def test_the_archive_of_an_image_is_counted_where_no_engine_of_the_host_has_it() -> None:
    """A SIF beside an image on the same host is made from the image there."""

    def steps(*kinds: SoftwareKind) -> list[storage.StepName]:
        request = Request(
            transport=OtherHost(),
            progress=Progress(print),
            builder=IMAGE_BUILDER.engine,
            kinds=kinds,
        )
        return [need.step for need in needs(request)]

    assert steps("sif")[-2:] == ["archive", "sif"]
    assert "archive" not in steps("image", "sif")
    # The stream of the engine is unpacked as it comes, once.
    assert steps("files") == ["wheels", "image", "files"]


def test_a_small_disk_is_refused_before_anything_is_downloaded(tmp_path: Path) -> None:
    """A real file system without room: the error says what is needed, and nothing was fetched."""
    cache, python = tmp_path / "cache", sys.executable
    cache.mkdir()
    private = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    mounted = [*private, "sh", "-c", _SMALL, "sh", str(cache)]
    if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    asked = [
        *(python, "-m", "envcompare", "build", "--envs", "vm", "--variant", "cu128"),
        *("--python", f"{sys.version_info.major}.{sys.version_info.minor}"),
    ]
    look = 'XDG_CACHE_HOME=$0 "$@"; code=$?; find "$0" -type f; exit "$code"'
    done = subprocess.run(
        [*mounted, "sh", "-c", look, str(cache), *asked],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(storage.__file__).parents[2])},
    )
    assert done.returncode == StackError.exit_code, done.stderr
    assert done.stdout == ""
    assert "error: no room on local for the stack cu128" in done.stderr
    assert f"why: {cache}/envcompare needs " in done.stderr
    assert " GB are free (wheels " in done.stderr
    assert "resolving" not in done.stderr


def test_a_disk_without_room_for_the_data_gets_no_sif_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before it is made; what a link leads to counts."""
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "file").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 20_000_000)
    (tmp_path / "link").symlink_to("data")
    assert storage.of_files(LOCAL, str(tmp_path / "link")).unpacked_bytes == 1
    monkeypatch.setattr(storage, "_COMPILED_BYTES", 0)
    say_free(tmp_path, monkeypatch, 40_000_000)
    source = ("base.sif", str(tmp_path / "link"), "/inside")
    with pytest.raises(StackError) as caught:
        with_data(LOCAL, str(tmp_path / "new.sif"), source, program="false", compression="zstd")
    assert caught.value.brief == "no room on local for a SIF with the data"
    say_free(tmp_path, monkeypatch, 80_000_000)
    with pytest.raises(StackError, match="making a SIF with the data failed"):
        with_data(LOCAL, str(tmp_path / "new.sif"), source, program="false", compression="zstd")
