"""A profiler around a command: the exact argv, in each environment."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from envcompare.environments import Isolation
from envcompare.environments.docker import Docker
from envcompare.environments.singularity import Singularity
from envcompare.profilers import Pass, ProfilerRun, Tool
from envcompare.profilers.ncu import MEMORY, Ncu
from envcompare.profilers.nsys import Nsys
from envcompare.stack import Mount
from envcompare.text import Command

NSYS = Tool(
    name="nsys",
    program="/opt/nvidia/nsight-systems/2024.5.1/target-linux-x64/nsys",
    folder="/opt/nvidia/nsight-systems/2024.5.1",
    version="2024.5.1",
    options=("--cpuctxsw", "--cuda-graph-trace", "--capture-range-end", "--kill"),
)
NCU = Tool(
    name="ncu",
    program="/opt/nvidia/nsight-compute/2024.1.1/target/linux-desktop-glibc_2_11_3-x64/ncu",
    folder="/opt/nvidia/nsight-compute/2024.1.1",
    version="2024.1.1",
    options=("--replay-mode", "--cache-control", "--clock-control"),
    metrics={"ncu-memory": ("gpu__time_duration.sum", "dram__bytes.sum")},
)
WORKER = Command(argv=("/venv/bin/python", "worker.py"), env=(("A", "1"),))
OUT = ("sh", "-c", 'exec "$@" 3>&1 1>&2', "sh")
BACK = ("sh", "-c", 'exec "$@" 1>&3 3>&-', "sh", "/venv/bin/python", "worker.py")


def trace(tool: Tool, folder: str) -> ProfilerRun:
    """Return a trace of nsys."""
    return Nsys().wrap(tool, Pass(name="nsys"), folder=folder)


def counters(tool: Tool, folder: str) -> ProfilerRun:
    """Return the pass of ncu that counts memory traffic."""
    started = Ncu().wrap(tool, MEMORY, folder=folder)
    assert isinstance(started, ProfilerRun)
    return started


def test_nsys_traces_between_the_marks_and_samples_nothing() -> None:
    """Without sampling it needs no right; graphs are taken apart into their kernels."""
    wrapped = trace(NSYS, "/scratch/nsys").wrap(WORKER)
    assert wrapped.argv == (
        *OUT,
        NSYS.program,
        *("profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none"),
        *("--cuda-graph-trace=node", "--kill=none"),
        *("--capture-range-end=stop", "--capture-range=cudaProfilerApi"),
        *("--stats=false", "--export=none", "--force-overwrite=true"),
        "--output=/scratch/nsys/trace",
        *BACK,
    )
    assert wrapped.env == (("LC_ALL", "C"), ("TMPDIR", "/scratch/nsys"), ("A", "1"))


def test_the_second_trace_of_nsys_is_of_the_whole_process() -> None:
    """A range that is never opened, or opened without a kernel, is no limit then."""
    run = trace(NSYS, "/scratch/nsys")
    capture = [word for word in run.second if word.startswith("--capture")]
    assert capture == ["--capture-range=none"]
    dropped = {"--capture-range-end=stop", "--capture-range=cudaProfilerApi"}
    assert {*run.second} == {*run.arguments} - dropped | {*capture}


def test_an_option_that_a_version_does_not_know_is_left_out() -> None:
    """An unknown option would be an error of the tool."""
    old = Tool(name="nsys", program="/nsys", folder="/", version="2020.3", options=("--cpuctxsw",))
    arguments = trace(old, "/scratch").arguments
    assert "--cpuctxsw=none" in arguments
    assert not any(word.startswith("--cuda-graph-trace") for word in arguments)


def test_ncu_counts_the_marked_range_as_the_program_runs() -> None:
    """Caches and clocks stay the program's; the range is of start and end, for all threads."""
    wrapped = counters(NCU, "/scratch/ncu-memory").wrap(WORKER)
    assert wrapped.argv == (
        *OUT,
        NCU.program,
        *("--target-processes", "all", "--replay-mode", "kernel"),
        *("--cache-control", "none", "--clock-control", "none"),
        *("--nvtx", "--nvtx-include", "envcompare", "--launch-count", "2000"),
        *("--metrics", "gpu__time_duration.sum,dram__bytes.sum", "--force-overwrite"),
        *("--export", "/scratch/ncu-memory/counters"),
        *BACK,
    )


def test_the_folder_of_a_tool_is_shown_as_a_whole_and_read_only() -> None:
    """Nsys looks for its other half beside itself, and refuses another name of its folder."""
    assert trace(NSYS, "/scratch").mounts == (Mount(path=NSYS.folder, is_read_only=True),)


def test_docker_runs_as_root_where_a_capability_is_needed() -> None:
    """What `--cap-add` allows only a process that starts as root has."""
    isolation = Isolation(run_id="r", arm="docker", reference="image", uid=1000, gid=1000)
    plain = Docker().wrap(WORKER, isolation).argv
    assert plain[plain.index("--user") : plain.index("--workdir")] == ("--user", "1000:1000")
    profiler = replace(counters(NCU, "/scratch"), capabilities=("SYS_ADMIN",))
    given = Isolation(
        run_id="r", arm="docker", reference="image", capabilities=profiler.capabilities
    )
    argv = Docker().wrap(WORKER, given).argv
    asked = argv[argv.index("--user") : argv.index("--workdir")]
    assert asked == ("--user", "0:0")
    rights = " ".join(argv[argv.index("--cap-drop") : argv.index("--user")])
    assert rights.startswith("--cap-drop ALL --security-opt no-new-privileges --pids-limit ")
    assert rights.endswith(
        "--cap-add SYS_ADMIN --cap-add CHOWN --cap-add DAC_OVERRIDE --read-only "
        "--tmpfs /tmp:exec --tmpfs /var/tmp:exec"
    )


def test_singularity_names_capabilities_by_their_whole_name() -> None:
    """They stand before the image, as one option: of several the engine takes the last."""
    isolation = Isolation(run_id="r", arm="sif", reference="image.sif", capabilities=("SYS_ADMIN",))
    argv = Singularity().wrap(WORKER, isolation).argv
    options = argv[: argv.index("image.sif")]
    at = options.index("--no-privs")
    assert options[at + 1 : at + 3] == ("--add-caps", "CAP_SYS_ADMIN,CAP_DAC_OVERRIDE")


def test_stdout_stays_the_workers_whatever_the_tool_prints(tmp_path: Path) -> None:
    """What the tool says goes to stderr, and its exit code is handed on."""
    done = _run(_loud_tool(tmp_path), folder=tmp_path)
    assert (done.stdout, done.returncode) == ("from the worker\n", 3)
    assert done.stderr == "from the tool\n"


def _loud_tool(folder: Path) -> Tool:
    path = folder / "tool"
    path.write_text('#!/bin/sh\necho "from the tool"\n"$@"\n')
    path.chmod(0o755)
    return Tool(name="ncu", program=str(path), folder=str(folder), version="1.0")


def _run(tool: Tool, *, folder: Path) -> subprocess.CompletedProcess[str]:
    profiler = ProfilerRun(kind=MEMORY, tool=tool, arguments=(), folder=str(folder))
    command = Command(
        argv=("sh", "-c", "echo from the worker; exit 3"), env=(("HOME", str(folder)),)
    )
    return subprocess.run(
        profiler.wrap(command).flat(), capture_output=True, text=True, check=False, timeout=20
    )
