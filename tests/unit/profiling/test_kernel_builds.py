"""What names of kernels betray: another build, another generation of a library."""

from __future__ import annotations

from envcompare.analysis.kernelbuilds import Side, betrayed
from envcompare.records import FactDifference, FingerprintValue

OLD = "void at::native::_GLOBAL__N__5_x_Activation_compute_70_cpp1_ii_1::clamp<float>(int)"
NEW = OLD.replace("compute_70", "compute_86")
Facts = dict[str, FingerprintValue]


def found(
    before: set[str], after: set[str], *, facts: tuple[Facts, Facts] = ({}, {}), told: str = ""
) -> dict[str, FactDifference]:
    """Return by key what two sets of names betray."""
    sides = [Side(names=frozenset(n), facts=f) for n, f in zip((before, after), facts, strict=True)]
    made = betrayed(sides[0], sides[1], host="local", arm_id="docker", told=(told,))
    return {one.key: one for one in made}


def test_another_compiled_architecture_is_another_build() -> None:
    """The anonymous namespace holds what a file was compiled for."""
    one = found({OLD}, {NEW})["kernels.build"]
    assert (one.reference, one.value, one.fact_class) == ("compute_70", "compute_86", "confounder")
    assert "another build of PyTorch" in one.sentence


def test_same_names_betray_nothing() -> None:
    """One image on two engines launches the same names."""
    names = {OLD, "volta_sgemm_128x64_nn", "ncclDevKernel_AllReduce(A*)"}
    assert found(names, names) == {}


def test_sign_in_one_arm_alone_accuses_nobody() -> None:
    """Another shape may simply not need such a kernel."""
    assert found({OLD}, {"void clamp<float>(int)"}) == {}


def test_generations_of_libraries_are_told_by_their_names() -> None:
    """CuDNN moved its kernels from one namespace to others, NCCL renamed its own."""
    made = found(
        {"void cudnn::detail::wgrad_alg0_engine<float>(int)", "ncclKernel_AllReduce(W)"},
        {"void cudnn::cnn::wgrad_alg0_engine<float>(int)", "ncclDevKernel_AllReduce(A*)"},
    )
    assert made["kernels.cudnn"].reference == "cuDNN 7 names"
    assert made["kernels.cudnn"].value == "names of cuDNN 8 and later"
    assert made["kernels.nccl"].value == "NCCL after 2.18"
    assert {one.fact_class for one in made.values()} == {"confounder"}


def test_winograd_of_old_is_no_proof_of_another_library() -> None:
    """CuDNN 8 still has it and may choose it, for want of memory for one."""
    made = found({"volta_scudnn_winograd_128x128_ldg1"}, {"sm80_xmma_fprop_implicit_gemm_f32"})
    assert made["kernels.cudnn"].fact_class == "possible-influence"
    assert made["kernels.architecture"].fact_class == "possible-influence"
    assert "or chose its algorithms otherwise" in made["kernels.cudnn"].sentence


def test_kernel_that_kept_its_name_tells_no_generation() -> None:
    """It stands in the old namespace in both."""
    kept = "void cudnn::detail::dgrad_engine<float, 512>(int)"
    assert found({kept}, {"void cudnn::cnn::wgrad_alg0_engine<float>(int)"}) == {}


def test_library_of_a_known_version_is_not_accused() -> None:
    """Where both fingerprints name one cuDNN, its choice of algorithm is no other build."""
    facts: Facts = {"cuda.cudnn": 90100}
    before, after = {"cudnn::detail::bn_bw<float>"}, {"cudnn::cnn::conv<float>"}
    assert "kernels.cudnn" in found(before, after)
    made = found(before, after, facts=(facts, dict(facts)))
    assert "kernels.cudnn" not in made


def test_betrayal_is_told_with_the_difference_that_says_it_better() -> None:
    """A version in the fingerprint speaks for the names."""
    assert found({OLD}, {NEW}, told="torch.version")["kernels.build"].part_of == "torch.version"
