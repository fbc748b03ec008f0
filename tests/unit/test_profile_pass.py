"""The profile pass on this machine: what it keeps of each arm, and what it says is missing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from benches import Kept, bench, launch
from nsysexports import START_END, Trace, plain
from runs import LIGHT
from traces import lacking

from envcompare.environments import Check, unusable
from envcompare.errors import (
    InterruptedRunError,
    Problem,
    ProfileError,
    StackError,
    WorkloadError,
    exit_code_of,
)
from envcompare.measure import Hello, LaunchSpec, profile
from envcompare.measure.cell import CellContext
from envcompare.measure.limits import limit_s
from envcompare.measure.profile import (
    COUNTER_STEPS,
    INSIDE,
    SAID_LINES,
    STEPS,
    TOOL_STARTS,
    ProfilePass,
    ProfilingHost,
    counted_steps,
    cut_at,
    failed,
    started,
    steps_that_fit,
    summary,
    traced_steps,
)
from envcompare.measure.worker import Worker
from envcompare.profile_files import read
from envcompare.profilers import Pass, ProfilerRun, Quarantine, Tool
from envcompare.profilers.ncu import FLOPS, MEMORY, MOST_LAUNCHES, Ncu
from envcompare.profilers.nsys import Nsys
from envcompare.profilers.toolbox import PROFILERS, Toolbox
from envcompare.run_folder.profiles import Kernel, Lacking, PassName, Profile, ProfileRecord
from envcompare.run_folder.records import Event
from envcompare.transport import LOCAL

TRACE = Pass(name="nsys")
AROUND = tuple(kind.name for profiler in PROFILERS.values() for kind in profiler.passes)
WORKLOADS = f"""import os
import pathlib
{LIGHT}
class RaisesWhenProfiled(Light):
    def step(self):
        if self.steps == 4:
            raise ValueError("no further step")
        return super().step()


class DiesWhenProfiledOnce(Light):
    def step(self):
        mark = pathlib.Path(__file__).with_name("died")
        if self.steps == 4 and not mark.exists():
            mark.touch()
            os._exit(7)
        return super().step()
"""


SECRET = "the secret of the host"
# In the arm docker, answers and leaves what no profiler would; HOST is the folder of the test.
ATTACKS = (
    LIGHT
    + """
import gzip
import os
import pathlib

HOST = pathlib.Path(__file__).parent
SECRET = HOST / "secret"
OPERATORS = {"operators": [], "version": "2.0", "steps_before": 3}


class Attack(Light):
    values = OPERATORS

    def setup(self, seed, device):
        super().setup(seed, device)
        from harness import generation
        honest = generation.profile
        is_met = os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker"

        def answer(step, kind, k, out):
            found = honest(step, kind, k, "")
            if not is_met or kind != "torch":
                return found
            pathlib.Path(out).parent.mkdir(exist_ok=True)
            file = self.leave(pathlib.Path(out))
            return {**found, "reason": "", "values": self.values, "file": str(file)}

        generation.profile = answer


class NamesAnotherFile(Attack):
    def leave(self, out):
        return SECRET


class LeavesALink(Attack):
    def leave(self, out):
        out.symlink_to(SECRET)
        return out


class LeavesAPipe(Attack):
    def leave(self, out):
        os.mkfifo(out)
        return out


class LeavesAFolder(Attack):
    def leave(self, out):
        out.mkdir()
        return out


class LeavesALargeFile(Attack):
    def leave(self, out):
        with out.open("wb") as file:
            file.truncate(2 << 30)
        return out


class LeavesNothing(Attack):
    def leave(self, out):
        return out


class LeavesATrace(Attack):
    def leave(self, out):
        with gzip.open(out, "wt") as file:
            file.write("{}")
        return out


class LeavesATraceOfNothing(LeavesATrace):
    values = {"operators": "none"}
"""
)
# Without a GPU: workers that claim one, and a tool around them that writes a made report.
TRACED = (
    LIGHT
    + """
import os
import pathlib

from harness import generation
from harness import torchparts

HOST = pathlib.Path(__file__).parent
torchparts.compute_capability = lambda device: "8.0"
honest = generation.profile


