"""The classes of a difference, by the key of the fact alone.

*Identity* tells the arms apart, *host* cannot differ on one host, *varied* is what an environment
does on purpose, a *confounder* is software or a setting that can change the speed by itself, and a
*possible influence* is everything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from envcompare.run_folder.records import FactClass

CLASS_ORDER: Final[tuple[FactClass, ...]] = (
    "confounder", "possible-influence", "host", "varied", "identity",
)  # fmt: skip

EXPLAINING: Final[tuple[FactClass, ...]] = CLASS_ORDER[:2]
"""What may explain a difference in speed, beside what an environment does on purpose."""

MEANINGS: Final[dict[FactClass, str]] = {
    "identity": "Tells the arms apart; it cannot change the speed.",
    "host": "Cannot differ on one host: this arm is shown something else than the host itself.",
    "varied": "The environment does this on purpose; it belongs to what is compared.",
    "confounder": "A difference in speed is then real; its cause cannot be told apart.",
    "possible-influence": "It may change the speed; whether it does here is not known.",
}

_KEYS_BY_CLASS: Final[dict[FactClass, tuple[str, ...]]] = {
    "identity": (
        "pid", "hostname", "python.executable", "loaded_paths", "image.id", "image.digest",
        "sif.sha256",
    ),
    "host": (
        "cpu", "smt", "numa", "memory", "arch", "kernel", "cgroup.version", "vulnerabilities",
    ),
    "varied": (
        "cgroup", "seccomp", "no_new_privs", "speculation", "capabilities", "lsm", "uid", "gid",
        "limits", "shm", "os", "mount", "env.HOME", "env.PATH", "env.NVIDIA",
    ),
    "confounder": (
        "python", "libc", "torch", "torchvision", "numpy", "cuda", "packages", "site_packages",
        "lock", "loaded_libraries", "programs", "threads", "allocator", "gpu", "env.OMP",
        "env.GOMP", "env.KMP", "env.MKL", "env.OPENBLAS", "env.CUBLAS", "env.MALLOC", "env.GLIBC",
        "env.LD_PRELOAD", "env.PYTHONMALLOC", "env.ONEDNN", "env.DNNL", "env.MKLDNN",
        "env.ATEN_CPU_CAPABILITY", "process", "thp.is_disabled",
    ),
    "possible-influence": (
        "cgroup.cpu_quota", "cgroup.cpu_weight", "cgroup.cpuset", "cgroup.memory_limit_bytes",
        "cpu.affinity", "threads.alive", "thp", "gpu.visible", "gpu.count", "loaded_packages",
        "packages.not_imported",
    ),
}  # fmt: skip
_RULES: Final = {key: found for found, keys in _KEYS_BY_CLASS.items() for key in keys}


def classify(key: str) -> FactClass:
    """Return the class of a fact by its key alone; an unknown key is a possible influence.

    A rule holds for its key and for those below it, `env.OMP` for `env.OMP_NUM_THREADS`; the
    longest rule counts.
    """
    rule = longest_rule(key, _RULES)
    return _RULES[rule] if rule else "possible-influence"


def longest_rule(key: str, rules: Iterable[str]) -> str:
    """Return the longest of the rules that hold for a key; empty where none does."""
    found = (rule for rule in rules if key == rule or key.startswith((f"{rule}.", f"{rule}_")))
    return max(found, key=len, default="")
