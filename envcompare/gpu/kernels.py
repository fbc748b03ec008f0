"""Derive the identity, family, class and likely precision of a CUDA kernel from its name.

`identity` removes what a build adds to a name, so that two builds of one source agree. `family`
also removes architecture, version and template, to match a kernel with its replacement in another
library. `classify` returns what the kernel does. Counters show whether a kernel uses tensor cores;
without counters the name gives a guess.

Different GPUs, builds, libraries or precisions are detected from the profiles of two arms: on the
same GPU, the same build of a library launches kernels with the same names. An anonymous namespace
contains the architecture its file was compiled for; NVIDIA's libraries renamed their kernels from
one generation to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from envcompare.gpu import lacks_model, plain_name, vendor_of
from envcompare.run_folder.profiles import Kernel, KernelClass
from envcompare.run_folder.records import FactDifference, FingerprintValue

UNCOUNTED_TENSORS: Final = "tensor cores were used, and their FLOPs are not counted"
"""The reason why counted FLOPs, and ratios of them, are too low."""

_CACHE: Final = 2**18  # distinct names in one comparison
_SHOWN: Final = 500  # characters kept in comparison.json
# Template names grow without bound.
_LONGEST: Final = 4_096

_ANONYMOUS: Final = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::|`anonymous namespace'::"
    r"|_GLOBAL__N_\w*::|_NV_ANON_NAMESPACE::|_INTERNAL_\w+::",
)
_LAMBDA: Final = re.compile(
    r"\{lambda\([^{}]{0,500}\)#\d+\}|'lambda\d*'(?:\([^()]{0,500}\))?|\{unnamed type#\d+\}"
    r"|\[lambda\([^\[\]]{0,500}\) \(instance \d+\)\]|__nv_(?:h?d|hd?)l_wrapper_t\b"
)
_SPACES: Final = re.compile(r"\s+")
_TIGHT: Final = re.compile(r"\s*([<>,()*&:{}\[\]])\s*")
# Tools write the same number as 4, (int)4, int=4 or 4ul.
_INTEGER: Final = re.compile(
    r"\((?:unsigned )?(?:int|long|bool|char|short)\)(?=-?\d)|(?<=\d)[uU]?[lL]+\b"
    r"|\b(?:unsigned )?(?:int|long|bool|char|short)=(?=-?\d)"
)
_CLONE: Final = re.compile(r" ?\[clone [^\]]*\]$")

_MARKERS: Final = re.compile(
    r"""(?<![a-z])(?:
        maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell  # first words of library kernels
      | sm_?\d{2,3}[af]?                                         # sm80, sm_90a
      | compute_\d{2,3}
      | gfx\d{2,4}[a-f]?                                         # of AMD
      | kernel__5x_cudnn | execute | v\d+(?:\.\d+)*              # cudnn_v8, _v2
      | cudnn_infer | cudnn_train | infer | cnn | ops | detail
      | cutlass(?:3x)?(?:_\d{2,3})?                              # cutlass_80, cutlass3x
      | kernel0 | specialized
    )(?![a-z0-9])""",
    re.VERBOSE,
)
_NCCL: Final = re.compile(r"ncclDevKernel_|ncclKernel_|nccl(?=[A-Z])")
_TRITON_NUMBER: Final = re.compile(r"^(triton_\w*?)_\d+(?:d(?:\d+d?)*)?$")
_WORD: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TELLING: Final = re.compile(r"Functor|Ops?$|_op$|Kernel(?:Impl)?$|gemm|conv|[wd]grad|fprop")
_PARTED: Final = re.compile(r"_{2,}")
# Parts with digits in a mangled name: back references, template parameters, numbers, and names,
# which follow their length (Itanium C++ ABI, section 5.1). An enumeration constant is L, the name
# of the enumeration, and the value; a name in a namespace is enclosed in N and E.
_MANGLED: Final = re.compile(
    r"S[0-9A-Z]*_|T\d*_|L[a-z]n?\d+E|(?P<constant>LN?)(?=[\dS])|(?P<length>\d+)(?=[A-Za-z_])"
)
_VALUE: Final = {"L": re.compile(r"n?\d+E"), "LN": re.compile(r"En?\d+E")}

_BY_CLASS: Final[tuple[tuple[KernelClass, str], ...]] = (
    ("memcpy", r"^\[cuda memcpy|^memcpy|^__amd_rocclr_copy"),
    ("memset", r"^\[cuda memset|^memset|^__amd_rocclr_fill"),
    ("communication", r"nccl|rccl|nvshmem|multimem|cross_device_reduce|all_?reduce|all_?gather"),
    ("communication", r"all_?to_?all|reduce_?scatter|sendrecv|symm_?mem|(?:one|two)_shot"),
    ("communication", r"int(?:er|ra)node"),
    ("attention", r"flash|fmha|attention|sdpa|attn"),
    ("rnn", r"rnn|lstm|(?<![a-z])gru(?![a-z])"),
    ("normalisation", r"batch_?norm|layer_?norm|group_?norm|rms_?norm|instance_?norm|bn_[fb]w"),
    ("normalisation", r"rowwisemoments|gamma_?beta|(?<![a-z])lrn"),
    ("gemm", r"gemm|gemv|winograd|[dw]grad|fprop|xmma|splitk|im2col|col2im|vol2col|[sh]cudnn"),
    ("gemm", r"(?<![a-z])conv(?!ert)|convol|(?<!\d)(?:884|1688|16816)(?!\d)|[hgw]mma|nvjet"),
    ("gemm", r"dot_kernel|cutlass|fft2d_[rc]2[rc]"),
    ("gemm", r"^cijk_|miopen\w*conv|wvsplt|_xdl"),  # Tensile, MIOpen, vLLM and CK on AMD GPUs
    ("reduction", r"reduce|reduction|softmax|triton_(?:red|per)|argm(?:ax|in)|logsumexp|nll_?loss"),
    ("reduction", r"(?<![a-z])scan|cumsum"),
    ("element-wise", r"element_?wise|elemwise|pointwise|triton_poi|fill|multi_?tensor_?apply"),
    ("element-wise", r"relu|sigmoid|tanh|activation|clamp|dropout|copy_?kernel|catarray|cwise"),
    ("element-wise", r"(?:op|add|scale)_?tensor"),
)
# How libraries and templates spell a precision. HMMA.884 and 1688 take FP16 unless the name has
# TF32; Tensile (Cijk_…) has one letter for each operand: B, H, S or D.
_BY_PRECISION: Final = (
    ("FP64", r"dgemm|d884|f64f64|<double|cijk_\w+_db_"),
    ("FP32", r"sgemm|scudnn|f32f32|<float\b|cijk_\w+_sb_"),
    ("TF32", r"tf32"),
    ("BF16", r"bf16|bfloat16|cijk_\w+_b[bs]s_"),
    ("FP16", r"hgemm|[hs]884|h1688|fp16|(?<!b)f16|\bhalf\b|__half|cijk_\w+_h[hs]s_"),
    ("FP8", r"e4m3|e5m2|fp8|float8"),
    ("AMP", r"(?<![a-z])_?amp_(?:foreach|update)|autocast"),  # its gradient scaling
    ("INT8", r"i8816|int8|_s8s8|(?<![a-z])i8i8"),
)
_TENSOR: Final = re.compile(
    r"h884|s884|h1688|s1688|c1688|i8816|16816|hmma|gmma|wmma|tensorop|dgrad_1x1_stride_2x2"
    r"|first_layer_wgrad_kernel|conv1x1|conv2d_c1_k1|direct_group|xmma_implicit_gemm"
    r"|xmma_sparse_conv|xmma_warp_specialized_implicit_gemm|xmma_gemm|xmma_sparse_gemm|tf32f32"
    r"|bmm_.*e4m3|cutlass3x_sm(?:90|100)|flash_(?:fwd|bwd|fprop|bprop)|nvjet"
    r"|cijk_\w*_mi\d+x\d+|_xdl|mfma"  # the matrix cores of AMD
)
_NAMELESS: Final = "[unknown]"
_CUDNN_ATTENTION: Final = re.compile(r"cudnn\w*_sdpa\w*_f16")
_PIPE: Final = re.compile(
    r"sm__(?:inst_executed_)?pipe_(?:tensor|tc)(?![a-z])(?!\w*_hfma2)|tensor_precision_fu_utilization"
)
_OF_INTEGERS: Final = re.compile(r"_(?:imma|utcimma|int)")
_ANY_CYCLE: Final = "sm__pipe_tensor_cycles_active"  # of all tensor pipes of a chip
_CUDA_CORES: Final = re.compile(r"ffma|simt|sgemm_\d|_dffma|fft")
_NO_TENSOR: Final = re.compile(
    r"sgemm|scudnn|gemv|splitk_?reduce|im2col|col2im|vol2col|dot_kernel|winograd|^cijk_"
)
_MATRIX_WORK: Final[frozenset[KernelClass]] = frozenset({"gemm", "attention", "rnn"})
_PRECISIONS: Final = tuple((name, re.compile(pattern)) for name, pattern in _BY_PRECISION)
_CLASSES: Final = tuple((name, re.compile(pattern)) for name, pattern in _BY_CLASS)


@lru_cache(maxsize=_CACHE)
def identity(name: str) -> str:
    """Return the name without what a build adds: anonymous namespaces, lambda numbers, spaces.

    Two builds of one source have the same identity, even for different architectures.
    """
    text = _CLONE.sub("", name[:_LONGEST].strip().removesuffix("$"))
    text = _LAMBDA.sub("lambda", _ANONYMOUS.sub("", text))
    text = _TIGHT.sub(r"\1", _SPACES.sub(" ", _INTEGER.sub("", text)))
    return _without_parameters(text).removeprefix("void ")


@lru_cache(maxsize=_CACHE)
def family(name: str) -> str:
    """Return the part of a name that libraries and architectures share, in lower case.

    It consists of the last word of the function and the descriptive words of its template.
    """
    base, arguments = _split(identity(name))
    words = [base, *(word for word in _WORD.findall(arguments) if _TELLING.search(word))]
    return " ".join(dict.fromkeys(_plain(word) for word in words))


@lru_cache(maxsize=_CACHE)
def family_of_any_tool(name: str) -> str:
    """Return the family without namespaces, also for a mangled name.

    Nsight Compute omits namespaces; PyTorch's profiler leaves names of more than 1024 characters
    mangled (Kineto, Demangle.cpp, kMaxSymbolSize).
    """
    if name.startswith("_Z"):
        base, *others = _mangled(name[:_LONGEST]) or [name]
    else:
        base, arguments = _split(identity(name))
        others = [match[0] for match in _WORD.finditer(arguments)
                  if not arguments.startswith("::", match.end())]  # fmt: skip
    words = [base, *(word for word in others if _TELLING.search(word))]
    return " ".join(dict.fromkeys(_plain(word) for word in words))


def _mangled(name: str) -> list[str]:
    """Return the names inside a mangled name, in order and without namespaces.

    A name directly followed by another is its namespace.
    """
    words: list[str] = []
    place = end = 0
    constant = ""
    while match := _MANGLED.search(name, place):
        place, constant = match.end(), match["constant"] or constant
        if match["length"]:
            if words and match.start() == end:
                words.pop()
            place = end = place + int(match["length"])
            words.append(name[match.end() : end])
            if constant and (value := _VALUE[constant].match(name, end)):
                place, constant = value.end(), ""
    return list(filter(None, words))


@lru_cache(maxsize=_CACHE)
def classify(name: str) -> KernelClass:
    """Return the class of a kernel, judged by its function name, then by its template."""
    base, _ = _split(identity(name))
    for text in (base.lower(), identity(name).lower()):
        for kernel_class, pattern in _CLASSES:
            if pattern.search(text):
                return kernel_class
    return "other"


@lru_cache(maxsize=_CACHE)
def precisions(name: str) -> frozenset[str]:
    """Return the precisions that a kernel name mentions, such as FP16; often none."""
    text = name[:_LONGEST].lower()
    return frozenset(precision for precision, pattern in _PRECISIONS if pattern.search(text))


@lru_cache(maxsize=_CACHE)
def is_tensor_core(name: str) -> bool:
    """Guess from its name whether a kernel uses tensor cores; only counters are certain.

    The list is that of PyProf, with later names added; FFMA and SIMT kernels are excluded.
    """
    text = name[:_LONGEST].lower()
    return bool(_TENSOR.search(text)) and not _CUDA_CORES.search(text)


def reveals_cores(name: str) -> bool:
    """Return whether a name shows, or allows a guess, on which cores a kernel runs.

    A matrix kernel without such a hint, or a kernel without a name, may run on either.
    """
    text = name[:_LONGEST].lower()
    if is_nameless(name):
        return False
    is_named = any(pattern.search(text) for pattern in (_TENSOR, _CUDA_CORES, _NO_TENSOR))
    return is_named or classify(name) not in _MATRIX_WORK


def is_nameless(name: str) -> bool:
    """Return whether the tool recorded no name for the kernel."""
    return name.lower() == _NAMELESS


def is_tensor_pipe(metric: str) -> bool:
    """Return whether a metric measures tensor-core pipes, in any unit."""
    return _PIPE.match(metric) is not None


def used_tensor_cores(metrics: Mapping[str, float], pipes: Sequence[str]) -> bool | None:
    """Return whether the counters show that a kernel used tensor cores; None if inconclusive.

    `pipes` are the counters that together count all tensor-core instructions of the chip, empty
    for an unknown chip, where 0 in one pipe does not exclude another pipe.
    """
    pipe_values = {name: value for name, value in metrics.items() if is_tensor_pipe(name)}
    if any(pipe_values.values()):
        return True
    counters = {name.partition(".")[0] for name in pipe_values}
    is_whole = bool(pipes) and (counters.issuperset(pipes) or _ANY_CYCLE in counters)
    return False if is_whole else None


def ran_uncounted(kernel: Kernel, pipes: Sequence[str]) -> bool:
    """Return whether a kernel used tensor cores without its operations there being counted.

    `pipes` are as for `used_tensor_cores`; integer operations are not FLOPs.
    """
    if "flops_tensor" in kernel.metrics:
        return False
    floats = {
        name: value for name, value in kernel.metrics.items() if not _OF_INTEGERS.search(name)
    }
    used = used_tensor_cores(floats, pipes)
    return is_tensor_core(kernel.name) if used is None else used


def shortened_name(name: str) -> str:
    """Return a name shortened for comparison.json; the profile keeps the full name."""
    return name if len(name) <= _SHOWN else f"{name[: _SHOWN - 1]}…"


def is_truncated(name: str) -> bool:
    """Return whether the tool cut the name: nvprof then ends it with `$`."""
    return name.rstrip().endswith("$")


def _plain(word: str) -> str:
    word = _TRITON_NUMBER.sub(r"\1", _NCCL.sub("nccl_", word)).lower()
    bare = _MARKERS.sub("_", word)
    return _PARTED.sub("_", bare).strip("_") or word


def _without_parameters(text: str) -> str:
    """Remove the parameter list, which is the first bracket at depth 0."""
    depth = 0
    for place, letter in enumerate(text):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif letter == "(" and depth <= 0 and place:
            return text[:place]
    return text


def _split(text: str) -> tuple[str, str]:
    """Return the last word of the function name, and its template up to the end."""
    start = text.find("<")
    head = text if start < 0 else text[:start]
    return head.rpartition("::")[2].rpartition(" ")[2] or head, "" if start < 0 else text[start:]


_ARCHITECTURE: Final = "kernels.architecture"
# A library has several of these and chooses by shape.
_CHOSEN: Final = (
    _ARCHITECTURE, "kernels.cutlass", "kernels.cudnn",
)  # fmt: skip
_REMEDY: Final = "profile both arms with the software of one image"
GPU: Final = "gpu.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sign:
    """A property that kernel names reveal: how to detect it and what it means."""

    key: str
    facts: tuple[str, ...]  # more reliable fingerprint facts on the same property
    meaning: str
    meaning_on_one_gpu: str = ""  # if different
    tag: re.Pattern[str] | None = None  # its group is the property
    generations: Mapping[str, re.Pattern[str]] = field(default_factory=dict)  # label to pattern

    def of(self, name: str) -> set[str]:
        """Return the values of the property in a name."""
        lower = name.lower()
        tags = self.tag.findall(lower) if self.tag else ()
        words = {words for words, pattern in self.generations.items() if pattern.search(lower)}
        return words | {tag.replace("sm_", "sm") for tag in tags}

    def in_any(self, names: Iterable[str]) -> set[str]:
        """Return the values of the property in any of the names."""
        return set().union(*map(self.of, names))


# dgrad_engine kept its old name, and cuDNN 8 still uses older kernels for some shapes
_CUDNN_7: Final = re.compile(r"cudnn::detail::(?!dgrad_engine)")
_CUDNN_8: Final = re.compile(
    r"cudnn::(?:cnn|ops)::|xmma_\w*(?:fprop|dgrad|wgrad)|cudnn_(?:infer|train|generated)"
)
_EARLY: Final = re.compile(r"(?:maxwell|volta|turing)_\w*cudnn_|winograd_nonfused")
_UNSURE: Final = "scudnn and Winograd kernels"
_SIGNS: Final = (
    _Sign(
        key="kernels.build",
        facts=("torch.build_sha256", "torch.git", "torch.version", "torch.cuda"),
        tag=re.compile(r"_(compute_\d{2,3}[af]?)(?![0-9a-z])"),
        meaning="another build of PyTorch or of an extension",
    ),
    _Sign(
        key=_ARCHITECTURE,
        facts=("cuda.cublas", "cuda.cudnn", "torch.cuda"),
        tag=re.compile(
            r"(?<![a-z])(sm_?\d{2,3}[af]?|maxwell|volta|turing|ampere|hopper|blackwell)(?=_)"
        ),
        meaning="another GPU, other shapes, or libraries of another version",
        meaning_on_one_gpu="other shapes or another batch, or libraries of another version",
    ),
    _Sign(
        key="kernels.cudnn",
        facts=("cuda.cudnn",),
        meaning="another generation of cuDNN, or other algorithms that it chose for other shapes",
        generations={
            "cuDNN 7 names": _CUDNN_7,
            "names of cuDNN 8 and later": _CUDNN_8,
            _UNSURE: _EARLY,
        },
    ),
    _Sign(
        key="kernels.nccl",
        facts=("cuda.nccl",),
        meaning="another version of NCCL, which renamed its kernels after 2.18",
        generations={
            "NCCL up to 2.18": re.compile("ncclkernel_"),
            "NCCL after 2.18": re.compile("nccldevkernel_"),
        },
    ),
    _Sign(
        key="kernels.cutlass",
        facts=("cuda.cublas", "cuda.cudnn", "torch.version"),
        meaning="another generation of CUTLASS, or other kernels chosen for other shapes",
        generations={
            "CUTLASS 2 names": re.compile(r"cutlass_\d{2}_"),
            "CUTLASS 3 names": re.compile("cutlass3x"),
        },
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One arm: its kernel names, GPU models, and fingerprint facts if any."""

    names: frozenset[str]
    facts: Mapping[str, FingerprintValue]
    gpus: frozenset[str] = frozenset()  # empty if unknown
    capabilities: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()

    def is_on(self, other: Side) -> bool | None:
        """Return whether both ran on the same GPU models; None if unknown."""
        if not self.gpus or not other.gpus:
            both = self.capabilities, other.capabilities
            return False if all(both) and not both[0] & both[1] else None
        if any(map(lacks_model, (*self.gpus, *other.gpus))):
            vendors = [{vendor_of(name) for name in gpus} for gpus in (self.gpus, other.gpus)]
            return None if vendors[0] == vendors[1] else False
        return {plain_name(gpu) for gpu in self.gpus} == {plain_name(gpu) for gpu in other.gpus}


