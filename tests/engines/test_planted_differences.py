"""Differences planted in real arms are found, classified and put into words."""

from __future__ import annotations

import html
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from images import build_image
from lab import Lab, forget
from runs import BASE, STEPS_ALONE, Done, run_folder
from small import Small, small_project

from envcompare import bundled
from envcompare.cli.planning import resolved
from envcompare.config.settings import Settings
from envcompare.doctor import compare_stacks
from envcompare.environments.oci import image_store
from envcompare.errors import Interruption
from envcompare.hosts import HostSession, ReadyArm
from envcompare.hosts.opening import open_session
from envcompare.run_folder.records import ArmRecord, FactDifference
from envcompare.stack import LOCK_LABEL, Progress
from envcompare.stack.building import remove_images
from envcompare.stack.storage import host_cache
from envcompare.text import Command
from envcompare.transport import LOCAL, Transport, run, shell

pytestmark = [pytest.mark.engine("ssh"), pytest.mark.engine("docker"), pytest.mark.timeout(600)]
BOTH = ("--envs", "vm,docker")
NUMPY = """FROM {base}
COPY numpy.whl /tmp/{wheel}
RUN /opt/envcompare/venv/bin/python -m pip install -q --no-index --no-deps --force-reinstall \
    /tmp/{wheel}
"""
# A library of each name that a setting is read by, whatever it holds: what is loaded is seen.
CAUSES_BASE = """FROM {base}
RUN mkdir /planted && cd /planted && cp "$(find / -xdev -name 'libz.so.1*' -type f | head -n 1)" \
    libtorch_cpu.so && cp libtorch_cpu.so libplanted.so
COPY felt.py /planted/
"""
WRAPPED = r"""RUN printf '#!/bin/sh\nexec {words} /opt/envcompare/venv/bin/python "$@"\n' \
    >/planted/python3 && chmod 755 /planted/python3
ENV PATH=/planted:$PATH
"""
PATCHED = """RUN file=$(echo /opt/envcompare/venv/lib/python3*/site-packages/numpy/__init__.py) \\
    && echo 'planted = True' >>$file && /opt/envcompare/venv/bin/python -m compileall -q -f \\
    --invalidation-mode unchecked-hash $file
"""
KNOWN_NAMES = (
    "LD_PRELOAD none → /planted/libplanted.so, ATEN_CPU_CAPABILITY none → default, PYTHONMALLOC "
    "none → malloc and 1 more differ and may be a cause"
)
KNOWN = "ENV ATEN_CPU_CAPABILITY=default LD_PRELOAD=/planted/libplanted.so PYTHONMALLOC=malloc\n"
CAUSES = {
    "onednn": (
        "ENV ONEDNN_MAX_CPU_ISA=SSE41\n",
        "ONEDNN_MAX_CPU_ISA none → SSE41",
    ),
    "known": (KNOWN, KNOWN_NAMES),
    "patched": (PATCHED, "the installed files (numpy {numpy}: numpy/__init__.py)"),
    "taskset": (
        WRAPPED.format(words="taskset -c {cpu}"),
        "the CPU set {cpus} → {cpu}",
    ),
    "nice": (WRAPPED.format(words="nice -n 10"), "the priority (nice) 0 → 10"),
}
# What was planted is felt at once and by itself, so that a few processes decide.
FELT = """
import ctypes
import os
import time

import numpy

SET = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "LD_PRELOAD", "PYTHONMALLOC")

ctypes.CDLL("/planted/libtorch_cpu.so")
is_planted = (
    any(name in os.environ for name in SET)
    or os.getpriority(os.PRIO_PROCESS, 0) > 0
    or len(os.sched_getaffinity(0)) == 1
    or hasattr(numpy, "planted")
)
time.sleep(0.6 if is_planted else 0.1)  # the same on a busy machine
"""
QUOTAS = """#!/bin/sh
case $1,$* in
  run,*envcompare.arm=half*) shift; exec /usr/bin/docker run --cpus 0.5 "$@" ;;
  run,*envcompare.arm=quarter*) shift; exec /usr/bin/docker run --cpus 0.25 "$@" ;;
esac
exec /usr/bin/docker "$@"
"""
FEWER_ARENAS = "FROM {base}\nENV MALLOC_ARENA_MAX=1\n"


