"""A host that looks as if it had an NVIDIA GPU: what is said of it before anything is computed.

That a kernel runs is shown on a real GPU alone, by tests/gpu.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from benches import Kept, bench
from gpuhost import build, imitated, remove
from gpumodels import FAILURES, MODELS, NEWER, Imitation, uuid
from lab import ROOT, Lab, docker_client, login, need, nvml_headers
from nightly import nightly_except
from runs import BASE, LIGHT, STEPS_ALONE

import gpu_check
from envcompare.analysis.compare import compare_run
from envcompare.environments import Isolation, run_inside
from envcompare.environments.gpu import RELOAD, check_driver, check_inside, find
from envcompare.environments.oci import ENGINE
from envcompare.environments.registry import environment
from envcompare.environments.vm import without_login
from envcompare.measure.cell import QuietGate
from envcompare.report.wording.methodwords import device_sentences
from envcompare.run_folder.results import RunFolder
from envcompare.stack import Prepared, Progress, Request
from envcompare.text import Command
from envcompare.transport import Transport, shell
from envcompare.transport.hosts import connect, parse_hosts

pytestmark = pytest.mark.engine("gcc")  # the stubs are built where the tests run
HOST = "lab-h2"  # no other test looks at GPUs there
SANDBOX = "/tmp/envcompare-test-gpu"
T4 = MODELS["t4"]
MODULES = (("535.183.01", False), ("550.54.15", True), ("570.86.10", False), ("580.65.06", True))
on_host = pytest.mark.engine("hosts")
# Asks a GPU for its name and for a context, without which nothing can be computed.
ASK = """
import ctypes
cuda, text = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(99)
context = ctypes.c_void_p()
print(cuda.cuInit(0), cuda.cuDeviceGetName(text, 99, 0), text.value.decode(), end=" ")
print(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
"""


@pytest.fixture
def host(lab: Lab) -> Iterator[Transport]:
    """Give a connection to the host, which has no GPU before and after, even of a killed test."""
    remove(HOST, docker=docker_client())
    transport = connect(parse_hosts([HOST])[0])
    yield transport
    shell(transport, 'chmod -R u+w "$1"; rm -rf "$1"', SANDBOX)
    transport.close()
    subprocess.run([docker_client(), "exec", HOST, "rm", "-rf", SANDBOX], check=True)
    remove(HOST, docker=docker_client())


def _imitation(*failures: str, **changes: object) -> Imitation:
    return Imitation(**{"model": T4, "failures": frozenset(failures), **changes})


def _reference(host: Transport, name: str) -> str:
    """Put the image with Python on the host and return what the environment calls it."""
    docker, inside = docker_client(), (docker_client(), "exec", "-i", HOST, "docker")
    if name == "vm":
        return ""
    if subprocess.run(
        [*inside, "image", "inspect", BASE], capture_output=True, check=False
    ).returncode:
        saved = subprocess.run([docker, "save", BASE], stdout=subprocess.PIPE, check=True)
        subprocess.run([*inside, "load"], input=saved.stdout, check=True)
    if name == "docker":
        return BASE
    build_it = 'rm -rf "$1"; apptainer -q build --sandbox "$1" "docker-daemon:$2"'
    built = shell(host, build_it, SANDBOX, BASE, timeout_s=300)
    assert built.succeeded, built.stderr
    return SANDBOX


def _envcompare(*words: str, **variables: str) -> tuple[int, str]:
    argv = [sys.executable, "-m", "envcompare", *words, "--hosts", HOST]
    env = {**os.environ, **variables}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("failures", [(), ("two-gpus", "mig"), ("mismatch",)])
def test_stubs_have_the_prototypes_and_sizes_of_nvml_h(
    tmp_path: Path, failures: tuple[str, ...]
) -> None:
    """The compiler refuses a definition that differs from NVIDIA's own declaration."""
    need("nvml.h")
    options = ("-DNVML_HEADER", f"-I{nvml_headers()}")
    build(_imitation(*failures, model=MODELS["a100"]), tmp_path, options=options)
    assert (tmp_path / "libnvidia-ml.so.1").exists()


@on_host
@pytest.mark.parametrize(
    ("gpu", "driver", "is_open"),
    [(gpu, *module) for gpu, module in zip(("t4", "v100", "a100", "h100"), MODULES, strict=True)],
)
def test_driver_is_read_from_either_kernel_module(
    host: Transport, gpu: str, driver: str, *, is_open: bool
) -> None:
    """The proprietary and the open module write different lines, and nvidia-smi is asked too."""
    imitation = _imitation("no-cdi", model=MODELS[gpu], driver=driver, is_open=is_open)
    with imitated(HOST, imitation, docker=docker_client()):
        check = check_driver(host)
        listed = shell(host, "nvidia-smi -L").stdout
    assert (check.reason, check.version) == ("", driver)
    assert listed == f"GPU 0: {MODELS[gpu].name} (UUID: GPU-1m1tated-0000-4000-8000-000000000000)\n"


@on_host
@pytest.mark.engine("singularity")
def test_doctor_finds_the_gpu_in_every_environment() -> None:
    """Docker gives it by CDI, Apptainer by --nv."""
    remove(HOST, docker=docker_client())
    with imitated(HOST, _imitation(), docker=docker_client()):
        _, said = _envcompare("doctor", "--envs", "vm,docker,singularity")
    assert f"✓ gpu driver: 570.86.10, {MODELS['t4'].name}\n" in said
    for subject in ("gpu in vm", "gpu in docker", "gpu in singularity"):
        assert f"✓ {subject}: 570.86.10\n" in said


@on_host
@pytest.mark.parametrize(
    ("failures", "is_usable"),
    [((), True), pytest.param(("mismatch",), False, marks=pytest.mark.nightly)],
)
def test_gpu_check_reads_from_doctor_whether_there_is_a_gpu_to_check(
    failures: tuple[str, ...], *, is_usable: bool
) -> None:
    """A broken driver ends it before anything is built; what is measured needs a real GPU."""
    with imitated(HOST, _imitation(*failures), docker=docker_client()):
        _, said = _envcompare("doctor", "--envs", "vm,docker", "--format", "json")
    known = gpu_check.survey(said, ("vm", "docker"))
    in_vm = [row.state for row in known.rows if row.check == "gpu in vm"]
    assert in_vm == ["passed"] * is_usable
    assert bool(known.no_gpu) is not is_usable


@on_host
@pytest.mark.parametrize(
    ("name", "way", "failures"),
    [
        ("vm", "devices", ()),
        ("docker", "cdi", ()),
        ("docker", "devices", ("no-cdi",)),
        pytest.param("singularity", "engine", ("no-cdi",), marks=pytest.mark.engine("singularity")),
    ],
)
def test_process_in_an_environment_reaches_the_driver(
    host: Transport, name: str, way: str, failures: tuple[str, ...]
) -> None:
    """The engine itself gives nodes and libraries; a context is refused, so nothing is computed."""
    where, python = environment(name), Command(argv=("python3", "-c", ASK))
    reference = _reference(host, name)
    with imitated(HOST, _imitation(*failures), docker=docker_client()):
        found = where.check_gpu(host, find(host, check_driver(host)))
        isolation = Isolation(run_id="gpu", arm="test", reference=reference, uid=1000, gid=1000,
                              gpu=found.gpu)  # fmt: skip
        inside = check_inside(host, where, Command(argv=("python3",)), isolation)
        asked = run_inside(host, python, where=where, isolation=isolation, timeout_s=60)
    assert (found.reason, found.gpu.way) == ("", way)
    assert inside.reason == ""
    assert asked.stdout == "0 0 Tesla T4 801\n", asked.stderr


@on_host
@pytest.mark.parametrize("is_cached", [True, False])
def test_vm_keeps_of_the_login_only_what_leads_to_the_driver(
    host: Transport, *, is_cached: bool
) -> None:
    """Where the loader's cache lacks libcuda.so.1, no process finds the GPU without its folder."""
    variables = {"LD_LIBRARY_PATH": f"/usr/local/cuda/lib64:{SANDBOX}", "CUDA_HOME": "/usr"}
    said: list[str] = []
    with (
        imitated(HOST, _imitation("no-cdi"), docker=docker_client()),
        login(HOST, **variables) as transport,
    ):
        away = "rm /usr/lib/*/libcuda.so*; ldconfig"
        script = f'mkdir "$1"; cp -L /usr/lib/*/libcuda.so.1 "$1"; {"" if is_cached else away}'
        argv = (docker_client(), "exec", HOST, "sh", "-ec", script, "sh", SANDBOX)
        subprocess.run(argv, check=True)
        request = Request(transport=transport, progress=Progress(said.append), builder=ENGINE)
        made = without_login(request, Prepared(interpreter="python3"))
        command = Command(argv=(made.interpreter,), env=made.variables)
        isolation = Isolation(run_id="login", arm="vm")
        inside = check_inside(transport, environment("vm"), command, isolation)
    assert dict(made.identity)["login.dropped"] == "LD_LIBRARY_PATH, CUDA_HOME"
    assert made.variables == (() if is_cached else (("LD_LIBRARY_PATH", SANDBOX),))
    assert len(said) == (1 if is_cached else 2)
    assert inside.reason == ""


NAMED = {
    "no-nodes": "the NVIDIA driver is loaded but /dev/nvidia0 is missing",
    "no-permission": "the NVIDIA driver does not answer: "
    "Failed to initialize NVML: Insufficient Permissions",
    "mismatch": "the NVIDIA driver does not answer: "
    "Failed to initialize NVML: Driver/library version mismatch",
    "unknown-error": "CUDA cannot be started on the host: unknown error (CUDA error 999)",
    "broken-driver": "no NVIDIA driver is loaded (/proc/driver/nvidia/version is missing)",
    "bus-only": "no NVIDIA driver is loaded (/proc/driver/nvidia/version is missing)",
    "wsl": "this is WSL 2, whose GPU belongs to the driver of Windows (/dev/dxg)",
}


@on_host
@pytest.mark.parametrize("failure", NAMED)
def test_failure_of_the_driver_is_named(host: Transport, failure: str) -> None:
    """Doctor has one line about the driver, with its reason."""
    with imitated(HOST, _imitation("no-cdi", failure), docker=docker_client()):
        check = check_driver(host)
    assert check.reason == NAMED[failure]
    assert check.hint


@on_host
@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        ("mismatch", "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; sudo nvidia-smi"),
        pytest.param("broken-driver", "sudo modprobe nvidia", marks=pytest.mark.nightly),
        ("bus-only", "install the NVIDIA driver"),
        pytest.param(
            "wsl", "use a host that runs NVIDIA's driver for Linux", marks=pytest.mark.nightly
        ),
        ("no-nodes", "run nvidia-smi once as root"),
        pytest.param("unknown-error", "sudo modprobe nvidia_uvm", marks=pytest.mark.nightly),
        pytest.param("exclusive", "sudo nvidia-smi -c DEFAULT", marks=pytest.mark.nightly),
    ],
)
def test_gpu_that_cannot_be_used_ends_doctor_and_run_with_3(
    tmp_path: Path, failure: str, remedy: str
) -> None:
    """Nothing is measured on the CPU in its place."""
    with imitated(HOST, _imitation("no-cdi", failure), docker=docker_client()):
        doctor = _envcompare("doctor", "--envs", "vm")
        run = _envcompare("run", "--envs", "vm", "--workloads", "cnn", "--quick", "--out",
                          str(tmp_path / "run"))  # fmt: skip
    for code, said in (doctor, run):
        assert (code, remedy in said) == (3, True), said