def build_differences(
    reference: Side, arm: Side, *, host: str, arm_id: str, known_differences: Iterable[str] = ()
) -> tuple[FactDifference, ...]:
    """Return what the profiles show; `known_differences` are keys of differing fingerprint facts.

    A kernel name is no evidence against a library with the same version in both fingerprints.
    """
    is_one_gpu = arm.is_on(reference)
    differences = []
    if is_one_gpu is False:
        before, after = _model(reference), _model(arm)
        ran = f"The reference ran on {before} and this arm on {after}"
        differences.append(
            _fact_difference(
                GPU,
                (before, after),
                sentence=f"{ran}: a different GPU changes times and the choice of kernels.",
                evidence=f"{ran}.",
                remedy="profile both arms on one GPU model",
            )
        )
    differences += _of_precisions(reference, arm, is_one_gpu=is_one_gpu is not False)
    # these explain why libraries chose other kernels
    causes = [one.key for one in differences if one.key == GPU or is_one_gpu]
    differing = set(known_differences)
    for sign in _SIGNS:
        difference = _difference(sign, reference, arm, is_one_gpu=bool(is_one_gpu))
        if difference is not None:
            candidates = (*sign.facts, *(causes if sign.key == _ARCHITECTURE else ()))
            explaining_key = next((key for key in candidates if key in {*differing, *causes}), "")
            differences.append(replace(difference, part_of=explaining_key))
    return tuple(
        replace(one, host=host, arm=arm_id)
        for one in differences
        if one.key != GPU or GPU not in differing
    )


