"""GPU chips, their counters and peaks, and the parsing of kernel names.

The tables are in `envcompare/data/`, each with its sources: `gpu_peaks.json` (data sheets, by row),
`ncu_metrics.json` (metrics that a chip lacks or splits, from NVIDIA's lists) and
`nvprof_metrics.json` (NVIDIA's mapping of nvprof metrics to Nsight Compute). A chip such as `ga100`
represents a compute capability: all GPUs with that capability have the same metrics.

A roof is a bound of the roofline model: device-memory bytes per second, or FLOP/s for a precision.
It is measured on the device or taken from the table. Peaks are dense, without sparsity.

The NVIDIA GPUs of a host are reported by its driver and its PCI bus, which also lists GPUs that the
driver cannot report: the device ID identifies the chip, and the chip the compute capability. The
table, with its sources, is `envcompare/data/pci_gpus.json`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Final

import msgspec
from msgspec.structs import replace

from envcompare.run_folder.profiles import GPU_TOOLS, Device, Profile, Roofs

_PATHS: Final = re.compile(r"sm__ops_path_tensor_src_(?!.*(?:_op_|_sparsity_|_realtime))\w+")
_AMD: Final = ("AMD", "Radeon", "gfx")
_VENDORS: Final = ("Intel", "Meta", "Moore Threads", "Cambricon", "Huawei")
_NO_MODEL: Final = ", model not recorded"
_TENSOR_PIPE: Final = "sm__inst_executed_pipe_tensor"
_TC_PIPE: Final = "sm__inst_executed_pipe_tc"
# All chips before this compute capability have a single tensor pipe.
_NEWEST_MAJOR: Final = 10
_VENDOR: Final = re.compile(r"^(?:nvidia|tesla|geforce|\s)+", re.IGNORECASE)
_TABLE: Final = "peaks from a table, not measured"
_REMEDY: Final = "the roofs of the device can be measured with `envcompare run --profile`"
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
# nvidia-smi may hang on a broken driver, so timeout(1) kills it where there is one.
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
CLOCK_LIMITS: Final = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat, by software",
    0x40: "heat, by hardware",
    0x80: "power brake",
}
"""nvmlClocksThrottleReasons that slow the clocks; idle and manually set clocks are excluded."""
MAKE_CDI: Final = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
"""Describes the GPUs of a host for engines that use CDI."""
# How PyTorch, CUDA and NVML report a lost device: NVIDIA Container Toolkit, Troubleshooting,
# "Containers losing access to GPUs".
_LOST: Final = re.compile(
    r"Failed to initialize NVML: Unknown Error|no CUDA-capable device is detected"
    r"|CUDA error: unknown error|CUDA unknown error"
    r"|No CUDA GPUs are available|PyTorch sees no GPU here|cudaErrorNoDevice"
)
_LOST_HINT: Final = (
    "a worker of the arm had the GPU before, and it is lost: systemctl daemon-reload takes it from "
    "containers that have it by NVIDIA's hook; give it by CDI ("
    f"{MAKE_CDI}), or see whether the GPU failed: sudo dmesg | grep -i xid"
)


class _Table(msgspec.Struct, frozen=True):
    chips: dict[str, str]
    lacking: dict[str, tuple[str, ...]]
    tensor_totals: dict[str, tuple[str, ...]]


class _Names(msgspec.Struct, frozen=True):
    ncu_name: dict[str, str]


def chip_of(compute_capability: str) -> str:
    """Return the chip that represents a compute capability; empty if unknown."""
    return _table().chips.get(compute_capability, "")


def is_lacking(metric: str, chip: str) -> bool:
    """Return whether the chip is known to lack the metric (`dram__bytes_read`, no suffix)."""
    return chip in _table().lacking.get(metric, ())


def tensor_pipes(devices: Iterable[Device]) -> tuple[str, ...]:
    """Return the counters that together count every tensor-core instruction; empty if unknown.

    Blackwell data-center chips have a second pipe for `tcgen05`.
    """
    known = tuple(devices)
    if any(map(_is_unlisted, known)):
        return ()
    return (_TENSOR_PIPE, _TC_PIPE) if may_have(_TC_PIPE, known) else (_TENSOR_PIPE,)


def may_have(metric: str, devices: Iterable[Device]) -> bool:
    """Return whether any of these GPUs has the metric, or is newer than the metric table."""
    return any(
        _is_unlisted(device) or (device.chip in _chips() and not is_lacking(metric, device.chip))
        for device in devices
    )


def _is_unlisted(device: Device) -> bool:
    """Return whether the GPU belongs to a newer generation and its chip is not in the table."""
    major = device.compute_capability.partition(".")[0]
    return device.chip not in _chips() and major.isdecimal() and int(major) >= _NEWEST_MAJOR


def _chips() -> frozenset[str]:
    return frozenset(_table().tensor_totals)


def tensor_totals(chip: str) -> tuple[str, ...]:
    """Return the counters that together count each tensor operation once; empty if unknown."""
    return tuple(
        f"sm__ops_path_tensor_src_{part}.sum" for part in _table().tensor_totals.get(chip, ())
    )


def tensor_counters(chip: str, offered: Iterable[str]) -> tuple[str, ...]:
    """Return the chip's totals; if unknown, the offered counters that are not part of another.

    `offered` names have no suffix.
    """
    names = {name for name in offered if _PATHS.fullmatch(name)}
    parts = {name for name in names if any(name.startswith(f"{other}_dst_") for other in names)}
    return tensor_totals(chip) or tuple(f"{name}.sum" for name in sorted(names - parts))


def ncu_name(nvprof_metric: str) -> str:
    """Return the Nsight Compute metric that NVIDIA maps an nvprof metric to; empty if none."""
    return _nvprof_names().ncu_name.get(nvprof_metric, "")


@functools.cache
def _table() -> _Table:
    return msgspec.json.decode(_data("ncu_metrics.json"), type=_Table)


@functools.cache
def _nvprof_names() -> _Names:
    return msgspec.json.decode(_data("nvprof_metrics.json"), type=_Names)


def _data(name: str) -> bytes:
    return (resources.files("envcompare") / "data" / name).read_bytes()


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    family: str
    names: tuple[str, ...]
    compute_capability: str
    multiprocessors: int
    tflops: dict[str, float]
    gigabytes_per_s: float
    note: str = ""
    source: str


class _Peaks(msgspec.Struct, frozen=True):
    gpus: tuple[_Row, ...]


def roofs_of(device: Device, measured: Sequence[Roofs], *, host: str) -> tuple[Roofs | None, str]:
    """Return the roofs of a device with a caveat, or None with the reason.

    Measured roofs come first; the table adds the precisions that were not measured, and is used
    only if it identifies a single variant.
    """
    table = table_roofs(device, host=host)
    for roofs in measured:
        is_same = plain_name(device.name) == plain_name(roofs.device)
        if device.uuid and roofs.uuid:
            is_same = device.uuid.removeprefix("GPU-") == roofs.uuid.removeprefix("GPU-")
        if is_same and roofs.flops_per_s:
            peaks = {} if isinstance(table, str) else table.flops_per_s
            added = {name: peak for name, peak in peaks.items() if name not in roofs.flops_per_s}
            note = f"Taken from the table of peaks, not measured: {', '.join(added)}."
            whole = replace(roofs, flops_per_s={**roofs.flops_per_s, **added})
            return whole, note if added else ""
    if isinstance(table, str):
        return None, table
    reason = next((roofs.reason for roofs in measured if roofs.reason), "")
    why = f": {reason}" if reason else ""
    return table, f"The roofs were not measured{why}; table values are an upper bound."


def table_roofs(device: Device, *, host: str) -> Roofs | str:
    """Return the table's peaks for a device, or the reason there are none."""
    short = plain_name(device.name)
    rows = [row for row in _peak_rows() if short in (name.lower() for name in row.names)]
    if len(rows) != 1:
        words = re.split(r"[\s-]", short)
        variants = [row.name for row in _peak_rows() if row.family.lower() in words]
        if variants:
            return (
                f"“{device.name}” does not say which variant it is ({', '.join(variants)}), and "
                f"their peaks differ; {_REMEDY}"
            )
        return f"the table of peaks does not have “{device.name}”; {_REMEDY}"
    row = rows[0]
    if device.compute_capability and device.compute_capability != row.compute_capability:
        return (
            f"{device.name} reports compute capability {device.compute_capability}, but the table "
            f"lists {row.compute_capability}; {_REMEDY}"
        )
    if device.multiprocessors and device.multiprocessors != row.multiprocessors:
        return (
            f"{device.name} shows {device.multiprocessors} of {row.multiprocessors} "
            f"multiprocessors; the table has no peaks for part of a device; {_REMEDY}"
        )
    note = f"; {row.note}" if row.note else ""
    return Roofs(
        host=host,
        device=device.name,
        source=f"{_TABLE}: {row.name} ({row.source}){note}",
        is_measured=False,
        bytes_per_s=row.gigabytes_per_s * 1e9,
        flops_per_s={precision: value * 1e12 for precision, value in row.tflops.items()},
        uuid=device.uuid,
    )


