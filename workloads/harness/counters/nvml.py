"""Limits, modes and clocks of one GPU, by NVIDIA's management library (nvml.h).

Only calls without structures are used: they are the same in every version of the library.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, Callable, Sequence

from harness.attempts import attempt

LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE, the longest of the texts asked for
_GRAPHICS, _SM, _MEMORY = 0, 1, 2  # nvmlClockType_t; applications set that of graphics and SM
_COMPUTE_MODES = ("default", "exclusive-thread", "prohibited", "exclusive-process")


class NvmlError(Exception):
    """A call was refused; the number is an nvmlReturn_t."""


class Library:
    """The library in use, from its start to `close`."""

    def __init__(self, name: str = LIBRARY) -> None:
        self._calls = ctypes.CDLL(name)
        self.ask("nvmlInit_v2")

    def ask(self, call: str, *arguments: object) -> None:
        """Call a function; raise NvmlError if it fails."""
        status = getattr(self._calls, call)(*arguments)
        if status != 0:
            raise NvmlError(f"{call}: {status}")

    def number(self, call: str, *arguments: object) -> int:
        """Return the unsigned number that a function writes to its last argument."""
        number = ctypes.c_uint()
        self.ask(call, *arguments, ctypes.byref(number))
        return number.value

    def text(self, call: str, *arguments: object) -> str:
        """Return the text that a function writes."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self.ask(call, *arguments, text, ctypes.c_uint(_TEXT_BYTES))
        return text.value.decode(errors="replace")

    def device(self, uuid: str | None) -> ctypes.c_void_p:
        """Return the GPU of a UUID, without one the only GPU there is.

        Numbers do not serve: CUDA counts GPUs in another order than this library does.
        """
        handle = ctypes.c_void_p()
        if uuid is not None:
            self.ask("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
        elif self.number("nvmlDeviceGetCount_v2") == 1:
            self.ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(0), ctypes.byref(handle))
        else:
            raise NvmlError("which of several GPUs is in use is not known")
        return handle

    def whole(self, device: ctypes.c_void_p) -> ctypes.c_void_p:
        """Return the GPU that a MIG instance is a part of; a whole GPU is itself."""
        handle = ctypes.c_void_p()
        try:
            call = "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"
            self.ask(call, device, ctypes.byref(handle))
        except (NvmlError, AttributeError):
            return device
        return handle

    def close(self) -> None:
        """End the use of the library."""
        self.ask("nvmlShutdown")


def gpu_settings(uuids: Sequence[str], *, name: str = LIBRARY) -> dict[str, Any]:
    """Return the settings of the GPU of the first of these UUIDs that is known here.

    Nothing without the library; None for what it refuses to say.
    """
    library = attempt(lambda: Library(name))
    if library is None:
        return {}
    driver = attempt(lambda: library.text("nvmlSystemGetDriverVersion"))
    found = (attempt(partial(library.device, uuid)) for uuid in uuids or (None,))
    device = next((one for one in found if one is not None), None)
    known = {} if device is None else _settings(library, library.whole(device))
    attempt(library.close)
    return {**known, "gpu.driver": driver}


def _settings(library: Library, device: ctypes.c_void_p) -> dict[str, Any]:
    number = library.number
    mode = attempt(lambda: number("nvmlDeviceGetComputeMode", device))
    readers: dict[str, Callable[[], Any]] = {
        "power_limit_w": lambda: number("nvmlDeviceGetPowerManagementLimit", device) / 1000,
        "ecc": lambda: _current(library, "nvmlDeviceGetEccMode", device),
        "mig": lambda: _current(library, "nvmlDeviceGetMigMode", device),
        "persistence": lambda: bool(number("nvmlDeviceGetPersistenceMode", device)),
        "compute_mode": lambda: _COMPUTE_MODES[mode],
        "clock_sm_mhz_max": lambda: number("nvmlDeviceGetMaxClockInfo", device, _SM),
        "clock_memory_mhz_max": lambda: number("nvmlDeviceGetMaxClockInfo", device, _MEMORY),
        "clock_sm_mhz_application": lambda: number(
            "nvmlDeviceGetApplicationsClock", device, _GRAPHICS
        ),
    }
    return {f"gpu.{name}": attempt(read) for name, read in readers.items()}


def _current(library: Library, call: str, device: ctypes.c_void_p) -> bool:
    """Return whether a mode is on now; the second number is what holds after a reset."""
    now, pending = ctypes.c_uint(), ctypes.c_uint()
    library.ask(call, device, ctypes.byref(now), ctypes.byref(pending))
    return bool(now.value)
