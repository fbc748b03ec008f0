"""A further profiler costs one file: a made-up one is found, wrapped, exported, read and kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from benches import Kept, bench, launch
from runs import LIGHT

from envcompare.environments import Check, unusable
from envcompare.errors import Problem
from envcompare.measure.profile import STEPS, ProfilePass, ProfilingHost
from envcompare.measure.worker import Worker
from envcompare.profilers import (
    Exported,
    Pass,
    Profiler,
    ProfilerRun,
    Quarantine,
    ReportFiles,
    Tool,
    export_report,
    find_tool,
)
from envcompare.profilers.toolbox import Toolbox
from envcompare.run_folder.profiles import Lacking, Profile, ProfileRecord, Quantity
from envcompare.transport import LOCAL, Transport

# Writes the processor time of what it is around, as `times` of sh tells it: 0m1.25s 0m0.02s
PROGRAM = """#!/bin/sh
case $1 in --version) echo "stopwatch 1.2"; exit ;; esac
report=$1; shift
echo "the stopwatch runs"
"$@"
code=$?
times >"$report"
exit "$code"
"""
SEARCH = """
if [ -x "$root/stopwatch" ]; then
  report program "$root/stopwatch"
  report folder "$root"
  report version "$("$root/stopwatch" --version)"
fi
"""
FILES = ReportFiles(
    report="times.txt",
    export="seconds.txt",
    script='cd "$2" && sed -n "2s/[ms]/ /gp" times.txt >seconds.txt',
)


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Measures the processor time of a worker."""

    root: str

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Return its one pass, for which no GPU is needed; names of passes are of the schema."""
        return (Pass(name="imported", needs_gpu=False),)

    def discover(
        self,
        transport: Transport,
        compute_capability: str = "",  # noqa: ARG002 — of the seam
    ) -> Tool | Check:
        """Look for it in a folder."""
        missing = {"": unusable("no stopwatch is installed", "buy one")}
        return find_tool(transport, SEARCH, name="stopwatch", missing=missing, root=self.root)

    def wrap(self, tool: Tool, kind: Pass, *, folder: str) -> ProfilerRun:
        """Let it write to the folder."""
        arguments = (f"{folder}/{FILES.report}",)
        return ProfilerRun(kind=kind, tool=tool, arguments=arguments, folder=folder)

    def export(self, quarantine: Quarantine, run: ProfilerRun, *, log: str) -> Exported:
        """Cut the numbers out of its report."""
        return export_report(quarantine, run, FILES, complaint=self.explain(log))

    def read(self, run: ProfilerRun, export: Path) -> Profile:
        """Return the time in the mode of the user."""
        minutes, seconds, *_ = map(float, export.read_text().split())
        quantity = Quantity(
            name="user_ns",
            value=(60 * minutes + seconds) * 1e9,
            unit="ns",
            rule="sum",
            source=f"{run.tool.name} {run.tool.version}",
        )
        return Profile(tool="perf", version=run.tool.version, quantities=(quantity,))

    def explain(self, log: str) -> Problem | None:
        """Say what it complained of."""
        return Problem(brief="it stopped", details="no time") if "stopped" in log else None


@pytest.fixture
def stopwatch(tmp_path: Path) -> Stopwatch:
    """Return the profiler with its program."""
    program = tmp_path / "tools" / "stopwatch"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return Stopwatch(root=str(program.parent))


def profiled(path: Path, profiler: Profiler) -> tuple[str, dict[str, ProfileRecord], Path]:
    """Return what a profile pass says, the records of the profiler by arm, and the run folder."""
    (path / "light.py").write_text(LIGHT)
    made = bench(path / "run", f"{path / 'light.py'}:Light")
    assert isinstance(made.recorder, Kept)

    def start(arm: str, run: ProfilerRun | None) -> Worker:
        return launch(path, arm, around=run.wrap if run else lambda command: command)

    for arm in made.arms:
        (path / f"scratch-{arm}").mkdir()
    host = ProfilingHost(
        launch=start,
        transport=LOCAL,
        toolbox=Toolbox(transport=LOCAL, choice="auto", profilers={"stopwatch": profiler}),
        environments=dict.fromkeys(made.arms, "vm"),
        scratch=lambda arm: str(path / f"scratch-{arm}"),
        taken=lambda arm: str(path / f"taken-{arm}"),
        folder=made.recorder.folder,
    )
    said = ProfilePass(made, host).measure()
    host.folder.close()
    records = {r.arm: r for r in host.folder.read_profiles() if r.kind == "imported"}
    return said, records, host.folder.path


def test_a_profiler_of_one_file_leaves_its_record_in_the_run_folder(
    tmp_path: Path, stopwatch: Stopwatch
) -> None:
    """Both arms are measured by it beside a real worker, whose protocol stays whole."""
    said, records, folder = profiled(tmp_path, stopwatch)
    assert "profiled by host, imported" in said
    assert set(records) == {"vm", "docker"}
    for record in records.values():
        assert (record.state, record.lacks, record.steps) == ("ok", None, STEPS)
        assert record.profile is not None
        (quantity,) = record.profile.quantities
        assert (quantity.name, quantity.source) == ("user_ns", "stopwatch 1.2")
        assert (quantity.value or 0) > 0
        (raw,) = record.raw
        assert len((folder / raw).read_text().splitlines()) == 2


def test_a_profiler_that_is_not_there_is_a_reason_of_each_arm(tmp_path: Path) -> None:
    """What it says of itself stands in the records."""
    _, records, _ = profiled(tmp_path, Stopwatch(root=str(tmp_path)))
    problem = Problem(brief="no stopwatch is installed", hint="buy one")
    lacks = Lacking(why="not-usable", problem=problem)
    assert [(r.state, r.lacks) for r in records.values()] == [("missing", lacks)] * 2
