"""What a fingerprint reads: variables, mounts, libraries and distributions."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from harness.facts.confinement import describe_mount, mount_of, security_label
from harness.facts.libraries import allocator
from harness.facts.machine import cpu_family
from harness.facts.masking import masked
from harness.facts.packages import Distribution, installed, loaded, outside
from harness.facts.torchfacts import build_of, driver_version
from harness.facts.variables import variables
from harness.greeting import settle_process
from harness.watching import Watch
from harness.wire import encode

SECRET = "hunter2"
HOSTILE = """
TORCH_HUB_TOKEN TORCH_AUTH NVIDIA_PASSWORD MKL_LICENSE_FILE CUDA_SECRET NCCL_PASSPHRASE
NVIDIA_API_KEY OMP_CREDENTIALS TORCH_session_Key MALLOC_ACCESS_TOKEN_ID NVIDIA_NGC_CLI_API
PYTORCH_PWD AWS_SECRET_ACCESS_KEY DATABASE_URL HOME_PAGE omp_token LD_AUDIT
MY_OMP_NUM_THREADS
"""


@pytest.mark.parametrize("name", HOSTILE.split())
def test_variable_with_a_secret_or_a_strange_name_is_left_out(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Neither its name nor its value leaves the host."""
    monkeypatch.setenv(name, SECRET)
    found = variables()
    assert SECRET not in str(found)
    assert f"env.{name}" not in found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("socket,eth0", "socket,eth0"),
        ("/opt/a:/opt/b", "/opt/a:/opt/b"),
        ("http://bench:hunter2@mirror.example:8080/a", "http://***@mirror.example:8080/a"),
        ("s3+https://hunter2@host", "s3+https://***@host"),
        ("http://bench:r@hunter2@host/a", "http://***@host/a"),
        ("/opt/private:/opt/api:/usr/lib", "/opt/private:/opt/api:/usr/lib"),
        ("https://host/a?x=1&token=hunter2&y=2", "https://host/a?x=1&token=***&y=2"),
        ("size=4,api_key: hunter2", "size=4,api_key: ***"),
        ("https://host/plain@2", "https://host/plain@2"),
        ("https://host/a?sv=1&sig=hunter2", "https://host/a?sv=1&sig=***"),
        ("--password hunter2 --size 4", "--password *** --size 4"),
        ("password='hunter2 hunter2',size=4", "password=***,size=4"),
        ('{"token": "hunter2 a"}', '{"token": ***}'),
        ("Authorization: Bearer hunter2", "Authorization: ***"),
        ("a:ghp_0123456789abcdefXYZ:b", "a:***:b"),
        ("passwd hunter2", "passwd ***"),
        ("/opt/token /usr/lib tokens 4", "/opt/token /usr/lib tokens 4"),
        ("task-1234567890abcdef", "task-1234567890abcdef"),
    ],
)
def test_value_loses_what_is_secret_in_it(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: str
) -> None:
    """The login of a URL and parts named as secrets are masked; all else stays readable."""
    assert masked(value) == expected
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", value)
    monkeypatch.setenv("LD_PRELOAD", value)
    found = variables()
    assert found["env.NCCL_SOCKET_IFNAME"] == found["allocator.ld_preload"] == expected


def test_variables_that_can_be_felt_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, allocators and GPUs are set by variables."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("MKL_NUM_THREADS", "many")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5")
    found = variables()
    assert (found["threads.omp"], found["threads.mkl"]) == (3, None)
    assert found["allocator.tunables"] == found["env.GLIBC_TUNABLES"] == "glibc.malloc.arena_max=1"
    assert found["gpu.visible"] == "GPU-5"