def gpu_models(profiles: Iterable[Profile]) -> frozenset[str]:
    """Return the names of the GPUs that did work in the profiles."""
    return frozenset(device.name for device in _at_work(profiles) if device.name)


def lacks_model(name: str) -> bool:
    """Return whether a GPU name contains the vendor but no model."""
    return name.endswith(_NO_MODEL)


def vendor_of(name: str) -> str:
    """Return the vendor of a GPU; NVIDIA for other names, which may be brands such as Tesla."""
    if name.startswith(_AMD):
        return "AMD"
    return next((vendor for vendor in _VENDORS if name.startswith(vendor)), "NVIDIA")


def unknown_model(vendor: str) -> Device:
    """Return a device for a profile that records the vendor but no model."""
    return Device(name=f"{vendor} GPU{_NO_MODEL}")


def gpu_capabilities(profiles: Iterable[Profile]) -> frozenset[str]:
    """Return the compute capabilities of the GPUs that did work in the profiles."""
    capabilities = (device.compute_capability for device in _at_work(profiles))
    return frozenset(filter(None, capabilities))


def _at_work(profiles: Iterable[Profile]) -> Iterable[Device]:
    return (device for profile in profiles if has_gpu_work(profile) for device in profile.devices)


def device_of(devices: Sequence[Device]) -> Device | str:
    """Return the one device that all profiles share, or the reason there is none."""
    named = [device for device in devices if device.name]
    if not named:
        return "no profile names its GPU"
    if len({plain_name(device.name) for device in named}) > 1:
        names = ", ".join(dict.fromkeys(device.name for device in named))
        return f"the profiles come from different GPUs ({names})"
    return replace(
        named[0],
        compute_capability=next(filter(None, (gpu.compute_capability for gpu in devices)), ""),
        multiprocessors=next(filter(None, (gpu.multiprocessors for gpu in named)), None),
        uuid=next(filter(None, (gpu.uuid for gpu in named)), ""),
    )