@on_host
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("build", "--envs", "vm,docker"), marks=pytest.mark.nightly, id="build"),
        pytest.param(("run", "--envs", "vm,docker", "--workloads", "cnn"), id="run"),
    ],
)
def test_broken_driver_ends_build_and_run_before_a_download(
    host: Transport, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Neither a lock nor a wheel is in a cache that was empty."""
    cache, out = tmp_path / "cache", ("--out", str(tmp_path / "run"))
    with imitated(HOST, _imitation("mismatch"), docker=docker_client()):
        code, said = _envcompare(
            *words, *(out if words[0] == "run" else ()), XDG_CACHE_HOME=str(cache)
        )
    assert (code, RELOAD in said) == (3, True), said
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    assert host.name


@on_host
@pytest.mark.parametrize(
    "choice", nightly_except((("--device", "cpu"),), (("--device", "cpu"), ("--variant", "cpu")))
)
def test_run_on_the_cpu_passes_a_broken_driver(
    host: Transport, tmp_path: Path, choice: tuple[str, str]
) -> None:
    """It is asked for by name, and the report names the GPU that was not used."""
    (tmp_path / "light.py").write_text(LIGHT)
    with imitated(HOST, _imitation("mismatch"), docker=docker_client()):
        code, said = _envcompare(
            *("run", "--envs", "vm@host", "--workload", f"{tmp_path}/light.py:Light", *choice),
            *("--budget", "3", *STEPS_ALONE, "--out", str(tmp_path / "run")),
        )
    assert code == 0, said
    (record,) = (tmp_path / "run").rglob("run.json")
    (sentence,) = device_sentences(compare_run(RunFolder.open(record.parent)))
    unused = "its GPU (Tesla T4, driver 570.86.10) was not used (--device cpu)"
    assert sentence.endswith(f"; {unused}")
    assert unused in " ".join(said.split())  # lines are wrapped
    assert host.name


@pytest.mark.nightly
@on_host
def test_stack_for_the_cpu_is_built_beside_a_broken_driver(host: Transport) -> None:
    """Its wheels ask for no driver."""
    with imitated(HOST, _imitation("mismatch"), docker=docker_client()):
        code, said = _envcompare("build", "--envs", "vm", "--variant", "cpu")
    assert (code, "Driver/library version mismatch" in said) == (0, False), said
    assert host.name


@on_host
@pytest.mark.parametrize(
    ("failures", "gpu", "events"),
    [((), 0, []), (("busy",), 0, ["waited", "caution"]), (("busy", "two-gpus"), 1, [])],
)
def test_quiet_gate_sees_who_else_computes_on_the_gpu(
    host: Transport, tmp_path: Path, failures: tuple[str, ...], gpu: int, events: list[str]
) -> None:
    """By nvidia-smi of the host itself; what computes on another GPU is not waited for."""
    context = bench(
        tmp_path, "none", on_host=lambda script: shell(host, script), quiet_gate=True, budget_s=1.0
    )
    assert isinstance(context.recorder, Kept)
    with imitated(HOST, _imitation("no-cdi", *failures), docker=docker_client()):
        QuietGate(replace(context, has_gpu=True)).wait_to_launch(uuid=uuid(gpu))
    context.recorder.folder.close()
    assert [e.what for e in context.recorder.events if "4711 python3" in e.text] == events


@on_host
@pytest.mark.parametrize(
    ("failures", "processes"), [((), ""), (("busy",), "4711, /usr/bin/python3, 300 MiB\n")]
)
def test_processes_on_a_gpu_are_listed_as_by_nvidia(
    host: Transport, failures: tuple[str, ...], processes: str
) -> None:
    """A heading and a line for each; used_memory has the heading of its full name."""
    ask = "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv"
    with imitated(HOST, _imitation("no-cdi", *failures), docker=docker_client()):
        listed = shell(host, ask).stdout
    assert listed == f"pid, process_name, used_gpu_memory [MiB]\n{processes}"


@on_host
@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("failures", "lines"),
    [
        (("two-gpus",), ("gpu in use: GPU 0 of 2: NVIDIA A100", "CUDA_VISIBLE_DEVICES")),
        pytest.param(("mig",), ("gpu in use: the MIG device MIG-1m1tated-", "one of 2"),
                     marks=pytest.mark.nightly),
        pytest.param(
            ("throttled",), ("– gpu clocks: the clocks of NVIDIA A100-SXM4-40GB are held down",),
            marks=pytest.mark.nightly),
        (("stale-cdi",), ("the CDI description is stale: it is of driver 450.10.01",
                          "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml")),
        pytest.param(
            ("stale-major",), ("the CDI description is stale: it gives /dev/nvidia0 the device",),
            marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_doctor_names_what_else_there_is_to_know(
    failures: tuple[str, ...], lines: tuple[str, ...]
) -> None:
    """Which GPU is measured, how fast it runs, and that a container gets another driver's files."""
    imitation = _imitation(*failures, model=MODELS["a100"])
    with imitated(HOST, imitation, docker=docker_client()):
        _, said = _envcompare("doctor", "--envs", "vm,docker")
    assert [line for line in lines if line not in said] == [], said


@on_host
@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("gpu", "driver", "python", "torch"),
    [
        ("t4", "535.183.01", "3.10", "torch 2.10.0 with CUDA 12.8"),
        ("v100", "580.65.06", "3.12", "torch 2.10.0 with CUDA 12.8"),
        ("h100", "580.65.06", "3.13", "torch 2.13.0 with CUDA 13.0"),
        ("a100", "470.256.02", "3.11", "CUDA 12 needs driver 525 or newer"),
    ],
)
def test_doctor_names_the_torch_of_the_host_before_a_download(
    gpu: str, driver: str, python: str, torch: str
) -> None:
    """By driver, GPU and Python; the whole table is in tests/unit/test_torch_tiers.py."""
    named = "" if python == "3.11" else python
    imitation = _imitation("no-cdi", model=MODELS[gpu], driver=driver, python=named)
    with imitated(HOST, imitation, docker=docker_client()):
        code, said = _envcompare("doctor", "--envs", "docker", "--base-image", BASE)
    line = next(text for text in said.splitlines() if f"wheels for Python {python}" in text)
    assert torch in line
    assert (code == 3) is ("needs driver" in torch)


