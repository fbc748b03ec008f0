"""The NVIDIA driver of a host: its state, its files, and how processes reach it.

This includes the way in which an engine gives a container the GPUs.
"""

from __future__ import annotations

import re
from dataclasses import replace

from envcompare.environments import (
    PATIENCE_S,
    Check,
    Environment,
    Gpu,
    Isolation,
    ask,
    run_inside,
    silent,
    unusable,
)
from envcompare.errors import CommandTimeoutError, Problem
from envcompare.gpu import MAKE_CDI, ON_BUS, SURVEY, HostGpus, driver_version, read_survey
from envcompare.stack import Symptom, recognise
from envcompare.text import Command, spoken
from envcompare.transport import Transport, shell

_PROBE = r"""
cat /proc/driver/nvidia/version || {
  [ ! -e /dev/dxg ] || exit 8
  ! command -v nvidia-smi >/dev/null || exit 7
  exit 3
}
ls /dev/nvidia[0-9]* >/dev/null || exit 4
! command -v nvidia-smi >/dev/null || {
  listed=$(nvidia-smi -L) && # which ends with 0 without a GPU too
    case $listed in *"GPU "[0-9]*) ;; *) false ;; esac
} || { printf '%s\n' "$listed" >&2; exit 5; }
! command -v python3 >/dev/null || env -u CUDA_VISIBLE_DEVICES python3 -c "$1" || exit 6
"""
# Lines for the device files, their groups and the variables, then the cache of ldconfig.
_FILES = r"""
for path in "$1"/nvidia[0-9]* "$1"/nvidiactl "$1"/nvidia-uvm "$1"/nvidia-uvm-tools \
    "$1"/nvidia-modeset "$1"/nvidia-caps/*; do
  [ -c "$path" ] || continue
  printf 'device %s\n' "$path"
  group=$(stat -Lc %g "$path")
  case " $(id -G) " in *" $group "*) printf 'group %s\n' "$group" ;; esac
done
for name in CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER; do
  ! value=$(printenv "$name") || printf 'variable %s %s\n' "$name" "$value"
done
PATH=$PATH:/usr/sbin:/sbin ldconfig -p
exit 0
"""
# The driver's libraries for computing; those for graphics are left out.
_LIBRARY = re.compile(
    r"\s*(lib(?:cuda|cudadebugger|nvidia-(?:ml|ptxjitcompiler|nvvm\d*|gpucomp|pkcs11\S*))\.so\S*)"
    r" \(libc6,(?:x86-64|AArch64)[^)]*\) => (/.+)"
)
_PROGRAM = """
import ctypes
cuda, count, text = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_char_p()
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
if code:
    cuda.cuGetErrorString(code, ctypes.byref(text))
    raise SystemExit(f"{(text.value or b'').decode()} (CUDA error {code})")
raise SystemExit(None if count.value else "CUDA counts no device")
"""
# A host may keep the driver's libraries only for its containers.
_ON_HOST = f"""
import ctypes
try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    raise SystemExit
{_PROGRAM}"""
RELOAD = "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; sudo nvidia-smi"
"""Reloads the kernel module if no process uses the GPU; nvidia-smi loads it as root."""
_ON_CPU = "or measure on the CPU with --device cpu"
_NO_MODULE = "no NVIDIA driver is loaded (/proc/driver/nvidia/version is missing)"
_SILENT = "the NVIDIA driver does not answer"
_REASONS = {
    3: (_NO_MODULE, f"install the NVIDIA driver, {_ON_CPU}"),
    4: (
        "the NVIDIA driver is loaded but /dev/nvidia0 is missing",
        f"run nvidia-smi once as root, give the devices to this container or VM, {_ON_CPU}",
    ),
    5: (_SILENT, f"run nvidia-smi on the host and fix what it reports, {_ON_CPU}"),
    6: ("CUDA cannot be started on the host", f"see what sudo dmesg says of NVRM, {_ON_CPU}"),
    7: (
        _NO_MODULE,
        f"run sudo modprobe nvidia; for a new kernel install the driver again, {_ON_CPU}",
    ),
    8: (
        "this is WSL 2, whose GPU belongs to the driver of Windows (/dev/dxg)",
        f"use a host that runs NVIDIA's driver for Linux, {_ON_CPU}",
    ),
}
_CAUSE = re.compile(r"^.*(?:Failed to initialize NVML|NVIDIA-SMI has failed).*$", re.MULTILINE)
# Messages of the driver's programs and libraries, with the remedy if known.
_SYMPTOMS = (
    Symptom(
        pattern=r"Driver/library version mismatch|CUDA error 803",
        brief="the driver was updated while its old kernel module is loaded",
        hint="reboot, or stop what uses the GPU (also nvidia-persistenced) and reload the module: "
        f"{RELOAD}",
    ),
    Symptom(
        pattern=r"Insufficient Permissions",
        brief="the device files are closed to this user",
        hint="see ls -l /dev/nvidia*, and add the user to their group: "
        'sudo usermod -aG video "$USER", then log in again',
    ),
    Symptom(
        pattern=r"CUDA error 802",
        brief="the GPUs of an NVSwitch system wait for the fabric manager",
        hint="install the one of this driver's version; sudo systemctl start nvidia-fabricmanager",
    ),
    Symptom(
        pattern=r"CUDA error 999",
        brief="nvidia_uvm does not work, as after a suspend",
        hint="reload it by sudo rmmod nvidia_uvm; sudo modprobe nvidia_uvm; else reboot",
    ),
)
_ONE_PROCESS = frozenset(("Exclusive_Thread", "Exclusive_Process", "Prohibited"))
_CDI_FOLDER = re.compile(r"^cdi (.+)\n((?:\|.*\n)*)", re.MULTILINE)
_CDI_DRIVER = re.compile(r"libcuda\.so\.(\d+(?:\.\d+)+)")
_CDI_NODE = re.compile(r"[{}]|^\| *- ", re.MULTILINE)  # between the entries of JSON and of YAML
_CDI_PATH = re.compile(r"\bpath\"?: *[\"']?(/dev/nvidia[\w-]+)")
_CDI_NUMBER = re.compile(r"\b(major|minor)\"?: *(\d+)")
# Reads the folders with CDI descriptions from its input.
CDI_PROBE = r"""while read -r folder; do
  for file in "$folder"/*.yaml "$folder"/*.json; do
    grep -Eq '"?kind"?: *"?nvidia\.com/gpu"?( |,|$)' "$file" 2>/dev/null || continue
    printf 'cdi %s\n' "$folder"
    sed 's/^/|/; $a\' "$file"
  done
done
stat -c 'node %n %t %T' /dev/nvidia* 2>/dev/null
"""


