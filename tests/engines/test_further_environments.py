"""Runs in Podman, Charliecloud, bubblewrap and gVisor: the same software, measured and removed."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import envcompare
from lab import Lab
from runs import BASE, run_folder

from envcompare.analysis.compare import compare_run
from envcompare.environments import Isolation
from envcompare.environments.bubblewrap import LayeredBubblewrap
from envcompare.environments.registry import environment
from envcompare.run_folder.profiles import helper_of
from envcompare.run_folder.records import Block
from envcompare.run_folder.results import RunFolder
from envcompare.stack import Mount
from envcompare.text import Command
from envcompare.transport import run
from envcompare.transport.hosts import connect, parse_hosts

ARMS = ("podman", "charliecloud", "bubblewrap", "gvisor")
CALLS = """
import os

class Calls:
    batch = 1

    def setup(self, seed, device):
        pass

    def step(self):
        for _ in range(5000):
            os.getppid()
        return 1.0
"""
pytestmark = [pytest.mark.engine(name) for name in ("ssh", "docker", *ARMS)]


def test_the_further_environments_are_measured_side_by_side(lab: Lab, tmp_path: Path) -> None:
    """They have the image's own files, and leave nothing on the host."""
    done = envcompare(
        *("run", "--hosts", lab.alias, "--envs", f"vm,{','.join(ARMS)}", "--workloads", "python"),
        *("--base-image", BASE, "--restarts", "2", "--rounds", "3", "--no-quiet-gate"),
        *("--profile", "none"),
        *("--out", "out"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    path = run_folder(tmp_path / "out")
    assert path is not None
    folder = RunFolder.open(path)
    blocks = [sample for sample in folder.read_samples().samples if isinstance(sample, Block)]
    assert {block.arm for block in blocks} == {"vm", "vm~control", *ARMS}
    records = folder.read_fingerprints()
    trees = {record.arm: record.facts.get("site_packages.sha256") for record in records}
    assert len({str(tree) for tree in trees.values()}) == 1, trees
    assert "differs in software" not in done.stdout
    assert lab.left_of(path.name) == ""


@pytest.mark.nightly
def test_the_file_system_of_an_image_is_named_where_files_are_slow(
    lab: Lab, tmp_path: Path
) -> None:
    """Its CPU time is in no clock of the workload, and is why the workload waits."""
    done = envcompare(
        *("run", "--hosts", lab.alias, "--envs", "vm,singularity", "--workloads", "files"),
        *("--base-image", BASE, "--budget", "40", "--no-quiet-gate", "--device", "cpu"),
        *("--out", "out"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    path = run_folder(tmp_path / "out")
    assert path is not None
    folder = RunFolder.open(path)
    counted = {one.arm: one.profile for one in folder.read_profiles() if one.kind == "host"}
    helpers = {
        arm: {helper_of(q.name): q.value for q in profile.quantities if helper_of(q.name)}
        for arm, profile in counted.items()
        if profile
    }
    assert (helpers["vm"]["squashfuse_ll"] or 0) < 1e6
    assert (helpers["singularity"]["squashfuse_ll"] or 0) > 1e6
    said = " ".join(done.stdout.split())
    assert re.search(r"CPU time outside the workload: squashfuse_ll \+[0-9.]+ [mµ]?s", said), said


def test_a_link_out_of_an_image_is_refused_by_bubblewrap(lab: Lab, tmp_path: Path) -> None:
    """It would be followed on the host, and show what lies there."""
    lab.as_root("sh", "-c", "mkdir -p /opt/leaking/usr && ln -sfn /home/bench /opt/leaking/srv")
    done = envcompare(
        *("run", "--hosts", lab.alias, "--envs", "vm@host,leaking=bubblewrap:/opt/leaking"),
        *("--host-python", "/usr/bin/python3", "--command", "true", "--command-dir", "/home/bench"),
        *("--budget", "5", "--no-quiet-gate", "--profile", "none", "--out", "out"),
        cwd=tmp_path,
    )
    assert done.returncode == 3
    assert "bubblewrap cannot show the image on lab-h1" in done.stderr
    assert "/srv leads out of it" in done.stderr


@pytest.mark.nightly
def test_each_rung_of_the_ladder_differs_from_the_one_below_in_its_own_thing_alone(
    lab: Lab, tmp_path: Path
) -> None:
    """What the worker sees tells it; a control group is made, or it is said why it cannot be."""
    (tmp_path / "calls.py").write_text(CALLS)
    done = envcompare(
        *("run", "--hosts", lab.alias, "--envs", "ladder", "--workload", "calls.py:Calls"),
        *("--host-python", "/usr/bin/python3", "--device", "cpu", "--no-startup"),
        *("--budget", "20", "--no-quiet-gate", "--profile", "none", "--out", "out"),
        cwd=tmp_path,
    )
    path = run_folder(tmp_path / "out")
    assert path is not None, done.stderr
    found = compare_run(RunFolder.open(path))
    rungs = {step.arm: step for step in found.views.ladder}
    assert list(rungs) == ["vm-host", "namespaces", "cgroup", "seccomp", "overlay", "docker-host"]
    assert not any(step.is_confounded for step in found.views.ladder)
    without_group = rungs["cgroup"].outcome == "not-run"
    assert done.returncode == (3 if without_group else 0), done.stderr
    assert without_group == ("control group" in rungs["cgroup"].why_not)
    assert rungs["seccomp"].below == ("namespaces" if without_group else "cgroup")
    assert rungs["seccomp"].changed == ("seccomp.mode",)
    assert rungs["overlay"].changed == ()
    assert {step.below for step in found.views.ladder} >= {"vm-host", "seccomp", "overlay"}
    assert "seccomp.mode" not in rungs["docker-host"].changed
    modes = {arm.arm: arm.facts.get("seccomp.mode") for arm in found.arms}
    assert [modes[arm] for arm in ("namespaces", "seccomp", "docker-host")] == [0, 2, 2]
    assert lab.left_of(path.name) == ""


def test_a_filter_of_a_rung_refuses_what_the_profile_does(lab: Lab) -> None:
    """The profile is compiled there: it allows some personalities of a process and no others."""
    where = environment("bubblewrap-seccomp")
    assert isinstance(where, LayeredBubblewrap)
    with closing(connect(parse_hosts([lab.alias])[0])) as transport:
        layers, identity = where.find_layers(transport)
        assert int(dict(identity)["seccomp.rules"]) > 300
        isolation = Isolation(run_id="20260101-000000-abcd", arm="t", reference="/", layers=layers)
        tops = ("/usr", "/bin", "/lib", "/lib64")
        isolation = replace(isolation, mounts=tuple(Mount(path=top) for top in tops))
        refused = ("sh", "-c", "setarch -R true || echo refused; setarch x86_64 true && echo fine")
        for rung, expected in ((where, "refused fine"), (environment("bubblewrap"), "fine")):
            wrapped = rung.wrap(Command(argv=refused), isolation)
            assert run(transport, wrapped, timeout_s=60).stdout.split() == expected.split()