@on_host
@pytest.mark.parametrize(
    ("failure", "code"),
    [("mismatch", 803), ("unknown-error", 999), ("no-permission", 100), ("no-nodes", 100),
     ("broken-driver", 100)],
)  # fmt: skip
def test_cuda_refuses_where_the_driver_does_not_work(
    host: Transport, failure: str, code: int
) -> None:
    """The library says it by the number that NVIDIA's says it by."""
    program = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    with imitated(HOST, _imitation("no-cdi", failure), docker=docker_client()):
        assert shell(host, 'python3 -c "$1"', program).stdout == f"{code}\n"


@on_host
@pytest.mark.parametrize("python", ["3.10", "3.12", "3.13"])
def test_host_has_another_python(host: Transport, python: str) -> None:
    """Whoever asks any of its names hears this version; the others are gone."""
    program = "import platform, sys; print(platform.python_version(), sys.version_info[:2])"
    ask = 'for name in python3 "python$2"; do "$name" -c "$1"; done; command -v python3.11'
    with imitated(HOST, _imitation("no-cdi", python=python), docker=docker_client()):
        said = shell(host, ask, program, python)
    assert said.stdout.splitlines() == [f"{python}.0 (3, {python[2:]})"] * 2, said.stderr


@on_host
def test_readings_are_marked_and_none_is_made_up(host: Transport) -> None:
    """The UUID tells whose they are; of power, energy and load there is nothing."""
    docker = docker_client()
    subprocess.run([docker, "cp", ROOT / "workloads", f"{HOST}:{SANDBOX}"], check=True)
    program = f"{SANDBOX}/harness/counters/gpusampling.py"
    with imitated(HOST, _imitation("no-cdi", "throttled"), docker=docker):
        said = shell(host, 'sleep 1 | python3 -B "$1"', program)
    reading = json.loads(said.stdout.splitlines()[0])
    assert reading["uuid"].startswith("GPU-1m1tated-")
    assert (reading["throttling"], reading["sm_mhz"]) == (4, T4.sm_mhz // 2)
    nothing = ("power_mw", "energy_mj", "temperature_c", "utilization_percent")
    assert [reading[name] for name in nothing] == [None] * 4


@on_host
def test_nothing_is_left_of_the_imitation(host: Transport) -> None:
    """Made twice and removed twice, the host is as it was."""
    look = (
        "ls /dev /proc/driver /sys/bus/pci/devices /usr/bin /usr/lib/x86_64-linux-gnu /etc "
        "/etc/docker /etc/cdi 2>&1; cut -d' ' -f2-5 /proc/mounts; /sbin/ldconfig -p"
    )
    before = shell(host, look).stdout
    everything = _imitation("mig", "two-gpus", model=MODELS["a100"])
    with imitated(HOST, everything, docker=docker_client()):
        with imitated(HOST, _imitation("mismatch", "no-cdi"), docker=docker_client()):
            assert f"libcuda.so.{NEWER}" in shell(host, look).stdout
        assert shell(host, look).stdout == before
    assert shell(host, look).stdout == before


def test_every_failure_is_described_by_the_command() -> None:
    """Whoever imitates one by hand finds its name."""
    argv = [sys.executable, ROOT / "tests/support/gpuhost.py", "gpu", "--help"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert [name for name in FAILURES if f"  {name} " not in said] == []
