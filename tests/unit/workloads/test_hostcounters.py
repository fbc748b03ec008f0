"""The counters of the host: what was asked for is counted, and nothing that is missing is 0."""

from __future__ import annotations

import errno
import json
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.counters import hostcounters, perfevents
from harness.facts import machine
from hypothesis import given
from hypothesis import strategies as st

PAGES = 500
MACHINE_READS_TRACEFS = any(
    os.access(f"{folder}/{hostcounters.CALLS_ID}", os.R_OK) for folder in hostcounters.TRACEFS
)


def touch() -> None:
    """Write to so many pages of memory that were never used."""
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(PAGES):
            area[page * mmap.PAGESIZE] = 1


def read_once() -> None:
    """Make one call of read."""
    file = os.open("/dev/zero", os.O_RDONLY)
    os.read(file, 1)
    os.close(file)


def counted(step: Callable[[], Any], k: int = 3) -> dict[str, dict[str, Any]]:
    """Return the counters of k steps."""
    found: dict[str, dict[str, Any]] = hostcounters.count(step, k)["counters"]
    return found


def test_faults_of_the_steps_are_counted() -> None:
    """Each page that is touched first is a fault, in the steps asked for and in no others."""
    few, many = (counted(touch, k)["minor_faults"]["value"] for k in (2, 6))
    assert 2 * PAGES <= few < 3 * PAGES
    assert 6 * PAGES <= many < 7 * PAGES


def test_kernel_counts_the_faults_of_every_thread() -> None:
    """A thread that lived before the steps, and one that a step starts, are counted as well."""
    begin, done = threading.Barrier(2), threading.Barrier(2)

    def live() -> None:
        begin.wait()
        touch()
        done.wait()

    old = threading.Thread(target=live)
    old.start()

    def step() -> None:
        begin.wait()
        done.wait()
        young = threading.Thread(target=touch)
        young.start()
        young.join()

    found = counted(step, 1)
    old.join()
    faults = found["page_faults"]
    if faults["value"] is None:
        assert faults["reason"]
        pytest.skip(faults["reason"])
    assert 2 * PAGES <= faults["value"] < 3 * PAGES


def test_calls_of_read_are_counted_without_those_of_the_counter() -> None:
    """The lower bound of system calls holds what the steps have read, and no look at itself."""
    assert [counted(read_once, k)["read_calls"]["value"] for k in (5, 9)] == [5, 9]


def test_counter_has_a_value_or_a_reason_and_never_both() -> None:
    """What a machine, a container or a kernel does not offer is told, and is not 0."""
    for name, one in counted(int).items():
        assert (one["value"] is None) == bool(one["reason"]), name
    assert {"cycles", "instructions", "context_switches", "task_clock_ns"} < set(counted(int))


UNPRIVILEGED = """
import ctypes, json, os, sys
sys.path.insert(0, sys.argv[1])
from harness.counters import hostcounters
os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: its own /proc stays readable
print(json.dumps(hostcounters.count(lambda: bytearray(5_000_000), 5)["counters"]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_what_a_plain_user_may_not_count_is_told_apart() -> None:
    """Where the kernel's part is closed, counts are marked as without it, and clocks go on."""
    level = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    folder = str(Path(hostcounters.__file__).parents[2])
    argv = [sys.executable, "-B", "-c", UNPRIVILEGED, folder]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["minor_faults"]["value"] > 0
    if level == 2:
        assert found["page_faults"]["has_kernel"] is False
        assert found["page_faults"]["value"] > 0
        assert (found["task_clock_ns"]["value"] > 0, found["task_clock_ns"]["has_kernel"]) == (
            True,
            True,
        )
        assert found["context_switches"]["value"] is None
        assert "perf_event_paranoid is 2" in found["context_switches"]["reason"]


def test_what_mends_refused_counters_is_said_once() -> None:
    """Several counters are refused for one reason; the answer has each remedy once."""
    answer = hostcounters.count(read_once, 2)
    hints = [one["hint"] for one in answer["counters"].values() if one["hint"]]
    assert answer["hint"].split("; ") == (list(dict.fromkeys(hints)) or [""])


def test_system_calls_are_counted_where_the_kernel_shows_its_events() -> None:
    """Elsewhere what is missing is named, and how it is made readable."""
    found = counted(read_once, 20)["system_calls"]
    if not MACHINE_READS_TRACEFS:
        assert (found["value"], found["reason"]) == (None, hostcounters.NO_TRACEFS)
        assert "mounted" in found["hint"]
    elif found["value"] is not None:
        assert 60 <= found["value"] <= 80  # open, read and close, and what stops the counter


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOENT, perfevents.NO_COUNTER),
        (errno.EOPNOTSUPP, perfevents.NO_COUNTER),
        (errno.EMFILE, "perf_event_open: Too many open files"),
        (errno.ENOSYS, "perf_event_open: Function not implemented"),
    ],
)
def test_refusal_says_what_the_kernel_means(number: int, reason: str) -> None:
    """A counter that does not exist is told apart from one that may not be read."""
    assert perfevents.refusal(number).reason == reason


