"""What GPUs are: their chips and counters, their peaks, and what names of kernels tell.

The tables lie in `envcompare/data/`, each with its sources: `gpu_peaks.json` (data sheets, by row),
`ncu_metrics.json` (metrics that chips lack or count in parts, from NVIDIA's own lists) and
`nvprof_metrics.json` (NVIDIA's comparison of nvprof's metrics with those of Nsight Compute). A chip
such as `ga100` stands for a compute capability: all GPUs of one have the same metrics.

A roof is a bound of the roofline model: bytes per second of device memory, and FLOP/s by precision.
It is measured on a device, or a peak from the table. Peaks are dense, without sparsity.
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
_NEWEST_MAJOR: Final = 10  # of the compute capability: before it all chips have one tensor pipe
_VENDOR: Final = re.compile(r"^(?:nvidia|tesla|geforce|\s)+", re.IGNORECASE)
_TABLE: Final = "peaks from a table, not measured"
_REMEDY: Final = "the roofs of the device can be measured with `envcompare run --profile`"


class _Table(msgspec.Struct, frozen=True):
    chips: dict[str, str]
    lacking: dict[str, tuple[str, ...]]
    tensor_totals: dict[str, tuple[str, ...]]


class _Names(msgspec.Struct, frozen=True):
    ncu_name: dict[str, str]


def chip_of(compute_capability: str) -> str:
    """Return the chip whose metrics stand for a compute capability; empty where none is known."""
    return _table().chips.get(compute_capability, "")


def is_lacking(metric: str, chip: str) -> bool:
    """Say whether the chip is known not to have the metric (`dram__bytes_read`, no suffix)."""
    return chip in _table().lacking.get(metric, ())


def tensor_pipes(devices: Iterable[Device]) -> tuple[str, ...]:
    """Return the counters that together count each instruction of tensor cores; empty: not known.

    Blackwell's data centre chips have a pipe of their own for `tcgen05` beside the older one.
    """
    known = tuple(devices)
    if any(map(_is_strange, known)):
        return ()
    return (_TENSOR_PIPE, _TC_PIPE) if may_have(_TC_PIPE, known) else (_TENSOR_PIPE,)


def may_have(metric: str, devices: Iterable[Device]) -> bool:
    """Say whether a GPU of a profile has a metric, or is newer than the table of metrics."""
    return any(
        _is_strange(device) or (device.chip in _chips() and not is_lacking(metric, device.chip))
        for device in devices
    )


def _is_strange(device: Device) -> bool:
    """Say whether a GPU is of a generation of which chips are not all known."""
    major = device.compute_capability.partition(".")[0]
    return device.chip not in _chips() and major.isdecimal() and int(major) >= _NEWEST_MAJOR


def _chips() -> frozenset[str]:
    return frozenset(_table().tensor_totals)


def tensor_totals(chip: str) -> tuple[str, ...]:
    """Return the counters of tensor operations that together count each once; empty: not known."""
    return tuple(
        f"sm__ops_path_tensor_src_{part}.sum" for part in _table().tensor_totals.get(chip, ())
    )


def tensor_counters(chip: str, offered: Iterable[str]) -> tuple[str, ...]:
    """Return the chip's totals; without a table, those of the offered that are no part of another.

    What is offered has no suffix.
    """
    names = {name for name in offered if _PATHS.fullmatch(name)}
    parts = {name for name in names if any(name.startswith(f"{other}_dst_") for other in names)}
    return tensor_totals(chip) or tuple(f"{name}.sum" for name in sorted(names - parts))


def ncu_name(nvprof_metric: str) -> str:
    """Return the metric of Nsight Compute that NVIDIA names for one of nvprof; empty: none."""
    return _names().ncu_name.get(nvprof_metric, "")


@functools.cache
def _table() -> _Table:
    return msgspec.json.decode(_data("ncu_metrics.json"), type=_Table)


@functools.cache
def _names() -> _Names:
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
    """Return the roofs of a device and a sentence: what they lack, or why there are none.

    Those measured on the device come first, with the table's for precisions that were not
    measured; the table is used only where it names one variant.
    """
    table = table_roofs(device, host=host)
    for roofs in measured:
        if _is_same(device, roofs) and roofs.flops_per_s:
            return _completed(roofs, table)
    if isinstance(table, str):
        return None, table
    reason = next((roofs.reason for roofs in measured if roofs.reason), "")
    why = f": {reason}" if reason else ""
    return table, f"The roofs were not measured{why}; the table's are an upper bound."


def _completed(measured: Roofs, table: Roofs | str) -> tuple[Roofs, str]:
    """Add the peaks of precisions that were not measured, and say which these are."""
    peaks = {} if isinstance(table, str) else table.flops_per_s
    added = {name: peak for name, peak in peaks.items() if name not in measured.flops_per_s}
    if not added:
        return measured, ""
    said = f"Not measured, but from the table of peaks: {', '.join(added)}."
    return replace(measured, flops_per_s={**measured.flops_per_s, **added}), said


def table_roofs(device: Device, *, host: str) -> Roofs | str:
    """Return the peaks of the table for a device, or why it has none for it."""
    short = plain_name(device.name)
    rows = [row for row in _peak_rows() if short in (name.lower() for name in row.names)]
    if len(rows) != 1:
        return _why_none(device, short)
    row = rows[0]
    if device.compute_capability and device.compute_capability != row.compute_capability:
        return (
            f"{device.name} says compute capability {device.compute_capability}, the table "
            f"{row.compute_capability}: not the same device; {_REMEDY}"
        )
    if device.multiprocessors and device.multiprocessors != row.multiprocessors:
        return (
            f"{device.name} shows {device.multiprocessors} of {row.multiprocessors} "
            f"multiprocessors: a part of the device, whose peaks no table has; {_REMEDY}"
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
    """Return the names of the GPUs that profiles saw at work; empty where none names one."""
    return frozenset(device.name for device in _at_work(profiles) if device.name)


def is_vendor_alone(name: str) -> bool:
    """Say whether the name of a GPU tells its vendor and no model."""
    return name.endswith(_NO_MODEL)


def vendor_of(name: str) -> str:
    """Return whose GPU has this name: NVIDIA's carry brands of their own, such as Tesla."""
    if name.startswith(_AMD):
        return "AMD"
    return next((vendor for vendor in _VENDORS if name.startswith(vendor)), "NVIDIA")


