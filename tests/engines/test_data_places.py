"""Data at each place in real engines: where they lie, what is not run, and what is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import envcompare
from lab import Lab
from runs import BASE, run_folder

from envcompare.analysis.compare import compare_run
from envcompare.environments import HoldsData, Isolation
from envcompare.environments.registry import environment
from envcompare.run_folder.results import RunFolder
from envcompare.stack.building import remove_held
from envcompare.stack.storage import ImageStore
from envcompare.transport import Transport, shell

ARMS = ("vm", "docker", "singularity", "podman")
pytestmark = [pytest.mark.engine(name) for name in ("ssh", *ARMS[1:])]
RUN = "20260101-000000-0f0f"
DISK = "the file system of the host's cache"
# The file system that the worker finds below its data, by the place.
FOUND = {
    "bind": dict.fromkeys(ARMS, DISK),
    "image": {"vm": DISK, "docker": "overlay", "singularity": "overlay", "podman": "overlay"},
    "overlay": {"vm": DISK, "docker": "overlay", "singularity": "overlay", "podman": "overlay"},
    "tmpfs": dict.fromkeys(ARMS, "tmpfs"),
    "sif": {"vm": DISK, "singularity": "overlay"},  # that of the engine, over the SquashFS
}
# An image without a name and without files.
IMPORT = "tar -cf - -T /dev/null | $1 import - 2>/dev/null"
IMAGES = "docker image ls -aq --no-trunc; su bench -c 'podman image ls -aq --no-trunc'"


def run_files(lab: Lab, path: Path) -> RunFolder:
    """Run the workload with its data at all places, and return the run folder."""
    done = envcompare(
        *("run", "--hosts", lab.alias, "--envs", ",".join(ARMS), "--workloads", "files"),
        *("--place", f"data={','.join(FOUND)}", "--restarts", "1", "--rounds", "3", "--no-marks"),
        *("--set", "files.cache=cold", "--set", "files.files=50", "--base-image", BASE),
        *("--no-quiet-gate", "--no-startup", "--profile", "none", "--device", "cpu"),
        *("--out", "out"),
        cwd=path,
    )
    assert done.returncode == 0, done.stderr
    found = run_folder(path / "out")
    assert found is not None
    return RunFolder.open(found)


# A name that neither a shell, a pattern nor the sections of a definition may take apart.
NASTY = "my [*] data\n%post"
PLAIN = "my data"  # Podman takes a path for a pattern
MAKE = """
cd "$1" && mkdir root root/dev root/proc && apptainer -q build base.sif root >&2 || exit
mkdir "$2" "$3" && >"$2/a b" && >"$3/a b" && ln -s "$3" link && >"$2.csv" && >"$3.csv"
"""
# What is in the place of the data, in an image of an engine with Docker's command line, or a SIF.
LAYERS = """
container=$("$2" create "$1" true) && "$2" cp "$container:/envcompare-data" - |
  tar -tf - --quoting-style=literal
