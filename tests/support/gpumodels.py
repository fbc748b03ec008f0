"""Models of GPUs to imitate, and what a host with them shows in files: driver, PCI bus, CDI."""

from __future__ import annotations

import json
from dataclasses import dataclass

FAILURES = {
    "no-nodes": "the driver is loaded, and /dev has no node of it",
    "no-permission": "only root may open the nodes",
    "broken-driver": "libraries and nvidia-smi are there, and the kernel module is not loaded",
    "bus-only": "the GPU is on the PCI bus, and nothing of the driver is installed",
    "wsl": "the driver is that of Windows, as in WSL 2: nvidia-smi alone knows the GPU",
    "mismatch": "the libraries are newer than the loaded kernel module",
    "hang": "whoever asks the driver waits for ever",
    "unknown-error": "cuInit ends with 999, as after a suspend",
    "stale-cdi": "the CDI file names the libraries of an earlier driver",
    "stale-major": "the CDI file gives the nodes another major number",
    "no-cdi": "the engine knows no CDI and there is no CDI file",
    "exclusive": "the compute mode is Exclusive_Process",
    "busy": "a process of somebody else computes on the first GPU",
    "throttled": "the clocks are held down by a power cap",
    "two-gpus": "there are two GPUs",
    "mig": "MIG is on and the GPU is divided",
}
NEWER = "999.10.01"
_OLDER = "450.10.01"
_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
# What nvidia-smi of each branch names as the newest CUDA it supports.
_CUDA = {470: "11.4", 525: "12.0", 535: "12.2", 550: "12.4", 560: "12.6", 565: "12.7",
         570: "12.8", 575: "12.9", 580: "13.0"}  # fmt: skip
_THROTTLED = 0x4  # nvmlClocksThrottleReasonSwPowerCap
_NODE = (1, 3)  # the numbers of /dev/null, see host.sh
_STALE_NODE = (1, 5)  # those of /dev/zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What nvidia-smi and the data sheet say of one GPU."""

    name: str
    capability: tuple[int, int]
    device_id: int
    memory_mib: int
    sm_count: int
    power_w: int
    sm_mhz: int
    memory_mhz: int
    has_mig: bool = False


