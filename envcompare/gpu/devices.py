"""The NVIDIA GPUs of a host: what its driver says of them, and what stands on its PCI bus.

The bus tells of a GPU that the driver cannot be asked about: the device ID stands for a chip, and
the chip for a compute capability. The table, with its sources, is `envcompare/data/pci_gpus.json`.
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Final

import msgspec

Capability = tuple[int, int]
"""A compute capability: (7, 5) is 7.5."""

SURVEY: Final = r"""
cat /proc/driver/nvidia/version 2>/dev/null | sed 's/^/driver /'
cat /sys/module/nvidia/version 2>/dev/null | sed 's/^/module /'
for device in /sys/bus/pci/devices/*; do
  [ "$(cat "$device/vendor" 2>/dev/null)" = 0x10de ] || continue
  printf 'bus %s %s\n' "$(cat "$device/class")" "$(cat "$device/device")"
done
if command -v nvidia-smi >/dev/null; then
  limit=; ! command -v timeout >/dev/null || limit='timeout 20'
  $limit nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null |
    sed 's/^/smi /'
fi
exit 0
"""
"""A program for `sh` that prints what `read_survey` reads."""

# "NVIDIA UNIX x86_64 Kernel Module  535.104.05  ..." and the open module's
# "NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build ..."
_VERSION: Final = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_MODULE: Final = re.compile(r"module (\d+(?:\.\d+)+)")
# Class 0x03: a display controller; that of a compute GPU is 0x0302. Audio and USB stand beside it.
_BUS: Final = re.compile(r"bus 0x03[0-9a-f]{4} 0x([0-9a-f]{4})")
_SMI: Final = re.compile(r"smi (.+), (\d+)\.(\d+)")


class HostGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a host; its compute capability is None where it is not known."""

    name: str
    capability: Capability | None = None


CLOCK_LIMITS: Final = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat, by software",
    0x40: "heat, by hardware",
    0x80: "power brake",
}
"""nvmlClocksThrottleReasons that hold the clocks down; idleness and a clock set by hand do not."""


def held_down(mask: int) -> tuple[str, ...]:
    """Return what holds the clocks of a GPU down, from the reasons that its driver reports."""
    return tuple(words for bit, words in CLOCK_LIMITS.items() if mask & bit)


class HostGpus(msgspec.Struct, frozen=True, kw_only=True):
    """What a host has: the version of its driver, None without one, and its GPUs."""

    driver: str | None = None
    on_bus: int = 0
    gpus: tuple[HostGpu, ...] = ()

    @property
    def is_expected(self) -> bool:
        """Say whether a GPU is there to be used: one is on the bus, or a driver is loaded."""
        return bool(self.on_bus or self.driver)


class _Block(msgspec.Struct, frozen=True):
    chip: str
    first: str
    last: str
    compute_capability: str


class _Table(msgspec.Struct, frozen=True):
    blocks: tuple[_Block, ...]
    names: dict[str, str]


def driver_version(text: str) -> str | None:
    """Read the driver's version from the text of /proc/driver/nvidia/version."""
    match = _VERSION.search(text)
    return match[1] if match else None


def read_survey(text: str) -> HostGpus:
    """Read what the program SURVEY printed; `nvidia-smi` goes before the PCI bus."""
    lines = text.splitlines()
    module = next((match[1] for line in lines if (match := _MODULE.fullmatch(line))), None)
    on_bus = tuple(on_bus_as(match[1]) for line in lines if (match := _BUS.fullmatch(line)))
    asked = tuple(
        HostGpu(name=match[1], capability=(int(match[2]), int(match[3])))
        for line in lines
        if (match := _SMI.fullmatch(line))
    )
    return HostGpus(driver=driver_version(text) or module, on_bus=len(on_bus), gpus=asked or on_bus)


def on_bus_as(device_id: str) -> HostGpu:
    """Return the GPU that a PCI device ID such as "1eb8" stands for."""
    table = _table()
    block = next((block for block in table.blocks if block.first <= device_id <= block.last), None)
    if block is None:
        return HostGpu(name=f"the GPU with PCI device ID {device_id}")
    major, minor = block.compute_capability.split(".")
    name = table.names.get(device_id, f"the GPU with PCI device ID {device_id} ({block.chip})")
    return HostGpu(name=name, capability=(int(major), int(minor)))


@functools.cache
def _table() -> _Table:
    data = (resources.files("envcompare") / "data" / "pci_gpus.json").read_bytes()
    return msgspec.json.decode(data, type=_Table)
