"""How each environment hands the GPU on, and what is read of the driver's files on a host."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from envcompare.environments import Check, Gpu, GpuWay, Isolation, gpu
from envcompare.environments.registry import environment
from envcompare.hosts import ReadyArm
from envcompare.run_folder.records import ArmRecord
from envcompare.stack import Prepared
from envcompare.text import Command
from envcompare.transport import LOCAL, run

WORKER = Command(argv=("/venv/bin/python", "/w/worker.py"), env=(("OMP_NUM_THREADS", "1"),))
ISOLATION = Isolation(
    run_id="r", arm="new", reference="sha256:0123", uid=1000, gid=1001, is_timed=True
)
HOST_ARM = ArmRecord(id="docker-host", environment="docker", stack="host")
FILES = Gpu(
    way="devices",
    devices=("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1"),
    groups=("44",),
    libraries=(("libcuda.so.1", "/usr/lib64/libcuda.so.1"),),
    variables=(("CUDA_VISIBLE_DEVICES", "1"),),
)
DEVICES = "--group-add 44 --device /dev/nvidia0 --device /dev/nvidia-caps/nvidia-cap1"
DRIVER = "/usr/local/nvidia/lib64"
LIBRARY = f"--mount type=bind,source=/usr/lib64/libcuda.so.1,destination={DRIVER}/libcuda.so.1,ro"
BOUND = (
    "--mount type=bind,source=/dev/nvidia0,destination=/dev/nvidia0 --mount "
    "type=bind,source=/dev/nvidia-caps/nvidia-cap1,destination=/dev/nvidia-caps/nvidia-cap1"
)


@pytest.mark.parametrize(
    ("name", "found", "options"),
    [
        ("docker", replace(FILES, way="cdi"), "--group-add 44 --device nvidia.com/gpu=all"),
        ("docker", replace(FILES, way="engine"), "--group-add 44 --gpus all"),
        ("docker", FILES, f"{DEVICES} {LIBRARY} --env LD_LIBRARY_PATH={DRIVER}"),
        ("docker", FILES.with_host_files, DEVICES),
        ("docker", replace(FILES, way="cdi").with_host_files, DEVICES),
        ("docker", replace(FILES, way="none", devices=(), groups=(), libraries=()), ""),
        ("singularity", replace(FILES, way="engine"), "--nv"),
        ("singularity", replace(FILES, way="engine").with_host_files, BOUND),
        ("singularity", replace(FILES, way="none"), ""),
    ],
)
def test_a_container_gets_the_gpu_by_the_way_that_was_found(
    name: str, found: Gpu, options: str
) -> None:
    """Nothing else changes; what the user chose among the GPUs holds inside as well."""
    chosen = replace(ISOLATION, gpu=Gpu(variables=found.variables))
    without = environment(name).wrap(WORKER, chosen).argv
    with_gpu = environment(name).wrap(WORKER, replace(ISOLATION, gpu=found)).argv
    words = tuple(shlex.split(options))
    start = with_gpu.index(words[0]) if words else 0
    while with_gpu[start : start + len(words)] != words:
        start = with_gpu.index(words[0], start + 1)
    assert with_gpu[:start] + with_gpu[start + len(words) :] == without


@pytest.mark.parametrize("way", ["cdi", "engine", "devices"])
def test_an_arm_with_the_hosts_files_gets_the_device_files_whatever_was_found(way: GpuWay) -> None:
    """An arm with an image gets what was found; where there is no GPU neither gets one."""
    check = Check(gpu=replace(FILES, way=way))
    image, host = (
        ReadyArm(arm=arm, prepared=Prepared(interpreter="python3"), check=check)
        for arm in (ArmRecord(id="d", environment="docker"), HOST_ARM)
    )
    assert (image.gpu.way, host.gpu) == (way, replace(FILES, way="devices", libraries=()))
    assert replace(host, check=Check()).gpu == Gpu()


def test_a_plain_process_has_the_gpu_already() -> None:
    """Nothing is added, not even the variables it inherits."""
    with_gpu = replace(ISOLATION, gpu=FILES)
    assert environment("vm").wrap(WORKER, with_gpu) == environment("vm").wrap(WORKER, ISOLATION)


LOADER_CACHE = """
1234 libs found in cache `/etc/ld.so.cache'
\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1
\tlibnvidia-glcore.so.550.54.14 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-glcore.so.1
\tlibcudart.so.12 (libc6,x86-64) => /usr/local/cuda/lib64/libcudart.so.12
\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/wsl/lib/libcuda.so.1
\tlibcuda.so.1 (libc6,x86-64, OS ABI: Linux 2.3.99) => /usr/lib/x86_64-linux-gnu/libcuda.so.1
"""


def test_the_drivers_files_are_those_that_computing_needs() -> None:
    """Of two libraries of one name the loader takes the first; those for graphics stay out."""
    lines = (
        "device /dev/nvidia0\ngroup 44\ndevice /dev/nvidiactl\ngroup 44\n"
        "variable CUDA_VISIBLE_DEVICES 0,1\n"
    )
    assert gpu.read_files(lines + LOADER_CACHE) == Gpu(
        way="devices",
        devices=("/dev/nvidia0", "/dev/nvidiactl"),
        groups=("44",),
        libraries=(
            ("libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"),
            ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"),
        ),
        variables=(("CUDA_VISIBLE_DEVICES", "0,1"),),
    )


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_no_arm_has_a_gpu_where_the_user_hides_them_all(value: str) -> None:
    """A plain process sees none then, and a container is given none."""
    found = gpu.read_files(f"device /dev/nvidia0\nvariable CUDA_VISIBLE_DEVICES {value}\n")
    assert found == Gpu(variables=(("CUDA_VISIBLE_DEVICES", value),))


def test_devices_are_the_character_devices_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is none, and what belongs to nobody's GPU, are left out."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1f2e")
    (tmp_path / "nvidia-caps").mkdir()
    for name in ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"):
        (tmp_path / name).symlink_to("/dev/null")
    (tmp_path / "nvidia1").touch()
    (tmp_path / "nvidia-nvswitchctl").symlink_to("/dev/null")
    found = gpu.read_files(run(LOCAL, gpu.files_command(str(tmp_path))).stdout)
    assert [path.removeprefix(f"{tmp_path}/") for path in found.devices] == [
        "nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1",
    ]  # fmt: skip
    assert found.variables == (("CUDA_VISIBLE_DEVICES", "MIG-1f2e"),)
    owner = Path("/dev/null").stat().st_gid
    assert found.groups == ((str(owner),) if owner in {os.getgid(), *os.getgroups()} else ())
