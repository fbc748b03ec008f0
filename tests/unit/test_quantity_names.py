"""The words for quantities: whatever a module can produce has some."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from envcompare.analysis.timing.surroundings import arm_quantities
from envcompare.errors import ProfileError
from envcompare.profile_files import READERS, read
from envcompare.profile_files.derive import with_quantities
from envcompare.report.wording.profilewords import in_words, is_power, quantity_name
from envcompare.run_folder.profiles import Copy, Device, Kernel, PassName, Profile

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT / "tests" / "data" / "profiles"
NAMED = (
    "profile_files",
    "analysis/profiles/quantities.py",
    "analysis/timing/surroundings.py",
)
LITERAL = re.compile(
    r'"((?:[a-z0-9]+_)+(?:ns|bytes|sectors|calls|faults|share|switches|migrations|flops(?:_\w+)?))"'
    r'|name="([a-z0-9_]+)"|ok\(\s*"([a-z0-9_]+)"|missing\(\s*"([a-z0-9_]+)"'
)
FIELDS = {"total_ns", "min_ns", "max_ns", "total_bytes", *get_args(PassName)}
"""Names of fields and of passes, which are no quantities."""


def metrics() -> dict[str, float]:
    """Return every counter that any GPU has for a quantity, each counted once."""
    data = resources.files("envcompare") / "data" / "ncu_metrics.json"
    tensor = {part for parts in json.loads(data.read_bytes())["tensor_totals"].values()
              for part in parts}  # fmt: skip
    kinds = [f"{letter}{kind}" for letter in "dfh" for kind in ("add", "mul", "fma")]
    names = [
        *(f"smsp__sass_thread_inst_executed_op_{kind}_pred_on.sum" for kind in kinds),
        *(f"sm__ops_path_tensor_src_{part}.sum" for part in tensor),
        "sm__inst_executed_pipe_tensor.sum", "dram__bytes_read.sum", "dram__bytes_write.sum",
        "lts__t_bytes.sum", "lts__t_sector_hit_rate.pct", "smsp__thread_inst_executed.sum",
        "smsp__inst_executed.sum", "sm__warps_active.avg.pct_of_peak_sustained_active",
    ]  # fmt: skip
    return dict.fromkeys(names, 32.0)


def derived(chip: str) -> set[str]:
    """Return the names of all that follows from a kernel with every counter, and every copy."""
    kinds = msgspec.inspect.type_info(Copy).fields[0].type.values  # type: ignore[attr-defined]
    profile = Profile(
        tool="ncu",
        devices=(Device(name="a GPU", chip=chip),),
        busy_ns=1.0,
        launch_gap_ns=1.0,
        kernels=(Kernel(name="k", calls=1, total_ns=1.0, metrics=metrics()),),
        copies=tuple(Copy(kind=kind, calls=1, total_ns=1.0, total_bytes=1) for kind in kinds),
    )
    return {quantity.name for quantity in with_quantities(profile).quantities}


def written() -> set[str]:
    """Return names of quantities that the sources of the readers and counters hold."""
    paths = [path for part in NAMED for path in
             ([ROOT / "envcompare" / part] if part.endswith(".py")
              else sorted((ROOT / "envcompare" / part).rglob("*.py")))]  # fmt: skip
    hits = (hit for path in paths for hit in LITERAL.findall(path.read_text()))
    return {next(filter(None, hit)) for hit in hits} - FIELDS


def counters() -> set[str]:
    """Return the names of the worker's counters, with and without the kernel's part."""
    text = (ROOT / "workloads" / "harness" / "counters" / "hostcounters.py").read_text(
        encoding="utf-8"
    )
    names = set(re.findall(r'Event\("(\w+)"', text)) | set(re.findall(r'counted\["(\w+)"\]', text))
    listed = re.search(r'\("cycles"[^)]*\)', text)
    assert listed is not None
    names |= set(re.findall(r'"(\w+)"', listed[0])) | {"task_clock_ns"}
    return names | {f"{name}_user" for name in names}


def from_files() -> set[str]:
    """Return the names of all quantities in the files that the readers are tested with."""
    found = set()
    for path in sorted(one for one in PROFILES.rglob("*") if one.is_file()):
        for tool in READERS:
            try:
                found |= {quantity.name for quantity in read(tool, (path,)).quantities}
            except ProfileError:
                continue
    return found


def assert_words(names: set[str]) -> None:
    """Fail for a name that is printed as it is, or with an underscore."""
    assert not {name for name in names if "_" in (text := quantity_name(name)) or text == name}


@pytest.mark.parametrize("chip", ["", "gv100", "tu102", "ga100", "gh100", "gb100", "gb202"])
def test_what_is_derived_has_words(chip: str) -> None:
    """Every counter of every chip, and every kind of copy."""
    names = derived(chip)
    assert {"flops_fp32", "memcpy_unified_bytes", "memset_ns", "flops_tensor"} <= names
    assert_words(names)


@pytest.mark.parametrize(
    ("found", "some"),
    [
        (counters, {"cpu_energy_j", "branch_misses_user", "max_rss_bytes"}),
        (from_files, {"launch_count", "kernel_time_ns"}),
        (written, {"nccl_share", "span_ns", "user_ns", "estimated_occupancy"}),
    ],
)
def test_names_of_counters_files_and_sources_have_words(
    found: Callable[[], set[str]], some: set[str]
) -> None:
    """A quantity that is added later is not forgotten."""
    names = found()
    assert some <= names
    assert_words(names)


def test_power_is_told_from_counts_by_the_names_that_are_sampled() -> None:
    """Clocks in MHz belong to the section of power."""
    names = [one.name for one in arm_quantities((), ())]
    assert "sm_clock_mhz" in names
    assert all(is_power(name) for name in names)
    assert_words(set(names))
    assert not is_power("throttled_ns")


def test_reason_names_quantities_in_words() -> None:
    """Commas in the words do not run into those of the list; names of tools stay as they are."""
    assert in_words("without flops_fp16, flops_tensor, which are not counted") == (
        "without “FLOP, FP16, CUDA cores”, “FLOP, tensor cores”, which are not counted"
    )
    assert in_words("flop_count_dp was not collected") == "flop_count_dp was not collected"
