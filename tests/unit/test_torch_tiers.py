"""The wheels of PyTorch for a host: by driver, GPU and Python, before anything is downloaded."""

from __future__ import annotations

import re

import msgspec
import pytest

from envcompare.errors import StackError
from envcompare.gpu import GpuState, HostGpu, HostGpus, gpu_of_pci_id, read_survey
from envcompare.stack import TIERS, choose

GPUS = {
    "t4": ("Tesla T4", (7, 5)),
    "v100": ("Tesla V100-SXM2-16GB", (7, 0)),
    "a100": ("NVIDIA A100-SXM4-40GB", (8, 0)),
    "h100": ("NVIDIA H100 80GB HBM3", (9, 0)),
    "l4": ("NVIDIA L4", (8, 9)),
    "p100": ("Tesla P100-PCIE-16GB", (6, 0)),
    "p4": ("Tesla P4", (6, 1)),
    "b200": ("NVIDIA B200", (10, 0)),
    "k80": ("Tesla K80", (3, 7)),
}


def host(driver: str | None, *names: str) -> HostGpus:
    """Return what a host with these GPUs has."""
    gpus = tuple(HostGpu(name=GPUS[name][0], capability=GPUS[name][1]) for name in names)
    return HostGpus(driver=driver, on_bus=len(gpus), gpus=gpus)


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("gpu", ["t4", "a100", "h100", "l4", "b200", "v100"])
@pytest.mark.parametrize(
    "driver", ["525.60.13", "535.104.05", "550.54.15", "570.86.10", "580.65.06"]
)
def test_driver_and_gpu_decide_which_torch_a_host_gets(driver: str, gpu: str, python: str) -> None:
    """CUDA 13 needs driver 580 and Turing; CUDA 12.8 runs from driver 525 and Volta on."""
    choice = choose("auto", host(driver, gpu), python=python, host="gpu-1")
    is_top = driver.startswith("580") and gpu != "v100"
    assert choice.variant == ("cu130" if is_top else "cu128")
    assert choice.tier.torch == ("2.13.0" if is_top else "2.10.0")


def test_the_choice_is_one_sentence() -> None:
    """It is printed before anything is downloaded."""
    choice = choose("auto", host("570.86.10", "t4"), python="3.10", host="gpu-1")
    assert choice.sentence == (
        "driver 570.86.10 supports CUDA 12, Tesla T4 has compute capability 7.5: "
        "torch 2.10.0 with CUDA 12.8"
    )


@pytest.mark.parametrize("gpu", ["p100", "p4"])
def test_a_pascal_gpu_gets_cuda_12_6_where_its_python_has_wheels(gpu: str) -> None:
    """A GPU of 6.1 runs the code for 6.0."""
    assert choose("auto", host("580.65.06", gpu), python="3.13", host="g").variant == "cu126"
    with pytest.raises(StackError) as error:
        choose("auto", host("580.65.06", gpu), python="3.14", host="g")
    assert error.value.hint == "name another Python, such as --python 3.13"


@pytest.mark.parametrize(
    ("driver", "gpu", "details", "hint"),
    [
        ("470.256.02", "t4", "CUDA 12 needs driver 525 or newer, not 470.256.02",
         "install driver 525 or newer there"),
        ("470.256.02", "v100", "", "install driver 525 to 580 there"),  # the last for Volta
        ("470.1", "k80", "they hold no code for Tesla K80 (compute capability 3.7)",
         "measure on the CPU with --device cpu"),  # a newer driver would not help
    ],
)  # fmt: skip
def test_a_gpu_that_no_wheels_fit_is_refused_with_what_would_do(
    driver: str, gpu: str, details: str, hint: str
) -> None:
    """The oldest tier says which driver would do, unless no tier has code for the GPU."""
    with pytest.raises(StackError, match="no wheels of PyTorch fit gpu-1") as error:
        choose("auto", host(driver, gpu), python="3.11", host="gpu-1")
    assert details in error.value.details
    assert error.value.hint.startswith(hint)


def test_all_gpus_of_a_host_have_to_be_served() -> None:
    """A worker may be given any of them."""
    assert choose("auto", host("580.1", "a100", "v100"), python="3.11", host="g").variant == "cu128"
    with pytest.raises(StackError):
        choose("auto", host("580.1", "p100", "b200"), python="3.11", host="g")


@pytest.mark.parametrize(
    ("visible", "variant"),
    [("GPU-old", "cu126"), ("GPU-new", "cu130"), ("GPU-new,GPU-new2", "cu130")],
)
def test_the_gpus_that_the_login_chooses_have_to_be_served(visible: str, variant: str) -> None:
    """A display card that no wheels share with the other one does not stop it."""
    cards = [("p4", "GPU-old"), ("b200", "GPU-new"), ("b200", "GPU-new2")]
    states = tuple(
        GpuState(index=index, uuid=uuid, name=GPUS[card][0])
        for index, (card, uuid) in enumerate(cards)
    )
    both = host("580.1", *(card for card, _ in cards))
    both = msgspec.structs.replace(both, states=states)
    chosen = msgspec.structs.replace(both, visible=visible)
    assert choose("auto", chosen, python="3.11", host="g").variant == variant
    for unclear in (None, "0", f"{visible},GPU-other"):
        unchosen = msgspec.structs.replace(both, visible=unclear)
        with pytest.raises(StackError) as error:
            choose("auto", unchosen, python="3.11", host="g")
        assert error.value.hint.startswith("set CUDA_VISIBLE_DEVICES there to the UUID")


