"""Which build of the wheels a host gets: for the CPU alone, or with CUDA where it has a GPU."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable

from envcompare.config.settings import Variant
from envcompare.environments.gpu import driver_version
from envcompare.errors import StackError
from envcompare.transport import Transport
from envcompare.transport.operations import shell

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where PyTorch itself offers the builds without CUDA."""

_PIN = re.compile(r"^(torch|torchvision)==([^\s;#+]+)", re.MULTILINE)
_RUNTIME = re.compile(r"nvidia_cuda_runtime(?:_cu\d+)?-(\d+)\.(\d+)")
# NVIDIA, CUDA Compatibility, table 1: what each major version of CUDA runs on at least
# (docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


def chosen(wish: Variant, *, has_gpu: bool) -> Variant:
    """Return the variant for a host; `auto` is decided by whether its GPU may be used."""
    if wish != "auto":
        return wish
    return "cuda" if has_gpu else "cpu"


def constraints(requirements: str, variant: Variant) -> str:
    """Return what pip must be told beside the requirements, so that it takes this variant.

    The builds of PyTorch differ in their local version: 2.13.0+cpu has no CUDA. `==2.13.0` takes
    either, `===2.13.0` the plain one alone. Without a pinned torch there is nothing to tell.
    """
    pins = dict(_PIN.findall(requirements))
    if variant == "cpu" and "torch" in pins:
        return f"torch=={pins['torch']}+cpu\n"
    if variant == "cuda":
        return "".join(f"{name}==={version}\n" for name, version in sorted(pins.items()))
    return ""


def cuda_version(wheels: Iterable[str]) -> tuple[int, int] | None:
    """Return the version of CUDA that is among the wheels; None where there is none."""
    found = next((match for name in wheels if (match := _RUNTIME.match(name))), None)
    return (int(found[1]), int(found[2])) if found else None


def check_driver(transport: Transport, wheels: Iterable[str]) -> None:
    """Raise StackError where the host's driver is too old for the CUDA of the wheels.

    A driver or a version of CUDA that is not known is left to PyTorch itself.
    """
    cuda = cuda_version(wheels)
    oldest = _OLDEST_DRIVER.get(cuda[0]) if cuda else None
    if cuda is None or oldest is None:
        return
    driver = driver_version(shell(transport, "cat /proc/driver/nvidia/version").stdout)
    if driver and int(driver.split(".")[0]) < oldest:
        raise StackError(
            f"the NVIDIA driver of {transport.name} is too old for the wheels",
            details=f"they bring CUDA {cuda[0]}.{cuda[1]}, and NVIDIA names driver {oldest} as the "
            f"oldest for CUDA {cuda[0]}; it has {driver}",
            hint="install a newer driver there, or use --variant cpu",
        )


def check_machine(transport: Transport) -> None:
    """Raise StackError where the host is of another architecture than the wheels resolved here."""
    there, here = shell(transport, "uname -m").stdout.strip(), platform.machine()
    if there and there != here:
        raise StackError(
            f"there are no wheels for {transport.name}",
            details=f"it is {there}, and the wheels resolved on this machine are for {here}",
            hint=f"run envcompare from a machine that is {there}, or use the stack host",
        )


def is_missing_build(said: str) -> bool:
    """Tell whether pip failed since it found no such build of PyTorch, and not for another reason.

    A pin that no file fits is said in the one way, two pins that no file fits both in the other.
    """
    lines = [line for line in said.splitlines() if "torch==" in line]
    return bool(lines) and any(
        words in said for words in ("No matching distribution found", "ResolutionImpossible")
    )
