"""The fingerprint that a worker takes from inside."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conversation import WORKER, Start
from harness.facts.modules import is_compiled, module_facts

CPUS = sorted(os.sched_getaffinity(0))  # an image or a job may hold others than 0 and 1
KEYS = """
allocator.ld_preload allocator.name allocator.tunables arch capabilities.effective cgroup.cpu_quota
cgroup.cpu_weight cgroup.cpuset cgroup.io_weight cgroup.memory_limit_bytes cgroup.mems
cgroup.pids_limit cgroup.version compiler.name compiler.version
cpu.affinity cpu.boost cpu.count cpu.family cpu.flags_sha256 cpu.governor
cpu.microcode cpu.model cuda.cublas cuda.cudnn cuda.nccl cuda.runtime gid gpu.clock_memory_mhz_max
gpu.clock_sm_mhz_application gpu.clock_sm_mhz_max gpu.compute_mode gpu.count gpu.driver gpu.ecc
gpu.memory_bytes gpu.mig gpu.name gpu.persistence gpu.power_limit_w gpu.uuid gpu.visible
kernel.clocksource kernel.release kernel.version libc.sha256 libc.version limits.as limits.core
limits.memlock limits.nofile limits.nproc limits.stack loaded_libraries loaded_packages
loaded_paths lsm.label memory.total_bytes mount.data mount.packages mount.python mount.scratch
network.interfaces no_new_privs
numa.nodes numpy.version os.release packages process.nice process.scheduler python.compiler
python.executable python.flags
preload.file preload.replaces python.implementation python.is_debug python.libpython_sha256
python.modules python.sha256 python.uncompiled python.version
seccomp.filters seccomp.mode shm.bytes site_packages.sha256 smt.active speculation.indirect_branch
speculation.ssb thp thp.defrag thp.is_disabled threads.alive threads.mkl threads.omp
threads.openblas
torch.build_sha256 torch.cpu_capability torch.cuda torch.cudnn_benchmark torch.cudnn_deterministic
torch.deterministic torch.float32_precision torch.git torch.interop_threads torch.tf32_cudnn
torch.tf32_matmul torch.threads torch.version torchvision.version uid
"""


def test_fingerprint_has_every_key_and_knows_this_machine(start: Start, toy: str) -> None:
    """Keys are there even where nothing could be measured; what can be checked here agrees."""
    found = start().ask("hello", workload=toy, threads=2, cpus=CPUS[:1])["fingerprint"]
    assert set(KEYS.split()) <= set(found)
    assert found["uid"] == os.getuid()
    assert found["python.version"] == ".".join(map(str, sys.version_info[:3]))
    assert found["kernel.release"] == os.uname().release
    assert found["cpu.affinity"] == CPUS[:1]
    assert [found[f"threads.{name}"] for name in ("omp", "mkl", "openblas")] == [2, 2, 1]
    assert any(line.startswith("libc.so.6 ") for line in found["loaded_libraries"])
    assert found["packages"] == sorted(found["packages"])
    assert (found["torch.version"], found["gpu.name"]) == (None, None)


def test_fingerprint_shows_the_allowed_variables_and_no_secret(
    start: Start, toy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables outside the allow-list never leave, nor an allowed prefix with a secret's name."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    for name in ("AWS_SECRET_ACCESS_KEY", "NVIDIA_API_KEY", "TORCH_HUB_TOKEN", "DATABASE_URL"):
        monkeypatch.setenv(name, "hunter2")
    found = start().ask("hello", workload=toy)["fingerprint"]
    assert found["env.MALLOC_ARENA_MAX"] == "2"
    assert "hunter2" not in str(found)


def test_fingerprint_is_left_out_when_asked(start: Start, toy: str) -> None:
    """A start-up pass can do without it."""
    assert start().ask("hello", workload=toy, fingerprint=False)["fingerprint"] == {}


def test_launcher_of_a_command_does_not_speak_for_the_program(tmp_path: Path) -> None:
    """Installed packages and limits are the arm's; what is loaded would be the launcher's own."""
    request = {"op": "look", "argv": ["python", "-c", "1"], "cwd": str(tmp_path), "cpus": None}
    argv = [sys.executable, str(WORKER.with_name("measuring.py"))]
    done = subprocess.run(
        argv, input=json.dumps(request) + "\n", capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)["fingerprint"]
    assert set(KEYS.split()) <= set(found)
    assert found["loaded_libraries"] is found["loaded_packages"] is found["threads.alive"] is None
    assert found["packages"]
    assert found["mount.data"]


def test_content_hash_sees_both_ends_of_a_large_file(tmp_path: Path) -> None:
    """A large library is known by its size and its ends; a small one by all of it."""
    from harness.facts.libraries import content_hash

    path = tmp_path / "large.so"
    content = bytearray(9 << 20)
    path.write_bytes(content)
    first = content_hash(str(path))
    assert first == content_hash(str(path))
    for place in (100, len(content) - 100):
        changed = bytearray(content)
        changed[place] = 1
        path.write_bytes(changed)
        assert content_hash(str(path)) != first
    path.write_bytes(content + b"\0")
    assert content_hash(str(path)) != first


def test_the_index_of_the_loader_is_no_library(tmp_path: Path) -> None:
    """The loader maps it for a moment, and it differs between any two installations."""
    from harness.facts.libraries import mapped_libraries

    with contextlib.ExitStack() as stack:
        for name in ("ld.so.cache", "libplanted.so.1"):
            path = tmp_path / name
            path.write_bytes(b"planted")
            file = stack.enter_context(path.open("rb"))
            stack.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        found = mapped_libraries()
    assert [Path(one).name for one in found if one.startswith(str(tmp_path))] == ["libplanted.so.1"]


def test_a_library_that_was_unlinked_is_listed_once(tmp_path: Path) -> None:
    """The kernel marks its path; neither name nor path is another one for that."""
    from harness.facts.libraries import library_facts, mapped_libraries

    path = tmp_path / "libplanted.so.1"
    path.write_bytes(b"planted")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        path.unlink()
        mapped = [one for one in mapped_libraries() if one.startswith(str(tmp_path))]
    found = library_facts([str(path), *mapped])
    assert mapped == [f"{path} (deleted)"]
    assert found["loaded_libraries"] == ["libplanted.so.1 unreadable"]
    assert found["loaded_paths"] == [f"libplanted.so.1 {path}"]


def wrapper(folder: Path, words: str) -> str:
    """Write a `python3` that starts this interpreter through other programs, as an image may."""
    path = folder / "bin" / "python3"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec {words} {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(len(CPUS) == 1, reason="one CPU is no choice")
def test_worker_keeps_how_the_python_of_an_image_starts_it(
    start: Start, toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPUs that an image allows hold; what a login allows is set alike in all arms."""
    python = wrapper(tmp_path, f"nice -n 5 taskset -c {CPUS[0]}")
    found = start(python).ask("hello", workload=toy, cpus=CPUS[:2])["fingerprint"]
    assert found["cpu.affinity"] == CPUS[:2]
    monkeypatch.setenv("ENVCOMPARE_PYTHON", "python3")
    found = start(python).ask("hello", workload=toy, cpus=CPUS[:2])["fingerprint"]
    assert found["cpu.affinity"] == CPUS[:1]
    assert found["process.nice"] == os.getpriority(os.PRIO_PROCESS, 0) + 5
    assert (found["process.scheduler"], found["thp.is_disabled"]) == ("other", False)