def test_a_driver_and_a_python_that_do_not_fit_are_both_told() -> None:
    """Who mends the one is not refused for the other afterwards."""
    with pytest.raises(StackError) as error:
        choose("auto", host("470.256.02", "p100"), python="3.14", host="g")
    assert error.value.hint == (
        "install driver 525 to 580 there and name another Python, such as --python 3.13, "
        "or measure on the CPU with --device cpu"
    )


def test_a_named_variant_without_code_is_not_taken_for_an_unsupported_gpu() -> None:
    """Another tier has the code, and lacks only the Python."""
    with pytest.raises(StackError) as error:
        choose("cu128", host("580.1", "p100"), python="3.14", host="g")
    assert error.value.hint.startswith("leave out --variant")


def test_a_named_variant_is_taken_or_refused_and_never_exchanged() -> None:
    """What was asked for by name is not exchanged silently."""
    assert choose("cu126", host("580.1", "a100"), python="3.11", host="g").variant == "cu126"
    with pytest.raises(StackError, match="no wheels") as refused:
        choose("cu130", host("570.1", "a100"), python="3.11", host="g")
    assert refused.value.hint == "leave out --variant, or use --variant cu128"
    with pytest.raises(StackError):
        choose("cu126", host("580.1", "b200"), python="3.11", host="g")
    assert choose("cuda", host("570.1", "a100"), python="3.11", host="g").variant == "cu128"
    assert choose("cpu", host("570.1", "a100"), python="3.11", host="g").is_cpu


def test_without_a_gpu_the_cpu_build_of_the_newest_is_taken() -> None:
    """Whether none is there or none may be used."""
    for gpus in (None, HostGpus()):
        choice = choose("auto", gpus, python="3.12", host="g")
        assert (choice.variant, choice.tier.torch) == ("cpu", TIERS[0].torch)
    with pytest.raises(StackError, match=re.escape("for Python 3.9")):
        choose("auto", None, python="3.9", host="g")


def test_what_is_not_known_of_a_gpu_is_left_to_pytorch() -> None:
    """A GPU newer than the table may run what is there."""
    unknown = HostGpus(on_bus=1, gpus=(HostGpu(name="new"),))
    assert choose("auto", unknown, python="3.11", host="g").variant == "cu130"


def test_every_tier_pins_torchvision_of_its_torch() -> None:
    """By the metadata of its wheels torchvision 0.N needs exactly torch 2.(N - 15)."""
    for tier in TIERS:
        text = tier.requirements.read_text(encoding="utf-8")
        assert f"\ntorch=={tier.torch}\n" in text
        match = re.search(r"^torchvision==0\.(\d+)\.", text, re.MULTILINE)
        assert match is not None
        assert int(tier.torch.split(".")[1]) == int(match[1]) - 15


@pytest.mark.parametrize(
    ("device", "name", "capability"),
    [
        ("1eb8", "Tesla T4", (7, 5)), ("1db1", "Tesla V100-SXM2-16GB", (7, 0)),
        ("20b0", "NVIDIA A100-SXM4-40GB", (8, 0)), ("2330", "NVIDIA H100 80GB HBM3", (9, 0)),
        ("27b8", "NVIDIA L4", (8, 9)), ("2901", "NVIDIA B200", (10, 0)),
        ("2684", "the GPU with PCI device ID 2684 (AD102)", (8, 9)),
        ("ffff", "the GPU with PCI device ID ffff", None),
    ],
)  # fmt: skip
def test_a_pci_device_id_tells_chip_and_capability(
    device: str, name: str, capability: tuple[int, int] | None
) -> None:
    """The IDs of a chip are a block; clouds have the named ones."""
    assert gpu_of_pci_id(device) == HostGpu(name=name, capability=capability)


def test_a_survey_takes_the_word_of_nvidia_smi_before_that_of_the_bus() -> None:
    """The sound device beside a GPU is none."""
    text = (
        "driver NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Thu Jan 1\n"
        "driver GCC version:  gcc version 12.2.0\nmodule 570.86.10\n"
        "bus 0x030200 0x1eb8\nbus 0x040300 0x10f0\nsmi Tesla T4, 7.5\n"
    )
    assert read_survey(text) == HostGpus(
        driver="570.86.10", on_bus=1, gpus=(HostGpu(name="Tesla T4", capability=(7, 5)),)
    )


def test_a_survey_without_an_answer_of_the_driver_tells_of_the_bus() -> None:
    """A bridge of NVIDIA is no GPU."""
    found = read_survey("bus 0x030200 0x20b0\nbus 0x068000 0x1af1\nsmi No devices were found\n")
    assert found.is_expected
    assert (found.driver, found.on_bus) == (None, 1)
    assert found.gpus == (HostGpu(name="NVIDIA A100-SXM4-40GB", capability=(8, 0)),)


def test_a_host_without_a_gpu_is_known_as_that() -> None:
    """Nothing is expected of it."""
    assert read_survey("") == HostGpus()
    assert not HostGpus().is_expected
