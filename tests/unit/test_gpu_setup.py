"""How a host's GPUs are set up, which of them is measured, and when a CDI description is stale."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from envcompare.doctor.checks import diagnose
from envcompare.environments import gpu
from envcompare.environments.registry import ENVIRONMENTS, environment
from envcompare.errors import CommandTimeoutError
from envcompare.gpu import GpuState, HostGpu, HostGpus, gpu_of_pci_id, lost_hint, read_survey
from envcompare.stack import Options
from envcompare.transport import LOCAL

TWO = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Thu Jan  1 00:00:00 UTC 1970
listed GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaa0)
listed   MIG 3g.20gb     Device  0: (UUID: MIG-aaa0)
listed   MIG 3g.20gb     Device  1: (UUID: MIG-aaa1)
listed GPU 1: Tesla T4 (UUID: GPU-bbb0)
smi NVIDIA A100-SXM4-40GB, 8.0
smi Tesla T4, 7.5
state 0, GPU-aaa0, Default, Enabled, 0x0000000000000000
state 1, GPU-bbb0, Exclusive_Process, [N/A], 0x0000000000000024
"""
A100 = GpuState(
    index=0, uuid="GPU-aaa0", name="NVIDIA A100-SXM4-40GB", has_mig=True,
    instances=("MIG-aaa0", "MIG-aaa1"),
)  # fmt: skip
T4 = GpuState(
    index=1, uuid="GPU-bbb0", name="Tesla T4", compute_mode="Exclusive_Process",
    throttling=("power cap", "heat, by software"),
)  # fmt: skip


def test_survey_tells_how_each_gpu_is_set_up() -> None:
    """Compute mode, MIG devices, and what holds the clocks down."""
    assert read_survey(TWO).states == (A100, T4)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, A100), ("0,1", A100), ("1", T4), ("1,0", T4), ("GPU-bbb", T4), ("MIG-aaa1", A100),
        ("", None), ("-1", None), ("7", None),
    ],
)  # fmt: skip
def test_the_login_chooses_which_gpu_is_measured(
    visible: str | None, expected: GpuState | None
) -> None:
    """The first by default, or what CUDA_VISIBLE_DEVICES names first."""
    text = TWO if visible is None else f"visible {visible}\n{TWO}"
    assert read_survey(f"order PCI_BUS_ID\n{text}").measured == expected


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, None), ("1", None), ("GPU-bbb0", T4), ("GPU-bbb", T4), ("MIG-aaa1", A100)],
)
def test_of_different_models_a_uuid_alone_tells_which_one_is_measured(
    visible: str | None, expected: GpuState | None
) -> None:
    """CUDA begins with the fastest, which need not be the first of nvidia-smi."""
    text = TWO if visible is None else f"visible {visible}\n{TWO}"
    gpus = read_survey(text)
    choice = gpu.check_choice(gpus)
    assert gpus.measured == expected
    assert choice is not None
    is_unknown = choice.version == "the first by CUDA's own order of 2 GPUs of different models"
    assert is_unknown is (expected is None)
    assert "UUID" in choice.hint


def test_a_gpu_is_read_whose_settings_are_not_supported() -> None:
    """A driver says so in words with a blank, which are no mode."""
    (state,) = read_survey("state 0, GPU-1, [N/A], [Not Supported], [Not Supported]\n").states
    assert (state.has_mig, state.throttling) == (False, ())


def test_a_gpu_that_nvidia_smi_alone_knows_is_expected() -> None:
    """WSL 2 has none on the bus and no kernel module, and is not measured on the CPU unnoticed."""
    assert read_survey("smi NVIDIA GeForce RTX 3080, 8.6\n").is_expected


def test_a_gpu_whose_capability_an_old_nvidia_smi_does_not_know_is_expected() -> None:
    """Its driver answers -L alone, and the bus of a container may be hidden."""
    gpus = read_survey("listed GPU 0: Tesla T4 (UUID: GPU-1)\nsmi Field is not valid\n")
    assert gpus.is_expected
    assert gpus.gpus == (HostGpu(name="Tesla T4"),)


