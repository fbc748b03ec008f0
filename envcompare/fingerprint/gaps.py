"""What it means that a fingerprint has no value for a fact."""

from __future__ import annotations

from typing import Final

from envcompare.fingerprint.classes import longest_rule

NOT_SET: Final = "not set"
# None is a value of these: the variable they are read from is not there.
_VARIABLES: Final = (
    "env", "allocator.ld_preload", "allocator.tunables", "gpu.visible", "threads.omp",
    "threads.mkl", "threads.openblas",
)  # fmt: skip
_REASONS: Final[dict[str, str]] = {
    "allocator": "no known C library was seen to be loaded",
    "cgroup": "no such control group is shown",
    "cgroup.io_weight": "no control group shows a weight of I/O",
    "cpu.boost": "the kernel shows no clock control, as in many virtual machines",
    "cpu.governor": "the kernel shows no clock control, as in many virtual machines",
    "cuda": "the process that was asked loaded no such library",
    "gpu": "the process that was asked uses no GPU, or the driver does not say",
    "loaded_libraries": "the command was not seen while it ran",
    "loaded_packages": "of a plain command it is not seen",
    "loaded_paths": "the command was not seen while it ran",
    "lsm": "no security module gives one",
    "mount.data": "no data was given",
    "numpy": "the process that was asked did not import it",
    "packages.outside": "of a plain command it is not seen",
    "programs": "the command was not seen while it ran",
    "python.libpython_sha256": "the interpreter loads none",
    "site_packages": "what is installed could not be hashed",
    "thp.is_disabled": "the kernel does not say, as before Linux 5.0",
    "threads.alive": "of a plain command it is not seen",
    "torch": "the process that was asked did not import it",
    "torch.cuda": "torch is built without it, or was not imported where it was asked",
    "torchvision": "the process that was asked did not import it",
}


def missing_reason(key: str) -> str:
    """Return why a fact has no value, NOT_SET for one that is none; empty where it is not known."""
    if longest_rule(key, _VARIABLES):
        return NOT_SET
    return _REASONS.get(longest_rule(key, _REASONS), "")