class LinksTheExport(Light):
    links = "trace.sqlite"

    def setup(self, seed, device):
        super().setup(seed, device)
        generation.profile = self.answer

    def answer(self, step, kind, k, out):
        if kind == "marks" and os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker":
            file = pathlib.Path(os.environ["TMPDIR"], self.links)
            file.unlink(missing_ok=True)
            file.symlink_to(HOST / "secret")
        return {**honest(step, kind, k, out), "reason": ""}


class LinksTheReport(LinksTheExport):
    links = "trace.nsys-rep"
"""
)
NSYS = """#!/bin/sh
if [ "$1" = export ]; then shift 6; exec cp "{exports}/$(cat "$2").sqlite" "$1"; fi
shift
while case $1 in -*) true ;; *) false ;; esac; do
  case $1 in
    --capture-range=*) range=${{1#*=}} ;;
    --output=*) echo "$range" >"${{1#--output=}}.nsys-rep" ;;
  esac
  shift
done
exec "$@"
"""
WITHOUT_PROFILE = {
    "NamesAnotherFile": "named a file that envcompare had not asked for",
    "LeavesALink": "is a symbolic link; it was not read",
    "LeavesAPipe": "is a named pipe; it was not read",
    "LeavesAFolder": "is a folder; it was not read",
    "LeavesALargeFile": "is too large to be read",
    "LeavesNothing": "wrote no torch.json.gz",
}
BREAKS_NO_RULE = ("LeavesALargeFile", "LeavesNothing")


@pytest.fixture
def workload(tmp_path: Path) -> Callable[[str], str]:
    """Return what a workload of the file is called."""
    path = tmp_path / "light.py"
    path.write_text(WORKLOADS)
    return lambda name: f"{path}:{name}"


@pytest.fixture
def made(tmp_path: Path, workload: Callable[[str], str]) -> CellContext:
    """Return the cell of a workload that does its steps."""
    return bench(tmp_path, workload("Light"))


def test_every_arm_but_the_control_is_profiled(tmp_path: Path, made: CellContext) -> None:
    """Each kind has a record and an event: what was found, or why it was not."""
    host = _profiling_host(made, tmp_path, [])
    _measure(made, host)
    records = host.folder.read_profiles()
    assert {(r.arm, r.kind) for r in records} == {
        (arm, kind) for arm in ("vm", "docker") for kind in (*INSIDE, *AROUND)
    }
    docker = next(r for r in records if (r.arm, r.kind) == ("docker", "host"))
    assert (docker.state, docker.steps, docker.batch) == ("ok", STEPS, 1)
    assert len(docker.code_hash) == 64
    assert isinstance(made.recorder, Kept)
    said = [event for event in made.recorder.events if event.what == "profiled"]
    assert len(said) == len(records)
    assert said[0].values == {"state": "ok"}


def test_what_is_missing_has_its_reason(tmp_path: Path, workload: Callable[[str], str]) -> None:
    """A workload without PyTorch has no operators, and on a CPU there is no GPU work to profile."""
    records = {r.kind: r for r in _profiled(tmp_path, workload("Light")) if r.arm == "vm"}
    assert why(records["torch"]) == ("not-measured", "the workload does not use PyTorch")
    assert why(records["flops"]) == ("not-measured", "the workload does not use PyTorch")
    expected = ("no-gpu", "the workload ran on the CPU: no GPU work to profile")
    for kind in AROUND:
        assert (records[kind].state, why(records[kind])) == ("missing", expected)


def test_a_step_that_fails_under_a_profiler_leaves_a_reason_and_no_error(
    tmp_path: Path, workload: Callable[[str], str]
) -> None:
    """The timing stands, whatever a profile lacks."""
    records = {r.kind: r for r in _profiled(tmp_path, workload("RaisesWhenProfiled"))}
    assert records["host"].state == "missing"
    assert why(records["host"]) == ("failed", "ValueError: no further step")


def test_a_workload_that_cannot_start_leaves_its_reason_for_each_kind(
    tmp_path: Path, workload: Callable[[str], str]
) -> None:
    """The reason is the worker's own."""
    records = _profiled(tmp_path, workload("RaisesInSetup"))
    reasons = {why(r) for r in records if r.arm == "docker" and r.kind in INSIDE}
    assert reasons == {("failed", "docker: ValueError: no such layer")}


def test_a_resumed_pass_does_what_is_missing_alone(tmp_path: Path, made: CellContext) -> None:
    """Only the reference is begun again, since it tells what GPU there is."""
    launched: list[str] = []
    host = _profiling_host(made, tmp_path, launched)
    _measure(made, host)
    records = host.folder.read_profiles()
    launched.clear()
    _measure(made, host, records)
    assert launched == []
    kept = tuple(r for r in records if (r.arm, r.kind) != ("docker", "host"))
    _measure(made, host, kept)
    assert launched == ["vm", "docker"]


def test_a_resumed_pass_tries_again_what_failed(
    tmp_path: Path, workload: Callable[[str], str]
) -> None:
    """What cannot be had here is not asked for once more."""
    made = bench(tmp_path, workload("DiesWhenProfiledOnce"))
    launched: list[str] = []
    host = _profiling_host(made, tmp_path, launched)
    _measure(made, host)
    first = {(r.arm, r.kind): r for r in host.folder.read_profiles()}
    assert {key for key, r in first.items() if r.is_failure} == {("vm", kind) for kind in INSIDE}
    assert "exit code 7" in why(first["vm", "host"])[1]
    launched.clear()
    _measure(made, host, tuple(first.values()))
    again = {(r.arm, r.kind): r for r in host.folder.read_profiles()}
    assert launched == ["vm"]
    assert (again["vm", "host"].state, again["vm", "host"].is_failure) == ("ok", False)


def test_a_host_that_refuses_a_file_costs_the_profiles_and_not_the_cell(
    tmp_path: Path, made: CellContext
) -> None:
    """The timing is done; a profile that cannot be brought here has its reason."""
    met: set[str] = set()

    def refuse_at_first(arm: str) -> str:
        if arm in met:
            return str(tmp_path)
        met.add(arm)
        raise StackError("no room on local", details="the disk is full", hint="free some")

    host = replace(_profiling_host(made, tmp_path, []), scratch=refuse_at_first)
    profiles = ProfilePass(made, host)
    assert "without torch (no room on local: the disk is full)" in profiles.measure()
    host.folder.close()
    found = [r for r in host.folder.read_profiles() if r.kind == "torch"]
    problem = Problem(brief="no room on local", details="the disk is full", hint="free some")
    assert [r.lacks for r in found] == [Lacking(why="failed", problem=problem)] * 2


def test_a_failure_tells_what_the_tool_said_and_not_the_log_of_the_worker() -> None:
    """A reason is a sentence: the log is in the run folder."""
    log = "epoch 1\n==ERROR== ERR_NVGPUCTRPERM - no permission\nepoch 2"
    told = WorkloadError("vm: the worker ended", details=log, hint="read its log")
    problem = failed(told, Ncu()).problem
    assert problem.reason == "vm: the worker ended: ERR_NVGPUCTRPERM - no permission"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in problem.hint
    silent = WorkloadError("vm: the worker ended", details="epoch 1", hint="read its log")
    assert failed(silent, Ncu()).problem == Problem(brief=silent.brief, hint=silent.hint)


def test_a_pass_ends_between_two_profiles_when_the_user_stops(
    tmp_path: Path, made: CellContext
) -> None:
    """What was kept before stays."""
    made.interruption.request()
    with pytest.raises(InterruptedRunError):
        _measure(made, _profiling_host(made, tmp_path, []))


def test_an_arm_that_failed_has_its_reason_and_is_not_started_again(
    tmp_path: Path, made: CellContext
) -> None:
    """It may have hung, and would hang again."""
    launched: list[str] = []
    host = _profiling_host(made, tmp_path, launched)
    profiles = ProfilePass(made, host)
    lacks = lacking("it hangs", "mend it", why="arm-failed")
    profiles.decline(("docker",), lacks)
    profiles.measure()
    host.folder.close()
    assert launched == ["vm"]
    found = [(r.state, r.lacks) for r in host.folder.read_profiles() if r.arm == "docker"]
    assert found == [("missing", lacks)] * len((*INSIDE, *AROUND))


def why(record: ProfileRecord) -> tuple[str, str]:
    """Return why a profile is missing, as data and in words."""
    assert record.lacks is not None
    return record.lacks.why, record.lacks.problem.reason


def _attacked(path: Path, name: str) -> tuple[dict[PassName, ProfileRecord], list[Event]]:
    """Return the profiles of the arm that a workload of ATTACKS is met in, and what was noted."""
    (path / "attacks.py").write_text(ATTACKS)
    (path / "secret").write_text(SECRET)
    made = bench(path / "run", f"{path / 'attacks.py'}:{name}")
    _measure(made, _profiling_host(made, path, []))
    assert isinstance(made.recorder, Kept)
    folder = made.recorder.folder
    found = {one.kind: one for one in folder.read_profiles() if one.arm == "docker"}
    for kept in folder.path.rglob("*"):
        assert kept.is_dir() or SECRET.encode() not in kept.read_bytes()
    return found, [event for event in made.recorder.events if event.what == "profiled"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", WITHOUT_PROFILE)
def test_an_arm_does_not_say_which_file_of_the_host_is_read(tmp_path: Path, name: str) -> None:
    """Only a plain file of the name that was asked for comes here; other profiles stay."""
    records, events = _attacked(tmp_path, name)
    torch = records["torch"]
    assert (torch.state, torch.is_failure, torch.raw) == ("missing", True, ())
    assert torch.lacks is not None
    problem = torch.lacks.problem
    assert WITHOUT_PROFILE[name] in problem.reason
    assert problem.hint
    assert records["host"].state == "ok"
    assert (tmp_path / "secret").read_text() == SECRET
    failures = [event.failure for event in events if event.failure is not None]
    if name in BREAKS_NO_RULE:
        assert failures == []
        return
    (failure,) = failures
    assert (exit_code_of(failure.phase), failure.brief) == (4, problem.reason)
    assert failure.brief.startswith("docker: ")
    assert failure.details
    assert failure.hint


def test_a_file_that_was_asked_for_is_kept(tmp_path: Path) -> None:
    """It leaves the scratch folder for the run folder."""
    records, events = _attacked(tmp_path, "LeavesATrace")
    assert (records["torch"].state, records["torch"].lacks) == ("ok", None)
    (raw,) = records["torch"].raw
    (found,) = (tmp_path / "run").rglob("torch.json.gz")
    assert str(found).endswith(raw)
    assert list((tmp_path / "scratch-docker").iterdir()) == []
    assert not (tmp_path / "taken-docker").exists()
    assert all(event.failure is None for event in events)


def test_a_file_of_the_worker_that_nothing_was_read_of_is_not_kept(tmp_path: Path) -> None:
    """No record names it, and it was not looked through for secrets."""
    records, _ = _attacked(tmp_path, "LeavesATraceOfNothing")
    assert (records["torch"].state, records["torch"].raw) == ("missing", ())
    assert not list((tmp_path / "run").rglob("torch.json.gz"))


def _traced(
    path: Path,
    name: str = "LinksTheExport",
    *,
    marked: Trace | None = None,
    whole: Trace | None = None,
) -> tuple[dict[str, ProfileRecord], list[Event]]:
    """Return the traces of each arm by a tool that stands around workers which claim a GPU."""
    (path / "traced.py").write_text(TRACED)
    (path / "secret").write_text(SECRET)
    (marked or plain()).write(path / "cudaProfilerApi.sqlite")
    (whole or plain()).write(path / "none.sqlite")
    made = bench(path / "run", f"{path / 'traced.py'}:{name}")
    tool = _tool(path, "nsys", NSYS.format(exports=path), version="2024.5.1")
    missing = unusable("ncu is not installed")
    tools: dict[tuple[str, str], Tool | Check] = {("nsys", "8.0"): tool, ("ncu", "8.0"): missing}
    box = Toolbox(transport=LOCAL, choice="trace", _tools=tools)

    def launch_around(arm: str, profiler: ProfilerRun | None) -> Worker:
        return launch(path, arm, around=profiler.wrap if profiler else lambda command: command)

    host = replace(_profiling_host(made, path, []), toolbox=box, launch=launch_around)
    for arm in made.arms:
        Path(host.scratch(arm)).mkdir()
    _measure(made, host)
    assert isinstance(made.recorder, Kept)
    found = {one.arm: one for one in host.folder.read_profiles() if one.kind == "nsys"}
    return found, [event for event in made.recorder.events if event.what == "profiled"]


def test_what_a_tool_leaves_is_read_and_kept_without_a_trace_on_the_host(tmp_path: Path) -> None:
    """A link under the name of its export is neither read nor written to."""
    records, events = _traced(tmp_path)
    for arm in ("vm", "docker"):
        one = records[arm]
        assert (one.state, one.lacks, one.steps) == ("ok", None, STEPS)
        assert one.profile is not None
        assert sum(kernel.calls for kernel in one.profile.kernels) == 60
        (raw,) = one.raw
        (file,) = (tmp_path / "run").glob(f"*/{raw}")
        assert (file.name, file.read_text()) == ("nsys-trace.nsys-rep", "cudaProfilerApi\n")
    assert (tmp_path / "secret").read_text() == SECRET
    assert list(tmp_path.glob("taken-*")) == []
    assert all(event.failure is None for event in events)


DRIVER = (
    "Installed CUDA driver version (13.0) is not supported by this build of Nsight Systems. CUDA "
    "trace will be collected using libraries for driver version 12.8"
)


def _silent() -> Trace:
    """Return a trace without a kernel, with what nsys says of it."""
    trace = Trace()
    trace.say(1, "CUDA injection initialized successfully.")
    trace.say(2, DRIVER)
    trace.say(2, DRIVER)
    trace.say(3, "CUDA profiling might have not been started correctly.")
    return trace


def _marked(trace: Trace) -> Trace:
    """Return a trace in which the steps are marked."""
    trace.range("envcompare", 0, 10_000, kind=START_END)
    return trace


def test_a_trace_without_a_kernel_is_tried_again_over_the_whole_process(tmp_path: Path) -> None:
    """Of the second trace the marked steps alone count."""
    records, _ = _traced(tmp_path, marked=_silent(), whole=_marked(plain()))
    for arm in ("vm", "docker"):
        record = records[arm]
        assert (record.state, record.lacks, record.steps) == ("ok", None, STEPS)
        assert record.profile is not None
        assert 0 < sum(kernel.calls for kernel in record.profile.kernels) < 60
        (file,) = (tmp_path / "run").glob(f"*/{record.raw[0]}")
        assert file.read_text() == "none\n"


def test_a_workload_of_the_gpu_without_a_kernel_in_either_trace_has_failed(tmp_path: Path) -> None:
    """What nsys says of it is the reason, and no empty profile is kept."""
    record = _traced(tmp_path, marked=_silent(), whole=_marked(_silent()))[0]["vm"]
    assert (record.state, record.raw, record.profile) == ("missing", (), None)
    assert record.lacks is not None
    problem = record.lacks.problem
    assert problem.brief.startswith("nsys traced no kernel of the GPU steps")
    assert problem.details == f"{DRIVER}; CUDA profiling might have not been started correctly."
    assert "newer Nsight Systems" in problem.hint
    assert not list((tmp_path / "run").rglob("*.nsys-rep"))


def test_a_whole_process_without_marks_is_not_taken_for_the_steps(tmp_path: Path) -> None:
    """Its kernels are those of the start and the warm-up too."""
    record = _traced(tmp_path, marked=_silent())[0]["vm"]
    assert record.state == "missing"
    assert "the nsys trace has no marks" in why(record)[1]


def test_a_report_of_a_tool_that_cannot_be_read_is_not_kept(tmp_path: Path) -> None:
    """No record names it, and it was not looked through for secrets."""
    record = _traced(tmp_path, marked=_silent())[0]["vm"]
    assert (record.state, record.raw) == ("missing", ())
    assert not list((tmp_path / "run").rglob("*.nsys-rep"))


def test_a_report_is_not_kept_if_its_export_shows_a_secret(tmp_path: Path) -> None:
    """The report itself holds its variables packed."""
    report, export = tmp_path / "trace.nsys-rep", tmp_path / "trace.sqlite"
    report.write_bytes(b"packed")
    export.write_bytes(b"HF_TOKEN=hf_0123456789abcdefghij")
    kept, lacking = profile._without_secret(report, export)
    assert (kept, report.exists()) == (None, False)
    assert lacking is not None
    assert lacking.problem is not None
    assert "holds HF_TOKEN" in lacking.problem.brief


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Incompatible CUDA driver version. Please try updating the CUDA driver", "newer Nsight"),
        ("Failed to initialize NVML: Driver/library version mismatch", "reboot"),
        ("Unable to retrieve the importer version: skipping importation of the QDSTRM file.",
         "QdstrmImporter"),
    ],
)  # fmt: skip
def test_nsys_says_itself_what_is_wrong(said: str, hint: str) -> None:
    """Lines of the worker between its own are no complaint of nsys."""
    problem = Nsys().explain(f"WARNING: a library of the worker\n{said}\n{said}\nstep 1\n")
    assert problem is not None
    assert problem.details == said
    assert hint in problem.hint