@pytest.mark.parametrize(
    "name", ["PYTHONOPTIMIZE", "PYTHONSTARTUP", "PYTHON_GIL", "PYTHON_JIT", "PYTHONTRACEMALLOC"]
)
def test_every_variable_of_python_is_kept(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each version has new ones, and several change how fast it is."""
    monkeypatch.setenv(name, "1")
    assert variables()[f"env.{name}"] == "1"


@pytest.mark.parametrize(
    "name", ["PYTHON_VERSION", "PYTHON_SHA256", "PYTHON_PIP_VERSION", "PYTHON_GET_PIP_URL"]
)
def test_what_an_image_says_of_itself_is_no_variable_of_python(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Official images of Python set them, and no interpreter reads them."""
    monkeypatch.setenv(name, "1")
    assert f"env.{name}" not in variables()


def test_what_envcompare_sets_does_not_hide_what_the_arm_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An image with one OpenMP thread is told from one without, though both then run two."""
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "1"})
    monkeypatch.setattr("harness.facts.variables._FOUND", {})
    settle_process(2, None)
    found = variables()
    assert (found["env.OMP_NUM_THREADS"], found["threads.omp"]) == ("1", 2)
    assert "env.MKL_NUM_THREADS" not in found
    assert found["threads.mkl"] == 2


def test_without_a_number_of_threads_the_variables_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the user's own run: what the image sets decides, and what it does not set is unset."""
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "3"})
    monkeypatch.setattr("harness.facts.variables._FOUND", {})
    settle_process(None, None)
    found = variables()
    assert (found["env.OMP_NUM_THREADS"], found["threads.omp"]) == ("3", 3)
    assert (found["threads.mkl"], found["threads.openblas"]) == (None, None)


def test_place_of_a_file_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes no speed where a log is written; what is loaded from a place does."""
    for name in ("NCCL_DEBUG_FILE", "TORCH_HOME", "CUDA_CACHE_PATH", "KMP_TEMP_DIR"):
        monkeypatch.setenv(name, "/home/ann/own")
        assert variables()[f"env.{name}"] == "set"
    for name in ("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUSERBASE"):
        monkeypatch.setenv(name, "/home/ann/own")
        assert variables()[f"env.{name}"] == "/home/ann/own"


def module(folder: Path, name: str, text: str) -> Path:
    """Write a module into a folder of its own and return the folder."""
    folder.mkdir()
    (folder / f"{name}.py").write_text(text)
    return folder


def test_package_from_elsewhere_is_told_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in front of the installed packages replaces one of them, and no proof covers it."""
    found = []
    for number, text in enumerate(("x = 1\n", "x = 2\n", "x = 1\n")):
        folder = module(tmp_path / str(number), "replaced", text)
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        monkeypatch.delitem(sys.modules, "replaced", raising=False)
        importlib.invalidate_caches()
        importlib.import_module("replaced")
        found.append([one for one in outside() if one.startswith("replaced ")])
    assert found[0] == found[2] != found[1]
    assert all(len(one) == 1 for one in found)


def test_file_of_the_standard_library_may_be_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian keeps the sitecustomize of its Python in /etc."""
    real, shown = module(tmp_path / "etc", "linked", ""), tmp_path / "stdlib"
    shown.mkdir()
    (shown / "linked.py").symlink_to(real / "linked.py")
    folders = {**sysconfig.get_paths(), "stdlib": str(shown)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: folders)
    monkeypatch.syspath_prepend(str(shown))
    monkeypatch.delitem(sys.modules, "linked", raising=False)
    importlib.import_module("linked")
    assert not [one for one in outside() if one.startswith("linked ")]


def test_what_is_installed_or_the_users_workload_is_not_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the worker, whose source has a hash of its own."""
    folder = module(tmp_path / "own", "workload_mine", "")
    module(tmp_path / "own" / "below", "beside_it", "")
    for path in (folder, folder / "below"):
        monkeypatch.syspath_prepend(str(path))
    for name in ("workload_mine", "beside_it"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.import_module(name)
    names = {one.partition(" ")[0] for one in outside()}
    assert not names & {"workload_mine", "beside_it", "packages", "variables", "pytest", "json"}


OVERLAY = (
    "812 700 0:55 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/var/lib/l/AB:/var/lib/l/"
    "CD,upperdir=/var/lib/x/diff,workdir=/var/lib/x/work,nouserxattr"
)
NFS = (
    "90 30 0:44 / /data rw,nosuid,noatime shared:9 - nfs4 server:/export rw,vers=4.2,rsize=1048576,"
    "wsize=1048576,proto=tcp,clientaddr=10.0.0.7,addr=10.0.0.1"
)
SQUASH = "91 30 7:3 / /mnt ro,nodev - squashfs /dev/loop3 rw,errors=continue"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (OVERLAY, "overlay relatime,rw"),
        (NFS, "nfs4 noatime,nosuid,proto=tcp,rsize=1048576,rw,vers=4.2,wsize=1048576"),
        (SQUASH, "squashfs nodev,ro"),
    ],
)
def test_mount_is_told_without_paths_and_addresses(line: str, expected: str) -> None:
    """Two containers of one image tell the same, whatever their layers are called."""
    assert describe_mount(line) == expected