def builds(names: Iterable[str]) -> tuple[str, ...]:
    """Return the architectures in kernel names: compute_… of files, sm… of libraries.

    Some libraries write the name of a GPU generation (volta) instead of a number.
    """
    every = tuple(names)
    return tuple(sorted({tag for sign in _SIGNS[:2] for tag in sign.in_any(every)}))


def _fact_difference(
    key: str, values: tuple[str, str], *, sentence: str, evidence: str, remedy: str
) -> FactDifference:
    """Return a confounder; the caller fills in host and arm."""
    return FactDifference(
        host="",
        arm="",
        key=key,
        reference=values[0],
        value=values[1],
        fact_class="confounder",
        sentence=sentence,
        evidence=evidence,
        remedy=remedy,
    )


def _model(side: Side) -> str:
    capabilities = ", ".join(sorted(side.capabilities))
    return ", ".join(sorted(side.gpus)) or f"a GPU of compute capability {capabilities}"


def _of_precisions(reference: Side, arm: Side, *, is_one_gpu: bool) -> list[FactDifference]:
    """Return a difference if the names of both sides hint at different precisions.

    A name is no proof: cuDNN calls its BF16 attention f16 too, and vendors differ in wording.
    """
    # the precisions of each side in their usual order, each with an example
    both: list[dict[str, str]] = []
    for side in (reference, arm):
        # In reverse, so that the first name of each precision remains as its example.
        names = sorted(side.names | side.operators, reverse=True)
        examples_of = {kind: name for name in names for kind in precisions(name)}
        both.append({kind: examples_of[kind] for kind, _ in _PRECISIONS if kind in examples_of})
    open_kinds = {"FP32"}
    every = (name[:_LONGEST].lower() for name in reference.names | arm.names)
    if any(map(_CUDNN_ATTENTION.search, every)):
        open_kinds |= {"FP16", "BF16"}
    kinds = [found.keys() - open_kinds for found in both]
    if not all(both) or kinds[0] == kinds[1]:
        return []
    before, after = (_listed(found) for found in both)
    other = kinds[0] ^ kinds[1]
    examples = [name for found in both for kind, name in found.items() if kind in other]
    shown = ", ".join(f"“{_excerpt(name, '')}”" for name in examples[:2])
    hint = _fact_difference(
        "kernels.precision",
        (before, after),
        sentence=f"Kernel names suggest {before} in the reference and {after} here; a name is no "
        "proof of the precision.",
        evidence=f"Only one of the arms ran kernels such as {shown}; a name is no proof.",
        remedy="profile both arms in one precision, with AMP and TF32 on or off in both",
    )
    part_of = "" if is_one_gpu else GPU
    return [replace(hint, fact_class="possible-influence", part_of=part_of)]


