"""The PyTorch for a host: the newest whose wheels fit its driver, its GPUs and its Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from envcompare import bundled
from envcompare.config.arms import Variant
from envcompare.errors import StackError
from envcompare.gpu.devices import Capability, HostGpu, HostGpus

_OLDEST_DRIVER: Final = {12: 525, 13: 580}
"""What each major version of CUDA runs on at least: NVIDIA, CUDA Compatibility, table 1
(docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html)."""
_TURING: Final = (7, 5)
_LAST_BEFORE_TURING: Final = 580
"""The last branch of the driver for Maxwell, Pascal and Volta: NVIDIA, Unix graphics feature
deprecation schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One release of PyTorch, as in its plain wheels on PyPI.

    The architectures come from the wheel (the flags compiled into `libtorch_python.so`), the
    Pythons are those with wheels on PyPI.
    """

    name: Variant
    torch: str  # as pinned in its requirements
    cuda: Capability
    architectures: tuple[Capability, ...]
    pythons: tuple[str, ...]

    @property
    def requirements(self) -> Path:
        """Return the file with what every arm imports."""
        return bundled.workloads() / "requirements" / f"{self.name}.in"

    @property
    def oldest_driver(self) -> int:
        """Return the oldest branch of the driver that runs this CUDA."""
        return _OLDEST_DRIVER[self.cuda[0]]

    def has_code_for(self, capability: Capability) -> bool:
        """Say whether the wheels have code for a GPU.

        Machine code of a lower minor version runs on a GPU of the same major version (NVIDIA, CUDA
        C++ Programming Guide, Binary Compatibility). Compiling PTX is left out: it needs a driver
        as new as the wheel's CUDA.
        """
        return any(
            major == capability[0] and minor <= capability[1] for major, minor in self.architectures
        )


_TURING_ON: Final = ((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))
_SINCE_310: Final = ("3.10", "3.11", "3.12", "3.13")
TIERS: Final = (
    Tier(
        name="cu130",
        torch="2.13.0",
        cuda=(13, 0),
        architectures=_TURING_ON,
        pythons=(*_SINCE_310, "3.14"),
    ),
    Tier(
        name="cu128",
        torch="2.10.0",
        cuda=(12, 8),
        architectures=((7, 0), *_TURING_ON),
        pythons=(*_SINCE_310, "3.14"),
    ),
    Tier(
        name="cu126",
        torch="2.7.1",
        cuda=(12, 6),
        architectures=((5, 0), (6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (9, 0)),
        pythons=_SINCE_310,
    ),
)
"""From the newest PyTorch to the oldest; `script/wheel-facts` compares them with the index."""
PYTHONS: Final = TIERS[0].pythons
FALLBACK: Final = "3.11"
"""The Python of the wheels if the host has none that they support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The wheels for a host, and the sentence with the reason."""

    tier: Tier
    is_cpu: bool
    sentence: str

    @property
    def variant(self) -> Variant:
        """Return the name of the variant: that of the tier, or "cpu"."""
        return "cpu" if self.is_cpu else self.tier.name


CPU: Final = Choice(tier=TIERS[0], is_cpu=True, sentence=f"torch {TIERS[0].torch} for the CPU")
"""The wheels of software made without a session on a host."""


def choose(wish: Variant, gpus: HostGpus | None, *, python: str, host: str) -> Choice:
    """Return the wheels for a host; `gpus` is None if no GPU is used.

    They fit the GPUs that CUDA shows to a workload. Raises StackError if no wheels fit, before any
    download.
    """
    by_name = {tier.name: tier for tier in TIERS}
    if wish == "cpu" or (wish == "auto" and (gpus is None or not gpus.is_expected)):
        why = "no GPU is to be used" if gpus is None else "no NVIDIA GPU was found"
        return _for_cpu(python, host, why=why)
    tiers = (by_name[wish],) if wish in by_name else TIERS
    known = msgspec.structs.replace(gpus, gpus=gpus.visible_gpus) if gpus else HostGpus()
    fitting = [tier for tier in tiers if not _lacks(tier, known, python)]
    if not fitting:
        raise _unfit(tiers, known, python=python, host=host)
    tier = fitting[0]
    return Choice(tier=tier, is_cpu=False, sentence=_sentence(tier, known))


def _for_cpu(python: str, host: str, *, why: str) -> Choice:
    tier = TIERS[0]
    if python not in tier.pythons:
        raise StackError(
            f"there are no wheels of torch {tier.torch} for Python {python} ({host})",
            details=f"PyPI has them for Python {', '.join(tier.pythons)}",
            hint=f"name one of these with --python, such as --python {tier.pythons[-2]}",
        )
    return Choice(tier=tier, is_cpu=True, sentence=f"{why}: torch {tier.torch} for the CPU")


def _sentence(tier: Tier, gpus: HostGpus) -> str:
    cuda = f"torch {tier.torch} with CUDA {_dotted(tier.cuda)}"
    known = []
    if gpus.driver:
        known.append(f"driver {gpus.driver} supports CUDA {newest_major(gpus.driver)}")
    known += [
        f"{gpu.name} has compute capability {_dotted(gpu.capability)}"
        for gpu in dict.fromkeys(gpus.gpus)
        if gpu.capability
    ]
    return f"{', '.join(known)}: {cuda}" if known else cuda


def newest_major(driver: str) -> int:
    """Return the newest major version of CUDA that a driver such as "570.86.10" brings."""
    branch = int(driver.partition(".")[0])
    return max((cuda for cuda, oldest in _OLDEST_DRIVER.items() if branch >= oldest), default=11)


def _lacks(tier: Tier, gpus: HostGpus, python: str) -> tuple[str, ...]:
    """Return why wheels do not fit; PyTorch itself checks unknown properties."""
    lacks = []
    if _is_driver_too_old(tier, gpus):
        lacks.append(
            f"CUDA {tier.cuda[0]} needs driver {tier.oldest_driver} or newer, not {gpus.driver}"
        )
    lacks += [
        f"they hold no code for {gpu.name} (compute capability {_dotted(gpu.capability)})"
        for gpu in _without_code(tier, gpus)
        if gpu.capability
    ]
    if python not in tier.pythons:
        lacks.append(f"PyPI has none for Python {python}")
    return tuple(lacks)


def _is_driver_too_old(tier: Tier, gpus: HostGpus) -> bool:
    return gpus.driver is not None and int(gpus.driver.partition(".")[0]) < tier.oldest_driver


def _without_code(tier: Tier, gpus: HostGpus) -> tuple[HostGpu, ...]:
    return tuple(
        gpu
        for gpu in dict.fromkeys(gpus.gpus)
        if gpu.capability and not tier.has_code_for(gpu.capability)
    )


def _unfit(tiers: tuple[Tier, ...], gpus: HostGpus, *, python: str, host: str) -> StackError:
    """Return the error that lists for each tier why it does not fit, with a remedy."""
    lacks = {tier: _lacks(tier, gpus, python) for tier in tiers}
    reasons = (f"torch {tier.torch} (CUDA {_dotted(tier.cuda)}): {'; '.join(why)}"
            for tier, why in lacks.items())  # fmt: skip
    others = [tier.name for tier in TIERS if tier not in tiers and not _lacks(tier, gpus, python)]
    served = [tier for tier in tiers if not _without_code(tier, gpus)]
    if others:
        hint = f"leave out --variant, or use --variant {others[0]}"
    elif served:
        hint = _mend(served, gpus, python)
    else:
        hint = _serve_another(tiers, gpus)
    return StackError(f"no wheels of PyTorch fit {host}", details=". ".join(reasons), hint=hint)


def _mend(served: list[Tier], gpus: HostGpus, python: str) -> str:
    """Name the driver or Python, or both, that these tiers need."""
    pythons = [tier for tier in served if python not in tier.pythons]
    is_python = len(pythons) == len(served)
    other = f"name another Python, such as --python {pythons[0].pythons[-1]}" if is_python else ""
    if is_python and not all(_is_driver_too_old(tier, gpus) for tier in served):
        return other
    oldest = min(tier.oldest_driver for tier in served)
    which = (
        f"{oldest} to {_LAST_BEFORE_TURING}" if _is_before_turing(gpus) else f"{oldest} or newer"
    )
    also = f" and {other}" if is_python else ""
    return f"install driver {which} there{also}, or measure on the CPU with --device cpu"


def _serve_another(tiers: tuple[Tier, ...], gpus: HostGpus) -> str:
    """Return what to do if no tier has code for all the GPUs."""
    alone = (msgspec.structs.replace(gpus, gpus=(gpu,)) for gpu in gpus.gpus)
    if any(not _without_code(tier, gpu) for gpu in alone for tier in tiers):
        return (
            "set CUDA_VISIBLE_DEVICES there to the UUID of the GPU to measure (nvidia-smi -L), "
            "or measure on the CPU with --device cpu"
        )
    if any(not _without_code(tier, gpus) for tier in TIERS):
        return "leave out --variant, or measure on the CPU with --device cpu"
    return "measure on the CPU with --device cpu, or use another GPU"


def _is_before_turing(gpus: HostGpus) -> bool:
    return any(gpu.capability and gpu.capability < _TURING for gpu in gpus.gpus)


def _dotted(version: Capability) -> str:
    return f"{version[0]}.{version[1]}"