def survey(transport: Transport) -> HostGpus:
    """Return the driver and the GPUs of a host, by nvidia-smi or by its PCI bus.

    Raises CommandTimeoutError if nvidia-smi hangs and nothing else reports a GPU.
    """
    try:
        return read_survey(shell(transport, SURVEY, timeout_s=PATIENCE_S).stdout)
    except CommandTimeoutError:
        # `check_driver` reports a GPU whose driver hangs.
        known = glance(transport)
        if not known.is_expected:
            raise
        return known


def glance(transport: Transport) -> HostGpus:
    """Return driver and GPUs if none is used: nothing queries the driver itself."""
    return read_survey(shell(transport, ON_BUS, timeout_s=PATIENCE_S).stdout)


def check_driver(transport: Transport) -> Check:
    """Check driver, device files and nvidia-smi."""
    what, hint = "the NVIDIA driver", "run nvidia-smi on the host and fix what it reports"
    probe = Command(argv=("sh", "-c", _PROBE, "sh", _ON_HOST))
    result = ask(transport, probe, what=what, hint=hint)
    if isinstance(result, Check):
        return result
    version = driver_version(result.stdout)
    if result.succeeded:
        return Check(version=version)
    reason, hint = _REASONS.get(result.exit_code, _REASONS[5])
    if result.exit_code in {5, 6}:
        cause = _CAUSE.search(result.stderr)
        reason = f"{reason}: {cause[0].strip() if cause else result.tail(1)}"
        hint = f"{remedy}, {_ON_CPU}" if (remedy := _remedy(result.stderr)) else hint
    return unusable(reason, hint, version=version)


