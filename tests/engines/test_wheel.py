"""The built wheel stands alone: in an empty venv, in another folder, as an ordinary user."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lab import ROOT, Lab
from runs import BASE, LIGHT, STEPS_ALONE

pytestmark = pytest.mark.timeout(420)


def run(*argv: str | Path, cwd: Path) -> str:
    """Run a command that must succeed and return its output."""
    done = subprocess.run(
        [str(word) for word in argv], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, built from a copy of what git would give."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, ROOT, cwd=folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheels of all locked dependencies, and pip, for Python 3.11."""
    folder = tmp_path_factory.mktemp("dependencies")
    pip = (sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "-d", folder)
    run(*pip, "--python-version", "3.11", "-r", ROOT / "requirements" / "tool.txt", cwd=folder)
    run(*pip, "--no-deps", "pip", cwd=folder)
    return folder


def test_wheel_in_an_empty_venv_plans_and_measures_from_another_folder(
    wheel: Path, dependencies: Path, tmp_path: Path
) -> None:
    """Workloads, templates and container files come with the wheel."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    pip = (venv / "bin" / "pip", "install", "-q", "--no-compile")
    if sys.version_info[:2] == (3, 11):
        pip = (*pip, "--no-index", "--find-links", dependencies)
    run(*pip, wheel, cwd=tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "light.py").write_text(LIGHT)
    command = venv / "bin" / "envcompare"
    assert "rnn" in run(command, "plan", cwd=elsewhere)
    files = run(
        venv / "bin" / "python", "-c", "from envcompare import bundled; print(bundled.root())",
        cwd=elsewhere,
    )  # fmt: skip
    assert str(venv) in files
    shipped = (
        *("Dockerfile", "containers/envcompare.def", "containers/install.sh"),
        *("containers/library.py", "workloads/requirements/cu130.in", "workloads/harness/tree.py"),
    )
    for name in shipped:
        assert (Path(files.strip()) / name).is_file()
    quick = ("--quick", "--budget", "4", *STEPS_ALONE)
    run(command, "run", "--envs", "vm", "--workload", "light.py:Light", *quick, cwd=elsewhere)
    (folder,) = (elsewhere / "results").iterdir()
    assert "<html" in (folder / "report.html").read_text()


@pytest.mark.nightly
@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
@pytest.mark.engine("singularity")
def test_wheel_compares_docker_and_singularity_locally_as_an_ordinary_user(
    wheel: Path, dependencies: Path, lab: Lab, tmp_path: Path
) -> None:
    """On a host that has both engines, without SSH and without root."""
    references = built_references(lab)
    (tmp_path / "light.py").write_text(LIGHT)
    there = "/home/bench/wheel-test"
    ssh = ("ssh", "-F", lab.ssh_config, lab.alias)
    run(*ssh, f"rm -rf {there} && mkdir {there}", cwd=tmp_path)
    files = (*dependencies.glob("*.whl"), wheel, tmp_path / "light.py")
    run("scp", "-q", "-F", lab.ssh_config, *files, f"{lab.alias}:{there}/", cwd=tmp_path)
    script = (
        f"cd {there} && python3.11 -m venv --without-pip venv && "
        "PYTHONPATH=$(echo pip-*.whl) venv/bin/python -m pip install -q --no-compile --no-index "
        "--find-links . envcompare_bench-*.whl && "
        f"venv/bin/envcompare run --quick --wait 240 --budget 4 {' '.join(STEPS_ALONE)} "
        f"--envs image=docker:{references['docker']},sif=singularity:{references['singularity']} "
        "--workload light.py:Light && cat results/*/comparison.json"
    )
    output = run(*ssh, script, cwd=tmp_path)
    comparison = json.loads(output[output.index('{\n "run_id"') :])
    assert {arm["arm"]: arm["state"] for arm in comparison["arms"]} == {
        "image": "ok",
        "sif": "ok",
        "image~control": "ok",
    }
    run(*ssh, f"rm -rf {there}", cwd=tmp_path)


def built_references(lab: Lab) -> dict[str, str]:
    """Return the image and the SIF that stand on the lab host."""
    lines = run(
        *(sys.executable, "-m", "envcompare", "-q", "build", "--hosts", lab.alias),
        *("--envs", "docker,singularity", "--base-image", BASE),
        cwd=ROOT,
    ).splitlines()
    found = (line.removeprefix(f"{lab.alias} ").partition(": ") for line in lines)
    return {arm: reference.partition(", ")[0] for arm, _, reference in found}
