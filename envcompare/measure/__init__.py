"""What a worker is started with and what it replies, as types (protocol 1), and seeds.

Unknown fields of a reply are ignored, missing ones refused.
"""

from __future__ import annotations

import hashlib
import random
from typing import Annotated, Any, Final, Literal

import msgspec

from envcompare.errors import Phase
from envcompare.run_folder.records import FingerprintValue, Scalar
from envcompare.transport import read_json

PROTOCOL = 1
# Whatever a worker says, the run folder can hold it, and reads it back.
_MOST: Final = (1 << 63) - 1
_Integer = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=10**18)]
MOST_CPUS: Final = 8192  # that a kernel of Linux can have (NR_CPUS)
Cpu = Annotated[int, msgspec.Meta(ge=0, lt=MOST_CPUS)]
_Scalar = str | _Integer | float | bool | None
Fact = _Scalar | tuple[_Scalar, ...]


class WorkerFault(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong inside a worker, as it said itself."""

    phase: Phase
    brief: str
    step: Amount | None = None
    traceback: str = ""
    hint: str = ""  # where the worker knows what to try
    is_exhausted: bool = False  # the script of a line has ended well, with no steps left


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """A worker is up and has imported what its cells share; it may stay for many of them."""

    protocol: Amount
    pid: Amount
    entry_ns: Amount
    now_ns: Amount
    import_ns: Amount
    stays: bool
    why_not: str = ""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The template is up: its clock, how long imports and data took, and what it found."""

    protocol: Amount
    pid: Amount
    entry_ns: Amount
    now_ns: Amount
    import_ns: Amount
    data_ns: Amount
    generation: Literal["fork", "rebuild"]
    generation_reason: str = ""
    device: str
    compute_capability: str = ""  # of the GPU in use; empty on a CPU
    batch: Annotated[int, msgspec.Meta(ge=1, le=10**18)]
    code_hash: str
    data_hash: str | None = None
    steps_per_epoch: Amount | None = None
    params: dict[str, _Scalar] = {}
    fingerprint: dict[str, Fact] | None = None


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """A generation began: the model is built and has done its first step."""

    pid: Amount
    spawn_ns: Amount
    build_ns: Amount
    first_step_ns: Amount
    checksum: float | None
    compiled: Amount = 0  # parts of the model, in that step; a later worker of the arm loads them


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A block of k steps was run."""

    t0_ns: Amount
    wall_ns: tuple[Amount, ...]
    cpu_ns: tuple[Amount, ...]
    gpu_ns: tuple[Amount, ...] | None = None
    wait_ns: Amount | None = None
    all_wait_ns: Amount | None = None
    throttled_ns: Amount | None = None
    throttled_periods: Amount | None = None
    user_ns: Amount | None = None  # in ticks of the kernel, as `sys_ns`
    sys_ns: Amount | None = None
    voluntary_switches: Amount | None = None
    involuntary_switches: Amount | None = None
    minor_faults: Amount | None = None
    major_faults: Amount | None = None
    cpu: Cpu | None = None  # on which it ended
    is_held: bool = False  # on this CPU, all the time
    threads: Amount | None = None  # of the worker's process, when it had run
    running: Amount | None = None  # of these and of its children's, those that ran in the block
    children: Amount | None = None
    outside_cpu_ns: Amount | None = None  # used by others than the stepping thread, before it
    outside_runs: Amount | None = None
    is_stopped: bool = False  # with all that it had started, since the block before ended
    loss: float | None = None
    compilations: Amount = 0  # by torch.compile: in a block with any, code was compiled or loaded


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """How well the workload does on data that it does not train on."""

    # JSON has no nan, so that of a loss is null.
    values: dict[str, float | None]
    wall_ns: Amount


class Profiled(msgspec.Struct, frozen=True, kw_only=True):
    """K steps were run for one kind of profile; without a value there is a reason."""

    kind: str
    k: Amount
    wall_ns: Amount
    file: str = ""  # the one that was asked for, where it was written
    values: dict[str, Any] = {}  # as the profiler inside the worker gave them
    reason: str = ""
    hint: str = ""
    cpu: Cpu | None = None  # on which it ended
    has_failed: bool = False  # while it ran; else it cannot be had here at all


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker finds around itself now, after `steps` steps of the live generation."""

    steps: Amount
    fingerprint: dict[str, Fact]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A generation ended: the peaks its process reached."""

    max_rss_bytes: Amount
    cgroup_peak_bytes: Amount | None = None
    cuda_allocated_peak_bytes: Amount | None = None
    cuda_reserved_peak_bytes: Amount | None = None
    result: dict[str, _Scalar] | None = None  # what the workload's `finish` returned


class Quit(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's whole cost, children included."""

    user_ns: Amount
    sys_ns: Amount
    max_rss_bytes: Amount


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """Where the data lie in an arm: in `folder` inside, else in the folder of the host.

    What is not `is_held` there by the image is copied to it by the worker.
    """

    name: str
    folder: str = ""
    is_held: bool = False


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What `hello` tells the worker to be."""

    workload: str
    files: tuple[str, ...] = ()  # of its folder, that were sent with it
    params: dict[str, Scalar]
    data: str
    threads: int | None  # None: their number is left as it is
    cpus: tuple[int, ...] | None
    generation: str
    device: str
    place: Placed | None = None
    fingerprint: bool = True  # taken once an arm, and again after its first steps
    cwd: str = ""  # of a script whose steps are timed; else empty
    step: str = ""  # MODULE:FUNCTION, each call of which is a step of that script


class _Refusal(msgspec.Struct):
    error: WorkerFault


def fault_in(output: str) -> WorkerFault | None:
    """Return the fault in the last line of a worker's output; None where there is none."""
    lines = output.splitlines()
    try:
        return read_json(lines[-1], _Refusal).error if lines else None
    except msgspec.MsgspecError:
        return None


# What glibc frees goes back above two thresholds, which adapt to what a process happened to free
# first (mallopt(3)); two processes of one program then differ in page faults for their whole life.
# Fixed ones end the adapting. Where the C library is another, the variables do nothing.
_MMAP_THRESHOLD_BYTES = 32 << 20  # the most glibc takes (DEFAULT_MMAP_THRESHOLD_MAX on 64 bits)
_TRIM_THRESHOLD_BYTES = 1 << 30

Values = dict[str, Scalar]
Facts = dict[str, FingerprintValue]
Variables = tuple[tuple[str, str], ...]
"""Environment variables that a worker is started with."""


def with_parameters(spec: LaunchSpec, values: Values) -> LaunchSpec:
    """Return the spec with an arm's own values of parameters."""
    return msgspec.structs.replace(spec, params={**spec.params, **values})


def stable_variables(seed: int, host: str, restart: int) -> Variables:
    """Return what fixes the allocator, and a hash seed that all arms of a restart share.

    Each restart draws a new hash seed, so no result depends on one order of a set.
    """
    hash_seed = derive_seed(seed, "hash seed", host, restart) % 2**32
    return (
        ("MALLOC_MMAP_THRESHOLD_", str(_MMAP_THRESHOLD_BYTES)),
        ("MALLOC_TRIM_THRESHOLD_", str(_TRIM_THRESHOLD_BYTES)),
        ("PYTHONHASHSEED", str(hash_seed)),
    )


def derive_seed(run_seed: int, *parts: str | int) -> int:
    """Return a 63-bit seed: SHA-256 of `run seed/purpose/cell/restart/generation`."""
    text = "/".join(str(part) for part in (run_seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def shuffled(items: tuple[str, ...], seed: int) -> tuple[str, ...]:
    """Return the items in the random order that belongs to `seed`."""
    return tuple(random.Random(seed).sample(items, len(items)))