def of_vendor(vendor: str) -> Device:
    """Return a GPU of which a profile tells the vendor and no model."""
    return Device(name=f"{vendor} GPU{_NO_MODEL}")


def gpu_capabilities(profiles: Iterable[Profile]) -> frozenset[str]:
    """Return the compute capabilities of the GPUs that profiles saw at work."""
    capabilities = (device.compute_capability for device in _at_work(profiles))
    return frozenset(filter(None, capabilities))


def _at_work(profiles: Iterable[Profile]) -> Iterable[Device]:
    return (device for profile in profiles if has_gpu_work(profile) for device in profile.devices)


def device_of(devices: Sequence[Device]) -> Device | str:
    """Return the one device that all profiles are of, or why there is none."""
    named = [device for device in devices if device.name]
    if not named:
        return "no profile names its GPU"
    if len({plain_name(device.name) for device in named}) > 1:
        names = ", ".join(dict.fromkeys(device.name for device in named))
        return f"the profiles are of different GPUs ({names})"
    return replace(
        named[0],
        compute_capability=next(filter(None, (gpu.compute_capability for gpu in devices)), ""),
        multiprocessors=next(filter(None, (gpu.multiprocessors for gpu in named)), None),
        uuid=next(filter(None, (gpu.uuid for gpu in named)), ""),
    )


def _why_none(device: Device, short: str) -> str:
    relatives = [
        row.name for row in _peak_rows() if row.family.lower() in re.split(r"[\s-]", short)
    ]
    if relatives:
        return (
            f"“{device.name}” does not tell which variant it is ({', '.join(relatives)}), and "
            f"their peaks differ; {_REMEDY}"
        )
    return f"the table of peaks does not have “{device.name}”; {_REMEDY}"


def _is_same(device: Device, roofs: Roofs) -> bool:
    if device.uuid and roofs.uuid:
        return device.uuid.removeprefix("GPU-") == roofs.uuid.removeprefix("GPU-")
    return plain_name(device.name) == plain_name(roofs.device)


def plain_name(name: str) -> str:
    """Return the name of a GPU without its vendor and brand, which drivers write or leave out."""
    return " ".join(_VENDOR.sub("", name).lower().split())


@functools.cache
def _peak_rows() -> tuple[_Row, ...]:
    text = resources.files("envcompare").joinpath("data/gpu_peaks.json").read_bytes()
    return msgspec.json.decode(text, type=_Peaks).gpus


def has_gpu_work(profile: Profile) -> bool | None:
    """Tell whether work of a GPU was seen; None for a tool that would not show it."""
    if profile.tool not in GPU_TOOLS:
        return None
    return bool(profile.kernels or profile.copies or any(row.value for row in profile.quantities))
