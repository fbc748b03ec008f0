"""NVIDIA's libraries, asked through small ones of the same names: scripted replies, no GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.counters.nvml import gpu_settings
from harness.facts.libraries import cuda_versions
from harness.facts.torchfacts import MANAGED_KEYS, gpu

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="gcc is not there to build the scripted libraries"
)
Build = Callable[[str, str], str]
UUID = "GPU-6a1f3c2e-0000-1111-2222-333344445555"
NVML = """
#include <stdio.h>
#include <string.h>
static int whole, part;
static int put(unsigned *out, unsigned value) { *out = value; return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    return snprintf(text, length, "570.86.10") < 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { return put(count, COUNT); }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = strncmp(uuid, "MIG-", 4) ? &whole : &part;
    return strcmp(uuid + 4, "6a1f3c2e-0000-1111-2222-333344445555") ? 6 : strncmp(uuid, KIND, 4); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &whole; return index != 0; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *mig, void **device) {
    *device = &whole; return mig == &part ? 0 : 2; }
static int refuse(void *device) { return device == &whole ? 0 : 2; }
int nvmlDeviceGetPowerManagementLimit(void *d, unsigned *mw) { put(mw, 400500); return refuse(d); }
int nvmlDeviceGetEccMode(void *d, unsigned *now, unsigned *next) {
    put(now, 1); put(next, 0); return refuse(d); }
int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *next) { return 3; }
int nvmlDeviceGetPersistenceMode(void *d, unsigned *mode) { put(mode, 0); return refuse(d); }
int nvmlDeviceGetComputeMode(void *d, unsigned *mode) { put(mode, 3); return refuse(d); }
int nvmlDeviceGetMaxClockInfo(void *d, int type, unsigned *mhz) {
    put(mhz, 1000 + type); return refuse(d); }
int nvmlDeviceGetApplicationsClock(void *d, int type, unsigned *mhz) {
    put(mhz, 900 + type); return refuse(d); }
"""
SETTINGS = {
    "gpu.driver": "570.86.10",
    "gpu.power_limit_w": 400.5,
    "gpu.ecc": True,
    "gpu.mig": None,
    "gpu.persistence": False,
    "gpu.compute_mode": "exclusive-process",
    "gpu.clock_sm_mhz_max": 1001,
    "gpu.clock_memory_mhz_max": 1002,
    "gpu.clock_sm_mhz_application": 900,
}


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Give a function that compiles a library and returns its path."""

    def compiled(name: str, source: str) -> str:
        path = tmp_path / name
        argv = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", path]
        subprocess.run(argv, input=source, text=True, check=True)
        return str(path)

    return compiled


def nvml(build: Build, *, count: int = 1, kind: str = "GPU-") -> str:
    """Build a management library that knows GPUs of one kind."""
    return build("libnvidia-ml.so.1", f'#define COUNT {count}\n#define KIND "{kind}"\n{NVML}')


def test_settings_are_those_of_the_gpu_in_use(build: Build) -> None:
    """Each setting has its unit and its word; what is refused is None."""
    assert gpu_settings([UUID], name=nvml(build)) == SETTINGS


def test_mig_instance_has_the_settings_of_its_gpu(build: Build) -> None:
    """A part of a GPU has no limits of its own."""
    uuids = [UUID, UUID.replace("GPU-", "MIG-")]
    assert gpu_settings(uuids, name=nvml(build, kind="MIG-")) == SETTINGS


@pytest.mark.parametrize(
    ("uuids", "count", "is_known"), [([], 1, True), ([], 2, False), (["GPU-other"], 1, False)]
)
def test_gpu_is_guessed_only_where_there_is_one(
    build: Build, uuids: list[str], count: int, *, is_known: bool
) -> None:
    """An old PyTorch names no UUID, and numbers of CUDA are not those of the driver."""
    found = gpu_settings(uuids, name=nvml(build, count=count))
    assert found["gpu.driver"] == "570.86.10"
    assert ("gpu.power_limit_w" in found) == is_known


def test_nothing_is_known_without_the_management_library(build: Build) -> None:
    """It is absent, or another version without the functions; neither is a failure."""
    assert gpu_settings([UUID], name="libnvidia-ml-that-is-not-there.so.1") == {}
    assert gpu_settings([UUID], name=build("libold.so.1", "int nvmlInit(void) { return 0; }")) == {}
    partial = build("libpart.so.1", "int nvmlInit_v2(void) { return 0; }")
    assert gpu_settings([UUID], name=partial) == {"gpu.driver": None}


def test_machine_without_cuda_has_every_key_of_a_gpu() -> None:
    """All are None, and CUDA is not touched."""
    found = gpu("cpu")
    assert set(found) >= {*MANAGED_KEYS, "gpu.name", "gpu.uuid", "gpu.driver", "gpu.count"}
    assert set(found.values()) == {None}


def test_every_setting_has_a_key_where_there_is_no_gpu(build: Build) -> None:
    """The two lists of names are one."""
    assert {*MANAGED_KEYS, "gpu.driver"} == set(gpu_settings([UUID], name=nvml(build)))


RUNTIME = "int cudaRuntimeGetVersion(int *out) { *out = 12060; return 0; }"
NCCL = "int ncclGetVersion(int *out) { *out = 22703; return 0; }"
CUDNN = "int cudnnGetProperty(int which, int *out) { *out = 9 - which; return 0; }"
CUBLAS = "int cublasGetProperty(int which, int *out) { *out = 12 + which; return which == 2; }"


def test_cuda_libraries_tell_their_versions(build: Build) -> None:
    """Each in its own encoding; one that refuses is None."""
    paths = [
        build("libcudart.so.12", RUNTIME),
        build("libcudnn.so.9", "int nothing;"),
        build("libcudnn_graph.so.9", CUDNN),
        build("libcublas.so.12", CUBLAS),
        build("libnccl.so.2", NCCL),
        build("libcudnn_ops.so.9", "int nothing;"),
    ]
    kept = [ctypes.CDLL(path) for path in paths]
    expected = {"runtime": "12.6", "cudnn": "9.8.7", "cublas": None, "nccl": "2.27.3"}
    assert cuda_versions(paths) == {f"cuda.{name}": value for name, value in expected.items()}
    assert kept


def test_cuda_library_that_is_not_loaded_is_not_loaded_for_the_question(build: Build) -> None:
    """The file alone says nothing of what the process uses."""
    path = build("libcudart.so.13", RUNTIME)
    assert cuda_versions([path])["cuda.runtime"] is None
    assert path not in Path("/proc/self/maps").read_text()
    door = build("libcudnn.so.9", CUDNN.replace("9 -", "8 -"))
    assert ctypes.CDLL(door)
    assert cuda_versions([door])["cuda.cudnn"] is None
    assert set(cuda_versions([]).values()) == {None}