def _listed(words: Iterable[str]) -> str:
    *firsts, last = words
    return f"{', '.join(firsts)} and {last}" if firsts else last


def _excerpt(name: str, sign: str) -> str:
    """Return a name; of a long one, the part around the sign."""
    most = 100
    if len(name) <= most:
        return name
    start = max(0, min(name.lower().find(sign) - most // 2, len(name) - most))
    before, after = "…" * (start > 0), "…" * (start + most < len(name))
    return f"{before}{name[start : start + most]}{after}"


def _difference(
    sign: _Sign, reference: Side, arm: Side, *, is_one_gpu: bool
) -> FactDifference | None:
    before, after = sign.in_any(reference.names), sign.in_any(arm.names)
    # both fingerprints have the versions that would explain it, and agree
    known = [key for key in sign.facts if reference.facts.get(key) and arm.facts.get(key)]
    is_same = bool(known) and all(reference.facts[key] == arm.facts[key] for key in known)
    if not before or not after or before == after or is_same:
        return None
    first, second = (", ".join(sorted(tags)) for tags in (before, after))
    named = [next(n for n in sorted(side.names) if sign.of(n)) for side in (reference, arm)]
    examples = [_excerpt(name, min(sign.of(name))) for name in named]
    meaning = (is_one_gpu and sign.meaning_on_one_gpu) or sign.meaning
    difference = _fact_difference(
        sign.key,
        (first, second),
        sentence=f"Kernel names show {first} in the reference and {second} here, which suggests "
        f"{meaning}.",
        evidence=f"Kernel names such as “{examples[0]}” and “{examples[1]}” suggest {meaning}.",
        remedy=_REMEDY,
    )
    # no single build can have launched both, whatever algorithms it chose
    sure, others = before - {_UNSURE}, after - {_UNSURE}
    if sign.key not in _CHOSEN and sure and others and not sure & others:
        return difference
    return replace(difference, fact_class="possible-influence")
