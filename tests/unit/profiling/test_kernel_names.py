"""The names of kernels: one identity for one source, a family across libraries, a class."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envcompare.gpu.kernels import (
    classify,
    family,
    family_of_any_tool,
    identity,
    is_tensor_core,
    is_truncated,
    precisions,
)
from envcompare.run_folder.results import RunFolder

COUNTERS = Path(__file__).resolve().parents[3] / "results" / "h200-counters"

BUILT = (
    "void at::native::_GLOBAL__N__51_tmpxft_{}_Activation_compute_{}_cpp1_ii_{}::clamp<float>(int)"
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (BUILT.format("0003a2b", "70", "12ab"), BUILT.format("0004b1c", "86", "34cd")),
        (
            "void at::native::(anonymous namespace)::pool<float>(int)",
            "void at::native::<unnamed>::pool<float>(int)",
        ),
        (
            "void k<4, f()::{lambda(int)#1}, Array<char*, 1> >(int)",
            "k<(int)4, f()::{lambda(int)#2}, Array<char *, 1ul>>(int, T2)",
        ),
        (
            "void k<int=4, bool=1, double const >(double const *)",
            "void k<(int)4, (bool)1, double const>(T1)",
        ),
        ("void k<f()::{lambda()#2}>(int)", "void k<f()::[lambda() (instance 2)]>(T1)"),
    ],
)
def test_builds_of_one_source_share_an_identity(one: str, other: str) -> None:
    """What only a build or a demangler adds is no other kernel."""
    assert identity(one) == identity(other)


def test_templates_keep_their_own_identity() -> None:
    """Two functors of one template are two kernels."""
    name = "void k<4, at::native::{}<float> >(int)"
    assert identity(name.format("AddFunctor")) != identity(name.format("MulFunctor"))
    assert family(name.format("AddFunctor")) != family(name.format("MulFunctor"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("volta_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("sm80_xmma_gemm_f32f32_f32_tn", "sm90_xmma_gemm_f32f32_f32_tn"),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm>(P)", "void Kernel<cutlass_86_simt_sgemm>(P)"),
        ("ncclKernel_AllReduce_RING(W)", "ncclDevKernel_AllReduce_RING(A*, B)"),
        ("triton_poi_fused_add_3", "triton_poi_fused_add_12"),
        ("volta_scudnn_128x64_relu_nn_v1", "turing_scudnn_128x64_relu_nn"),
    ],
)
def test_family_outlives_architecture_and_version(one: str, other: str) -> None:
    """The kernel that took another's place can be found by what is left of the name."""
    assert family(one) == family(other)
    assert identity(one) != identity(other)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_128x64_nn", "gemm"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "gemm"),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(P)", "gemm"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128>(P)", "gemm"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "gemm"),
        ("void at::native::vectorized_elementwise_kernel<4, ConvertFunctor>(int)", "element-wise"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<1>, AdamFunctor>(int)", "element-wise"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<NormTwoOps> >(R)", "reduction"),
        ("void (anonymous namespace)::softmax_warp_forward<float>(float*)", "reduction"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(T)", "normalisation"),
        ("void LSTM_elementWise_fp<float>(int)", "rnn"),
        ("void elemWiseRNNcell<float, (cudnnRNNMode_t)2>(int)", "rnn"),
        ("flash_fwd_kernel<Flash_fwd_kernel_traits<64>>(P)", "attention"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(W)", "communication"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(A*)", "communication"),
        ("multimem_all_reduce_kernel", "communication"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(X)", "communication"),
        ("[CUDA memcpy HtoD]", "memcpy"),
        ("[CUDA memset]", "memset"),
        ("cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_kernel0_0", "attention"),
        ("cudnn_generated_fort_native_sm80_convFwd_pointwise_kernel0_0", "gemm"),
        ("void fft2d_r2c_32x32<float, false, 0u>(float2*)", "gemm"),
        (
            "void Eigen::internal::EigenMetaKernel<Eigen::TensorCwiseBinaryOp<S> >(int)",
            "element-wise",
        ),
        ("void deep_ep::internode::dispatch<false, 8>(int)", "communication"),
        ("void at::native::max_pool_forward_nchw<float>(int)", "other"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x256x64_MI16x16x1_SN_LDSB0", "gemm"),
        ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1.kd", "gemm"),
        ("igemm_fwd_gtcx3_nhwc_fp16_bx0_ex1_bt256x64x16.kd", "gemm"),
        ("MIOpenBatchNormFwdTrainSpatial.kd", "normalisation"),
        ("__amd_rocclr_copyBuffer.kd", "memcpy"),
        ("__amd_rocclr_fillBufferAligned.kd", "memset"),
    ],
)
def test_class_is_told_by_function_before_template(name: str, expected: str) -> None:
    """An element-wise kernel stays one, whatever its functor is called."""
    assert classify(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_tensor16x8x8_kernel_cudnn", True),
        ("volta_h884gemm_128x64_nn", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>(P)", True),
        ("sm86_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_ffma_kernel__5x_cudnn", False),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x128>(P)", False),
        ("ampere_sgemm_128x64_nn", False),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x256x64_MI16x16x1_SN_LDSB0", True),
        ("Cijk_Ailk_Bljk_SB_MT64x64x8_SN_K1_VAW1", False),
    ],
)
def test_tensor_cores_are_guessed_by_name(name: str, *, expected: bool) -> None:
    """A kernel of the tensor family that says FFMA or SIMT runs on the CUDA cores."""
    assert is_tensor_core(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_128x64_nn", {"FP32"}),
        ("volta_h884gemm_128x64_ldg8_nn", {"FP16"}),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", {"FP16"}),
        ("turing_fp16_s1688gemm_fp16_128x64_ldg8_f2f_tn", {"FP16"}),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", {"BF16"}),
        ("sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize128x64x32", {"FP32", "TF32"}),
        ("void cutlass::Kernel<cutlass_80_tensorop_f16_s16816gemm_f16_128x64>(P)", {"FP16"}),
        ("void at::native::add<c10::BFloat16>(int)", {"BF16"}),
        ("void at::native::add<c10::Half>(int)", {"FP16"}),
        ("void at::native::add<float>(int)", {"FP32"}),
        ("dgemm_nn", {"FP64"}),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x256x64_MI16x16x1_SN", {"BF16"}),
        ("Cijk_Ailk_Bljk_SB_MT64x64x8_SN_K1", {"FP32"}),
        ("void at::native::max_pool_forward_nchw(int)", set()),
    ],
)
def test_precision_is_told_by_the_names_of_libraries_and_types(
    name: str, expected: set[str]
) -> None:
    """A name that speaks of several has several."""
    assert precisions(name) == expected


