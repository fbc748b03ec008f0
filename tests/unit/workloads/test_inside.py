"""The fingerprint that a worker takes from inside."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from conversation import Start

KEYS = """
python.version python.implementation python.executable python.sha256 python.flags libc.version
os.release kernel.release arch cpu.model cpu.flags_sha256 cpu.count cpu.affinity cpu.governor
smt.active numa.nodes memory.total_bytes thp torch.version torch.git torch.cuda torch.cudnn
torch.build_sha256 torch.threads torch.interop_threads torch.tf32_matmul torch.tf32_cudnn
torch.deterministic torch.cudnn_benchmark torchvision.version numpy.version packages
site_packages.sha256 loaded_libraries threads.omp threads.mkl threads.openblas
allocator.ld_preload limits.nofile limits.stack limits.memlock shm.bytes seccomp.mode no_new_privs
speculation.ssb speculation.indirect_branch capabilities.effective cgroup.version cgroup.cpu_quota
cgroup.cpu_weight cgroup.cpuset cgroup.memory_limit_bytes uid gpu.name gpu.uuid gpu.driver
gpu.memory_bytes
"""


def test_fingerprint_has_every_key_and_knows_this_machine(start: Start, toy: str) -> None:
    """Keys are there even where nothing could be measured; what can be checked here agrees."""
    found = start().ask("hello", workload=toy, threads=2, cpus=[0])["fingerprint"]
    assert set(KEYS.split()) <= set(found)
    assert found["uid"] == os.getuid()
    assert found["python.version"] == ".".join(map(str, sys.version_info[:3]))
    assert found["kernel.release"] == os.uname().release
    assert found["cpu.affinity"] == [0]
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


def test_content_hash_sees_both_ends_of_a_large_file(tmp_path: Path) -> None:
    """A large library is known by its size and its ends; a small one by all of it."""
    from libraries import content_hash

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
