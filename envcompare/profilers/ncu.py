"""Nsight Compute: reads the counters of every kernel between a worker's marks, in two passes.

SASS instruction counters patch the kernels and slow them down a hundredfold, so they are collected
in a separate pass, whose times are not used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from envcompare.environments import Check, ask, unusable
from envcompare.environments.gpu import RELOAD
from envcompare.errors import Problem
from envcompare.gpu import chip_of, is_lacking, tensor_counters
from envcompare.profile_files import read
from envcompare.profilers import (
    READ_LOG,
    Exported,
    Pass,
    ProfilerRun,
    Quarantine,
    ReportFiles,
    Tool,
    export_report,
    find_tool,
    install_hints,
)
from envcompare.run_folder.profiles import Note, Profile
from envcompare.text import Command
from envcompare.transport import Transport

NAME: Final = "ncu"
# Each launch with counters is replayed several times, so the launches of a pass are limited.
MOST_LAUNCHES: Final = 2000
MEMORY: Final = Pass(
    name="ncu-memory", limit_s=1800.0, is_counting=True, most_launches=MOST_LAUNCHES
)
FLOPS: Final = Pass(name="ncu-flops", limit_s=1800.0, is_counting=True, most_launches=MOST_LAUNCHES)
OPEN_FOR_ALL = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | "
    "sudo tee /etc/modprobe.d/nvidia-profiling.conf; then, without a reboot, stop what uses GPUs "
    f"(also nvidia-persistenced) and load the module again: {RELOAD}; or reboot (where the "
    "initramfs holds the module, rebuild it first)"
)
"""How to let every user of a host read the counters, in every environment."""

_RANGE: Final = "envcompare"  # marked by the worker
_CONTROLS: Final = Note(kind="controls-off")
# The program is below `target` in a folder that also has a script of the same name, which needs
# bash. The search takes the first location that has one, and there the highest version.
_SEARCH = r"""
case $(uname -m) in
  x86_64) machine=x64 ;;
  aarch64) machine=a64 ;;
  *) machine=$(uname -m) ;;
esac
target() { newest "$1"/target/linux-*"$machine"/ncu; }
ncu=$(on_path ncu)
case $ncu in
  */target/linux-*/ncu) ;;
  ?*) ncu=$(target "$(dirname "$ncu")") ;;
esac
ncu=$(first "$ncu" \
  "$(newest "$root"/opt/nvidia/nsight-compute*/*/target/linux-*"$machine"/ncu)" \
  "$(newest "$root"/usr/local/cuda*/nsight-compute*/target/linux-*"$machine"/ncu)" \
  "$(target "$root"/usr/lib/nsight-compute)")
if [ -n "$ncu" ]; then
  ncu=$(readlink -f -- "$ncu") && parent=$(dirname "$(dirname "$(dirname "$ncu")")")
  report program "$ncu"
  report folder "$parent"
  report version "$("$ncu" --version 2>&1 | sed -n 's/^Version //p')"
  report options "$("$ncu" --help 2>&1 | options)"
fi
"""
_MISSING: Final = install_hints("Nsight Compute (ncu)", "nsight-compute")
# $1 the program, $2 the folder
_FILES = ReportFiles(
    report="counters.ncu-rep",
    export="counters.csv",
    script=r"""