def test_a_report_that_an_arm_has_replaced_by_a_link_is_not_exported(tmp_path: Path) -> None:
    """The other arm has its trace, and the run ends as one in which an arm failed."""
    records, events = _traced(tmp_path, "LinksTheReport")
    assert records["vm"].state == "ok"
    assert (records["docker"].state, records["docker"].raw) == ("missing", ())
    reason = why(records["docker"])[1]
    assert "docker: the profile trace.nsys-rep is a symbolic link" in reason
    (failure,) = (event.failure for event in events if event.failure is not None)
    assert exit_code_of(failure.phase) == 4
    assert (tmp_path / "secret").read_text() == SECRET


@pytest.mark.parametrize(
    ("step_s", "profiled", "traced"),
    [(0.0022, STEPS, 100), (0.05, STEPS, 20), (0.3, STEPS, STEPS), (10.0, 3, 3), (100.0, 1, 1)],
)
def test_long_steps_are_profiled_fewer_times(step_s: float, profiled: int, traced: int) -> None:
    """One is always run; a GPU is traced for a second or 100 steps: long ones leave large files."""
    assert steps_that_fit(step_s) == profiled
    assert traced_steps(profiled, step_s) == traced
    assert COUNTER_STEPS <= STEPS


def test_a_slow_workload_is_waited_for_longer() -> None:
    """Counters take most of the time, since each kernel is run several times for them."""
    assert limit_s(TRACE.limit_s, 1, 60.0) > 60.0
    assert limit_s(FLOPS.limit_s, 2, 0.1) > limit_s(TRACE.limit_s, 2, 0.1)