@pytest.mark.parametrize("visible", ["7", "7,0", "GPU-ccc0", "MIG-ccc0"])
def test_a_choice_of_a_gpu_that_is_not_there_is_refused(visible: str) -> None:
    """CUDA would count no device, and not say why."""
    states = (msgspec.structs.replace(A100, has_mig=False, instances=()), T4)
    check = gpu.check_setup(HostGpus(states=states, visible=visible, order="PCI_BUS_ID"))
    assert f"CUDA_VISIBLE_DEVICES of the login is {visible}, and the first" in check.reason
    assert "nvidia-smi -L" in check.hint


@pytest.mark.parametrize("visible", [None, "", "-1", "0", "1,7", "GPU-aaa", "MIG-GPU-aaa0/1/0"])
def test_a_choice_that_may_be_there_is_not_refused(visible: str | None) -> None:
    """One that hides every GPU is told of by another check, and old names of MIG are not listed."""
    states = (A100, msgspec.structs.replace(T4, compute_mode="Default"))
    assert gpu.check_setup(HostGpus(states=states, visible=visible, order="PCI_BUS_ID")).is_usable


HANGING = """#!/bin/sh
trap '' TERM
echo started >"{log}"
sleep 60
"""


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an nvidia-smi that never ends on PATH; return the file that it writes when started."""
    program, log = tmp_path / "nvidia-smi", tmp_path / "log"
    program.write_text(HANGING.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gpu, "PATIENCE_S", 2.0)
    return log


def test_a_survey_falls_back_on_the_bus_where_nvidia_smi_never_ends(
    hanging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's own check then says that it does not answer."""
    on_bus = "printf 'bus 0x030200 0x1eb8\\n'\n"
    monkeypatch.setattr(gpu, "SURVEY", on_bus + gpu.SURVEY)
    monkeypatch.setattr(gpu, "ON_BUS", on_bus)
    assert gpu.survey(LOCAL) == HostGpus(on_bus=1, gpus=(gpu_of_pci_id("1eb8"),))
    assert hanging.exists()


