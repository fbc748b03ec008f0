"""Detect different GPUs, builds, libraries or precisions from the profiles of two arms.

On the same GPU, the same build of a library launches kernels with the same names. An anonymous
namespace contains the architecture its file was compiled for; NVIDIA's libraries renamed their
kernels from one generation to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from envcompare.gpu import lacks_model, plain_name, vendor_of
from envcompare.gpu.kernelnames import PRECISIONS, has_ambiguous_half, precisions
from envcompare.run_folder.records import FactDifference, FingerprintValue

_ARCHITECTURE: Final = "kernels.architecture"
_CHOSEN: Final = (  # a library has several of these and chooses by shape
    _ARCHITECTURE, "kernels.cutlass", "kernels.cudnn",
)  # fmt: skip
_SHOWN: Final = 100  # characters of a name
_REMEDY: Final = "profile both arms with the software of one image"
GPU: Final = "gpu.name"
_PRECISION: Final = "kernels.precision"
_SAME_GPU: Final = "profile both arms on one GPU model"
_SAME_PRECISION: Final = "profile both arms in one precision, with AMP and TF32 on or off in both"


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
    differences = [] if is_one_gpu is not False else [_of_gpus(reference, arm)]
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


def _of_gpus(reference: Side, arm: Side) -> FactDifference:
    before, after = _model(reference), _model(arm)
    ran = f"The reference ran on {before} and this arm on {after}"
    return _fact_difference(
        GPU,
        (before, after),
        sentence=f"{ran}: a different GPU changes times and the choice of kernels.",
        evidence=f"{ran}.",
        remedy=_SAME_GPU,
    )


def _model(side: Side) -> str:
    capabilities = ", ".join(sorted(side.capabilities))
    return ", ".join(sorted(side.gpus)) or f"a GPU of compute capability {capabilities}"


def _of_precisions(reference: Side, arm: Side, *, is_one_gpu: bool) -> list[FactDifference]:
    """Return a difference if the names of both sides hint at different precisions.

    A name is no proof: cuDNN calls its BF16 attention f16 too, and vendors differ in wording.
    """
    both = [_by_precision(side.names | side.operators) for side in (reference, arm)]
    open_kinds = {"FP32"}
    if any(has_ambiguous_half(name) for side in (reference, arm) for name in side.names):
        open_kinds |= {"FP16", "BF16"}
    kinds = [found.keys() - open_kinds for found in both]
    if not all(both) or kinds[0] == kinds[1]:
        return []
    before, after = (_listed(found) for found in both)
    other = kinds[0] ^ kinds[1]
    examples = [name for found in both for kind, name in found.items() if kind in other]
    shown = ", ".join(f"“{_excerpt(name, '')}”" for name in examples[:2])
    hint = _fact_difference(
        _PRECISION,
        (before, after),
        sentence=f"Kernel names suggest {before} in the reference and {after} here; a name is no "
        "proof of the precision.",
        evidence=f"Only one of the arms ran kernels such as {shown}; a name is no proof.",
        remedy=_SAME_PRECISION,
    )
    part_of = "" if is_one_gpu else GPU
    return [replace(hint, fact_class="possible-influence", part_of=part_of)]


def _by_precision(names: Iterable[str]) -> dict[str, str]:
    """Return the precisions mentioned in names, each with an example."""
    examples = {kind: name for name in sorted(names, reverse=True) for kind in precisions(name)}
    return {kind: examples[kind] for kind in PRECISIONS if kind in examples}


def _listed(words: Iterable[str]) -> str:
    *firsts, last = words
    return f"{', '.join(firsts)} and {last}" if firsts else last


def _excerpt(name: str, sign: str) -> str:
    """Return a name; of a long one, the part around the sign."""
    if len(name) <= _SHOWN:
        return name
    start = max(0, min(name.lower().find(sign) - _SHOWN // 2, len(name) - _SHOWN))
    before, after = "…" * (start > 0), "…" * (start + _SHOWN < len(name))
    return f"{before}{name[start : start + _SHOWN]}{after}"


def _difference(
    sign: _Sign, reference: Side, arm: Side, *, is_one_gpu: bool
) -> FactDifference | None:
    before, after = sign.in_any(reference.names), sign.in_any(arm.names)
    if not before or not after or before == after or _is_same(sign, reference, arm):
        return None
    first, second = (", ".join(sorted(tags)) for tags in (before, after))
    examples = [_example(sign, side.names) for side in (reference, arm)]
    meaning = (is_one_gpu and sign.meaning_on_one_gpu) or sign.meaning
    difference = _fact_difference(
        sign.key,
        (first, second),
        sentence=f"Kernel names show {first} in the reference and {second} here, which suggests "
        f"{meaning}.",
        evidence=f"Kernel names such as “{examples[0]}” and “{examples[1]}” suggest {meaning}.",
        remedy=_REMEDY,
    )
    if _is_proof(sign, before, after):
        return difference
    return replace(difference, fact_class="possible-influence")


def _example(sign: _Sign, names: Iterable[str]) -> str:
    name = next(one for one in sorted(names) if sign.of(one))
    return _excerpt(name, min(sign.of(name)))


def _is_proof(sign: _Sign, before: set[str], after: set[str]) -> bool:
    """Return whether no single build can have launched both, whatever algorithms it chose."""
    if sign.key in _CHOSEN:
        return False
    return bool(before - {_UNSURE} and after - {_UNSURE}) and not before & after - {_UNSURE}


def _is_same(sign: _Sign, reference: Side, arm: Side) -> bool:
    """Return whether both fingerprints have the versions that would explain it, and agree."""
    known = [key for key in sign.facts if reference.facts.get(key) and arm.facts.get(key)]
    return bool(known) and all(reference.facts[key] == arm.facts[key] for key in known)