def test_mount_is_found_for_what_lies_there() -> None:
    """The kernel knows of /proc itself; a path that is not there has no mount."""
    assert (mount_of("/proc/self/status") or "").startswith("proc ")
    with pytest.raises(FileNotFoundError):
        mount_of("/no/such/path")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("system_u:system_r:container_t:s0:c123,c456", "system_u:system_r:container_t"),
        ("unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023",
         "unconfined_u:unconfined_r:unconfined_t"),
        ("docker-default (enforce)", "docker-default (enforce)"),
        ("", None),
    ],
)  # fmt: skip
def test_security_label_is_the_same_in_every_container_of_a_kind(
    text: str, expected: str | None
) -> None:
    """SELinux keeps containers apart by categories, which are drawn for each of them."""
    assert security_label(text) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["libm.so.6", "libc.so.6"], "glibc"),
        (["libc-2.17.so"], "glibc"),
        (["ld-musl-x86_64.so.1"], "musl"),
        (["libc.so.6", "libjemalloc.so.2"], "jemalloc"),
        (["libtcmalloc_minimal.so.4", "libc.so.6"], "tcmalloc"),
        (["libmimalloc.so.2.1", "libc.so.6"], "mimalloc"),
        (["libm.so.6"], None),
    ],
)
def test_allocator_is_named_by_what_is_mapped(names: list[str], expected: str | None) -> None:
    """A library made for it goes before the C library."""
    assert allocator(names) == expected


def test_build_of_torch_is_not_what_a_variable_makes_of_it() -> None:
    """ATEN_CPU_CAPABILITY changes a line of it; that has a key of its own."""
    text = "PyTorch built with:\n  - GCC 13.3\n{}  - Build settings: USE_CUDA=0, \n"
    line = "  - CPU capability usage: AVX2\n"
    assert build_of(text.format(line)) == build_of(text.format("")) == text.format("")


