"""What is read from control groups of both versions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from harness.facts.cgroups import (
    Cgroup,
    cpu_quota,
    group_of,
    read_text,
    throttled_ns,
    throttled_periods,
    within,
)
from harness.facts.libraries import UNREADABLE, short_hash


def group(folder: Path, version: int, **files: str) -> Cgroup:
    """Write the files of a group (`__` is a dot) and return it with its parent folder."""
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")
    return Cgroup(version, (str(folder), str(folder.parent)))


@pytest.mark.parametrize(
    ("version", "files", "expected"),
    [
        (2, {"cpu__max": "150000 100000"}, 1.5),
        (2, {"cpu__max": "max 100000"}, "unlimited"),
        (1, {"cpu__cfs_quota_us": "50000", "cpu__cfs_period_us": "100000"}, 0.5),
        (1, {"cpu__cfs_quota_us": "-1", "cpu__cfs_period_us": "100000"}, "unlimited"),
    ],
)
def test_cpu_quota_is_counted_in_cpus(
    tmp_path: Path, version: int, files: dict[str, str], expected: Any
) -> None:
    """Both versions write a quota and a period; none is `unlimited`."""
    assert cpu_quota(group(tmp_path / "own", version, **files)) == expected


def test_tightest_quota_counts_when_the_group_above_has_one(tmp_path: Path) -> None:
    """A limit above the own group binds as well."""
    (tmp_path / "cpu.max").write_text("100000 100000")
    assert cpu_quota(group(tmp_path / "own", 2, cpu__max="max 100000")) == 1.0


@pytest.mark.parametrize(
    ("version", "text", "expected"),
    [
        (2, "usage_usec 9\nthrottled_usec 25", 25_000),
        (1, "nr_throttled 2\nthrottled_time 25", 25),
        (2, "usage_usec 9", None),
    ],
)
def test_throttling_is_in_nanoseconds(
    tmp_path: Path, version: int, text: str, expected: Any
) -> None:
    """Version 2 counts microseconds, version 1 nanoseconds; a root group has none."""
    assert throttled_ns(group(tmp_path / "own", version, cpu__stat=text)) == expected


V2_STAT = """usage_usec 2231445
user_usec 1900112
system_usec 331333
core_sched.force_idle_usec 0
nr_periods 120
nr_throttled 17
throttled_usec 351200
nr_bursts 0
burst_usec 0"""
V1_STAT = """nr_periods 120
nr_throttled 17
throttled_time 351200000
nr_bursts 0
burst_time 0"""


@pytest.mark.parametrize(("version", "text"), [(2, V2_STAT), (1, V1_STAT)])
def test_throttling_is_found_in_the_whole_file_of_a_kernel(
    tmp_path: Path, version: int, text: str
) -> None:
    """The same third of a second, as either version writes it; a quota above stops as well."""
    (tmp_path / "cpu.stat").write_text(text + "\n")
    found = group(tmp_path / "own", version, cpu__stat=text)
    assert (throttled_ns(found), throttled_periods(found)) == (2 * 351_200_000, 2 * 17)


def test_nothing_is_measured_where_there_is_no_group() -> None:
    """A missing hierarchy gives None, not 0."""
    nowhere = Cgroup(0, ())
    assert (throttled_ns(nowhere), throttled_periods(nowhere)) == (None, None)
    assert cpu_quota(nowhere) is None


def test_group_of_is_found_on_this_machine() -> None:
    """The folders are real, the own one first."""
    found = group_of("memory")
    assert all(Path(folder).is_dir() for folder in found.folders)
    assert list(found.folders) == sorted(found.folders, key=len, reverse=True)


def test_files_of_a_container_are_read_within_bounds(tmp_path: Path) -> None:
    """A path there may lead to a device or a pipe, which never end, or out of the container."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        assert read_text(str(tmp_path / name)) is None
        assert short_hash(str(tmp_path / name)) == UNREADABLE
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "run").mkdir()
    (root / "run/own").write_text("inside")
    (tmp_path / "own").write_text("outside")
    for name, target in (("a", "/run/own"), ("b", "../../../run/own"), ("c", "a"), ("d", "d")):
        (root / "etc" / name).symlink_to(target)
    for name in "abc":
        assert read_text(within(str(root), f"/etc/{name}")) == "inside"
    with pytest.raises(OSError, match="symbolic links"):
        within(str(root), "/etc/d")
    assert within(str(root), "/etc/../../x") == f"{root}/x"
