"""Command lines as typed, compared on this machine through the whole command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab import ROOT, Lab, docker_client, need
from runs import BASE, Done, run_folder

from envcompare.errors import StackError
from envcompare.proof.imagefiles import ImageFiles

PROFILE = "import sys; sys.setprofile(lambda *_: None)"
PROFILED = "envcompare-test-profiled"
EXPORTING = "envcompare-test-exporting"
LABEL = "envcompare.run"
PTH = "/usr/lib/python3/dist-packages/profiled.pth"

pytestmark = pytest.mark.timeout(420)

# It closes every possible descriptor, as old programs do before they start another (moby#45436).
CLOSES = (
    "import os, resource\n"
    "for fd in [*range(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])] * 30:\n"
    "    try: os.close(fd)\n"
    "    except OSError: pass\n"
)
# It writes what it finds where a line of the user's would look.
TELLS = (
    "import json, os, sys\n"
    "names = ('HOME', 'MINE', 'TMPDIR', 'PYTHONDONTWRITEBYTECODE', 'OMP_NUM_THREADS')\n"
    "found = {name: os.environ.get(name) for name in names}\n"
    "json.dump([found, os.getcwd(), sys.argv[1:]], open(f'found-{found[\"MINE\"]}', 'w'))\n"
)


def command(*arguments: str) -> list[str]:
    """Return the argv of a comparison that keeps its run folder in `out`."""
    words = (sys.executable, "-m", "envcompare", "why", "--out", "out", "--wait", "240")
    return [*words, "--no-quiet-gate", *arguments]  # other tests may keep this machine busy


def why(folder: Path, *arguments: str, **variables: str) -> Done:
    """Run the command to its end in a folder."""
    done = subprocess.run(
        command(*arguments),
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    out = run_folder(folder / "out") if (folder / "out").exists() else None
    return Done(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr, folder=out)


def send(source: tuple[str, ...], target: tuple[str, ...]) -> None:
    """Pipe what one command prints into another."""
    with subprocess.Popen(source, stdout=subprocess.PIPE) as process:
        subprocess.run(target, stdin=process.stdout, check=True)
    assert process.returncode == 0


def unpack(place: str) -> str:
    """Return a command of the shell that unpacks an archive into a new folder."""
    return f"mkdir -p {place} && tar -C {place} -x --no-same-owner --exclude=dev"


@contextmanager
def container_of(image: str) -> Iterator[str]:
    """Create a container of an image, not started, and remove it at the end."""
    create = ("docker", "create", image, "true")
    made = subprocess.run(create, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield made
    finally:
        subprocess.run(("docker", "rm", made), check=True, capture_output=True)


def profiled(folder: Path) -> str:
    """Return a line whose image profiles every Python program, and make both."""
    other = "RUN echo here >/etc/motd && mkdir /opt/app && echo there >/opt/app/data"
    text = f"FROM {BASE}\n{other}\nRUN echo '{PROFILE}' >{PTH}\n"
    build = ("docker", "build", "--quiet", f"--tag={PROFILED}", "-")
    env = {**os.environ, "DOCKER_BUILDKIT": "0"}  # a client may lack buildx
    subprocess.run(build, input=text, text=True, check=True, capture_output=True, env=env)
    (folder / "w.py").write_text("def call(): pass\nfor _ in range(2_000_000): call()\n")
    return f"docker run --rm -v $PWD:/w {PROFILED} python3 /w/w.py"


def exporting(folder: Path) -> str:
    """Return a line whose image has an entrypoint that sets a variable, and make both."""
    (folder / "w.py").write_text("x = [[str(i) for i in range(100)] for _ in range(4_000)]\n")
    (folder / "entry").write_text('#!/bin/sh\nexport PYTHONTRACEMALLOC=9\nexec "$@"\n')
    (folder / "entry").chmod(0o755)
    text = f'FROM {BASE}\nCOPY entry /entry\nENTRYPOINT ["/entry"]\n'
    (folder / "Dockerfile").write_text(text)
    build = ("docker", "build", "--quiet", f"--tag={EXPORTING}", str(folder))
    env = {**os.environ, "DOCKER_BUILDKIT": "0"}  # a client may lack buildx
    subprocess.run(build, check=True, capture_output=True, env=env)
    return f"docker run --rm -v $PWD:/w {EXPORTING} python3 /w/w.py"


def environments(folder: Path, hashes: dict[str, int]) -> None:
    """Make virtual environments with packages, one of which computes as much as is given."""
    for name, count in hashes.items():
        (folder / name).mkdir()
        make = (sys.executable, "-m", "venv", "--without-pip", str(folder / name))
        subprocess.run(make, check=True)
        (site,) = (folder / name).glob("lib/python3*/site-packages")
        works = (
            f"import hashlib\nfor _ in range({count}): hashlib.sha256(b'x' * 1_000_000).digest()\n"
        )
        for package, text in (("plain", ""), ("slow", works), ("other", "")):
            version = "1" if package == "plain" or name == "old" else "2"
            about = site / f"{package}-{version}.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
            (site / f"{package}.py").write_text(text)
            (about / "RECORD").write_text(f"{package}.py,sha256={version},1\n")


def containers(run: str) -> list[str]:
    """Return the containers of a run that the engine still has."""
    words = ("docker", "ps", "-aq", "--filter", f"label={LABEL}={run}")
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def test_line_runs_as_the_shell_runs_it(tmp_path: Path) -> None:
    """With the variables, the folder and the byte code that it has without envcompare."""
    (tmp_path / "tells.py").write_text(TELLS)
    line = f"MINE='a b' {sys.executable} tells.py \"$OTHER\" 'c  d' > printed"
    done = why(tmp_path, "--budget", "2", line, f"{sys.executable} tells.py", OTHER="é")
    assert done.exit_code in {0, 7}, done.stderr
    paths = [tmp_path / "found-a b", tmp_path / "found-None"]
    measured = [json.loads(path.read_text()) for path in paths]
    for text in (line, f"{sys.executable} tells.py"):
        variables = {**os.environ, "OTHER": "é"}
        subprocess.run(["sh", "-c", text], cwd=tmp_path, env=variables, check=True)
    assert measured == [json.loads(path.read_text()) for path in paths]
    assert measured[0][2] == ["é", "c  d"]


def test_files_that_a_line_writes_are_reported_and_may_be_removed(tmp_path: Path) -> None:
    """Else a later process would find what an earlier one left."""
    line = "test ! -e model && echo x > model"
    done = why(tmp_path, "--budget", "10", line, line)
    assert done.exit_code == 4
    done = why(tmp_path, "--budget", "10", "--prepare", "rm -f model", line, line)
    assert done.exit_code in {0, 7}, done.stderr
    assert "a changes files in the folder, or another program does (model)" in done.stderr
    assert re.search(r"to end early takes at least [78] more rounds", " ".join(done.stderr.split()))
    done = why(tmp_path, "--budget", "10", "--prepare", "exit 5", line, line)
    assert done.exit_code == 4
    assert "--prepare ended with exit code 5" in done.stdout


TRAINS = """
import sys, time, torch
model = torch.nn.Linear(128, 128)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
while True:
    model(torch.ones(32, 128)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(float(sys.argv[1]))
"""


@pytest.mark.torch
def test_steps_of_a_script_are_compared_in_turns(tmp_path: Path, torch_interpreter: str) -> None:
    """The script never ends by itself; no process survives the run."""
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    line = f"OMP_NUM_THREADS=1 {torch_interpreter} {script}"
    done = why(tmp_path, "--lockstep", "--budget", "60", f"{line} 0", f"{line} 0.002")
    assert done.exit_code == 0, done.stderr
    assert "slower" in done.stdout
    assert "step, a → this" in done.stdout
    assert subprocess.run(("pgrep", "-f", str(script)), check=False).returncode == 1


@pytest.mark.torch
def test_scripts_that_train_other_models_have_their_own_exit_code(
    tmp_path: Path, torch_interpreter: str
) -> None:
    """Their steps have no ratio."""
    for size in (64, 128):
        (tmp_path / f"{size}.py").write_text(TRAINS.replace("128", str(size)))
    lines = [f"OMP_NUM_THREADS=1 {torch_interpreter} {size}.py 0" for size in (64, 128)]
    done = why(tmp_path, "--lockstep", "--budget", "30", *lines)
    assert done.exit_code == 6
    assert "parameters: 16512, not 4160" in " ".join(done.stdout.split())


def test_undecided_line_has_its_own_exit_code(tmp_path: Path) -> None:
    """A verdict needs four rounds, and no more than three fit into the budget."""
    assert why(tmp_path, "--budget", "6", "sleep 1", "sleep 1").exit_code == 7


def test_time_of_the_lines_around_a_process_is_not_counted(tmp_path: Path) -> None:
    """They run before and after each process of every line."""
    around = ("--prepare", "sleep 1; echo p >> around", "--conclude", "sleep 1; echo c >> around")
    done = why(tmp_path, "--budget", "10", *around, "true", "true")
    runs = [line for line in done.lines("samples.jsonl") if line["kind"] == "process"]
    assert max(run["wall_ns"] for run in runs) < 10**9
    assert max(run["real_ns"] for run in runs) < 10**9
    # a line that is over before it can be read runs a few times more
    pairs = (tmp_path / "around").read_text().count("p\nc\n")
    assert (tmp_path / "around").read_text() == "p\nc\n" * pairs
    assert pairs >= len(runs)


@pytest.mark.nightly
def test_cause_is_found_among_the_packages_of_two_environments(tmp_path: Path) -> None:
    """By links that come first: neither environment changes, and nothing is left of them."""
    environments(tmp_path, {"old": 40, "new": 240})
    (tmp_path / "w.py").write_text("import plain, slow, other")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/lib/**/*.py")}
    done = why(tmp_path, "--budget", "60", "--prove", "old/bin/python w.py", "new/bin/python w.py")
    text = " ".join(done.stdout.split())
    assert "proven by changing it: slow 2 → 1." in text, done.stderr
    assert "To fix it: install slow==1, built as for the fast line." in text
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/lib/**/*.py")} == before
    assert done.folder is not None
    lines = done.read("proof.json")["confirmed"]["line"]
    (links,) = re.findall(r"PYTHONPATH=([^$]+)", lines)
    assert not Path(links).exists()


def test_line_is_compared_with_a_capture(tmp_path: Path) -> None:
    """Of this machine at another time, with more to do and another variable."""
    words = ("capture", "-o", "slow.capture", "--budget", "45", "--no-quiet-gate", "--out", "first")
    count = "python3 -c 'print(sum(i * i for i in range({})))'"
    line = f"OMP_NUM_THREADS=7 {count.format(3_000_000)}"  # far more, for a busy machine
    argv = (sys.executable, "-m", "envcompare", *words, line)
    subprocess.run(argv, cwd=tmp_path, check=True)
    done = why(tmp_path, "--budget", "30", count.format(500_000), "slow.capture")
    assert done.exit_code == 0, done.stderr
    assert done.outcomes()["line", "b"] == "slower"
    text = " ".join(done.stdout.split())
    assert "Measured at different times, perhaps on different machines, b is" in text
    assert "OMP_NUM_THREADS none → 7" in text
    assert "the processor" not in text
    kept = json.loads((tmp_path / "slow.capture").read_text())
    content = json.dumps({**kept, "facts": {**kept["facts"], "cpu.model": "another processor"}})
    (tmp_path / "slow.capture").write_text(content)
    done = why(tmp_path, "--budget", "30", count.format(500_000), "slow.capture")
    assert re.search("1. the processor .* → another processor", " ".join(done.stdout.split()))


def test_container_of_a_line_that_is_not_one_call_is_reported_as_not_read(tmp_path: Path) -> None:
    """The line runs unchanged."""
    done = why(tmp_path, "--budget", "2", "true", "echo docker run app | grep -q app")
    assert done.exit_code in {0, 7}, done.stderr
    assert "its container is not read" in done.stderr


@pytest.mark.nightly
@pytest.mark.engine("ssh")
@pytest.mark.engine("docker")
@pytest.mark.engine("singularity")
def test_cause_is_found_among_the_files_of_two_sifs(lab: Lab) -> None:
    """Without root, on a host that has Apptainer; the images lie in a folder of the login."""
    inside = (docker_client(), "exec", "--interactive", "--user", "bench", lab.alias, "sh", "-c")
    packages = sysconfig.get_path("platlib")
    unused = ("mypy*", "pandas", "playwright", "pyarrow", "*__mypyc*")
    excluded = [f"--exclude=./{name}" for name in unused]
    place = f"/tmp/sifs-{uuid.uuid4().hex[:8]}"
    try:
        send(("tar", "-C", packages, *excluded, "-c", "."), (*inside, unpack(f"{place}/lib")))
        own = ("envcompare", "workloads", "studies", "containers", "Dockerfile")
        send(("tar", "-C", str(ROOT), "-c", *own), (*inside, unpack(place)))
        tree = f"{place}/tree"
        with container_of(BASE) as container:
            send(("docker", "export", container), (*inside, unpack(tree)))
        script = f"""set -e; cd {place}
printf 'def call(): pass\\nfor _ in range(2_000_000): call()\\n' >w.py
apptainer -q build fast.sif tree
echo '{PROFILE}' >tree{PTH}; echo other >tree/etc/motd
apptainer -q build slow.sif tree
export PYTHONPATH={place}:{place}/lib
python3.11 -m envcompare why --prove --no-quiet-gate --budget 150 --out out \
  'apptainer exec fast.sif python3 w.py' 'apptainer exec slow.sif python3 w.py'
grep -oh '"python.version": *"[0-9.]*"' out/*/fingerprints/local/b/*.json
ls -d out/*/trials/envcompare-images-* 2>/dev/null || echo nothing left
"""
        done = subprocess.run((*inside, script), capture_output=True, text=True, check=False)
    finally:
        remove = f"chmod -R u+rwx {place}; rm -rf {place}"
        subprocess.run((*inside, remove), capture_output=True, check=True)
    text = " ".join(done.stdout.split())
    assert f"proven by changing it: {PTH} removed." in text, done.stderr + text
    assert f"in the definition of slow.sif: remove {PTH}." in text
    assert re.search(r'"python.version": ?"3.11" nothing left$', text)


@pytest.mark.engine("docker")
class TestInContainers:
    """Two calls of `docker run` that differ in one option."""

    def test_difference_and_its_cause_are_found(self, tmp_path: Path) -> None:
        """Slower, with the limit of open files among what may be the cause."""
        lines = [
            # it also works for a while, so that its process can be read
            f"{name}=docker run --ulimit nofile={limit}:20000 {BASE} "
            f"python3 -c '{CLOSES}sum(range(10_000_000))'"
            for name, limit in (("few", 1024), ("many", 20000))
        ]
        done = why(tmp_path, "--budget", "60", *lines)
        assert done.exit_code == 0, done.stderr
        assert done.outcomes()["line", "many"] == "slower"
        text = " ".join(done.stdout.split())
        assert "The lines differ: nofile=1024:20000 → nofile=20000:20000." in text
        assert "1. the limit nofile 1024 → 20000." in text
        assert "Try: `docker run --ulimit nofile=VALUE`." in text
        assert done.folder is not None
        assert containers(done.folder.name) == []

    def test_cause_is_proven_by_changing_the_slow_line(self, tmp_path: Path) -> None:
        """By an option of the engine, beside a placebo."""
        slow = f"docker run --ulimit nofile=20000:20000 {BASE} python3 -c '{CLOSES}'"
        done = why(tmp_path, "--budget", "60", "--prove", slow, slow.replace("=20000:", "=1024:"))
        text = " ".join(done.stdout.split())
        assert (
            "proven by changing it: --ulimit nofile=20000:20000 → --ulimit nofile=1024:20000."
            in text
        )
        ulimits = ("--ulimit nofile=20000:20000", "--ulimit nofile=1024:20000")
        assert "To fix it: replace {} by {}.".format(*ulimits) in text
        assert done.folder is not None
        trials = [json.loads(path.read_text()) for path in done.folder.glob("trials/*/run.json")]
        assert all(containers(trial["run_id"]) == [] for trial in trials)
        assert any(arm["id"] == "placebo" for trial in trials for arm in trial["arms"])

    def test_cause_is_found_among_the_files_of_an_image(self, tmp_path: Path) -> None:
        """What was made for the search is removed."""
        slow = profiled(tmp_path)
        done = why(tmp_path, "--budget", "90", "--prove", slow.replace(PROFILED, BASE), slow)
        text = " ".join(done.stdout.split())
        assert f"proven by changing it: {PTH} removed." in text, done.stderr
        assert f"To fix it: in the Dockerfile of {PROFILED}: RUN rm -r {PTH}." in text
        assert (tmp_path / "w.py").exists()  # an image that keeps `rm` as its program removes it
        assert done.folder is not None
        images = ("docker", "image", "ls", "--quiet", f"--filter=label={LABEL}={done.folder.name}")
        left = subprocess.run(images, capture_output=True, text=True, check=True).stdout
        assert left == ""
        assert containers(done.folder.name) == []

    @pytest.mark.nightly
    def test_image_whose_programs_do_more_is_refused(self, tmp_path: Path) -> None:
        """Files are removed by the `rm` of the image, without rights that it does not need."""
        hostile = "envcompare-test-hostile"
        script = "#!/bin/sh\ncat /proc/self/status >/found\nexec /usr/bin/unlink /usr/x\n"
        (tmp_path / "rm").write_text(script)
        (tmp_path / "rm").chmod(0o755)
        text = f"FROM {BASE}\nCOPY rm /usr/bin/rm\nRUN touch /usr/x\nLABEL a='x\u0085y'\n"
        (tmp_path / "Dockerfile").write_text(text)
        build = ("docker", "build", "--quiet", f"--tag={hostile}", str(tmp_path))
        env = {**os.environ, "DOCKER_BUILDKIT": "0"}
        subprocess.run(build, check=True, capture_output=True, env=env)
        files = ImageFiles(
            client=("docker",), fast=BASE, slow=hostile, run_id="hostile", folder=tmp_path
        )
        assert set(files.read(limit_s=60)) >= {"/usr/bin/rm", "/usr/x"}
        with pytest.raises(StackError, match="does more than remove"):
            files.image_with(["/usr/x"], limit_s=60)
        made = files.image_with(["/usr/bin/rm"], limit_s=60)
        subprocess.run(("docker", "rmi", made, hostile), check=True, capture_output=True)

    @pytest.mark.nightly
    def test_variable_that_an_entrypoint_sets_is_found(self, tmp_path: Path) -> None:
        """No option changes it, but another entrypoint does: of an image, or none."""
        slow = exporting(tmp_path)
        for fast in (slow.replace(EXPORTING, BASE), "/usr/bin/python3 w.py"):
            done = why(tmp_path, "--budget", "90", "--prove", fast, slow)
            text = " ".join(done.stdout.split())
            assert 'proven by changing it: ENTRYPOINT ["/entry"]' in text, f"{done.stderr} {text}"

    @pytest.mark.nightly
    def test_software_of_an_image_is_told_from_its_isolation(self, tmp_path: Path) -> None:
        """By showing the container that of this machine."""
        lines = ("PATH=/usr/bin:/bin python3 w.py", profiled(tmp_path))
        done = why(tmp_path, "--budget", "90", "--prove", *lines)
        text = " ".join(done.stdout.split())
        assert "proven by changing it: the software of the image → that of this machine" in text

    @pytest.mark.nightly
    def test_cause_of_a_difference_in_a_run_is_proven_later(self, tmp_path: Path) -> None:
        """In trials with its settings, that the report then shows."""
        steps = CLOSES.replace("range(3,", "range(200,").replace("* 30", "* 5")
        steps = steps.replace("\n", "\n        ").rstrip()
        (tmp_path / "fds.py").write_text(
            "class Close:\n    def __init__(self, n=1): pass\n"
            "    def setup(self, seed, device): pass\n"
            f"    def step(self):\n        {steps}\n        return 0.0\n"
        )
        arms = f"usual=docker:{BASE},big=docker:{BASE}"
        words = ("run", "--envs", arms, "--workload", "fds.py:Close", "--budget", "40", "--quick")
        limits = [
            f"{arm}=--ulimit nofile={n}:20000" for arm, n in (("usual", 1024), ("big", 20000))
        ]
        given = (*("--docker-options", limits[0]), *("--docker-options", limits[1]))
        program = (sys.executable, "-m", "envcompare")
        more = ("--no-startup", "--no-quiet-gate", "--out", "out", "--wait", "240")
        measure = (*program, *words, *given, *more)
        done = subprocess.run(measure, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "why RUN --comparison big/fds-Close" in " ".join(done.stdout.split())
        run = run_folder(tmp_path / "out")
        explain = (
            *program,
            "why",
            str(run),
            "--comparison",
            "big",
            "--no-quiet-gate",
            "--budget",
            "60",
        )
        done = subprocess.run(explain, cwd=tmp_path, capture_output=True, text=True, check=True)
        text = " ".join(done.stdout.split())
        fix = ("--ulimit nofile=20000:20000", "--ulimit nofile=1024:20000")
        assert "proven by changing it: {} → {}.".format(*fix) in text, done.stderr
        assert "What closes the difference" in (run / "report.html").read_text()
        wrong = subprocess.run(
            (*explain, "--margin", "3"), cwd=tmp_path, capture_output=True, check=False
        )
        assert wrong.returncode == 2
        assert b"--margin applies to command lines" in wrong.stderr

    def test_engine_reports_what_it_made_of_the_line(self, tmp_path: Path) -> None:
        """Facts are those of the process in the container, not of its client."""
        line = f"docker run --rm --cpus 1 -e OMP_NUM_THREADS=3 {BASE} python3 -c '{CLOSES}'"
        other = f"docker run --rm --network host --dns 127.0.0.9 -v /new {BASE} sleep 0.4"
        done = why(tmp_path, "--budget", "20", line, other)
        assert done.exit_code in {0, 7}, done.stderr
        assert done.folder is not None
        paths = done.folder.glob("fingerprints/local/*/line_default.json")
        facts = {path.parent.name: json.loads(path.read_text())["facts"] for path in paths}
        assert facts["a"]["cgroup.cpu_quota"] == 1
        assert facts["b"]["cgroup.cpu_quota"] == "unlimited"
        assert facts["a"]["env.OMP_NUM_THREADS"] == "3"
        names = ("network", "entrypoint", "volumes", "ports", "storage")
        assert [facts["a"][f"container.{name}"] for name in names] == [
            *("bridge", "python3", 0, 0, facts["b"]["container.storage"])
        ]
        assert [facts["b"][f"container.{name}"] for name in names[:4]] == ["host", "sleep", 1, 0]
        assert facts["b"]["network.resolvers"] == "127.0.0.9"
        assert 0 < facts["a"]["container.start_ms"] < 60_000
        assert any(one.startswith("python3.11 ") for one in facts["a"]["programs"])
        assert facts["a"]["python.version"] == "3.11"
        assert facts["a"]["image.id"].startswith("sha256:")

    def test_quota_that_stops_the_work_comes_first(self, tmp_path: Path) -> None:
        """It was read in the control group of the container while the line ran."""
        work = f"{BASE} python3 -c 'sum(i * i for i in range(6000000))'"
        lines = (f"docker run --rm {work}", f"docker run --rm --cpus 0.3 {work}")
        done = why(tmp_path, "--budget", "90", *lines)
        assert done.exit_code == 0, done.stderr
        text = " ".join(done.stdout.split())
        assert "The lines differ: --cpus 0.3 is added." in text
        assert "1. the CPU quota unlimited → 0.3. It stopped the workload for " in text

    def test_engine_that_does_not_answer_is_explained(self, tmp_path: Path) -> None:
        """As it is for the environment of the same engine."""
        socket = "unix:///nowhere/docker.sock"
        done = why(tmp_path, "true", f"docker run {BASE} true", DOCKER_HOST=socket)
        assert done.exit_code == 3
        assert f"no Docker daemon answers at {socket}" in " ".join(done.stderr.split())
        assert "start it, or correct DOCKER_HOST" in done.stderr

    def test_line_that_fails_is_shown_with_its_output(self, tmp_path: Path) -> None:
        """Exit code 4, and what it printed."""
        fails = f"docker run --rm {BASE} sh -c 'echo no such $((40 + 2)) >&2; exit 9'"
        done = why(tmp_path, "--budget", "10", f"docker run --rm {BASE} true", fails)
        assert done.exit_code == 4
        assert done.outcomes()["line", "b"] == "failed"
        assert "no such 42" in done.stdout

    @pytest.mark.parametrize(
        ("option", "hint"),
        [("-d", "leave -d out"), ("-it", "leave -t out"), ("--cidfile f", "leave --cidfile out")],
    )
    def test_line_that_cannot_be_timed_is_refused(
        self, tmp_path: Path, option: str, hint: str
    ) -> None:
        """Before it is run, with what to leave out."""
        done = why(tmp_path, "true", f"docker run --rm {option} {BASE} true")
        assert done.exit_code == 3
        assert hint in done.stdout

    @pytest.mark.parametrize("starter", ["", "env A=1 sudo "])
    def test_interrupted_line_leaves_no_container(self, tmp_path: Path, starter: str) -> None:
        """Nor does a process of the line go on after the second Ctrl-C."""
        if starter:
            need("sudo")
        line = f"{starter}docker run --rm {BASE} sleep 987654"
        with subprocess.Popen(
            command(line, line),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            until = time.monotonic() + 120
            while time.monotonic() < until and not (
                (run := run_folder(tmp_path / "out") if (tmp_path / "out").exists() else None)
                and containers(run.name)
            ):
                time.sleep(0.2)
            assert run is not None, "no run folder was made"
            assert containers(run.name), "no container was seen"
            process.send_signal(signal.SIGINT)
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=120) == 130
        assert containers(run.name) == []
        left = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert not any(b"987654" in words for words in left)
