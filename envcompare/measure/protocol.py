"""The replies of worker protocol 1 as types; unknown fields are ignored, missing ones refused."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from envcompare.errors import Phase
from envcompare.records import FingerprintValue, Scalar

_T = TypeVar("_T")
PROTOCOL = 1


class WorkerFault(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong inside a worker, as it said itself."""

    phase: Phase
    brief: str
    step: int | None = None
    traceback: str = ""
    hint: str = ""  # where the worker knows what to try


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The template is up: its clock, how long imports and data took, and what it found."""

    protocol: int
    pid: int
    entry_ns: int
    now_ns: int
    import_ns: int
    data_ns: int
    generation: str
    generation_reason: str = ""
    device: str
    compute_capability: str = ""  # of the GPU in use; empty on a CPU
    batch: int
    code_hash: str
    data_hash: str | None = None
    steps_per_epoch: int | None = None
    params: dict[str, Scalar] = {}
    fingerprint: dict[str, FingerprintValue] | None = None


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """A generation began: the model is built and has done its first step."""

    pid: int
    spawn_ns: int
    build_ns: int
    first_step_ns: int
    checksum: float | None


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A block of k steps was run."""

    t0_ns: int
    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    gpu_ns: tuple[int, ...] | None = None
    wait_ns: int | None = None
    all_wait_ns: int | None = None
    throttled_ns: int | None = None
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    minor_faults: int | None = None
    major_faults: int | None = None
    loss: float | None = None


class Profiled(msgspec.Struct, frozen=True, kw_only=True):
    """K steps were run for one kind of profile; without a value there is a reason."""

    kind: str
    k: int
    wall_ns: int
    file: str = ""  # the one that was asked for, where it was written
    values: dict[str, Any] = {}  # as the profiler inside the worker gave them
    reason: str = ""
    hint: str = ""
    has_failed: bool = False  # while it ran; else it cannot be had here at all


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker finds around itself now, after `steps` steps of the live generation."""

    steps: int
    fingerprint: dict[str, FingerprintValue]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A generation ended: the peaks its process reached."""

    max_rss_bytes: int
    cgroup_peak_bytes: int | None = None
    cuda_allocated_peak_bytes: int | None = None
    cuda_reserved_peak_bytes: int | None = None
    result: dict[str, Scalar] | None = None  # what the workload's `finish` returned


class Quit(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's whole cost, children included."""

    user_ns: int
    sys_ns: int
    max_rss_bytes: int


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What a launcher of plain commands found in its arm."""

    program: str
    programs: dict[str, str | None] = {}  # hashes by the words of the command that name one
    code_hash: str
    fingerprint: dict[str, FingerprintValue]


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """One program was run to its end, or to its limit."""

    t0_ns: int
    wall_ns: int
    user_ns: int
    sys_ns: int
    max_rss_bytes: int | None
    exit_code: int
    signal: str | None
    is_late: bool
    left_processes: bool
    settling_ns: int  # waited after its end for what it had started, and for the search
    values: dict[str, float]
    slow_measures: tuple[str, ...] = ()  # their expression took too long, and gave no value
    fingerprint: dict[str, FingerprintValue] = {}  # what was seen of it, where it was watched


class _Refusal(msgspec.Struct):
    error: WorkerFault


def fault_in(output: str) -> WorkerFault | None:
    """Return the fault in the last line of a worker's output; None where there is none."""
    lines = output.splitlines()
    try:
        return msgspec.json.decode(lines[-1], type=_Refusal).error if lines else None
    except msgspec.MsgspecError:
        return None


def read_reply(line: bytes, op: str, kind: type[_T]) -> _T | WorkerFault:
    """Return the reply to `op` in a line, or the fault that it tells of or shows by itself."""
    try:
        reply = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        if msgspec.json.decode(reply.get("op", b"null")) != op:
            raise msgspec.ValidationError("the reply belongs to another request")
        if msgspec.json.decode(reply.get("ok", b"false")) is True:
            return msgspec.json.decode(line, type=kind)
        return msgspec.json.decode(reply["error"], type=WorkerFault)
    except (msgspec.MsgspecError, KeyError) as error:
        return WorkerFault(
            phase="protocol",
            brief=f"the answer to `{op}` is not understood: {error}",
            traceback=line[:200].decode(errors="replace"),
            hint="a program that writes to the worker's stdout breaks the protocol",
        )