def plain_name(name: str) -> str:
    """Return a GPU name without vendor and brand, which not every driver includes."""
    return " ".join(_VENDOR.sub("", name).lower().split())


@functools.cache
def _peak_rows() -> tuple[_Row, ...]:
    return msgspec.json.decode(_data("gpu_peaks.json"), type=_Peaks).gpus


def has_gpu_work(profile: Profile) -> bool | None:
    """Return whether the profile contains GPU work; None if the tool cannot record any."""
    if profile.tool not in GPU_TOOLS:
        return None
    return bool(profile.kernels or profile.copies or any(row.value for row in profile.quantities))


class HostGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a host."""

    name: str
    capability: Capability | None = None


def throttle_causes(mask: int) -> tuple[str, ...]:
    """Return why the clocks of a GPU are throttled, from the bit mask of its driver."""
    return tuple(words for bit, words in CLOCK_LIMITS.items() if mask & bit)


def lost_hint(output: str) -> str:
    """Return what to try if a worker's output reports a lost GPU; otherwise empty."""
    return _LOST_HINT if _LOST.search(output) else ""


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
            # CUDA_VISIBLE_DEVICES allows a prefix of a UUID
            uuids = (state.uuid, *state.instances)
            if word.startswith(("GPU-", "MIG-")) and any(uuid.startswith(word) for uuid in uuids):
                return state
            if word == str(state.index) and self.is_order_known:
                return state
        return None


class _Block(msgspec.Struct, frozen=True):
    chip: str
    first: str
    last: str
    compute_capability: str


class _DeviceTable(msgspec.Struct, frozen=True):
    blocks: tuple[_Block, ...]
    names: dict[str, str]


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
        elif names:
            # A MIG device is listed below its GPU.
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
    table = _device_table()
    block = next((block for block in table.blocks if block.first <= device_id <= block.last), None)
    if block is None:
        return HostGpu(name=f"the GPU with PCI device ID {device_id}")
    major, minor = block.compute_capability.split(".")
    name = table.names.get(device_id, f"the GPU with PCI device ID {device_id} ({block.chip})")
    return HostGpu(name=name, capability=(int(major), int(minor)))


@functools.cache
def _device_table() -> _DeviceTable:
    return msgspec.json.decode(_data("pci_gpus.json"), type=_DeviceTable)
