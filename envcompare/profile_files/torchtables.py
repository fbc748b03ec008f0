"""What a worker says of its own steps by PyTorch: operators and model FLOPs, as profiles."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from envcompare.errors import ProfileError
from envcompare.run_folder.profiles import Operator, Profile, Quantity

_T = TypeVar("_T")
_FLOPS_SOURCE = "FlopCounterMode and formulas for recurrent layers"


class _Traced(msgspec.Struct, frozen=True, kw_only=True):
    version: str = ""
    operators: tuple[Operator, ...] = ()


class _Counted(msgspec.Struct, frozen=True, kw_only=True):
    flops: int | None = None
    by_op: dict[str, int] = {}


def operators(values: dict[str, Any], *, steps: int, file: str = "") -> Profile:
    """Return the table of operators that torch.profiler made; `file` is its trace.

    Raises ProfileError where the values are not what the worker's profiler gives.
    """
    found = read_values(values, _Traced, what="the operators of torch.profiler")
    return Profile(
        tool="torch",
        version=found.version,
        format="torch.profiler key_averages",
        files=(file,) if file else (),
        operators=found.operators,
        steps=steps,
    )


def model_flops(values: dict[str, Any], *, steps: int, reason: str = "") -> Profile:
    """Return the FLOPs that PyTorch was asked for; `reason` says what the count lacks, or why.

    Raises ProfileError where the values are not what the worker's count gives.
    """
    found = read_values(values, _Counted, what="the count of FLOPs")
    is_whole = found.flops is not None and not reason
    quantity = Quantity(
        name="flops_model",
        value=found.flops if is_whole else None,
        unit="FLOP",
        rule="sum",
        source=_FLOPS_SOURCE,
        scope=f"{steps} steps",
        status="ok" if is_whole else "missing",
        reason="" if is_whole else reason or "the worker counted nothing",
    )
    notes = tuple(f"{op}: {flops} FLOP" for op, flops in sorted(found.by_op.items()))
    return Profile(
        tool="torch", format="model FLOPs", quantities=(quantity,), steps=steps, notes=notes
    )


def read_values(values: dict[str, Any], kind: type[_T], *, what: str) -> _T:
    """Return what a worker gave as a type; raises ProfileError where it is something else."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ProfileError(
            f"{what} cannot be read from the worker's answer",
            details=str(error),
            hint="give the workloads of this version of envcompare to the host",
        ) from error
