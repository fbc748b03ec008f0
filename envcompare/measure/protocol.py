"""The replies of worker protocol 1 as types; unknown fields are ignored, missing ones refused."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec

from envcompare.errors import Phase
from envcompare.run_folder.records import Count
from envcompare.transport import read_json

_T = TypeVar("_T")
PROTOCOL = 1
# Whatever a worker says, the run folder can hold it, and reads it back.
_MOST: Final = (1 << 63) - 1
_Integer = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
_Amount = Annotated[int, msgspec.Meta(ge=0, le=10**18)]
_Scalar = str | _Integer | float | bool | None
_Fact = _Scalar | tuple[_Scalar, ...]


class WorkerFault(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong inside a worker, as it said itself."""

    phase: Phase
    brief: str
    step: Count | None = None
    traceback: str = ""
    hint: str = ""  # where the worker knows what to try


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The template is up: its clock, how long imports and data took, and what it found."""

    protocol: Count
    pid: _Amount
    entry_ns: Count
    now_ns: Count
    import_ns: Count
    data_ns: Count
    generation: str
    generation_reason: str = ""
    device: str
    compute_capability: str = ""  # of the GPU in use; empty on a CPU
    batch: Annotated[int, msgspec.Meta(ge=1, le=10**18)]
    code_hash: str
    data_hash: str | None = None
    steps_per_epoch: _Amount | None = None
    params: dict[str, _Scalar] = {}
    fingerprint: dict[str, _Fact] | None = None


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """A generation began: the model is built and has done its first step."""

    pid: _Amount
    spawn_ns: Count
    build_ns: Count
    first_step_ns: Count
    checksum: float | None


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A block of k steps was run."""

    t0_ns: Count
    wall_ns: tuple[Count, ...]
    cpu_ns: tuple[Count, ...]
    gpu_ns: tuple[Count, ...] | None = None
    wait_ns: Count | None = None
    all_wait_ns: Count | None = None
    throttled_ns: Count | None = None
    voluntary_switches: Count | None = None
    involuntary_switches: Count | None = None
    minor_faults: Count | None = None
    major_faults: Count | None = None
    loss: float | None = None


class Profiled(msgspec.Struct, frozen=True, kw_only=True):
    """K steps were run for one kind of profile; without a value there is a reason."""

    kind: str
    k: _Amount
    wall_ns: Count
    file: str = ""  # the one that was asked for, where it was written
    values: dict[str, Any] = {}  # as the profiler inside the worker gave them
    reason: str = ""
    hint: str = ""
    has_failed: bool = False  # while it ran; else it cannot be had here at all


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker finds around itself now, after `steps` steps of the live generation."""

    steps: _Amount
    fingerprint: dict[str, _Fact]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A generation ended: the peaks its process reached."""

    max_rss_bytes: _Amount
    cgroup_peak_bytes: _Amount | None = None
    cuda_allocated_peak_bytes: _Amount | None = None
    cuda_reserved_peak_bytes: _Amount | None = None
    result: dict[str, _Scalar] | None = None  # what the workload's `finish` returned


class Quit(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's whole cost, children included."""

    user_ns: Count
    sys_ns: Count
    max_rss_bytes: _Amount


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What a launcher of plain commands found in its arm."""

    program: str
    programs: dict[str, str | None] = {}  # hashes by the words of the command that name one
    code_hash: str
    fingerprint: dict[str, _Fact]


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """One program was run to its end, or to its limit."""

    t0_ns: Count
    wall_ns: Count
    user_ns: Count
    sys_ns: Count
    max_rss_bytes: _Amount | None
    exit_code: Count
    signal: str | None
    is_late: bool
    left_processes: bool
    settling_ns: Count  # waited after its end for what it had started, and for the search
    values: dict[str, float]
    slow_measures: tuple[str, ...] = ()  # their expression took too long, and gave no value
    fingerprint: dict[str, _Fact] = {}  # what was seen of it, where it was watched


class _Refusal(msgspec.Struct):
    error: WorkerFault


def fault_in(output: str) -> WorkerFault | None:
    """Return the fault in the last line of a worker's output; None where there is none."""
    lines = output.splitlines()
    try:
        return read_json(lines[-1], _Refusal).error if lines else None
    except msgspec.MsgspecError:
        return None


def read_reply(line: bytes, op: str, kind: type[_T]) -> _T | WorkerFault:
    """Return the reply to `op` in a line, or the fault that it tells of or shows by itself."""
    try:
        reply = read_json(line, dict[str, msgspec.Raw])
        if read_json(reply.get("op", b"null"), object) != op:
            raise msgspec.ValidationError("the reply belongs to another request")
        if read_json(reply.get("ok", b"false"), object) is True:
            return read_json(line, kind)
        return read_json(reply["error"], WorkerFault)
    except (msgspec.MsgspecError, KeyError) as error:
        return WorkerFault(
            phase="protocol",
            brief=f"the answer to `{op}` is not understood: {error}",
            traceback=line[:200].decode(errors="replace"),
            hint="a program that writes to the worker's stdout breaks the protocol",
        )
