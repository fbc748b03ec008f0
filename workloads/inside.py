"""The fingerprint: what software and limits a worker found around itself; None is not measured."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import resource
import sys
import sysconfig
from typing import Any, Callable

import torchfacts
from cgroups import limits, read_text
from libraries import content_hash, installed_packages, loaded_libraries

ALLOWED_ENV = re.compile(
    r"(OMP|MKL|OPENBLAS|MALLOC|NVIDIA|TORCH|CUBLAS|NCCL)_\w+"
    r"|LD_PRELOAD|LD_LIBRARY_PATH|PYTHONHASHSEED|PYTHONMALLOC|CUDA_VISIBLE_DEVICES"
)
# An allowed prefix can carry a secret (NVIDIA_API_KEY): such names are left out.
SECRET_WORDS = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH")


def fingerprint(*, threads: int, device: str) -> dict[str, Any]:
    """Return flat dotted keys; it never raises, and takes about 0.2 s with PyTorch loaded."""
    parts: tuple[Callable[[], dict[str, Any]], ...] = (
        _python,
        _system,
        _cpu,
        _memory,
        limits,
        _limits,
        _process,
        _environment,
        lambda: {"packages": installed_packages(), "site_packages.sha256": None},
        lambda: {"loaded_libraries": loaded_libraries()},
        lambda: torchfacts.versions(threads),
        torchfacts.settings,
        lambda: torchfacts.gpu(device),
    )
    found: dict[str, Any] = {}
    for part in parts:
        found.update(attempt(part) or {})
    return dict(sorted(found.items()))


def attempt(read: Callable[[], Any]) -> Any:  # noqa: ANN401  whatever is read
    """Return what `read` returns, or None where it raises: a fingerprint has gaps, not failures."""
    try:
        return read()
    except Exception:  # noqa: BLE001  each host lacks something else
        return None


def _python() -> dict[str, Any]:
    executable = os.path.realpath(sys.executable)
    return {
        "python.version": platform.python_version(),
        "python.implementation": sys.implementation.name,
        "python.executable": executable,
        "python.sha256": attempt(lambda: content_hash(executable, sampled=False)),
        "python.flags": attempt(lambda: sysconfig.get_config_var("CONFIG_ARGS")),
    }


def _system() -> dict[str, Any]:
    system = os.uname()
    return {
        "arch": system.machine,
        "kernel.release": system.release,
        "libc.version": attempt(lambda: os.confstr("CS_GNU_LIBC_VERSION")),
        "os.release": attempt(_os_release),
    }


def _os_release() -> str | None:
    for line in (read_text("/etc/os-release") or "").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip("\"'")
    return None


def _cpu() -> dict[str, Any]:
    info = (read_text("/proc/cpuinfo") or "").split("\n\n")[0]
    fields = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", info, re.MULTILINE))
    flags = fields.get("flags") or fields.get("Features")  # the word on x86, the word on ARM
    devices = "/sys/devices/system/cpu"
    return {
        "cpu.model": fields.get("model name"),
        "cpu.flags_sha256": flags and _sha256(" ".join(sorted(flags.split()))),
        "cpu.count": os.cpu_count(),
        "cpu.affinity": attempt(lambda: sorted(os.sched_getaffinity(0))),
        "cpu.governor": read_text(f"{devices}/cpu0/cpufreq/scaling_governor"),
        "smt.active": attempt(lambda: bool(int(read_text(f"{devices}/smt/active") or ""))),
        "numa.nodes": attempt(_numa_nodes),
    }


def _numa_nodes() -> int | None:
    nodes = [name for name in os.listdir("/sys/devices/system/node") if name[4:].isdigit()]
    return len(nodes) or None


def _memory() -> dict[str, Any]:
    total = re.search(r"MemTotal:\s+(\d+) kB", read_text("/proc/meminfo") or "")
    huge = re.search(r"\[(\w+)\]", read_text("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    return {
        "memory.total_bytes": int(total[1]) * 1024 if total else None,
        "thp": huge[1] if huge else None,
        "shm.bytes": attempt(_shared_memory_bytes),
    }


def _shared_memory_bytes() -> int:
    disk = os.statvfs("/dev/shm")  # noqa: S108  its size is asked for
    return disk.f_frsize * disk.f_blocks


def _limits() -> dict[str, Any]:
    kinds = {
        "limits.nofile": resource.RLIMIT_NOFILE,
        "limits.stack": resource.RLIMIT_STACK,
        "limits.memlock": resource.RLIMIT_MEMLOCK,
    }
    soft = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    none = resource.RLIM_INFINITY
    return {name: "unlimited" if value == none else value for name, value in soft.items()}


def _process() -> dict[str, Any]:
    status = read_text("/proc/self/status") or ""
    fields = dict(re.findall(r"^(\w+):\s*(.*)$", status, re.MULTILINE))
    return {
        "uid": os.getuid(),
        "seccomp.mode": attempt(lambda: int(fields["Seccomp"])),
        "no_new_privs": attempt(lambda: bool(int(fields["NoNewPrivs"]))),
        "capabilities.effective": fields.get("CapEff"),
        "speculation.ssb": fields.get("Speculation_Store_Bypass"),
        "speculation.indirect_branch": fields.get("SpeculationIndirectBranch"),
    }


def _environment() -> dict[str, Any]:
    """Return the variables of the allow-list alone: others may be secret."""
    kept = {
        f"env.{name}": value
        for name, value in os.environ.items()
        if ALLOWED_ENV.fullmatch(name) and not SECRET_WORDS.search(name)
    }
    return {
        **kept,
        "allocator.ld_preload": os.environ.get("LD_PRELOAD"),
        "threads.omp": attempt(lambda: int(os.environ["OMP_NUM_THREADS"])),
        "threads.mkl": attempt(lambda: int(os.environ["MKL_NUM_THREADS"])),
        "threads.openblas": attempt(lambda: int(os.environ["OPENBLAS_NUM_THREADS"])),
    }


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
