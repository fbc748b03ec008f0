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

ON_BUS: Final = r"""
[ ! -e /proc/driver/nvidia/version ] || sed 's/^/driver /' /proc/driver/nvidia/version
[ ! -e /sys/module/nvidia/version ] || sed 's/^/module /' /sys/module/nvidia/version
for device in /sys/bus/pci/devices/*; do
  [ -r "$device/vendor" ] && read -r vendor <"$device/vendor" || continue
  [ "$vendor" != 0x10de ] || printf 'bus %s %s\n' "$(cat "$device/class")" "$(cat "$device/device")"
done
"""
"""The first part of SURVEY: it starts no program that could wait for a broken driver."""
SURVEY: Final = (
    ON_BUS
    + r"""
! visible=$(printenv CUDA_VISIBLE_DEVICES) || printf 'visible %s\n' "$visible"
! order=$(printenv CUDA_DEVICE_ORDER) || printf 'order %s\n' "$order"
command -v nvidia-smi >/dev/null || exit 0
limit=; ! command -v timeout >/dev/null || limit='timeout -s KILL 20'
listed=$($limit nvidia-smi -L 2>/dev/null) || exit 0
printf '%s\n' "$listed" | sed 's/^/listed /'
query() { $limit nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null; }
query name,compute_cap | sed 's/^/smi /'
state=index,uuid,compute_mode,mig.mode.current
{
  query "$state,clocks_event_reasons.active" || # as drivers from 535 on call it
  query "$state,clocks_throttle_reasons.active"
} | sed 's/^/state /'
exit 0
"""
)
"""A program for `sh` that prints what `read_survey` reads."""

# "NVIDIA UNIX x86_64 Kernel Module  535.104.05  ..." and the open module's
# "NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build ..."
_VERSION: Final = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_MODULE: Final = re.compile(r"module (\d+(?:\.\d+)+)")
# Class 0x03: a display controller; that of a compute GPU is 0x0302. Audio and USB stand beside it.
_BUS: Final = re.compile(r"bus 0x03[0-9a-f]{4} 0x([0-9a-f]{4})")
_SMI: Final = re.compile(r"smi (.+), (\d+)\.(\d+)")
# A field that a GPU does not have is "[N/A]", and "[Not Supported]" with older drivers.
_STATE: Final = re.compile(r"state (\d+), (\S+), ([^,]+), ([^,]+), (0x[0-9a-fA-F]+|.*)")
_LISTED: Final = re.compile(r"listed (?:GPU (\d+): (.*) |\s+MIG .*)\(UUID: (\S+)\)")


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


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """How a GPU is set up and what holds its clocks down, as nvidia-smi says."""

    index: int
    uuid: str
    name: str = ""
    compute_mode: str = "Default"
    has_mig: bool = False  # MIG is on
    instances: tuple[str, ...] = ()  # UUIDs of the MIG devices that it is divided into
    throttling: tuple[str, ...] = ()


class HostGpus(msgspec.Struct, frozen=True, kw_only=True):
    """What a host has: the version of its driver, None without one, and its GPUs."""

    driver: str | None = None
    on_bus: int = 0
    gpus: tuple[HostGpu, ...] = ()
    states: tuple[GpuState, ...] = ()
    visible: str | None = None  # the login's CUDA_VISIBLE_DEVICES
    order: str | None = None  # its CUDA_DEVICE_ORDER

    @property
    def is_expected(self) -> bool:
        """Say whether a GPU is there to be used: on the bus, by its driver or by nvidia-smi."""
        return bool(self.on_bus or self.driver or self.gpus)

    @property
    def is_order_known(self) -> bool:
        """Say whether CUDA numbers the GPUs as nvidia-smi does.

        Unless CUDA_DEVICE_ORDER is PCI_BUS_ID, it begins with the fastest (NVIDIA, CUDA C++
        Programming Guide, Environment Variables).
        """
        return self.order == "PCI_BUS_ID" or len({state.name for state in self.states}) < 2

    @property
    def measured(self) -> GpuState | None:
        """Return the GPU that a workload uses, the first that CUDA shows it; None: not known."""
        if self.visible is not None:
            return self._named(self._words[0])
        return next(iter(self.states), None) if self.is_order_known else None

    @property
    def shown(self) -> tuple[HostGpu, ...]:
        """Return the GPUs that CUDA shows a workload; all where that is not known."""
        states = [self._named(word) for word in self._words]
        names = {state.name for state in states if state}
        shown = tuple(gpu for gpu in self.gpus if gpu.name in names)
        return shown if shown and None not in states else self.gpus

    @property
    def is_choice_unknown(self) -> bool:
        """Say whether CUDA_VISIBLE_DEVICES begins with a GPU that nvidia-smi does not list."""
        first = self._words[0]
        if not self.states or self._named(first):
            return False
        if first.isdecimal():
            has_mig = any(state.has_mig for state in self.states)
            return not has_mig and int(first) >= len(self.states)
        return first.startswith(("GPU-", "MIG-")) and not first.startswith("MIG-GPU-")

    @property
    def _words(self) -> list[str]:
        """Return the parts of CUDA_VISIBLE_DEVICES; one that is empty where it is not set."""
        return [word.strip() for word in (self.visible or "").split(",")]

    def _named(self, word: str) -> GpuState | None:
        """Return the GPU that a part of CUDA_VISIBLE_DEVICES names; None: not known."""
        for state in self.states:
            if word == state.uuid or word in state.instances:
                return state
            if any(_is_short(word, uuid) for uuid in (state.uuid, *state.instances)):
                return state
            if word == str(state.index) and self.is_order_known:
                return state
        return None


class _Block(msgspec.Struct, frozen=True):
    chip: str
    first: str
    last: str
    compute_capability: str


class _Table(msgspec.Struct, frozen=True):
    blocks: tuple[_Block, ...]
    names: dict[str, str]


def _is_short(text: str, uuid: str) -> bool:
    """Say whether a text begins a UUID, as CUDA_VISIBLE_DEVICES may name one."""
    return text.startswith(("GPU-", "MIG-")) and uuid.startswith(text)


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
    listed = tuple(
        HostGpu(name=match[2])
        for match in filter(None, map(_LISTED.fullmatch, lines))
        if match[1] is not None
    )
    said = dict(line.split(" ", 1) for line in lines if line.startswith(("visible ", "order ")))
    return HostGpus(
        driver=driver_version(text) or module,
        on_bus=len(on_bus),
        gpus=asked or on_bus or listed,
        states=_states(lines),
        visible=said.get("visible"),
        order=said.get("order"),
    )


def _states(lines: list[str]) -> tuple[GpuState, ...]:
    names: dict[int, str] = {}
    instances: dict[int, list[str]] = {}
    for match in filter(None, map(_LISTED.fullmatch, lines)):
        if match[1] is not None:
            names[int(match[1])] = match[2]
        elif names:  # a MIG device stands below its GPU
            instances.setdefault(max(names), []).append(match[3])
    return tuple(
        GpuState(
            index=(index := int(match[1])),
            uuid=match[2],
            name=names.get(index, f"GPU {index}"),
            compute_mode=match[3],
            has_mig=match[4] == "Enabled",
            instances=tuple(instances.get(index, ())),
            throttling=held_down(int(match[5], 16) if match[5].startswith("0x") else 0),
        )
        for match in filter(None, map(_STATE.fullmatch, lines))
    )


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