def distribution(folder: Path, name: str, *, files: dict[str, str]) -> Distribution:
    """Write a folder of metadata."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    for file, text in files.items():
        (metadata / file).write_text(text)
    return Distribution(name, "1.0", str(folder), str(metadata))


def test_distribution_is_loaded_when_a_file_of_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its record, else by its top names, else by its own; a shared namespace is nobody's."""
    for file in ("vendor/blas/lib/libblas.so.3", "vendor/fft/lib/libfft.so", "plain.py", "top.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    known = [
        distribution(tmp_path, "vendor-blas", files={"RECORD": "vendor/blas/lib/libblas.so.3,,\n"}),
        distribution(tmp_path, "vendor-fft", files={"RECORD": "vendor/fft/lib/libfft.so,,\n"}),
        distribution(tmp_path, "many-names", files={"top_level.txt": "other\ntop\n"}),
        distribution(tmp_path, "plain", files={}),
        distribution(tmp_path, "absent", files={}),
    ]
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("plain", "top"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        __import__(name)
    mapped = [str(tmp_path / "vendor/blas/lib/libblas.so.3")]
    assert loaded(known, mapped) == ["vendor-blas==1.0", "many-names==1.0", "plain==1.0"]


def test_of_two_versions_in_one_folder_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever order the file system lists them in; a path that is no folder holds none."""
    for version in ("2.0", "1.0", "3.0"):
        (tmp_path / f"Twice_told-{version}.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "absent"), str(tmp_path), ""])
    assert [str(one) for one in installed()] == ["twice-told==1.0"]


def test_loaded_distributions_are_among_the_installed() -> None:
    """This test runs under pytest; what it has not imported is not said to be in use."""
    found = installed()
    names = [one.partition("==")[0] for one in loaded(found, [])]
    assert set(names) <= {one.name for one in found}
    assert "pytest" in names
    assert Path(found[0].metadata).is_dir()


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.104.05  Release Build",
    ],
)
def test_driver_is_told_from_the_processor_it_is_for(text: str) -> None:
    """The open module names the processor before its own version."""
    assert driver_version(text) == "535.104.05"


def test_program_whose_name_is_no_utf8_is_told_in_a_line_that_can_be_read(tmp_path: Path) -> None:
    """Any byte but a slash may stand in the name of a file, and none may end the conversation."""
    path = bytes(tmp_path) + b"/sl\xe9ep"
    shutil.copy(shutil.which("sleep") or "", path)
    watch = Watch()
    watch.start()
    with subprocess.Popen([path, "1"]) as process:
        watch.begin(process.pid)
    (program,) = json.loads(encode(watch.facts()).decode())["programs"]
    assert program.startswith("sl?ep ")


def test_processes_that_computed_for_less_than_a_tick_leave_the_priority_open() -> None:
    """Of several that slept, chance would choose whose priority is told."""
    watch = Watch()
    watch.start()
    script = "nice -n 5 sleep 1 & sleep 1; wait"
    with subprocess.Popen(["/bin/sh", "-c", script]) as process:
        watch.begin(process.pid)
    found = watch.facts()
    assert any(one.startswith("sleep ") for one in found["programs"])
    assert "process.nice" not in found


def test_threads_of_a_program_are_counted_with_those_of_its_children() -> None:
    """A quota is shared by all of them."""
    watch = Watch()
    watch.start()
    threads = (
        "import threading as t; [t.Thread(target=t.Event().wait, args=(1,)).start() for _ in 'ab']"
    )
    with subprocess.Popen(["/bin/sh", "-c", f'{sys.executable} -c "{threads}"; true']) as process:
        watch.begin(process.pid)
    assert watch.facts()["threads.alive"] == 4


def test_the_process_that_computes_most_tells_the_priority() -> None:
    """The shell around it, which waits, is of no account."""
    watch = Watch()
    watch.start()
    busy = f"exec nice -n 5 {sys.executable} -c 'sum(range(30_000_000))'"
    with subprocess.Popen(["/bin/sh", "-c", f"({busy}); true"]) as process:
        watch.begin(process.pid)
    assert watch.facts()["process.nice"] == os.getpriority(os.PRIO_PROCESS, 0) + 5


def test_what_the_driver_compiles_is_kept_in_the_folder_of_the_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOME is full without a container and empty in one; a choice of the user's own stays."""
    monkeypatch.setattr(os, "environ", {"HOME": "/home/ada", "ENVCOMPARE_SCRATCH": str(tmp_path)})
    settle_process(1, None)
    assert os.environ["CUDA_CACHE_PATH"] == f"{tmp_path}/cuda"
    monkeypatch.setattr(os, "environ", {"CUDA_CACHE_PATH": "/data/cuda"})
    settle_process(1, None)
    assert os.environ["CUDA_CACHE_PATH"] == "/data/cuda"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"vendor_id": "GenuineIntel", "cpu family": "6", "model": "143", "stepping": "8"},
            "GenuineIntel, family 6, model 143, stepping 8",
        ),
        (
            {"CPU implementer": "0x41", "CPU part": "0xd40", "CPU variant": "0x1"},
            "0x41, part 0xd40, variant 0x1",
        ),
        ({"model": "POWER9"}, None),
    ],
)
def test_the_family_of_a_processor_is_what_the_kernel_numbers(
    fields: dict[str, str], told: str | None
) -> None:
    """On x86 and on ARM; others have no such numbers."""
    assert cpu_family(fields) == told


def test_line_is_described_by_its_work_and_not_by_what_has_started_it() -> None:
    """The starter outlives the work, as those of Apptainer do."""
    work = "import time; end = time.time() + 0.8\nwhile time.time() < end: pass"
    start = (
        "import os, subprocess, sys, time\n"
        f"subprocess.run([sys.executable, '-c', {work!r}], "
        "env={**os.environ, 'OMP_NUM_THREADS': '3'})\n"
        "time.sleep(0.6)"
    )
    watch = Watch(is_line=True)
    watch.start()
    with subprocess.Popen([sys.executable, "-c", start]) as starter:
        watch.begin(starter.pid)
    assert watch.facts()["threads.omp"] == 3
