"""The NVIDIA GPUs of a host, as reported by its driver and its PCI bus.

The bus also lists GPUs that the driver cannot report: the device ID identifies the chip, and the
chip the compute capability. The table, with its sources, is `envcompare/data/pci_gpus.json`.
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
"""The first part of SURVEY. It starts no program that could hang on a broken driver."""
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
"""A shell script whose output `read_survey` parses."""

# "NVIDIA UNIX x86_64 Kernel Module  535.104.05  ..." and the open module's
# "NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build ..."
_VERSION: Final = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_MODULE: Final = re.compile(r"module (\d+(?:\.\d+)+)")
# Class 0x03 is a display controller, 0x0302 a compute GPU; this skips their audio and USB devices.
_BUS: Final = re.compile(r"bus 0x03[0-9a-f]{4} 0x([0-9a-f]{4})")
_SMI: Final = re.compile(r"smi (.+), (\d+)\.(\d+)")
# An unsupported field is "[N/A]", or "[Not Supported]" with older drivers.
_STATE: Final = re.compile(r"state (\d+), (\S+), ([^,]+), ([^,]+), (0x[0-9a-fA-F]+|.*)")
_LISTED: Final = re.compile(r"listed (?:GPU (\d+): (.*) |\s+MIG .*)\(UUID: (\S+)\)")


class HostGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a host."""

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
"""nvmlClocksThrottleReasons that slow the clocks; idle and manually set clocks are excluded."""


def throttle_causes(mask: int) -> tuple[str, ...]:
    """Return why the clocks of a GPU are throttled, from the bit mask of its driver."""
    return tuple(words for bit, words in CLOCK_LIMITS.items() if mask & bit)


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a GPU and what throttles its clocks, as reported by nvidia-smi."""

    index: int
    uuid: str
    name: str = ""
    compute_mode: str = "Default"
    has_mig: bool = False  # MIG is on
    instances: tuple[str, ...] = ()  # UUIDs of its MIG devices
    throttling: tuple[str, ...] = ()


class HostGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The driver version of a host, None without a driver, and its GPUs."""

    driver: str | None = None
    on_bus: int = 0
    gpus: tuple[HostGpu, ...] = ()
    states: tuple[GpuState, ...] = ()
    visible: str | None = None  # CUDA_VISIBLE_DEVICES of the login
    order: str | None = None  # CUDA_DEVICE_ORDER of the login

    @property
    def is_expected(self) -> bool:
        """Return whether the bus, the driver or nvidia-smi indicates a GPU."""
        return bool(self.on_bus or self.driver or self.gpus)

    @property
    def is_order_known(self) -> bool:
        """Return whether CUDA numbers the GPUs as nvidia-smi does.

        Unless CUDA_DEVICE_ORDER is PCI_BUS_ID, CUDA starts with the fastest GPU (NVIDIA, CUDA C++
        Programming Guide, Environment Variables).
        """
        return self.order == "PCI_BUS_ID" or len({state.name for state in self.states}) < 2

    @property
    def measured(self) -> GpuState | None:
        """Return the first GPU visible to CUDA, which a workload uses; None if unknown."""
        if self.visible is not None:
            return self._named(self._words[0])
        return next(iter(self.states), None) if self.is_order_known else None

    @property
    def visible_gpus(self) -> tuple[HostGpu, ...]:
        """Return the GPUs visible to CUDA; all of them if that is unknown."""
        states = [self._named(word) for word in self._words]
        names = {state.name for state in states if state}
        visible = tuple(gpu for gpu in self.gpus if gpu.name in names)
        return visible if visible and None not in states else self.gpus

    @property
    def is_choice_unknown(self) -> bool:
        """Return whether CUDA_VISIBLE_DEVICES starts with a GPU that nvidia-smi does not list."""
        first = self._words[0]
        if not self.states or self._named(first):
            return False
        if first.isdecimal():
            has_mig = any(state.has_mig for state in self.states)
            return not has_mig and int(first) >= len(self.states)
        return first.startswith(("GPU-", "MIG-")) and not first.startswith("MIG-GPU-")

    @property
    def _words(self) -> list[str]:
        """Return the items of CUDA_VISIBLE_DEVICES; one empty item if unset."""
        return [word.strip() for word in (self.visible or "").split(",")]

    def _named(self, word: str) -> GpuState | None:
        """Return the GPU that an item of CUDA_VISIBLE_DEVICES names; None if unknown."""
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
    """Return whether the text is a prefix of the UUID, which CUDA_VISIBLE_DEVICES allows."""
    return text.startswith(("GPU-", "MIG-")) and uuid.startswith(text)


def driver_version(text: str) -> str | None:
    """Read the driver's version from the text of /proc/driver/nvidia/version."""
    match = _VERSION.search(text)
    return match[1] if match else None


def read_survey(text: str) -> HostGpus:
    """Parse the output of SURVEY; `nvidia-smi` takes precedence over the PCI bus."""
    lines = text.splitlines()
    module = next((match[1] for line in lines if (match := _MODULE.fullmatch(line))), None)
    on_bus = tuple(gpu_of_pci_id(match[1]) for line in lines if (match := _BUS.fullmatch(line)))
    queried = tuple(
        HostGpu(name=match[1], capability=(int(match[2]), int(match[3])))
        for line in lines
        if (match := _SMI.fullmatch(line))
    )
    listed = tuple(
        HostGpu(name=match[2])
        for match in filter(None, map(_LISTED.fullmatch, lines))
        if match[1] is not None
    )
    pairs = dict(line.split(" ", 1) for line in lines if line.startswith(("visible ", "order ")))
    return HostGpus(
        driver=driver_version(text) or module,
        on_bus=len(on_bus),
        gpus=queried or on_bus or listed,
        states=_states(lines),
        visible=pairs.get("visible"),
        order=pairs.get("order"),
    )


def _states(lines: list[str]) -> tuple[GpuState, ...]:
    names: dict[int, str] = {}
    instances: dict[int, list[str]] = {}
    for match in filter(None, map(_LISTED.fullmatch, lines)):
        if match[1] is not None:
            names[int(match[1])] = match[2]
        elif names:  # a MIG device is listed below its GPU
            instances.setdefault(max(names), []).append(match[3])
    return tuple(
        GpuState(
            index=(index := int(match[1])),
            uuid=match[2],
            name=names.get(index, f"GPU {index}"),
            compute_mode=match[3],
            has_mig=match[4] == "Enabled",
            instances=tuple(instances.get(index, ())),
            throttling=throttle_causes(int(match[5], 16) if match[5].startswith("0x") else 0),
        )
        for match in filter(None, map(_STATE.fullmatch, lines))
    )


def gpu_of_pci_id(device_id: str) -> HostGpu:
    """Return the GPU with a PCI device ID such as "1eb8"."""
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