MODELS = {
    "v100": Model(name="Tesla V100-SXM2-16GB", capability=(7, 0), device_id=0x1DB1,
                  memory_mib=16384, sm_count=80, power_w=300, sm_mhz=1530, memory_mhz=877),
    "t4": Model(name="Tesla T4", capability=(7, 5), device_id=0x1EB8,
                memory_mib=15360, sm_count=40, power_w=70, sm_mhz=1590, memory_mhz=5001),
    "a100": Model(name="NVIDIA A100-SXM4-40GB", capability=(8, 0), device_id=0x20B0,
                  memory_mib=40960, sm_count=108, power_w=400, sm_mhz=1410, memory_mhz=1215,
                  has_mig=True),
    "l4": Model(name="NVIDIA L4", capability=(8, 9), device_id=0x27B8,
                memory_mib=23034, sm_count=58, power_w=72, sm_mhz=2040, memory_mhz=6251),
    "h100": Model(name="NVIDIA H100 80GB HBM3", capability=(9, 0), device_id=0x2330,
                  memory_mib=81559, sm_count=132, power_w=700, sm_mhz=1980, memory_mhz=2619,
                  has_mig=True),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """A host with a GPU: the model, the driver, what is wrong there, and the version of Python."""

    model: Model
    driver: str = "570.86.10"
    is_open: bool = False
    python: str = ""
    failures: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        """Return how many GPUs there are."""
        return 2 if "two-gpus" in self.failures else 1

    @property
    def library(self) -> str:
        """Return the version of the driver's libraries."""
        return NEWER if "mismatch" in self.failures else self.driver

    @property
    def cuda(self) -> str:
        """Return the newest CUDA that the driver supports."""
        branch = int(self.driver.partition(".")[0])
        return _CUDA[max(known for known in _CUDA if known <= branch)]

    def has(self, *failures: str) -> bool:
        """Say whether one of these is wrong there."""
        return not self.failures.isdisjoint(failures)


def uuid(index: int) -> str:
    """Return the UUID of a GPU, which no real one has: `m` and `t` are no hexadecimal digits."""
    return f"GPU-1m1tated-0000-4000-8000-{index:012d}"


def bus_id(index: int) -> str:
    """Return the address of a GPU on the bus; the first is where GCP has it."""
    return f"0000:00:{4 + index:02X}.0"


def driver_files(imitation: Imitation) -> dict[str, str]:
    """Return what stands in /proc/driver, by path; nothing where no module is loaded."""
    if imitation.has("broken-driver", "bus-only", "wsl"):
        return {}
    version = imitation.driver
    built = "Release Build  (envcompare@imitation)"
    module = (
        f"NVIDIA UNIX Open Kernel Module for x86_64  {version}  {built}"
        if imitation.is_open
        else f"NVIDIA UNIX x86_64 Kernel Module  {version}"
    )
    gcc = "gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04) "
    files = {
        "nvidia/version": f"NVRM version: {module}  Thu Jan  1 00:00:00 UTC 1970\n"
        f"GCC version:  {gcc}\n",
        "nvidia/params": "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\n"
        "DeviceFileMode: 438\nRmProfilingAdminOnly: 1\n",
    }
    for index in range(imitation.count):
        files[f"nvidia/gpus/{bus_id(index).lower()}/information"] = (
            f"Model: \t\t {imitation.model.name}\nIRQ:   \t\t 25\nGPU UUID: \t {uuid(index)}\n"
            f"Video BIOS: \t envcompare imitation\nBus Type: \t PCIe\nDMA Size: \t 47 bits\n"
            f"DMA Mask: \t 0x7fffffffffff\nBus Location: \t {bus_id(index).lower()}\n"
            f"Device Minor: \t {index}\nGPU Firmware: \t N/A\nGPU Excluded:\t No\n"
        )
    return files


def bus_files(imitation: Imitation) -> dict[str, str]:
    """Return what stands in /sys/bus/pci/devices: the GPUs beside a network card."""
    devices = {"0000:00:03.0": (0x1AF4, 0x1000, 0x020000)}
    for index in range(0 if imitation.has("wsl") else imitation.count):
        devices[bus_id(index).lower()] = (0x10DE, imitation.model.device_id, 0x030200)
    return {
        f"{address}/{name}": f"0x{value:0{digits}x}\n"
        for address, (vendor, device, kind) in devices.items()
        for name, value, digits in (
            ("vendor", vendor, 4),
            ("device", device, 4),
            ("class", kind, 6),
        )
    }


def nodes(imitation: Imitation) -> dict[str, str]:
    """Return the device nodes and their modes."""
    if imitation.has("broken-driver", "bus-only", "no-nodes"):
        return {}
    if imitation.has("wsl"):
        return {"/dev/dxg": "666"}
    mode = "600" if imitation.has("no-permission") else "666"
    gpus = (f"/dev/nvidia{index}" for index in range(imitation.count))
    paths = [*gpus, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    if imitation.has("mig"):
        paths += ["/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"]
    return dict.fromkeys(paths, mode)


def _rows(imitation: Imitation) -> list[tuple[object, ...]]:
    """Return what the C table and nvidia-smi say of each GPU, in the order of nvidia-smi."""
    model = imitation.model
    mig = int(imitation.has("mig")) if model.has_mig else -1
    throttling = _THROTTLED if imitation.has("throttled") else 0
    sm_mhz = model.sm_mhz // 2 if throttling else model.sm_mhz
    return [
        (index, model.name, uuid(index), bus_id(index), f"imitated-{index}", model.capability,
         model.device_id, model.memory_mib, model.power_w, sm_mhz, model.sm_mhz,
         model.memory_mhz, 3 if imitation.has("exclusive") else 0, mig, throttling)
        for index in range(imitation.count)
    ]  # fmt: skip


def c_table(imitation: Imitation) -> str:
    """Return table.h, from which both stub libraries are built."""
    rows = []
    for (index, name, gpu, bus, serial, (major, minor), device, memory, power, sm_mhz, sm_mhz_max,
         memory_mhz, mode, mig, throttling) in _rows(imitation):  # fmt: skip
        texts = ", ".join(json.dumps(text) for text in (name, gpu, bus, serial))
        numbers = (4 + index, device, memory, imitation.model.sm_count, power * 1000, sm_mhz,
                   sm_mhz_max, memory_mhz, major, minor, mode, mig, throttling)  # fmt: skip
        rows.append(f"{{{texts}, {', '.join(map(str, numbers))}}},")
    major, minor = imitation.cuda.split(".")
    mismatch, broken = imitation.has("mismatch"), imitation.has("broken-driver")
    unknown = imitation.has("unknown-error")
    defined = {
        "LIBRARY_VERSION": json.dumps(imitation.library),
        "CUDA_VERSION": int(major) * 1000 + int(minor) * 10,
        "CU_INIT": 803 if mismatch else 999 if unknown else 100 if broken else 0,
        "NVML_INIT": 18 if mismatch else 9 if broken else 0,
        "HANGS": int(imitation.has("hang")),
        "NODE_MAJOR": _NODE[0],
        "NODE_MINOR": _NODE[1],
    }
    lines = [f"#define {name} {value}" for name, value in defined.items()]
    return "\n".join((*lines, "static const struct gpu gpus[] = {", *rows, "};", ""))


def smi(template: str, imitation: Imitation) -> str:
    """Return the stub of nvidia-smi, filled in."""
    rows = []
    for (*texts, (major, minor), device, memory, power, sm_mhz, sm_mhz_max, memory_mhz, mode, mig,
         throttling) in _rows(imitation):  # fmt: skip
        rows.append((
            *texts, f"{major}.{minor}", f"0x{device:04X}10DE", memory, f"{power}.00", sm_mhz,
            sm_mhz_max, memory_mhz, {0: "Default", 3: "Exclusive_Process"}[mode],
            {-1: "[N/A]", 0: "Disabled", 1: "Enabled"}[mig], f"0x{throttling:016X}",
        ))  # fmt: skip
    answers = {"hang": "hang", "mismatch": "mismatch", "broken-driver": "uncommunicative"}
    filled = {
        "DRIVER": imitation.driver,
        "LIBRARY": imitation.library,
        "CUDA": imitation.cuda,
        "ANSWER": next((answers[name] for name in answers if imitation.has(name)), "well"),
        "STRANGERS": int(imitation.has("busy")),
        "ROWS": "\n".join("|".join(map(str, row)) for row in rows),
    }
    for name, value in filled.items():
        template = template.replace(f"@{name}@", str(value))
    return template


def library_path(name: str, version: str) -> str:
    """Return the file that the link of a library's soname ends at."""
    return f"{_LIBRARIES}/{name}.{version}"


def cdi(imitation: Imitation) -> str:
    """Return a CDI file; JSON is YAML too.

    nvidia-ctk's hooks, which make links and the loader's cache, are not there: each library goes
    to its soname at once.
    """
    version = _OLDER if imitation.has("stale-cdi") else imitation.driver

    def node(path: str) -> dict[str, object]:
        if not imitation.has("stale-major"):
            return {"path": path}
        major, minor = _STALE_NODE
        return {"path": path, "type": "c", "major": major, "minor": minor}

    def mount(source: str, target: str) -> dict[str, object]:
        options = ["ro", "nosuid", "nodev", "bind"]
        return {"hostPath": source, "containerPath": target, "options": options}

    gpus = [node(f"/dev/nvidia{index}") for index in range(imitation.count)]
    edits = [(str(index), [gpu]) for index, gpu in enumerate(gpus)] + [("all", gpus)]
    libraries = [
        mount(library_path(f"{name}.so", version), f"{_LIBRARIES}/{name}.so.1")
        for name in ("libcuda", "libnvidia-ml")
    ]
    specification = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": given}} for name, given in edits
        ],
        "containerEdits": {
            "deviceNodes": [node("/dev/nvidiactl"), node("/dev/nvidia-uvm")],
            "mounts": [*libraries, mount("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi")],
        },
    }
    return json.dumps(specification, indent=2) + "\n"