def test_name_cut_by_the_tool_is_known() -> None:
    """The profiler of old ends a name it cut in a dollar sign."""
    assert is_truncated("void at::native::elementwise_kernel_with_a_lo$")
    assert identity("elementwise_kernel_with_a_lo$") == "elementwise_kernel_with_a_lo"


@settings(deadline=None)
@given(st.text(max_size=300) | st.text(alphabet="<>(){}#,: _aA19[]'lambda", max_size=6_000))
def test_any_text_has_identity_family_and_class(name: str) -> None:
    """No name, however odd, breaks the reading of it."""
    assert classify(name)
    assert isinstance(family(name), str)
    assert isinstance(identity(name), str)


@pytest.mark.parametrize("arm", ["vm-host", "docker-host"])
def test_two_tools_name_the_kernels_of_a_real_gpu_alike(arm: str) -> None:
    """PyTorch's profiler left one of them mangled, and ncu leaves namespaces out of most."""
    names = {
        record.kind: {kernel.name for kernel in record.profile.kernels}
        for record in RunFolder.open(COUNTERS).read_profiles()
        if record.arm == arm and record.profile is not None
    }
    traced, counted = names["torch"], names["ncu-memory"]
    assert any(name.startswith("_ZN17cutlass") for name in traced)
    assert len(traced & counted) < len(traced) / 4
    families = [{family_of_any_tool(name) for name in one} for one in (traced, counted)]
    assert families[0] == families[1]
    assert len(families[0]) > 30


@pytest.mark.parametrize(
    ("mangled", "family"),
    [
        ("_Z4gemmIfEvPT_", "gemm"),
        ("_ZN2at6native13reduce_kernelILi512EEEvi", "reduce_kernel"),
        ("_ZN3fft1kINS_2op11ReluFunctorELi64EEEvv", "k relufunctor"),
        ("_ZN1a1kILNS_4EnumE12E11ReluFunctorEEvv", "k relufunctor"),
        ("_ZN1a1kILN1b4EnumEn3E11ReluFunctorEEvv", "k relufunctor"),
        ("_ZN1a1kIL4Enum3ENS_5EigenE11ReluFunctorEEvv", "k relufunctor"),
        ("_Z", "z"),
        ("_Z999short", "short"),
    ],
)
def test_a_mangled_name_is_read_without_its_namespaces(mangled: str, family: str) -> None:
    """A number in it is no length of a name, and one that is cut is read as far as it goes."""
    assert family_of_any_tool(mangled) == family


@given(st.text(alphabet="_ZN0123456789IELSTfabAB", max_size=80))
def test_any_mangled_name_is_read(rest: str) -> None:
    """A trace may hold whatever a tool wrote."""
    assert family_of_any_tool(f"_Z{rest}")
