"""What to do, and the command to copy, so that the cause of a difference can be told apart."""

from __future__ import annotations

import shlex
from typing import Final

from envcompare.fingerprint.classes import longest_rule
from envcompare.fingerprint.sides import Sides
from envcompare.run_folder.records import ArmRecord

SEPARATE: Final = "To separate: "  # what a remedy follows in a sentence
_STABILISED: Final = ("env.MALLOC_MMAP_THRESHOLD_", "env.MALLOC_TRIM_THRESHOLD_")
_IN_CODE: Final = (
    "torch.tf32", "torch.deterministic", "torch.cudnn", "torch.float32_precision",
    "torch.interop_threads",
)  # fmt: skip
_STARTED_WITH: Final = {
    "process.nice": "`nice` or `renice`",
    "process.scheduler": "`chrt`",
    "thp.is_disabled": "prctl(PR_SET_THP_DISABLE)",
}
_BY_HAND: Final = {
    **dict.fromkeys(_IN_CODE, "set it to the same value in the code of the workload"),
    **{
        key: f"start every arm without {what}: look at the image's `python3`, the engine and the "
        "login"
        for key, what in _STARTED_WITH.items()
    },
}
# What a remedy says itself, and what only doctor has.
_GIVEN: Final = ("--envs", "--stacks", "--reference", "--hosts", "--format")
_THREADS: Final = ("env.OMP_NUM_THREADS", "env.MKL_NUM_THREADS", "env.OPENBLAS_NUM_THREADS")


def other_options(command_line: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a run or doctor was told beside hosts and arms, which a remedy names itself."""
    start = next((n for n, word in enumerate(command_line) if word in {"run", "doctor"}), None)
    words = iter(() if start is None else command_line[start + 1 :])
    kept = []
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in _GIVEN:
            kept.append(word)
        elif not equals:
            next(words, None)
    return tuple(kept)


def remedy(sides: Sides, key: str) -> str:
    """Return what separates a confounder from the environment, for this very pair."""
    if key.startswith("threads.") or key in {"torch.threads", *_THREADS}:
        return f"`{_command(sides, '--threads N')}`, which sets it in every arm"
    if key.startswith(("env.", "allocator.")):
        return _same_variable(sides, key)
    if key.startswith("gpu."):
        return "give every arm the same GPU; `envcompare doctor` names what is missing"
    if key.startswith(("cgroup.", "cpu.")):
        return _same_limit(sides, key)
    for reader, how in _BY_HAND.items():
        if longest_rule(key, (reader,)):
            return how
    return _software(sides, key)


def has_own_remedy(key: str) -> bool:
    """Say whether a property can be made the same by itself, without another stack."""
    return key in _STARTED_WITH or key.startswith(("env.", "allocator.", "cgroup.", "cpu."))


def _same_variable(sides: Sides, key: str) -> str:
    name = {"allocator.tunables": "GLIBC_TUNABLES"}.get(key, key.removeprefix("env."))
    if key.startswith("allocator.") and key != "allocator.tunables":
        name = "LD_PRELOAD"
    if key in _STABILISED:
        return f"`{_command(sides, '--stabilise')}`, which sets {name} in every arm"
    same = f"set {name} to the same value in every arm"
    own = [arm for arm in sides.pair.arms or () if arm.reference]
    if own and (text := _beside_built(sides)):
        return f"{same}; {text}"
    return f"{same}: `export {name}=VALUE` in the login of vm, `ENV {name}=VALUE` in the image"


def _same_limit(sides: Sides, key: str) -> str:
    what = {"cgroup.cpu_quota": "quota", "cgroup.memory_limit_bytes": "memory limit"}
    arms = {arm.environment for arm in sides.pair.arms or ()}
    flag = {"quota": "--cpus", "memory limit": "--memory"}.get(what.get(key, ""), "--cpuset-cpus")
    how = f"`docker run {flag}`, or " if "docker" in arms else ""
    return (
        f"give every arm the same {what.get(key, 'CPUs')}: it comes from {how}the control group "
        "that the engine or the login puts a process in"
        + ", or from `taskset` around its Python"
        * (key == "cpu.affinity")
    )


def _software(sides: Sides, key: str) -> str:
    """Return the command that measures software and environment apart, and how to make it same."""
    if key == "packages.outside":
        return "install them in every arm, or unset PYTHONPATH where they come from"
    arms = sides.pair.arms
    if arms and arms[0].environment == arms[1].environment and arms[0].stack == arms[1].stack:
        return (
            f"both arms are {arms[0].environment}, so the difference is of their software: compare "
            "images that differ in this alone"
        )
    if arms and (text := _beside_built(sides)):
        return text
    if key.startswith("site_packages."):
        return "remove the venv, image or SIF that was changed; `envcompare build` makes it anew"
    split = f"`{_command(sides, '--stacks image,host')}`"
    return f"{split} measures how much is the software{_made_same(sides, key)}"


def _beside_built(sides: Sides) -> str:
    """Return how an image that the user named is compared in one environment; empty if it is."""
    arms = sides.pair.arms or ()
    own = [arm for arm in arms if arm.reference]
    if not own or len({arm.environment for arm in arms}) == 1:
        return ""
    named = own[-1]
    rest = tuple(_arm_text(arm) for arm in arms if arm is not named)
    envs = dict.fromkeys((*rest, named.environment, _arm_text(named)))
    command = _envcompare(sides, ",".join(envs))
    return f"`{command}` measures {named.environment} with the software of the tool as well"


def _made_same(sides: Sides, key: str) -> str:
    has_vm = any(arm.environment == "vm" for arm in sides.pair.arms or ()) or not sides.pair.arms
    if key.startswith("python.") and has_vm:
        return "; `--vm-python PATH` gives vm the interpreter of the image, where the host has it"
    if key.startswith("libc.") or key == "loaded_libraries":
        return "; `--base-image IMAGE` builds the image on the host's own distribution"
    if key.startswith("python."):
        return "; `--base-image IMAGE` builds the image on another interpreter"
    return "; `envcompare build` makes every arm from the same wheels"


def _command(sides: Sides, flags: str) -> str:
    arms = sides.pair.arms
    if arms is None:
        return f"envcompare run {flags}"
    is_split = "--stacks" in flags
    envs = dict.fromkeys(arm.environment if is_split else _arm_text(arm) for arm in arms)
    return f"{_envcompare(sides, ','.join(envs))} {flags}"


def _envcompare(sides: Sides, envs: str) -> str:
    host = sides.other.host
    where = f" --hosts {shlex.quote(host)}" if host not in {"", "local"} else ""
    rest = "".join(f" {shlex.quote(one)}" for one in sides.pair.options)
    return f"envcompare run{where} --envs {shlex.quote(envs)}{rest}"


def _arm_text(arm: ArmRecord) -> str:
    """Return an arm as `--envs` takes it."""
    if arm.reference:
        return f"{arm.id}={arm.environment}:{arm.reference}"
    return arm.environment if arm.stack == "image" else f"{arm.environment}@{arm.stack}"
