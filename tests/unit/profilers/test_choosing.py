"""Which profiler stands around a worker: by GPU, by what is installed, by who may read counters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from envcompare.environments import Check
from envcompare.profilers.choosing import Pass, Toolbox
from envcompare.profilers.finding import Tool, find_tools
from envcompare.profilers.metricchoice import Passes
from envcompare.profilers.permissions import Rights
from envcompare.profilers.wrapping import Profiler
from envcompare.transport.local import LOCAL

NSYS = Tool(name="nsys", program="/n/target-linux-x64/nsys", folder="/n", version="2024.5.1")
NCU = Tool(name="ncu", program="/c/target/linux-x64/ncu", folder="/c", version="2024.1.1")
METRICS = Passes(memory=("dram__bytes.sum",), flops=("smsp__sass_x.sum",))
USER = Rights(is_restricted=True, is_admin=False, uid=1000)


def toolbox(**changes: Any) -> Toolbox:
    """Return the tools of a host with an A100 whose driver restricts its counters."""
    given = {
        "choice": "auto",
        "_tools": {"nsys": NSYS, "ncu": NCU},
        "_rights": USER,
        "_passes": {"8.0": METRICS},
    }
    return Toolbox(transport=LOCAL, **{**given, **changes})


def chosen(box: Toolbox, kind: Pass, *, where: str = "docker", gpu: str = "8.0") -> Any:
    """Return the profiler of a pass, or the check that says why there is none."""
    return box.profiler(kind, environment=where, compute_capability=gpu, folder="/scratch")


@pytest.mark.parametrize("kind", ["nsys", "ncu-memory", "ncu-flops"])
def test_a_workload_on_the_cpu_needs_no_tool(kind: Pass) -> None:
    """Nothing is looked for on the host."""
    found = chosen(toolbox(_tools={}), kind, gpu="")
    assert found.reason == "the workload ran on the CPU: no GPU to look into"


def test_each_counter_pass_asks_for_its_own_metrics() -> None:
    """Instruction counters stretch the time of kernels, so they stand apart."""
    for kind, metrics in (("ncu-memory", "dram__bytes.sum"), ("ncu-flops", "smsp__sass_x.sum")):
        profiler = chosen(toolbox(), kind)
        assert profiler.arguments[profiler.arguments.index("--metrics") + 1] == metrics
        assert profiler.capabilities == ("SYS_ADMIN",)


def test_a_trace_needs_no_right() -> None:
    """Only counters are restricted."""
    profiler = chosen(toolbox(), "nsys")
    assert (profiler.tool, profiler.capabilities) == (NSYS, ())


def test_counters_that_may_not_be_read_are_said_with_the_remedy() -> None:
    """The container gets nothing that would be of no use."""
    found = chosen(toolbox(), "ncu-memory", where="singularity")
    assert isinstance(found, Check)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found.hint


def test_counters_are_left_out_where_only_a_trace_was_asked_for() -> None:
    """The trace is taken all the same."""
    box = toolbox(choice="trace")
    assert chosen(box, "ncu-flops").reason == "hardware counters were not asked for"
    assert isinstance(chosen(box, "nsys"), Profiler)


def test_a_tool_that_is_missing_is_the_reason() -> None:
    """With what installs it."""
    missing = Check(is_usable=False, reason="not installed", hint="install it")
    assert chosen(toolbox(_tools={"nsys": missing, "ncu": NCU}), "nsys") == missing


def test_an_old_gpu_has_a_trace_and_no_counters() -> None:
    """Nsight Compute does not read those of Pascal and older."""
    found = _real("ncu")
    box = toolbox(_passes={}, _tools={"nsys": NSYS, "ncu": found})
    assert "Pascal and older" in chosen(box, "ncu-memory", gpu="6.1").reason
    assert isinstance(chosen(box, "nsys", gpu="6.1"), Profiler)


def test_the_installed_tool_is_asked_for_metrics_that_it_has() -> None:
    """A name that it does not know would be an error of the whole pass."""
    found = replace(_real("ncu"), options=())
    box = toolbox(_passes={}, _tools={"nsys": NSYS, "ncu": found})
    arguments = chosen(box, "ncu-memory").arguments
    metrics = arguments[arguments.index("--metrics") + 1].split(",")
    assert {"gpu__time_duration.sum", "dram__bytes_read.sum"} <= set(metrics)


def _real(name: str) -> Tool:
    found = dict(find_tools(LOCAL))[name]
    if isinstance(found, Check):
        pytest.skip(found.reason)
    return found