"$2" rm "$container" >&2
"""
SQUASHED = """
apptainer -q build --sandbox "$1.box" "$1" >&2 && cd "$1.box" && find envcompare-data
"""


def held_by(name: str, host: Transport, base: str, data: str, *, scratch: str) -> str:
    """Return the reference of what an environment puts data into."""
    where = environment(name)
    assert isinstance(where, HoldsData)
    isolation = Isolation(run_id=RUN, arm=name, reference=base, engine="apptainer", scratch=scratch)
    return where.hold(host, isolation, data, compression="gzip")


@pytest.fixture
def folder(host: Transport) -> Iterator[str]:
    """Give a folder of the host with data, and a SIF without any file."""
    path = shell(host, "mktemp -d").stdout.strip()
    made = shell(host, MAKE, path, NASTY, PLAIN)
    assert made.succeeded, made.stderr
    yield path
    shell(host, 'chmod -R u+rwx "$1"; rm -rf "$1"', path)


@pytest.mark.parametrize("name", ["docker", "podman", "singularity"])
def test_an_image_holds_a_folder_or_a_file_of_any_name(
    name: str, host: Transport, folder: str
) -> None:
    """Also what a link leads to; a file keeps its name, which is part of its hash."""
    is_sif = name == "singularity"
    base = f"{folder}/base.sif" if is_sif else shell(host, IMPORT, name).stdout.strip()
    given = PLAIN if name == "podman" else NASTY
    inside = {given: "a b", "link": "a b", f"{given}.csv": f"{given}.csv"}
    try:
        for data, file in inside.items():
            held = held_by(name, host, base, f"{folder}/{data}", scratch=folder)
            said = shell(host, SQUASHED if is_sif else LAYERS, held, name)
            assert said.succeeded, said.stderr
            listed = said.stdout.replace("envcompare-data/\n", "envcompare-data\n")
            assert listed == f"envcompare-data\nenvcompare-data/{file}\n"
        environment(name).sweep(host, RUN)
    finally:
        if not is_sif:
            shell(host, '"$1" image rm --force "$2"', name, base)


@pytest.mark.parametrize("is_cleaned", [False, True], ids=["swept", "cleaned"])
@pytest.mark.parametrize("name", ["docker", "podman"])
def test_an_image_without_a_name_survives_the_one_with_the_data(
    name: str, host: Transport, *, is_cleaned: bool
) -> None:
    """It is the user's, who named it by its ID; the other goes with the run, or is found later."""

    def images() -> set[str]:
        ids = shell(host, '"$1" image ls -aq --no-trunc', name).stdout.split()
        return {each.removeprefix("sha256:") for each in ids}

    where = environment(name)
    assert where.engine is not None
    base = shell(host, IMPORT, name).stdout.strip().removeprefix("sha256:")
    try:
        before = images()
        assert base in before
        held = held_by(name, host, base, "/etc/hostname", scratch="")
        assert images() - before == {held.removeprefix("sha256:")}
        if is_cleaned:
            assert remove_held(ImageStore(engine=where.engine, transport=host)) == 1
        else:
            where.sweep(host, RUN)
        assert images() == before
    finally:
        shell(host, '"$1" image rm --force "$2"', name, base)


@pytest.mark.nightly
def test_the_data_lie_where_they_were_asked_for_in_every_arm(lab: Lab, tmp_path: Path) -> None:
    """What an engine does not have is not run, for a reason, and nothing of the run is left."""
    before = lab.as_root("sh", "-c", IMAGES)
    disk = lab.as_root("findmnt", "-n", "-o", "FSTYPE", "-T", "/home/bench/.cache").strip()
    folder = run_files(lab, tmp_path)
    kinds: dict[str, dict[str, str]] = {}
    for record in folder.read_fingerprints():
        place = record.cell.rpartition("=")[2]
        kind = str(record.facts["mount.data"]).split(" ")[0]
        kinds.setdefault(place, {})[record.arm] = kind
    expected = {
        place: {arm: disk if kind is DISK else kind for arm, kind in found.items()}
        for place, found in FOUND.items()
    }
    assert kinds == {
        place: {**kinds, "vm~control": kinds["vm"]} for place, kinds in expected.items()
    }
    # a file that was read is gone from the page cache there, as mincore(2) says inside
    ends = [event for event in folder.read_events().events if event.what == "generation"]
    on_disk = [one for one in ends if str(one.cell).endswith(("=bind", "=overlay"))]
    assert {one.arm for one in on_disk} == {*ARMS, "vm~control"}
    assert {one.values["cached"] for one in on_disk} == {0.0}
    judged = compare_run(folder)
    refused = {
        (one.parameters["place.data"], one.arm): one.reason.brief if one.reason else ""
        for one in judged.compared
        if one.outcome == "not-run"
    }
    assert refused == {
        ("sif", arm): f"no data at `sif` in {arm}: it runs no SIF" for arm in ("docker", "podman")
    }
    assert judged.course.failures == ()
    assert lab.left_of(folder.run_id) == ""
    assert lab.as_root("sh", "-c", IMAGES) == before
    assert lab.as_root("sh", "-c", "ls /dev/shm | grep envcompare || true") == ""
