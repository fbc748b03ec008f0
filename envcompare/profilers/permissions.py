"""Who may read a GPU's counters: the one place that knows, for each environment, and the remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envcompare.command import Command
from envcompare.config.arms import CounterAccess
from envcompare.environments import Check, unusable
from envcompare.environments.running import ask
from envcompare.transport import Transport

_SYS_ADMIN = 21  # linux/capability.h
_ASK = r"""
sed -n 's/^RmProfilingAdminOnly: */restricted=/p' /proc/driver/nvidia/params 2>/dev/null
sed -n 's/^CapEff:[[:space:]]*/capabilities=/p' /proc/self/status
[ "$(tr -s ' ' </proc/self/uid_map)" != ' 0 0 4294967295' ] || echo namespace=initial
echo "uid=$(id -u)"
"""
OPEN_FOR_ALL = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | "
    "sudo tee /etc/modprobe.d/nvidia-profiling.conf, then reboot (where the initramfs holds the "
    "module, rebuild it first)"
)
"""What lets every user of a host read the counters, in every environment."""

_CLOSED = "the driver lets only an administrator read the GPU's counters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What the driver of a host asks for, and what this login has."""

    is_restricted: bool
    is_admin: bool  # CAP_SYS_ADMIN of the host itself, not of a user namespace
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """Whether counters can be read in an environment, and what a container needs for it."""

    check: Check
    capabilities: tuple[str, ...] = ()


def find_rights(transport: Transport) -> Rights | Check:
    """Return what the driver restricts and what this login may do; a check where none answers."""
    hint = "look into /proc/driver/nvidia/params there"
    result = ask(transport, Command(argv=("sh", "-c", _ASK)), what="the host", hint=hint)
    return result if isinstance(result, Check) else read_rights(result.stdout)


def read_rights(text: str) -> Rights:
    """Read the lines `name=value` that a host has answered; a driver that tells nothing is open."""
    facts = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    said, uid = facts.get("capabilities", ""), facts.get("uid", "")
    effective = int(said, 16) if re.fullmatch(r"[0-9a-fA-F]+", said) else 0
    return Rights(
        is_restricted=facts.get("restricted") == "1",
        is_admin=bool(effective >> _SYS_ADMIN & 1) and facts.get("namespace") == "initial",
        uid=int(uid) if uid.isdecimal() else -1,
    )


def permission(access: CounterAccess, rights: Rights) -> Permission:
    """Return whether counters can be read in an environment with such access; pure."""
    if not rights.is_restricted:
        return Permission(check=Check(version="open to every user"))
    if access == "granted":  # its daemon is root of the host, and only root inside has the use
        said = "restricted; the containers of counter passes get SYS_ADMIN, and root inside"
        return Permission(check=Check(version=said), capabilities=("SYS_ADMIN",))
    if access == "root":
        if rights.is_admin and rights.uid == 0:
            said = "restricted; counter passes get CAP_SYS_ADMIN"
            return Permission(check=Check(version=said), capabilities=("SYS_ADMIN",))
        return _closed(OPEN_FOR_ALL, more=", which a process in a user namespace never is")
    if rights.is_admin:
        return Permission(check=Check(version="restricted, and this login may"))
    return _closed(f"log in as root, or: {OPEN_FOR_ALL}")


def _closed(hint: str, *, more: str = "") -> Permission:
    return Permission(check=unusable(f"{_CLOSED}{more}", hint))
