"""What the names of two sets of kernels betray: other builds, other generations of libraries.

On one GPU one build of one library launches kernels of the same names. An anonymous namespace
carries the architecture its file was compiled for; NVIDIA's libraries changed how they name kernels
from one generation to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from envcompare.records import FactDifference, FingerprintValue

_COMPILED: Final = re.compile(r"_(compute_\d{2,3}[af]?)(?![0-9a-z])")
_TAGGED: Final = re.compile(
    r"(?<![a-z])(sm_?\d{2,3}[af]?|maxwell|volta|turing|ampere|hopper|blackwell)(?=_)"
)
_CHOSEN: Final = ("kernels.architecture", "kernels.cutlass")  # one library has several of them
_SHOWN: Final = 100  # characters of a name
_REMEDY: Final = "profile both arms with the software of one image"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sign:
    """One property that names betray: how it is seen and what it means."""

    key: str
    told_by: tuple[str, ...]  # facts of the fingerprint that say the same, and better
    meaning: str
    generations: tuple[tuple[str, str], ...] = ()  # words for a pattern


# dgrad_engine kept its old name, and kernels of before stayed in cuDNN 8 for some shapes
_CUDNN_7: Final = r"cudnn::detail::(?!dgrad_engine)"
_CUDNN_8: Final = (
    r"cudnn::(?:cnn|ops)::|xmma_\w*(?:fprop|dgrad|wgrad)|cudnn_(?:infer|train|generated)"
)
_EARLY: Final = r"(?:maxwell|volta|turing)_\w*cudnn_|winograd_nonfused"
_UNSURE: Final = "scudnn and Winograd kernels"
_SIGNS: Final = (
    _Sign(
        key="kernels.build",
        told_by=("torch.build_sha256", "torch.git", "torch.version", "torch.cuda"),
        meaning="they come from another build of PyTorch or of an extension",
    ),
    _Sign(
        key="kernels.architecture",
        told_by=("cuda.cublas", "cuda.cudnn", "torch.cuda"),
        meaning="libraries of another version, or on another GPU, chose them",
    ),
    _Sign(
        key="kernels.cudnn",
        told_by=("cuda.cudnn",),
        meaning="cuDNN is of another generation, or chose its algorithms otherwise",
        generations=(
            ("cuDNN 7 names", _CUDNN_7),
            ("names of cuDNN 8 and later", _CUDNN_8),
            (_UNSURE, _EARLY),
        ),
    ),
    _Sign(
        key="kernels.nccl",
        told_by=("cuda.nccl",),
        meaning="NCCL renamed its kernels after 2.18, so that this is another version",
        generations=(("NCCL up to 2.18", r"ncclkernel_"), ("NCCL after 2.18", r"nccldevkernel_")),
    ),
    _Sign(
        key="kernels.cutlass",
        told_by=("cuda.cublas", "cuda.cudnn", "torch.version"),
        meaning="they were made with another generation of CUTLASS",
        generations=(("CUTLASS 2 names", r"cutlass_\d{2}_"), ("CUTLASS 3 names", r"cutlass3x")),
    ),
)
_PATTERNS: Final = {
    words: re.compile(pattern) for sign in _SIGNS for words, pattern in sign.generations
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One arm: the names of its kernels and the facts of its fingerprint, where there is one."""

    names: frozenset[str]
    facts: Mapping[str, FingerprintValue]


def betrayed(
    reference: Side, arm: Side, *, host: str, arm_id: str, told: Iterable[str] = ()
) -> tuple[FactDifference, ...]:
    """Return what the names betray; `told` are the keys in which the fingerprints differ.

    A library of which both fingerprints name the same version is not accused by a name.
    """
    differing, found = set(told), []
    for sign in _SIGNS:
        before, after = _signs(sign, reference.names), _signs(sign, arm.names)
        if not before or not after or before == after or _is_same(sign, reference, arm):
            continue
        one = _difference(sign, before, after, both=(reference.names, arm.names))
        teller = next((key for key in sign.told_by if key in differing), "")
        found.append(replace(one, host=host, arm=arm_id, part_of=teller))
    return tuple(found)


def _difference(
    sign: _Sign, before: set[str], after: set[str], *, both: tuple[frozenset[str], frozenset[str]]
) -> FactDifference:
    texts = ", ".join(sorted(before)), ", ".join(sorted(after))
    examples = [next(n for n in sorted(names) if _of_name(sign, n))[:_SHOWN] for names in both]
    return FactDifference(
        host="",
        arm="",
        key=sign.key,
        reference=texts[0],
        value=texts[1],
        fact_class="confounder" if _is_proof(sign, before, after) else "possible-influence",
        sentence=f"Kernel names carry {texts[0]} in the reference and {texts[1]} here: "
        f"{sign.meaning}.",
        evidence=f"Kernels are named “{examples[0]}” and “{examples[1]}”: {sign.meaning}.",
        remedy=_REMEDY,
    )


def _is_proof(sign: _Sign, before: set[str], after: set[str]) -> bool:
    """Tell whether one build cannot have launched both, however it chose its algorithms."""
    if sign.key in _CHOSEN:
        return False
    return bool(before - {_UNSURE} and after - {_UNSURE}) and not before & after - {_UNSURE}


def _is_same(sign: _Sign, reference: Side, arm: Side) -> bool:
    """Tell whether both fingerprints know the versions that would explain it, and they agree."""
    known = [key for key in sign.told_by if reference.facts.get(key) and arm.facts.get(key)]
    return bool(known) and all(reference.facts[key] == arm.facts[key] for key in known)


def _signs(sign: _Sign, names: Iterable[str]) -> set[str]:
    return {found for name in names for found in _of_name(sign, name)}


def _of_name(sign: _Sign, name: str) -> set[str]:
    lower = name.lower()
    if sign.key == "kernels.build":
        return set(_COMPILED.findall(lower))
    if sign.key == "kernels.architecture":
        return {found.replace("sm_", "sm") for found in _TAGGED.findall(lower)}
    return {words for words, _ in sign.generations if _PATTERNS[words].search(lower)}
