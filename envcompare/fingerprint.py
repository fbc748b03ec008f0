"""Compare what two workers found around themselves: which facts differ, and what that means.

The classes: *identity* tells the arms apart, *host* cannot differ on one host, *varied* is what an
environment does on purpose, a *confounder* is software or a setting that can change the speed by
itself, and a *possible influence* is everything else. Pure; the facts come from the worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from envcompare.records import FactClass, FactDifference, FingerprintRecord, FingerprintValue

CLASS_ORDER: Final[tuple[FactClass, ...]] = (
    "confounder", "possible-influence", "host", "varied", "identity",
)  # fmt: skip

_SAME_BASE: Final = "build the image on the host's own distribution with `--base-image IMAGE`"
SEPARATE: Final = "To separate: "  # what follows in the sentence of a confounder
SPLIT: Final = "measure how much of it is the software with `--stacks image,host`"

_KEYS_BY_CLASS: Final[dict[FactClass, tuple[str, ...]]] = {
    "identity": ("pid", "hostname", "python.executable"),
    "host": ("cpu", "smt", "numa", "memory", "arch", "kernel", "cgroup.version"),
    "varied": (
        "cgroup", "seccomp", "no_new_privs", "speculation", "capabilities", "uid", "gid", "limits",
        "shm", "os", "env.HOME", "env.PATH", "env.NVIDIA",
    ),
    "confounder": (
        "python", "libc", "torch", "torchvision", "numpy", "packages", "site_packages",
        "loaded_libraries", "threads", "allocator", "gpu", "env.OMP", "env.MKL", "env.OPENBLAS",
        "env.MALLOC", "env.LD_PRELOAD", "env.PYTHONMALLOC",
    ),
    "possible-influence": (
        "cgroup.cpu_quota", "cgroup.cpu_weight", "cgroup.cpuset", "cgroup.memory_limit_bytes",
        "cpu.affinity", "thp",
    ),
}  # fmt: skip
_RULES: Final = {key: found for found, keys in _KEYS_BY_CLASS.items() for key in keys}

_NAMES: Final[dict[str, str]] = {
    "python.version": "Python",
    "python.sha256": "the build of Python",
    "python.flags": "the build of Python",
    "torch.version": "torch",
    "torch.git": "the build of torch",
    "torch.build_sha256": "the build of torch",
    "torch.cuda": "CUDA",
    "torch.cudnn": "cuDNN",
    "torchvision.version": "torchvision",
    "numpy.version": "numpy",
    "libc.version": "the C library",
    "site_packages.sha256": "the installed files",
    "loaded_libraries": "loaded libraries",
    "gpu.name": "the GPU",
    "gpu.driver": "the GPU driver",
}
_DIGESTS: Final = frozenset({"sha256", "flags", "git", "flags_sha256", "build_sha256"})
_OWN_FACTS: Final = frozenset({"torch", "torchvision", "numpy"})  # packages with facts of their own
_LISTS: Final = frozenset({"packages", "loaded_libraries"})
_INSTALLERS: Final = frozenset({"pip", "setuptools", "wheel", "distribute", "uv"})
_FELT_LIBRARIES: Final = (
    "libc.", "libm.", "ld-linux", "libpython", "libtorch", "libc10", "libgomp", "libiomp", "libomp",
    "libmkl", "libopenblas", "libscipy_openblas", "libblas", "liblapack", "libcu", "libnv",
    "libnccl", "_multiarray_umath", "libjemalloc", "libtcmalloc", "libmimalloc",
)  # fmt: skip

MEANINGS: Final[dict[FactClass, str]] = {
    "identity": "Tells the arms apart; it cannot change the speed.",
    "host": "Cannot differ on one host: this arm is shown something else than the host itself.",
    "varied": "The environment does this on purpose; it belongs to what is compared.",
    "confounder": "A difference in speed is then real; its cause cannot be told apart.",
    "possible-influence": "It may change the speed; whether it does here is not known.",
}


def compare_fingerprints(
    reference: FingerprintRecord, other: FingerprintRecord
) -> tuple[FactDifference, ...]:
    """Return the facts in which `other` differs from `reference`, confounders first."""
    found: list[FactDifference] = []
    for key in sorted(reference.facts.keys() | other.facts.keys()):
        pair = _parts_that_differ(key, reference.facts.get(key), other.facts.get(key))
        if pair is not None:
            bare = _difference(other, key, pair=pair)
            found.append(msgspec.structs.replace(bare, sentence=_sentence(bare)))
    return tuple(sorted(found, key=lambda one: (CLASS_ORDER.index(one.fact_class), one.key)))


def classify(key: str) -> FactClass:
    """Return the class of a fact by its key alone; an unknown key is a possible influence.

    A rule holds for its key and for those below it, `env.OMP` for `env.OMP_NUM_THREADS`; the
    longest rule counts.
    """
    rules = [rule for rule in _RULES if key == rule or key.startswith((f"{rule}.", f"{rule}_"))]
    return _RULES[max(rules, key=len)] if rules else "possible-influence"


def fact_name(key: str) -> str:
    """Return the name of a fact as sentences use it, such as cuDNN for `torch.cudnn`."""
    return _NAMES.get(key, key)


def describe(difference: FactDifference) -> str:
    """Return the difference in a few words: "cuDNN 9.1 → 9.5", "the build of Python"."""
    name = fact_name(difference.key)
    if difference.key.rpartition(".")[2] in _DIGESTS:
        return name
    before, after = difference.reference, difference.value
    if isinstance(before, tuple) or isinstance(after, tuple):
        return f"{name} ({_entry_names(_entries(before) + _entries(after))})"
    return f"{name} {_word(before)} → {_word(after)}"


def _parts_that_differ(
    key: str, before: FingerprintValue, after: FingerprintValue
) -> tuple[FingerprintValue, FingerprintValue] | None:
    """Return both values, of a list of software only the entries the other side lacks."""
    if before == after:
        return None
    if key not in _LISTS or before is None or after is None:
        return before, after
    mine, theirs = set(_entries(before)), set(_entries(after))
    pair = _own_entries(key, mine - theirs), _own_entries(key, theirs - mine)
    return pair if any(pair) else None


def _own_entries(key: str, entries: Iterable[str]) -> tuple[str, ...]:
    """Sort the entries, those that matter first; torch and numpy have facts of their own."""
    kept = [one for one in entries if key != "packages" or _entry_name(one) not in _OWN_FACTS]
    return tuple(sorted(kept, key=lambda one: (not _is_felt(key, one), one)))


def _is_felt(key: str, entry: str) -> bool:
    if key == "packages":
        return _entry_name(entry) not in _INSTALLERS
    return entry.startswith(_FELT_LIBRARIES)


def _difference(
    other: FingerprintRecord, key: str, *, pair: tuple[FingerprintValue, FingerprintValue]
) -> FactDifference:
    fact_class = classify(key)
    if fact_class == "confounder" and not _can_confound(key, pair):
        fact_class = "possible-influence"
    return FactDifference(
        host=other.host,
        arm=other.arm,
        key=key,
        reference=pair[0],
        value=pair[1],
        fact_class=fact_class,
    )


def _can_confound(key: str, pair: tuple[FingerprintValue, FingerprintValue]) -> bool:
    """Say whether the difference is known (None is not measured) and can be felt.

    An environment variable, an allocator or a GPU that is absent on one side is a difference.
    """
    if None in pair:
        return key.startswith(("env.", "allocator.", "gpu."))
    if key in _LISTS:
        return any(_is_felt(key, entry) for side in pair for entry in _entries(side))
    return True


def _sentence(difference: FactDifference) -> str:
    meaning = MEANINGS[difference.fact_class]
    if difference.fact_class != "confounder":
        return meaning
    verb = "differ" if difference.key in _LISTS else "differs"
    what = f"Besides the environment, {describe(difference)} {verb}."
    if fact_name(difference.key) == "the build of Python":
        meaning = f"A workload bound by Python feels it. {meaning}"
    return f"{what} {meaning} {SEPARATE}{_remedy(difference.key)}"


def _remedy(key: str) -> str:
    if key.startswith(("env.", "allocator.")):
        return "set it to the same value in every arm"
    if key.startswith("threads.") or key in {"torch.threads", "torch.interop_threads"}:
        return "--threads N, which sets it in every arm"
    if key.startswith("gpu."):
        return "give every arm the same GPU; `envcompare doctor` names what is missing"
    if key.startswith("python."):
        return f"give vm the interpreter of the image with `--vm-python PATH`, or {_SAME_BASE}"
    if key.startswith("libc.") or key == "loaded_libraries":
        return _SAME_BASE
    return "use the stack that `envcompare build` makes in every arm, or images that share it"


def _entries(value: FingerprintValue) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(str(one) for one in value) if isinstance(value, tuple) else (str(value),)


def _entry_name(entry: str) -> str:
    """Return the name in "name==version" and in "basename digest"."""
    return entry.partition("==")[0].partition(" ")[0]


def _entry_names(entries: tuple[str, ...]) -> str:
    names = list(dict.fromkeys(_entry_name(one) for one in entries))
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def _word(value: FingerprintValue) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if value != "" else "empty"