def test_a_count_that_was_cut_has_no_steps() -> None:
    """A total of half a step must not stand for the whole."""
    kernels = (Kernel(name="k", calls=MOST_LAUNCHES, total_ns=1.0),)
    record = _record("ncu-memory", profile=Profile(tool="ncu", kernels=kernels, steps=2), steps=2)
    cut = cut_at(MOST_LAUNCHES, record)
    assert cut.steps is None
    assert cut.profile is not None
    assert cut.profile.steps is None
    assert why(cut)[0] == "launches-cut"
    assert "first 2000 kernel launches" in why(cut)[1]
    assert cut_at(MOST_LAUNCHES + 1, record) == record


@pytest.mark.parametrize(
    ("launches", "expected"), [(100, 2), (999, 2), (1000, 1), (5000, 1), (0, 2)]
)
def test_fewer_steps_are_counted_where_their_launches_would_be_cut(
    launches: int, expected: int
) -> None:
    """A step that is whole says more than two of which the second is cut."""
    kernels = (Kernel(name="k", calls=launches * STEPS, total_ns=1.0),) * bool(launches)
    traced = Profile(tool="nsys", kernels=kernels, steps=STEPS)
    assert counted_steps(STEPS, traced, most=2000) == expected
    assert counted_steps(1, None, most=2000) == 1