@pytest.mark.skipif(len(CPUS) == 1, reason="one CPU is no choice")
def test_worker_that_an_image_starts_on_other_cpus_is_refused(
    start: Start, toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no CPU that both the image and the run allow."""
    monkeypatch.setenv("ENVCOMPARE_PYTHON", "python3")
    worker = start(wrapper(tmp_path, f"taskset -c {CPUS[1]}"))
    reply = worker.ask("hello", workload=toy, cpus=CPUS[:1])["error"]
    expected = f"cannot run on CPUs {CPUS[:1]}: the image's python3 runs on {CPUS[1:2]}"
    assert reply["brief"] == expected
    assert "--pin" in reply["hint"]


def test_command_of_an_image_runs_the_python_of_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wrapper is in effect, and the watch sees priority and CPUs of what computes."""
    python = wrapper(tmp_path, f"nice -n 5 taskset -c {CPUS[0]}")
    monkeypatch.setenv("PATH", str(Path(python).parent), prepend=os.pathsep)
    monkeypatch.setenv("ENVCOMPARE_PYTHON", "python3")
    program = "import time; until = time.monotonic() + 0.5\nwhile time.monotonic() < until: pass"
    work = {"argv": ["python3", "-c", program], "cwd": str(tmp_path), "cpus": None}
    request = {"op": "command", **work, "patterns": {}, "limit_s": 30, "watch": True}
    argv = [sys.executable, str(WORKER.with_name("measuring.py"))]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as done:
        assert done.stdin
        assert done.stdout
        done.stdin.write(json.dumps(request) + "\n")
        done.stdin.flush()
        found = json.loads(done.stdout.readline())["fingerprint"]
    assert found["process.nice"] == os.getpriority(os.PRIO_PROCESS, 0) + 5
    assert found["cpu.affinity"] == CPUS[:1]


def test_the_python_of_an_image_is_hashed_with_the_wrapper_around_it(tmp_path: Path) -> None:
    """A command's `python` is what the image's PATH leads to, and it may have changed."""
    path = Path(wrapper(tmp_path, "nice -n 5"))
    path.with_name("python").symlink_to(path)
    request = {"op": "look", "argv": ["python", "-c", "1"], "cwd": str(tmp_path), "cpus": None}
    found = []
    for end in ("", "# changed\n"):
        path.write_text(path.read_text() + end)
        done = subprocess.run(
            [sys.executable, str(WORKER.with_name("measuring.py"))],
            input=json.dumps(request) + "\n", capture_output=True, text=True, check=True,
            env={**os.environ, "ENVCOMPARE_PYTHON": "python3",
                 "PATH": f"{path.parent}:{os.environ['PATH']}"},
        )  # fmt: skip
        found.append(json.loads(done.stdout)["programs"]["python"])
    assert found[0] != found[1]


MALLOC = """
#include <stddef.h>
extern void *__libc_malloc(size_t);
void *malloc(size_t size) { return __libc_malloc(size); }
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not there to build the library")
def test_a_library_that_replaces_malloc_is_told_by_the_loader(tmp_path: Path) -> None:
    """Whatever it is called, and wherever it is named."""
    library = tmp_path / "libharmless.so"
    argv = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(library)]
    subprocess.run(argv, input=MALLOC, text=True, check=True)
    ask = "from harness.facts import interposing as i; print(*i.interposing()['preload.replaces'])"
    said = []
    for preload in ("", str(library)):
        variables = {**os.environ, "PYTHONPATH": str(WORKER.parents[1]), "LD_PRELOAD": preload}
        done = subprocess.run(
            [sys.executable, "-c", ask], env=variables, capture_output=True, text=True, check=True
        )
        said.append(done.stdout.strip())
    assert said == ["", "libharmless.so malloc"]


def test_a_launcher_tells_of_modules_that_it_does_not_import() -> None:
    """What a command imports is not seen from outside: all of the library is told."""
    every = module_facts(every=True)["python.modules"]
    imported = module_facts()["python.modules"]
    assert {one.partition(" ")[0] for one in every} >= {"json/decoder.py", "xml/dom/minidom.py"}
    assert set(imported) & set(every)
    assert not any(one.startswith("test/") for one in every)


@pytest.mark.parametrize("change", ["none", "touched", "removed"])
def test_a_module_counts_as_compiled_where_python_takes_its_byte_code(
    tmp_path: Path, change: str
) -> None:
    """Byte code of an older source is compiled anew at each start, as if there were none."""
    source = tmp_path / "a.py"
    source.write_text("x = 1")
    code = Path(py_compile.compile(str(source)))
    if change == "touched":
        os.utime(source, (0, 0))
    elif change == "removed":
        code.unlink()
    assert is_compiled(str(source)) == (change == "none")