cd -- "$2" || exit
"$1" --import counters.ncu-rep --csv --page raw --print-units base >counters.csv
""",
)
# Caches and clocks are left alone, so that the counters describe the application; its times still
# differ from those of a run without counters.
_OPTIONS = (
    ("--replay-mode", "kernel"),
    ("--cache-control", "none"),
    ("--clock-control", "none"),
    ("--graph-profiling", "node"),
)
_COMPLAINT = re.compile(r"^==(?:ERROR|WARNING)== *(.+)$", re.MULTILINE)
_HINTS = (
    ("ERR_NVGPUCTRPERM", f"{OPEN_FOR_ALL}; see envcompare doctor"),
    (
        "driver resource was unavailable",
        "stop other programs that read counters, for example with `dcgmi profile --pause`",
    ),
)
_MEMORY: Final = (
    "gpu__time_duration.sum",
    "dram__bytes.sum", "dram__bytes_read.sum", "dram__bytes_write.sum",
    "dram__sectors.sum", "dram__sectors_read.sum", "dram__sectors_write.sum",
    "lts__t_bytes.sum", "lts__t_sectors.sum", "lts__t_sectors_lookup_hit.sum",
    "lts__t_sector_hit_rate.pct",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum", "smsp__thread_inst_executed.sum",
)  # fmt: skip
_SASS: Final = tuple(
    f"smsp__sass_thread_inst_executed_op_{kind}_pred_on.sum"
    for kind in (
        "dadd", "dmul", "dfma", "fadd", "fmul", "ffma", "hadd", "hmul", "hfma",
        "fadd2", "fmul2", "ffma2",
    )
)  # fmt: skip
_TENSOR: Final = ("sm__inst_executed_pipe_tensor.sum", "sm__inst_executed_pipe_tc.sum")
_OFFERED: Final = re.compile(r"^([a-z0-9]+__\w+)\s", re.MULTILINE)
_RELEASE: Final = re.compile(r"(\d{4})\.(\d+)")

_LAST_WITH_VOLTA: Final = (2025, 2)
"""The last version of Nsight Compute that profiles compute capability 7.0."""

_FIRST_WITH_PATHS: Final = (2024, 1)
"""The first tested version that counts tensor-core operations; 2022.3 lacks these names."""


@dataclass(frozen=True, slots=True)
class Ncu:
    """Counts memory traffic in one pass and operations in another; the file is a CSV table."""

    root: str = ""  # prefix of the search paths

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Return the pass that keeps kernel times intact, then the one that does not."""
        return MEMORY, FLOPS

    def discover(self, transport: Transport, compute_capability: str = "") -> Tool | Check:
        """Return the newest ncu of a host, with the metrics for the GPU if given."""
        tool = find_tool(transport, _SEARCH, name=NAME, missing=_MISSING, root=self.root)
        if isinstance(tool, Check) or not compute_capability:
            return tool
        chip = chip_of(compute_capability)
        argv = (tool.program, "--query-metrics", *(("--chips", chip) if chip else ()))
        hint = f"run {tool.program} --query-metrics there by hand"
        answer = ask(transport, Command(argv=argv), what=tool.program, hint=hint)
        if isinstance(answer, Check):
            return answer
        offered = offered_metrics(answer.stdout if answer.succeeded else "")
        metrics = choose(compute_capability, ncu_version=tool.version, offered=offered)
        by_pass = {MEMORY.name: metrics.memory, FLOPS.name: metrics.flops}
        return replace(tool, metrics=by_pass, reason=metrics.reason)

    def wrap(self, tool: Tool, kind: Pass, *, folder: str) -> ProfilerRun | Check:
        """Return how to start ncu for a pass, with the options that this version has."""
        metrics = tool.metrics.get(kind.name)
        if not metrics:
            return unusable(tool.reason)
        known = (word for pair in _OPTIONS if tool.knows(pair[0]) for word in pair)
        arguments = (
            *("--target-processes", "all", *known),
            *("--nvtx", "--nvtx-include", _RANGE, "--launch-count", f"{MOST_LAUNCHES}"),
            *("--metrics", ",".join(metrics)),
            *("--force-overwrite", "--export", f"{folder}/counters"),
        )
        return ProfilerRun(kind=kind, tool=tool, arguments=arguments, folder=folder)

    def export(self, quarantine: Quarantine, run: ProfilerRun, *, log: str) -> Exported:
        """Export the report to a table."""
        return export_report(quarantine, run, _FILES, complaint=self.explain(log))

    def read(self, run: ProfilerRun, export: Path) -> Profile:
        """Read the table; the pass with patched kernels has no times."""
        profile = read(NAME, (export,), version=run.tool.version, controls=_CONTROLS)
        # The counters of this pass patch the kernels and slow them down a hundredfold.
        has_time = profile.has_time and run.kind != FLOPS
        return msgspec.structs.replace(profile, has_time=has_time)

    def explain(self, log: str) -> Problem | None:
        """Return the errors and warnings in a log, each once, with a hint."""
        details = "; ".join(dict.fromkeys(_COMPLAINT.findall(log)))
        hint = next((hint for text, hint in _HINTS if text in log), "")
        if not details and not hint:
            return None
        return Problem(brief=f"{NAME} reported a problem", details=details, hint=hint or READ_LOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metrics:
    """The metric names of each pass; `reason` says why some are missing."""

    memory: tuple[str, ...] = ()
    flops: tuple[str, ...] = ()
    reason: str = ""


def offered_metrics(text: str) -> frozenset[str]:
    """Parse the output of `ncu --query-metrics` into names without suffix."""
    return frozenset(_OFFERED.findall(text))


def choose(
    compute_capability: str, *, ncu_version: str, offered: frozenset[str] = frozenset()
) -> _Metrics:
    """Return the metrics of each pass for a GPU such as "8.0" and a version such as "2024.1.1".

    `offered` are the metrics of this ncu version for the GPU, because ncu fails on an unknown
    metric; if empty, the table of the package is used.
    """
    reason = _why_not(compute_capability, ncu_version)
    if reason:
        return _Metrics(reason=reason)
    chip = chip_of(compute_capability)
    memory = tuple(name for name in _MEMORY if _is_there(name, chip, offered))
    has_paths = bool(offered) or _release(ncu_version) >= _FIRST_WITH_PATHS
    asked = _SASS + _TENSOR + (tensor_counters(chip, offered) if has_paths else ())
    flops = tuple(name for name in asked if _is_there(name, chip, offered))
    return _Metrics(memory=memory, flops=flops, reason=_what_lacks(memory, flops, chip))


def _why_not(compute_capability: str, ncu_version: str) -> str:
    """Return why Nsight Compute cannot read the counters of this GPU; empty if it can."""
    major = re.fullmatch(r"(\d+)\.\d+", compute_capability)
    if major is None:
        return f"the compute capability of the GPU is unknown (found {compute_capability!r})"
    if int(major[1]) < 7:
        return (
            f"Nsight Compute dropped compute capability {compute_capability} (Pascal and older) in "
            "2020.1; use nvprof"
        )
    if compute_capability == "7.0" and _release(ncu_version) > _LAST_WITH_VOLTA:
        return (
            f"Nsight Compute {ncu_version} does not support Volta (compute capability 7.0); "
            "use 2025.2 or older"
        )
    return ""


def _release(ncu_version: str) -> tuple[int, int]:
    match = _RELEASE.search(ncu_version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _is_there(metric: str, chip: str, offered: frozenset[str]) -> bool:
    base = metric.split(".", maxsplit=1)[0]
    if offered:
        return base in offered
    # packed FP32 and the pipe of the fifth generation are requested only if known to exist
    is_rare = base.endswith(("2_pred_on", "_pipe_tc"))
    return not is_lacking(base, chip) and (bool(chip) or not is_rare)


def _what_lacks(memory: tuple[str, ...], flops: tuple[str, ...], chip: str) -> str:
    messages = []
    if "dram__bytes_read.sum" not in memory:
        messages.append("this GPU does not count reads and writes of device memory separately")
    if not any("_sass_" in name for name in flops):
        messages.append("this version of ncu offers no instruction counters for this GPU")
    # on Volta each instruction of the tensor pipe is 512 operations
    if chip != "gv100" and not any(name.startswith("sm__ops_path_tensor") for name in flops):
        messages.append("this version of ncu does not count tensor-core operations of this GPU")
    return "; ".join(messages)