def test_a_summary_says_each_reason_once() -> None:
    """One line for a cell, however many arms it has."""
    records = (
        _record("host"),
        *(_record(kind, state="missing", reason="no GPU", arm=arm)
          for arm in ("vm", "docker") for kind in ("nsys", "ncu-memory")),
    )  # fmt: skip
    kinds = (*INSIDE, *AROUND)
    assert summary(records, kinds) == "profiled by host; without nsys, ncu-memory (no GPU)"


def test_a_summary_names_the_arms_that_lack_what_others_have() -> None:
    """Else it would say of one kind that it is there and that it is not."""
    records = (
        _record("host", state="missing", reason="it died"),
        _record("flops", state="missing", reason="it died"),
        _record("host", arm="docker"),
        _record("flops", arm="docker"),
    )
    said = "profiled by host, flops; without host, flops of vm (it died)"
    assert summary(records, (*INSIDE, *AROUND)) == said


@pytest.mark.engine("nvidia-tools")
class TestRealTool:
    """The nsys that is installed here, around a real worker; a GPU is not needed for that."""

    @pytest.fixture
    def nsys(self) -> Tool:
        """Return it."""
        found = Nsys().discover(LOCAL)
        assert not isinstance(found, Check), found.reason
        return found

    def test_the_protocol_stays_whole_and_the_report_is_read(
        self, tmp_path: Path, made: CellContext, nsys: Tool
    ) -> None:
        """The worker answers as ever; what nsys leaves is exported and is an honest nothing."""
        profiler = Nsys().wrap(nsys, TRACE, folder=str(tmp_path / "nsys"))
        # Traced from the start: without a GPU nothing is marked.
        words = (one for one in profiler.arguments if not one.startswith("--capture-range"))
        profiler = replace(profiler, arguments=tuple(words))
        Path(profiler.folder).mkdir()
        with _greeted(tmp_path, profiler, made.spec) as (worker, hello):
            assert hello.device == "cpu"
            worker.send_begin(1, 0)
            worker.await_begin()
            marked = worker.profile("marks", 2, out="", limit_s=60)
            assert marked.reason.startswith("no GPU is used")
            worker.quit(120)
        with Quarantine.empty(LOCAL, "vm", str(tmp_path / "taken")) as own:
            left = Nsys().export(own, profiler, log=worker.tail())
            found = read("nsys", (Path(left.export.path),))
        assert found.tool == "nsys"
        assert found.kernels == ()

    def test_marks_that_never_come_leave_no_report(
        self, tmp_path: Path, made: CellContext, nsys: Tool
    ) -> None:
        """That is said, and not taken for a trace without kernels."""
        profiler = Nsys().wrap(nsys, TRACE, folder=str(tmp_path / "nsys"))
        Path(profiler.folder).mkdir()
        with _greeted(tmp_path, profiler, made.spec) as (worker, _hello):
            worker.quit(120)
        error = _refused(tmp_path, Nsys(), profiler, log=worker.tail())
        assert error.brief == "nsys left no report"

    def test_ncu_leaves_the_protocol_whole_and_says_why_it_has_nothing(
        self, tmp_path: Path, made: CellContext
    ) -> None:
        """It prints to stdout by itself; without a driver it can count nothing."""
        found = Ncu().discover(LOCAL)
        assert not isinstance(found, Check), found.reason
        tool = replace(found, metrics={MEMORY.name: ("gpu__time_duration.sum",)})
        profiler = Ncu().wrap(tool, MEMORY, folder=str(tmp_path / "ncu"))
        assert isinstance(profiler, ProfilerRun)
        Path(profiler.folder).mkdir()
        with _greeted(tmp_path, profiler, made.spec) as (worker, hello):
            assert hello.pid > 0
            worker.quit(120)
        error = _refused(tmp_path, Ncu(), profiler, log=worker.tail())
        assert error.brief == "ncu left no report"
        assert "No kernels were profiled." in error.details


