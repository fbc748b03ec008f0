"""The NVIDIA driver of a host: whether it works, its files, and whether a process reaches it."""

from __future__ import annotations

import re
from dataclasses import replace

from envcompare.command import Command
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
from envcompare.gpu.devices import SURVEY, HostGpus, driver_version, read_survey
from envcompare.transport import Transport, shell

_PROBE = r"""
cat /proc/driver/nvidia/version || exit 3
ls /dev/nvidia[0-9]* >/dev/null || exit 4
! command -v nvidia-smi >/dev/null || nvidia-smi -L >&2 || exit 5
"""
# Lines for the device files, their groups and the variables, then what ldconfig shows of its cache.
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
# What computing needs of the driver; its libraries for graphics are left out.
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
    raise SystemExit((text.value or b"").decode() or f"CUDA error {code}")
raise SystemExit(None if count.value else "CUDA counts no device")
"""
_ON_CPU = "or measure on the CPU with --device cpu"
_REASONS = {
    3: (
        "no NVIDIA driver is loaded (/proc/driver/nvidia/version is missing)",
        f"install the NVIDIA driver, {_ON_CPU}",
    ),
    4: (
        "the NVIDIA driver is loaded but /dev/nvidia0 is missing",
        f"run nvidia-smi once as root, give the devices to this container or VM, {_ON_CPU}",
    ),
    5: (
        "the NVIDIA driver does not answer",
        f"run nvidia-smi on the host and fix what it reports, {_ON_CPU}",
    ),
}


def survey(transport: Transport) -> HostGpus:
    """Return the driver and the GPUs of a host, by nvidia-smi or by its PCI bus."""
    return read_survey(shell(transport, SURVEY, timeout_s=PATIENCE_S).stdout)


def check_driver(transport: Transport) -> Check:
    """Say whether driver, device files and nvidia-smi are in order."""
    what, hint = "the NVIDIA driver", "run nvidia-smi on the host and fix what it reports"
    result = ask(transport, Command(argv=("sh", "-c", _PROBE)), what=what, hint=hint)
    if isinstance(result, Check):
        return result
    version = driver_version(result.stdout)
    if result.succeeded:
        return Check(version=version)
    reason, hint = _REASONS.get(result.exit_code, _REASONS[5])
    if result.exit_code == 5:
        reason = f"{reason}: {result.tail(1)}"
    return unusable(reason, hint, version=version)


def find(transport: Transport) -> Check:
    """Say whether the driver works, and which of its files a container would need."""
    driver = check_driver(transport)
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
    """Return the command that lists the driver's files, its devices those in the folder."""
    return Command(argv=("sh", "-c", _FILES, "sh", folder))


def read_files(text: str) -> Gpu:
    """Read what the command of `files_command` wrote.

    There is no way to a GPU where the user's own CUDA_VISIBLE_DEVICES hides them all.
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


def check_inside(
    transport: Transport, where: Environment, command: Command, isolation: Isolation
) -> Check:
    """Say whether the interpreter that `command` starts reaches a GPU in the environment.

    Engines may give a container none and say nothing, so CUDA itself is asked.
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
        or "compare ls -l /dev/nvidia* and ldconfig -p there with the host, or use --device cpu",
    )