def check_setup(gpus: HostGpus) -> Check:
    """Check whether several processes can compute on the measured GPU, as arms do."""
    if gpus.is_choice_unknown:
        return unusable(
            f"CUDA_VISIBLE_DEVICES of the login is {spoken(gpus.visible or '')}, and the first GPU "
            "that it names is not there",
            "set it to a number or a UUID that nvidia-smi -L lists there, or unset it",
        )
    state = gpus.measured
    if state is None:
        return Check()
    only = f" -i {state.index}" if len(gpus.states) > 1 else ""
    if state.compute_mode in _ONE_PROCESS:
        return unusable(
            f"the compute mode of {state.name} is {state.compute_mode}, and every arm needs a "
            "process",
            f"sudo nvidia-smi{only} -c DEFAULT",
        )
    if state.has_mig and not state.instances:
        return unusable(
            f"MIG is on and {state.name} has no instance",
            f"make an instance (sudo nvidia-smi mig{only} -cgi 0 -C), or switch MIG off: "
            f"sudo nvidia-smi{only} -mig 0",
        )
    return Check(version="several processes may use it")


def check_choice(gpus: HostGpus) -> Check | None:
    """Return which of several GPUs or MIG devices is measured; None without a choice."""
    state = gpus.measured
    is_number = gpus.visible is None or gpus.visible[:1].isdecimal()
    if state is None and is_number and not gpus.is_order_known:
        choice = f"the first by CUDA's own order of {len(gpus.states)} GPUs of different models"
        name = "the UUID of a GPU (nvidia-smi -L)"
    elif state is None or (len(gpus.states) < 2 and not state.has_mig):
        return None
    elif state.has_mig:
        first = (gpus.visible or "").partition(",")[0].strip()
        chosen = first if first.startswith("MIG-") else next(iter(state.instances), "none")
        choice = f"the MIG device {chosen} of {state.name}, one of {len(state.instances)}"
        name = "the UUID of a MIG device (nvidia-smi -L)"
    else:
        choice = f"GPU {state.index} of {len(gpus.states)}: {state.name} ({state.uuid})"
        name = "the UUID of another one (nvidia-smi -L)"
    hint = f"to measure on another one, set CUDA_VISIBLE_DEVICES there to {name}"
    return Check(version=choice, caution=Problem(brief="only this one is measured", hint=hint))


def check_clocks(gpus: HostGpus) -> Check | None:
    """Return what lowers the clocks of the measured GPU; None if unknown."""
    state = gpus.measured
    if state is None:
        return None
    if not state.throttling:
        return Check(version="nothing holds them down")
    return unusable(
        f"the clocks of {state.name} are held down: {', '.join(state.throttling)}",
        "see nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE",
    )


def _remedy(output: str) -> str:
    known = recognise(_SYMPTOMS, output)
    return f"{known.brief}: {known.hint}" if known else ""


def find(transport: Transport, driver: Check) -> Check:
    """Return the result of `check_driver`, with the files that a container needs.

    A broken driver's result is returned unchanged.
    """
    if not driver.is_usable:
        return driver
    what, hint = "the loader's cache", "run ldconfig -p on the host and fix what it reports"
    result = ask(transport, files_command("/dev"), what=what, hint=hint)
    if isinstance(result, Check):
        return result
    found = read_files(result.stdout)
    if found.way == "none":
        return unusable(
            "CUDA_VISIBLE_DEVICES of the login hides every GPU",
            f"unset it there, {_ON_CPU}",
            version=driver.version,
        )
    return replace(driver, gpu=found)


def files_command(folder: str) -> Command:
    """Return the command that lists the driver's files, with devices from the folder."""
    return Command(argv=("sh", "-c", _FILES, "sh", folder))