def _refused(path: Path, profiler: Ncu | Nsys, run: ProfilerRun, *, log: str) -> ProfileError:
    """Return why nothing of what a tool left can be exported."""
    with (
        pytest.raises(ProfileError) as caught,
        Quarantine.empty(LOCAL, "vm", str(path / "taken")) as own,
    ):
        profiler.export(own, run, log=log)
    return caught.value


def test_a_complaint_is_found_behind_many_lines_of_progress(
    tmp_path: Path, made: CellContext
) -> None:
    """The right to read counters is refused at the first kernel, and the program goes on."""
    tool = _tool(
        tmp_path,
        "ncu",
        "#!/bin/sh\n"
        "echo '==ERROR== ERR_NVGPUCTRPERM - no permission'\n"
        "for n in $(seq 50); do echo '==PROF== Profiling'; done\n"
        'shift 3; exec "$@"\n',
    )
    words = ("a", "b", "c")
    profiler = ProfilerRun(kind=MEMORY, tool=tool, arguments=words, folder=str(tmp_path))
    worker = _wrapped(tmp_path, profiler)
    worker.send_hello(made.spec)
    worker.await_hello()
    worker.quit()
    error = _refused(tmp_path, Ncu(), profiler, log=worker.tail(SAID_LINES))
    assert error.details == "ERR_NVGPUCTRPERM - no permission"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in error.hint


