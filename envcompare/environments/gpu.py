"""Whether the NVIDIA driver of a host works, asked without any container engine."""

from __future__ import annotations

import re

from envcompare.command import Command
from envcompare.environments import Check
from envcompare.environments.asking import ask
from envcompare.transport import Transport

_PROBE = r"""
cat /proc/driver/nvidia/version || exit 3
ls /dev/nvidia[0-9]* >/dev/null || exit 4
! command -v nvidia-smi >/dev/null || nvidia-smi -L >&2 || exit 5
"""
# "NVIDIA UNIX x86_64 Kernel Module  535.104.05  ..." and the open module's
# "NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build ..."
_VERSION = re.compile(r"Kernel Module(?: for \S+)?\s+([\d.]+)")
_REASONS = {
    3: (
        "no NVIDIA driver is loaded (/proc/driver/nvidia/version is missing)",
        "install the NVIDIA driver, or measure on the CPU",
    ),
    4: (
        "the NVIDIA driver is loaded but /dev/nvidia0 is missing",
        "run nvidia-smi once as root, or give the devices to this container or VM",
    ),
    5: ("the NVIDIA driver does not answer", "run nvidia-smi on the host and mend what it says"),
}


def driver_version(text: str) -> str | None:
    """Read the driver's version from the text of /proc/driver/nvidia/version."""
    found = _VERSION.search(text)
    return found[1] if found else None


def check_driver(transport: Transport) -> Check:
    """Say whether driver, device files and nvidia-smi are in order."""
    what, hint = "the NVIDIA driver", "run nvidia-smi on the host and mend what it says"
    result = ask(transport, Command(argv=("sh", "-c", _PROBE)), what=what, hint=hint)
    if isinstance(result, Check):
        return result
    version = driver_version(result.stdout)
    if result.succeeded:
        return Check(is_usable=True, version=version)
    reason, hint = _REASONS.get(result.exit_code, _REASONS[5])
    if result.exit_code == 5:
        reason = f"{reason}: {result.tail(1)}"
    return Check(is_usable=False, version=version, reason=reason, hint=hint)