def read_files(text: str) -> Gpu:
    """Parse the output of the command of `files_command`.

    There is no way to a GPU if the user's own CUDA_VISIBLE_DEVICES hides them all.
    """
    entries = [line.split(" ", 1) for line in text.splitlines() if " " in line]
    pairs = [tuple(rest[0].split(" ", 1)) for word, *rest in entries if word == "variable"]
    variables = tuple((name, value[0] if value else "") for name, *value in pairs)
    chosen = dict(variables).get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and (not chosen or chosen.startswith(("-", "NoDev"))):
        return Gpu(variables=variables)
    libraries: dict[str, str] = {}
    for match in filter(None, map(_LIBRARY.fullmatch, text.splitlines())):
        libraries.setdefault(match[1], match[2])
    return Gpu(
        way="devices",
        devices=tuple(rest[0] for word, *rest in entries if word == "device"),
        groups=tuple(dict.fromkeys(rest[0] for word, *rest in entries if word == "group")),
        libraries=tuple(libraries.items()),
        variables=variables,
    )


def gpu_way(probed: str, driver: Check, *, missing: Problem) -> Check:
    """Return how an engine gives a container the GPUs, from the output of the probe.

    The problem `missing` is for an engine without a way.
    """
    by_folder: dict[str, str] = {}
    for match in _CDI_FOLDER.finditer(probed):
        by_folder[match[1]] = by_folder.get(match[1], "") + match[2]
    # An engine takes a device from the folder that it names last, and each file there is complete.
    description = next(reversed(by_folder.values()), "")
    stale = _stale(description, probed, driver.version or "")
    if description and not stale:
        return replace(driver, gpu=replace(driver.gpu, way="cdi"))
    caution = Problem(brief=stale, hint=MAKE_CDI) if stale else None
    if "engine" in probed.splitlines():
        return replace(driver, gpu=replace(driver.gpu, way="engine"), caution=caution)
    if "libcuda.so.1" in dict(driver.gpu.libraries):
        return replace(driver, caution=caution)
    return Check(problem=caution or missing, version=driver.version)


def _stale(description: str, text: str, driver: str) -> str:
    """Return how a CDI description differs from the host; empty if it does not."""
    described = set(_CDI_DRIVER.findall(description))
    if driver and described and driver not in described:
        versions = ", ".join(sorted(described))
        return f"the CDI description is stale: it is of driver {versions}, and {driver} is loaded"
    lines = (line.split(" ") for line in text.splitlines() if line.startswith("node "))
    numbers = {path: f"{int(major, 16)}:{int(minor, 16)}" for _, path, major, minor in lines}
    for entry in _CDI_NODE.split(description):
        path, number = _CDI_PATH.search(entry), dict(_CDI_NUMBER.findall(entry))
        given = f"{number.get('major')}:{number.get('minor')}"
        if path and len(number) == 2 and numbers.get(path[1], given) != given:
            return (
                f"the CDI description is stale: it gives {path[1]} the device number {given}, "
                f"and the driver has {numbers[path[1]]}"
            )
    return ""


def check_inside(
    transport: Transport, where: Environment, command: Command, isolation: Isolation
) -> Check:
    """Check whether the interpreter that `command` starts reaches a GPU in the environment.

    Engines may provide none without a message, so CUDA itself is asked.
    """
    program = replace(command, argv=(*command.argv, "-c", _PROGRAM))
    what, hint = "CUDA", "run nvidia-smi there, and see what the kernel's log says"
    try:
        result = run_inside(
            transport, program, where=where, isolation=isolation, timeout_s=PATIENCE_S
        )
    except CommandTimeoutError:
        return silent(what, hint=hint)
    if result.succeeded:
        return Check()
    problem = where.explain(result.exit_code, result.stderr) or Problem(brief=result.tail(1))
    return unusable(
        f"a process in it does not reach the GPU: {problem.brief}",
        problem.hint
        or _remedy(result.stderr)
        or "compare ls -l /dev/nvidia* and ldconfig -p there with the host, or use --device cpu",
    )