@pytest.mark.parametrize(("falls", "starts"), [(0, 1), (2, 3)])
def test_a_tool_that_falls_before_the_worker_is_there_is_started_again(
    tmp_path: Path, made: CellContext, falls: int, starts: int
) -> None:
    """As nsys does now and then; what a start leaves is ended each time."""
    ended: list[None] = []
    launch_worker = _falling(tmp_path, falls, end=lambda: ended.append(None))
    with started(launch_worker, made.spec, starts=TOOL_STARTS) as (worker, hello):
        assert hello.device == "cpu"
        worker.quit()
    assert len(ended) == starts


def test_a_tool_that_always_falls_is_not_started_for_ever(
    tmp_path: Path, made: CellContext
) -> None:
    """What it said last is the reason."""
    with (
        pytest.raises(WorkloadError) as caught,
        started(_falling(tmp_path, TOOL_STARTS), made.spec, starts=TOOL_STARTS),
    ):
        pytest.fail("no worker can be there")
    assert caught.value.worker_exit_code == 1
    assert caught.value.details.splitlines() == ["sem_open 3"]


def test_no_tool_is_started_again_once_the_user_stops(tmp_path: Path, made: CellContext) -> None:
    """A second Ctrl-C kills the worker, which must not read as a tool that fell."""
    fall = _falling(tmp_path, 1)

    def fall_and_stop() -> Worker:
        made.check_interruption()
        made.interruption.request()
        return fall()

    with (
        pytest.raises(InterruptedRunError),
        started(fall_and_stop, made.spec, starts=TOOL_STARTS),
    ):
        pytest.fail("no worker can be there")