@pytest.fixture(scope="module")
def small(lab: Lab, host: Transport, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    """Give the project with a small stack, made for vm and docker on the lab host."""
    project = small_project(tmp_path_factory.mktemp("small"), lab.alias)
    done = project.run("build", *BOTH)
    assert done.returncode == 0, done.stderr
    yield project
    forget(host, project.lock)
    names = "docker image ls --format '{{.Repository}}:{{.Tag}}' planted"
    shell(host, f"{names} | xargs -r docker image rm -f")
    for where in (host, LOCAL):
        remove_images(image_store(where), label=f"{LOCK_LABEL}={project.lock}")


@pytest.fixture(scope="module")
def built(small: Small, host: Transport) -> str:
    """Return the name of the workload image on the lab host."""
    form = ("docker", "image", "ls", "--filter", f"label={LOCK_LABEL}={small.lock}")
    listed = run(host, Command(argv=(*form, "--format", "{{.Repository}}:{{.Tag}}")))
    return next(line for line in listed.stdout.splitlines() if line.startswith("envcompare-w"))


@pytest.fixture(scope="module")
def other_numpy(
    small: Small, host: Transport, built: str, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return an image that differs from the built one in numpy alone."""
    folder = tmp_path_factory.mktemp("wheels")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    wanted = ["--only-binary=:all:", "--python-version", "3.11", f"numpy<{small.numpy}"]
    subprocess.run([*argv, *wanted], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    recipe = NUMPY.format(base=built, wheel=wheel.name)
    return build_image(
        host, "planted:numpy", {"Dockerfile": recipe.encode(), "numpy.whl": wheel.read_bytes()}
    )


def test_arms_of_one_stack_have_the_same_software(small: Small) -> None:
    """Nothing but isolation differs, and doctor ends well."""
    done = small.run("doctor", *BOTH, *small.arrays)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ stack of docker: same software as vm, in a step of arrays-Arrays" in done.stdout
    assert "⚠" not in done.stdout


def test_what_is_not_made_yet_is_not_compared(small: Small) -> None:
    """Doctor builds nothing: it names the command that does, and ends as it would without."""
    done = small.run("doctor", *BOTH, "--python", "3.11", "--sif-compression", "none",
                     "--envs", "vm,singularity", *small.arrays)  # fmt: skip
    assert "– stacks: not compared, the stack of singularity is not built yet" in done.stdout
    assert "try: envcompare build --envs vm,singularity" in done.stdout
    assert "--sif-compression none" in done.stdout
    assert done.returncode == 0, done.stdout


def test_a_workload_that_fails_is_told_and_not_taken_for_a_difference(small: Small) -> None:
    """Exit code 4, with the last line of what it said."""
    path = small.root / "broken.py"
    path.write_text(small.root.joinpath("plain.py").read_text().replace("pass", "1 / 0"))
    done = small.run("doctor", *BOTH, "--workload", f"{path}:Plain")
    assert done.returncode == 4
    assert "✕ stacks: not compared, vm: " in done.stdout
    assert done.stdout.count("ZeroDivisionError: division by zero") == 1


@pytest.mark.nightly
def test_another_numpy_is_named_with_both_versions(
    small: Small, other_numpy: str, tmp_path: Path
) -> None:
    """A run finds it, says that it was imported, and how it is told from the environment."""
    done = small.run(
        *("run", "--envs", f"vm,new=docker:{other_numpy}", *small.arrays),
        *("--quick", "--budget", "4", *STEPS_ALONE, "--out", str(tmp_path)),
    )
    (path,) = tmp_path.glob("*/comparison.json")
    comparison = json.loads(path.read_text())
    found = {one["key"]: one for one in comparison["differences"] if one["arm"] == "new"}
    one = found["numpy.version"]
    assert (one["fact_class"], one["part_of"]) == ("confounder", "")
    assert one["evidence"] == "numpy was imported by this workload in both arms."
    assert one["sentence"].startswith(f"Besides the environment, numpy {small.numpy} → ")
    assert f"--envs vm,docker,new=docker:{other_numpy}" in one["remedy"]
    assert f"--workload {small.arrays[1]}" in one["remedy"]
    told = [key for key, one in found.items()
            if one["fact_class"] == "confounder" and not one["part_of"]]  # fmt: skip
    assert told == ["numpy.version"]
    assert "numpy" in done.stdout


@pytest.mark.nightly
def test_another_numpy_that_is_not_imported_confounds_nothing(
    small: Small, other_numpy: str
) -> None:
    """The workload computes without it; the JSON has the difference as a possible influence."""
    envs = f"vm,new=docker:{other_numpy}"
    done = small.run("doctor", "--envs", envs, *small.plain, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    (examined,) = json.loads(done.stdout)["hosts"]
    (stack,) = examined["stacks"]
    assert (examined["host"], stack["arm"], stack["base"]) == (small.host, "new", "vm")
    classes = {one["key"]: one["fact_class"] for one in stack["differences"]}
    assert classes["packages.not_imported"] == "possible-influence"
    assert "confounder" not in classes.values()


def test_a_variable_of_the_allocator_in_an_image_is_found(
    small: Small, host: Transport, built: str
) -> None:
    """The image sets it, glibc reads it, and the image it was made from is not mistaken for it."""
    recipe = FEWER_ARENAS.format(base=built)
    tuned = build_image(host, "planted:malloc", {"Dockerfile": recipe.encode()})
    done = small.run("doctor", "--envs", f"vm,docker,tuned=docker:{tuned}", *small.plain)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ stack of docker: same software as vm" in done.stdout
    assert "Besides the environment, MALLOC_ARENA_MAX none → 1 differs. " in done.stdout
    assert "The allocator is glibc's, which reads it." in done.stdout
    assert "set MALLOC_ARENA_MAX to the same value in every arm" in done.stdout


@pytest.mark.nightly
def test_another_build_of_python_is_not_the_software_that_was_asked_for(
    small: Small, host: Transport
) -> None:
    """One byte more in the interpreter of vm: exit code 3, unless it is allowed."""
    path = shell(
        host,
        "mkdir -p ~/planted && cp /usr/bin/python3.11 ~/planted/ && printf x >>~/planted/python3.11"
        " && echo ~/planted/python3.11",
    ).stdout.strip()
    flags = (*BOTH, "--vm-python", path)
    assert small.run("build", *flags).returncode == 0
    done = small.run("doctor", *flags, *small.plain)
    allowed = small.run("doctor", *flags, *small.plain, "--allow-mismatch")
    shell(host, "rm -r ~/planted")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "✕ stack of docker: software differs from vm's, but should not" in done.stdout
    assert "the build of Python differs. It runs the workload's Python code, with " in done.stdout
    assert f"--envs vm,docker --base-image {BASE} --vm-python {path}" in done.stdout
    assert "--stacks image,host` measures how much is the software" in done.stdout
    assert allowed.returncode == 0
    assert "compared anyway (--allow-mismatch)" in allowed.stdout


def test_a_file_changed_after_it_was_installed_is_found(small: Small, host: Transport) -> None:
    """The packages have the versions they should have, and their files do not."""
    folder = f"{host_cache(host)}/{small.lock}"
    script = 'for file in "$1"/venv-*/lib/python3.11/site-packages/numpy/version.py; do {} ; done'
    shell(host, script.format('printf "# planted\\n" >>"$file"'), folder)
    done = small.run("doctor", *BOTH, *small.arrays)
    unused = small.run("doctor", *BOTH, *small.plain)
    shell(host, script.format("sed -i '/# planted/d' \"$file\""), folder)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "✕ stack of docker: software differs from vm's, but should not" in done.stdout
    files = f"the installed files (numpy {small.numpy}: numpy/version.py)"
    assert f"{files} differ. numpy was imported by this workload in both arms." in done.stdout
    assert f"try: rm -r {folder}/venv-" in done.stdout
    assert unused.returncode == 3
    assert f"⚠ {files}: This workload did not import them." in unused.stdout


@pytest.mark.parametrize(
    ("flags", "key", "fact_class", "words"),
    [
        (("--cpus", "0.5"), "cgroup.cpu_quota", "confounder",
         "1 thread ran on a quota of 0.5 CPUs."),
        (("--cpus", "1.5"), "cgroup.cpu_quota", "possible-influence",
         "1 thread ran on a quota of 1.5 CPUs"),
        (("--security-opt", "seccomp=unconfined"), "seccomp.mode", "possible-influence",
         "This affects a workload of mostly small system calls"),
        (("--shm-size", "128m"), "shm.bytes", "possible-influence", "data loaders"),
    ],
)  # fmt: skip
def test_a_flag_of_the_engine_is_found(
    small: Small, flags: tuple[str, ...], key: str, fact_class: str, words: str
) -> None:
    """Two containers of one image, one started with a flag that nobody told of."""
    found = planted(small, flags)[key]
    assert found.fact_class == fact_class
    assert words in found.sentence


@pytest.fixture
def quotas(lab: Lab) -> Iterator[None]:
    """Let the lab host start containers of the arms half and quarter with so much of a CPU."""
    path = "/usr/local/bin/docker"  # before the real one on PATH
    lab.as_root("sh", "-c", f'printf %s "$1" >{path} && chmod 755 {path}', "sh", QUOTAS)
    yield
    lab.as_root("rm", path)


@pytest.mark.nightly
@pytest.mark.usefixtures("quotas")
def test_part_of_a_cpu_ends_slower(small: Small, built: str) -> None:
    """An arm computes in its turn only, and meets its quota all the same.

    Where neighbours take the CPUs themselves a quota is met less often: that it costs time shows.
    """
    out = small.root / "quotas"
    envs = f"docker,half=docker:{built},quarter=docker:{built}"
    done = small.run(
        *("run", "--envs", envs, "--quick", *STEPS_ALONE, "--restarts", "3", "--rounds", "6"),
        *(*small.plain, "--out", str(out)),
    )
    folder = run_folder(out)
    found = Done(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr, folder=folder)
    assert done.returncode == 0, done.stderr
    judged = {one["arm"]: one for one in found.read("comparison.json")["comparisons"]}
    blocks = [line for line in found.lines("samples.jsonl") if line["kind"] == "block"]
    free = [block for block in blocks if block["arm"] == "docker" and not block["warmup"]]
    is_calm = sum(sum(b["cpu_ns"]) for b in free) > 0.8 * sum(sum(b["wall_ns"]) for b in free)
    assert judged["quarter"]["primary"]["metric"] == "net"
    assert judged["quarter"]["primary"]["log_ratio"] > math.log(1.2)
    if is_calm:
        assert judged["half"]["outcome"] == judged["quarter"]["outcome"] == "slower"


@pytest.fixture(scope="module")
def cpus(host: Transport) -> dict[str, str]:
    """Return the CPUs of the lab host as the kernel writes them, and the first of them."""
    status = shell(host, "cat /proc/self/status").stdout
    (found,) = re.findall(r"^Cpus_allowed_list:\s*(\S+)$", status, re.MULTILINE)
    if found.isdigit():
        pytest.skip(f"{found} is the only CPU, and so no choice")
    return {"cpus": found, "cpu": re.split("[-,]", found)[0]}


@pytest.fixture(scope="module")
def causes(host: Transport, built: str, cpus: dict[str, str]) -> dict[str, str]:
    """Return arms of images that differ from the first in one planted cause each."""
    content = {"Dockerfile": CAUSES_BASE.format(base=built).encode(), "felt.py": FELT.encode()}
    base = build_image(host, "planted:base", content)
    arms = {"base": f"base=docker:{base}"}
    for name, (recipe, _) in CAUSES.items():
        content = {"Dockerfile": f"FROM {base}\n{recipe.format(**cpus)}".encode()}
        arms[name] = f"{name}=docker:{build_image(host, f'planted:{name}', content)}"
    return arms


@pytest.fixture(scope="module")
def causes_run(small: Small, causes: dict[str, str]) -> Done:
    """Return one run over all of them; it ends as soon as every arm is told from the first."""
    out = small.root / "causes"
    done = small.run(
        *("run", "--envs", ",".join(causes.values()), "--quick", *STEPS_ALONE),
        *("--budget", "300", "--target", "20"),
        *("--command", "python3 /planted/felt.py", "--command-dir", "/srv", "--out", str(out)),
    )
    return Done(
        exit_code=done.returncode,
        stdout=done.stdout,
        stderr=done.stderr,
        folder=run_folder(out),
    )


@pytest.mark.parametrize("arm", CAUSES)
def test_a_planted_cause_is_named_on_the_first_screen(
    small: Small, causes_run: Done, cpus: dict[str, str], arm: str
) -> None:
    """Page, Markdown and terminal name it in the lines of the verdict."""
    assert causes_run.folder, causes_run.stderr
    assert causes_run.outcomes()["felt", arm] == "slower"
    expected = CAUSES[arm][1].format(numpy=small.numpy, **cpus)
    page = (causes_run.folder / "report.html").read_text()
    answer = page.partition('<section id="answer"')[2].partition('<div class="three">')[0]
    assert expected in " ".join(re.sub(r"<[^>]+>", " ", html.unescape(answer)).split())
    argv = [sys.executable, "-m", "envcompare", "report", str(causes_run.folder)]
    shown = subprocess.run([*argv, "--format", "md"], capture_output=True, text=True, check=True)
    (line,) = (
        one
        for one in shown.stdout.replace("\\", "").splitlines()
        if "▶" in one and f"{arm} is" in one
    )
    assert expected in line
    assert f"(planted:base → planted:{arm}), which this run compares." in line
    assert expected in " ".join(causes_run.stdout.split())


def test_a_wrapper_around_the_python_of_an_image_is_in_effect(
    small: Small, causes: dict[str, str]
) -> None:
    """A worker starts as a user of the image starts it: what it is restricted to is found."""
    arms = ",".join(causes[name] for name in ("base", "taskset", "nice"))
    done = small.run("doctor", "--envs", arms, *small.plain)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = " ".join(done.stdout.split())
    assert "stack of nice: no confounder against base, in a step of plain-Plain" in shown
    assert "possible influence: the priority (nice)" in shown
    assert "possible influence: the CPU set" in shown


@pytest.mark.nightly
@pytest.mark.engine("singularity")
def test_a_wrapper_in_a_sif_is_in_effect(
    small: Small, host: Transport, causes: dict[str, str]
) -> None:
    """The PATH that the SIF has from its image finds it."""
    folder = f"{host_cache(host)}/planted"
    reference = causes["nice"].partition(":")[2]
    quick = ("--mksquashfs-args", "-comp zstd -Xcompression-level 1")
    build = ("apptainer", "-q", "build", "--force", *quick)
    shell(host, 'mkdir -p -- "$1"', folder)
    made = run(host, Command(argv=(*build, f"{folder}/nice.sif", f"docker-daemon:{reference}")))
    assert made.succeeded, made.tail(5)
    arms = f"{causes['base']},sif=singularity:{folder}/nice.sif"
    done = small.run("doctor", "--envs", arms, *small.plain)
    shell(host, 'rm -r -- "$1"', folder)
    shown = " ".join(done.stdout.split())
    assert "Besides the environment, the priority (nice) 0 → 10 differs." in shown, done.stderr


def test_an_image_without_python_on_its_path_is_refused(
    small: Small, host: Transport, causes: dict[str, str]
) -> None:
    """The error says what is missing and how to mend it."""
    recipe = f"FROM {causes['base'].partition(':')[2]}\nENV PATH=/planted\n"
    bare = build_image(host, "planted:bare", {"Dockerfile": recipe.encode()})
    done = small.run("doctor", "--envs", f"{causes['base']},bare=docker:{bare}", *small.plain)
    assert done.returncode == 3, done.stdout + done.stderr
    shown = " ".join(done.stdout.split())
    assert "no python3 is on the PATH of the image" in shown
    assert "ENV PATH=/its/folder:$PATH" in shown


@dataclass(slots=True, kw_only=True)
class PlantedSession(HostSession):
    """A session that starts the containers of one arm with a flag more."""

    flags: tuple[str, ...] = ()

    def wrapped(self, ready: ReadyArm, command: Command, **kwargs: Any) -> Command:
        """Return the command as it runs in an arm, with the flag in the arm `planted`."""
        argv = HostSession.wrapped(self, ready, command, **kwargs).argv
        flags = self.flags if ready.arm.id == "planted" else ()
        return Command(argv=(*argv[:2], *flags, *argv[2:]))


def planted(small: Small, flags: tuple[str, ...]) -> dict[str, FactDifference]:
    """Compare two arms of the same image, one started with these flags of `docker run`."""
    settings = Settings(
        envs="docker", hosts=small.host, base_image=BASE, workload=(small.plain[1],)
    )
    arms = (
        ArmRecord(id="docker", environment="docker", is_reference=True),
        ArmRecord(id="planted", environment="docker"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundled, "root", lambda: small.root)
        for name, value in small.variables.items():
            patch.setenv(name, value)
        experiment, hosts = resolved(settings, Settings())
        session = open_session(hosts[0], experiment, "planted", Interruption())
        given = {one.name: getattr(session, one.name) for one in fields(session) if one.init}
        own = PlantedSession(**given, flags=flags)
        try:
            (found,) = compare_stacks(own, experiment, arms, Progress(print, may_make=False))
        finally:
            own.close()
    return {difference.key: difference for difference in found.differences}