def test_an_nvidia_smi_that_waits_for_its_driver_is_killed(
    hanging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not hear a milder signal, and would go on beside what is measured."""
    assert gpu.SURVEY.count(" 20'") == 1
    monkeypatch.setattr(gpu, "SURVEY", gpu.SURVEY.replace(" 20'", " 0.5'"))
    monkeypatch.setattr(gpu, "ON_BUS", "true")
    monkeypatch.setattr(gpu, "PATIENCE_S", 30.0)
    assert gpu.survey(LOCAL).gpus == ()
    assert hanging.exists()


def test_a_survey_that_knows_of_no_gpu_otherwise_fails_with_nvidia_smi(
    hanging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that such a host is not measured on the CPU."""
    monkeypatch.setattr(gpu, "ON_BUS", "true")
    with pytest.raises(CommandTimeoutError, match="did not answer"):
        gpu.survey(LOCAL)
    assert hanging.exists()


def test_a_gpu_for_one_process_is_refused_and_the_other_one_taken() -> None:
    """Every arm has a process of its own."""
    check = gpu.check_setup(HostGpus(states=(A100, T4), visible="GPU-bbb0"))
    assert "Exclusive_Process" in check.reason
    assert check.hint == "sudo nvidia-smi -i 1 -c DEFAULT"
    assert gpu.check_setup(HostGpus(states=(A100, T4))).is_usable
    assert gpu.check_setup(HostGpus(states=(T4,))).hint == "sudo nvidia-smi -c DEFAULT"


def test_mig_without_an_instance_is_refused() -> None:
    """CUDA counts no device then."""
    undivided = GpuState(index=0, uuid="GPU-aaa0", name="NVIDIA A100", has_mig=True)
    assert "MIG is on" in gpu.check_setup(HostGpus(states=(undivided,))).reason


def test_the_choice_is_said_where_there_is_one() -> None:
    """With the way to choose another."""
    alone = GpuState(index=0, uuid="GPU-1", name="Tesla T4")
    assert gpu.check_choice(HostGpus(states=(alone,))) is None
    check = gpu.check_choice(HostGpus(states=(A100, T4), visible="MIG-aaa1"))
    assert check is not None
    assert check.version == "the MIG device MIG-aaa1 of NVIDIA A100-SXM4-40GB, one of 2"
    check = gpu.check_choice(HostGpus(states=(A100, T4), visible="1", order="PCI_BUS_ID"))
    assert check is not None
    assert check.version == "GPU 1 of 2: Tesla T4 (GPU-bbb0)"
    assert "CUDA_VISIBLE_DEVICES" in check.hint


def test_clocks_that_are_held_down_are_said_with_the_cause() -> None:
    """They are no failure, but the times are those of slower clocks."""
    check = gpu.check_clocks(HostGpus(states=(T4,)))
    assert check is not None
    assert check.reason == "the clocks of Tesla T4 are held down: power cap, heat, by software"


@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: CUDA error: unknown error",
        "RuntimeError: No CUDA GPUs are available",
        "AcceleratorError: CUDA error: no CUDA-capable device is detected",
        "the host has an NVIDIA GPU and PyTorch sees no GPU here",
        "NVMLError_Unknown: Failed to initialize NVML: Unknown Error",
    ],
)
def test_a_gpu_that_is_lost_in_the_middle_is_named(said: str) -> None:
    """The container toolkit's troubleshooting calls this by systemctl daemon-reload."""
    assert "systemctl daemon-reload" in lost_hint(said)
    assert lost_hint("RuntimeError: CUDA error: out of memory") == ""


# A driver whose devices work, which notes where CUDA was started.
PROGRAMS = {
    "cat": '[ "$1" != /proc/driver/nvidia/version ] || echo "Kernel Module  570.86.10"',
    "ls": "exit 0",
    "nvidia-smi": "echo 'GPU 0: Tesla T4 (UUID: GPU-1)'",
    "python3": 'case $2 in *cuInit*) echo started >>"${0%/bin/*}/started" ;; esac',
}


def put_programs(folder: Path, programs: dict[str, str]) -> None:
    """Write programs of `sh` to a folder."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


def test_an_nvidia_smi_that_lists_no_gpu_is_a_driver_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may end with 0 all the same, and a host without Python cannot ask CUDA instead."""
    silent = "echo 'No devices were found'"
    put_programs(tmp_path / "bin", {**PROGRAMS, "nvidia-smi": silent, "python3": "exit 0"})
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    check = gpu.check_driver(LOCAL)
    assert check.reason == "the NVIDIA driver does not answer: No devices were found"
    assert "--device cpu" in check.hint


def test_a_warning_before_the_gpus_does_not_make_a_driver_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an infoROM that is corrupted."""
    warned = f"echo 'WARNING: infoROM is corrupted'; {PROGRAMS['nvidia-smi']}"
    put_programs(tmp_path / "bin", {**PROGRAMS, "nvidia-smi": warned})
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    assert gpu.check_driver(LOCAL).is_usable


def test_doctor_starts_cuda_once_for_all_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an environment adds is asked of it alone."""
    put_programs(tmp_path / "bin", PROGRAMS)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    arms = tuple((name, "host") for name in ENVIRONMENTS)
    subjects = {finding.subject for finding in diagnose(LOCAL, arms, options=Options())}
    assert subjects >= {"gpu driver", *(f"gpu in {name}" for name in ENVIRONMENTS)}
    assert (tmp_path / "started").read_text() == "started\n"