@pytest.mark.parametrize(
    ("status", "number", "reason", "hint"),
    [
        ("Seccomp:\t2\n", errno.EPERM, perfevents.SECCOMP, perfevents.SECCOMP_HINT),
        ("Seccomp:\t2\n", errno.EACCES, "kernel.perf_event_paranoid is 3 here", None),
        ("Seccomp:\t0\n", errno.EPERM, "kernel.perf_event_paranoid is 3 here", None),
    ],
)
def test_what_forbids_the_counters_is_named(
    monkeypatch: pytest.MonkeyPatch, status: str, number: int, reason: str, hint: str | None
) -> None:
    """Docker's filter answers EPERM, the kernel's own level EACCES."""
    texts = {"/proc/self/status": status, perfevents._PARANOID: "3"}
    monkeypatch.setattr(perfevents, "read_text", texts.get)
    found = perfevents.refusal(number)
    level = "sysctl kernel.perf_event_paranoid=1, as root of the host"
    assert (found.value, found.reason, found.hint) == (None, reason, hint or level)


FEW_FILES = """
import json, os, resource, sys
sys.path.insert(0, sys.argv[1])
from harness.counters import hostcounters, perfevents
limit = len(os.listdir("/proc/self/fd")) + perfevents.SPARE_FILES
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
kept = []
step = lambda: kept.extend(open("/dev/null") for _ in range(10))
print(json.dumps([hostcounters.count(step, 5)["counters"], len(kept)]))
"""


def test_counters_leave_open_files_to_the_workload() -> None:
    """Where the limit is low, counters are given up and not the steps."""
    folder = str(Path(hostcounters.__file__).parents[2])
    argv = [sys.executable, "-B", "-W", "ignore", "-c", FEW_FILES, folder]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found, opened = json.loads(done.stdout)
    assert opened == 50
    assert found["minor_faults"]["value"] is not None
    refused = [one for one in found.values() if one["reason"] == perfevents.NO_ROOM]
    assert len(refused) >= 10
    assert {one["hint"] for one in refused} == {perfevents.NO_ROOM_HINT}


INTEL = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {}\nflags\t\t: fpu {}\n"
AMD = "vendor_id\t: AuthenticAMD\ncpu family\t: {}\nmodel\t\t: {}\nflags\t\t: fpu\n"


@pytest.mark.parametrize(
    ("info", "configs"),
    [
        (INTEL.format(85, "avx512f"), [0x1C7, 0x4C7, 0x10C7, 0x40C7, 0x2C7, 0x8C7, 0x20C7, 0x80C7]),
        (INTEL.format(79, ""), [0x1C7, 0x4C7, 0x10C7, 0x40C7, 0x2C7, 0x8C7, 0x20C7, 0x80C7]),
        (INTEL.format(63, ""), []),  # Haswell has another event of that number
        (AMD.format(25, 1), [0x0F03]),
        (AMD.format(23, 1), [0xFF03]),
        (AMD.format(26, 2), []),
        ("Features\t: fp asimd\n", []),
    ],
)
def test_flops_are_counted_only_where_the_event_is_known(
    monkeypatch: pytest.MonkeyPatch, info: str, configs: list[int]
) -> None:
    """The same number is another event on another processor."""
    monkeypatch.setattr(machine, "read_text", lambda _path: info)
    events, weights = hostcounters._flops_events()
    assert [event.config for event in events] == configs
    assert bool(weights) == bool(configs)


@given(counts=st.lists(st.integers(0, 10**15), min_size=8, max_size=8))
def test_flops_of_intel_are_weighted_by_the_lanes_of_an_instruction(counts: list[int]) -> None:
    """An instruction on 512 bits is 8 FLOP in double and 16 in single precision."""
    events, weights = hostcounters._intel()
    found = {e.name: perfevents.Counted(n) for e, n in zip(events, counts, strict=True)}
    sums = hostcounters._with_flops(found, weights)
    double = sum(n * lanes for n, lanes in zip(counts[:4], (1, 2, 4, 8), strict=True))
    single = sum(n * lanes for n, lanes in zip(counts[4:], (1, 4, 8, 16), strict=True))
    values = {name: one.value for name, one in sums.items()}
    assert values == {"cpu_flops_fp64": double, "cpu_flops_fp32": single}


def test_sum_with_a_part_that_was_not_counted_is_not_counted() -> None:
    """A sum of what is left would be too small."""
    events, weights = hostcounters._intel()
    found = {event.name: perfevents.Counted(7) for event in events}
    found[events[0].name] = perfevents.Counted(None, reason=perfevents.NOT_RUN)
    sums = hostcounters._with_flops(found, weights)
    assert (sums["cpu_flops_fp64"].value, sums["cpu_flops_fp64"].reason) == (
        None,
        perfevents.NOT_RUN,
    )
    assert sums["cpu_flops_fp32"].value == 7 * (1 + 4 + 8 + 16)
