"""What names of kernels show: another build, another generation of a library."""

from __future__ import annotations

from envcompare.gpu.kernels import Side, build_differences
from envcompare.run_folder.records import FactDifference, FingerprintValue

OLD = "void at::native::_GLOBAL__N__5_x_Activation_compute_70_cpp1_ii_1::clamp<float>(int)"
NEW = OLD.replace("compute_70", "compute_86")
Facts = dict[str, FingerprintValue]


def found(
    before: set[str],
    after: set[str],
    *,
    facts: tuple[Facts, Facts] = ({}, {}),
    told: str = "",
    gpus: tuple[str, str] = ("", ""),
) -> dict[str, FactDifference]:
    """Return by key what two sets of names show; a GPU without a name is not known."""
    sides = [
        Side(names=frozenset(n), facts=f, gpus=frozenset({gpu} - {""}))
        for n, f, gpu in zip((before, after), facts, gpus, strict=True)
    ]
    made = build_differences(
        sides[0], sides[1], host="local", arm_id="docker", known_differences=(told,)
    )
    return {one.key: one for one in made}


def test_another_compiled_architecture_is_another_build() -> None:
    """The anonymous namespace holds what a file was compiled for."""
    one = found({OLD}, {NEW})["kernels.build"]
    assert (one.reference, one.value, one.fact_class) == ("compute_70", "compute_86", "confounder")
    assert "another build of PyTorch" in one.sentence


def test_same_names_show_no_difference() -> None:
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
    assert made["kernels.nccl"].fact_class == "confounder"


def test_winograd_of_old_is_no_proof_of_another_library() -> None:
    """CuDNN 8 still has it and may choose it, for want of memory for one."""
    made = found({"volta_scudnn_winograd_128x128_ldg1"}, {"sm80_xmma_fprop_implicit_gemm_f32"})
    assert made["kernels.cudnn"].fact_class == "possible-influence"
    assert made["kernels.architecture"].fact_class == "possible-influence"
    assert "or other algorithms that it chose for other shapes" in made["kernels.cudnn"].sentence


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


def test_another_build_is_told_with_the_difference_that_says_it_better() -> None:
    """A version in the fingerprint speaks for the names."""
    assert found({OLD}, {NEW}, told="torch.version")["kernels.build"].part_of == "torch.version"


SGEMM, HGEMM = "volta_sgemm_128x64_nn", "turing_fp16_s1688gemm_fp16_128x64_ldg8_f2f_tn"
T4 = ("Tesla T4", "NVIDIA Tesla T4")


def test_another_gpu_model_is_a_confounder() -> None:
    """Both models are named whole; kernels that were chosen for each are told with them."""
    models = ("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X")
    made = found({"hopper_sgemm_a"}, {"ampere_sgemm_a"}, gpus=models)
    one = made["gpu.name"]
    assert (one.reference, one.value, one.fact_class) == (*models, "confounder")
    assert one.sentence == (
        "The reference ran on NVIDIA H100 80GB HBM3 and this arm on AMD Instinct MI300X: "
        "a different GPU changes times and the choice of kernels."
    )
    assert made["kernels.architecture"].part_of == "gpu.name"


def test_another_compute_capability_is_another_gpu() -> None:
    """Some files tell it alone; one capability in both leaves the model open."""
    sides = [
        Side(names=frozenset({"k"}), facts={}, capabilities=frozenset({one}))
        for one in ("7.0", "8.6", "8.6")
    ]
    (one,) = build_differences(sides[0], sides[1], host="local", arm_id="docker")
    assert "a GPU of compute capability 7.0 and this arm on a GPU of" in one.sentence
    assert build_differences(sides[1], sides[2], host="local", arm_id="docker") == ()


def test_one_model_under_two_spellings_is_one_gpu() -> None:
    """Drivers write the vendor and the brand or leave them out."""
    assert found({"volta_sgemm"}, {"volta_sgemm"}, gpus=T4) == {}


def test_model_that_the_fingerprints_tell_is_not_told_twice() -> None:
    """What a run read of the GPU itself comes first."""
    assert found({"k"}, {"k"}, gpus=("A100", "H100"), told="gpu.name") == {}


def test_change_of_precision_is_a_hint() -> None:
    """FP32 against AMP on one GPU is neither another GPU nor another library."""
    made = found({SGEMM}, {SGEMM, HGEMM}, gpus=T4)
    one = made["kernels.precision"]
    assert (one.reference, one.value) == ("FP32", "FP32 and FP16")
    assert one.fact_class == "possible-influence"
    assert one.sentence.startswith("Kernel names suggest FP32 in the reference")
    assert one.sentence.endswith("here; a name is no proof of the precision.")
    assert HGEMM in one.evidence
    assert made["kernels.architecture"].part_of == "kernels.precision"
    assert "GPU" not in made["kernels.architecture"].sentence


def test_one_precision_in_both_is_no_difference() -> None:
    """Which kernels of it were launched may differ; a side that tells none is not accused."""
    assert "kernels.precision" not in found({SGEMM, HGEMM}, {SGEMM, "void add<c10::Half>(int)"})
    assert "kernels.precision" not in found({HGEMM}, {"void max_pool_forward(int)"})


def test_library_of_another_generation_is_on_another_gpu_only_where_that_is_not_known() -> None:
    """Where both models are known and one, the sentence leaves the GPU out."""
    names = ({"volta_sgemm_a"}, {"turing_sgemm_a"})
    known, unknown = found(*names, gpus=T4), found(*names)
    assert "another GPU" not in known["kernels.architecture"].sentence
    assert "another GPU" in unknown["kernels.architecture"].sentence


def test_evidence_shows_the_build_of_a_name_however_long_it_is() -> None:
    """What tells the builds apart stands behind the first hundred characters."""
    long = OLD.replace("_x_", f"_{'x' * 300}_")
    evidence = found({long}, {long.replace("compute_70", "compute_86")})["kernels.build"].evidence
    assert "compute_70" in evidence
    assert "compute_86" in evidence
