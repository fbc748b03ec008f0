"""A program that samples each GPU by NVIDIA's management library during a timed pass.

It runs on the host and starts nothing on a GPU. Each line of JSON is one reading of one GPU, with
null for what the library does not report. The program ends when its stdin does.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import struct
import sys
import time
from functools import partial
from typing import Any, Callable, Sequence

if __name__ == "__main__":  # `harness` is imported from the folder of the workloads
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from harness.attempts import attempt
from harness.counters.nvml import LIBRARY, Library, NvmlError

PERIOD_S = 0.05
NICENESS = 19  # what is timed must not wait for this
_SM, _MEMORY = 1, 2  # nvmlClockType_t
_ON_CHIP = 0  # nvmlTemperatureSensors_t, the only one of them
# nvmlFieldValue_t: field, scope, timestamp, latency, type, nvmlReturn_t, and a union of 8 bytes.
_FIELD = struct.Struct("=IIqqIII4x")
_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT, in mW
Reader = Callable[[], Any]


class Gpu:
    """One GPU and its readable fields."""

    def __init__(self, library: Library, index: int) -> None:
        device = ctypes.c_void_p()
        call = "nvmlDeviceGetHandleByIndex_v2"
        library.ask(call, ctypes.c_uint(index), ctypes.byref(device))
        self.uuid = library.text("nvmlDeviceGetUUID", device)
        instant = partial(_instant_power, library, device)
        self.has_instant_power = attempt(instant) is not None
        readers = _readers(library, device)
        if self.has_instant_power:
            readers["power_mw"] = instant
        # What is refused once is refused always: it is not asked for again.
        self._readers = {name: read for name, read in readers.items() if attempt(read) is not None}
        self._nothing = dict.fromkeys(readers)

    def read(self) -> dict[str, Any]:
        """Return one reading; its time is that just before the first call."""
        now_ns = time.monotonic_ns()
        found = {name: attempt(read) for name, read in self._readers.items()}
        head = {"uuid": self.uuid, "t_ns": now_ns, "has_instant_power": self.has_instant_power}
        return {**head, **self._nothing, **found}


def _readers(library: Library, device: ctypes.c_void_p) -> dict[str, Reader]:
    """Return the call for each field; power comes first, since its time matters most."""
    number, wide = partial(_number, library, device), partial(_wide, library, device)
    return {
        "power_mw": lambda: number("nvmlDeviceGetPowerUsage"),
        "energy_mj": lambda: wide("nvmlDeviceGetTotalEnergyConsumption"),
        "sm_mhz": lambda: number("nvmlDeviceGetClockInfo", _SM),
        "memory_mhz": lambda: number("nvmlDeviceGetClockInfo", _MEMORY),
        "temperature_c": lambda: number("nvmlDeviceGetTemperature", _ON_CHIP),
        "throttling": lambda: wide("nvmlDeviceGetCurrentClocksThrottleReasons"),
        "utilization_percent": lambda: _utilization(library, device),
    }


def _instant_power(library: Library, device: ctypes.c_void_p) -> int:
    """Return the current power; nvmlDeviceGetPowerUsage averages over a second on most GPUs.

    Raises NvmlError if the GPU or its driver does not report it.
    """
    field = ctypes.create_string_buffer(_FIELD.pack(_POWER_INSTANT, 0, 0, 0, 0, 0, 0), _FIELD.size)
    library.ask("nvmlDeviceGetFieldValues", device, ctypes.c_int(1), field)
    *_, status, value = _FIELD.unpack(field.raw)
    if status != 0:
        raise NvmlError(f"field {_POWER_INSTANT}: {status}")
    return int(value)


def _number(library: Library, device: ctypes.c_void_p, call: str, *which: int) -> int:
    return library.number(call, device, *map(ctypes.c_uint, which))


def _wide(library: Library, device: ctypes.c_void_p, call: str) -> int:
    value = ctypes.c_ulonglong()
    library.ask(call, device, ctypes.byref(value))
    return value.value


def _utilization(library: Library, device: ctypes.c_void_p) -> int:
    """Return the share of time in which a kernel ran; the second number is that of the memory."""
    shares = (ctypes.c_uint * 2)()
    library.ask("nvmlDeviceGetUtilizationRates", device, shares)
    return int(shares[0])


def all_gpus(library: Library) -> list[Gpu]:
    """Return all GPUs of the machine; raises NvmlError if there is none."""
    count = library.number("nvmlDeviceGetCount_v2")
    if not count:
        raise NvmlError("it counts no GPU")
    return [Gpu(library, index) for index in range(count)]


def sample(gpus: Sequence[Gpu], *, source: int, sink: int, period_s: float = PERIOD_S) -> None:
    """Write readings at each period until `source` ends."""
    due_s = time.monotonic()
    while not _has_ended(source, due_s - time.monotonic()):
        lines = "".join(json.dumps(gpu.read()) + "\n" for gpu in gpus)
        try:
            os.write(sink, lines.encode())
        except BrokenPipeError:
            return
        due_s = max(due_s + period_s, time.monotonic())


def _has_ended(source: int, wait_s: float) -> bool:
    ready, _, _ = select.select([source], [], [], max(0.0, wait_s))
    return bool(ready) and not os.read(source, 4096)


def main(name: str = LIBRARY) -> int:
    """Sample all GPUs; return 3, with the reason on stderr, if there is none to sample."""
    os.nice(NICENESS)
    try:
        library = Library(name)
        gpus = all_gpus(library)
    except (OSError, AttributeError, NvmlError) as error:
        sys.stderr.write(f"NVIDIA's management library cannot be asked: {error}\n")
        return 3
    sample(gpus, source=0, sink=1)
    library.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
