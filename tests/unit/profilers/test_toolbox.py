"""Which profiler stands around a worker: by GPU, by what is installed, by who may read counters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from envcompare.environments import Check, unusable
from envcompare.errors import Problem
from envcompare.profilers import ProfilerRun, Tool
from envcompare.profilers.ncu import Ncu
from envcompare.profilers.toolbox import Rights, Toolbox
from envcompare.run_folder.profiles import Lacking, PassName
from envcompare.transport import LOCAL

NSYS = Tool(name="nsys", program="/n/target-linux-x64/nsys", folder="/n", version="2024.5.1")
NCU = Tool(
    name="ncu",
    program="/c/target/linux-x64/ncu",
    folder="/c",
    version="2024.1.1",
    metrics={"ncu-memory": ("dram__bytes.sum",), "ncu-flops": ("smsp__sass_x.sum",)},
)
USER = Rights(is_restricted=True, is_admin=False, uid=1000)


def toolbox(**changes: Any) -> Toolbox:
    """Return the tools of a host with an A100 whose driver restricts its counters."""
    given = {
        "choice": "auto",
        "_tools": {("nsys", "8.0"): NSYS, ("ncu", "8.0"): NCU},
        "_rights": USER,
    }
    return Toolbox(transport=LOCAL, **{**given, **changes})


def chosen(box: Toolbox, kind: PassName, *, where: str = "docker", gpu: str = "8.0") -> Any:
    """Return how a pass is started, or why it cannot be."""
    return box.prepare(kind, environment=where, compute_capability=gpu, folder="/scratch")


@pytest.mark.parametrize("kind", ["nsys", "ncu-memory", "ncu-flops"])
def test_a_workload_on_the_cpu_needs_no_tool(kind: PassName) -> None:
    """Nothing is looked for on the host."""
    found = chosen(toolbox(_tools={}), kind, gpu="")
    assert found.why == "no-gpu"
    assert found.problem.reason == "the workload ran on the CPU: no GPU work to profile"


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
    assert isinstance(found, Lacking)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found.problem.hint


def test_counters_are_left_out_where_only_a_trace_was_asked_for() -> None:
    """The trace is taken all the same."""
    box = toolbox(choice="trace")
    assert chosen(box, "ncu-flops").why == "not-requested"
    assert chosen(box, "ncu-flops").problem.reason == "hardware counters were not requested"
    assert isinstance(chosen(box, "nsys"), ProfilerRun)


def test_a_tool_that_is_missing_is_the_reason() -> None:
    """With what installs it."""
    missing = unusable("not installed", "install it")
    problem = Problem(brief="not installed", hint="install it")
    expected = Lacking(why="not-usable", problem=problem)
    assert chosen(toolbox(_tools={("nsys", "8.0"): missing}), "nsys") == expected


@pytest.mark.engine("nvidia-tools")
def test_an_old_gpu_has_a_trace_and_no_counters() -> None:
    """Nsight Compute does not read those of Pascal and older."""
    box = toolbox(_tools={("nsys", "6.1"): NSYS, ("ncu", "6.1"): _real_ncu("6.1")})
    assert "Pascal and older" in chosen(box, "ncu-memory", gpu="6.1").problem.reason
    assert isinstance(chosen(box, "nsys", gpu="6.1"), ProfilerRun)


@pytest.mark.engine("nvidia-tools")
def test_the_installed_tool_is_asked_for_metrics_that_it_has() -> None:
    """A name that it does not know would be an error of the whole pass."""
    box = toolbox(_tools={("ncu", "8.0"): replace(_real_ncu("8.0"), options=())})
    arguments = chosen(box, "ncu-memory").arguments
    metrics = arguments[arguments.index("--metrics") + 1].split(",")
    assert {"gpu__time_duration.sum", "dram__bytes_read.sum"} <= set(metrics)


def _real_ncu(compute_capability: str) -> Tool:
    tool = Ncu().discover(LOCAL, compute_capability)
    assert not isinstance(tool, Check), tool.reason
    return tool