DRIVER = gpu.Check(version="570.86.10", gpu=gpu.Gpu(way="devices"))
YAML = """\
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- containerEdits:
    deviceNodes:
    - major: {major}
      minor: 0
      path: /dev/nvidia0
  name: all
containerEdits:
  mounts:
  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.{driver}
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.{driver}
"""
QUOTED = YAML.replace("/dev/nvidia0", "'/dev/nvidia0'")
JSON = """\
{{"kind": "nvidia.com/gpu", "devices": [
  {{"name": "all",
    "containerEdits": {{
      "deviceNodes": [{{"path": "/dev/nvidia0", "major": {major}, "minor": 0}}]}}}}],
 "containerEdits": {{"mounts": [{{"hostPath": "/usr/lib/libcuda.so.{driver}"}}]}}}}
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folders of CDI of a host with driver 570.86.10, whose engine has NVIDIA's hook."""
    programs = tmp_path / "bin"
    programs.mkdir()
    said = f"printf '%s\\n' {tmp_path}/etc {tmp_path}/run"
    texts = {
        "docker": f'case $* in *CDISpecDirs*) {said} ;; *) echo "{{}}" ;; esac',
        "stat": "echo node /dev/nvidia0 c3 0; echo node /dev/nvidia11 c3 b",
        "nvidia-container-runtime-hook": "exit 0",
    }
    for name, text in texts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for name in ("etc", "run"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize("text", [YAML, JSON], ids=["yaml", "json"])
def test_a_cdi_description_of_this_driver_is_used(folders: Path, text: str) -> None:
    """Its library has the version of the driver, and its node the number of the driver."""
    name = "nvidia.yaml" if text is YAML else "nvidia.json"
    (folders / "etc" / name).write_text(text.format(driver="570.86.10", major=195))
    check = environment("docker").check_gpu(LOCAL, DRIVER)
    assert (check.reason, check.gpu.way) == ("", "cdi")


@pytest.mark.parametrize("text", [YAML, QUOTED, JSON], ids=["yaml", "quoted", "json"])
@pytest.mark.parametrize(
    ("driver", "major", "reason"),
    [
        ("535.104.05", 195, "it is of driver 535.104.05, and 570.86.10 is loaded"),
        (
            "570.86.10",
            234,
            "it gives /dev/nvidia0 the device number 234:0, and the driver has 195:0",
        ),
    ],
)
def test_a_stale_cdi_description_is_named_and_the_hook_tried(
    folders: Path, text: str, driver: str, major: int, reason: str
) -> None:
    """As it stays behind when the driver was updated."""
    name = "nvidia.json" if text is JSON else "nvidia.yaml"
    (folders / "etc" / name).write_text(text.format(driver=driver, major=major))
    check = environment("docker").check_gpu(LOCAL, DRIVER)
    assert check.is_usable
    assert check.gpu.way == "engine"
    assert check.reason == f"the CDI description is stale: {reason}"
    assert check.hint == "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    (folders / "bin/nvidia-container-runtime-hook").unlink()
    assert not environment("docker").check_gpu(LOCAL, DRIVER).is_usable


def test_numbers_of_devices_are_hexadecimal_in_stat_alone(folders: Path) -> None:
    """A description has them in decimal, and the twelfth GPU the minor number 11."""
    text = YAML.replace("/dev/nvidia0", "/dev/nvidia11").replace("minor: 0", "minor: 11")
    (folders / "etc/nvidia.yaml").write_text(text.format(driver="570.86.10", major=195))
    assert environment("docker").check_gpu(LOCAL, DRIVER).gpu.way == "cdi"


def test_the_description_of_the_last_folder_is_the_one_that_counts(folders: Path) -> None:
    """/var/run/cdi, which a service of the toolkit writes, goes before /etc/cdi."""
    (folders / "etc/nvidia.yaml").write_text(YAML.format(driver="535.104.05", major=195))
    (folders / "run/nvidia.yaml").write_text(YAML.format(driver="570.86.10", major=195))
    assert environment("docker").check_gpu(LOCAL, DRIVER).gpu.way == "cdi"