def _falling(
    path: Path, falls: int, *, end: Callable[[], object] = lambda: None
) -> Callable[[], Worker]:
    """Return what starts a worker under a tool whose first starts end with exit code 1."""
    count = path / "starts"
    script = (
        f"#!/bin/sh\necho x >>{count}\nn=$(wc -l <{count})\n"
        f'[ "$n" -gt {falls} ] || {{ echo "sem_open $n" >&2; exit 1; }}\nexec "$@"\n'
    )
    tool = _tool(path, "nsys", script)
    profiler = ProfilerRun(kind=TRACE, tool=tool, arguments=(), folder=str(path))
    return lambda: _wrapped(path, profiler, end=end)


def _tool(path: Path, name: str, script: str, *, version: str = "1.0") -> Tool:
    """Return a tool that is this script."""
    program = path / name
    program.write_text(script)
    program.chmod(0o755)
    return Tool(name=name, program=str(program), folder=str(path), version=version)


def _greeted(
    path: Path, profiler: ProfilerRun, spec: LaunchSpec
) -> AbstractContextManager[tuple[Worker, Hello]]:
    return started(lambda: _wrapped(path, profiler), spec, starts=TOOL_STARTS)


def _wrapped(
    path: Path, profiler: ProfilerRun, *, end: Callable[[], object] = lambda: None
) -> Worker:
    return launch(path, "vm", around=profiler.wrap, end=end)


def _measure(made: CellContext, host: ProfilingHost, prior: tuple[ProfileRecord, ...] = ()) -> None:
    try:
        ProfilePass(made, host, prior).measure()
    finally:
        host.folder.close()


def _profiled(path: Path, workload: str) -> tuple[ProfileRecord, ...]:
    made = bench(path, workload)
    host = _profiling_host(made, path, [])
    _measure(made, host)
    return host.folder.read_profiles()


def _profiling_host(made: CellContext, path: Path, launched: list[str]) -> ProfilingHost:
    def start(arm: str, _profiler: ProfilerRun | None) -> Worker:
        launched.append(arm)
        return made.launch(arm, ())

    assert isinstance(made.recorder, Kept)
    return ProfilingHost(
        launch=start,
        transport=LOCAL,
        toolbox=Toolbox(transport=LOCAL, choice="auto"),
        environments=dict.fromkeys(made.arms, "vm"),
        scratch=lambda arm: str(path / f"scratch-{arm}"),
        taken=lambda arm: str(path / f"taken-{arm}"),
        folder=made.recorder.folder,
    )


def _record(
    kind: PassName,
    *,
    arm: str = "vm",
    reason: str = "",
    steps: int | None = None,
    profile: Profile | None = None,
    state: str = "ok",
) -> ProfileRecord:
    return ProfileRecord(
        host="local", cell="c", arm=arm, kind=kind, name=kind, steps=steps,
        lacks=lacking(reason) if reason else None, profile=profile,
        state="ok" if state == "ok" else "missing",
    )  # fmt: skip
