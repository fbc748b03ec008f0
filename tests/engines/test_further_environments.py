"""Runs in Podman, Charliecloud, bubblewrap and gVisor: the same software, measured and removed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commandline import envcompare
from lab import Lab
from runs import BASE, run_folder

from envcompare.run_folder.profiles import helper_of
from envcompare.run_folder.records import Block
from envcompare.run_folder.results import RunFolder

ARMS = ("podman", "charliecloud", "bubblewrap", "gvisor")
pytestmark = [pytest.mark.engine(name) for name in ("ssh", "docker", *ARMS)]


def test_the_further_environments_are_measured_side_by_side(lab: Lab, tmp_path: Path) -> None:
    """They have the image's own files, and leave nothing on the host."""
    done = envcompare(
        *("run", "--hosts", lab.alias, "--envs", f"vm,{','.join(ARMS)}", "--workloads", "python"),
        *("--base-image", BASE, "--budget", "60", "--no-quiet-gate", "--profile", "none"),
        *("--out", "out"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    path = run_folder(tmp_path / "out")
    assert path is not None
    folder = RunFolder.open(path)
    blocks = [one for one in folder.read_samples().samples if isinstance(one, Block)]
    assert {one.arm for one in blocks} == {"vm", "vm~control", *ARMS}
    records = folder.read_fingerprints()
    trees = {one.arm: one.facts.get("site_packages.sha256") for one in records}
    assert len({str(tree) for tree in trees.values()}) == 1, trees
    assert "differs in software" not in done.stdout
    assert lab.left_of(path.name) == ""


def test_the_file_system_of_an_image_is_named_where_files_are_slow(
    lab: Lab, tmp_path: Path
) -> None:
    """Its CPU time is in no clock of the workload, and is why the workload waits."""
    done = envcompare(
        *("run", "--hosts", lab.alias, "--envs", "vm,singularity", "--workloads", "files"),
        *("--base-image", BASE, "--budget", "20", "--no-quiet-gate", "--device", "cpu"),
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
    assert helpers["vm"] == {}
    assert (helpers["singularity"]["squashfuse_ll"] or 0) > 1e6
    said = " ".join(done.stdout.split())
    assert re.search(r"CPU time beside it: squashfuse_ll \+[0-9.]+ [mµ]?s", said), done.stdout


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
