"""Profilers of a host: found wherever NVIDIA and Debian put them, or missed with a remedy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from envcompare.doctor.checks import tool_check
from envcompare.environments import Check
from envcompare.profilers import Tool
from envcompare.profilers.ncu import Ncu
from envcompare.profilers.nsys import Nsys
from envcompare.transport import LOCAL

MACHINE = "x64" if os.uname().machine == "x86_64" else "a64"
NEEDED = ("bash", "dirname", "env", "grep", "readlink", "sed", "sh", "sort", "tail", "tr", "uname")


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that alone is on PATH, with what a host has at least."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in NEEDED:
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(path: Path, said: str) -> Path:
    """Make a program that tells its version and a few options."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\ncase $* in --version) echo "{said}";; *) echo "  --cpuctxsw=";; esac\n'
    )
    path.chmod(0o755)
    return path


def test_nsys_is_found_with_the_folder_that_it_needs_around_it(tmp_path: Path) -> None:
    """The highest version counts, and what turns its raw files into reports is noted."""
    base = tmp_path / "opt/nvidia/nsight-systems"
    for version in ("2023.4.1", "2024.11.1", "2024.5.1"):
        program(base / version / f"target-linux-{MACHINE}" / "nsys", f"nsys version {version}-1")
    for cuda in ("9.2", "11.8", "12.6"):
        (base / f"2024.11.1/target-linux-{MACHINE}/libcupti.so.{cuda}").touch()
    importer = program(base / "2024.11.1" / f"host-linux-{MACHINE}" / "QdstrmImporter", "")
    assert _tool("nsys", tmp_path) == Tool(
        name="nsys",
        program=str(base / f"2024.11.1/target-linux-{MACHINE}/nsys"),
        folder=str(base / "2024.11.1"),
        version="2024.11.1",
        options=("--cpuctxsw",),
        importer=str(importer),
        cuda="12.6",
    )


@pytest.mark.parametrize(
    ("cuda", "driver", "is_behind"),
    [("11.8", "570.86.10", True), ("12.6", "570.86.10", False), ("12.8", "580.65.06", True),
     ("12.8", None, False), ("", "580.65.06", False)],
)  # fmt: skip
def test_a_tool_older_than_the_cuda_of_the_driver_is_named(
    cuda: str, driver: str | None, *, is_behind: bool
) -> None:
    """It is used all the same: nsys then traces by the libraries that it has."""
    tool = Tool(name="nsys", program="/nsys", folder="/", version="2022.4.2", cuda=cuda)
    check = tool_check(tool, driver)
    assert check.is_usable
    assert (f"traces CUDA up to {cuda}, but driver {driver}" in check.reason) == is_behind


def test_a_link_on_path_leads_to_the_program_itself(tmp_path: Path, path: Path) -> None:
    """Nsys refuses to run by another path than its own."""
    real = program(tmp_path / f"lib/nsight/target-linux-{MACHINE}/nsys", "version 2022.4.2.1-df")
    (path / "nsys").symlink_to(real)
    found = _tool("nsys", tmp_path)
    assert (found.program, found.folder) == (str(real), str(tmp_path / "lib/nsight"))
    assert found.version == "2022.4.2.1"


def test_a_script_on_path_is_passed_over_for_what_it_starts(tmp_path: Path, path: Path) -> None:
    """CUDA's own is such a script; it is not there in a container."""
    program(path / "nsys", "a script")
    real = tmp_path / f"usr/local/cuda-12.4/nsight-systems-2024.1.1/target-linux-{MACHINE}/nsys"
    program(real, "version 2024.1.1.59")
    found = _tool("nsys", tmp_path)
    assert found.program == str(real)


def test_ncu_is_found_below_the_folder_of_its_script(tmp_path: Path, path: Path) -> None:
    """The script needs bash, which a small image may lack."""
    root = tmp_path / "opt/nvidia/nsight-compute/2024.1.1"
    script = program(root / "ncu", "a script")
    real = program(root / f"target/linux-desktop-glibc_2_11_3-{MACHINE}/ncu", "Version 2024.1.1.0")
    (path / "ncu").symlink_to(script)
    found = _tool("ncu", tmp_path)
    assert (found.program, found.folder, found.version) == (str(real), str(root), "2024.1.1.0")


def test_ncu_is_found_where_it_is_not_on_path(tmp_path: Path) -> None:
    """The PATH of a command over SSH is often short."""
    base = tmp_path / "usr/local/cuda-11.8/nsight-compute-2022.3.0"
    real = program(base / f"target/linux-desktop-glibc_2_11_3-{MACHINE}/ncu", "Version 2022.3.0.0")
    found = _tool("ncu", tmp_path)
    assert found.program == str(real)


@pytest.mark.parametrize(
    ("name", "title"), [("nsys", "Nsight Systems (nsys)"), ("ncu", "Nsight Compute (ncu)")]
)
def test_a_tool_that_is_not_there_is_said_with_its_package(
    tmp_path: Path, name: str, title: str
) -> None:
    """The hint is a command."""
    found = _missing(name, tmp_path)
    assert found.reason == f"{title} is not installed"
    assert "sudo apt-get install nsight-" in found.hint


@pytest.mark.parametrize("name", ["nsys", "ncu"])
def test_ubuntu_is_given_the_packages_of_nvidias_repository(tmp_path: Path, name: str) -> None:
    """Its own are years old, and NVIDIA's have the version in their names."""
    release = tmp_path / "etc/os-release"
    release.parent.mkdir()
    release.write_text('NAME="Ubuntu"\nVERSION_ID="22.04"\nID=ubuntu\nID_LIKE=debian\n')
    found = _missing(name, tmp_path)
    package = {"nsys": "nsight-systems", "ncu": "nsight-compute"}[name]
    assert f'apt-get install "$(apt-cache pkgnames {package}-20 | sort -V' in found.hint
    assert "non-free" not in found.hint


def test_a_tool_that_does_not_start_is_said_with_its_last_words(tmp_path: Path) -> None:
    """Debian's needs libraries that NVIDIA's brings along."""
    path = tmp_path / f"usr/lib/nsight-systems/target-linux-{MACHINE}/nsys"
    program(path, "libelf.so.1: cannot open shared object file")
    found = _missing("nsys", tmp_path)
    assert found.reason.endswith("libelf.so.1: cannot open shared object file")


def _found(name: str, root: Path) -> Tool | Check:
    profilers = {"nsys": Nsys(root=str(root)), "ncu": Ncu(root=str(root))}
    return profilers[name].discover(LOCAL)


def _tool(name: str, root: Path) -> Tool:
    found = _found(name, root)
    assert isinstance(found, Tool)
    return found


def _missing(name: str, root: Path) -> Check:
    found = _found(name, root)
    assert isinstance(found, Check)
    return found
