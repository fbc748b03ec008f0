"""What an environment does on purpose: who does it, which work feels it, how to tell it apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from envcompare.fingerprint.classes import MEANINGS, longest_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What is done, who feels it, and what tells its part from the rest."""

    what: str
    felt_by: str
    remedy: str = ""


_SECCOMP: Final = Purpose(
    what="Docker filters system calls (seccomp); a plain process and Apptainer by itself do not",
    felt_by="a workload that does little but small system calls feels it",
    remedy="measure an arm without a filter beside it, as in `--envs vm,docker,singularity`, or "
    "let the engine start with `dockerd --seccomp-profile unconfined`",
)
_PURPOSES: Final[dict[str, Purpose]] = {
    "seccomp": _SECCOMP,
    "no_new_privs": Purpose(
        what="Apptainer, and Docker with `no-new-privileges`, forbid a process to gain rights",
        felt_by="no step of a workload feels it",
    ),
    "speculation": Purpose(
        what="Before Linux 5.16 a seccomp filter turns on controls of speculative execution",
        felt_by="code with many indirect branches, such as an interpreter, feels it",
        remedy="measure an arm without a filter beside it, as in `--envs vm,docker,singularity`",
    ),
    "capabilities": Purpose(
        what="A container holds fewer rights than the user outside",
        felt_by="no step of a workload feels it, unless a privileged call of its own is refused",
    ),
    "lsm": Purpose(
        what="A container has a security label of its own (AppArmor, SELinux)",
        felt_by="a workload that opens many files or sockets feels it",
        remedy="`docker run --security-opt apparmor=unconfined` by hand, around the same command",
    ),
    "mount.python": Purpose(
        what="A container reads the interpreter and its packages from layers or a packed image",
        felt_by="the start-up feels it, most of all with a cold page cache, and no step after it",
        remedy="`--sif-compression none` or `sandbox` for a SIF, `--cold-start` to see it",
    ),
    "mount": Purpose(
        what="A container is shown data and scratch folder as mounts of its own",
        felt_by="a workload that reads or writes many files feels it",
        remedy="`--stacks image,host` shows every arm the same files",
    ),
    "shm": Purpose(
        what="Docker gives a container 64 MB at /dev/shm unless it is told otherwise",
        felt_by="data loaders with worker processes feel it when it is full, and then fail",
        remedy="set `default-shm-size` of the engine (daemon.json) to the host's size",
    ),
    "limits": Purpose(
        what="The engine sets its own resource limits, the login has others",
        felt_by="only a workload that reaches a limit feels it, and then it fails",
        remedy="set `default-ulimits` of the engine (daemon.json) to those of the login",
    ),
    "cgroup": Purpose(
        what="A container has a control group of its own",
        felt_by="a workload feels it beside others that want the same CPUs, or at a limit",
    ),
    "os": Purpose(
        what="Each arm is shown the files of a distribution of its own",
        felt_by="only its interpreter and libraries can be felt, which have lines of their own",
    ),
    "env.LD_LIBRARY_PATH": Purpose(
        what="Apptainer puts its own folder on the path of the loader, for a driver's libraries",
        felt_by="no step feels it here, since no library was loaded from there",
    ),
    "uid": Purpose(what="The worker has another user", felt_by="no step feels it"),
    "gid": Purpose(what="The worker has another group", felt_by="no step feels it"),
}


def varied_sentence(key: str) -> tuple[str, str]:
    """Return what an environment does and who feels it, and how it is told apart."""
    rule = longest_rule(key, _PURPOSES)
    if not rule:
        return MEANINGS["varied"], ""
    found = _PURPOSES[rule]
    return f"{found.what}; {found.felt_by}.", found.remedy
