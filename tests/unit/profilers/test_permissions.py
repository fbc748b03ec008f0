"""Who may read a GPU's counters, in each environment, and the remedy where nobody may."""

from __future__ import annotations

import pytest

from envcompare.environments import Check
from envcompare.environments.registry import environment
from envcompare.profilers.ncu import OPEN_FOR_ALL
from envcompare.profilers.toolbox import Permission, Rights, find_rights, permission, read_rights
from envcompare.transport import LOCAL

USER = Rights(is_restricted=True, is_admin=False, uid=1000)
ROOT = Rights(is_restricted=True, is_admin=True, uid=0)
OPEN = Rights(is_restricted=False, is_admin=False, uid=1000)
ALL_CAPABILITIES = "000001ffffffffff"


def allowed(name: str, rights: Rights) -> Permission:
    """Return whether counters can be read in the environment of that name."""
    return permission(environment(name).traits.counters, rights)


@pytest.mark.parametrize("name", ["vm", "docker", "singularity"])
def test_a_driver_that_restricts_nothing_asks_for_nothing(name: str) -> None:
    """No container gets a capability that it does not need."""
    found = allowed(name, OPEN)
    assert found.check.is_usable
    assert found.capabilities == ()


def test_a_user_of_the_host_needs_root_or_the_option_of_the_driver() -> None:
    """Both remedies stand in the hint."""
    check = allowed("vm", USER).check
    assert not check.is_usable
    assert check.hint == f"log in as root, or: {OPEN_FOR_ALL}"
    assert allowed("vm", ROOT).check.is_usable


def test_docker_gets_the_capability_whoever_the_user_is() -> None:
    """Its daemon is root of the host."""
    assert allowed("docker", USER).capabilities == ("SYS_ADMIN",)


def test_a_container_without_privileges_needs_the_option_of_the_driver() -> None:
    """A capability of a user namespace is not the host's, so that no flag helps."""
    found = allowed("singularity", USER)
    assert (found.check.is_usable, found.check.hint) == (False, OPEN_FOR_ALL)
    assert "user namespace" in found.check.reason
    assert allowed("singularity", ROOT).capabilities == ("SYS_ADMIN",)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((f"capabilities={ALL_CAPABILITIES}", "namespace=initial"), True),
        ((f"capabilities={ALL_CAPABILITIES}",), False),
        (("capabilities=00000000a80425fb", "namespace=initial"), False),
    ],
)
def test_root_of_a_container_is_no_administrator(lines: tuple[str, ...], *, expected: bool) -> None:
    """The driver asks for the capability of the host itself."""
    rights = read_rights("\n".join(("restricted=1", *lines, "uid=0")))
    assert rights.is_admin is expected
    assert rights.is_restricted


def test_this_machine_tells_who_asks() -> None:
    """The script runs in any POSIX shell."""
    found = find_rights(LOCAL)
    assert not isinstance(found, Check)
    assert found.uid >= 0


@pytest.mark.parametrize(
    ("driver", "capabilities", "expected"),
    [
        ("570", "0000004000000000", True),
        ("550", "0000004000000000", False),
        ("570", "0000000000000000", False),
    ],
)
def test_perfmon_is_enough_from_driver_565_on(
    driver: str, capabilities: str, *, expected: bool
) -> None:
    """It is less than the right to administer the host."""
    lines = ("restricted=1", f"driver={driver}", f"capabilities={capabilities}",
             "namespace=initial", "uid=1000")  # fmt: skip
    check = allowed("vm", read_rights("\n".join(lines))).check
    assert check.is_usable is expected
    if not expected:
        assert ("or with CAP_PERFMON" in check.hint) is (driver == "570")


def test_the_option_of_the_driver_is_had_without_a_reboot() -> None:
    """The module is loaded again with it."""
    assert "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; sudo nvidia-smi" in OPEN_FOR_ALL
